package throttle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
)

// TestStatusOfPacedTiers plays random traffic on random policies whose tiers have paces. The count of
// a tier is of the tier itself, and what may go now is what the pace allows too.
func TestStatusOfPacedTiers(t *testing.T) {
	for seed := range uint64(soak.Times(200)) {
		synctest.Test(t, func(t *testing.T) { playPaces(t, seed) })
	}
}

func playPaces(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 41))
	p := throttle.Policy{Name: "paced", Tiers: groupTiers(r), Guard: []time.Duration{throttle.NoGuard, 0}[r.IntN(2)]}
	for i := range p.Tiers {
		tier := &p.Tiers[i]
		if tier.Unit, tier.Estimated = "", false; tier.Window > 0 {
			tier.PaceBurst = 1 + r.Int64N(tier.Limit)
		}
	}
	l := mustNew(t, p, nil)
	for range 60 {
		switch r.IntN(4) {
		case 0:
			time.Sleep(time.Duration(r.IntN(100)) * []time.Duration{time.Millisecond, time.Second, time.Minute}[r.IntN(3)])
		case 1:
			if permit, err := l.TryAcquire(t.Context(), throttle.Cost{"requests": r.Int64N(4)}); err == nil {
				permit.Arrived()
				permit.Release()
			}
		}
		status, err := l.Status(t.Context())
		if err != nil || len(status.Tiers) != len(p.Tiers) {
			t.Fatalf("seed %d: Status of %v returned %v, %v", seed, p, status, err)
		}
		limited := false
		for i, s := range status.Tiers {
			unpaced := p.Tiers[i]
			unpaced.PaceBurst = 0
			if s.Limit != unpaced.Capacity() || s.Used < 0 || s.Used > s.Limit || s.Remaining < 0 || s.Remaining > s.Limit-s.Used {
				t.Fatalf("seed %d: tier %v: %d of %d used, %d remaining", seed, s.Tier, s.Used, s.Limit, s.Remaining)
			}
			if s.Used == 0 && s.ResetAfter != 0 {
				t.Fatalf("seed %d: tier %v: nothing is used, and ResetAfter is %v", seed, s.Tier, s.ResetAfter)
			}
			if s.Limited != (s.Remaining == 0) || s.Limited != (s.RetryAfter > 0) {
				t.Errorf("seed %d: tier %v: Limited is %v, Remaining %d, RetryAfter %v, used %d in flight %d", seed, s.Tier, s.Limited, s.Remaining, s.RetryAfter, s.Used, s.InFlight)
			}
			limited = limited || s.Limited
		}
		_, err = l.TryAcquire(t.Context(), nil)
		if admitted := err == nil; admitted == limited {
			t.Fatalf("seed %d: admitted is %v: %v, and the state was %v", seed, admitted, err, status)
		}
	}
}

// TestGroupSetPolicyReachesDroppedKeys checks that a Limiter whose quota the Group has dropped has the
// Group's newest policy from the first call on: its units and its Observer.
func TestGroupSetPolicyReachesDroppedKeys(t *testing.T) {
	var before, after int
	policy := func(admitted *int, tiers ...throttle.Tier) throttle.Policy {
		return throttle.Policy{Name: "keys", Tiers: tiers, Observer: &throttle.Observer{
			Admitted: func(context.Context, throttle.AdmittedInfo) { *admitted++ },
		}}
	}
	g := groupOf(t, policy(&before, throttle.PerSecond(5)), 0)
	first, second, third := g.For("first"), g.For("second"), g.For("third")
	nested := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Within(third)
	for i := range 10 { // the new keys take the places of the unused ones
		g.For(fmt.Sprint("new", i)).Allow()
	}
	tokens := throttle.Cost{"tokens": 1}
	if err := g.SetPolicy(t.Context(), policy(&after, throttle.PerSecond(5), throttle.Tier{Limit: 9, Window: time.Second, Unit: "tokens"})); err != nil {
		t.Fatal(err)
	}
	before = 0
	if first.Allow(); before != 0 || after != 1 {
		t.Errorf("the old Observer received %d admissions and the new one %d, want 0 and 1", before, after)
	}
	if _, err := second.Forecast(t.Context(), tokens); err != nil {
		t.Errorf("Forecast: %v", err)
	}
	if _, err := nested.TryAcquire(t.Context(), tokens); err != nil {
		t.Errorf("TryAcquire inside a dropped quota: %v", err)
	}
}

// TestWithinFollowsTheOuterPolicy checks that a nested Limiter counts a unit that another Limiter has
// added to the outer quota.
func TestWithinFollowsTheOuterPolicy(t *testing.T) {
	s := local.New()
	outer := throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(5)}}
	l := mustNew(t, throttle.Policy{Name: "inner", Tiers: outer.Tiers}, nil).Within(mustNew(t, outer, s))
	other := mustNew(t, outer, s)
	outer.Tiers = append(outer.Tiers[:1:1], throttle.Tier{Limit: 9, Window: time.Second, Unit: "tokens"})
	if err := other.SetPolicy(t.Context(), outer); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), throttle.Cost{"tokens": 2}); err != nil {
		t.Error(err)
	}
	if got := used(t, l); !slices.Equal(got, []int64{1, 1, 2}) {
		t.Errorf("%v are used, want 1, 1 and 2", got)
	}
}

// TestExplainNamesTheLimiterThatDoesNotWait checks that By is the policy of the Limiter itself if a nested
// request would not wait.
func TestExplainNamesTheLimiterThatDoesNotWait(t *testing.T) {
	l, _ := within(t, exact(throttle.PerSecond(1)), exact(throttle.PerSecond(1)))
	if e, err := l.Explain(t.Context(), nil); err != nil || e.By != "inner" || e.Wait != 0 {
		t.Errorf("By is %q, Wait %v, error %v, want inner, 0 and none", e.By, e.Wait, err)
	}
}
