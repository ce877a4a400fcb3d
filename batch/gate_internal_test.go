package batch

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestGatesOfAFleetBecomeAlike plays two processes that share a limit by what waits. One of them was alone at
// first, so that many of its items wait.
func TestGatesOfAFleetBecomeAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		one, other := newGate(func(int) {}), newGate(func(int) {})
		one.ahead = limit
		for range 100 {
			time.Sleep(aheadFor)
			part := limit * one.ahead / (one.ahead + other.ahead)
			for i := range limit {
				g := one
				if i >= part {
					g = other
				}
				g.enterAgain().leave(true)
			}
		}
		if more := one.ahead - other.ahead; more < -10 || more > 10 {
			t.Errorf("%d and %d items wait, want about as many", one.ahead, other.ahead)
		}
	})
}
