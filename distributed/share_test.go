package distributed

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// TestPartsFitInTheTier checks that the parts of a tier together allow no more than the tier, and not much
// less: a part is the largest whole number of units, or one unit in the smallest whole number of windows.
func TestPartsFitInTheTier(t *testing.T) {
	for limit := int64(1); limit <= 12; limit++ {
		for n := int64(1); n <= 30; n++ {
			tier := algorithms.Tier{Limit: limit, Window: time.Second, Burst: 3}
			p := part(tier, n)
			if p.Limit < 1 || p.Burst < 1 || p.Burst > 3 {
				t.Fatalf("%d of %d/s: got %+v", n, limit, p)
			}
			windows := int64(p.Window / tier.Window)
			if all := n * p.Limit; all > limit*windows {
				t.Errorf("%d of %d/s: got %d in %d windows for each, which is more", n, limit, p.Limit, windows)
			}
			if more := n * (p.Limit + 1); windows == 1 && more <= limit || windows > 1 && n <= limit*(windows-1) {
				t.Errorf("%d of %d/s: got %d in %d windows for each, and more would fit", n, limit, p.Limit, windows)
			}
		}
	}
}
