package distributed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

func TestZZChaos(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				g := rand.New(rand.NewPCG(seed, 99))
				ctx, stop := context.WithTimeout(t.Context(), 30*sec)
				defer stop()
				clock := newSteps(t, s)
				names := []string{"in0", "in1", "mid", "out"}
				policies := map[string]throttle.Policy{}
				arrived := map[string]*arrivals{}
				for i, name := range names {
					limit := int64(1 + g.IntN(5+10*i))
					tiers := []throttle.Tier{per(sec, limit, throttle.SlidingLog)}
					if g.IntN(2) == 0 {
						tiers = append(tiers, per(5*sec, 3*limit, throttle.SlidingWindow))
					}
					policies[name] = throttle.Policy{Name: name, Tiers: tiers, Guard: 60 * ms}
					arrived[name] = new(arrivals)
				}
				var wg sync.WaitGroup
				steps := seed%2 == 0
				for p := range 3 {
					far := time.Duration(g.IntN(30))*ms + ms/2
					redis := distributed.New(distant(t, s, func() time.Duration { return far }), distributed.Options{})
					ls := map[string]*throttle.Limiter{}
					for _, name := range names {
						ls[name] = limiter(t, policies[name], redis)
					}
					mid := ls["mid"].Within(ls["out"])
					ways := []struct {
						l    *throttle.Limiter
						over []string
					}{
						{ls["in0"].Within(mid), []string{"in0", "mid", "out"}},
						{ls["in1"].Within(mid), []string{"in1", "mid", "out"}},
						{ls["in1"].Within(ls["out"]), []string{"in1", "out"}},
						{mid, []string{"mid", "out"}},
						{ls["in0"], []string{"in0"}},
						{ls["out"], []string{"out"}},
					}
					for w, way := range ways {
						if w >= 4 && g.IntN(2) == 0 {
							continue
						}
						for c := range 1 + g.IntN(4) {
							g := rand.New(rand.NewPCG(seed, uint64(p*100+w*10+c)))
							wg.Go(func() {
								for ctx.Err() == nil {
									sent, _ := callAnyhow(g, way.l, ctx)
									if !sent {
										time.Sleep(20 * ms)
										continue
									}
									at := time.Now().Add(time.Duration(g.IntN(60)) * ms)
									for _, name := range way.over {
										a := arrived[name]
										a.mu.Lock()
										a.at = append(a.at, at)
										a.mu.Unlock()
									}
								}
							})
						}
					}
					g := rand.New(rand.NewPCG(seed, uint64(p)))
					wg.Go(func() {
						for ctx.Err() == nil {
							time.Sleep(time.Duration(g.IntN(4000)) * ms)
							name := names[g.IntN(len(names))]
							switch g.IntN(4) {
							case 0:
								_ = ls[name].Pause(ctx, time.Duration(g.IntN(1500))*ms)
							case 1:
								_ = ls[name].Resume(ctx)
							case 2:
								if steps {
									clock.Add(-int64(time.Duration(g.IntN(1500)) * ms))
								}
							case 3:
								q := policies[name]
								q.Tiers = append(slices.Clone(q.Tiers), per(time.Hour, 100_000, throttle.SlidingWindow))
								if g.IntN(2) == 0 {
									q = policies[name]
								}
								_ = ls[name].SetPolicy(ctx, q)
							}
						}
					})
				}
				wg.Wait()
				for _, name := range names {
					for _, tier := range policies[name].Tiers {
						if n := arrived[name].refused(int(tier.Limit), tier.Window); n > 0 {
							t.Errorf("steps %v: %s of %v: of %d refuses %d", steps, name, tier, len(arrived[name].at), n)
						}
					}
				}
			})
		})
	}
}
