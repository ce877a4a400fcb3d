package distributed_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// TestEndedProcessesLeaveTheLine checks that processes which end as planned while their callers wait keep
// no place and no turn from the others, and that they end at once.
func TestEndedProcessesLeaveTheLine(t *testing.T) {
	t.Parallel()
	places := throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency}
	bucket := throttle.Tier{Limit: 1, Window: sec, Algorithm: throttle.GCRA}
	for _, test := range []struct {
		name         string
		tiers, outer []throttle.Tier
		class        throttle.Class
		places       bool // else turns
		local        bool // the inner quota is in the process
	}{
		{"places", []throttle.Tier{places}, nil, throttle.Normal, true, false},
		{"places in an account", []throttle.Tier{places}, []throttle.Tier{throttle.PerSecond(1000)}, throttle.Normal, true, false},
		{"in an account with places", []throttle.Tier{throttle.PerSecond(1000)}, []throttle.Tier{places}, throttle.Normal, true, false},
		{"local in an account with places", []throttle.Tier{throttle.PerSecond(1000)}, []throttle.Tier{places}, throttle.Normal, true, true},
		{"places of Batch", []throttle.Tier{places}, nil, throttle.Batch, true, false},
		{"turns", []throttle.Tier{bucket}, nil, throttle.Batch, false, false},
		{"turns and places", []throttle.Tier{bucket, places}, nil, throttle.Batch, false, false},
		{"turns in an account with places", []throttle.Tier{bucket}, []throttle.Tier{places}, throttle.Batch, false, false},
		{"turns of an account with places", []throttle.Tier{places}, []throttle.Tier{bucket}, throttle.Batch, false, false},
		{"promises", []throttle.Tier{bucket}, []throttle.Tier{throttle.PerSecond(1000)}, throttle.Normal, false, false},
	} {
		for _, how := range []string{"canceled, flushed", "closed", "closed, flushed"} {
			for _, freed := range []bool{false, true} {
				if (freed || how == "closed") && !test.places || how == "closed" && test.local {
					continue
				}
				name := test.name + ", " + how
				if freed {
					name += ", while places come free"
				}
				t.Run(name, func(t *testing.T) {
					soak.Sample(t, 24)
					bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
						open := func() (*throttle.Limiter, *distributed.Store, *redis.Client, func()) {
							rdb := near(t, s)
							st := distributed.New(rdb, distributed.Options{})
							var inner throttle.Store = st
							if test.local {
								inner = local.New()
							}
							l := limiter(t, throttle.Policy{Name: "{q}", Tiers: test.tiers, Guard: 50 * ms, Aging: hour}, inner)
							if test.outer == nil {
								return l, st, rdb, l.Close
							}
							outer := limiter(t, throttle.Policy{Name: "{q}outer", Tiers: test.outer, Guard: 50 * ms, Aging: hour}, st)
							within := l.Within(outer)
							return within, st, rdb, func() { within.Close(); outer.Close() }
						}
						ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), test.class))
						holder, _, _, _ := open()
						var held []*throttle.Permit
						if test.places {
							for range 2 {
								permit, err := holder.Acquire(ctx, nil)
								if err != nil {
									t.Fatal(err)
								}
								held = append(held, permit)
							}
						}
						release := func() {
							for _, permit := range held {
								permit.Release()
							}
						}
						var callers, fleet sync.WaitGroup
						var mu sync.Mutex
						var longest time.Duration // of the calls of Flush
						end := make(chan struct{})
						for range 30 {
							l, st, rdb, closeLimiters := open()
							for range 2 {
								callers.Go(func() {
									for {
										permit, err := l.Acquire(ctx, nil)
										if err != nil {
											return
										}
										time.Sleep(5 * ms)
										permit.Release()
									}
								})
							}
							fleet.Go(func() {
								<-end
								if strings.Contains(how, "closed") {
									closeLimiters()
								}
								time.Sleep(50 * ms)
								if strings.Contains(how, "flushed") {
									began := time.Now()
									if err := st.Flush(t.Context()); err != nil {
										t.Error(err)
									}
									mu.Lock()
									longest = max(longest, time.Since(began))
									mu.Unlock()
								}
								_ = rdb.Close()
							})
						}
						time.Sleep(3 * sec)
						if freed {
							release()
							time.Sleep(500 * ms)
						}
						if !strings.Contains(how, "closed") {
							cancel()
						}
						close(end)
						fleet.Wait()
						callers.Wait()
						cancel()
						if longest > 100*ms {
							t.Errorf("Flush took %v, want 100ms at most", longest)
						}
						if !freed {
							release()
						}
						began, want := time.Now(), 500*ms
						if !test.places {
							want = 3 * sec
						}
						next, _, _, _ := open()
						permit, err := next.Acquire(throttle.WithClass(t.Context(), test.class), nil)
						if err != nil {
							t.Fatal(err)
						}
						if permit.Release(); time.Since(began) > want {
							t.Errorf("the next request waited for %v, want %v at most", time.Since(began), want)
						}
					})
				})
			}
		}
	}
}
