package distributed_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// A refusal for lack of room in an outer quota names the policy and the tier of that quota, at once
// and in the queue, and so does one by a pause or a ban of it.
func TestRefusalsNameTheOuterQuota(t *testing.T) {
	within := func(t *testing.T, d time.Duration) context.Context {
		ctx, stop := context.WithTimeout(t.Context(), d)
		t.Cleanup(stop)
		return ctx
	}
	for _, how := range []string{"local", "together", "apart"} {
		for _, n := range []struct {
			name   string
			tier   string // if empty, none decides
			reason error
			refuse func(t *testing.T, l, outer *throttle.Limiter) error
		}{
			{"deadline", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = l.WaitN(t.Context(), 20)
				return l.Wait(within(t, sec))
			}},
			{"far deadline", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = l.WaitN(t.Context(), 20)
				var wg sync.WaitGroup
				ctx := within(t, 15*sec)
				for range 20 {
					wg.Go(func() { _ = l.Wait(ctx) })
				}
				time.Sleep(sec)
				err := l.Wait(ctx)
				wg.Wait()
				return err
			}},
			{"used by others", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = outer.WaitN(t.Context(), 20)
				return l.Wait(within(t, sec))
			}},
			{"without waiting", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = l.WaitN(t.Context(), 20)
				_, err := l.TryAcquire(t.Context(), nil)
				return err
			}},
			{"without waiting, while others wait", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = outer.WaitN(t.Context(), 20)
				var wg sync.WaitGroup
				wg.Go(func() { _ = outer.Wait(t.Context()) })
				time.Sleep(sec)
				_, err := l.TryAcquire(t.Context(), nil)
				wg.Wait()
				return err
			}},
			{"capacity", "20/10s", throttle.ErrExceedsCapacity, func(t *testing.T, l, outer *throttle.Limiter) error {
				return l.WaitN(t.Context(), 21)
			}},
			{"batch", "20/10s", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = l.WaitN(t.Context(), 20)
				return l.Wait(throttle.WithClass(within(t, sec), throttle.Batch))
			}},
			{"pause", "", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = outer.Pause(t.Context(), 10*sec)
				return l.Wait(within(t, sec))
			}},
			{"pause while it waits", "", throttle.ErrDeadline, func(t *testing.T, l, outer *throttle.Limiter) error {
				_ = l.WaitN(t.Context(), 20)
				time.AfterFunc(sec, func() { _ = outer.Pause(context.Background(), time.Minute) })
				return l.Wait(within(t, 20*sec))
			}},
		} {
			t.Run(how+", "+n.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					rdb := near(t, s)
					redis := distributed.New(rdb, distributed.Options{})
					open := func(name string, limit int64) *throttle.Limiter {
						p := throttle.Policy{Name: name, Tiers: []throttle.Tier{per(10*sec, limit, throttle.SlidingLog)}}
						switch how {
						case "local":
							return limiter(t, p, nil)
						case "apart":
							return limiter(t, p, distributed.New(rdb, distributed.Options{}))
						}
						return limiter(t, p, redis)
					}
					outer := open("outer", 20)
					err := n.refuse(t, open("inner", 100).Within(outer), outer)
					var refused *throttle.WaitError
					if errors.As(err, &refused) && refused.Ahead > 0 && refused.Tier == "" && how != "local" {
						n.tier = "" // in a fleet, times that are reserved decide
					}
					if !errors.As(err, &refused) || !errors.Is(err, n.reason) || refused.Policy != "outer" || refused.Tier != n.tier {
						t.Errorf("got %v, want a refusal by policy \"outer\", tier %q: %v", err, n.tier, n.reason)
					}
				})
			})
		}
	}
}
