package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"net/http"
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
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

func groupPerSecond(n int64) throttle.Policy {
	return throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(n)}, Guard: throttle.NoGuard}
}

// collectGarbage runs the garbage collector. A group must not depend on it.
func collectGarbage() {
	for range 3 {
		runtime.GC()
	}
}

func TestGroupOneQuotaPerKey(t *testing.T) {
	g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(2)}}, 0)
	for i, step := range []struct {
		key  string
		want bool
		len  int
	}{
		{"a", true, 1}, {"a", true, 1}, {"a", false, 1},
		{"b", true, 2}, {"b", true, 2}, {"b", false, 2},
		{"", true, 3}, {"a\x00", true, 4}, {"a", false, 4},
	} {
		if got := g.For(step.key).Allow(); got != step.want {
			t.Errorf("step %d: Allow of %q is %v, want %v", i, step.key, got, step.want)
		}
		if got := g.Len(); got != step.len {
			t.Errorf("step %d: %d quotas, want %d", i, got, step.len)
		}
	}
}

// TestGroupHeldLimiterStays checks that a Limiter that the caller holds and a later For of its key
// share one quota.
func TestGroupHeldLimiterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(2), 0)
		held := g.For("held")
		for i := range 2000 {
			g.For(fmt.Sprint(i)).Allow()
			if i%500 == 0 {
				collectGarbage()
			}
			time.Sleep(trTick)
		}
		if !held.Allow() || !g.For("held").Allow() || held.Allow() || g.For("held").Allow() {
			t.Error("the held Limiter and the key have different quotas")
		}
	})
}

// TestGroupDrops checks when a quota is dropped. In a group of one key, another key fits only then.
func TestGroupDrops(t *testing.T) {
	fits := func(g *throttle.Group) bool {
		collectGarbage()
		return g.For("other").Allow()
	}
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(2), 1)
		held := g.For("held")
		if !fits(g) {
			t.Error("the quota is kept although it is unused")
		}
		if err := held.Pause(t.Context(), 1); !errors.Is(err, throttle.ErrTooManyKeys) {
			t.Errorf("the Limiter of a dropped key: %v, want ErrTooManyKeys", err)
		}
		if g.Len() != 1 {
			t.Errorf("%d quotas, want 1", g.Len())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(2), 1)
		g.For("used").Allow()
		time.Sleep(time.Second - time.Microsecond)
		if fits(g) {
			t.Error("the quota was dropped while it is used")
		}
		time.Sleep(time.Microsecond)
		if !fits(g) {
			t.Error("the quota is kept although it is unused")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(2), 1)
		g.For("paused").Pause(t.Context(), time.Minute)
		time.Sleep(time.Minute - time.Microsecond)
		if fits(g) {
			t.Error("the quota was dropped in a pause")
		}
		time.Sleep(time.Microsecond)
		if !fits(g) {
			t.Error("the quota is kept although the pause is over")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(2), 1)
		if err := g.For("not paused").Pause(t.Context(), 0); err != nil || !fits(g) {
			t.Errorf("a pause of no length: %v, or it keeps the quota", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, trAtOnce(1), 1)
		permit, err := g.For("busy").Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		for range 3 {
			collectGarbage()
			if err := g.For("other").Pause(t.Context(), 1); !errors.Is(err, throttle.ErrTooManyKeys) {
				t.Errorf("while a request is open: %v, want ErrTooManyKeys", err)
			}
		}
		permit.Release()
		collectGarbage()
		if err := g.For("other").Pause(t.Context(), 1); err != nil {
			t.Errorf("after the request: %v", err)
		}
	})
}

// TestGroupFindsRoom checks that a full group finds its only unused quota before it refuses a key.
func TestGroupFindsRoom(t *testing.T) {
	const keys = 300
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(2)}}, keys)
		for i := range keys - 1 {
			g.For(fmt.Sprint(i)).Allow()
		}
		g.For("fresh")
		collectGarbage()
		if !g.For("new").Allow() {
			t.Error("the unused quota was not found")
		}
		if g.For("newer").Allow() || g.Len() != keys {
			t.Errorf("%d quotas, want %d", g.Len(), keys)
		}
	})
}

// TestGroupKeepsWaitingCallers checks that a quota is kept while callers wait for it, also if no
// code holds its Limiter.
func TestGroupKeepsWaitingCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(1), 1)
		start := time.Now()
		var mu sync.Mutex
		var admitted []time.Duration
		for range 4 {
			go func() {
				if err := g.For("key").Wait(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				admitted = append(admitted, time.Since(start))
			}()
		}
		for range 8 {
			synctest.Wait()
			collectGarbage()
			if start.Add(4*time.Second).After(time.Now()) && g.For("other").Allow() {
				t.Errorf("the quota was dropped after %v", time.Since(start))
			}
			time.Sleep(500 * trTick)
		}
		want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}
		if mu.Lock(); !slices.Equal(admitted, want) {
			t.Errorf("admitted at %v, want %v", admitted, want)
		}
		mu.Unlock()
		if collectGarbage(); !g.For("other").Allow() {
			t.Error("the quota is kept although it is unused")
		}
	})
}

// TestGroupKeepsInFlight checks that a request that lasts longer than its window still reports to
// its key's quota: the pause that its response asks for takes effect.
func TestGroupKeepsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(5), 1)
		tr := &throttle.Transport{
			Route: func(r *http.Request) *throttle.Limiter { return g.For(r.URL.Host) },
			Base: trNewBase(func(int, *http.Request) (*http.Response, error) {
				time.Sleep(10 * time.Second)
				return trAnswer(429, "Retry-After", "60"), nil
			}),
		}
		var group sync.WaitGroup
		group.Go(func() { trExpect(t, tr, 429) })
		for range 9 {
			time.Sleep(time.Second)
			collectGarbage()
			if g.For("other.test").Allow() {
				t.Error("the quota was dropped while a request is in flight")
			}
		}
		group.Wait()
		s, err := g.For("provider.test").Status(t.Context())
		if err != nil || s.Paused != time.Minute {
			t.Errorf("paused for %v, %v; want 1m", s.Paused, err)
		}
	})
}

// TestGroupKeepsPermits checks that a quota is kept until its permits are released, so that a late
// refusal still pauses it.
func TestGroupKeepsPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(5), 1)
		permit := acquire(t, g.For("key"), nil)
		time.Sleep(10 * time.Second)
		if g.For("other").Allow() {
			t.Error("the quota was dropped while it has a permit")
		}
		if err := permit.Refused(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
		permit.Release()
		if s := status(t, g.For("key")); s.Paused != time.Minute {
			t.Errorf("paused for %v, want 1m", s.Paused)
		}
		time.Sleep(2 * time.Minute)
		if err := g.For("key").Resume(t.Context()); err != nil { // nothing probes
			t.Error(err)
		}
		if !g.For("other").Allow() {
			t.Error("the quota is kept although its permit was released")
		}
	})
}

// TestGroupKeepsOuterQuotas checks that a quota is kept while callers wait inside it, so that they
// are refused when it is closed.
func TestGroupKeepsOuterQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(5), 0)
		inner := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
		l := inner.Within(g.For("outer"))
		l.Allow()
		refused := make(chan error, 1)
		go func() { refused <- l.Wait(t.Context()) }()
		time.Sleep(10 * time.Second)
		for i := range 100 {
			g.For(fmt.Sprint(i)).Allow()
		}
		g.For("outer").Close()
		synctest.Wait()
		select {
		case err := <-refused:
			if !errors.Is(err, throttle.ErrClosed) {
				t.Errorf("the waiting caller: %v, want ErrClosed", err)
			}
		default:
			t.Error("the caller still waits although the outer quota is closed")
			l.Close()
		}
	})
}

func TestGroupTooManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := groupOf(t, groupPerSecond(5), 2)
		g.For("a").Allow()
		g.For("b").Allow()
		l := g.For("c")
		for name, err := range map[string]error{
			"Wait":       l.Wait(t.Context()),
			"WaitN":      l.WaitN(t.Context(), 2),
			"WaitN of 0": l.WaitN(t.Context(), 0),
			"Acquire":    func() error { _, err := l.Acquire(t.Context(), nil); return err }(),
			"Pause":      l.Pause(t.Context(), time.Second),
			"Status":     func() error { _, err := l.Status(t.Context()); return err }(),
			"Transport": func() error {
				route := func(*http.Request) *throttle.Limiter { return g.For("c") }
				_, err := trSend(t.Context(), &throttle.Transport{Base: trNewBase(nil), Route: route})
				return err
			}(),
		} {
			var e *throttle.WaitError
			if !errors.Is(err, throttle.ErrTooManyKeys) || !errors.As(err, &e) || e.Policy != "api" {
				t.Errorf("%s: error is %v, want ErrTooManyKeys of policy api", name, err)
			}
		}
		if l.Allow() || l.AllowN(2) || l.AllowN(0) {
			t.Error("Allow or AllowN is true")
		}
		if !g.For("a").Allow() || !g.For("b").Allow() || g.Len() != 2 {
			t.Error("the kept keys do not admit")
		}
		// After a second the kept quotas are unused.
		time.Sleep(time.Second)
		collectGarbage()
		if err := g.For("c").Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrTooManyKeys) {
			t.Errorf("the refusing Limiter: %v, want ErrTooManyKeys", err)
		}
	})
}

func TestGroupStaysBounded(t *testing.T) {
	const keys, perSecond = 5_000, 100
	for _, c := range []struct {
		name           string
		maxKeys, bound int
	}{
		{"MaxKeys", 150, 150},
		{"unbounded", 0, 1000}, // about 100 are used; the others are not yet dropped
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := groupOf(t, groupPerSecond(5), c.maxKeys)
				most := 0
				for i := range keys {
					if err := g.For(fmt.Sprint(i)).Wait(t.Context()); err != nil && (c.maxKeys == 0 || !errors.Is(err, throttle.ErrTooManyKeys)) {
						t.Fatal(err)
					}
					most = max(most, g.Len())
					time.Sleep(time.Second / perSecond)
					if i%perSecond == 0 {
						runtime.GC()
					}
				}
				if most > c.bound {
					t.Errorf("up to %d quotas, want at most %d", most, c.bound)
				}
			})
		})
	}
}

func TestNewGroup(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy throttle.Policy
		store  throttle.Store
		err    string
	}{
		{name: "no name in this process", policy: throttle.Policy{Tiers: trTier(1, time.Second)}},
		{name: "no name in a store", policy: throttle.Policy{Tiers: trTier(1, time.Second)}, store: local.New(), err: "Name is empty"},
		{name: "name in a store", policy: groupPerSecond(1), store: local.New()},
		{name: "no tiers", policy: throttle.Policy{Name: "api"}, err: "Tiers is empty"},
		{name: "bad tier", policy: groupPerSecond(0), err: "Limit is 0"},
	} {
		g, err := throttle.NewGroup(c.policy, c.store, throttle.GroupOptions{})
		if c.err == "" && (err != nil || g == nil) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error is %v, want %q", c.name, err, c.err)
		}
	}
}

func TestGroupOnAStore(t *testing.T) {
	store := local.New()
	policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(2)}}
	open := func(p throttle.Policy) *throttle.Group {
		g, err := throttle.NewGroup(p, store, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, two := open(policy), open(policy)
	if !one.For("a").Allow() || !two.For("a").Allow() || one.For("a").Allow() || two.For("a").Allow() {
		t.Error("two groups with one name do not share a key's quota")
	}
	if !two.For("b").Allow() {
		t.Error("two keys share a quota")
	}
	policy.Name = "other"
	if !open(policy).For("a").Allow() {
		t.Error("two names share a quota")
	}
	policy.Name = "api"
	policy.Tiers = []throttle.Tier{throttle.PerHour(3)}
	clash := open(policy)
	if err := clash.For("a").Wait(t.Context()); err == nil || clash.Len() != 0 {
		t.Errorf("a key that the store keeps with other tiers: %v and %d quotas, want an error and none", err, clash.Len())
	}
	if lim, err := throttle.New(throttle.Policy{Name: "api", Tiers: trTier(1, time.Hour)}, store); err != nil || !lim.Allow() {
		t.Errorf("a Limiter with the group's name shares a key's quota: %v", err)
	}
}

// TestGroupClosesQuotas checks that a store forgets a key when its group drops it, so another
// policy can open it.
func TestGroupClosesQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := local.New()
		open := func(n int64) *throttle.Group {
			g, err := throttle.NewGroup(groupPerSecond(n), store, throttle.GroupOptions{MaxKeys: 1})
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		g := open(1)
		g.For("a").Allow()
		time.Sleep(time.Second)
		collectGarbage()
		if !g.For("b").Allow() {
			t.Fatal("no room")
		}
		if err := open(2).For("a").Wait(t.Context()); err != nil {
			t.Errorf("the store did not forget the key: %v", err)
		}
	})
}

// TestGroupConcurrentFor checks that a key has one quota, however For, Allow and the garbage
// collector interleave.
func TestGroupConcurrentFor(t *testing.T) {
	const keys, limit = 20, 10
	g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(limit)}}, keys)
	var admitted [keys]atomic.Int64
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := range 400 {
				key := (worker + i) % keys
				if g.For(fmt.Sprint(key)).Allow() {
					admitted[key].Add(1)
				}
				if i%100 == worker {
					runtime.GC()
				}
				g.Len()
			}
		})
	}
	group.Wait()
	for key := range admitted {
		if n := admitted[key].Load(); n != limit {
			t.Errorf("key %d: admitted %d, want %d", key, n, limit)
		}
	}
	if g.Len() != keys {
		t.Errorf("%d quotas, want %d", g.Len(), keys)
	}
}

func ExampleGroup() {
	perUser, err := throttle.NewGroup(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerHour(2)}}, nil, throttle.GroupOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, user := range []string{"alice", "alice", "alice", "bob"} {
		fmt.Println(user, perUser.For(user).Allow())
	}
	// In a Transport's Route it keeps one quota per API key.
	_ = &http.Client{Transport: &throttle.Transport{
		Route: func(r *http.Request) *throttle.Limiter { return perUser.For(r.Header.Get("X-Api-Key")) },
	}}
	// Output:
	// alice true
	// alice true
	// alice false
	// bob true
}

func TestPeek(t *testing.T) {
	g, err := throttle.NewGroup(throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l := g.Peek("a"); l != nil || g.Len() != 0 {
		t.Errorf("Peek of a new key = %v and %d keys, want nil and none", l, g.Len())
	}
	l := g.For("a")
	if got := g.Peek("a"); got != l || got.Name() != "keys" {
		t.Errorf("Peek = %v, want the Limiter of For", got)
	}
	if _, err := throttle.NewGroup(throttle.Policy{Name: "keys", Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil, throttle.GroupOptions{MaxKeys: -1}); err == nil || err.Error() != `throttle: policy "keys": MaxKeys is -1: it must be at least 0` {
		t.Errorf("MaxKeys of -1: got %v", err)
	}
}

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
			time.Sleep(11 * time.Minute) // it is no longer based on any response
			churn(g)
			if g.Peek("key") != nil {
				t.Error("got the quota kept for a guard that it learned long ago, want it dropped")
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

// An ownStore opens a new quota in this process for each opener. A Group parks no quota of a store.
type ownStore struct{ local.Store }

func (s *ownStore) Open(_ string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	return s.Store.Open("", plan, report)
}

// TestGroupParksQuotas checks that a Group parks the quotas that count something and that no caller
// uses, and opens them again with what they count.
func TestGroupParksQuotas(t *testing.T) {
	const keys = 1000
	g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerDay(2)}}, 0)
	use := func(prefix string, want bool) {
		for i := range keys {
			if g.For(fmt.Sprint(prefix, i)).Allow() != want {
				t.Fatalf("Allow of %s%d is %v, want %v", prefix, i, !want, want)
			}
		}
	}
	use("a", true)
	use("b", true)
	if n := g.Parked(); n < keys || g.Len() != 2*keys {
		t.Errorf("%d of %d quotas are parked, want at least %d of %d", n, g.Len(), keys, 2*keys)
	}
	use("a", true)
	use("a", false)
	if n := g.Parked(); n > keys {
		t.Errorf("%d quotas are parked, want at most %d", n, keys)
	}
}

// TestGroupParksAfterSetPolicy checks that a Group parks quotas also under a policy with the tiers of the
// one before.
func TestGroupParksAfterSetPolicy(t *testing.T) {
	p := throttle.Policy{Tiers: []throttle.Tier{throttle.PerDay(2)}}
	g := groupOf(t, p, 0)
	g.For("a").Allow()
	p.MaxWait = time.Minute
	if err := g.SetPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	g.For("b")
	if n := g.Parked(); n != 1 {
		t.Errorf("%d quotas are parked, want 1", n)
	}
}

// TestGroupParkingChangesNothing plays the same random calls on a Group that parks quotas at every
// chance, and on one that never does. Both must answer alike.
func TestGroupParkingChangesNothing(t *testing.T) {
	soak.Slow(t, "it plays many calls twice")
	parked, seeds := 0, soak.Times(300)
	for seed := range uint64(seeds) {
		var want, got []string
		synctest.Test(t, func(t *testing.T) { want, _ = playGroup(t, seed, new(ownStore)) })
		synctest.Test(t, func(t *testing.T) {
			var n int
			got, n = playGroup(t, seed, nil)
			parked += n
		})
		for i := range max(len(want), len(got)) {
			if i >= len(want) || i >= len(got) || want[i] != got[i] {
				t.Fatalf("seed %d: step %d is\n%s\nwithout parking\n%s", seed, i,
					strings.Join(got[max(0, i-9):min(i+1, len(got))], "\n"), strings.Join(want[max(0, i-9):min(i+1, len(want))], "\n"))
			}
		}
	}
	if parked < 3*seeds {
		t.Errorf("%d quotas were parked, want at least %d", parked, 3*seeds)
	}
}

// TestGroupParksAgain checks that idle keys take no more memory after a walk over all of them than
// before.
func TestGroupParksAgain(t *testing.T) {
	soak.Slow(t, "it walks over many keys")
	const keys = 20_000
	policy := func(n int64) throttle.Policy {
		return throttle.Policy{Tiers: []throttle.Tier{
			{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA},
			{Limit: n, Window: 24 * time.Hour, Algorithm: throttle.GCRA}, // one request counts for hours
		}}
	}
	for _, tt := range []struct {
		name string
		walk func(g *throttle.Group) error
	}{
		{"SetPolicy", func(g *throttle.Group) error { return g.SetPolicy(t.Context(), policy(9)) }},
		{"Status", func(g *throttle.Group) (err error) {
			for _, l := range g.All() {
				if _, e := l.Status(t.Context()); e != nil {
					err = e
				}
			}
			return err
		}},
		{"one Status", func(g *throttle.Group) (err error) {
			for _, l := range g.All() {
				_, err = l.Status(t.Context())
				break
			}
			return err
		}},
	} {
		g := groupOf(t, policy(10), 0)
		for i := range 2 * keys { // each new key has the Group look at some others
			if !g.For(fmt.Sprint("key", i%keys, i/keys)).Allow() {
				t.Fatal("a new key is refused")
			}
		}
		parked, before := g.Parked(), heapInUse()
		if err := tt.walk(g); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if n := g.Parked(); n != parked || n < keys || g.Len() != 2*keys {
			t.Errorf("%s: %d of %d quotas are parked, want %d", tt.name, n, g.Len(), parked)
		}
		if more := (heapInUse() - before) / (2 * keys); more > 8 {
			t.Errorf("%s: each key takes %d bytes more", tt.name, more)
		}
		for i := range keys {
			if l := g.For(fmt.Sprint("key", i, 0)); used(t, l)[1] != 1 {
				t.Fatalf("%s: %v are used of key %d, want 1", tt.name, used(t, l), i)
			}
		}
		runtime.KeepAlive(g)
	}
}

// heapInUse returns the bytes in use. The second collection frees what finalizers and pools still held
// during the first.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A groupGame is a random sequence of calls on a Group, and what they returned.
type groupGame struct {
	*rand.Rand
	testing.TB
	group   *throttle.Group
	policy  throttle.Policy
	outer   *throttle.Limiter
	began   time.Time
	fillers int
	parked  int
	held    []*throttle.Limiter
	permits []*throttle.Permit

	calls   sync.WaitGroup
	waiting atomic.Bool // a caller waits; of two in different queues either may be the first

	mu    sync.Mutex // guards all below
	steps []string
	late  []string // of calls that wait, in any order
}

func playGroup(t testing.TB, seed uint64, s throttle.Store) (steps []string, parked int) {
	g := &groupGame{Rand: rand.New(rand.NewPCG(seed, 23)), TB: t, began: time.Now()}
	var options throttle.GroupOptions
	if g.IntN(3) == 0 {
		options.MaxKeys = 8 + g.IntN(8)
	}
	for err := error(throttle.ErrClosed); err != nil; g.group, err = throttle.NewGroup(g.policy, s, options) {
		g.policy = g.randomPolicy()
	}
	g.outer = mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(8)}}, nil)
	for range 80 {
		g.step()
	}
	for _, p := range g.permits {
		p.Release()
	}
	g.calls.Wait()
	slices.Sort(g.late)
	return append(g.steps, g.late...), g.parked
}

func (g *groupGame) randomPolicy() throttle.Policy {
	p := throttle.Policy{Name: "game", Tiers: groupTiers(g.Rand), MaxQueue: g.IntN(4)}
	p.Guard = []time.Duration{throttle.NoGuard, 0, time.Duration(1+g.IntN(500)) * time.Millisecond, throttle.AutoGuard}[g.IntN(4)]
	if slices.ContainsFunc(p.Tiers, func(t throttle.Tier) bool { return t.Algorithm == throttle.Calendar }) && g.IntN(2) == 0 {
		p.AlertAt = []int{50, 100}
		p.Alert = func(a throttle.Alert) { g.record(&g.late, "alert %v", a) }
	}
	return p
}

func (g *groupGame) record(to *[]string, format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*to = append(*to, fmt.Sprintf("%v: ", time.Since(g.began))+fmt.Sprintf(format, args...))
}

func (g *groupGame) logf(format string, args ...any) { g.record(&g.steps, format, args...) }

func (g *groupGame) key() string { return fmt.Sprint("key", g.IntN(5)) }

// limiter returns a Limiter of a random key, which may be a held one or one inside another.
func (g *groupGame) limiter() *throttle.Limiter {
	var l *throttle.Limiter
	switch n := g.IntN(12); {
	case n == 0 && len(g.held) > 0:
		return g.held[g.IntN(len(g.held))]
	case n == 1:
		l = g.group.Within(g.key(), g.outer)
	case n == 2:
		l = g.outer.Within(g.group.For(g.key()))
	case n == 3:
		l = g.group.For(g.key()).Within(g.outer)
	default:
		l = g.group.For(g.key())
	}
	if g.IntN(8) == 0 {
		g.held = append(g.held, l)
	}
	return l
}

func (g *groupGame) cost() throttle.Cost {
	c := throttle.Cost{"requests": g.Int64N(3)}
	if slices.ContainsFunc(g.policy.Tiers, func(t throttle.Tier) bool { return t.Unit == "tokens" }) {
		c["tokens"] = g.Int64N(6)
	}
	return c
}

func (g *groupGame) step() {
	switch n := g.IntN(24); {
	case n < 6:
		k := 1 + g.Int64N(3)
		g.logf("AllowN(%d): %v", k, g.limiter().AllowN(k))
	case n < 10:
		c := g.cost()
		p, err := g.limiter().TryAcquire(context.Background(), c)
		g.logf("TryAcquire(%v): %v", c, err)
		if err == nil {
			g.permits = append(g.permits, p)
		}
	case n < 13 && len(g.permits) > 0:
		g.usePermit()
	case n == 13 && !g.waiting.Swap(true):
		g.wait()
	case n == 14:
		g.logf("Pause: %v", g.limiter().Pause(g.Context(), time.Duration(g.IntN(2000))*time.Millisecond))
	case n == 15:
		g.logf("Resume: %v", g.limiter().Resume(g.Context()))
	case n == 16:
		key := g.key()
		g.group.Delete(key)
		g.logf("Delete(%s)", key)
	case n == 17 && g.IntN(2) == 0:
		p := g.randomPolicy()
		err := g.group.SetPolicy(g.Context(), p)
		if g.logf("Group.SetPolicy(%v): %v", p, err); err == nil {
			g.policy = p
		}
	case n == 17:
		g.logf("SetPolicy: %v", g.limiter().SetPolicy(g.Context(), g.randomPolicy()))
	case n == 18:
		s, err := g.limiter().Status(g.Context())
		g.logf("Status: %v, %v", s, err)
	case n == 19:
		f, err := g.limiter().Forecast(g.Context(), g.cost())
		g.logf("Forecast: %v, %v", f, err)
	default:
		time.Sleep([]time.Duration{0, time.Microsecond, time.Millisecond, time.Second, time.Hour}[g.IntN(5)] * time.Duration(g.IntN(1000)) / 100)
	}
	synctest.Wait() // those that wait come first
	for range g.IntN(8) {
		g.fillers++
		g.logf("filler: %v", g.group.For(fmt.Sprint("filler", g.fillers)).Allow())
	}
	g.logf("%d keys", g.group.Len())
	g.parked += g.group.Parked()
}

func (g *groupGame) usePermit() {
	i := g.IntN(len(g.permits))
	p := g.permits[i]
	switch g.IntN(5) {
	case 0:
		p.Arrived()
	case 1:
		p.Passed()
	case 2:
		g.logf("Refused: %v", p.Refused(g.Context(), time.Duration(1+g.IntN(3000))*time.Millisecond))
	case 3:
		g.logf("Settle: %v", p.Settle(throttle.Cost{"tokens": g.Int64N(8)}))
	case 4:
		g.logf("Cancel: %v", p.Cancel(context.Background()))
	}
	if g.IntN(2) == 0 {
		p.Release()
		g.permits = slices.Delete(g.permits, i, i+1)
	}
}

// wait calls Acquire in a goroutine of its own.
func (g *groupGame) wait() {
	l, c, n := g.limiter(), g.cost(), len(g.steps)
	ctx, cancel := context.WithTimeout(g.Context(), time.Duration(1+g.IntN(5000))*time.Millisecond)
	g.calls.Go(func() {
		defer cancel()
		defer g.waiting.Store(false)
		p, err := l.Acquire(ctx, c)
		g.record(&g.late, "Acquire of step %d: %v", n, err)
		p.Release()
	})
}

// TestGroupParkingChurn uses, pauses, deletes and lists the same keys from many goroutines while
// new keys have the Group park them. No key may admit more than its limit.
func TestGroupParkingChurn(t *testing.T) {
	const workers, rounds, limit = 16, 1500, 50
	g := groupOf(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerDay(limit)}}, 0)
	var admitted [4]atomic.Int64
	var wg sync.WaitGroup
	var parked atomic.Int64
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(31, uint64(w)))
			for i := range rounds {
				k := r.IntN(len(admitted))
				key := fmt.Sprint("key", k)
				switch r.IntN(6) {
				case 0, 1:
					if g.For(key).Allow() {
						admitted[k].Add(1)
					}
				case 2:
					if p, err := g.For(key).TryAcquire(t.Context(), nil); err == nil {
						admitted[k].Add(1)
						p.Arrived()
						p.Release()
					}
				case 3:
					if _, err := g.For(key).Status(t.Context()); err != nil {
						t.Error(err)
					}
				case 4:
					g.For(fmt.Sprint(w, ".", i)).Allow()
					g.Delete(fmt.Sprint(w, ".", i-50))
				case 5:
					g.For(fmt.Sprint(w, ".", i, "b")).Allow()
					if i%100 == 0 {
						parked.Add(int64(g.Parked()))
						for _, l := range g.All() { // in random order
							if _, err := l.Status(t.Context()); err != nil && !errors.Is(err, throttle.ErrClosed) {
								t.Error(err)
							}
							if r.IntN(20) == 0 {
								break
							}
						}
					}
				}
			}
		})
	}
	wg.Wait()
	for k := range admitted {
		if n := admitted[k].Load(); n != limit {
			t.Errorf("key %d: %d admitted, want %d", k, n, limit)
		}
	}
	if parked.Load() == 0 {
		t.Error("nothing was parked")
	}
}

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
