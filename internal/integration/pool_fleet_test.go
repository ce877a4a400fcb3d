package integration_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
)

func TestPoolFleetX(t *testing.T) {
	for _, single := range []bool{true, false} {
		for _, mixed := range []bool{false, true} {
			for _, callers := range []int{25, 4, 1} {
				t.Run(fmt.Sprint(single, mixed, callers), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := redismem.New()
						t.Cleanup(s.Close)
						var calls [4]atomic.Int64
						var total atomic.Int64
						redismem.Hook(s, func(c *server.Peer, name string, args ...string) bool {
							if name == "EVALSHA" || name == "FCALL" || name == "EVAL" {
								total.Add(1)
							}
							return false
						})
						var done [4]int
						var units int64
						by := map[string]int{}
						var mu sync.Mutex
						var wg sync.WaitGroup
						start := time.Now()
						violations := 0
						for i := range 4 {
							rdb := nearClient(t, s)
							st := distributed.New(rdb, distributed.Options{})
							unit := throttle.Tier{Limit: 5, Window: time.Second}
							a := throttle.Policy{Name: "a", Tiers: []throttle.Tier{unit}, Observer: &throttle.Observer{Called: func(ci throttle.CalledInfo) { calls[i].Add(1) }}}
							unit.Limit = 20
							b := throttle.Policy{Name: "b", Tiers: []throttle.Tier{unit}, Observer: a.Observer}
							if mixed {
								a.Tiers[0].Limit, b.Tiers[0].Limit = 500, 2000
								a.Tiers[0].Unit, b.Tiers[0].Unit = "tokens", "tokens"
							}
							ms := []throttle.Member{{Name: "a", Limiter: mustNew(t, a, st)}, {Name: "b", Limiter: mustNew(t, b, st)}}
							if single {
								a.Tiers[0].Limit, a.Name = a.Tiers[0].Limit*5, "c"
								ms = []throttle.Member{{Name: "a", Limiter: mustNew(t, a, st)}}
							}
							p, err := throttle.NewPool(ms...)
							if err != nil {
								t.Fatal(err)
							}
							var order [][2]time.Time
							for j := range callers {
								wg.Go(func() {
									r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
									for time.Since(start) < time.Minute {
										time.Sleep(time.Duration(1 + r.IntN(100000)))
										var cost throttle.Cost
										n := int64(1)
										if mixed {
											n = 1 + r.Int64N(200)
											cost = throttle.Cost{"tokens": n}
										}
										asked := time.Now()
										permit, err := p.Acquire(t.Context(), cost)
										if err != nil {
											t.Error(err)
											return
										}
										mu.Lock()
										if time.Since(start) < time.Minute {
											done[i]++
											units += n
											by[fmt.Sprint(i, permit.Member())]++
										}
										order = append(order, [2]time.Time{asked, time.Now()})
										mu.Unlock()
										time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
										permit.Arrived()
										permit.Release()
									}
								})
							}
							defer func() {
								slices.SortFunc(order, func(a, b [2]time.Time) int { return a[0].Compare(b[0]) })
								last := time.Time{}
								for _, o := range order {
									if o[1].Before(last.Add(-2 * time.Millisecond)) {
										violations++
									} else {
										last = o[1]
									}
								}
								if i == 0 {
									t.Log("violations", violations)
								}
							}()
						}
						wg.Wait()
						el := 60.0
						sum := done[0] + done[1] + done[2] + done[3]
						perTurn := float64(total.Load()) / 4 / 2 / (el * 2)
						t.Logf("%v done %v sum %d units/s %.1f scripts %d called %v per member,process,turn %.2f per admission %.2f", by, done, sum, float64(units)/el, total.Load(), []int64{calls[0].Load(), calls[1].Load(), calls[2].Load(), calls[3].Load()}, perTurn, float64(total.Load())/float64(sum))
					})
				})
			}
		}
	}
}
