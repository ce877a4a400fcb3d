package distributed

import (
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A reply has the crossings of calendar tiers behind its decisions, the last tier's last. A tier without a
// crossing has zeros.
func TestSplitCrossed(t *testing.T) {
	day := algorithms.Tier{Limit: 5, Algorithm: algorithms.Calendar, Period: algorithms.Day}
	month := algorithms.Tier{Limit: 9, Algorithm: algorithms.Calendar, Period: algorithms.Month}
	plan, err := algorithms.NewPlan([]algorithms.Tier{day, {Limit: 5, Window: time.Second}, month}, 0)
	if err != nil {
		t.Fatal(err)
	}
	decided, crossed := splitCrossed(plan, []int64{-2, 7, 50, 80, 4, 1_000_000, 0, 0, 0, 0})
	want := algorithms.Crossing{Tier: 0, From: 50, To: 80, Used: 4, Until: time.Unix(1, 0)}
	if !slices.Equal(decided, []int64{-2, 7}) || len(crossed) != 1 || !crossed[0].Until.Equal(want.Until) {
		t.Fatalf("%v, %v", decided, crossed)
	}
	if crossed[0].Until = want.Until; crossed[0] != want {
		t.Errorf("%+v, want %+v", crossed[0], want)
	}
	if decided, crossed = splitCrossed(plan, []int64{1, 2, 3}); len(decided) != 3 || crossed != nil {
		t.Errorf("a reply that is too short: %v, %v", decided, crossed)
	}
}
