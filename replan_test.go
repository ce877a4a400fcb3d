package throttle_test

import (
	"sync"
	"testing"

	"github.com/apithrottle/throttle"
)

// api is a policy of these tiers.
func api(tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: tiers}
}

// Several SetPolicy at once leave one quota under one of the policies.
func TestSetPolicyAtOnce(t *testing.T) {
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
		// A Cancel after SetPolicy may be too late, but what was charged is charged once.
		if got := used(t, l)[0]; got > 4 {
			t.Fatalf("used %d", got)
		}
		for range 3 {
			if !l.Allow() {
				t.Fatal("refused")
			}
		}
	}
}
