package distributed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestHoldChangesSides checks that callers that wait for a quota in Redis change over when the quota
// around it turns out to be the slower one: its full queue refuses them, and they do not wait for an hour.
func TestHoldChangesSides(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		l, _, _ := insideLocal(t, s, ms,
			throttle.Policy{Tiers: []throttle.Tier{per(hour, 4, throttle.SlidingLog)}},
			throttle.Policy{Tiers: []throttle.Tier{per(hour, 1, throttle.SlidingLog)}, MaxQueue: 3})
		ctx, cancel := context.WithCancel(t.Context())
		var sent, full atomic.Int64
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				switch err := l.Wait(ctx); {
				case err == nil:
					sent.Add(1)
				case errors.Is(err, throttle.ErrQueueFull):
					full.Add(1)
				case ctx.Err() == nil:
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * sec)
		if sent.Load() != 1 || full.Load() != 8 {
			t.Errorf("%d were sent and %d found the queue full, want 1 and 8", sent.Load(), full.Load())
		}
		cancel()
		all.Wait()
	})
}

// TestHoldStorm checks that a crowd of callers changes over together, costs few calls of the
// script, however late it answers, and that the quotas are as good as new when all of them were canceled.
func TestHoldStorm(t *testing.T) {
	soak.Long(t, "crowds of hundreds; TestQuietAfterCancel has smaller ones")
	t.Parallel()
	for _, trip := range []time.Duration{ms, 200 * ms} {
		for _, inner := range []int64{50, 1000} {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				l, _, counter := insideLocal(t, s, trip,
					throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(inner)}},
					throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(50)}})
				during := func(callers int, length time.Duration) int64 {
					ctx, cancel := context.WithCancel(t.Context())
					var admitted atomic.Int64
					var all sync.WaitGroup
					for range callers {
						all.Go(func() {
							for l.Wait(ctx) == nil {
								admitted.Add(1)
							}
						})
					}
					time.Sleep(length)
					cancel()
					all.Wait()
					return admitted.Load()
				}
				crowd := during(min(3000, soak.Times(3000)), 20*sec)
				calls := counter.Count()
				time.Sleep(5 * sec)
				after := during(100, 20*sec)
				t.Logf("%d inside 50, trips of %v: %d admitted with %d calls, and %d after the storm", inner, trip, crowd, calls, after)
				if crowd < 500 || int64(calls) > 3*crowd {
					t.Errorf("got %d admitted in 20s with %d calls, want 500 at least, with 3 calls each at most", crowd, calls)
				}
				if after < 500 {
					t.Errorf("got %d admitted in 20s after the storm, want 500 at least", after)
				}
			})
		}
	}
}
