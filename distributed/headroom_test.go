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
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
)

// headrooms are ways in which a quota that leaves headroom is used: alone, or around another one that
// is charged together with it or apart from it.
var headrooms = []string{"flat", "together", "apart"}

// openHeadroom opens a quota of 20 in 10 s of which Batch requests leave half for a while.
func openHeadroom(t *testing.T, s *miniredis.Miniredis, how string, aging time.Duration, counter *calls.Counter) *throttle.Limiter {
	rdb := near(t, s)
	rdb.AddHook(counter)
	redis := distributed.New(rdb, distributed.Options{})
	outer := limiter(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{per(10*sec, 20, throttle.SlidingLog)}, Headroom: 50, Aging: aging}, redis)
	switch how {
	case "flat":
		return outer
	case "apart":
		redis = distributed.New(rdb, distributed.Options{})
	}
	return limiter(t, throttle.Policy{Name: "inner", Tiers: logs(100), Aging: aging}, redis).Within(outer)
}

// Batch callers in nested quotas are admitted as in a flat one, with a few calls an admission.
func TestHeadroomFlood(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for _, how := range headrooms {
		t.Run(how, func(t *testing.T) {
			for _, n := range []struct{ processes, callers int }{{1, 1}, {1, 200}, {3, 10}} {
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					ctx, stop := context.WithTimeout(t.Context(), 45*sec)
					defer stop()
					counter, sent := new(calls.Counter), new(atomic.Int64)
					var wg sync.WaitGroup
					for range n.processes {
						l := openHeadroom(t, s, how, time.Minute, counter)
						for range n.callers {
							wg.Go(func() {
								for l.Wait(throttle.WithClass(ctx, throttle.Batch)) == nil {
									sent.Add(1)
								}
							})
						}
					}
					wg.Wait()
					if n := sent.Load(); n < 45 || n > 50 {
						t.Errorf("got %d admitted, want the 10 in 10 s that they may use", n)
					}
					if most := 12 * sent.Load(); counter.Count() > most {
						t.Errorf("got %d calls for %d admitted, want %d at most", counter.Count(), sent.Load(), most)
					}
				})
			}
		})
	}
}

// A Batch request that can neither leave the headroom before its deadline nor grow old by then is
// refused at once, or when it asks again if the quotas are asked apart. One that grows old in time is
// admitted then.
func TestHeadroomLate(t *testing.T) {
	for _, how := range headrooms {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				l := openHeadroom(t, s, how, 3*sec, new(calls.Counter))
				if err := l.WaitN(t.Context(), 15); err != nil {
					t.Fatal(err)
				}
				for _, deadline := range []time.Duration{2 * sec, 8 * sec} {
					late := deadline < 3*sec
					ctx, stop := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), deadline)
					began := time.Now()
					err := l.Wait(ctx)
					took := time.Since(began)
					stop()
					var refused *throttle.WaitError
					switch {
					case !late && (err != nil || took < 2900*ms || took > 3100*ms):
						t.Errorf("with %v left: got %v after %v, want an admission after 3s", deadline, err, took)
					case late && (!errors.As(err, &refused) || took > sec || how != "apart" && took > 50*ms):
						t.Errorf("with %v left: got %v after %v, want a refusal at once", deadline, err, took)
					case late && (refused.Policy != "outer" || refused.Tier != "20/10s" || refused.Wait < 9*sec):
						t.Errorf("with %v left: got %v, want the tier of the headroom and the time until that is free", deadline, err)
					}
				}
			})
		})
	}
}

// openEach opens a quota of 20 in 10 s inside or around one of 100 of which Batch requests leave half.
func openEach(t *testing.T, s *miniredis.Miniredis, how, leaves string) *throttle.Limiter {
	rdb := near(t, s)
	shared := distributed.New(rdb, distributed.Options{})
	open := func(name string) *throttle.Limiter {
		p := throttle.Policy{Name: name, Tiers: []throttle.Tier{per(10*sec, 20, throttle.SlidingLog)}, Aging: time.Minute}
		if name == leaves {
			p.Tiers[0].Limit, p.Headroom = 100, 50
		}
		switch how {
		case "local":
			return limiter(t, p, nil)
		case "apart":
			return limiter(t, p, distributed.New(rdb, distributed.Options{}))
		}
		return limiter(t, p, shared)
	}
	return open("inner").Within(open("outer"))
}

// Batch requests in nested quotas leave in each the headroom of its own policy, and use the rest. They
// are not refused for another headroom either.
func TestHeadroomOfEach(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"local", "together", "apart"} {
		for _, leaves := range []string{"inner", "outer"} {
			t.Run(how+", the "+leaves+" leaves some", func(t *testing.T) {
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					ctx, stop := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), 35*sec)
					defer stop()
					l := openEach(t, s, how, leaves)
					for sent := range 60 {
						if err := l.Wait(ctx); err != nil {
							t.Fatalf("after %d of 60 in 30s: %v", sent, err)
						}
					}
				})
				bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
					l := openEach(t, s, how, leaves)
					for range 2 {
						if err := l.WaitN(t.Context(), 10); err != nil {
							t.Fatal(err)
						}
						time.Sleep(5 * sec)
					}
					if err := l.WaitN(t.Context(), 9); err != nil {
						t.Fatal(err)
					}
					ctx, stop := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), 6*sec)
					defer stop()
					var wg sync.WaitGroup
					for range 10 {
						wg.Go(func() {
							if err := l.Wait(ctx); err != nil {
								t.Errorf("got %v, want an admission: the other quota leaves nothing", err)
							}
						})
					}
					wg.Wait()
				})
			})
		}
	}
}
