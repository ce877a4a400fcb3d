package throttle_test

import (
	"context"
	"errors"
	"fmt"
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
)

// api returns a policy with the tiers.
func api(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: tiers}
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
