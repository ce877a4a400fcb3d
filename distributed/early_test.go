package distributed_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Callers inside two quotas of two stores, which are asked one after the other, are admitted no sooner
// than at their times, also if their innermost quota reserves none.
func TestTimesAroundAnotherQuota(t *testing.T) {
	var arrived arrivals
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		ctx, stop := context.WithTimeout(t.Context(), 20*sec)
		defer stop()
		store := func() throttle.Store {
			return distributed.New(distant(t, s, func() time.Duration { return 20 * ms }), distributed.Options{})
		}
		open := func(name string, limit int64, s throttle.Store) *throttle.Limiter {
			return limiter(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{{Limit: limit, Window: sec, Algorithm: throttle.GCRA, Burst: 1}}, Guard: throttle.NoGuard}, s)
		}
		l := open("inner", 1_000, nil).Within(open("middle", 5, store()).Within(open("outer", 5, store())))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					arrived.send(1)
				}
			})
		}
		wg.Wait()
	})
	if n := len(arrived.at); n < 90 {
		t.Errorf("%d admitted in 20 s, want 90", n)
	}
	for i, at := range arrived.at[1:] {
		if gap := at.Sub(arrived.at[i]); gap < 199*ms {
			t.Errorf("%v after the request before it, want 200 ms", gap)
		}
	}
}
