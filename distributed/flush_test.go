package distributed_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/store"
)

// flushAndReopen simulates a process that uses a store, flushes it and closes the client. It calls
// then with the store of a later process.
func flushAndReopen(t *testing.T, o distributed.Options, use func(t *testing.T, s *distributed.Store, m *miniredis.Miniredis), then func(t *testing.T, s *distributed.Store)) {
	t.Helper()
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		rdb := distant(t, m, func() time.Duration { return 20 * ms })
		s := distributed.New(rdb, o)
		use(t, s, m)
		if err := s.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Close(); err != nil {
			t.Fatal(err)
		}
		then(t, distributed.New(near(t, m), distributed.Options{}))
	})
}

// Flush reports that a turn could not be given back.
func TestFlushReportsKeptTurns(t *testing.T) {
	t.Parallel()
	for name, outer := range map[string][]throttle.Tier{"batch": nil, "in an account": {throttle.PerSecond(1000)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
				o := newOutage(m, "refused")
				s := distributed.New(o.client(t), distributed.Options{})
				l := limiter(t, throttle.Policy{Name: "{q}", Tiers: []throttle.Tier{per(sec, 1, throttle.GCRA)}, Aging: hour}, s)
				class := throttle.Batch
				if outer != nil {
					l, class = l.Within(limiter(t, throttle.Policy{Name: "{q}outer", Tiers: outer}, s)), throttle.Normal
				}
				ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), class))
				var callers sync.WaitGroup
				for range 3 {
					callers.Go(func() {
						for l.Wait(ctx) == nil {
						}
					})
				}
				time.Sleep(2500 * ms)
				over := make(chan struct{})
				o.over.Store(&over)
				cancel()
				callers.Wait()
				if err := s.Flush(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
					t.Errorf("got %v while Redis was away, want ErrUnavailable", err)
				}
			})
		})
	}
}

// After Flush a program may close the client. Times that were reserved for canceled callers are
// free for the next process.
func TestFlushReturnsReservations(t *testing.T) {
	t.Parallel()
	p := throttle.Policy{Name: "flushed", Guard: throttle.NoGuard, Tiers: []throttle.Tier{{Limit: 1, Window: hour, Burst: 2, Algorithm: throttle.GCRA}}}
	for name, cancelAfter := range map[string]time.Duration{
		"after the reply":  sec,
		"before the reply": 30 * ms,
	} {
		t.Run(name, func(t *testing.T) {
			var canceledAt time.Time
			flushAndReopen(t, distributed.Options{Horizon: hour}, func(t *testing.T, s *distributed.Store, _ *miniredis.Miniredis) {
				l := limiter(t, p, s)
				if err := l.WaitN(t.Context(), 2); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
					})
				}
				time.Sleep(cancelAfter)
				cancel()
				wg.Wait()
				canceledAt = time.Now()
			}, func(t *testing.T, s *distributed.Store) {
				l := limiter(t, p, s)
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(canceledAt); took > hour {
					t.Errorf("the next request was admitted after %v, want within an hour", took)
				}
			})
		})
	}
}

// Flush settles estimates and releases permits, without waiting for the end of a lease.
func TestFlushSettles(t *testing.T) {
	t.Parallel()
	tokens := throttle.Tier{Limit: 100, Window: hour, Unit: "tokens", Estimated: true}
	pl := func(t *testing.T) (store.Request, func(*distributed.Store) store.Quota) {
		p := plan(t, sec, tokens, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency})
		r := store.Request{Cost: make([]int64, 2), Held: true}
		for u, unit := range p.Units() {
			r.Cost[u] = map[string]int64{"tokens": 100}[unit]
		}
		for u, n := range r.Cost {
			r.Cost[u] = max(n, 1)
		}
		return r, func(s *distributed.Store) store.Quota { return quota(t, s, "settled", p) }
	}
	check := func(t *testing.T, s *distributed.Store, used int64) {
		t.Helper()
		_, open := pl(t)
		status, err := open(s).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]int64{status.Tiers[0].Used, status.Tiers[1].Used}; got != [2]int64{used, 0} {
			t.Errorf("got %v used, want %d tokens and no permit", got, used)
		}
	}
	halve := func(cost []int64) (actual []int64) {
		for _, n := range cost {
			actual = append(actual, n/2)
		}
		return actual
	}
	t.Run("settled", func(t *testing.T) {
		flushAndReopen(t, distributed.Options{}, func(t *testing.T, s *distributed.Store, _ *miniredis.Miniredis) {
			r, open := pl(t)
			q := open(s)
			b := admit(t, q, r)
			q.Settle(b, r.Cost, halve(r.Cost), nil)
			q.Release(b, r.Cost)
		}, func(t *testing.T, s *distributed.Store) { check(t, s, 50) })
	})
	t.Run("failed", func(t *testing.T) {
		flushAndReopen(t, distributed.Options{}, func(t *testing.T, s *distributed.Store, _ *miniredis.Miniredis) {
			r, open := pl(t)
			q := open(s)
			b := admit(t, q, r)
			q.Unanswered(b, r.Cost)
			q.Release(b, r.Cost)
		}, func(t *testing.T, s *distributed.Store) { check(t, s, 100) })
	})
	t.Run("refused by Redis before", func(t *testing.T) {
		flushAndReopen(t, distributed.Options{}, func(t *testing.T, s *distributed.Store, m *miniredis.Miniredis) {
			r, open := pl(t)
			q := open(s)
			b := admit(t, q, r)
			reply := breakable(m)
			reply(loading)
			q.Settle(b, r.Cost, halve(r.Cost), nil)
			q.Release(b, r.Cost)
			if err := s.Flush(t.Context()); !errors.Is(err, throttle.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
			reply("")
			time.Sleep(sec) // until the circuit closes, but not until the lease is renewed
		}, func(t *testing.T, s *distributed.Store) { check(t, s, 50) })
	})
	t.Run("sent without Redis", func(t *testing.T) {
		p := plan(t, sec, per(hour, 100, throttle.SlidingLog))
		flushAndReopen(t, distributed.Options{Fallback: distributed.Fallback{Workers: 2}}, func(t *testing.T, s *distributed.Store, m *miniredis.Miniredis) {
			reply := breakable(m)
			reply(loading)
			admit(t, quota(t, s, "alone", p), store.Request{Cost: []int64{7}})
			reply("")
			time.Sleep(sec)
		}, func(t *testing.T, s *distributed.Store) {
			if status, err := quota(t, s, "alone", p).Status(t.Context()); err != nil || status.Tiers[0].Used != 7 {
				t.Errorf("got %+v, %v, want 7 used", status, err)
			}
		})
	})
}

// Flush blocks until its context ends at most, and for no more than a few timeouts of Redis.
func TestFlushEnds(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		var hangs atomic.Bool
		s := distributed.New(distant(t, m, func() time.Duration {
			if hangs.Load() {
				return 5 * sec
			}
			return ms
		}), distributed.Options{})
		q := quota(t, s, "hangs", plan(t, 0, throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}))
		b := admit(t, q, store.Request{Cost: []int64{1}, Held: true})
		hangs.Store(true)
		q.Release(b, []int64{1})
		for _, tc := range []struct {
			timeout time.Duration
			took    time.Duration
			want    error
		}{
			{100 * ms, 100 * ms, context.DeadlineExceeded},
			{time.Minute, 900 * ms, throttle.ErrUnavailable}, // the rest of the second that the call may take
		} {
			ctx, cancel := context.WithTimeout(t.Context(), tc.timeout)
			began := time.Now()
			if err := s.Flush(ctx); !errors.Is(err, tc.want) || time.Since(began) != tc.took {
				t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), tc.want, tc.took)
			}
			cancel()
		}
		hangs.Store(false)
		time.Sleep(time.Minute)
	})
	if err := distributed.New(nil, distributed.Options{}).Flush(t.Context()); err == nil {
		t.Error("got no error from a store without a client, want one")
	}
}

// Flush returns while callers continue to send, and does not slow them down.
func TestFlushWhileInUse(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		s := distributed.New(near(t, m), distributed.Options{})
		l := limiter(t, throttle.Policy{Name: "busy", Guard: throttle.NoGuard, Tiers: []throttle.Tier{per(100*ms, 10, throttle.GCRA)}}, s)
		ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
		defer cancel()
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					admitted.Add(1)
				}
			})
		}
		for ctx.Err() == nil {
			began := time.Now()
			if err := s.Flush(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > sec {
				t.Errorf("Flush took %v, want 1s at most", took)
			}
			time.Sleep(50 * ms)
			synctest.Wait()
		}
		wg.Wait()
		if n := admitted.Load(); n < 990 {
			t.Errorf("got %d admitted in 10 s of 100/s, want 990 at least", n)
		}
	})
}

func ExampleStore_Flush() {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	quotas := distributed.New(rdb, distributed.Options{})
	lim, err := throttle.New(throttle.Policy{Name: "mail", Tiers: []throttle.Tier{throttle.PerHour(100)}}, quotas)
	if err != nil {
		panic(err)
	}
	if err := lim.Wait(context.Background()); err != nil {
		panic(err)
	}

	// Flush when no caller waits any more and all responses are read.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := quotas.Flush(ctx); err != nil {
		fmt.Println("not flushed, the leases end by themselves:", err)
	}
	fmt.Println(rdb.Close())
	// Output: <nil>
}
