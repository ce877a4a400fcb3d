package distributed_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// TestForgedMessagesDelayNoPlace checks that messages which any client may publish, in each second one
// or many for each process, leave a Concurrency tier as fast as it is without them.
func TestForgedMessagesDelayNoPlace(t *testing.T) {
	t.Parallel()
	const processes, places, hold, length = 60, 3, 200 * ms, 20 * sec
	admissions := func(t *testing.T, every time.Duration, message string) (n int64) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			var admitted, open, most atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for range processes {
				l := limiter(t, throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: places, Algorithm: throttle.Concurrency}}}, distributed.New(near(t, s), distributed.Options{}))
				for range 2 {
					callers.Go(func() {
						for {
							permit, err := l.Acquire(ctx, nil)
							if err != nil {
								return
							}
							admitted.Add(1)
							most.Store(max(most.Load(), open.Add(1)))
							time.Sleep(hold)
							open.Add(-1)
							permit.Release()
						}
					})
				}
			}
			time.Sleep(3 * sec)
			admitted.Store(0)
			for began := time.Now(); time.Since(began) < length; time.Sleep(every) {
				for _, channel := range s.PubSubChannels("*") {
					if message != "" {
						s.Publish(channel, message)
					}
				}
			}
			if n = admitted.Load(); most.Load() > places {
				t.Errorf("got %d requests in flight, want %d at most", most.Load(), places)
			}
			cancel()
			callers.Wait()
		})
		return n
	}
	calm := admissions(t, sec, "")
	for _, forged := range []struct {
		every   time.Duration
		message string
	}{{sec, "freed"}, {50 * ms, "freed"}, {50 * ms, "freed 1"}} {
		if n := admissions(t, forged.every, forged.message); n < calm*9/10 {
			t.Errorf("got %d admissions with the message %q every %v, want at least 0.9 of %d", n, forged.message, forged.every, calm)
		}
	}
}
