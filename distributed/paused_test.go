package distributed_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// TestPausedFor checks that Paused receives how long the quota is paused, which doubles with each
// refusal that names no time, also while the server is away.
func TestPausedFor(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var told []time.Duration
		l := limiter(t, throttle.Policy{
			Name: "told", Tiers: []throttle.Tier{throttle.PerSecond(100)},
			Observer: &throttle.Observer{Paused: func(i throttle.PausedInfo) { told = append(told, i.For) }},
		}, distributed.New(near(t, s), distributed.Options{}))
		for i := range 4 {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if i == 3 {
				s.SetError("LOADING")
			}
			_ = p.Refused(t.Context(), 0)
			p.Release()
			if least := time.Second << i; len(told) != i+1 || told[i] < least || told[i] > 2*least {
				t.Fatalf("pause %d: told of %v, want the last from %v to %v", i, told, least, 2*least)
			}
		}
		s.SetError("")
		l.Close()
	})
}
