package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestGroupFullFindsRoomAtOnce checks that a full Group drops an unused quota for a new key without
// the garbage collector.
func TestGroupFullFindsRoomAtOnce(t *testing.T) {
	for _, keys := range []int{1, 2, 100} {
		synctest.Test(t, func(t *testing.T) {
			g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 5, Window: time.Millisecond}}, Guard: throttle.NoGuard}, keys)
			refused := 0
			for i := range 2000 {
				if err := g.For(fmt.Sprint(i)).Wait(t.Context()); err != nil {
					refused++
				}
				time.Sleep(time.Millisecond) // then the quota is unused
			}
			if refused != 0 || g.Len() > keys {
				t.Errorf("MaxKeys %d: %d of 2000 keys were refused and %d are kept, want none refused", keys, refused, g.Len())
			}
		})
	}
}

// TestGroupKeepsLearnedState checks that a group with room keeps quotas that have learned
// something: a pending probe, a back-off, or a guard.
func TestGroupKeepsLearnedState(t *testing.T) {
	keys := 0
	churn := func(g *throttle.Group) {
		for range 50 {
			keys++
			g.For(fmt.Sprint(keys)).Allow()
		}
	}
	send := func(g *throttle.Group, base http.RoundTripper) {
		_, _ = trSend(context.Background(), &throttle.Transport{Base: base, Route: func(*http.Request) *throttle.Limiter { return g.For("key") }})
	}
	t.Run("probe", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := groupOf(t, groupPerSecond(1000), 0)
			base := trNewBase(func(n int, _ *http.Request) (*http.Response, error) {
				time.Sleep(100 * time.Millisecond)
				if n == 0 {
					return trAnswer(429, "Retry-After", "1"), nil
				}
				return trAnswer(200), nil
			})
			send(g, base)
			time.Sleep(5 * time.Second) // the pause is over, and no probe was sent
			churn(g)
			collectGarbage()
			churn(g)
			var wg sync.WaitGroup
			for range 20 {
				wg.Go(func() { send(g, base) })
			}
			synctest.Wait()
			if n := len(base.times()); n != 2 {
				t.Errorf("%d requests were sent at once after the pause, want 1", n-1)
			}
			wg.Wait()
		})
	})
	t.Run("back-off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := groupOf(t, groupPerSecond(1000), 0)
			base := trNewBase(func(int, *http.Request) (*http.Response, error) { return trAnswer(429), nil })
			for range 4 { // pauses of 1, 2, 4 and 8 seconds at least
				send(g, base)
				time.Sleep(16 * time.Second)
				churn(g)
				collectGarbage()
				churn(g)
			}
			send(g, base)
			s := status(t, g.For("key"))
			if s.Paused < 15*time.Second {
				t.Errorf("the fifth pause is %v, want at least 15s", s.Paused)
			}
		})
	})
	t.Run("guard", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := groupPerSecond(1)
			p.Guard = throttle.AutoGuard
			g := groupOf(t, p, 0)
			quick := trNewBase(func(int, *http.Request) (*http.Response, error) {
				time.Sleep(time.Millisecond)
				return trAnswer(200), nil
			})
			for range 40 {
				send(g, quick)
			}
			time.Sleep(10 * time.Second)
			churn(g)
			collectGarbage()
			churn(g)
			began := time.Now()
			for range 2 { // no response lands them before the guard has passed
				if err := g.For("key").Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > time.Second+200*time.Millisecond {
				t.Errorf("the second request was admitted after %v, want at most 1.2s with the learned guard", took)
			}
		})
	})
}

// TestGroupAll checks that All returns each key once with the Limiter that For returns, also while
// keys are added and deleted.
func TestGroupAll(t *testing.T) {
	g := groupOf(t, groupPerSecond(5), 0)
	for _, key := range []string{"a", "b", "c"} {
		g.For(key).Allow() // an unused key may be dropped
	}
	seen := maps.Collect(g.All())
	if keys := slices.Sorted(maps.Keys(seen)); !slices.Equal(keys, []string{"a", "b", "c"}) {
		t.Errorf("keys are %v, want a, b, c", keys)
	}
	for key, l := range g.All() {
		if l != g.For(key) {
			t.Errorf("%s: All and For return different Limiters", key)
		}
		g.Delete("c")
		g.For("d").Allow()
		break
	}
	if keys := slices.Sorted(maps.Keys(maps.Collect(g.All()))); !slices.Equal(keys, []string{"a", "b", "d"}) {
		t.Errorf("keys are %v after the changes, want a, b, d", keys)
	}
}

// TestGroupDelete checks that Delete refuses the callers that wait for the key, in each of its
// queues, and later calls of its Limiters. Permits stay valid, and the next For opens an unused
// quota.
func TestGroupDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerHour(1000)}}, nil)
		g := groupOf(t, throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerHour(1)}}, 0)
		held, nested := g.For("a"), g.Within("a", outer)
		permit := acquire(t, held, nil)
		var wg sync.WaitGroup
		var closed atomic.Int64
		for _, l := range []*throttle.Limiter{held, nested, held, nested} {
			wg.Go(func() {
				if err := l.Wait(t.Context()); errors.Is(err, throttle.ErrClosed) {
					closed.Add(1)
				} else {
					t.Errorf("a waiting caller: %v, want ErrClosed", err)
				}
			})
		}
		synctest.Wait()
		g.Delete("a")
		g.Delete("a")
		g.Delete("unknown")
		synctest.Wait()
		if n := closed.Load(); n != 4 {
			t.Errorf("%d waiting callers were refused at once, want 4", n)
		}
		if err := held.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) {
			t.Errorf("the held Limiter: %v, want ErrClosed", err)
		}
		permit.Arrived()
		permit.Release()
		if !g.For("a").Allow() || g.Len() != 1 {
			t.Error("the deleted key cannot be used again")
		}
		wg.Wait()
	})
}

// TestGroupSetPolicy checks that SetPolicy changes the policy of existing keys, of new ones, and of
// waiting callers, which keep their order.
func TestGroupSetPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := func(n int64) throttle.Policy {
			return throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerMinute(n)}, Guard: throttle.NoGuard}
		}
		g := groupOf(t, policy(1), 0)
		var wg sync.WaitGroup
		admitted := map[string]*admissions{"a": {}, "b": {}}
		began := time.Now()
		for _, key := range []string{"a", "b"} {
			g.For(key).Allow()
			for i := range 20 {
				wg.Go(func() {
					if err := g.For(key).Wait(t.Context()); err != nil {
						t.Error(err)
						return
					}
					admitted[key].add(i)
				})
				synctest.Wait()
			}
		}
		if err := g.SetPolicy(t.Context(), throttle.Policy{Name: "other", Tiers: policy(7).Tiers}); err == nil {
			t.Error("SetPolicy with another Name returned no error")
		}
		if err := g.SetPolicy(t.Context(), policy(7)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, key := range []string{"a", "b"} {
			if got := admitted[key].order(); !slices.Equal(got, []int{0, 1, 2, 3, 4, 5}) {
				t.Errorf("%s: %v are admitted at once, want the first six, as one was charged before", key, got)
			}
		}
		for range 7 {
			if !g.For("new").Allow() {
				t.Error("a new key has the old policy")
			}
		}
		wg.Wait()
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("all were admitted after %v, want 2m", took)
		}
		for _, key := range []string{"a", "b"} {
			if got := admitted[key].order(); !slices.IsSorted(got) || len(got) != 20 {
				t.Errorf("%s: admitted %v, want 20 in order", key, got)
			}
		}
	})
}

// TestGroupChurn adds, uses, lists and deletes keys while Limiters are held and used. No held key
// may admit more than its limit, and MaxKeys must hold.
func TestGroupChurn(t *testing.T) {
	const workers, limit = 64, 3
	keys := soak.Times(20_000)
	g := groupOf(t, throttle.Policy{Name: "churn", Tiers: []throttle.Tier{throttle.PerDay(limit)}, Guard: throttle.NoGuard}, 500)
	var held [8]*throttle.Limiter
	var used [len(held)]atomic.Int64
	for i := range held {
		held[i] = g.For(fmt.Sprint("held", i))
	}
	outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerDay(1e9)}, Guard: throttle.NoGuard}, nil)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(7, uint64(w)))
			for n := range keys / workers {
				key := fmt.Sprint(w, ".", n)
				i := rnd.IntN(len(held))
				switch rnd.IntN(4) {
				case 0:
					if held[i].Allow() {
						used[i].Add(1)
					}
				case 1:
					if g.Within(fmt.Sprint("held", i), outer).Allow() {
						used[i].Add(1)
					}
				case 2:
					p, err := g.For(key).TryAcquire(t.Context(), nil)
					if err == nil {
						_ = p.Cancel(context.Background()) // unused again
					} else if !errors.Is(err, throttle.ErrTooManyKeys) {
						t.Error(err)
					}
				case 3:
					ctx, cancel := context.WithCancel(context.Background())
					if rnd.IntN(2) == 0 {
						cancel()
					}
					p, err := g.Within(key, outer).Acquire(ctx, nil)
					if err == nil {
						_ = p.Cancel(context.Background())
					}
					cancel()
				}
				if n%256 == 0 {
					for range g.All() {
						break
					}
					g.Delete(key)
				}
			}
		})
	}
	wg.Wait()
	for i := range used {
		if n := used[i].Load(); n != limit {
			t.Errorf("held %d: %d admitted, want %d", i, n, limit)
		}
	}
	if n := g.Len(); n > 500 {
		t.Errorf("%d keys are kept, want at most 500", n)
	}
}

// TestGroupRefusingLimiter checks that a Limiter of a refused key fails in every method.
func TestGroupRefusingLimiter(t *testing.T) {
	g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}, 1)
	g.For("a").Allow()
	ctx := t.Context()
	l := g.For("b")
	_, tried := l.TryAcquire(t.Context(), nil)
	_, forecast := l.Forecast(ctx, nil)
	_, waited := l.Within(mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)).Acquire(ctx, nil)
	for name, err := range map[string]error{
		"TryAcquire": tried, "Forecast": forecast, "Within": waited,
		"Resume": l.Resume(ctx), "SetPolicy": l.SetPolicy(ctx, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}),
	} {
		if !errors.Is(err, throttle.ErrTooManyKeys) {
			t.Errorf("%s: %v, want ErrTooManyKeys", name, err)
		}
	}
	l.Close()
}
