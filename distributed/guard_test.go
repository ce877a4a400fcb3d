package distributed_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// What a process learns of its way to the provider holds for what it books. Another
// that has learned nothing is on its way for longer, on the same quota.
func TestAutoGuard(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		process := func() *throttle.Limiter {
			p := policy(per(10*sec, 1000, throttle.SlidingLog))
			p.Name, p.Guard = "auto", throttle.AutoGuard
			return limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		}
		learned, new := process(), process()
		for range 64 {
			permit, err := learned.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permit.Arrived()
		}
		time.Sleep(sec + 100*ms) // until the first of those have landed
		counts := func(l *throttle.Limiter) time.Duration {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			return tierStatus(t, l, 0).ResetAfter - 10*sec
		}
		// The guard, and what a booking allows for waking up and the way to Redis.
		const more = 25 * ms
		if got := counts(learned); got < 20*ms || got > 20*ms+more {
			t.Errorf("who has learned is on its way for %v, want 20 ms and a little more", got)
		}
		if got := counts(new); got < sec || got > sec+more {
			t.Errorf("who has not is on its way for %v, want 1 s and a little more", got)
		}
	})
}
