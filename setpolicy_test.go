package throttle_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
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
