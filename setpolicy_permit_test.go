package throttle_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

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
