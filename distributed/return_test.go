package distributed_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Large requests that are canceled, in any order, return everything that they had reserved. The
// next request of the fleet is admitted at once.
func TestFleetReturnsTail(t *testing.T) {
	t.Parallel()
	for _, a := range []throttle.Algorithm{
		throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow, throttle.AnchoredWindow, throttle.GCRA,
	} {
		virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
			p := throttle.Policy{Name: "returned", Tiers: []throttle.Tier{per(time.Minute, 100, a)}}
			first := limiter(t, p, distributed.New(process(0, 5*time.Millisecond), distributed.Options{}))
			second := limiter(t, p, distributed.New(process(0, 5*time.Millisecond), distributed.Options{}))
			if err := first.WaitN(t.Context(), 60); err != nil {
				t.Fatal(err)
			}
			for _, order := range [][]int{{0}, {0, 1, 2}, {2, 1, 0}, {1, 0, 2}} {
				var wg sync.WaitGroup
				cancels := make([]context.CancelFunc, len(order))
				for i := range order {
					var ctx context.Context
					ctx, cancels[i] = context.WithCancel(t.Context())
					l := []*throttle.Limiter{first, second}[i%2]
					wg.Go(func() {
						if l.WaitN(ctx, 90+int64(i)) == nil {
							t.Error("got a request beyond the limit admitted")
						}
					})
					time.Sleep(100 * time.Millisecond)
				}
				for _, i := range order {
					cancels[i]()
					time.Sleep(100 * time.Millisecond)
				}
				wg.Wait()
			}
			if !second.AllowN(40) {
				t.Errorf("%v: got AllowN(40) = false after 60 of 100, want true", a)
			}
			if second.AllowN(5) {
				t.Errorf("%v: got AllowN(5) = true after 100 of 100, want false", a)
			}
		})
	}
}
