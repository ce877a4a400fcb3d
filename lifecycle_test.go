package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// TestSetPolicyOuterBan checks that, after a change of an outer policy, its bans still refuse
// callers of Limiters inside it at once.
func TestSetPolicyOuterBan(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			l, outer := within(t,
				throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}},
				throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}})
			acquire(t, l, nil).Arrived()
			var wg sync.WaitGroup
			began := time.Now()
			for range 10 {
				wg.Go(func() {
					if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || time.Since(began) != time.Second {
						t.Errorf("%v after %v, want ErrBanned after 1s", err, time.Since(began))
					}
				})
			}
			synctest.Wait()
			if err := outer.SetPolicy(t.Context(), throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(7)}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			_, _ = trSend(t.Context(), &throttle.Transport{Limiter: outer, Base: trNewBase(func(int, *http.Request) (*http.Response, error) {
				return trAnswer(429, "Retry-After", "7200"), nil
			})})
			wg.Wait()
		})
	}
}

// TestSetPolicyWithoutLifecycle checks that SetPolicy changes all but the tiers on a store whose quotas
// keep their plan.
func TestSetPolicyWithoutLifecycle(t *testing.T) {
	p := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1)}}
	l := mustNew(t, p, new(plain))
	if !l.Allow() {
		t.Fatal("the first request is not admitted")
	}
	other := p
	other.Tiers = []throttle.Tier{throttle.PerHour(5)}
	if err := l.SetPolicy(t.Context(), other); err == nil || !strings.Contains(err.Error(), "SetPolicy: the store cannot change the policy of a") {
		t.Errorf("other tiers: %v, want an error of SetPolicy", err)
	}
	refused := 0
	p.Observer = &throttle.Observer{Refused: func(context.Context, throttle.RefusedInfo) { refused++ }}
	if err := l.SetPolicy(t.Context(), p); err != nil {
		t.Errorf("the same tiers: %v", err)
	}
	if l.Allow() || refused != 1 {
		t.Errorf("%d refusals are reported, want 1", refused)
	}
}

// TestSetPolicyRefused checks that a refused change has no effect.
func TestSetPolicyRefused(t *testing.T) {
	l := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
	for name, p := range map[string]throttle.Policy{
		"SetPolicy: Name": {Name: "ipa", Tiers: []throttle.Tier{throttle.PerHour(5)}},
		"Limit":           {Name: "api", Tiers: []throttle.Tier{throttle.PerHour(-5)}},
		"no tiers":        {Name: "api"},
	} {
		if err := l.SetPolicy(t.Context(), p); err == nil || name != "no tiers" && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want one that contains it", name, err)
		}
	}
	if !l.Allow() || l.Allow() {
		t.Error("the policy has changed")
	}
}

// TestSetPolicyKeepsDemands checks that waiting callers keep their deadlines and costs under a new
// policy, or are refused by it at once.
func TestSetPolicyKeepsDemands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := func(n int64) throttle.Policy {
			return throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerMinute(n)}, Guard: throttle.NoGuard}
		}
		l := mustNew(t, policy(10), nil)
		_ = l.WaitN(t.Context(), 10)
		var wg sync.WaitGroup
		began := time.Now()
		expect := func(name string, ctx context.Context, n int64, want error, after time.Duration) {
			wg.Go(func() {
				if err := l.WaitN(ctx, n); !errors.Is(err, want) || time.Since(began) != after {
					t.Errorf("%s: %v after %v, want %v after %v", name, err, time.Since(began), want, after)
				}
			})
			synctest.Wait()
		}
		soon, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		canceled, cancelIt := context.WithCancel(t.Context())
		expect("the cost now exceeds the capacity", t.Context(), 6, throttle.ErrExceedsCapacity, 10*time.Second)
		expect("is canceled", canceled, 1, context.Canceled, 20*time.Second)
		expect("the deadline is now too early", soon, 3, throttle.ErrDeadline, 10*time.Second)
		expect("no deadline", t.Context(), 3, nil, time.Minute)
		time.Sleep(10*time.Second - time.Since(began))
		if err := l.SetPolicy(t.Context(), policy(3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20*time.Second - time.Since(began))
		cancelIt()
		wg.Wait()
	})
}

// TestClose checks that Close refuses waiting callers and then every call, and that permits and
// other Limiters of the quota keep working.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{
			{Limit: 2, Algorithm: throttle.Concurrency},
			{Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
		}}
		l, other := mustNew(t, policy, s), mustNew(t, policy, s)
		a, b := acquire(t, l, throttle.Cost{"tokens": 40}), acquire(t, l, throttle.Cost{"tokens": 40})
		var wg sync.WaitGroup
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				_, err := l.Acquire(t.Context(), nil)
				var e *throttle.WaitError
				if !errors.Is(err, throttle.ErrClosed) || !errors.As(err, &e) || e.Policy != "api" || time.Since(began) != time.Second {
					t.Errorf("a waiting caller: %v after %v, want ErrClosed of policy api after 1s", err, time.Since(began))
				}
			})
		}
		var third *throttle.Permit
		wg.Go(func() {
			var err error
			if third, err = other.Acquire(t.Context(), throttle.Cost{"tokens": 1}); err != nil {
				t.Errorf("another Limiter's caller: %v", err)
			}
		})
		time.Sleep(time.Second)
		l.Close()
		l.Close()
		synctest.Wait()
		_, acquired := l.Acquire(t.Context(), nil)
		_, tried := l.TryAcquire(t.Context(), nil)
		_, forecast := l.Forecast(t.Context(), nil)
		_, sent := trSend(t.Context(), &throttle.Transport{Limiter: l, Base: trNewBase(nil)})
		for name, err := range map[string]error{
			"Wait": l.Wait(t.Context()), "WaitN": l.WaitN(t.Context(), 2), "Acquire": acquired, "TryAcquire": tried,
			"Forecast": forecast, "Transport": sent,
		} {
			if !errors.Is(err, throttle.ErrClosed) {
				t.Errorf("%s: %v, want ErrClosed", name, err)
			}
		}
		if l.Allow() || l.AllowN(2) {
			t.Error("Allow or AllowN of a closed Limiter is true")
		}
		if err := a.Settle(throttle.Cost{"tokens": 5}); err != nil {
			t.Error(err)
		}
		a.Release()
		if err := b.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		third.Release()
		if got := used(t, other); got[0] != 0 || got[1] != 6 {
			t.Errorf("used %v, want 0 open and 5 + 1 tokens", got)
		}
		if p, err := other.TryAcquire(t.Context(), nil); err != nil {
			t.Errorf("another Limiter of the quota: %v", err)
		} else {
			p.Release()
		}
	})
}

// TestCloseRaces closes Limiters while callers use them. Each caller must get an admission or an
// error, none may wait forever, and none may be admitted afterwards.
func TestCloseRaces(t *testing.T) {
	for range soak.Times(60) {
		policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{{Limit: 2, Window: 10 * time.Microsecond}}, Guard: throttle.NoGuard}
		inner, outer := mustNew(t, policy, nil), mustNew(t, throttle.Policy{Tiers: policy.Tiers, Guard: throttle.NoGuard}, nil)
		nested := inner.Within(outer)
		var wg sync.WaitGroup
		for i := range 8 {
			l := []*throttle.Limiter{inner, nested, outer}[i%3]
			wg.Go(func() {
				for {
					if err := l.Wait(context.Background()); errors.Is(err, throttle.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		time.Sleep(50 * time.Microsecond)
		wg.Go(inner.Close)
		wg.Go(outer.Close)
		wg.Wait()
		for _, l := range []*throttle.Limiter{inner, nested, outer} {
			if l.Allow() {
				t.Fatal("Allow of a closed Limiter is true")
			}
		}
	}
}

// TestCloseOuter checks that closing an outer Limiter refuses the callers of Limiters inside it at
// once, also if they wait for the inner quota.
func TestCloseOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, outer := within(t,
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}},
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(100)}})
		acquire(t, l, nil).Arrived()
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) || time.Since(began) != time.Minute {
					t.Errorf("%v after %v, want ErrClosed after 1m", err, time.Since(began))
				}
			})
		}
		time.Sleep(time.Minute)
		outer.Close()
		wg.Wait()
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) {
			t.Errorf("a later caller: %v, want ErrClosed", err)
		}
	})
}

// TestResume checks that Resume ends a pause, a ban and the wait for a probe, for all callers that
// share the quota, and that the tiers still hold.
func TestResume(t *testing.T) {
	for name, answer := range map[string]string{"pause": "60", "ban": "7200", "probe": "1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := local.New()
				policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerMinute(4)}, Guard: throttle.NoGuard}
				l, other := mustNew(t, policy, s), mustNew(t, policy, s)
				base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
					if n == 0 {
						return trAnswer(429, "Retry-After", answer), nil
					}
					time.Sleep(time.Hour) // the probe hangs
					return trAnswer(200), nil
				})
				tr := &throttle.Transport{Limiter: l, Base: base}
				_, _ = trSend(t.Context(), tr)
				var wg sync.WaitGroup
				defer wg.Wait()
				want := 3
				if name == "probe" {
					time.Sleep(2 * time.Second)
					wg.Go(func() { _, _ = trSend(t.Context(), tr) })
					synctest.Wait()
					want = 2
				}
				if other.Allow() {
					t.Error("Allow is true before Resume")
				}
				if err := l.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
				n := 0
				for other.Allow() {
					n++
				}
				if s := status(t, other); n != want || s.Paused != 0 || s.Closed != 0 {
					t.Errorf("%d requests are admitted, want %d; status %v", n, want, s)
				}
			})
		})
	}
	t.Run("waiting callers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, outer := within(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}})
			_ = outer.Pause(t.Context(), time.Hour)
			began := time.Now()
			var wg sync.WaitGroup
			for _, l := range []*throttle.Limiter{l, l, outer, outer} {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil || time.Since(began) != time.Minute {
						t.Errorf("%v after %v, want nil after 1m", err, time.Since(began))
					}
				})
			}
			time.Sleep(time.Minute)
			_ = outer.Resume(t.Context())
			wg.Wait()
		})
	})
	t.Run("back-off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
			tr := &throttle.Transport{Limiter: l, Base: trNewBase(func(int, *http.Request) (*http.Response, error) { return trAnswer(429), nil })}
			for range 5 {
				_, _ = trSend(t.Context(), tr)
				if err := l.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = trSend(t.Context(), tr)
			if s := status(t, l); s.Paused < time.Second || s.Paused > 2*time.Second {
				t.Errorf("the pause is %v, want 1s to 2s, as after a first refusal", s.Paused)
			}
		})
	})
}

// TestPauseOfTheLongestTime checks that the longest Duration does not overflow, neither in Pause
// nor in MaxPause.
func TestPauseOfTheLongestTime(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err := l.Pause(t.Context(), longest); err != nil {
		t.Fatal(err)
	}
	if l.Allow() {
		t.Error("Allow is true in a pause of the longest time")
	}
	m := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}, MaxPause: longest}, nil)
	_, _ = trSend(t.Context(), &throttle.Transport{Limiter: m, Base: answering("429\nRetry-After: 7200")})
	if s := status(t, m); s.Closed != 0 || s.Paused < time.Hour {
		t.Errorf("after a refusal for two hours: %v, want a pause", s)
	}
}

// TestClosedStaysClosed checks that a closed Limiter refuses calls after SetPolicy and after its
// Group has dropped its quota.
func TestClosedStaysClosed(t *testing.T) {
	t.Run("SetPolicy", func(t *testing.T) {
		l := mustNew(t, api(throttle.PerHour(10)), nil)
		l.Close()
		_ = l.SetPolicy(t.Context(), api(throttle.PerHour(20)))
		if l.Allow() {
			t.Error("Allow of a closed Limiter is true")
		}
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) {
			t.Error(err)
		}
		if err := l.WaitN(t.Context(), 0); !errors.Is(err, throttle.ErrClosed) || l.AllowN(0) {
			t.Errorf("for 0 requests: %v, %t; want ErrClosed and false", err, l.AllowN(0))
		}
	})
	t.Run("dropped by its Group", func(t *testing.T) {
		g, err := throttle.NewGroup(api(throttle.PerHour(10)), nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l := g.For("a")
		l.Close()
		for _, key := range []string{"b", "c", "d", "e"} {
			g.For(key).Allow()
		}
		if l.Allow() {
			t.Error("Allow of a closed Limiter is true")
		}
	})
	t.Run("closed once", func(t *testing.T) {
		s := local.New()
		a, _ := throttle.NewGroup(api(throttle.PerHour(10)), s, throttle.GroupOptions{})
		b, _ := throttle.NewGroup(api(throttle.PerHour(10)), s, throttle.GroupOptions{})
		lb := b.For("k")
		a.For("k").Close()
		for _, key := range []string{"x", "y", "z"} {
			a.For(key).Allow()
		}
		la := a.For("k")
		n := 0
		for range 20 {
			for _, l := range []*throttle.Limiter{la, lb} {
				if l.Allow() {
					n++
				}
			}
		}
		if n != 10 {
			t.Errorf("%d admitted, want 10", n)
		}
	})
}

// TestWithinClosedOuter checks that a Limiter inside a closed one refuses at once, also if it would
// have to wait.
func TestWithinClosedOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, outer := within(t, api(throttle.PerHour(1)), api(throttle.PerHour(100)))
		l.Allow()
		outer.Close()
		began := time.Now()
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) || time.Since(began) != 0 {
			t.Errorf("%v after %v, want ErrClosed at once", err, time.Since(began))
		}
	})
}

// TestSetPolicyWhileWaiting changes the policy twenty times while hundreds of callers wait. They
// must be admitted in order, none may be lost, and a provider with the largest limit must refuse
// none.
func TestSetPolicyWhileWaiting(t *testing.T) {
	for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.TokenBucket, throttle.GCRA} {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { setPolicyWhileWaiting(t, a) })
		})
	}
}

func setPolicyWhileWaiting(t *testing.T, a throttle.Algorithm) {
	const callers, changes, most = 500, 20, 40
	rnd := rand.New(rand.NewPCG(4, uint64(a)))
	policy := func(n int64) throttle.Policy {
		return throttle.Policy{Name: "api", Tiers: []throttle.Tier{{Limit: n, Window: time.Second, Algorithm: a}}, Guard: 20 * time.Millisecond}
	}
	api := throttletest.New(policy(most).Tiers...)
	api.Delay = func() time.Duration { return 10 * time.Millisecond }
	l := mustNew(t, policy(10), nil)
	var held []*throttle.Permit
	for range 5 {
		held = append(held, acquire(t, l, nil))
	}
	var wg sync.WaitGroup
	var order admissions
	for i := range callers {
		wg.Go(func() {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Errorf("caller %d: %v", i, err)
				return
			}
			order.add(i)
			_, _ = trSend(t.Context(), api)
			p.Arrived()
			p.Release()
		})
		synctest.Wait()
	}
	for i := range changes {
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond)
		if err := l.SetPolicy(t.Context(), policy(1+rnd.Int64N(most))); err != nil {
			t.Fatal(err)
		}
		if i == changes/2 {
			for _, p := range held {
				p.Arrived()
				p.Release()
			}
		}
	}
	wg.Wait()
	if got := order.order(); !slices.IsSorted(got) || len(got) != callers {
		t.Errorf("%d admitted, in order: %v; want %d in order", len(got), slices.IsSorted(got), callers)
	}
	if s := api.Summary(); s.Refused != 0 || s.Sent != callers {
		t.Errorf("the provider refused %d of %d, want 0 of %d", s.Refused, s.Sent, callers)
	}
	time.Sleep(time.Minute)
	if s := status(t, l); s.Waiting != 0 || s.Tiers[0].Used != 0 {
		t.Errorf("status after all have ended: %v, want none waiting and none used", s)
	}
}

// TestSetPolicyNested checks that callers of nested limits keep their order, whichever policy
// changes, and that the provider refuses none.
func TestSetPolicyNested(t *testing.T) {
	for _, changed := range []string{"inner", "outer", "both"} {
		for seed := range uint64(soak.Times(7)) {
			t.Run(fmt.Sprint(changed, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					const callers, most = 100, 20
					rnd := rand.New(rand.NewPCG(5, seed))
					policy := func(name string, n int64) throttle.Policy {
						return throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(n)}, Guard: throttle.NoGuard}
					}
					inner, outer := mustNew(t, policy("inner", 5), nil), mustNew(t, policy("outer", 5), nil)
					l := inner.Within(outer)
					api := throttletest.New(throttle.PerSecond(most))
					var wg sync.WaitGroup
					var ends [callers]time.Time
					for i := range callers {
						wg.Go(func() {
							if err := l.Wait(t.Context()); err != nil {
								t.Errorf("caller %d: %v", i, err)
								return
							}
							ends[i] = time.Now()
							_, _ = trSend(t.Context(), api)
						})
						synctest.Wait()
					}
					for range 20 {
						time.Sleep(time.Duration(rnd.IntN(1000)) * time.Millisecond)
						for name, l := range map[string]*throttle.Limiter{"inner": inner, "outer": outer} {
							if changed != name && changed != "both" {
								continue
							}
							if err := l.SetPolicy(t.Context(), policy(name, 1+rnd.Int64N(most))); err != nil {
								t.Fatal(err)
							}
						}
					}
					wg.Wait()
					if !slices.IsSortedFunc(ends[:], time.Time.Compare) {
						t.Errorf("admitted at %v, want in order", ends)
					}
					if s := api.Summary(); s.Refused != 0 {
						t.Errorf("the provider refused %d of %d, want 0", s.Refused, s.Sent)
					}
					time.Sleep(time.Minute)
					if got := used(t, l); !slices.Equal(got, []int64{0, 0}) || status(t, l).Waiting != 0 || status(t, outer).Waiting != 0 {
						t.Errorf("%v still used, want 0", got)
					}
				})
			})
		}
	}
}

// TestSetPolicyOldPermits checks that permits from before a change end under the new policy: they
// free what they hold and settle what was estimated.
func TestSetPolicyOldPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := func(open, tokens int64) throttle.Policy {
			return throttle.Policy{Name: "api", Tiers: []throttle.Tier{
				{Limit: open, Algorithm: throttle.Concurrency},
				{Limit: tokens, Window: time.Hour, Unit: "tokens", Estimated: true},
			}}
		}
		l := mustNew(t, policy(2, 100), nil)
		a, b := acquire(t, l, throttle.Cost{"tokens": 40}), acquire(t, l, throttle.Cost{"tokens": 40})
		if err := l.SetPolicy(t.Context(), policy(3, 1000)); err != nil {
			t.Fatal(err)
		}
		if got := used(t, l); !slices.Equal(got, []int64{2, 80}) {
			t.Errorf("used %v after the change, want 2 and 80", got)
		}
		c := acquire(t, l, throttle.Cost{"tokens": 10})
		if err := a.Settle(throttle.Cost{"tokens": 5}); err != nil {
			t.Error(err)
		}
		a.Release()
		if err := b.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		c.Release()
		if got := used(t, l); !slices.Equal(got, []int64{0, 15}) {
			t.Errorf("used %v when all have ended, want 0 open and 5 + 10 tokens", got)
		}
	})
}

// TestSetPolicyConcurrently checks that concurrent calls of SetPolicy leave one quota under one of
// the policies.
func TestSetPolicyConcurrently(t *testing.T) {
	for range 200 {
		l := mustNew(t, api(throttle.PerHour(1000)), nil)
		var wg sync.WaitGroup
		var permits []*throttle.Permit
		for i := range 4 {
			p, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			permits = append(permits, p)
			wg.Go(func() {
				if err := l.SetPolicy(t.Context(), api(throttle.PerHour(int64(100+i)))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, p := range permits {
			if err := p.Cancel(t.Context()); err != nil {
				t.Error(err)
			}
		}
		// A Cancel after SetPolicy may be too late, but each charge counts once.
		if got := used(t, l)[0]; got > 4 {
			t.Fatalf("%d used, want at most 4", got)
		}
		for range 3 {
			if !l.Allow() {
				t.Fatal("Allow is false, although the quota has room")
			}
		}
	}
}

// TestSetPolicyThroughAnotherHandle checks that SetPolicy holds for each Limiter of the quota in
// this process, whichever method is called first.
func TestSetPolicyThroughAnotherHandle(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, l *throttle.Limiter){
		"Allow": func(t *testing.T, l *throttle.Limiter) {
			if !l.Allow() {
				t.Error("refused, although the quota is unused")
			}
		},
		"AllowN": func(t *testing.T, l *throttle.Limiter) {
			if !l.AllowN(2) {
				t.Error("refused, although the quota is unused")
			}
		},
		"TryAcquire": func(t *testing.T, l *throttle.Limiter) {
			if _, err := l.TryAcquire(t.Context(), nil); err != nil {
				t.Error(err)
			}
		},
		"Status": func(t *testing.T, l *throttle.Limiter) {
			s, err := l.Status(t.Context())
			if err != nil || len(s.Tiers) != 3 || s.Tiers[2].Tier.Limit != 20 {
				t.Errorf("%v, %v; want the three new tiers", s, err)
			}
		},
		"Forecast": func(t *testing.T, l *throttle.Limiter) {
			f, err := l.Forecast(t.Context(), throttle.Cost{"tokens": 4})
			if err != nil || f.Wait != 0 {
				t.Errorf("%v, %v; want no Wait", f, err)
			}
		},
		"nested": func(t *testing.T, l *throttle.Limiter) {
			if !l.Within(mustNew(t, api(throttle.PerHour(7)), nil)).Allow() {
				t.Error("refused, although the quota is unused")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := local.New()
			a, b := mustNew(t, api(throttle.PerHour(10)), s), mustNew(t, api(throttle.PerHour(10)), s)
			next := api(throttle.PerHour(10), throttle.Tier{Limit: 100, Window: time.Hour, Unit: "tokens"}, throttle.PerDay(20))
			if err := a.SetPolicy(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			ask(t, b)
		})
	}
}

// TestAlertAfterSetPolicy checks that an Alert names the right tier if the policy was changed while
// the request was sent.
func TestAlertAfterSetPolicy(t *testing.T) {
	var alerts []throttle.Alert
	cents := throttle.Budget(100, "cents", throttle.Month)
	cents.Estimated = true
	p := throttle.Policy{Name: "budget", Tiers: []throttle.Tier{cents}, AlertAt: []int{50}, Alert: func(a throttle.Alert) { alerts = append(alerts, a) }}
	l := mustNew(t, p, nil)
	permit, err := l.Acquire(t.Context(), throttle.Cost{"cents": 1})
	if err != nil {
		t.Fatal(err)
	}
	p.Tiers = []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(100), cents}
	if err := l.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := permit.Settle(throttle.Cost{"cents": 60}); err != nil {
		t.Error(err)
	}
	permit.Release()
	if len(alerts) != 1 || !strings.Contains(alerts[0].Tier, "cents") {
		t.Errorf("alerts: %+v, want one for cents", alerts)
	}
}

// TestForecastUnderSetPolicy checks that a Forecast does not mix costs of two policies while the
// policy changes.
func TestForecastUnderSetPolicy(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	tokens := throttle.Tier{Limit: 100, Window: time.Hour, Unit: "tokens"}
	policies := []throttle.Policy{api(throttle.PerHour(1)), api(throttle.PerHour(1), tokens), api(throttle.PerHour(1), tokens, throttle.Tier{Limit: 5, Window: time.Hour, Unit: "jobs"})}
	l := mustNew(t, policies[0], nil)
	outer := mustNew(t, policies[0], nil)
	nested := mustNew(t, policies[0], nil).Within(l)
	inner := l.Within(outer)
	l.Allow()
	ctx, cancel := context.WithCancel(t.Context())
	var wg, ops sync.WaitGroup
	for range 4 {
		wg.Go(func() { l.Wait(ctx) })
		wg.Go(func() { nested.Wait(ctx) })
		wg.Go(func() { inner.Wait(ctx) })
	}
	stop := make(chan struct{})
	time.AfterFunc(time.Second/4, func() { close(stop) })
	run := func(f func(i int)) {
		ops.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		})
	}
	run(func(i int) { l.SetPolicy(t.Context(), policies[i%3]) })
	run(func(i int) { outer.SetPolicy(t.Context(), policies[i%3]) })
	short := func(l *throttle.Limiter) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		l.Wait(ctx)
	}
	for _, l := range []*throttle.Limiter{l, nested, inner} {
		run(func(int) { l.Forecast(t.Context(), nil) })
		run(func(int) { short(l) })
		run(func(int) { l.AllowN(1) })
	}
	ops.Wait()
	cancel()
	wg.Wait()
}

// TestAlertOfOuterPanics checks that a panic of an outer quota's Alert leaves the inner quota
// unused, so its key can be dropped.
func TestAlertOfOuterPanics(t *testing.T) {
	for _, name := range []string{"Allow", "Wait", "queue"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := throttle.Policy{Name: "budget", Tiers: []throttle.Tier{throttle.Budget(100, "", throttle.Month)},
					AlertAt: []int{1}, Alert: func(throttle.Alert) { panic("alert") }}
				outer := mustNew(t, budget, nil)
				inner := api(throttle.PerHour(1))
				g, err := throttle.NewGroup(inner, nil, throttle.GroupOptions{MaxKeys: 1})
				if err != nil {
					t.Fatal(err)
				}
				l := g.Within("a", outer)
				if name == "queue" {
					g.For("a").Allow()
				}
				func() {
					defer func() {
						if recover() == nil {
							t.Error("Alert did not panic")
						}
					}()
					if name == "Allow" {
						l.Allow()
					} else {
						l.Wait(t.Context())
					}
				}()
				time.Sleep(3 * time.Hour)
				if !g.For("b").Allow() {
					t.Error("the unused key was not dropped")
				}
			})
		})
	}
}

// TestSetPolicyOfNewKeys checks that keys of a Group which are opened while SetPolicy begins, and so have
// the new policy already, decide.
func TestSetPolicyOfNewKeys(t *testing.T) {
	for range soak.Times(50) {
		g, err := throttle.NewGroup(exact(throttle.PerSecond(5)), nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				for k := range 100 {
					g.For(fmt.Sprint(i, " ", k)).Allow()
				}
			})
		}
		for i := range 20 {
			if err := g.SetPolicy(t.Context(), exact(throttle.PerSecond(int64(5+i)))); err != nil {
				t.Fatal(err)
			}
		}
		callers.Go(func() {
			for _, l := range g.All() {
				l.Allow()
			}
		})
		decided := make(chan struct{})
		go func() { callers.Wait(); close(decided) }()
		select {
		case <-decided:
		case <-time.After(time.Minute):
			t.Fatal("a key does not decide")
		}
	}
}

// changedStore is a store whose quotas call hook when their plan has changed.
type changedStore struct {
	local.Store
	hook func()
}

type changedQuota struct {
	store.Quota
	store.Lifecycle
	hook *func()
}

func (s *changedStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return changedQuota{q, q.(store.Lifecycle), &s.hook}, err
}

func (q changedQuota) Change(ctx context.Context, plan *algorithms.Plan) error {
	err := q.Lifecycle.Change(ctx, plan)
	(*q.hook)()
	return err
}

func (q changedQuota) Successor() (store.Quota, *algorithms.Plan) {
	next, plan := q.Lifecycle.Successor()
	if next == q.Quota {
		return q, plan
	}
	return changedQuota{next, next.(store.Lifecycle), q.hook}, plan
}

// TestSetPolicyBesideCallers checks that a caller which finds the new tiers before SetPolicy returns
// does not keep the rest of the old policy.
func TestSetPolicyBesideCallers(t *testing.T) {
	s := new(changedStore)
	p := exact(throttle.PerMinute(1))
	p.Name = "q"
	l := mustNew(t, p, s)
	s.hook = func() { l.Allow() }
	p.Tiers, p.MaxWait = []throttle.Tier{throttle.PerMinute(2)}, time.Second
	if err := l.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.Allow()
	}
	if f, err := l.Forecast(t.Context(), nil); !errors.Is(err, throttle.ErrDeadline) {
		t.Errorf("Forecast = %v, %v, want ErrDeadline by MaxWait", f, err)
	}
}

// TestSetPolicyAddsConcurrency checks that a waiting Wait is refused when SetPolicy adds a
// Concurrency tier, because no call would release its place.
func TestSetPolicyAddsConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, api(throttle.PerMinute(1)), nil)
		l.Allow()
		time.AfterFunc(time.Second, func() {
			_ = l.SetPolicy(t.Context(), api(throttle.PerMinute(1), throttle.Tier{Limit: 8, Algorithm: throttle.Concurrency}))
		})
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrNeedsPermit) {
			t.Errorf("error %v, want ErrNeedsPermit", err)
		}
		time.Sleep(time.Hour)
		if got := used(t, l); got[1] != 0 {
			t.Errorf("%v used, want none open", got)
		}
	})
}

// TestSetPolicyOfEqualTiers checks that a policy with the same tiers leaves requests in flight as they
// are: a permit that is canceled then is refunded.
func TestSetPolicyOfEqualTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := throttle.Policy{Name: "x", Tiers: []throttle.Tier{throttle.PerHour(3)}, Guard: sec}
		l := mustNew(t, p, nil)
		var permits []*throttle.Permit
		for range 3 {
			permits = append(permits, acquire(t, l, nil))
		}
		p.MaxQueue++
		if err := l.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		for _, permit := range permits {
			if err := permit.Cancel(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if time.Sleep(2 * sec); used(t, l)[0] != 0 {
			t.Errorf("got %d used, want 0", used(t, l)[0])
		}
	})
}

// TestSetPolicyOfWaiters checks that a policy with the same tiers holds at once for callers that wait, nested or not:
// without Headroom Batch callers go, and a lower MaxQueue refuses the last callers.
func TestSetPolicyOfWaiters(t *testing.T) {
	for _, nested := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := exact(throttle.PerMinute(10))
			p.Headroom, p.Aging = 50, time.Hour
			l := mustNew(t, p, nil)
			if nested {
				l = l.Within(mustNew(t, exact(throttle.PerMinute(100)), nil))
			}
			for range 6 {
				l.Allow()
			}
			ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Batch))
			defer cancel()
			for range 10 {
				go func() { _ = l.Wait(ctx) }()
			}
			time.Sleep(sec)
			set := func(headroom, maxQueue, want int) {
				p.Headroom, p.MaxQueue = headroom, maxQueue
				if err := l.SetPolicy(t.Context(), p); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := status(t, l).Waiting; got != want {
					t.Errorf("nested %v, Headroom %d, MaxQueue %d: %d wait, want %d", nested, headroom, maxQueue, got, want)
				}
			}
			set(50, 0, 10)
			set(0, 0, 6)
			set(0, 2, 2)
		})
	}
}
