package distributed_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/store"
)

// Four processes spend a budget to within the cost of one request and never exceed it. Each alert
// is raised once, in one of the processes.
func TestBudgetOfAFleet(t *testing.T) {
	const limit, cost = 100_000_000, 370_000
	s := redistest.Start(t)
	var mu sync.Mutex
	alerts := make(map[int]int)
	p := policy(throttle.Budget(limit, "usd", throttle.Month))
	p.Name, p.Guard, p.AlertAt = "fleet", slow, []int{1, 50, 80, 99}
	p.Alert = func(a throttle.Alert) {
		mu.Lock()
		defer mu.Unlock()
		alerts[a.Percent]++
		if a.Used < int64(a.Percent)*limit/100 || a.Used > limit || a.Limit != limit || a.Policy != "fleet" || !a.Until.After(time.Now()) {
			t.Errorf("got alert %+v, want one of policy fleet with a used amount between its percentage and the limit", a)
		}
	}
	var spent atomic.Int64
	var callers sync.WaitGroup
	for range 4 {
		l := limiter(t, p, distributed.New(s.PatientClient(), distributed.Options{Timeout: slow}))
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
		t.Errorf("spent %d at %d a request, want more than %d and at most %d", n, cost, limit-cost, limit)
	}
	for _, percent := range p.AlertAt {
		if alerts[percent] != 1 {
			t.Errorf("alert at %d %%: raised %d times, want 1", percent, alerts[percent])
		}
	}
}

// steppedFleet runs test in virtual time with two limiters of policy p. The server's clock starts
// ahead by apart, and test sets it.
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

// A request that exceeds the budget is refused at once, also while callers wait in this process or
// another. A request within the budget waits its turn.
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
			t.Errorf("got %d admitted and %d refused, want 3 and 997", n, refused.Load())
		}
		if all[0].Allow() || all[1].Allow() {
			t.Error("got Allow = true with the budget used up, want false")
		}
	})
}

// The server's clock decides when the next period begins. Each period raises its alerts anew.
func TestBudgetOfTheNextMonth(t *testing.T) {
	alerts := 0
	p := policy(throttle.Budget(4, "", throttle.Month))
	p.AlertAt, p.Alert = []int{50}, func(throttle.Alert) { alerts++ }
	steppedFleet(t, p, 0, func(first, second *throttle.Limiter, now time.Time, set func(time.Time)) {
		now = now.UTC()
		next := time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		for month, at := range []time.Time{now, next} {
			time.Sleep(time.Until(at))
			set(at)
			if !first.AllowN(2) || !second.AllowN(2) || first.Allow() || second.Allow() {
				t.Errorf("month %d: want exactly 4 requests allowed", month)
			}
			if alerts != month+1 {
				t.Errorf("month %d: got %d alerts, want %d", month, alerts, month+1)
			}
		}
	})
}

// A Day budget fails if the clocks of the server and the program are more than a day apart, because
// the current day is unknown then.
func TestInputClocks(t *testing.T) {
	day := policy(throttle.Budget(5, "", throttle.Day))
	for _, apart := range []time.Duration{-3 * 24 * hour, 3 * 24 * hour} {
		steppedFleet(t, day, apart, func(l, _ *throttle.Limiter, _ time.Time, _ func(time.Time)) {
			checkFails(t, apart.String(), l, "THROTTLE clocks of the client and the server are more than a period apart", "set the clocks")
		})
	}
	for _, apart := range []time.Duration{-23 * hour, 23 * hour} {
		steppedFleet(t, day, apart, func(l, _ *throttle.Limiter, _ time.Time, _ func(time.Time)) {
			if !l.AllowN(5) || l.Allow() {
				t.Errorf("%v apart: want exactly 5 requests allowed", apart)
			}
		})
	}
}

// If a reservation that crossed an alert percentage is canceled, a later decision reports the
// crossing, even if the decision is that the budget is used up.
func TestCrossingOfCanceledReservation(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		q := quota(t, distributed.New(near(t, s), distributed.Options{}), "crossed", plan(t, 10*sec, throttle.Budget(100, "usd", throttle.Month)))
		defer q.Close()
		first := admit(t, q, store.Request{Cost: []int64{90}})
		if len(first.Crossed) != 1 || first.Crossed[0].To != 90 {
			t.Fatalf("got crossings %+v, want one to 90 %%", first.Crossed)
		}
		other := quota(t, distributed.New(near(t, s), distributed.Options{}), "crossed", plan(t, 10*sec, throttle.Budget(100, "usd", throttle.Month)))
		defer other.Close()
		admit(t, other, store.Request{Cost: []int64{9}})
		q.(store.Reserver).Cancel([]store.Decision{first})
		time.Sleep(sec)
		admit(t, other, store.Request{Cost: []int64{90}})
		used, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{50}})
		if err != nil || used.Verdict != store.Exhausted || len(used.Crossed) != 1 || used.Crossed[0].To != 90 {
			t.Errorf("got %+v, %v, want Exhausted and one crossing to 90 %%", used, err)
		}
	})
}

// A request does not overtake a cancellation that was sent before it.
func TestRequestAfterCancel(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		var delay atomic.Int64
		delay.Store(int64(ms))
		rdb := distant(t, s, func() time.Duration { return time.Duration(delay.Load()) })
		q := quota(t, distributed.New(rdb, distributed.Options{}), "returned", plan(t, 10*sec, throttle.Budget(1, "usd", throttle.Month)))
		defer q.Close()
		first := admit(t, q, store.Request{Cost: []int64{1}})
		delay.Store(int64(50 * ms))
		q.(store.Reserver).Cancel([]store.Decision{first})
		time.Sleep(10 * ms) // the cancellation is sent
		delay.Store(int64(ms))
		if second, err := q.TryAcquire(t.Context(), store.Request{Cost: []int64{1}}); err != nil || second.Verdict != store.Admitted {
			t.Errorf("got %+v, %v, want Admitted", second, err)
		}
	})
}

// A budget of nearly nine million dollars is exact in the script, to the nanodollar: what two processes spend,
// what is left, and the request with which 80 % are reached.
func TestBudgetOfMillionsIsExact(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		const limit = algorithms.MaxDollars - 1 // 80 % of it are 7,199,999,999,999,999.2 nanodollars
		p, err := throttle.ParsePolicy("fleet", "$8999999.999999999/month;estimated=false | guard=none;alert_at=80")
		if err != nil {
			t.Fatal(err)
		}
		var alerts []throttle.Alert
		p.Alert = func(a throttle.Alert) { alerts = append(alerts, a) }
		first, second := limiter(t, p, distributed.New(near(t, m), distributed.Options{})), limiter(t, p, distributed.New(near(t, m), distributed.Options{}))
		for i, tc := range []struct {
			by     *throttle.Limiter
			cost   int64
			fails  bool
			alerts int // so far
		}{
			{first, 7_199_999_999_999_999, false, 0},
			{second, 1, false, 1},
			{first, 1_800_000_000_000_000, true, 1}, // one more than is left
			{second, 1_799_999_999_999_997, false, 1},
			{first, 3, true, 1},
			{second, 2, false, 1},
			{first, 1, true, 1},
		} {
			permit, err := tc.by.Acquire(t.Context(), throttle.Cost{throttle.Nanodollars: tc.cost})
			permit.Release()
			if tc.fails != errors.Is(err, throttle.ErrExhausted) || !tc.fails && err != nil || len(alerts) != tc.alerts {
				t.Errorf("request %d of %d nanodollars: error %v and %d alerts, want ErrExhausted %v and %d", i, tc.cost, err, len(alerts), tc.fails, tc.alerts)
			}
		}
		if a := alerts[0]; a.Used != 7_200_000_000_000_000 || a.Limit != limit {
			t.Errorf("got alert %+v, want 7,200,000,000,000,000 used", a)
		}
		status, err := first.Status(t.Context())
		if err != nil || status.Tiers[0].Used != limit {
			t.Errorf("the status is %v, %v; want all of the budget used", status, err)
		}
	})
}

// An estimate of dollars is settled exactly in a fleet, also beyond the budget.
func TestSettlementOfMillionsIsExact(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis) {
		p, err := throttle.ParsePolicy("fleet", "$9000000/month")
		if err != nil {
			t.Fatal(err)
		}
		l := limiter(t, p, distributed.New(near(t, m), distributed.Options{}))
		var want int64
		for i := range int64(20) {
			permit, err := l.Acquire(t.Context(), throttle.Cost{throttle.Nanodollars: 1_000 + i})
			if err != nil {
				t.Fatal(err)
			}
			actual := algorithms.MaxLimit - 7*i
			want += actual
			if err := permit.Settle(throttle.Cost{throttle.Nanodollars: actual}); err != nil {
				t.Fatal(err)
			}
			permit.Release()
			synctest.Wait()
		}
		if status, err := l.Status(t.Context()); err != nil || status.Tiers[0].Used != want {
			t.Errorf("the status is %v, %v; want %d nanodollars used", status, err, want)
		}
	})
}
