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
