package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
)

// TestPermitCancel checks that a cancellation within the guard interval restores the state.
func TestPermitCancel(t *testing.T) {
	for _, a := range append(counters, throttle.SlidingWindow) {
		t.Run(a.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tiers := []throttle.Tier{per(sec, 10, a), {Limit: 100, Window: time.Minute, Unit: "tokens", Algorithm: a}, {Limit: 9, Algorithm: throttle.Concurrency}}
				l := limiter(t, throttle.Policy{Tiers: tiers}, nil)
				twin := limiter(t, throttle.Policy{Tiers: tiers}, nil)
				for range 3 {
					acquire(t, l, throttle.Cost{"tokens": 5}).Arrived()
					acquire(t, twin, throttle.Cost{"tokens": 5}).Arrived()
				}
				var permits []*throttle.Permit
				for n := range int64(6) {
					time.Sleep(7 * ms)
					permits = append(permits, acquire(t, l, throttle.Cost{"tokens": 10 + n}))
				}
				rand.Shuffle(len(permits), func(i, j int) { permits[i], permits[j] = permits[j], permits[i] })
				for _, p := range permits {
					if err := p.Cancel(context.Background()); err != nil {
						t.Error(err)
					}
				}
				for _, later := range []time.Duration{0, 8 * ms, 100 * ms, 900 * ms, time.Minute} {
					time.Sleep(later)
					if got, want := status(t, l), status(t, twin); !reflect.DeepEqual(got, want) {
						t.Errorf("%v later the state is\n%+v, want\n%+v", later, got, want)
					}
				}
			})
		})
	}
}

// TestPermitCancelAfterTheGuard checks that a later cancellation frees only the place in the
// Concurrency tier, because the provider may have counted the request.
func TestPermitCancelAfterTheGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(9), {Limit: 9, Algorithm: throttle.Concurrency}}}, nil)
		p := acquire(t, l, nil)
		time.Sleep(50 * ms)
		if err := p.Cancel(context.Background()); err != nil {
			t.Error(err)
		}
		if s := status(t, l).Tiers; s[0].Used != 1 || s[1].Used != 0 {
			t.Errorf("used: %d of the hour and %d open, want 1 and 0", s[0].Used, s[1].Used)
		}
	})
}

// TestAnchoredOpenerCanceled checks that an anchored window opens with the first request that is
// sent, not with a canceled one.
func TestAnchoredOpenerCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := limiter(t, throttle.Policy{Tiers: []throttle.Tier{per(sec, 2, throttle.AnchoredWindow)}}, nil), time.Now()
		opener := acquire(t, l, nil)
		time.Sleep(10 * ms)
		opener.Cancel(context.Background())
		time.Sleep(10 * ms)
		acquire(t, l, nil).Arrived()
		acquire(t, l, nil).Arrived()
		if err := l.Wait(context.Background()); err != nil || time.Since(start) != 1020*ms {
			t.Errorf("the next window opens after %v, %v; want 1.02s", time.Since(start), err)
		}
	})
}

// TestPermitTwice checks that only the first call of each method of a Permit has an effect.
func TestPermitTwice(t *testing.T) {
	ctx := context.Background()
	arrived, release := (*throttle.Permit).Arrived, (*throttle.Permit).Release
	cancel := func(p *throttle.Permit) { p.Cancel(ctx) }
	type calls = []func(*throttle.Permit)
	for _, test := range []struct {
		name       string
		calls      calls
		used, open int64 // what is still charged for two permits, one of which gets the calls
	}{
		{"nothing", nil, 2, 2},
		{"arrived", calls{arrived, arrived, arrived}, 2, 2},
		{"released", calls{release, release, arrived, release}, 2, 1},
		{"canceled", calls{cancel, cancel, arrived, release}, 1, 1},
		{"canceled after it arrived", calls{arrived, cancel, cancel}, 2, 2},
		{"canceled after it was released", calls{release, cancel, release}, 2, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(9), {Limit: 9, Algorithm: throttle.Concurrency}}}, nil)
			acquire(t, l, nil)
			p := acquire(t, l, nil)
			for _, f := range test.calls {
				f(p)
			}
			if s := status(t, l).Tiers; s[0].Used != test.used || s[1].Used != test.open {
				t.Errorf("%s: %d are used and %d open, want %d and %d", test.name, s[0].Used, s[1].Used, test.used, test.open)
			}
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() { release(p); cancel(p) })
			}
			wg.Wait()
			if open := status(t, l).Tiers[1].Used; open != 1 {
				t.Errorf("%s, then released and canceled ten times: %d are open, want 1", test.name, open)
			}
		})
	}
	var none *throttle.Permit
	none.Arrived()
	none.Release()
	if err := none.Cancel(ctx); err != nil {
		t.Errorf("Cancel of a nil permit: %v", err)
	}
}

// TestConcurrencyNeedsPermit checks that a policy with Concurrency refuses calls that return no
// Permit.
func TestConcurrencyNeedsPermit(t *testing.T) {
	l := limiter(t, exact(throttle.PerSecond(5), throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}), nil)
	for name, err := range map[string]error{
		"Wait":     l.Wait(context.Background()),
		"WaitN(1)": l.WaitN(context.Background(), 1),
		"WaitN(2)": l.WaitN(context.Background(), 2),
	} {
		if !errors.Is(err, throttle.ErrNeedsPermit) {
			t.Errorf("%s: %v, want ErrNeedsPermit", name, err)
		}
	}
	if l.Allow() || l.AllowN(1) {
		t.Error("Allow or AllowN is true on a policy with Concurrency")
	}
	if used := status(t, l).Tiers[0].Used; used != 0 {
		t.Errorf("%d are charged, want 0", used)
	}
}

// TestReleaseWakes checks that waiting callers get a place when it becomes free, in order, also
// through another Limiter of the same quota.
func TestReleaseWakes(t *testing.T) {
	policy := exact(throttle.Tier{Limit: 2, Algorithm: throttle.Concurrency})
	for name, s := range map[string]throttle.Store{"one limiter": nil, "two on one store": local.New()} {
		synctest.Test(t, func(t *testing.T) {
			l, start := limiter(t, policy, s), time.Now()
			other := l
			if s != nil {
				other = limiter(t, policy, s)
			}
			first, second := acquire(t, l, nil), acquire(t, other, nil)
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					time.Sleep(time.Duration(i+1) * ms)
					// No caller is refused, since a forecast takes places as free.
					ctx, cancel := context.WithTimeout(context.Background(), hour)
					defer cancel()
					p, err := other.Acquire(ctx, nil)
					want := time.Duration(i/2)*sec + sec
					if i%2 == 1 {
						want += 500 * ms
					}
					if err != nil || time.Since(start) != want {
						t.Errorf("%s: caller %d: %v after %v, want %v", name, i, err, time.Since(start), want)
					}
					time.Sleep(sec)
					p.Release()
				})
			}
			time.Sleep(sec)
			first.Release()
			time.Sleep(500 * ms)
			second.Release()
			wg.Wait()
		})
	}
}

// TestArrivedWakes checks that an early response makes room early, also for a caller of another
// Limiter and for a caller with a deadline.
func TestArrivedWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, s := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: 10 * sec}, local.New()
		l, other, start := limiter(t, policy, s), limiter(t, policy, s), time.Now()
		p := acquire(t, l, nil)
		var wg sync.WaitGroup
		for i, ask := range []*throttle.Limiter{l, other} {
			wg.Go(func() {
				// Without the response the wait would be 11 s.
				ctx, cancel := context.WithTimeout(context.Background(), 1300*ms)
				defer cancel()
				err := ask.Wait(ctx)
				if err != nil && err != context.DeadlineExceeded {
					t.Errorf("caller %d: %v", i, err)
				}
				if want := map[bool]time.Duration{true: 1200 * ms, false: 1300 * ms}[err == nil]; time.Since(start) != want {
					t.Errorf("caller %d: %v after %v, want %v", i, err, time.Since(start), want)
				}
			})
		}
		time.Sleep(200 * ms)
		p.Arrived()
		wg.Wait()
		if used := status(t, l).Tiers[0].Used; used != 1 {
			t.Errorf("%d were admitted, want 1", used)
		}
	})
}

// TestDeadlineOverPermits checks that the forecast for a newcomer follows the fate of the requests
// in flight.
func TestDeadlineOverPermits(t *testing.T) {
	for _, test := range []struct {
		name   string
		cancel bool // the first request is canceled after 100 ms; else it lands at the end of the guard interval
		late   time.Duration
		within time.Duration
		end    time.Duration
		wait   time.Duration // of the refusal
	}{
		{"a request is canceled", true, 100 * ms, 2300 * ms, 2100 * ms, 0},
		{"a request is canceled, but the newcomer is late", true, 100 * ms, 1900 * ms, 100 * ms, 2 * sec},
		{"a request stays in flight", false, 5 * sec, 2500 * ms, 5 * sec, 3 * sec},
		{"a request stays in flight, but the newcomer has time", false, 5 * sec, 9 * sec, 13 * sec, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, start := limiter(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: 10 * sec}, nil), time.Now()
				first := acquire(t, l, nil)
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), hour)
						defer cancel()
						p, err := l.Acquire(ctx, nil)
						if err != nil {
							t.Error(err)
						}
						p.Arrived()
					})
				}
				time.Sleep(test.late)
				if test.cancel {
					first.Cancel(context.Background())
				}
				ctx, cancel := context.WithTimeout(context.Background(), test.within)
				defer cancel()
				_, err := l.Acquire(ctx, nil)
				var w *throttle.WaitError
				if errors.As(err, &w); (w == nil) != (test.wait == 0) || w == nil && err != nil || w != nil && w.Wait != test.wait {
					t.Errorf("the newcomer gets %v, want a refusal for %v", err, test.wait)
				}
				if took := time.Since(start); took != test.end {
					t.Errorf("the newcomer returns after %v, want %v", took, test.end)
				}
				wg.Wait()
			})
		})
	}
}

func TestPermitSettle(t *testing.T) {
	lim := estimating(t, 600)
	p, err := lim.Acquire(t.Context(), throttle.Cost{"tokens": 300})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cost throttle.Cost
		want string
	}{
		{throttle.Cost{"requests": 2}, `throttle: policy "": cost of "requests" can't be settled: set Estimated in a tier of that unit`},
		{throttle.Cost{"cats": 2}, `throttle: policy "": cost of "cats" can't be settled: set Estimated in a tier of that unit`},
		{throttle.Cost{"tokens": -1}, `throttle: policy "": cost of "tokens" is -1: it must be at least 0`},
	} {
		if err := p.Settle(tt.cost); err == nil || err.Error() != tt.want {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
	if err := p.Settle(throttle.Cost{"tokens": 0}); err != nil || used(t, lim)[1] != 0 {
		t.Errorf("settled as zero: %v, used %v; want 0 tokens", err, used(t, lim))
	}
	if err := p.Settle(throttle.Cost{"tokens": 500}); err != nil || used(t, lim)[1] != 0 {
		t.Errorf("settled twice: %v, used %v; want 0 tokens", err, used(t, lim))
	}
	p.Release()
	p, _ = lim.Acquire(t.Context(), throttle.Cost{"tokens": 300})
	if err := p.Cancel(t.Context()); err != nil || !slices.Equal(used(t, lim), []int64{1, 0}) {
		t.Errorf("canceled: %v, used %v; want 1 and 0", err, used(t, lim))
	}
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

// acquireTimed returns a permit of one request and how long it waited.
func acquireTimed(t *testing.T, l *throttle.Limiter) (*throttle.Permit, time.Duration) {
	t.Helper()
	start := time.Now()
	p, err := l.Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, time.Since(start)
}

// A refusal that a Permit reports pauses the quota as one that a Transport sees: for the time that it
// names, and then for one request alone until that passes.
func TestPermitRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := acquireTimed(t, l)
		if err := p.Refused(t.Context(), 7*time.Second); err != nil {
			t.Fatal(err)
		}
		p.Release()
		probe, took := acquireTimed(t, l)
		if took != 7*time.Second {
			t.Errorf("waited %v", took)
		}
		time.AfterFunc(3*time.Second, probe.Passed)
		if _, took := acquireTimed(t, l); took != 3*time.Second {
			t.Errorf("the second request waited %v for the first", took)
		}

		// A permit reports once.
		if err := probe.Refused(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, took := acquireTimed(t, l); took != 0 {
			t.Errorf("waited %v", took)
		}
	})
}

// Refusals that name no time back off, until a request passes.
func TestPermitBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, _ := acquireTimed(t, l)
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, time.Second} {
			if i == 3 {
				p.Passed()
				p, _ = acquireTimed(t, l)
			}
			if err := p.Refused(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			var took time.Duration
			if p, took = acquireTimed(t, l); took < want || took > 2*want {
				t.Errorf("pause %d: %v, want %v to %v", i+1, took, want, 2*want)
			}
		}
	})
}

func TestPermitRefusedForLong(t *testing.T) {
	l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := acquireTimed(t, l)
	if err := p.Refused(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), nil); !errors.Is(err, throttle.ErrBanned) {
		t.Errorf("%v, want ErrBanned", err)
	}
	var none *throttle.Permit
	none.Passed()
	if err := none.Refused(context.Background(), time.Hour); err != nil {
		t.Error(err)
	}
}

// TestRefusalReportOfAPermit checks the report on a refusal that a Permit reports, in nested quotas and
// again and again.
func TestRefusalReportOfAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		observer, last := reports()
		inner, outer := exact(throttle.PerSecond(5)), exact(throttle.PerMinute(2))
		inner.Name, outer.Name, inner.Observer = "inner", "outer", observer
		l := mustNew(t, inner, nil).Within(mustNew(t, outer, nil))
		for n := range 3 {
			p, _ := acquireTimed(t, l)
			if err := p.Refused(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			p.Release()
			want := throttle.RefusalReport{Backoffs: n, Fullest: &throttle.TierCount{Policy: "outer", Tier: "2/m", Unit: "requests", Used: min(2, int64(n+1)), Limit: 2}}
			if n == 2 {
				want.Fullest.Used = (*last).Fullest.Used // the window rolls
			}
			if !reflect.DeepEqual(**last, want) {
				t.Errorf("refusal %d: %+v, want %+v", n, **last, want)
			}
		}
		p, _ := acquireTimed(t, l)
		p.Passed()
		if *last != nil {
			t.Errorf("a success has the report %v", *last)
		}
		p.Release()
	})
}
