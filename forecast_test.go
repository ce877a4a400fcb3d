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

// TestForecastIsExact checks that, without deadlines and with equal costs, a Forecast is exact to
// the microsecond and charges nothing.
func TestForecastIsExact(t *testing.T) {
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
					t.Fatalf("seed %d, %v, caller %d: forecasts %v and %v, %v; want equal ones", seed, policy.Tiers, i, f, again, err)
				}
				if (f.Wait > 0) != (f.Tier != "") || f.Ahead != waiting {
					t.Errorf("seed %d, %v, caller %d: forecast is %+v while %d callers wait", seed, policy.Tiers, i, f, waiting)
				}
				wg.Go(func() {
					began := time.Now()
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					if took := time.Since(began); took != f.Wait {
						t.Errorf("seed %d, %v, caller %d waited for %v, want the forecast %+v", seed, policy.Tiers, i, took, f)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		})
	}
}

// TestForecastOfBatch checks that a Batch request waits for room for the headroom, but no longer
// than until it has aged.
func TestForecastOfBatch(t *testing.T) {
	for aging, want := range map[time.Duration]time.Duration{0: 10 * sec, 3 * sec: 3 * sec, 2 * time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			p := exact(throttle.Tier{Limit: 10, Window: time.Minute, Algorithm: throttle.FixedWindow})
			p.Headroom, p.Aging = 50, aging
			l := limiter(t, p, nil)
			for range 6 {
				l.Allow()
			}
			ctx := throttle.WithClass(t.Context(), throttle.Batch)
			f, err := l.Forecast(ctx, nil)
			if err != nil || f.Wait != want || f.Tier != p.Tiers[0].String() {
				t.Errorf("aging %v: %+v, %v; want %v", aging, f, err, want)
			}
			if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != 0 {
				t.Errorf("another class: %+v, %v", f, err)
			}
			start := time.Now()
			if err := l.Wait(ctx); err != nil || time.Since(start) != want {
				t.Errorf("aging %v: admitted after %v, %v; want %v", aging, time.Since(start), err, want)
			}
		})
	}
}

// TestForecastErrors checks that a Forecast fails as Acquire would at once.
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
				t.Errorf("%v: no error, want one", cost)
			}
		}
		_ = l.Pause(t.Context(), time.Minute)
		if f, err := l.Forecast(t.Context(), nil); err != nil || f.Wait != time.Minute {
			t.Errorf("in a pause of 1m: %+v, %v; want a Wait of 1m", f, err)
		}
		_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	})
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if _, err := l.Forecast(t.Context(), nil); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("banned: %v, want ErrBanned", err)
		}
	})
}

// banned returns a Limiter that its provider has banned for two hours.
func banned(t *testing.T) *throttle.Limiter {
	l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	_, _ = trSend(t.Context(), &throttle.Transport{Limiter: l, Base: answering("429\nRetry-After: 7200")})
	return l
}

// TestBanUnderAPause checks that a longer pause does not change a ban: callers are still refused
// until it ends.
func TestBanUnderAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := banned(t)
		if err := l.Pause(t.Context(), 3*time.Hour); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var e *throttle.WaitError
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Since(began) > 0 || e.Until.Sub(began) != 2*time.Hour {
			t.Errorf("%v after %v, want ErrBanned for 2h at once", err, time.Since(began))
		}
		time.Sleep(2*time.Hour + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := l.Wait(ctx); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("after the ban: %v, want ErrDeadline because of the pause", err)
		}
	})
}

// TestTryAcquire checks that TryAcquire never waits and never overtakes, and that its error has the
// time after which to try again.
func TestTryAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerMinute(2), throttle.Tier{Limit: 5, Window: time.Hour, Unit: "tokens"}), nil)
		refused := func(c throttle.Cost, tier string, wait time.Duration, ahead int) {
			t.Helper()
			before := used(t, l)
			_, err := l.TryAcquire(t.Context(), c)
			var e *throttle.WaitError
			if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != tier || e.Wait != wait || e.Ahead != ahead {
				t.Errorf("%v: %v (%+v), want tier %s, %v, %d ahead", c, err, e, tier, wait, ahead)
			}
			if after := used(t, l); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("%v: used %v before and %v after the refusal", c, before, after)
			}
		}
		p, err := l.TryAcquire(t.Context(), throttle.Cost{"tokens": 4})
		if err != nil {
			t.Fatal(err)
		}
		p.Release()
		refused(throttle.Cost{"tokens": 2}, "5/h;unit=tokens", time.Hour, 0)
		time.Sleep(10 * time.Second)
		if _, err := l.TryAcquire(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		refused(nil, "2/m", 50*time.Second, 0)
		if _, err := l.TryAcquire(t.Context(), throttle.Cost{"tokens": 6}); !errors.Is(err, throttle.ErrExceedsCapacity) {
			t.Errorf("6 tokens: %v, want ErrExceedsCapacity", err)
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

// TestTryAcquireOfAnEndedContext checks that TryAcquire returns the error of a context that has ended,
// charges nothing and reports the refusal.
func TestTryAcquireOfAnEndedContext(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	var outcomes []string
	policy := func(name string, shadow bool) throttle.Policy {
		p := exact(throttle.PerHour(10))
		p.Name, p.Shadow = name, shadow
		p.Observer = &throttle.Observer{Refused: func(_ context.Context, i throttle.RefusedInfo) { outcomes = append(outcomes, i.Outcome()) }}
		return p
	}
	for name, l := range map[string]*throttle.Limiter{
		"alone":  mustNew(t, policy("alone", false), nil),
		"nested": mustNew(t, policy("inner", false), nil).Within(mustNew(t, policy("outer", false), nil)),
		"shadow": mustNew(t, policy("shadow", true), nil),
	} {
		outcomes = nil
		for _, c := range []throttle.Cost{nil, {"requests": 2}, {"requests": 0}} {
			if _, err := l.TryAcquire(canceled, c); err != context.Canceled {
				t.Errorf("%s, %v: %v, want context.Canceled", name, c, err)
			}
			if _, err := l.TryAcquire(late, c); err != context.DeadlineExceeded {
				t.Errorf("%s, %v: %v, want context.DeadlineExceeded", name, c, err)
			}
		}
		if got, want := fmt.Sprint(outcomes), "[canceled deadline canceled deadline canceled deadline]"; got != want {
			t.Errorf("%s: outcomes %s, want %s", name, got, want)
		}
		for _, n := range used(t, l) {
			if n != 0 {
				t.Errorf("%s: %d used, want 0", name, n)
			}
		}
	}
}

// TestLateNamesTierAndAhead checks that ErrDeadline comes with the tier that decides, the wait, and
// how many callers are ahead.
func TestLateNamesTierAndAhead(t *testing.T) {
	soon := func(ctx context.Context, d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(ctx, d)
		_ = cancel // the timeout ends it
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
			{"none ahead", 0, 30 * time.Second, time.Minute, "1/m"},
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
						t.Fatal("Allow is false, although the quota is unused")
					}
					ctx, cancel := context.WithCancel(t.Context())
					var wg sync.WaitGroup
					defer wg.Wait()
					defer cancel()
					for range tt.ahead {
						wg.Go(func() { _ = l.Wait(ctx) })
						synctest.Wait()
					}
					err := l.Wait(soon(t.Context(), tt.limit))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != tt.tier || e.Ahead != tt.ahead || e.Wait != tt.want {
						t.Errorf("%v (%+v), want tier %s, %v, %d ahead", err, e, tt.tier, tt.want, tt.ahead)
					}
				})
			})
		}
	}
}

// TestMaxWaitOfTheOvertaken checks that MaxWait also bounds the wait of callers that others
// overtake.
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
					t.Errorf("%v after %v, want ErrDeadline of tier 1/s by 5s", err, time.Since(began))
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

// TestCostOfZero checks that a request that costs nothing waits only for a pause, and is refused
// only by a ban.
func TestCostOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerHour(1)), nil)
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.Wait(ctx) }) // makes a queue
		synctest.Wait()
		nothing := throttle.Cost{"requests": 0}
		acquire(t, l, nothing).Release()
		_ = l.Pause(t.Context(), time.Minute)
		began := time.Now()
		p, err := l.Acquire(t.Context(), nothing)
		if took := time.Since(began); err != nil || took != time.Minute {
			t.Errorf("in a pause: %v after %v, want nil after 1m", err, took)
		}
		p.Release()
		cancel()
		wg.Wait()
	})
	synctest.Test(t, func(t *testing.T) {
		if _, err := banned(t).Acquire(t.Context(), throttle.Cost{"requests": 0}); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("in a ban: %v, want ErrBanned", err)
		}
	})
}

// TestNoTierCountsRequests checks that a request without a Cost is an error if no tier counts
// requests, instead of being admitted at any rate.
func TestNoTierCountsRequests(t *testing.T) {
	l := mustNew(t, throttle.Policy{Name: "model", Tiers: []throttle.Tier{{Limit: 100, Window: time.Hour, Unit: "tokens"}}}, nil)
	_, acquired := l.Acquire(t.Context(), nil)
	_, tried := l.TryAcquire(t.Context(), nil)
	_, forecast := l.Forecast(t.Context(), nil)
	_, sent := trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
	for name, err := range map[string]error{
		"Wait": l.Wait(t.Context()), "WaitN": l.WaitN(t.Context(), 3), "Acquire": acquired, "TryAcquire": tried, "Forecast": forecast, "Transport": sent,
	} {
		if err == nil {
			t.Errorf("%s: no error, want one", name)
		}
	}
	if l.Allow() || l.AllowN(3) {
		t.Error("Allow or AllowN is true")
	}
	p, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 100})
	if err != nil {
		t.Error(err)
	}
	p.Release()
	// An outer scope may count requests.
	n := l.Within(mustNew(t, exact(throttle.PerHour(1)), nil))
	if err := n.Wait(t.Context()); err != nil || n.Allow() {
		t.Errorf("inside a scope that counts requests: %v", err)
	}
}

// TestMaxQueueExpelsTheLast checks that a full queue expels its last caller: an Interactive caller
// is accepted if Batch requests fill the queue.
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
				t.Errorf("the interactive caller: %v after %v, want nil after 1m", err, time.Since(began))
			}
		})
		synctest.Wait()
		if n := full.Load(); n != 1 || status(t, l).Waiting != 10 {
			t.Errorf("%d callers were expelled and %d wait, want 1 and 10", n, status(t, l).Waiting)
		}
		if err := l.Wait(throttle.WithClass(ctx, throttle.Batch)); !errors.Is(err, throttle.ErrQueueFull) {
			t.Errorf("one more Batch request: %v, want ErrQueueFull", err)
		}
		time.Sleep(time.Minute + time.Second)
		cancel()
		wg.Wait()
	})
}

// TestHeadroomOfABudget checks that a Batch request leaves no headroom in a budget, whether it
// arrives at an idle Limiter or waits for another tier.
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

// TestAllowAfterWait checks that Allow finds an empty queue right after the only waiting caller was
// admitted.
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
			t.Errorf("Allow was false %d times of 5000, want 0", refused)
		}
	})
}
