package distributed_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestBatchTurnsAreEqual checks that processes whose callers are all of class Batch get equal shares of a
// bucket, and together all of it.
func TestBatchTurnsAreEqual(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit   int64
		callers int
		aging   time.Duration
		way     time.Duration
	}{
		{1, 1, 5 * time.Minute, ms / 2},
		{1, 8, 0, 5 * ms},
		{1, 200, 5 * time.Minute, 40 * ms},
		{3, 200, 5 * time.Minute, ms / 2},
		{10, 200, 5 * time.Minute, 5 * ms},
		{10, 200, 0, 40 * ms},
	} {
		t.Run(fmt.Sprintf("%d/s, %d callers, aging %v, %v away", test.limit, test.callers, test.aging, test.way), func(t *testing.T) {
			soak.Sample(t, 5)
			virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
				var admitted [3]atomic.Int64
				ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Batch))
				time.AfterFunc(time.Minute, cancel)
				p := throttle.Policy{Name: "q", Guard: 50 * ms, Aging: test.aging, Tiers: []throttle.Tier{{Limit: test.limit, Window: sec, Algorithm: throttle.GCRA}}}
				var all sync.WaitGroup
				for i := range admitted {
					l := limiter(t, p, distributed.New(process(test.way, test.way+test.way/4), distributed.Options{}))
					for range test.callers {
						all.Go(func() {
							for l.Wait(ctx) == nil {
								admitted[i].Add(1)
							}
						})
					}
				}
				all.Wait()
				got := []int64{admitted[0].Load(), admitted[1].Load(), admitted[2].Load()}
				least, most, sum := slices.Min(got), slices.Max(got), got[0]+got[1]+got[2]
				full := float64(time.Minute) / float64(sec/time.Duration(test.limit)+50*ms) // one at a time is in flight
				if float64(least) < 0.8*float64(most) || float64(sum) < 0.8*full {
					t.Errorf("got %v admitted, want equal shares of %.0f", got, full)
				}
			})
		})
	}
}
