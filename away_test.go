package throttle_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// logOf is a policy of one SlidingLog tier without a guard.
func logOf(name string, limit int64, unit string, window time.Duration) throttle.Policy {
	return throttle.Policy{Name: name, Guard: throttle.NoGuard, Aging: time.Hour, Tiers: []throttle.Tier{{Limit: limit, Window: window, Unit: unit, Algorithm: throttle.SlidingLog}}}
}

var placePolicy = throttle.Policy{Name: "o", Aging: time.Hour, Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}

// A nestedCallers runs nestedCallers and checks when each was admitted.
type nestedCallers struct {
	*testing.T
	sync.WaitGroup
	start time.Time
}

func newNestedCallers(t *testing.T) *nestedCallers { return &nestedCallers{T: t, start: time.Now()} }

func (c *nestedCallers) until(s int) { time.Sleep(time.Duration(s)*time.Second - time.Since(c.start)) }

func (c *nestedCallers) send(l *throttle.Limiter, name string, class throttle.Class, cost throttle.Cost, want time.Duration) {
	c.within(l, name, class, cost, 24*time.Hour, want)
}

func (c *nestedCallers) within(l *throttle.Limiter, name string, class throttle.Class, cost throttle.Cost, limit, want time.Duration) {
	c.Go(func() {
		ctx, cancel := context.WithTimeout(throttle.WithClass(c.Context(), class), limit)
		defer cancel()
		p, err := l.Acquire(ctx, cost)
		if at := time.Since(c.start); err != nil || at != want {
			c.Errorf("%s: %v at %v, want admission at %v", name, err, at, want)
		}
		p.Release()
	})
	synctest.Wait()
}

func (c *nestedCallers) waitN(l *throttle.Limiter, name string, class throttle.Class, n int64, want time.Duration) {
	c.Go(func() {
		err := l.WaitN(throttle.WithClass(c.Context(), class), n)
		if at := time.Since(c.start); err != nil || at != want {
			c.Errorf("%s: %v at %v, want admission at %v", name, err, at, want)
		}
	})
	synctest.Wait()
}

// TestAwayAsksInItsTurn checks that a caller which another one overtakes while it waits for the outer quota asks
// again when that one is gone.
func TestAwayAsksInItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNestedCallers(t)
		q, o := mustNew(t, logOf("q", 10, "", 10*sec), nil), mustNew(t, logOf("o", 5, "", 100*sec), nil)
		h := q.Within(o)
		_ = o.WaitN(t.Context(), 1)
		c.until(95)
		_ = o.WaitN(t.Context(), 4)
		_ = q.WaitN(t.Context(), 1)
		c.waitN(h, "w", throttle.Normal, 1, 115*sec) // q is full with Z from 105 to 115; without X it is admitted then
		c.until(96)
		c.waitN(h, "X", throttle.Normal, 5, 215*sec)
		c.until(97)
		c.waitN(q, "Z", throttle.Interactive, 10, 105*sec)
		c.Wait()
	})
}

// TestAwayBehind checks that a caller does not wait for room of a caller of a lower class that waits for the
// outer quota.
func TestAwayBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNestedCallers(t)
		q, o := mustNew(t, logOf("q", 5, "", sec), nil), mustNew(t, logOf("o", 10, "", 1000*sec), nil)
		h := q.Within(o)
		_ = o.WaitN(t.Context(), 8) // room for 2 until t=1000
		c.waitN(h, "normal", throttle.Normal, 4, 1000*sec)
		c.until(10)
		c.waitN(h, "interactive", throttle.Interactive, 2, 10*sec)
		c.Wait()
	})
}

// TestAwayBehindFree checks that a request that is free in the inner quota does not wait for room of a caller
// that waits for the outer one.
func TestAwayBehindFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNestedCallers(t)
		q, o := mustNew(t, logOf("q", 5, "orders", 1000*sec), nil), mustNew(t, logOf("o", 10, "", 100*sec), nil)
		h := q.Within(o)
		_ = o.WaitN(t.Context(), 5)
		c.until(50)
		_ = o.WaitN(t.Context(), 5)
		c.send(h, "w", throttle.Normal, throttle.Cost{"orders": 5, "requests": 10}, 1050*sec)
		c.send(q, "other", throttle.Normal, throttle.Cost{"orders": 1}, 50*sec)
		c.send(h, "free", throttle.Interactive, throttle.Cost{"orders": 0, "requests": 1}, 100*sec)
		c.Wait()
	})
}

// TestAwayComesBackFirst checks that a caller which comes back from the queue of the outer quota goes before the
// smaller one behind it that asks meanwhile.
func TestAwayComesBackFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNestedCallers(t)
		q, o := mustNew(t, logOf("q", 10, "orders", 1000*sec), nil), mustNew(t, placePolicy, nil)
		h := q.Within(o)
		p0 := acquire(t, o, nil)
		c.send(h, "w", throttle.Normal, throttle.Cost{"orders": 5}, 3010*sec)
		c.until(1)
		c.send(h, "w2", throttle.Normal, throttle.Cost{"orders": 1}, 3010*sec)
		c.until(2)
		c.send(q, "other", throttle.Normal, throttle.Cost{"orders": 6}, 2*sec)
		c.until(3)
		p0.Release()
		synctest.Wait()
		c.until(4)
		p1 := acquire(t, o, nil)
		c.until(2010)
		c.send(q, "interactive", throttle.Interactive, throttle.Cost{"orders": 6}, 2010*sec)
		c.until(2020)
		p1.Release()
		c.Wait()
	})
}

// TestAwayIsForecastOnce checks that a forecast does not count a caller twice that the outer quota has charged.
func TestAwayIsForecastOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNestedCallers(t)
		var h *throttle.Limiter
		p := logOf("o", 1, "", 10*sec)
		p.Tiers, p.AlertAt = append(p.Tiers, throttle.Budget(100, "", throttle.Month)), []int{2}
		p.Alert = func(throttle.Alert) { _, _ = h.Forecast(t.Context(), nil) }
		h = mustNew(t, logOf("q", 1, "", sec), nil).Within(mustNew(t, p, nil))
		c.waitN(h, "first", throttle.Normal, 1, 0)
		c.until(2)
		c.waitN(h, "w", throttle.Normal, 1, 10*sec)
		c.waitN(h, "x", throttle.Normal, 1, 20*sec)
		time.Sleep(8100 * time.Millisecond)
		c.within(h, "n", throttle.Normal, nil, 25*sec, 30*sec)
		c.Wait()
	})
}

// TestMaxWaitOfOuterQuota checks that the MaxWait of an outer quota is for all the time that a caller waits for
// that quota, however often it asks again.
func TestMaxWaitOfOuterQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := placePolicy
		p.MaxWait = 20 * sec
		q, o := mustNew(t, throttle.Policy{Name: "q", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil), mustNew(t, p, nil)
		h, start, place := q.Within(o), time.Now(), acquire(t, o, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			p, err := h.Acquire(t.Context(), nil)
			if at := time.Since(start); err == nil || at > 21*sec {
				t.Errorf("%v after %v, want a refusal after 20s", err, at)
			}
			p.Release()
		})
		for range 10 {
			time.Sleep(15 * sec)
			_ = q.Pause(t.Context(), sec)
		}
		place.Release()
		wg.Wait()
	})
}

// TestMaxQueueOfAway checks that a full queue refuses the last caller, even if that waits for the outer quota.
func TestMaxQueueOfAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := logOf("q", 100, "", sec)
		p.MaxQueue = 1
		h := mustNew(t, p, nil).Within(mustNew(t, logOf("o", 1, "", 60*sec), nil))
		_ = h.Wait(t.Context())
		var wg sync.WaitGroup
		for i, class := range []throttle.Class{throttle.Batch, throttle.Interactive} {
			wg.Go(func() {
				err := h.Wait(throttle.WithClass(t.Context(), class))
				if (err == nil) != (i == 1) {
					t.Errorf("%v: %v", class, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}

type admittingStore struct {
	local.Store
	admitted atomic.Pointer[func()] // called once, after an admission
}

type admittingQuota struct {
	store.Quota
	store.Lifecycle
	s *admittingStore
}

func (s *admittingStore) Open(key string, p *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, p, report)
	if err != nil {
		return nil, err
	}
	return admittingQuota{q, q.(store.Lifecycle), s}, nil
}

func (q admittingQuota) Order() *order.Order { return q.Quota.(order.Ordered).Order() }

func (q admittingQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	d, err := q.Quota.TryAcquire(ctx, r)
	if d.Verdict == store.Admitted && !r.IsDryRun() {
		if f := q.s.admitted.Swap(nil); f != nil {
			(*f)()
		}
	}
	return d, err
}

// TestSetPolicyCountsHeadOnce checks that SetPolicy refuses nobody because it counts a caller twice that has just been
// charged.
func TestSetPolicyCountsHeadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, st, p := newNestedCallers(t), new(admittingStore), logOf("x", 1, "", 10*sec)
		l := mustNew(t, p, st)
		c.waitN(l, "first", throttle.Normal, 1, 0)
		c.waitN(l, "w1", throttle.Normal, 1, 10*sec)
		c.within(l, "w2", throttle.Normal, nil, 25*sec, 20*sec)
		synctest.Wait()
		change := func() { _ = l.SetPolicy(t.Context(), p) }
		st.admitted.Store(&change)
		c.Wait()
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestNestedEstimateIsOne checks that all quotas charge the same estimate.
func TestNestedEstimateIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := throttle.Tier{Limit: 10, Window: 10 * sec, Unit: "tokens", Estimated: true}
		o := mustNew(t, throttle.Policy{Name: "o", Tiers: []throttle.Tier{tier}}, nil)
		h := mustNew(t, throttle.Policy{Name: "q", Tiers: []throttle.Tier{tier}}, nil).Within(o)
		first, calls := acquire(t, o, throttle.Cost{"tokens": 10}), int64(0)
		tr := &throttle.Transport{Limiter: h,
			Cost:   func(*http.Request) throttle.Cost { calls++; return throttle.Cost{"tokens": 10 - calls} },
			Settle: func(*http.Request) func(throttle.Cost) throttle.Cost { return nil },
			Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				if got := used(t, h); calls != 1 || got[0] != got[1] {
					t.Errorf("Cost was called %d times, want once; used %v", calls, got)
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
			})}
		var wg sync.WaitGroup
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://x/", nil)
			_, _ = tr.RoundTrip(req)
		})
		synctest.Wait()
		_ = first.Settle(nil)
		first.Release()
		wg.Wait()
	})
}
