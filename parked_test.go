package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

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

// TestGroupParkingChangesNothing plays the same random calls on a Group that parks quotas at every
// chance, and on one that never does. Both must answer alike.
func TestGroupParkingChangesNothing(t *testing.T) {
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

// groupTiers returns the tiers of a random policy.
func groupTiers(r *rand.Rand) []throttle.Tier {
	kinds := []throttle.Algorithm{
		throttle.SlidingLog, throttle.SlidingWindow, throttle.WeightedWindow, throttle.FixedWindow, throttle.AnchoredWindow,
		throttle.TokenBucket, throttle.LeakyBucket, throttle.GCRA, throttle.Concurrency, throttle.Calendar,
	}
	tiers := make([]throttle.Tier, 1+r.IntN(3))
	for i := range tiers {
		t := throttle.Tier{Limit: 1 + r.Int64N(12), Algorithm: kinds[r.IntN(len(kinds))]}
		switch t.Algorithm {
		case throttle.Concurrency:
		case throttle.Calendar:
			t.Period, t.Budget = throttle.Day, r.IntN(3) == 0
		default:
			t.Window = []time.Duration{time.Duration(1+r.IntN(3000)) * time.Millisecond, time.Minute, time.Hour, 30 * time.Hour}[r.IntN(4)]
			if t.Algorithm == throttle.FixedWindow && r.IntN(3) == 0 {
				t.Phase = throttle.UnknownPhase
			}
			if t.Algorithm == throttle.GCRA && r.IntN(3) == 0 {
				t.Burst = 1 + r.Int64N(5)
			}
			if r.IntN(6) == 0 {
				t.PaceBurst = 1 + r.Int64N(t.Limit)
			}
		}
		if i > 0 && r.IntN(3) == 0 {
			t.Unit, t.Estimated = "tokens", t.Algorithm != throttle.Concurrency && r.IntN(2) == 0
		}
		tiers[i] = t
	}
	return tiers
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
