package throttle_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// sharedIn returns Limiters of one shared quota inside each of the outer ones.
func sharedIn(t testing.TB, p throttle.Policy, s throttle.Store, outer ...*throttle.Limiter) (nested []*throttle.Limiter) {
	t.Helper()
	g, err := throttle.NewGroup(p, s, throttle.GroupOptions{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outer {
		nested = append(nested, g.Within("key", o))
	}
	for i, o := range outer {
		if g.Within("key", o) != nested[i] {
			t.Errorf("Within outer Limiter %d returned another Limiter than before", i)
		}
	}
	return nested
}

// callers admits requests with as many callers each until the context ends, and returns how many.
func callers(ctx context.Context, n int, limiters ...*throttle.Limiter) []int {
	admitted := make([]int, len(limiters))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, l := range limiters {
		for range n {
			wg.Go(func() {
				for l.Wait(ctx) == nil {
					mu.Lock()
					admitted[i]++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	return admitted
}

func unguarded(name string, tiers ...throttle.Tier) throttle.Policy {
	return throttle.Policy{Name: name, Tiers: tiers, Guard: throttle.NoGuard}
}

// While an outer quota is full for an hour, or paused, callers inside another one are admitted at the
// rate of the shared quota, up to a request that it keeps. Callers of the outer quotas alone do not
// wait for the shared quota.
func TestSharedOuterIsFull(t *testing.T) {
	for _, paused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			full := mustNew(t, unguarded("full", throttle.PerHour(1)), nil)
			idle := mustNew(t, unguarded("idle", throttle.PerSecond(10)), nil)
			if paused {
				_ = full.Pause(t.Context(), time.Hour)
			} else {
				_ = full.Wait(t.Context())
			}
			nested := sharedIn(t, unguarded("shared", throttle.PerMinute(80)), nil, full, idle)
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute+30*time.Second)
			defer cancel()
			got := callers(ctx, 4, nested[0], nested[1], idle)
			if got[0] != 0 || got[1] < 9*79 || got[1] > 10*80 || got[1]+got[2] < 10*560 {
				t.Errorf("paused %v: admitted %v", paused, got)
			}
		})
	}
}

// A refusal that is not wide pauses the quota around the shared one.
func TestSharedRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := mustNew(t, unguarded("one", throttle.PerSecond(100)), nil), mustNew(t, unguarded("other", throttle.PerSecond(100)), nil)
		nested := sharedIn(t, unguarded("shared", throttle.PerSecond(100)), nil, one, other)
		tr := &throttle.Transport{Limiter: nested[0], Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return trAnswer(429, "Retry-After", "60"), nil
		})}
		if _, err := trSend(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
		if one.Allow() || nested[0].Allow() || !other.Allow() || !nested[1].Allow() {
			t.Error("the quota around is not paused, or another one is")
		}
		p, err := nested[1].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Refused(t.Context(), time.Minute)
		p.Release()
		if other.Allow() {
			t.Error("Refused has not paused the quota around")
		}
	})
}

// Random callers of a quota inside three others, with classes and cancels: no caller hangs, and nothing
// is used in the end.
func TestSharedStorm(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			tokens := throttle.Tier{Limit: 100, Window: time.Second, Unit: "tokens", Estimated: true}
			account := mustNew(t, throttle.Policy{Name: "account", Tiers: []throttle.Tier{{Limit: 4, Algorithm: throttle.Concurrency}}}, nil)
			scopes := []*throttle.Limiter{account}
			var outer []*throttle.Limiter
			for i := range 3 {
				l := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(5 * int64(1+i))}}, nil)
				scopes, outer = append(scopes, l), append(outer, l.Within(account))
			}
			nested := sharedIn(t, throttle.Policy{Name: "shared", Tiers: []throttle.Tier{tokens, throttle.PerSecond(12)}}, nil, outer...)
			var all sync.WaitGroup
			for range 100 {
				r := rand.New(rand.NewPCG(rnd.Uint64(), 1))
				all.Go(func() { stormy(t, r, nested[r.IntN(3)]) })
			}
			for range 5 {
				time.Sleep(time.Duration(rnd.Int64N(int64(time.Second))))
				_ = scopes[rnd.IntN(len(scopes))].Pause(t.Context(), time.Second)
			}
			all.Wait()
			time.Sleep(time.Hour)
			for _, l := range nested {
				for _, n := range used(t, l) {
					if n > 0 {
						t.Errorf("used %v in the end", used(t, l))
					}
				}
			}
		})
	}
}

// A key of a shared quota keeps no Limiters for outer ones that nobody waits for, and keeps those
// where callers wait.
func TestSharedForgetsOuters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := throttle.NewGroup(unguarded("shared", throttle.PerHour(1)), nil, throttle.GroupOptions{Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waited := mustNew(t, unguarded("waited", throttle.PerSecond(1)), nil)
		kept := g.Within("key", waited)
		kept.Allow()
		go func() { _ = kept.Wait(ctx) }()
		synctest.Wait()
		var freed atomic.Int64
		const outers = 1_000
		for range outers {
			o := mustNew(t, unguarded("outer", throttle.PerSecond(1)), nil)
			runtime.AddCleanup(o, func(struct{}) { freed.Add(1) }, struct{}{})
			g.Within("key", o).Allow()
		}
		for range 100 {
			if runtime.GC(); freed.Load() > outers-50 {
				break
			}
			runtime.Gosched()
		}
		if n := freed.Load(); n <= outers-50 {
			t.Errorf("%d of %d outer Limiters were forgotten", n, outers)
		}
		if g.Within("key", waited) != kept {
			t.Error("the Limiter where a caller waits was forgotten")
		}
	})
}

// A refusal that names a unit pauses the outermost scope that counts it, also if that is the shared
// one.
func TestSharedRefusalOfUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, other := mustNew(t, unguarded("one", throttle.PerSecond(100)), nil), mustNew(t, unguarded("other", throttle.PerSecond(100)), nil)
		writes := throttle.Tier{Limit: 100, Window: time.Second, Unit: "writes"}
		nested := sharedIn(t, unguarded("shared", writes, throttle.PerSecond(100)), nil, one, other)
		tr := &throttle.Transport{
			Limiter: nested[0], Base: answering("429\nRetry-After: 60"),
			Cost:    func(*http.Request) throttle.Cost { return throttle.Cost{"writes": 1, "requests": 1} },
			Profile: &answers.Profile{Rules: []answers.Rule{{Status: 429, Kind: answers.Limited, Unit: "writes"}}},
		}
		if _, err := trSend(t.Context(), tr); err != nil {
			t.Fatal(err)
		}
		if !one.Allow() || nested[0].Allow() || nested[1].Allow() {
			t.Error("the shared quota is not paused, or the one around it is")
		}
	})
}
