package distributed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

// A fleet of four spends a budget but for less than one request, and not more; each
// alert is told to one of it, once.
func TestBudgetOfAFleet(t *testing.T) {
	const limit, cost = 100_000_000, 370_000
	s := redistest.Start(t)
	var mu sync.Mutex
	told := make(map[int]int)
	p := policy(throttle.Budget(limit, "usd", throttle.Month))
	p.Name, p.Guard, p.AlertAt = "fleet", slow, []int{1, 50, 80, 99}
	p.Alert = func(a throttle.Alert) {
		mu.Lock()
		defer mu.Unlock()
		told[a.Percent]++
		if a.Used < int64(a.Percent)*limit/100 || a.Used > limit || a.Limit != limit || a.Policy != "fleet" || !a.Until.After(time.Now()) {
			t.Errorf("told %+v", a)
		}
	}
	var spent atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		l := limiter(t, p, distributed.New(s.Client(), distributed.Options{Timeout: slow}))
		for range 250 {
			callers.Go(func() {
				switch _, err := l.Acquire(context.Background(), throttle.Cost{"usd": cost}); {
				case err == nil:
					spent.Add(cost)
				case !errors.Is(err, throttle.ErrExhausted):
					t.Error(err)
				}
			})
		}
	}
	callers.Wait()
	if n := spent.Load(); n > limit || n <= limit-cost {
		t.Errorf("spent %d of %d, at %d each", n, limit, cost)
	}
	for _, percent := range p.AlertAt {
		if told[percent] != 1 {
			t.Errorf("%d %% was told %d times", percent, told[percent])
		}
	}
}

// steppedFleet runs a test in virtual time with two limiters of a policy, on a server whose
// time the test sets.
func steppedFleet(t *testing.T, p throttle.Policy, apart time.Duration, test func(first, second *throttle.Limiter, now time.Time, set func(time.Time))) {
	t.Helper()
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		now := time.Now()
		m.SetTime(now.Add(apart))
		p.Name = "vendor api"
		open := func() *throttle.Limiter {
			return limiter(t, p, distributed.New(near(t, m), distributed.Options{}))
		}
		test(open(), open(), now, m.SetTime)
	})
}

// Who is behind those who wait, or beside them in the fleet, is refused at once too; what
// has room beside the budget waits its turn.
func TestBudgetOfAQueue(t *testing.T) {
	p := policy(per(300*ms, 1, throttle.SlidingLog), throttle.Budget(3, "", throttle.Month))
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		p.Name = "vendor api"
		now := time.Now()
		var all [2]*throttle.Limiter
		for i := range all {
			all[i] = limiter(t, p, distributed.New(near(t, m), distributed.Options{}))
		}
		var admitted, refused atomic.Int64
		var callers sync.WaitGroup
		for i := range 1000 {
			callers.Go(func() {
				var e *throttle.WaitError
				switch err := all[i%2].Wait(context.Background()); {
				case err == nil:
					admitted.Add(1)
				case errors.Is(err, throttle.ErrExhausted) && errors.As(err, &e) && e.Tier == p.Tiers[1].String() && e.Until.After(now):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := admitted.Load(); n != 3 || refused.Load() != 997 {
			t.Errorf("%d admitted and %d refused, of 1000 and a budget of 3", n, refused.Load())
		}
		if all[0].Allow() || all[1].Allow() {
			t.Error("Allow is true of a budget that is used up")
		}
	})
}

// The next period begins by Redis's clock, and alerts with it.
func TestBudgetOfTheNextMonth(t *testing.T) {
	told := 0
	p := policy(throttle.Budget(4, "", throttle.Month))
	p.AlertAt, p.Alert = []int{50}, func(throttle.Alert) { told++ }
	steppedFleet(t, p, 0, func(first, second *throttle.Limiter, now time.Time, set func(time.Time)) {
		now = now.UTC()
		next := time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		for month, at := range []time.Time{now, next} {
			time.Sleep(time.Until(at))
			set(at)
			if !first.AllowN(2) || !second.AllowN(2) || first.Allow() || second.Allow() {
				t.Errorf("month %d: want 4 allowed, and no more", month)
			}
			if told != month+1 {
				t.Errorf("month %d: told %d times", month, told)
			}
		}
	})
}

// Where the clocks of the server and the program are far apart nobody can say which
// day it is.
func TestInputClocks(t *testing.T) {
	day := policy(throttle.Budget(5, "", throttle.Day))
	for _, apart := range []time.Duration{-3 * 24 * hour, 3 * 24 * hour} {
		steppedFleet(t, day, apart, func(l, _ *throttle.Limiter, _ time.Time, _ func(time.Time)) {
			fails(t, apart.String(), l, "THROTTLE clocks of the client and the server are more than a period apart", "set them")
		})
	}
	for _, apart := range []time.Duration{-23 * hour, 23 * hour} {
		steppedFleet(t, day, apart, func(l, _ *throttle.Limiter, _ time.Time, _ func(time.Time)) {
			if !l.AllowN(5) || l.Allow() {
				t.Errorf("%v apart: want 5 allowed, and no more", apart)
			}
		})
	}
}

// What a reservation has crossed is told with a later decision if it is canceled, also where
// that is that the budget is used up.
func TestCrossedAndCanceled(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		q := quota(t, distributed.New(near(t, s), distributed.Options{}), "crossed", plan(t, 10*sec, throttle.Budget(100, "usd", throttle.Month)))
		defer q.Close()
		first := admit(t, q, store.Request{Cost: []int64{90}})
		if len(first.Crossed) != 1 || first.Crossed[0].To != 90 {
			t.Fatalf("told %+v", first.Crossed)
		}
		other := quota(t, distributed.New(near(t, s), distributed.Options{}), "crossed", plan(t, 10*sec, throttle.Budget(100, "usd", throttle.Month)))
		defer other.Close()
		admit(t, other, store.Request{Cost: []int64{9}})
		q.(store.Reserver).Cancel([]store.Decision{first})
		time.Sleep(sec)
		admit(t, other, store.Request{Cost: []int64{90}})
		used, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{50}})
		if err != nil || used.Verdict != store.Exhausted || len(used.Crossed) != 1 || used.Crossed[0].To != 90 {
			t.Errorf("%+v, %v", used, err)
		}
	})
}

// A question is not quicker than what was given back before it.
func TestReturnedThenAsked(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var way atomic.Int64
		way.Store(int64(ms))
		rdb := distant(t, s, func() time.Duration { return time.Duration(way.Load()) })
		q := quota(t, distributed.New(rdb, distributed.Options{}), "returned", plan(t, 10*sec, throttle.Budget(1, "usd", throttle.Month)))
		defer q.Close()
		first := admit(t, q, store.Request{Cost: []int64{1}})
		way.Store(int64(50 * ms))
		q.(store.Reserver).Cancel([]store.Decision{first})
		time.Sleep(10 * ms) // the trip that gives back leaves
		way.Store(int64(ms))
		if second, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}}); err != nil || second.Verdict != store.Admitted {
			t.Errorf("%+v, %v", second, err)
		}
	})
}
