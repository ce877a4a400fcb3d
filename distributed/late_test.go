package distributed_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// Callers that can wait longer than a stall of Redis are not refused because of it, even if no
// answer arrives in time during the stall.
func TestRedisStalls(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 1))}, server: s, began: time.Now(), rate: 1}
		var delay atomic.Int64
		delay.Store(int64(ms))
		l := limiter(t, throttle.Policy{Name: "stall", Tiers: []throttle.Tier{throttle.PerSecond(5)}},
			distributed.New(w.process(t, func() time.Duration { return ms }, func() time.Duration { return time.Duration(delay.Load()) }), distributed.Options{Timeout: 10 * sec}))
		for range 5 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * sec)
		delay.Store(int64(1300 * ms))
		time.AfterFunc(500*ms, func() { delay.Store(int64(ms)) })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := l.Wait(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

// A place that arrived too late to be used and was returned does not count as held when the process
// continues without Redis.
func TestLatePlaceThenFallback(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 1))}, server: s, began: time.Now(), rate: 1}
		var back atomic.Int64
		back.Store(int64(ms))
		rdb := w.process(t, func() time.Duration { return ms }, func() time.Duration { return time.Duration(back.Load()) })
		p := throttle.Policy{Name: "places", Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}}
		l := limiter(t, p, distributed.New(rdb, distributed.Options{Timeout: 20 * sec, Fallback: distributed.Fallback{Workers: 1}}))
		for range 2 {
			permit, err := l.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer permit.Release()
			back.Store(int64(3 * sec))
			time.AfterFunc(sec, func() { back.Store(int64(ms)) })
		}
		reply := breakable(s)
		reply(loading)
		ctx, cancel := context.WithTimeout(t.Context(), 5*sec)
		defer cancel()
		if permit, err := l.Acquire(ctx, nil); err == nil {
			permit.Release()
			t.Error("got 3 places held, want 2 at most")
		}
		reply("")
	})
}

// A request whose answer came too late, and which was made again, counts once when the process
// continues without Redis.
func TestLateAnswerThenFallback(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		w := &world{dice: &dice{src: rand.New(rand.NewPCG(1, 1))}, server: s, began: time.Now(), rate: 1}
		var back atomic.Int64
		back.Store(int64(ms))
		rdb := w.process(t, func() time.Duration { return ms }, func() time.Duration { return time.Duration(back.Load()) })
		l := limiter(t, throttle.Policy{Name: "late", Tiers: []throttle.Tier{throttle.PerHour(10)}},
			distributed.New(rdb, distributed.Options{Timeout: 20 * sec, Fallback: distributed.Fallback{Workers: 1}}))
		for range 2 {
			if !l.Allow() {
				t.Fatal("got Allow = false within the limit, want true")
			}
			back.Store(int64(3 * sec))
			time.AfterFunc(sec, func() { back.Store(int64(ms)) })
		}
		reply := breakable(s)
		reply(loading)
		alone := 0
		for range 10 {
			if l.Allow() {
				alone++
			}
		}
		if alone != 8 {
			t.Errorf("got %d admitted without Redis after it admitted 2 of 10, want 8", alone)
		}
		reply("")
	})
}
