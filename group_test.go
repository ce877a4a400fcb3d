package throttle_test

import (
	"errors"
	"fmt"
	"log"
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
	"github.com/apithrottle/throttle/local"
)

func groupOf(t *testing.T, p throttle.Policy, maxKeys int) *throttle.Group {
	t.Helper()
	g, err := throttle.NewGroup(p, nil, throttle.GroupOptions{MaxKeys: maxKeys})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

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
