package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/throttletest"
)

// A request counts in all scopes or in none, and the costs of each find their way.
func TestWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ip := mustNew(t, throttle.Policy{Name: "ip", Tiers: []throttle.Tier{{Limit: 100, Window: time.Minute, Unit: "weight"}, throttle.PerMinute(10)}}, nil)
		account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerMinute(4)}}, nil)
		endpoint := mustNew(t, throttle.Policy{Name: "endpoint", Tiers: []throttle.Tier{{Limit: 2, Window: time.Minute, Unit: "orders"}, {Limit: 50, Window: time.Minute, Unit: "weight"}}}, nil)
		l := endpoint.Within(account.Within(ip))
		send := func(c throttle.Cost) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			p, err := l.Acquire(ctx, c)
			p.Release()
			return err
		}
		if err := send(throttle.Cost{"weight": 20, "orders": 1}); err != nil {
			t.Fatal(err)
		}
		if got := used(t, l); !slices.Equal(got, []int64{1, 20, 1, 20, 1}) {
			t.Errorf("used %v", got)
		}
		for _, tt := range []struct {
			cost throttle.Cost
			want string // nothing but the refusal
		}{
			{throttle.Cost{"orders": 2}, `throttle: policy "endpoint": the wait would outlast the context's deadline: 1m0s for tier 2/m;unit=orders`},
			{throttle.Cost{"weight": 60}, `throttle: policy "endpoint": cost of 60 weight exceeds the capacity of tier 50/m;unit=weight`},
			{throttle.Cost{"requests": 4}, `throttle: policy "account": the wait would outlast the context's deadline: 1m0s for tier 4/m`},
			{throttle.Cost{"requests": 5}, `throttle: policy "account": cost of 5 requests exceeds the capacity of tier 4/m`},
			{throttle.Cost{"cats": 5}, `throttle: policy "endpoint": cost names the unit "cats": the policy counts orders, weight, requests`},
		} {
			if err := send(tt.cost); err == nil || err.Error() != tt.want {
				t.Errorf("%v: %v\nwant %s", tt.cost, err, tt.want)
			}
		}
		if got := used(t, l); !slices.Equal(got, []int64{1, 20, 1, 20, 1}) {
			t.Errorf("used %v after refusals", got)
		}
	})
}

// TestWithinStatus checks that each tier has the name of its own policy.
func TestWithinStatus(t *testing.T) {
	account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(100)}}, nil)
	l := mustNew(t, throttle.Policy{Name: "orders", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Within(account)
	status, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tier := range status.Tiers {
		got = append(got, tier.Policy+" "+tier.Tier.String())
	}
	if want := []string{"orders 5/s", "account 5/s", "account 100/h"}; !slices.Equal(got, want) || status.Policy != "orders" {
		t.Errorf("the tiers of policy %q are %q, want %q", status.Policy, got, want)
	}
}

// Callers of a nested limiter are admitted in their order, and who gives up while it
// stands in the outer line leaves nothing behind.
func TestWithinOrderAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
		l := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(3)}}, nil).Within(outer)
		var mu sync.Mutex
		var order []int
		for i := range 6 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				if err := l.Wait(ctx); err == nil {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
				} else if !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
			}()
			synctest.Wait()
			if i == 1 || i == 3 {
				time.AfterFunc(100*time.Millisecond, cancel)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 2, 4, 5}) {
			t.Errorf("admitted %v", order)
		}
		if got := used(t, l); !slices.Equal(got, []int64{0, 0}) {
			t.Errorf("%v are still used", got)
		}
	})
}

// TestWithinBanned checks that a ban of one scope refuses the callers of the scopes inside it.
func TestWithinBanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
		l := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(3)}}, nil).Within(outer)
		ban := &http.Client{Transport: &throttle.Transport{Limiter: outer, Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return trAnswer(429, "Retry-After", "3600"), nil
		})}}
		if _, err := ban.Get(trURL); err != nil {
			t.Fatal(err)
		}
		var e *throttle.WaitError
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || e.Policy != "outer" || e.Wait != time.Hour {
			t.Errorf("%v", err)
		}
	})
}

// What was learned of a quota outlives the Limiters that route to it.
func TestWithinRemembersBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		g, err := throttle.NewGroup(throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tr := &throttle.Transport{
			Route: func(*http.Request) *throttle.Limiter { return g.Within("key", outer) },
			Base:  roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(429), nil }),
		}
		last := time.Now()
		for i, least := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
			if _, err := trSend(t.Context(), tr); err != nil {
				t.Fatal(err)
			}
			if gap := time.Since(last); gap < least || gap > 2*least {
				t.Errorf("%d: after %v, want %v to %v", i, gap, least, 2*least)
			}
			last = time.Now()
			runtime.GC()
			runtime.GC()
		}
	})
}

// In which order limits are put into one another does not matter.
func TestWithinThreeDeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, nest := range map[string]func(a, b, c *throttle.Limiter) *throttle.Limiter{
			"from the outside": func(a, b, c *throttle.Limiter) *throttle.Limiter { return a.Within(b.Within(c)) },
			"from the inside":  func(a, b, c *throttle.Limiter) *throttle.Limiter { return a.Within(b).Within(c) },
		} {
			a := mustNew(t, throttle.Policy{Name: "a", Tiers: []throttle.Tier{{Limit: 100, Window: time.Minute, Unit: "tokens", Estimated: true}, throttle.PerMinute(10)}}, nil)
			b := mustNew(t, throttle.Policy{Name: "b", Tiers: []throttle.Tier{{Limit: 2, Algorithm: throttle.Concurrency}}}, nil)
			c := mustNew(t, throttle.Policy{Name: "c", Tiers: []throttle.Tier{{Limit: 200, Window: time.Minute, Unit: "tokens", Estimated: true}}}, nil)
			l := nest(a, b, c)
			p, err := l.Acquire(t.Context(), throttle.Cost{"tokens": 150}) // above what a ever admits
			if err != nil {
				t.Fatal(name, err)
			}
			if got := used(t, l); !slices.Equal(got, []int64{100, 1, 1, 150}) {
				t.Errorf("%s: used %v", name, got)
			}
			if err := p.Settle(throttle.Cost{"tokens": 30}); err != nil {
				t.Error(name, err)
			}
			p.Release()
			if got := used(t, l); !slices.Equal(got, []int64{30, 1, 0, 30}) {
				t.Errorf("%s: used %v when it is over", name, got)
			}
			p, err = l.Acquire(t.Context(), throttle.Cost{"tokens": 50})
			if err := errors.Join(err, p.Cancel(t.Context())); err != nil {
				t.Error(name, err)
			}
			if got := used(t, l); !slices.Equal(got, []int64{30, 1, 0, 30}) {
				t.Errorf("%s: used %v after a cancel", name, got)
			}
		}
	})
}

// TestWithinBannedWhileStanding checks that a ban of the inner quota refuses a caller in the outer
// queue at once.
func TestWithinBannedWhileStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerMinute(1)}}, nil)
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(3)}}, nil)
		l := inner.Within(outer)
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() {
				if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) || time.Since(start) != time.Second {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
		}
		time.Sleep(time.Second)
		resp, err := (&throttle.Transport{Limiter: inner, Base: answering("429\nRetry-After: 7200")}).
			RoundTrip(httptest.NewRequest("GET", trURL, nil))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		waiting.Wait()
	})
}

// TestNestedStorm checks three scopes, nested in either way, under random outcomes of requests: no
// caller hangs, the budget has what was spent, and in the end nothing is used.
func TestNestedStorm(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(20) {
		for _, together := range []func(a, b, c *throttle.Limiter) *throttle.Limiter{
			func(a, b, c *throttle.Limiter) *throttle.Limiter { return a.Within(b.Within(c)) },
			func(a, b, c *throttle.Limiter) *throttle.Limiter { return a.Within(b).Within(c) },
		} {
			synctest.Test(t, func(t *testing.T) { nestedStorm(t, rand.New(rand.NewPCG(seed, 1)), together) })
		}
	}
}

func nestedStorm(t *testing.T, rnd *rand.Rand, together func(a, b, c *throttle.Limiter) *throttle.Limiter) {
	tokens := throttle.Tier{Limit: 100, Window: time.Second, Unit: "tokens", Estimated: true}
	budget := throttle.Budget(1_000_000, "tokens", throttle.Day)
	budget.Estimated = true
	pool := throttle.Tier{Limit: 4, Algorithm: throttle.Concurrency}
	around := mustNew(t, throttle.Policy{Name: "ip", Tiers: []throttle.Tier{budget, throttle.PerSecond(30)}, MaxWait: time.Second}, nil)
	middle := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{pool}, MaxQueue: 5}, nil)
	scopes := []*throttle.Limiter{around, middle}
	var nested []*throttle.Limiter
	for range 3 {
		l := mustNew(t, throttle.Policy{Name: "endpoint", Tiers: []throttle.Tier{tokens, throttle.PerSecond(20)}}, nil)
		scopes, nested = append(scopes, l), append(nested, together(l, middle, around))
	}
	var spent atomic.Int64
	var all sync.WaitGroup
	for range 100 {
		r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
		all.Go(func() { spent.Add(stormy(t, r, nested[r.IntN(3)])) })
	}
	for range 5 {
		time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
		_ = scopes[rnd.IntN(len(scopes))].Pause(t.Context(), time.Second)
	}
	all.Wait()
	if got := used(t, around)[0]; got != spent.Load() {
		t.Errorf("the budget has %d of the %d that were spent", got, spent.Load())
	}
	time.Sleep(24 * time.Hour)
	for _, l := range slices.Concat(scopes, nested) {
		if got := used(t, l); slices.Max(got) > 0 {
			t.Errorf("used %v in the end", got)
		}
	}
}

// Who goes ahead in the inner line does so in the outer one.
func TestWithinClasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
		l := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil).Within(outer)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		send := func(l *throttle.Limiter, c throttle.Class) {
			wg.Go(func() {
				for l.Wait(throttle.WithClass(ctx, c)) == nil {
				}
			})
			synctest.Wait()
		}
		send(outer, throttle.Normal) // always two others stand in the outer line
		send(outer, throttle.Normal)
		send(l, throttle.Batch)
		began := time.Now()
		if err := l.Wait(throttle.WithClass(ctx, throttle.Interactive)); err != nil || time.Since(began) > 1100*time.Millisecond {
			t.Errorf("%v after %v, want no more than the next second", err, time.Since(began))
		}
	})
}

// TestReadingOfScopes checks that a reading is of the tier whose limit it reports, in whichever scope
// that is, and otherwise of the only tier of its unit, in the innermost scope that has one.
func TestReadingOfScopes(t *testing.T) {
	for name, newStore := range map[string]func() throttle.Store{
		"in process": func() throttle.Store { return nil }, "in a shared store": func() throttle.Store { return local.New() },
	} {
		t.Run(name, func(t *testing.T) {
			for text, want := range map[string][]int64{
				"X-Limit: 1200\nX-Remaining: 200\nX-Reset: 60": {1, 1000, 1},
				"X-Limit: 600\nX-Remaining: 200\nX-Reset: 60":  {400, 1, 1},
				"X-Limit: 900\nX-Remaining: 200\nX-Reset: 60":  {400, 1, 1},
				"X-Remaining: 200\nX-Reset: 60":                {400, 1, 1},
			} {
				synctest.Test(t, func(t *testing.T) {
					s := newStore()
					endpoint := mustNew(t, throttle.Policy{Name: "endpoint", Tiers: []throttle.Tier{throttle.PerHour(600)}}, s)
					account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{throttle.PerHour(1200), throttle.PerSecond(20)}}, s)
					l := endpoint.Within(account)
					tr := &throttle.Transport{Limiter: l, Profile: github, Base: answering("200\n" + text)}
					if _, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil)); err != nil {
						t.Fatal(err)
					}
					if got := used(t, l); !slices.Equal(got, want) {
						t.Errorf("%q: used %v, want %v", text, got, want)
					}
				})
			}
		})
	}
}

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

// TestMaxWaitEndsInOuterQuota checks that a caller whose MaxWait ends while it waits for a release of an
// outer quota is refused as late. Its context goes on.
func TestMaxWaitEndsInOuterQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, nil)
		inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(100)}, MaxWait: time.Second}, nil)
		permit := acquire(t, outer, nil)
		began := time.Now()
		_, err := inner.Within(outer).Acquire(t.Context(), nil)
		var late *throttle.WaitError
		if !errors.As(err, &late) || !errors.Is(err, throttle.ErrDeadline) || late.Bound != throttle.BoundMaxWait || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want a refusal because of MaxWait after 1s", err, time.Since(began))
		}
		permit.Release()
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

// TestWithinRefusedChargesNothing checks that a refused request is charged in no scope, for every
// method that asks.
func TestWithinRefusedChargesNothing(t *testing.T) {
	const most = 400
	for name, ask := range map[string]func(context.Context, *throttle.Limiter) bool{
		"Allow": func(_ context.Context, l *throttle.Limiter) bool { return l.Allow() },
		"Wait":  func(ctx context.Context, l *throttle.Limiter) bool { return l.Wait(ctx) == nil },
		"WaitN": func(ctx context.Context, l *throttle.Limiter) bool { return l.WaitN(ctx, 2) == nil },
		"Acquire": func(ctx context.Context, l *throttle.Limiter) bool {
			p, err := l.Acquire(ctx, nil)
			p.Release()
			return err == nil
		},
	} {
		for guard, g := range map[string]time.Duration{"none": throttle.NoGuard, "default": 0, "auto": throttle.AutoGuard} {
			t.Run(name+", guard "+guard, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // where no call lasts longer than a guard
					l, _ := within(t,
						throttle.Policy{Guard: g, Tiers: []throttle.Tier{throttle.PerDay(most)}},
						throttle.Policy{Guard: g, Tiers: []throttle.Tier{throttle.PerDay(1_000_000)}})
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					var admitted atomic.Int64
					var wg sync.WaitGroup
					for range 4 {
						wg.Go(func() {
							for range most * 3 / 4 {
								if ask(ctx, l) {
									admitted.Add(1)
								}
							}
						})
					}
					wg.Wait()
					n := admitted.Load()
					if name == "WaitN" {
						n *= 2
					}
					if got := used(t, l); n != most || !slices.Equal(got, []int64{n, n}) {
						t.Errorf("%d admitted and %v charged, want %d each", n, got, most)
					}
				})
			})
		}
	}
}

// TestWithinRefusedAtOnce checks that a request that no wait in an outer scope admits is refused at
// once, even if it would also have to wait in the inner scope.
func TestWithinRefusedAtOnce(t *testing.T) {
	budget := throttle.Budget(3, "cents", throttle.Month)
	for _, tt := range []struct {
		name  string
		outer throttle.Tier
		spend throttle.Cost // of the outer scope before
		cost  throttle.Cost
		want  error
	}{
		{"never", throttle.PerMinute(5), nil, throttle.Cost{"requests": 6}, throttle.ErrExceedsCapacity},
		{"exhausted", budget, throttle.Cost{"cents": 1}, throttle.Cost{"cents": 3}, throttle.ErrExhausted},
		{"deadline", throttle.PerHour(1), throttle.Cost{"requests": 1}, nil, throttle.ErrDeadline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{tt.outer}}, nil)
				inner := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerMinute(10)}}, nil)
				l := inner.Within(outer)
				if tt.spend != nil {
					acquire(t, outer, tt.spend).Arrived()
				}
				acquire(t, inner, throttle.Cost{"requests": 10}).Arrived()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				began := time.Now()
				_, err := l.Acquire(ctx, tt.cost)
				var e *throttle.WaitError
				if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Policy != "outer" || e.Tier != tt.outer.String() {
					t.Errorf("error is %v, want %v of policy outer and tier %v", err, tt.want, tt.outer)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the error came after %v, want at once", took)
				}
			})
		})
	}
}

// An interrupting store calls back once while it decides. The call then ends with its context.
type interrupting struct {
	throttle.Store
	interrupt atomic.Pointer[func()]
}

func (s *interrupting) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return interruptingQuota{q, s}, err
}

type interruptingQuota struct {
	store.Quota
	of *interrupting
}

func (q interruptingQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	if f := q.of.interrupt.Swap(nil); f != nil {
		(*f)()
		return store.Decision{}, ctx.Err()
	}
	return q.Quota.TryAcquire(ctx, r)
}

// TestWithinOwnError checks that a caller whose context ends while it is called back to the inner queue
// gets the error of its own context.
func TestWithinOwnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := &interrupting{Store: local.New()}
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{{Limit: 1, Window: 30 * time.Second}}}, s)
		l := mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil).Within(outer)
		if !outer.Allow() {
			t.Fatal("the outer quota does not admit a first request")
		}
		interrupt := func() {
			if err := l.SetPolicy(t.Context(), throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(2)}}); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
		}
		time.AfterFunc(time.Second, func() { s.interrupt.Store(&interrupt) })
		if err := l.Wait(ctx); err != context.DeadlineExceeded {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// TestWithinItself checks that a chain in which a quota lies inside itself refuses every call. It
// could admit nothing.
func TestWithinItself(t *testing.T) {
	policy := func(name string) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(1)}}
	}
	a, b, c := mustNew(t, policy("a"), nil), mustNew(t, policy("b"), nil), mustNew(t, policy("c"), nil)
	g, err := throttle.NewGroup(policy("g"), nil, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*throttle.Limiter{
		"a in a":               a.Within(a),
		"a in b in a":          a.Within(b.Within(a)),
		"(a in b) in a":        a.Within(b).Within(a),
		"(a in b) in (c in b)": a.Within(b).Within(c.Within(b)),
		"a key in itself":      g.Within("k", g.For("k")),
		"a key in a in itself": g.Within("k", a.Within(g.For("k"))),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := l.Wait(ctx)
		if err == nil || errors.Is(err, throttle.ErrDeadline) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Within") {
			t.Errorf("%s: error is %v, want one that names Within", name, err)
		}
		if l.Allow() {
			t.Errorf("%s: Allow is true", name)
		}
		cancel()
	}
	if got := used(t, a.Within(b).Within(c)); !slices.Equal(got, []int64{0, 0, 0}) {
		t.Errorf("%v charged, want nothing", got)
	}
}

// A freshStore returns another Quota of a key for each opener, as a store that adds something to the
// quotas of another may do. It cannot be compared.
type freshStore struct {
	throttle.Store
	_ []int
}

type freshQuota struct{ store.Quota }

func (s freshStore) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	q, err := s.Store.Open(key, plan, report)
	return &freshQuota{q}, err
}

// TestWithinItselfOfOneStore checks that two Limiters are known as one quota by their store and the
// name in it, also after a change of the policy, and that Limiters of other quotas are not.
func TestWithinItselfOfOneStore(t *testing.T) {
	policy := func(name string) throttle.Policy {
		return throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(1)}}
	}
	group := func(name string, s throttle.Store) *throttle.Group {
		g, err := throttle.NewGroup(policy(name), s, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, other := local.New(), local.New()
	wrapped := &freshStore{Store: local.New()}
	a, again := mustNew(t, policy("a"), one), mustNew(t, policy("a"), one)
	changed := mustNew(t, policy("changed"), one)
	later := policy("changed")
	later.Tiers = []throttle.Tier{throttle.PerMinute(1)}
	stale := mustNew(t, policy("changed"), one)
	if err := changed.SetPolicy(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	g, h := group("g", one), group("g", one)
	uncomparable := freshStore{Store: local.New()}
	for name, tt := range map[string]struct {
		l    *throttle.Limiter
		same bool
	}{
		"New twice":                       {a.Within(again), true},
		"New twice, in another":           {a.Within(mustNew(t, policy("b"), one).Within(again)), true},
		"New twice, before SetPolicy":     {changed.Within(stale), true},
		"New twice, after SetPolicy":      {stale.Within(changed), true},
		"two groups":                      {g.For("k").Within(h.For("k")), true},
		"two groups, Group.Within":        {g.Within("k", h.For("k")), true},
		"a store that wraps another":      {mustNew(t, policy("w"), wrapped).Within(mustNew(t, policy("w"), wrapped)), true},
		"two names":                       {a.Within(mustNew(t, policy("b"), one)), false},
		"two stores":                      {a.Within(mustNew(t, policy("a"), other)), false},
		"an empty key and New":            {g.For("").Within(mustNew(t, policy("g"), one)), false},
		"two keys":                        {g.For("k").Within(h.For("l")), false},
		"two groups without a store":      {group("g", nil).For("k").Within(group("g", nil).For("k")), false},
		"New twice without a store":       {mustNew(t, policy("a"), nil).Within(mustNew(t, policy("a"), nil)), false},
		"a store that cannot be compared": {mustNew(t, policy("u"), uncomparable).Within(mustNew(t, policy("v"), uncomparable)), false},
	} {
		p, err := tt.l.TryAcquire(t.Context(), nil)
		if refused := err != nil && strings.Contains(err.Error(), "the quota would lie inside itself"); refused != tt.same {
			t.Errorf("%s: error is %v", name, err)
		}
		if err == nil {
			_ = p.Cancel(t.Context())
		}
	}
	if got := used(t, a); !slices.Equal(got, []int64{0}) {
		t.Errorf("%v charged, want nothing", got)
	}
}

// TestWithinKeepsItsAge checks that a Batch request keeps its age in the outer queue when requests
// of other classes take its place there: it ages from its first arrival.
func TestWithinKeepsItsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const aging = 10 * time.Second
		l, outer := within(t,
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Aging: aging},
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Aging: aging})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		began := time.Now()
		for range 3 { // keep Normal requests in the outer queue
			wg.Go(func() {
				for outer.Wait(ctx) == nil {
				}
			})
		}
		synctest.Wait()
		done := make(chan time.Duration, 1)
		wg.Go(func() {
			if l.Wait(throttle.WithClass(ctx, throttle.Batch)) == nil {
				done <- time.Since(began)
			}
		})
		for range 3 {
			time.Sleep(4 * time.Second)
			wg.Go(func() { _ = l.Wait(throttle.WithClass(ctx, throttle.Interactive)) }) // takes its place
		}
		if got := <-done; got > 17*time.Second {
			t.Errorf("admitted after %v, want at most 17s: %v and some seconds for the requests ahead", got, aging)
		}
	})
}

// A tappedContext calls a function at the n-th call of its methods.
type tappedContext struct {
	context.Context
	calls *atomic.Int32
	tap   func()
}

func (c tappedContext) count() {
	if c.calls.Add(-1) == 0 {
		c.tap()
	}
}

func (c tappedContext) Deadline() (time.Time, bool) { c.count(); return c.Context.Deadline() }
func (c tappedContext) Done() <-chan struct{}       { c.count(); return c.Context.Done() }
func (c tappedContext) Value(key any) any           { c.count(); return c.Context.Value(key) }

// TestWithinInteractivePassesBatch checks that an Interactive request overtakes a Batch request in
// the outer queue, whenever it arrives, also at the moment when the Batch request enters that
// queue.
func TestWithinInteractivePassesBatch(t *testing.T) {
	for i := range 200 {
		synctest.Test(t, func(t *testing.T) { interactivePassesBatch(t, int32(1+i%20)) })
	}
}

// interactivePassesBatch lets an Interactive request arrive at the n-th call of a method of the
// Batch request's context.
func interactivePassesBatch(t *testing.T, n int32) {
	l, outer := within(t,
		throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1000)}, Aging: time.Hour},
		throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}, Aging: time.Hour})
	held := acquire(t, outer, nil)
	var mu sync.Mutex
	var order []throttle.Class
	var wg sync.WaitGroup
	send := func(ctx context.Context, c throttle.Class) {
		wg.Go(func() {
			p, err := l.Acquire(throttle.WithClass(ctx, c), nil)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, c)
			mu.Unlock()
			p.Release()
		})
	}
	arrive := sync.OnceFunc(func() { send(t.Context(), throttle.Interactive) })
	ctx := tappedContext{t.Context(), new(atomic.Int32), func() {
		arrive()
		for range 100 { // it may arrive now or later; both are right
			runtime.Gosched()
		}
	}}
	ctx.calls.Store(n)
	send(ctx, throttle.Batch)
	synctest.Wait()
	arrive()
	synctest.Wait()
	if got := status(t, l).Waiting; got != 2 {
		t.Fatalf("call %d: %d callers wait, want 2", n, got)
	}
	held.Release()
	wg.Wait()
	if !slices.Equal(order, []throttle.Class{throttle.Interactive, throttle.Batch}) {
		t.Errorf("call %d: the order was %v, want interactive, batch", n, order)
	}
}

// TestWithinThreeStorm runs callers through three nested scopes and cancels some at random times.
// The strict provider must refuse nothing, the other callers must be admitted in order, and nothing
// may stay charged.
func TestWithinThreeStorm(t *testing.T) {
	soak.Slow(t, "it is a long storm")
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { threeStorm(t, rand.New(rand.NewPCG(3, seed)), seed) })
	}
}

func threeStorm(t *testing.T, rnd *rand.Rand, seed uint64) {
	algorithms := []throttle.Algorithm{throttle.SlidingLog, throttle.FixedWindow, throttle.TokenBucket, throttle.SlidingWindow, throttle.AnchoredWindow, throttle.GCRA}
	var tiers [3]throttle.Tier
	var l *throttle.Limiter
	for i := len(tiers) - 1; i >= 0; i-- {
		tiers[i] = per(time.Duration(1+rnd.IntN(3))*time.Second, 2+rnd.Int64N(6), algorithms[rnd.IntN(len(algorithms))])
		one := mustNew(t, throttle.Policy{Name: fmt.Sprint(i), Tiers: tiers[i : i+1], Guard: throttle.NoGuard}, nil)
		if l == nil {
			l = one
		} else {
			l = one.Within(l)
		}
	}
	api := throttletest.New(tiers[:]...)
	var mu sync.Mutex
	var admitted admissions
	var gone []int
	var wg sync.WaitGroup
	for i := range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		stays := rnd.IntN(2) == 0
		if !stays {
			time.AfterFunc(time.Duration(rnd.Int64N(int64(20*time.Second))), cancel)
		}
		wg.Go(func() {
			defer cancel()
			err := l.Wait(ctx)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				gone = append(gone, i)
				return
			}
			admitted.add(i)
			_, _ = trSend(context.Background(), api)
		})
		synctest.Wait()
		if rnd.IntN(4) == 0 {
			time.Sleep(time.Duration(rnd.Int64N(int64(500 * time.Millisecond))))
		}
	}
	wg.Wait()
	if order := admitted.order(); !slices.IsSorted(order) || len(order)+len(gone) != 60 {
		t.Errorf("seed %d, %v: admitted %v, canceled %v; want 60 in all, the admitted in order", seed, tiers, order, gone)
	}
	if s := api.Summary(); s.Refused != 0 {
		t.Errorf("seed %d, %v: the provider refused %d of %d, want 0", seed, tiers, s.Refused, s.Sent)
	}
	time.Sleep(time.Minute)
	if got := used(t, l); !slices.Equal(got, []int64{0, 0, 0}) || status(t, l).Waiting != 0 {
		t.Errorf("seed %d: %v are still used, want 0", seed, got)
	}
}
