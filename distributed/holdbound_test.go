package distributed_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestHoldLocalBound checks that the provider's count of a quota of this process, which a caller holds
// while it asks a server, refuses none of the requests: whatever the guard, inside and around.
func TestHoldLocalBound(t *testing.T) {
	soak.Long(t, "a fleet plays for minutes, and TestFleetLaws plays one")
	const guard = 50 * ms
	for _, test := range []struct {
		name         string
		guard        time.Duration // of the local quota
		inner, outer int64         // a second, on servers; the local quota has 10. If zero, there is no outer one
		trip         time.Duration
		window       time.Duration
	}{
		{"slowest", guard, 40, 0, 80 * ms, sec},
		{"slowest, AutoGuard", throttle.AutoGuard, 40, 0, 80 * ms, sec},
		{"slowest, NoGuard", throttle.NoGuard, 40, 0, 80 * ms, sec},
		{"as slow as the inner", guard, 10, 0, 80 * ms, sec},
		{"in the middle, slowest", guard, 40, 40, 80 * ms, sec},
		{"in the middle, as slow as the inner", guard, 10, 40, 80 * ms, sec},
		{"in the middle, as slow as both", guard, 10, 10, 80 * ms, sec},
		{"in the middle, AutoGuard", throttle.AutoGuard, 40, 40, 80 * ms, sec},
		{"in the middle, NoGuard, far away", throttle.NoGuard, 20, 20, 500 * ms, 10 * sec},
		{"in the middle, NoGuard, as slow, far away", throttle.NoGuard, 10, 20, 500 * ms, 10 * sec},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				tier := func(n int64) []throttle.Tier { return []throttle.Tier{per(test.window, n, throttle.SlidingLog)} }
				stores := func() throttle.Store {
					return distributed.New(distant(t, s, func() time.Duration { return rand.N(2 * test.trip).Truncate(time.Microsecond) }), distributed.Options{})
				}
				local := limiter(t, throttle.Policy{Name: "local", Tiers: tier(10), Guard: test.guard}, nil)
				for range 200 { // the guard is learned
					if test.guard != throttle.AutoGuard {
						break
					}
					p, err := local.Acquire(t.Context(), nil)
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(ms)
					p.Arrived()
					p.Release()
				}
				m := local
				if test.outer > 0 {
					m = local.Within(limiter(t, throttle.Policy{Name: "outer", Tiers: tier(test.outer), Guard: guard}, stores()))
				}
				l := limiter(t, throttle.Policy{Name: "inner", Tiers: tier(test.inner), Guard: guard}, stores()).Within(m)
				ctx, cancel := context.WithTimeout(t.Context(), 40*test.window)
				defer cancel()
				var provider arrivals
				var wg sync.WaitGroup
				for range 12 {
					wg.Go(func() {
						for {
							takes := max(0, min(test.guard, guard)) * time.Duration(rand.N(2))
							if test.guard == throttle.AutoGuard {
								p, err := l.Acquire(ctx, nil)
								if err != nil {
									return
								}
								provider.send(1) // at this instant
								time.Sleep(ms)
								p.Arrived()
								p.Release()
								continue
							}
							if l.Wait(ctx) != nil {
								return
							}
							time.Sleep(takes)
							provider.send(1) // at this instant
						}
					})
				}
				wg.Wait()
				t.Logf("%d admitted", len(provider.at))
				if n := provider.refused(10, test.window); n > 0 {
					t.Errorf("got %d of %d refused by the provider, want none", n, len(provider.at))
				}
				if len(provider.at) < 100 {
					t.Errorf("got %d admitted, want 100 at least", len(provider.at))
				}
			})
		})
	}
}
