package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

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
