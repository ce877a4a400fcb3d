package kept

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Values with tiers that learn or follow have a format that older releases refuse, and stay small. What the responses
// have taught is read as it was written.
func TestTaughtValues(t *testing.T) {
	for _, s := range []subject{
		{"plain", "1000/s;algo=gcra;burst=100", 50 * time.Millisecond},
		{"learns", "1000/s;algo=gcra;burst=100;learn=1..1000000", 50 * time.Millisecond},
		{"follows", "1000/s;algo=gcra;burst=100;follow=1..1000000", 50 * time.Millisecond},
		{"both", "1000/s;algo=gcra;burst=100;learn=1..1000000 5000/h;unit=points;algo=fixed_window;follow=1..1000000", 50 * time.Millisecond},
	} {
		q := s.quota(t)
		value := s.value(t, q, 0, 0)
		p := s.part(t, q, value, start+1_000_000)
		p.birth = 0
		p.ledger().Refused(p.now, p.now.At-1, requests(q.plan, 1)[0].Cost)
		p.changed = true
		value = p.finish().Value
		if limits := []int64{400, 4000}[2-len(q.plan.Units()):]; q.plan.Follows() {
			next := q.given.Following(algorithms.Followed{At: start, Limits: append(make([]int64, len(q.plan.Given())-1), limits[0])})
			if !q.line.Replace(q.version, next) {
				t.Fatal("the plan was replaced")
			}
			q = q.newest()
			p := s.part(t, q, value, start+1_000_001)
			p.changed = true
			value = p.finish().Value
			if n := len(p.ledgers); n != 1 {
				t.Errorf("%s: %d ledgers, want 1", s.name, n)
			}
		}
		want := byte(format)
		if s.name == "plain" {
			want = oldFormat
		}
		if value[0] != want || len(value) > 400 {
			t.Errorf("%s: format %d and %d bytes, want format %d", s.name, value[0], len(value), want)
		}
		again, err := Reencode(value)
		if err != nil || !bytes.Equal(again, value) {
			t.Errorf("%s: error %v, encoded as %x", s.name, err, again)
		}
		checkMutated(t, rand.New(rand.NewPCG(1, 3)), s.name, value)
		if idle := IsIdle(value, start+29*86_400_000_000); idle != (s.name == "plain") {
			t.Errorf("%s: idle after 29 days: %v", s.name, idle)
		}
		if !IsIdle(value, start+31*86_400_000_000) {
			t.Errorf("%s: not idle after 31 days", s.name)
		}
		t.Logf("%s: %d bytes", s.name, len(value))
	}
}
