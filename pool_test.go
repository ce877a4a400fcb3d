package throttle_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// poolOf returns a Pool whose members have policies, and their indexes as names.
func poolOf(t *testing.T, policies ...string) (*throttle.Pool, []*throttle.Limiter) {
	t.Helper()
	var members []throttle.Member
	var limiters []*throttle.Limiter
	for i, text := range policies {
		policy, err := throttle.ParsePolicy(fmt.Sprint("policy ", i), text)
		if err != nil {
			t.Fatal(err)
		}
		l := mustNew(t, policy, nil)
		limiters = append(limiters, l)
		members = append(members, throttle.Member{Name: fmt.Sprint(i), Limiter: l})
	}
	p, err := throttle.NewPool(members...)
	if err != nil {
		t.Fatal(err)
	}
	return p, limiters
}

func TestPoolUsesAllOfItsMembers(t *testing.T) {
	for _, policies := range [][]string{
		{"5/s | guard=none", "20/s | guard=none"},
		{"5/s", "20/s"},
		{"5/s + 8;algo=concurrency", "20/s + 8;algo=concurrency"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, _ := poolOf(t, policies...)
			var order [][2]time.Time
			var mu sync.Mutex
			var wg sync.WaitGroup
			counts := map[string]int{}
			start := time.Now()
			for i := range 100 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					for time.Since(start) < time.Minute {
						time.Sleep(time.Duration(1 + r.IntN(1000)))
						asked := time.Now()
						permit, err := p.Acquire(t.Context(), nil)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						order = append(order, [2]time.Time{asked, time.Now()})
						counts[permit.Member()]++
						mu.Unlock()
						time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
						permit.Arrived()
						permit.Release()
					}
				})
			}
			wg.Wait()
			slices.SortFunc(order, func(a, b [2]time.Time) int { // callers of one instant are in no order
				return cmp.Or(a[0].Compare(b[0]), a[1].Compare(b[1]))
			})
			n, last := 0, time.Time{}
			for _, o := range order {
				if o[1].Before(last) {
					t.Errorf("the caller of %v was admitted after %v, before an earlier one %v", o[0].Sub(start), o[1].Sub(start), last.Sub(start))
				}
				last = o[1]
				if o[1].Sub(start) < time.Minute {
					n++
				}
			}
			t.Log(n, counts)
			if n < 25*60*98/100 {
				t.Errorf("%d admissions in a minute, want 1470", n)
			}
		})
	}
}

// saturatePool lets callers ask again and again until a time, and returns when which member admitted them.
func saturatePool(t *testing.T, p *throttle.Pool, callers int, lasts time.Duration) map[string][]time.Duration {
	var mu sync.Mutex
	var wg sync.WaitGroup
	admitted := make(map[string][]time.Duration)
	start := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(lasts, cancel)
	for range callers {
		time.Sleep(time.Nanosecond)
		wg.Go(func() {
			for {
				permit, err := p.Acquire(ctx, nil)
				if err != nil {
					return
				}
				mu.Lock()
				admitted[permit.Member()] = append(admitted[permit.Member()], time.Since(start))
				mu.Unlock()
				permit.Arrived()
				permit.Release()
			}
		})
	}
	wg.Wait()
	return admitted
}

// between counts the times from one to another.
func between(times []time.Duration, from, to time.Duration) (n int) {
	for _, at := range times {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

func TestPoolWithAPausedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := poolOf(t, "10/s;algo=gcra", "20/s;algo=gcra")
		time.AfterFunc(10*time.Second, func() { l[0].Pause(t.Context(), 30*time.Second) })
		got := saturatePool(t, p, 50, time.Minute)
		if n := between(got["0"], 10*time.Second, 40*time.Second); n > 0 {
			t.Errorf("the paused member admitted %d", n)
		}
		for at := 10 * time.Second; at < 40*time.Second; at += time.Second {
			if n := between(got["1"], at, at+time.Second); n < 19 {
				t.Errorf("the other member admitted %d in the second after %v, want 20", n, at)
			}
		}
		if n := between(got["0"], 41*time.Second, 60*time.Second); n < 180 {
			t.Errorf("%d after the pause, want 190", n)
		}
	})
}

func TestPoolSpill(t *testing.T) {
	soak.Slow(t, "it plays a pool for hours")
	for _, c := range []struct {
		rate    float64
		poisson bool
	}{{8, false}, {8, true}, {15, false}, {15, true}} {
		synctest.Test(t, func(t *testing.T) {
			var members []throttle.Member
			for i, name := range []string{"reserved", "overflow"} {
				members = append(members, throttle.Member{Name: name, Rank: i, Limiter: mustNew(t, throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)})
			}
			p, err := throttle.NewPool(members...)
			if err != nil {
				t.Fatal(err)
			}
			p.Spill = time.Second
			r := rand.New(rand.NewPCG(1, 2))
			var mu sync.Mutex
			var wg sync.WaitGroup
			counts := map[string]int{}
			var longest time.Duration
			start, n := time.Now(), 0
			for ; time.Since(start) < 10*time.Minute; n++ {
				gap := 1 / c.rate
				if c.poisson {
					gap *= r.ExpFloat64()
				}
				time.Sleep(time.Duration(gap * 1e9))
				wg.Go(func() {
					asked := time.Now()
					permit, err := p.Acquire(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					counts[permit.Member()]++
					longest = max(longest, time.Since(asked))
					mu.Unlock()
					permit.Arrived()
					permit.Release()
				})
			}
			wg.Wait()
			lasts := time.Since(start).Seconds()
			t.Logf("%v: %v of %d in %v, longest %v", c, counts, n, lasts, longest)
			switch {
			case c.rate == 8 && !c.poisson && counts["overflow"] > 0, c.rate == 8 && float64(counts["overflow"]) > 0.02*float64(n):
				t.Errorf("%v: %d on rank 1", c, counts["overflow"])
			case c.rate == 15 && (float64(counts["reserved"]) < 0.98*10*lasts || float64(n) < 0.97*15*lasts):
				t.Errorf("%v: %v of %d in %v", c, counts, n, lasts)
			}
		})
	}
}

func TestPoolWeights(t *testing.T) {
	for name, admit := range map[string]func(*throttle.Pool) error{
		"Wait":    func(p *throttle.Pool) error { return p.Wait(t.Context()) },
		"Acquire": func(p *throttle.Pool) error { _, err := p.Acquire(t.Context(), nil); return err },
		"Acquire with a Cost": func(p *throttle.Pool) error {
			_, err := p.Acquire(t.Context(), throttle.Cost{"requests": 1})
			return err
		},
		"TryAcquire": func(p *throttle.Pool) error { _, err := p.TryAcquire(t.Context(), nil); return err },
	} {
		p, err := throttle.NewPool(
			throttle.Member{Name: "one", Limiter: newLimiter("one", "1000/h")},
			throttle.Member{Name: "three", Limiter: newLimiter("three", "1000/h"), Weight: 3},
		)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			if err := admit(p); err != nil {
				t.Fatal(err)
			}
		}
		members := p.Status(t.Context()).Members
		if one, three := members[0].Status.Tiers[0].Used, members[1].Status.Tiers[0].Used; one != 10 || three != 30 {
			t.Errorf("%s: the members of the Weights 1 and 3 have %d and %d requests, want 10 and 30", name, one, three)
		}
	}
}

// TestPoolWeightsAfterAPause checks that a member owes nothing for what it has served while another was paused.
func TestPoolWeightsAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := poolOf(t, "1000/s | guard=none", "1000/s | guard=none")
		serve := func(n int) (counts map[string]int) {
			counts = make(map[string]int)
			for range n {
				permit, err := p.Acquire(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				counts[permit.Member()]++
				permit.Release()
			}
			return counts
		}
		if err := l[0].Pause(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if got := serve(900); got["1"] != 900 {
			t.Errorf("%v while member 0 is paused", got)
		}
		time.Sleep(2 * time.Minute)
		serve(2) // the probe
		if got := serve(100); got["0"] < 45 || got["1"] < 45 {
			t.Errorf("%v after the pause, want half each", got)
		}
	})
}

// TestPoolWeightsAfterResume checks that a member whose pause ends early has its share again.
func TestPoolWeightsAfterResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := poolOf(t, "1000/s | guard=none", "1000/s | guard=none")
		if err := l[0].Pause(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		counts := make(map[string]int)
		serve := func(n int) {
			for range n {
				permit, err := p.Acquire(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				counts[permit.Member()]++
				permit.Arrived()
				permit.Release()
			}
		}
		serve(10)
		if err := l[0].Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		clear(counts)
		serve(100)
		if counts["0"] < 45 || counts["1"] < 45 {
			t.Errorf("%v after the pause, want half each", counts)
		}
	})
}

func TestPoolThatNewPoolDidNotMake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &throttle.Pool{Spill: 2 * time.Second}
		if err := p.Wait(t.Context()); err == nil || err.Error() != "throttle: the pool has no members: add one" {
			t.Error(err)
		}
		for i, name := range []string{"first", "second"} {
			if err := p.Add(throttle.Member{Name: name, Limiter: newLimiter(name, "1/s"), Rank: i}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			permit, err := p.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if permit.Member() != "first" {
				t.Errorf("admitted by %q before Spill has passed", permit.Member())
			}
			permit.Release()
		}
	})
}

// TestStickyKeys checks that a key has one member, in whatever order the members are named, and that a new member
// takes over only keys of its own.
func TestStickyKeys(t *testing.T) {
	member := func(name string) throttle.Member {
		return throttle.Member{Name: name, Limiter: newLimiter(name, "100000/s")}
	}
	chosen := func(p *throttle.Pool, key int) string {
		permit, err := p.Acquire(throttle.WithStickyKey(t.Context(), fmt.Sprint("conversation ", key)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return permit.Member()
	}
	p, err := throttle.NewPool(member("a"), member("b"), member("c"))
	if err != nil {
		t.Fatal(err)
	}
	q, err := throttle.NewPool(member("c"), member("a"), member("b"))
	if err != nil {
		t.Fatal(err)
	}
	var before [1000]string
	counts := make(map[string]int)
	for key := range before {
		before[key] = chosen(p, key)
		counts[before[key]]++
		if other := chosen(q, key); other != before[key] {
			t.Errorf("key %d goes to %s in one pool and to %s in another", key, before[key], other)
		}
	}
	for name, n := range counts {
		if n < 280 || n > 390 {
			t.Errorf("%s has %d of 1,000 keys, want a third", name, n)
		}
	}
	if err := p.Add(member("d")); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for key, was := range before {
		switch now := chosen(p, key); {
		case now == "d":
			moved++
		case now != was:
			t.Errorf("key %d moved from %s to %s", key, was, now)
		}
	}
	if moved < 200 || moved > 300 {
		t.Errorf("the new member has %d of 1,000 keys, want a fourth", moved)
	}
}

// TestTransportNeedsPoolAndRewrite checks that a request is not sent as the caller made it, without a limit, because
// a Pool is missing, for example after an ignored error of NewPool.
func TestTransportNeedsPoolAndRewrite(t *testing.T) {
	p, _ := poolOf(t, "5/s")
	for _, tr := range []*throttle.Transport{
		{Pool: p},
		{Rewrite: func(*http.Request, string) error { return nil }},
		{Rewrite: func(*http.Request, string) error { return nil }, Limiter: newLimiter("other", "5/s")},
	} {
		tr.Base = roundTripper(func(*http.Request) (*http.Response, error) {
			t.Error("the request was sent")
			return trAnswer(http.StatusOK), nil
		})
		_, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, trURL, nil))
		if want := "throttle: Transport has only one of Pool and Rewrite: set Rewrite and Pool, or neither"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestPoolCallerNeedsNoGoroutineForEachMember checks that callers wait in the queues of all members in their own
// goroutines, whether members come, go, pause or change their policies.
func TestPoolCallerNeedsNoGoroutineForEachMember(t *testing.T) {
	const members, callers = 8, 100
	synctest.Test(t, func(t *testing.T) {
		p, limiters := poolOf(t, slices.Repeat([]string{"1/h | guard=none"}, members)...)
		for range members {
			if _, err := p.TryAcquire(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		before := runtime.NumGoroutine()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				if err := p.Wait(ctx); err != context.Canceled {
					t.Errorf("a canceled caller returns %v", err)
				}
			})
		}
		for _, change := range []func(){
			func() {},
			func() { p.Remove("0") },
			func() { _ = p.Add(throttle.Member{Name: "again", Limiter: limiters[0]}) },
			func() { _ = limiters[1].Pause(t.Context(), time.Hour) },
			func() {
				policy, err := throttle.ParsePolicy("policy 2", "1/h + 5/d | guard=none")
				if err == nil {
					err = limiters[2].SetPolicy(t.Context(), policy)
				}
				if err != nil {
					t.Error(err)
				}
			},
		} {
			change()
			synctest.Wait()
			status := p.Status(t.Context())
			if n := runtime.NumGoroutine() - before; n > callers || status.Waiting != callers {
				t.Errorf("%d callers of %d wait in %d goroutines", status.Waiting, callers, n)
			}
			for _, s := range status.Members {
				if s.Status.Waiting != callers {
					t.Errorf("%d of %d callers wait for member %s", s.Status.Waiting, callers, s.Member.Name)
				}
			}
		}
		cancel()
		wg.Wait()
	})
}
