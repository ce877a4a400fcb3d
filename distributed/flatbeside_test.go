package distributed_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestFlatBesideNested checks that processes that use a quota alone, and those that use it around another,
// are admitted alike, although the latter do not stand in line.
func TestFlatBesideNested(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	t.Parallel()
	for _, processes := range [][2]int{{4, 1}, {2, 5}, {5, 5}, {7, 1}}[:min(4, soak.Times(5))] {
		virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
			nested, flat := processes[0], processes[1]
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			var admitted [2]atomic.Int64 // nested, flat
			for i := range nested + flat {
				s := distributed.New(process(ms/2, ms), distributed.Options{})
				kind, l := 1, limiter(t, throttle.Policy{Name: "{q}", Tiers: []throttle.Tier{per(sec, 50, throttle.GCRA)}}, s)
				if i < nested {
					kind, l = 0, limiter(t, throttle.Policy{Name: "{q}inner", Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, s).Within(l)
				}
				for range 70 {
					callers.Go(func() {
						for l.Wait(ctx) == nil {
							admitted[kind].Add(1)
						}
					})
				}
			}
			time.Sleep(60 * sec)
			cancel()
			callers.Wait()
			share := int64(60 * 50 / (nested + flat))
			got := [2]int64{admitted[0].Load() / int64(nested), admitted[1].Load() / int64(flat)}
			if min(got[0], got[1]) < share*9/10 {
				t.Errorf("%d nested and %d flat processes were admitted %d requests each, want %d at least", nested, flat, got, share*9/10)
			}
		})
	}
}
