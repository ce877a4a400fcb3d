package distributed_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
)

// What a process learns of its way to the provider holds for what it books. Another
// that has learned nothing is on its way for longer, on the same quota.
func TestAutoGuard(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]func(*testing.T) string{
		"miniredis": func(t *testing.T) string { return miniredis.RunT(t).Addr() },
		"redis":     func(t *testing.T) string { return redistest.Start(t).Addr() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := addr(t)
			process := func() *throttle.Limiter {
				p := policy(per(10*sec, 1000, throttle.SlidingLog))
				p.Name, p.Guard = "auto", throttle.AutoGuard
				return limiter(t, p, distributed.New(client(t, &redis.Options{Addr: server}), distributed.Options{}))
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
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return s.Tiers[0].ResetAfter - 10*sec
			}
			// The guard, less what it takes to ask for the status.
			if got := counts(learned); got < 0 || got > 400*ms {
				t.Errorf("who has learned is on its way for %v, want 20 ms and a little more", got)
			}
			if got := counts(new); got < 700*ms || got > 1250*ms {
				t.Errorf("who has not is on its way for %v, want 1s and a little more", got)
			}
		})
	}
}
