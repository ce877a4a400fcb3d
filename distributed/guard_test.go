package distributed_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// The guard that a process estimates from its own requests applies to what it reserves. Another
// process on the same quota that has no estimate yet keeps requests in flight for longer.
func TestAutoGuard(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		process := func() *throttle.Limiter {
			p := policy(per(10*sec, 1000, throttle.SlidingLog))
			p.Name, p.Guard = "auto", throttle.AutoGuard
			return limiter(t, p, distributed.New(near(t, s), distributed.Options{}))
		}
		estimated, unknown := process(), process()
		for range 64 {
			permit, err := estimated.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permit.Arrived()
		}
		time.Sleep(sec + 100*ms) // until the first of these requests have landed
		guardOf := func(l *throttle.Limiter) time.Duration {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			return tierStatus(t, l, 0).ResetAfter - 10*sec
		}
		// A reservation also allows for waking up and for the round trip to Redis.
		const more = 25 * ms
		if got := guardOf(estimated); got < 20*ms || got > 20*ms+more {
			t.Errorf("with an estimate: got %v in flight, want 20 ms and up to 25 ms more", got)
		}
		if got := guardOf(unknown); got < sec || got > sec+more {
			t.Errorf("without an estimate: got %v in flight, want 1 s and up to 25 ms more", got)
		}
	})
}
