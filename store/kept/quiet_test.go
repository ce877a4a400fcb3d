package kept_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// A storm is callers that wait at once and are all canceled.
type storm struct {
	tiers   []throttle.Tier
	before  int64         // what is admitted first
	look    time.Duration // for how long the quota is used afterwards
	cost    func(r *rand.Rand) throttle.Cost
	callers int
}

var storms = map[string]storm{
	"per second":   {[]throttle.Tier{throttle.PerSecond(5)}, 5, time.Minute, one, 40},
	"per minute":   {[]throttle.Tier{{Limit: 1, Window: time.Minute}}, 1, 10 * time.Minute, one, 40},
	"per hour":     {[]throttle.Tier{{Limit: 1, Window: time.Hour}}, 1, 3 * time.Hour, one, 40},
	"bucket":       {[]throttle.Tier{{Limit: 1, Window: time.Minute, Burst: 3, Algorithm: throttle.TokenBucket}}, 3, 10 * time.Minute, one, 40},
	"gcra":         {[]throttle.Tier{{Limit: 60, Window: time.Hour, Burst: 2, Algorithm: throttle.GCRA}}, 2, 10 * time.Minute, one, 40},
	"anchored":     {[]throttle.Tier{{Limit: 3, Window: time.Minute, Algorithm: throttle.AnchoredWindow}}, 3, 10 * time.Minute, one, 40},
	"weighted":     {[]throttle.Tier{{Limit: 3, Window: time.Minute, Algorithm: throttle.WeightedWindow}}, 3, 10 * time.Minute, one, 40},
	"fixed":        {[]throttle.Tier{{Limit: 3, Window: time.Minute, Algorithm: throttle.FixedWindow}}, 3, 10 * time.Minute, one, 40},
	"window":       {[]throttle.Tier{{Limit: 3, Window: time.Minute, Algorithm: throttle.SlidingWindow}}, 3, 10 * time.Minute, one, 40},
	"unlike costs": {[]throttle.Tier{{Limit: 10, Window: time.Minute}, {Limit: 100, Window: time.Hour, Burst: 20, Algorithm: throttle.TokenBucket}}, 10, 30 * time.Minute, any, 40},
	"several":      {[]throttle.Tier{throttle.PerSecond(5), {Limit: 60, Window: time.Minute}, {Limit: 600, Window: time.Hour}}, 5, 3 * time.Minute, any, 40},
	"places":       {[]throttle.Tier{throttle.PerSecond(5), {Limit: 3, Algorithm: throttle.Concurrency}}, 5, time.Minute, one, 40},
}

func one(*rand.Rand) throttle.Cost   { return throttle.Cost{"requests": 1} }
func any(r *rand.Rand) throttle.Cost { return throttle.Cost{"requests": 1 + r.Int64N(5)} }

// admissions returns how much a quota admits from now on by when, if one caller of each process asks again and again.
func (f *fleet) admissions(t testing.TB, p throttle.Policy, length time.Duration) (at []time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, s := range f.stores {
		l, err := throttle.New(p, s)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				permit, err := l.Acquire(ctx, nil)
				if err != nil {
					return
				}
				permit.Release()
				mu.Lock()
				at = append(at, time.Since(began))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return at
}

// When all callers of a storm have been canceled, the quota admits as if they had never come.
func TestStormLeavesNoTrace(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for name, s := range storms {
		if testing.Short() && len(name)%3 != 0 { // some of them
			continue
		}
		for seed := range uint64(soak.Times(1)) {
			play := func(stormy bool) (at []time.Duration) {
				synctest.Test(t, func(t *testing.T) {
					r := rand.New(rand.NewPCG(seed, 3))
					f := newFleet(t, farAndNear[:3]...)
					p := throttle.Policy{Name: "storm", Tiers: s.tiers}
					first, err := throttle.New(p, f.stores[0])
					if err != nil {
						t.Fatal(err)
					}
					for range s.before {
						permit, err := first.TryAcquire(t.Context(), nil)
						if err != nil {
							t.Fatal(err)
						}
						permit.Release()
					}
					length := 20 * time.Second
					quiet := time.After(length + 2*time.Second)
					if stormy {
						f.storm(t, r, p, s, length)
					}
					<-quiet
					at = f.admissions(t, p, s.look)
				})
				return at
			}
			calm, stormy := play(false), play(true)
			if len(stormy)*100 < len(calm)*99-100 {
				t.Errorf("%s: %d admitted after a storm, want %d", name, len(stormy), len(calm))
			}
			if len(calm) > 0 && (len(stormy) == 0 || stormy[0] > calm[0]+100*time.Millisecond) {
				t.Errorf("%s: the first after a storm at %v, want %v", name, stormy, calm[0])
			}
		}
	}
}

// storm lets callers wait in all processes, and cancels all of them within a time.
func (f *fleet) storm(t testing.TB, r *rand.Rand, p throttle.Policy, s storm, length time.Duration) {
	var wg sync.WaitGroup
	for i := range s.callers {
		l, err := throttle.New(p, f.stores[i%len(f.stores)])
		if err != nil {
			t.Fatal(err)
		}
		cost, class := s.cost(r), throttle.Class(r.IntN(3))
		begins, lasts := time.Duration(r.Int64N(int64(length/2))), time.Duration(r.Int64N(int64(length/2)))
		wg.Go(func() {
			time.Sleep(begins)
			ctx, cancel := context.WithTimeout(throttle.WithClass(t.Context(), class), time.Hour)
			time.AfterFunc(lasts, cancel)
			permit, err := l.Acquire(ctx, cost)
			if err == nil { // not sent
				_ = permit.Cancel(t.Context())
			}
		})
	}
	wg.Wait()
}

// Callers that are canceled at random take nothing from the others.
func TestCanceledCallersTakeNothing(t *testing.T) {
	soak.Slow(t, "a fleet of many callers plays")
	for name, p := range map[string]throttle.Policy{
		"log":    {Tiers: []throttle.Tier{throttle.PerSecond(10)}},
		"bucket": {Tiers: []throttle.Tier{{Limit: 10, Window: time.Second, Burst: 2, Algorithm: throttle.TokenBucket}}},
		"two":    {Tiers: []throttle.Tier{throttle.PerSecond(10), {Limit: 200, Window: 30 * time.Second}}},
		"slow":   {Tiers: []throttle.Tier{{Limit: 3, Window: 10 * time.Second}}},
	} {
		p.Name = "canceled"
		play := func(part float64) (n int) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, farAndNear[:3]...)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r := rand.New(rand.NewPCG(1, 1))
				var wg sync.WaitGroup
				var mu sync.Mutex
				for _, s := range f.stores {
					l, err := throttle.New(p, s)
					if err != nil {
						t.Fatal(err)
					}
					for range 8 {
						wg.Go(func() {
							for ctx.Err() == nil {
								mu.Lock()
								canceled, after := r.Float64() < part, time.Duration(r.IntN(3000))*time.Millisecond
								mu.Unlock()
								ctx, cancel := context.WithCancel(ctx)
								if canceled {
									time.AfterFunc(after, cancel)
								}
								err := l.Wait(ctx)
								if cancel(); err != nil {
									time.Sleep(10 * time.Millisecond) // late callers are refused at once
									continue
								}
								mu.Lock()
								n++
								mu.Unlock()
							}
						})
					}
				}
				wg.Wait()
			})
			return n
		}
		if calm, canceled := play(0), play(0.5); canceled*100 < calm*95 {
			t.Errorf("%s: %d sent while half of the callers are canceled, want 0.95 of %d", name, canceled, calm)
		}
	}
}
