package distributed_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// A place that becomes free goes to the process that has waited longest. If no caller of this
// process waits any more, the next process gets the place at once. If the process has died, the
// next gets it after a second.
func TestFleetLeaseQueue(t *testing.T) {
	for name, most := range map[string]time.Duration{"in order": 20 * ms, "canceled": 20 * ms, "dead": 6 * sec} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				clients := []*redis.Client{near(t, s), near(t, s), near(t, s)}
				var limiters []*throttle.Limiter
				for _, rdb := range clients {
					tier := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
					limiters = append(limiters, limiter(t, named(tier), distributed.New(rdb, distributed.Options{})))
				}
				held, err := limiters[0].Acquire(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan int, 2)
				ctx, cancel := context.WithCancel(t.Context())
				for i, ctx := range []context.Context{ctx, t.Context()} {
					go func() {
						if permit, err := limiters[1+i].Acquire(ctx, nil); err == nil {
							got <- 1 + i
							time.Sleep(sec)
							permit.Release()
						}
					}()
					time.Sleep(100 * ms)
				}
				switch name {
				case "canceled":
					cancel()
				case "dead":
					clients[1].Close()
				}
				time.Sleep(100 * ms)
				released := time.Now()
				held.Release()
				want := []int{1, 2}
				if name != "in order" {
					want = want[1:]
				}
				for _, who := range want {
					if next := <-got; next != who || time.Since(released) > most {
						t.Errorf("got process %d admitted after %v, want %d within %v", next, time.Since(released), who, most)
					}
					released = released.Add(sec)
				}
				cancel()
				time.Sleep(2 * sec)
			})
		})
	}
}

// A place of a process that died becomes free also if Redis has lost the order of leases, and no caller
// is in the queue.
func TestLeaseEndsWithoutOrder(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		first, tier := near(t, s), throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
		dies := limiter(t, named(tier), distributed.New(first, distributed.Options{}))
		lives := limiter(t, named(tier), distributed.New(near(t, s), distributed.Options{}))
		if _, err := dies.Acquire(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for _, key := range s.Keys() {
			if s.Type(key) == "zset" {
				s.Del(key)
			}
		}
		tryUntil := func(end time.Time) (admitted bool) {
			for !admitted && time.Now().Before(end) {
				permit, err := lives.TryAcquire(t.Context(), nil)
				if admitted = err == nil; admitted {
					permit.Release()
				}
				time.Sleep(sec)
			}
			return admitted
		}
		if tryUntil(time.Now().Add(30 * sec)) {
			t.Error("got the place while it is held, want it later")
		}
		first.Close()
		if !tryUntil(time.Now().Add(15 * sec)) {
			t.Error("got no place 15s after its process died, want it after a lease of 10s")
		}
	})
}

// A permit that was released while Redis was away is free for others soon after its return, however long the lease is.
func TestReleasedWhileAway(t *testing.T) {
	for _, lease := range []time.Duration{10 * sec, time.Hour} {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			open := func() *throttle.Limiter {
				tier := throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}
				return limiter(t, named(tier), distributed.New(near(t, s), distributed.Options{Lease: lease}))
			}
			reply := breakable(s)
			held, err := open().Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			other := open()
			reply(loading)
			held.Release()
			time.Sleep(time.Minute)
			reply("")
			began := time.Now()
			permit, err := other.Acquire(t.Context(), nil)
			if took := time.Since(began); err != nil || took > 10*sec {
				t.Errorf("a lease of %v: %v after %v, want the permit within 10 s", lease, err, took)
			}
			permit.Release()
			time.Sleep(sec)
		})
	}
}
