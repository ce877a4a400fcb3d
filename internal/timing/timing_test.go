package timing

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// newTiming returns the Timing of a quota with a guard of a second.
func newTiming(t *testing.T, specs ...string) Timing {
	t.Helper()
	var tiers []algorithms.Tier
	for _, spec := range specs {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		tiers = append(tiers, tier)
	}
	plan, err := algorithms.NewPlan(tiers, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return New(new(Link), new(Clock), plan)
}

// TestSpareOfShortestWindow checks that reservations are valid longer by a part of the shortest window.
func TestSpareOfShortestWindow(t *testing.T) {
	for _, tiers := range [][]string{{"1/5s", "9/h"}, {"9/h", "1/5s"}, {"3;algo=concurrency", "9/h", "1/5s"}} {
		if got := newTiming(t, tiers...).spare; got != 10*time.Millisecond {
			t.Errorf("%v: got %v, want 10ms", tiers, got)
		}
	}
}
