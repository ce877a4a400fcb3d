package throttle_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
)

func mustNew(t testing.TB, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func used(t testing.TB, l *throttle.Limiter) (used []int64) {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range s.Tiers {
		used = append(used, tier.Used)
	}
	return used
}

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

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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

// stormy makes a request whose caller may give up, and returns how many tokens it spent.
func stormy(t *testing.T, r *rand.Rand, l *throttle.Limiter) (spent int64) {
	short := func() time.Duration { return time.Duration(r.Int64N(int64(time.Second))) }
	time.Sleep(5 * short())
	ctx, cancel := context.WithCancel(throttle.WithClass(t.Context(), throttle.Class(r.IntN(3))))
	defer cancel()
	if r.IntN(2) == 0 {
		time.AfterFunc(short(), cancel)
	}
	estimate, actual := r.Int64N(60), r.Int64N(80)
	p, err := l.Acquire(ctx, throttle.Cost{"requests": r.Int64N(2), "tokens": estimate})
	if err != nil {
		return 0
	}
	time.Sleep(short() / 4)
	switch spent = estimate; r.IntN(3) {
	case 0:
		_, spent = p.Cancel(ctx), 0
	case 1:
		_, spent = p.Settle(throttle.Cost{"tokens": actual}), actual
	}
	p.Release()
	_ = p.Settle(throttle.Cost{"tokens": 1}) // too late, as is this:
	_ = p.Cancel(ctx)
	return spent
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
