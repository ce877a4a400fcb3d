package distributed_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// Processes that use one quota inside two others use all of it, and no more, while one of the outer
// quotas is full for an hour, or slow, and callers give up.
func TestSharedInAFleet(t *testing.T) {
	t.Parallel()
	limit := per(20*sec, 60, throttle.SlidingLog)
	full := per(hour, 5, throttle.SlidingLog)
	for _, test := range []struct {
		name    string
		outer   throttle.Tier // of one outer quota; the other one is faster than the shared quota
		least   int           // admitted inside it
		apart   bool          // the outer quotas are in another store
		account []throttle.Tier
	}{
		{"full", full, 1, false, nil},
		{"full, of another store", full, 1, true, nil},
		{"full, in an account with permits", full, 1, false, []throttle.Tier{{Limit: 20, Algorithm: throttle.Concurrency}}},
		{"slow", throttle.PerSecond(1), 1, false, nil},
		{"slow, in an account", throttle.PerSecond(1), 1, false, []throttle.Tier{throttle.PerSecond(100)}},
		{"fast", throttle.PerSecond(20), 20, false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 3)
			var arrived, slow arrivals
			var mu sync.Mutex
			var got [2]int
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				ctx, stop := context.WithCancel(t.Context()) // without a deadline, which would refuse callers
				time.AfterFunc(61*sec, stop)
				var wg sync.WaitGroup
				for range 3 {
					store := func() throttle.Store {
						return distributed.New(distant(t, s, func() time.Duration { return ms / 2 }), distributed.Options{})
					}
					one, other := store(), store()
					if !test.apart {
						other = one
					}
					g, err := throttle.NewGroup(throttle.Policy{Name: "shared", Tiers: []throttle.Tier{limit}}, one, throttle.GroupOptions{Shared: true})
					if err != nil {
						t.Fatal(err)
					}
					for i, tier := range []throttle.Tier{test.outer, throttle.PerSecond(20)} {
						l := limiter(t, throttle.Policy{Name: fmt.Sprint("outer ", i), Tiers: []throttle.Tier{tier}}, other)
						if test.account != nil {
							l = l.Within(limiter(t, throttle.Policy{Name: "account", Tiers: test.account}, one))
						}
						l = g.Within("key", l)
						for c := range 4 {
							wg.Go(func() {
								for n := 0; ctx.Err() == nil; n++ {
									ctx, cancel := context.WithCancel(ctx)
									if c == 0 && n%2 == 1 {
										time.AfterFunc(time.Duration(n%7)*sec, cancel)
									}
									p, err := l.Acquire(ctx, nil)
									cancel()
									if err != nil {
										continue
									}
									arrived.send(50 * ms)
									if i == 0 {
										slow.send(50 * ms)
									}
									p.Release()
									mu.Lock()
									got[i]++
									mu.Unlock()
								}
							})
						}
					}
				}
				wg.Wait()
			})
			if n := arrived.refused(60, 20*sec) + slow.refused(int(test.outer.Limit), test.outer.Window); n > 0 {
				t.Errorf("%d were refused", n)
			}
			if all := got[0] + got[1]; all < 170 || got[0] < test.least || got[1] < 20 {
				t.Errorf("admitted %v, want 170 in all, and at least %d and 20", got, test.least)
			}
		})
	}
}
