package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// TestForecastIsTrue checks random policies of all counters, alone and nested, while the responses to
// requests in flight are to come: a caller that comes now waits for no less than the Forecast, if nobody
// ahead leaves, and Forecast and Explain name an error if and only if Acquire fails with it at once.
func TestForecastIsTrue(t *testing.T) {
	algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow,
		throttle.AnchoredWindow, throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA, throttle.Calendar, throttle.Concurrency}
	classes := []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch}
	var waited, refused, behind int
	for seed := range uint64(1500) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(91, seed))
			policy := func(name string) throttle.Policy {
				p := throttle.Policy{Name: name, Guard: time.Duration(rnd.IntN(3)) * 5 * sec}
				if p.Guard == 0 {
					p.Guard = throttle.NoGuard
				}
				for range 1 + rnd.IntN(3) {
					tier := throttle.Tier{Limit: 2 + rnd.Int64N(5), Window: time.Duration(1+rnd.IntN(5000)) * ms, Algorithm: algorithms[rnd.IntN(len(algorithms))]}
					switch tier.Algorithm {
					case throttle.Calendar:
						tier.Window, tier.Period, tier.Limit, tier.Budget = 0, throttle.Day, 10+rnd.Int64N(20), rnd.IntN(2) == 0
					case throttle.Concurrency:
						tier.Window = 0
					}
					p.Tiers = append(p.Tiers, tier)
				}
				p.Headroom = rnd.IntN(2) * 30
				if rnd.IntN(3) == 0 {
					p.MaxQueue = 1 + rnd.IntN(8)
				}
				return p
			}
			newcomer := policy("inner")
			l := mustNew(t, newcomer, nil)
			for range rnd.IntN(3) {
				l = l.Within(mustNew(t, policy("outer"), nil))
			}
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			var left atomic.Int64 // callers that a budget has refused in their turn
			send := func(ctx context.Context, p *throttle.Permit, answered time.Duration) {
				_ = sleep(ctx, answered)
				p.Arrived()
				p.Release()
			}
			cost := func() throttle.Cost { return throttle.Cost{"requests": 1 + rnd.Int64N(2)} }
			class := func() context.Context { return throttle.WithClass(ctx, classes[rnd.IntN(3)]) }
			for range rnd.IntN(12) {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(1e6)) * time.Microsecond)
				}
				c, asks, answered := cost(), class(), time.Duration(rnd.IntN(8e6))*time.Microsecond
				callers.Go(func() {
					switch p, err := l.Acquire(asks, c); {
					case err == nil:
						send(ctx, p, answered)
					case errors.Is(err, throttle.ErrExhausted):
						left.Add(1)
					}
				})
				synctest.Wait()
			}
			if rnd.IntN(5) == 0 {
				_ = l.Pause(ctx, time.Duration(rnd.IntN(5e6))*time.Microsecond)
				synctest.Wait()
			}
			asks := class()
			if rnd.IntN(2) == 0 {
				var end context.CancelFunc
				asks, end = context.WithTimeout(asks, time.Duration(rnd.IntN(6e6))*time.Microsecond)
				defer end()
			}
			c := cost()
			f, failed := l.Forecast(asks, c)
			e, err := l.Explain(asks, c)
			if err != nil || e.Forecast != f || (e.Err == nil) != (failed == nil) || failed != nil && failed.Error() != e.Err.Error() {
				t.Errorf("seed %d: forecast %+v, %v; explanation %v, %v", seed, f, failed, e, err)
			}
			before, began := left.Load(), time.Now()
			p, err := l.Acquire(asks, c)
			took := time.Since(began)
			if err == nil {
				callers.Go(func() { send(ctx, p, 0) })
			}
			atOnce := err != nil && took == 0 && asks.Err() == nil
			if atOnce != (failed != nil) || atOnce && err.Error() != failed.Error() {
				t.Errorf("seed %d: Forecast failed with %v, and Acquire with %v after %v", seed, failed, err, took)
			}
			if err == nil && took < f.Wait && left.Load() == before {
				t.Errorf("seed %d: waited for %v, and the Forecast is %+v", seed, took, f)
			}
			if f.Wait > 0 {
				waited++
			}
			if f.Ahead > 0 {
				behind++
			}
			if errors.Is(failed, throttle.ErrDeadline) {
				refused++
			}
			cancel()
			callers.Wait()
		})
	}
	t.Logf("%d waited, %d behind others, %d refused for lack of time", waited, behind, refused)
	if waited < 300 || behind < 200 || refused < 50 {
		t.Error("too few of some kind")
	}
}
