package kept_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// tokens returns a policy whose tokens are estimated.
func tokens(tier throttle.Tier) throttle.Policy {
	tier.Unit, tier.Estimated = "tokens", true
	return throttle.Policy{Name: "places", Guard: 20 * ms, Tiers: []throttle.Tier{tier}}
}

// used returns what the first tier counts, and what of it is in flight, as a fresh process sees it.
func (f *fleet) used(t testing.TB, p throttle.Policy) (used, inFlight int64) {
	t.Helper()
	s, err := f.start(t, p, 0).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used, s.Tiers[0].InFlight
}

// Whatever replies are lost, each actual cost counts once, and each percentage is reported once if none is lost.
func TestSettledOnce(t *testing.T) {
	soak.Slow(t, "many replies are lost")
	for seed := range uint64(12) {
		faults := seed%3 > 0
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			policy := tokens(throttle.Budget(20_000, "", throttle.Day))
			policy.AlertAt = []int{1, 2, 3, 5, 8, 12, 20, 99}
			var mu sync.Mutex
			var alerts []int
			policy.Alert = func(a throttle.Alert) {
				mu.Lock()
				defer mu.Unlock()
				alerts = append(alerts, a.Percent)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var want atomic.Int64
			var all sync.WaitGroup
			var processes []*process
			for i, way := range []time.Duration{ms, 100 * time.Microsecond, 20 * ms} {
				p := f.start(t, policy, way)
				processes = append(processes, p)
				for j := range 3 {
					r := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
					all.Go(func() {
						for ctx.Err() == nil {
							got, err := p.Acquire(ctx, throttle.Cost{"tokens": 1 + r.Int64N(40)})
							if err != nil {
								time.Sleep(50 * ms)
								continue
							}
							time.Sleep(time.Duration(r.Int64N(int64(2 * sec))))
							if r.IntN(4) == 0 {
								_ = got.Cancel(context.Background())
								continue
							}
							actual := r.Int64N(50)
							want.Add(actual)
							if err := got.Settle(throttle.Cost{"tokens": actual}); err != nil {
								t.Error(err)
							}
							got.Release()
						}
					})
				}
			}
			r := rand.New(rand.NewPCG(seed, 99))
			for faults && ctx.Err() == nil {
				p := processes[r.IntN(3)]
				switch r.IntN(3) {
				case 0:
					f.server.SetLost(true)
				case 1:
					p.client.SetCut(true)
				}
				time.Sleep(time.Duration(r.Int64N(int64(2 * sec))))
				f.server.SetLost(false)
				p.client.SetCut(false)
				time.Sleep(time.Duration(r.Int64N(int64(2 * sec))))
			}
			all.Wait()
			time.Sleep(3 * sec)
			if used, inFlight := f.used(t, policy); used != want.Load() || inFlight != 0 {
				t.Errorf("seed %d: %d used, %d in flight; want %d", seed, used, inFlight, want.Load())
			}
			var reached []int
			for _, percent := range policy.AlertAt {
				if want.Load()*100 >= int64(percent)*20_000 {
					reached = append(reached, percent)
				}
			}
			slices.Sort(alerts)
			if faults {
				alerts = slices.Compact(alerts)
			}
			if want.Load() < 500 || !faults && !slices.Equal(alerts, reached) {
				t.Errorf("seed %d: alerts %v after %d, want %v", seed, alerts, want.Load(), reached)
			}
		})
	}
}

// The estimates of a process that dies are charged when its lease ends.
func TestDeadPayTheirEstimates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, policy := newFleet(t), tokens(throttle.PerDay(1000))
		dies, lives := f.start(t, policy, ms), f.start(t, policy, ms)
		if _, err := dies.Acquire(t.Context(), throttle.Cost{"tokens": 300}); err != nil {
			t.Fatal(err)
		}
		dies.client.SetCut(true)
		for range 12 {
			time.Sleep(sec)
			if _, err := lives.Status(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if used, inFlight := f.used(t, policy); used != 300 || inFlight != 0 {
			t.Errorf("%d used, %d in flight; want 300 and none", used, inFlight)
		}
	})
}

// A request without an answer costs its estimate when its guard has passed.
func TestUnansweredPaysItsEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, policy := newFleet(t), tokens(throttle.PerDay(1000))
		p := f.start(t, policy, ms)
		got, err := p.Acquire(t.Context(), throttle.Cost{"tokens": 300})
		if err != nil {
			t.Fatal(err)
		}
		got.Release()
		time.Sleep(5 * time.Minute)
		if used, inFlight := f.used(t, policy); used != 300 || inFlight != 0 {
			t.Errorf("%d used, %d in flight; want 300 and none", used, inFlight)
		}
	})
}

// A sent is an amount that a provider counted at an instant.
type sent struct {
	at time.Time
	n  int64
}

// mostAmount returns the largest amount within any window.
func mostAmount(all []sent, window time.Duration) (most int64) {
	slices.SortFunc(all, func(a, b sent) int { return a.at.Compare(b.at) })
	for i := range all {
		sum := int64(0)
		for j := i; j >= 0 && all[i].at.Sub(all[j].at) < window; j-- {
			sum += all[j].n
		}
		most = max(most, sum)
	}
	return most
}

// Releases of which some estimate a unit, or have places, never admit more than one and a half times the limit in a
// window, and at last nothing is in flight, also if policies change with requests open.
func TestReleasesHoldOtherUnits(t *testing.T) {
	soak.Long(t, "TestSettledOnce has the sums of one release")
	count := throttle.Tier{Limit: 10, Window: sec, Unit: "tokens", Algorithm: throttle.SlidingLog}
	estimated := count
	estimated.Estimated = true
	calls := throttle.Tier{Limit: 3, Algorithm: throttle.Concurrency, Unit: "calls"}
	policies := make([]throttle.Policy, 4)
	for i, tiers := range [][]throttle.Tier{{count}, {estimated}, {count, calls}, {estimated, calls}} {
		policies[i] = throttle.Policy{Name: "places", Guard: 20 * ms, Tiers: tiers}
	}
	for seed := range uint64(16) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			var mu sync.Mutex
			var counted []sent
			var open, most, granted atomic.Int64
			arrive := func(n int64) {
				mu.Lock()
				defer mu.Unlock()
				counted = append(counted, sent{time.Now(), n})
			}
			for i := range 4 {
				own := policies[i]
				changes := seed%2 == 1 && i < 2
				p := f.start(t, own, time.Duration(i*i)*ms)
				isEstimated, hasCalls := i%2 == 1, i >= 2
				for j := range 3 {
					r := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
					all.Go(func() {
						for ctx.Err() == nil {
							cost, n := throttle.Cost{}, 1+r.Int64N(4)
							if cost["tokens"] = n; hasCalls {
								cost["calls"] = 1
							}
							got, err := p.Acquire(ctx, cost)
							if err != nil {
								if ctx.Err() == nil && !errors.Is(err, throttle.ErrDeadline) {
									t.Error(err)
								}
								time.Sleep(50 * ms)
								continue
							}
							granted.Add(1)
							if hasCalls {
								most.Store(max(most.Load(), open.Add(1)))
							}
							if !isEstimated || changes {
								arrive(n)
							}
							time.Sleep(time.Duration(r.Int64N(int64(sec))))
							if isEstimated && !changes {
								n = r.Int64N(n + 1)
								arrive(n)
								_ = got.Settle(throttle.Cost{"tokens": n})
							}
							if hasCalls {
								open.Add(-1)
							}
							got.Release()
						}
					})
				}
				if changes { // both count what they send when they send it
					r := rand.New(rand.NewPCG(seed, uint64(50+i)))
					all.Go(func() {
						for ctx.Err() == nil {
							if err := p.SetPolicy(ctx, policies[r.IntN(2)]); err != nil && ctx.Err() == nil {
								t.Error(err)
							}
							time.Sleep(time.Duration(r.Int64N(int64(10 * sec))))
						}
					})
				}
			}
			all.Wait()
			n := mostAmount(counted, sec)
			t.Logf("seed %d: %d granted, %d in a second, %d calls open", seed, granted.Load(), n, most.Load())
			const limit = 10 + 5 // some windows contain a little more than 10
			if n > limit || most.Load() > 3 || granted.Load() < 60 {
				t.Errorf("seed %d: %d granted, %d in a second, %d calls open; want 60, at most %d and at most 3", seed, granted.Load(), n, most.Load(), limit)
			}
			time.Sleep(3 * sec)
			for i, p := range policies {
				if used, inFlight := f.used(t, p); used != 0 || inFlight != 0 {
					t.Errorf("seed %d: policy %d: %d used at last, %d in flight", seed, i, used, inFlight)
				}
			}
		})
	}
}

// A quota of places inside one of a rate, and the other way round, keep both limits, and are free at last.
func TestNestedPlaces(t *testing.T) {
	soak.Slow(t, "a fleet of many callers plays")
	rate := throttle.Policy{Name: "rate", Guard: 20 * ms, Tiers: []throttle.Tier{{Limit: 5, Window: sec, Algorithm: throttle.SlidingLog}}}
	for _, inside := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var open, most atomic.Int64
			var mu sync.Mutex
			var counted []sent
			var all sync.WaitGroup
			for i, way := range []time.Duration{100 * time.Microsecond, 2 * ms, 20 * ms} {
				p := f.start(t, places(2), way)
				outer, err := throttle.New(rate, p.store)
				if err != nil {
					t.Fatal(err)
				}
				l := p.Within(outer)
				if !inside {
					l = outer.Within(p.Limiter)
				}
				for j := range 4 {
					r := rand.New(rand.NewPCG(uint64(i), uint64(j)))
					all.Go(func() {
						for ctx.Err() == nil {
							own, cancel := context.WithTimeout(ctx, time.Duration(r.Int64N(int64(4*sec))))
							got, err := l.Acquire(own, nil)
							cancel()
							if err != nil {
								time.Sleep(50 * ms)
								continue
							}
							most.Store(max(most.Load(), open.Add(1)))
							mu.Lock()
							counted = append(counted, sent{time.Now(), 1})
							mu.Unlock()
							time.Sleep(time.Duration(r.Int64N(int64(300 * ms))))
							open.Add(-1)
							got.Release()
						}
					})
				}
			}
			all.Wait()
			n := mostAmount(counted, sec)
			t.Logf("inside %v: %d sent, %d in a second, %d open", inside, len(counted), n, most.Load())
			if n > 5 || most.Load() > 2 || len(counted) < 150 {
				t.Errorf("inside %v: %d sent, %d in a second, %d open", inside, len(counted), n, most.Load())
			}
			time.Sleep(2 * sec)
			if n := f.free(t, places(2)); n != 2 {
				t.Errorf("inside %v: %d places are free at last, want 2", inside, n)
			}
		})
	}
}

// After Flush the server has everything, and the store makes no transaction. Without a server Flush fails.
func TestFlushReportsPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := f.start(t, places(2), ms)
		held := []*throttle.Permit{p.take(t), p.take(t)}
		held[0].Release()
		if err := p.store.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if n := f.free(t, places(2)); n != 1 {
			t.Errorf("%d places are free after Flush, want 1", n)
		}
		held[1].Release()
		_ = p.store.Flush(t.Context())
		p.Close()
		before, _, _ := f.server.Count()
		time.Sleep(time.Minute)
		if after, _, _ := f.server.Count(); after != before {
			t.Errorf("%d transactions after Flush", after-before)
		}
		p = f.start(t, places(2), ms)
		last := p.take(t)
		f.server.SetAway(true)
		last.Release()
		if err := p.store.Flush(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
			t.Errorf("Flush without a server: got %v, want ErrUnavailable", err)
		}
	})
}
