package distributed_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// A provider refuses nothing of a crowd that is larger than its limit if the declared phase is right
// or unknown. A wrong phase is the declared truth: a burst at a declared boundary may then be refused,
// but not at each boundary.
func TestWrongPhase(t *testing.T) {
	t.Parallel()
	const limit, window = 60, 20 * sec
	for _, phase := range []time.Duration{0, 7 * sec, 15 * sec, throttle.UnknownPhase} {
		for _, rest := range []time.Duration{0, 16 * sec} {
			for _, processes := range []int{1, 8} {
				if processes > 1 && rest > 0 {
					continue // costs much processor time
				}
				t.Run(fmt.Sprintf("phase %v, rest %v, %d processes", phase, rest, processes), func(t *testing.T) {
					soak.Sample(t, 8)
					virtual(t, func(t *testing.T, process func(least, most time.Duration) *redis.Client) {
						time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + window/2)))
						p := throttletest.New(per(window, limit, throttle.FixedWindow))
						p.Delay = func() time.Duration { return 5*ms + rand.N(40*ms) }
						declared := throttle.Policy{Name: "phase", Tiers: []throttle.Tier{per(window, limit, throttle.FixedWindow)}}
						declared.Tiers[0].Phase = phase
						end := time.Now().Add(2 * time.Minute)
						var callers sync.WaitGroup
						for range processes {
							var s throttle.Store
							if processes > 1 {
								s = distributed.New(process(ms/2, 2*ms), distributed.Options{})
							}
							client := &http.Client{Transport: &throttle.Transport{Base: p, Limiter: limiter(t, declared, s)}}
							for range 64 / processes {
								callers.Go(func() {
									for time.Now().Before(end) {
										get(t, client)
										time.Sleep(time.Duration(float64(rest) * rand.ExpFloat64()))
									}
								})
							}
						}
						callers.Wait()
						got, most := p.Summary(), int64(0)
						if phase > 0 {
							most = 2 * limit
						}
						t.Logf("%d refused, %d accepted", got.Refused, got.Accepted)
						if got.Refused > most {
							t.Errorf("got %d refused, want %d at most", got.Refused, most)
						}
					})
				})
			}
		}
	}
}
