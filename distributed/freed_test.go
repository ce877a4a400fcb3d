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
	"github.com/apithrottle/throttle/internal/calls"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestForgedMessagesDelayNoPlace checks that messages which any client may publish, in each second one
// or many for each process, leave a Concurrency tier as fast as it is without them.
func TestForgedMessagesDelayNoPlace(t *testing.T) {
	t.Parallel()
	soak.Long(t, "plays sixty processes four times")
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

// TestForgedMessagesCostFewCalls checks that messages which any client may publish make a process ask
// about once a second more for each of its two channels, also while its callers are admitted.
func TestForgedMessagesCostFewCalls(t *testing.T) {
	t.Parallel()
	soak.Long(t, "plays twenty processes three times")
	const processes, length = 20, 20 * sec
	calls := func(t *testing.T, message string) (perSecond float64) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			asked := new(calls.Counter)
			ctx, cancel := context.WithCancel(t.Context())
			var callers sync.WaitGroup
			for range processes {
				rdb := near(t, s)
				rdb.AddHook(asked)
				l := limiter(t, throttle.Policy{Name: "fleet", Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}}, distributed.New(rdb, distributed.Options{}))
				for range 2 {
					callers.Go(func() {
						for {
							permit, err := l.Acquire(ctx, nil)
							if err != nil {
								return
							}
							time.Sleep(50 * ms)
							permit.Release()
						}
					})
				}
			}
			time.Sleep(5 * sec)
			before := asked.Count()
			for began := time.Now(); time.Since(began) < length; time.Sleep(20 * ms) {
				for _, channel := range s.PubSubChannels("*") {
					if message != "" {
						s.Publish(channel, message)
					}
				}
			}
			perSecond = float64(asked.Count()-before) / processes / length.Seconds()
			cancel()
			callers.Wait()
		})
		return perSecond
	}
	calm := calls(t, "")
	for _, message := range []string{"freed", "freed 1"} {
		if n := calls(t, message); n > calm+3 {
			t.Errorf("got %.1f calls a second and process with the message %q, want %.1f and 3 at most", n, message, calm)
		}
	}
}
