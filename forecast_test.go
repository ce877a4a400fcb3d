package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// Without deadlines, and with equal costs, a Forecast is what then happens, to the
// microsecond, and charges nothing.
func TestForecastIsWhatHappens(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(6, seed))
			algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.AnchoredWindow, throttle.GCRA, throttle.LeakyBucket}
			policy := exact(
				per(time.Duration(1+rnd.IntN(3))*time.Second, 2+rnd.Int64N(5), algorithms[rnd.IntN(len(algorithms))]),
				per(time.Minute, 20+rnd.Int64N(20), algorithms[rnd.IntN(len(algorithms))]))
			l := mustNew(t, policy, nil)
			var wg sync.WaitGroup
			for i := range 60 {
				if rnd.IntN(3) == 0 {
					time.Sleep(time.Duration(rnd.IntN(1e6)) * time.Microsecond)
				}
				waiting := status(t, l).Waiting
				f, err := l.Forecast(t.Context(), nil)
				if again, _ := l.Forecast(t.Context(), nil); err != nil || again != f {
					t.Fatalf("seed %d, %v, caller %d: %v and %v, %v", seed, policy.Tiers, i, f, again, err)
				}
				if (f.Wait > 0) != (f.Tier != "") || f.Ahead != waiting {
					t.Errorf("seed %d, %v, caller %d: forecast is %+v, %d wait", seed, policy.Tiers, i, f, waiting)
				}
				wg.Go(func() {
					began := time.Now()
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					if took := time.Since(began); took != f.Wait {
						t.Errorf("seed %d, %v, caller %d waits for %v, the forecast was %+v", seed, policy.Tiers, i, took, f)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		})
	}
}

// A Forecast fails as Acquire does at once.
func TestForecastErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(5), throttle.Budget(3, "cents", throttle.Month)}}, nil)
		acquire(t, l, throttle.Cost{"cents": 2}).Release()
		for _, tt := range []struct {
			cost throttle.Cost
			want error
		}{
			{throttle.Cost{"requests": 6}, throttle.ErrExceedsCapacity},
			{throttle.Cost{"cents": 2}, throttle.ErrExhausted},
		} {
			if _, err := l.Forecast(t.Context(), tt.cost); !errors.Is(err, tt.want) {
				t.Errorf("%v: %v, want %v", tt.cost, err, tt.want)
			}
		}
		for _, cost := range []throttle.Cost{{"cats": 1}, {"requests": -1}} {
			if _, err := l.Forecast(t.Context(), cost); err == nil {
				t.Errorf("%v: no error", cost)
			}
		}
		_ = l.Pause(t.Context(), time.Minute)
		if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != time.Minute {
			t.Errorf("in a pause: %+v, %v", f, err)
		}
		_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	})
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if _, err := l.Forecast(t.Context(), nil); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("banned: %v", err)
		}
	})
}

// banned returns a Limiter that its provider has banned for two hours.
func banned(t *testing.T) *throttle.Limiter {
	l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: answering("429\nRetry-After: 7200")})
	return l
}

// A ban stays a ban, and callers are refused, when a longer pause is added to it.
func TestBanUnderAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if err := l.Pause(t.Context(), 3*time.Hour); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var e *throttle.WaitError
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Since(began) > 0 || e.Until.Sub(began) != 2*time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(2*time.Hour + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("after the ban: %v", err)
		}
	})
}

// TryAcquire never waits, never overtakes, and says after which time to come again.
func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerMinute(2), throttle.Tier{Limit: 5, Window: time.Hour, Unit: "tokens"}), nil)
		refused := func(c throttle.Cost, tier string, wait time.Duration, ahead int) {
			t.Helper()
			before := used(t, l)
			_, err := l.TryAcquire(c)
			var e *throttle.WaitError
			if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != tier || e.Wait != wait || e.Ahead != ahead {
				t.Errorf("%v: %v (%+v), want tier %s, %v, %d ahead", c, err, e, tier, wait, ahead)
			}
			if after := used(t, l); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("%v: charged %v, then %v", c, before, after)
			}
		}
		p, err := l.TryAcquire(throttle.Cost{"tokens": 4})
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		refused(throttle.Cost{"tokens": 2}, "5/h;unit=tokens", time.Hour, 0)
		time.Sleep(10 * time.Second)
		if _, err := l.TryAcquire(nil); err != nil {
			t.Fatal(err)
		}
		refused(nil, "2/m", 50*time.Second, 0)
		if _, err := l.TryAcquire(throttle.Cost{"tokens": 6}); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("more than ever: %v", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.WaitN(t.Context(), 2) })
		synctest.Wait()
		wg.Go(func() { _ = l.Wait(t.Context()) })
		synctest.Wait()
		refused(nil, "2/m", 2*time.Minute, 2)
		time.Sleep(50 * time.Second) // there is room for one, and the head needs two
		refused(nil, "2/m", 70*time.Second, 2)
		wg.Wait()
	})
}

// Every refusal for lack of time names the tier that decides, the wait, and how many are
// ahead: at once, in the queue, when a pause makes it late, and at the end.
func TestLateNamesTierAndAhead(t *testing.T) {
	soon := func(ctx context.Context, d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(ctx, d)
		_ = cancel // it ends by itself
		return ctx
	}
	for _, nested := range []bool{false, true} {
		for _, tt := range []struct {
			name  string
			ahead int
			limit time.Duration
			want  time.Duration
			tier  string
		}{
			{"nobody ahead", 0, 30 * time.Second, time.Minute, "1/m"},
			{"four ahead", 4, 4 * time.Minute, 5 * time.Minute, "1/m"},
			{"the longer tier", 9, 30 * time.Minute, time.Hour, "10/h"},
		} {
			t.Run(fmt.Sprint(tt.name, ", nested: ", nested), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					policy := exact(throttle.PerMinute(1), throttle.PerHour(10))
					l := mustNew(t, policy, nil)
					if nested {
						l = mustNew(t, exact(throttle.PerSecond(1000)), nil).Within(l)
					}
					if !l.Allow() {
						t.Fatal("not admitted")
					}
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					defer wg.Wait()
					defer cancel()
					ahead := tt.ahead
					if nested && ahead > 0 {
						ahead++ // the first asks the outer quota, which may have charged it already
					}
					for range ahead {
						wg.Go(func() { _ = l.Wait(ctx) })
						synctest.Wait()
					}
					err := l.Wait(soon(t.Context(), tt.limit))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != tt.tier || e.Ahead != ahead || e.Wait != tt.want {
						t.Errorf("%v (%+v), want tier %s, %v, %d ahead", err, e, tt.tier, tt.want, ahead)
					}
				})
			})
		}
	}
}

// MaxWait is kept, also for a caller that others overtake, and for one whose wait depends on
// a release.
func TestMaxWaitOfTheOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, MaxWait: 5 * time.Second, Guard: throttle.NoGuard, Aging: time.Hour}
		l := mustNew(t, p, nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				began := time.Now()
				err := l.Wait(throttle.WithClass(ctx, throttle.Batch))
				var e *throttle.WaitError
				if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || time.Since(began) > 5*time.Second || e.Tier != "1/s" {
					t.Errorf("%v after %v", err, time.Since(began))
				}
			})
			synctest.Wait()
		}
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					_ = l.Wait(throttle.WithClass(ctx, throttle.Interactive))
				}
			})
		}
		time.Sleep(20 * time.Second)
		cancel()
		wg.Wait()
	})
}

// A request that costs nothing is held by a pause and refused by a ban, and waits for
// nothing else.
func TestCostOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerHour(1)), nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.Wait(ctx) }) // a queue
		synctest.Wait()
		nothing := throttle.Cost{"requests": 0}
		acquire(t, l, nothing).Release()
		_ = l.Pause(t.Context(), time.Minute)
		began := time.Now()
		p, err := l.Acquire(t.Context(), nothing)
		if took := time.Since(began); err != nil || took != time.Minute {
			t.Errorf("in a pause: %v after %v", err, took)
		}
		p.Release()
		cancel()
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		if _, err := banned(t).Acquire(t.Context(), throttle.Cost{"requests": 0}); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("in a ban: %v", err)
		}
	})
}

// Where no tier counts requests, one without a Cost is an error, and not admitted at any
// rate.
func TestNoTierCountsRequests(t *testing.T) {
	l := mustNew(t, throttle.Policy{Name: "model", Tiers: []throttle.Tier{{Limit: 100, Window: time.Hour, Unit: "tokens"}}}, nil)
	_, acquired := l.Acquire(t.Context(), nil)
	_, tried := l.TryAcquire(nil)
	_, foretold := l.Forecast(t.Context(), nil)
	_, sent := trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	for name, err := range map[string]error{
		"Wait": l.Wait(t.Context()), "WaitN": l.WaitN(t.Context(), 3), "Acquire": acquired, "TryAcquire": tried, "Forecast": foretold, "Transport": sent,
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if l.Allow() || l.AllowN(3) {
		t.Error("Allow admits")
	}
	p, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 100})
	if err != nil {
		t.Error(err)
	}
	p.Release()
	// Inside a scope that counts requests they count.
	n := l.Within(mustNew(t, exact(throttle.PerHour(1)), nil))
	if err := n.Wait(t.Context()); err != nil || n.Allow() {
		t.Errorf("inside one that counts requests: %v", err)
	}
}

// MaxQueue keeps out the last, and not the first in rank: a user is let in where Batch
// requests fill the queue.
func TestMaxQueueExpelsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exact(throttle.PerMinute(1))
		p.MaxQueue = 10
		l := mustNew(t, p, nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var full atomic.Int64
		for range 10 {
			wg.Go(func() {
				if err := l.Wait(throttle.WithClass(ctx, throttle.Batch)); errors.Is(err, throttle.ErrQueueFull) {
					full.Add(1)
				}
			})
			synctest.Wait()
		}
		began := time.Now()
		wg.Go(func() {
			if err := l.Wait(throttle.WithClass(ctx, throttle.Interactive)); err != nil || time.Since(began) != time.Minute {
				t.Errorf("a user: %v after %v", err, time.Since(began))
			}
		})
		synctest.Wait()
		if n := full.Load(); n != 1 || status(t, l).Waiting != 10 {
			t.Errorf("%d were expelled, %d wait", n, status(t, l).Waiting)
		}
		if err := l.Wait(throttle.WithClass(ctx, throttle.Batch)); !errors.Is(err, throttle.ErrQueueFull) {
			t.Errorf("one more Batch request: %v", err)
		}
		time.Sleep(time.Minute + time.Second)
		cancel()
		wg.Wait()
	})
}

// A budget has no headroom, whether the Batch request comes to an idle limiter or waits for
// another tier.
func TestHeadroomOfABudget(t *testing.T) {
	for _, idle := range []bool{true, false} {
		t.Run(fmt.Sprint("idle: ", idle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := exact(throttle.Tier{Limit: 1, Window: 10 * time.Second}, throttle.Budget(10, "cents", throttle.Month))
				p.Headroom, p.Aging = 50, 10*time.Second
				l := mustNew(t, p, nil)
				acquire(t, l, throttle.Cost{"cents": 8})
				want := 10 * time.Second
				if idle {
					time.Sleep(time.Minute)
					want = 0
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(throttle.WithClass(t.Context(), throttle.Batch), time.Minute)
				defer cancel()
				_, err := l.Acquire(ctx, throttle.Cost{"cents": 1})
				if took := time.Since(began); err != nil || took != want {
					t.Errorf("%v after %v, want %v", err, took, want)
				}
			})
		})
	}
}

// Allow right after the only waiter was admitted, by another goroutine, finds an empty queue.
func TestAllowAfterWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerDay(1e9)), far(0))
		refused := 0
		for range 5000 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !l.Allow() {
				refused++
			}
		}
		if refused > 0 {
			t.Errorf("Allow was refused %d times of 5000", refused)
		}
	})
}
