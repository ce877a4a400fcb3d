package distributed_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
)

// Callers that give up cost a fleet little of its quota, also if a returned time is too small for
// the request of another. Nobody gives up: 0.80 of the limit, at 0.17 calls a request.
func TestMixedCostsOfCallersThatGiveUp(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for name, most := range map[string]float64{"alone": 1.2, "in an account": 2.5} { // calls a request
		nested := name != "alone"
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				const limit, lasts = 2000, 100 * sec
				p := throttle.Policy{Name: "mixed", Guard: 50 * ms, Tiers: []throttle.Tier{{Limit: limit, Window: sec, Algorithm: throttle.TokenBucket, Burst: 200}}}
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(lasts, cancel) // a deadline would refuse callers at once
				defer cancel()
				var all sync.WaitGroup
				var used, admitted atomic.Int64
				asked := new(calls.Counter)
				for i := range uint64(3) {
					rdb := process(ms/2, ms/2+ms/8)
					rdb.AddHook(asked)
					store := distributed.New(rdb, distributed.Options{})
					l := limiter(t, p, store)
					if nested {
						l = l.Within(limiter(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerSecond(10 * limit)}}, store))
					}
					for j := range uint64(8) {
						all.Go(func() {
							random := rand.New(rand.NewPCG(i, j))
							for ctx.Err() == nil {
								own, giveUp := context.WithCancel(ctx)
								if random.IntN(2) == 0 {
									time.AfterFunc(time.Duration(random.Int64N(int64(100*ms))), giveUp)
								}
								n := 50 + random.Int64N(101)
								if l.WaitN(own, n) == nil {
									used.Add(n)
									admitted.Add(1)
								}
								giveUp()
							}
						})
					}
				}
				all.Wait()
				part := float64(used.Load()) / (limit * lasts.Seconds())
				each := float64(asked.Count()) / float64(admitted.Load())
				t.Logf("%.3f of the limit, %.2f calls a request", part, each)
				if part < 0.7 || each > most {
					t.Errorf("got %.2f of the limit at %.2f calls a request, want 0.7 at least and %v at most", part, each, most)
				}
			})
		})
	}
}
