package distributed

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// The bounds of the clock hold however long replies take. They are as narrow as the quickest recent
// messages in each direction allow.
func TestClock(t *testing.T) {
	const rate = 1 + 200e-6
	for range 100 {
		var c clock
		start := time.Now()
		serverMicros := func(at time.Time) int64 { return int64(float64(at.Sub(start).Microseconds()) * rate) }
		at, set := start, int64(0)
		for i := range 2000 {
			sent := at.Add(rand.N(20 * time.Millisecond))
			read := sent.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			got := read.Add(time.Millisecond + time.Duration(rand.ExpFloat64()*float64(5*time.Millisecond)))
			at = got
			// The server's clock is set back so far that the quota's clock stands still for some
			// ms.
			if i == 1500 {
				set = 4000
			}
			now := serverMicros(read) - set
			known, _ := c.update(header{now: now, wall: now - 100*set}, sent, got)
			from, to := known.when(now, got)
			if from.After(read) || to.Before(read.Add(-time.Microsecond)) {
				t.Fatalf("reply %d: got %v to %v after the call, want bounds around %v", i, from.Sub(sent), to.Sub(sent), read.Sub(sent))
			}
			if width := to.Sub(from); i%1500 > 400 && width > 5*time.Millisecond {
				t.Fatalf("reply %d: got bounds %v apart, want 5ms at most", i, width)
			}
		}
	}
}

// A new quota starts with what other quotas have learned of the server's clock, until the clock is
// set back.
func TestClockOfAServer(t *testing.T) {
	server, at := new(clock), time.Now()
	learn := func(c *clock, now, wall int64, there, back time.Duration) time.Duration {
		at = at.Add(time.Second)
		b, _ := c.update(header{now: now, wall: at.Sub(beginning).Microseconds() + wall}, at.Add(-there), at.Add(back))
		return b.most - b.least
	}
	now := func() int64 { return at.Add(time.Second).Sub(beginning).Microseconds() }
	first := &clock{server: server}
	learn(first, now(), 0, time.Millisecond, time.Millisecond)
	second := &clock{server: server}
	if width := learn(second, now()-5e6, 0, time.Second, time.Second); width > 4*time.Millisecond {
		t.Errorf("second quota: got bounds %v apart, want 4ms at most", width)
	}
	if width := learn(first, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("clock set back: got bounds %v apart, want 40ms", width)
	}
	third := &clock{server: server}
	if width := learn(third, now(), -5000, 20*time.Millisecond, 20*time.Millisecond); width != 40*time.Millisecond {
		t.Errorf("clock set back, new quota: got bounds %v apart, want 40ms", width)
	}
}

// TestBundleKnowsClocks checks that a reservation for now in several quotas can be used if the reply
// takes as long as those before it, however well the process knows the clock of each quota.
func TestBundleKnowsClocks(t *testing.T) {
	const took, offset = 100 * time.Millisecond, 5_000_000
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	plan, err := algorithms.NewPlan([]algorithms.Tier{{Limit: 5, Window: time.Second, Algorithm: algorithms.SlidingLog}}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	for _, known := range [][2]time.Duration{{took, took}, {took, time.Millisecond}, {time.Millisecond, took}, {time.Millisecond, time.Millisecond}, {30 * time.Millisecond, 60 * time.Millisecond}} {
		for _, there := range []time.Duration{0, took / 2, took} {
			s, now := New(rdb, Options{}), time.Now()
			var quotas []store.Quota
			for i, name := range []string{"inner", "outer"} {
				q := newQuota(s, name, plan, nil, 0, nil)
				q.clock = new(clock)
				q.clock.update(header{generation: 1, now: offset + micros(now.Sub(beginning))}, now.Add(-known[i]/2), now.Add(known[i]/2))
				q.node.trip.add(took)
				quotas = append(quotas, q)
			}
			b := quotas[0].(*quota).Bundle(quotas[1:], []int{0, 0}).(*bundle)
			requests := []store.Request{{Cost: []int64{1, 1}, WaitSpec: &store.WaitSpec{MaxWait: store.Forever}}}
			a := newJointAttempt(b, []time.Duration{0}, requests)
			a.onSend(1)
			a.sent, a.got = now, now.Add(took)
			at := offset + micros(now.Add(there).Sub(beginning))
			head := []int64{at, 1, 1000, 0, 0, 0, at, 0}
			a.calls[0].reply = append(append(append(append([]int64(nil), head...), -1, 0), head...), -2, at, 1)
			got, err := a.read()
			if err != nil || len(got) != 1 || got[0].Verdict != store.Admitted {
				t.Fatalf("got %+v, %v", got, err)
			}
			if left := got[0].Reservation.End.Sub(a.got); left < 0 {
				t.Errorf("clocks known within %v, %v on the way there: it ended %v before the reply", known, there, -left)
			}
		}
	}
}
