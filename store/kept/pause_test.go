package kept_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// deaf hides that a keeper is a Listener.
type deaf struct{ kept.Keeper }

// limiters returns one limiter of each process.
func (f *fleet) limiters(t testing.TB, p throttle.Policy) (all []*throttle.Limiter) {
	t.Helper()
	for _, s := range f.stores {
		l, err := throttle.New(p, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// deafFleet is like newFleet, but no process is told anything.
func deafFleet(t testing.TB, ways ...time.Duration) *fleet {
	f := newFleet(t)
	for _, way := range ways {
		f.stores = append(f.stores, kept.New(deaf{f.server.Client(way)}, kept.Options{Name: "kept", Ahead: true}))
	}
	return f
}

// Admissions are when requests were admitted.
type admissions struct {
	mu sync.Mutex
	at []time.Time
}

func (l *admissions) add() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Now())
}

// between returns how many requests were admitted from one instant until before another.
func (l *admissions) between(from, to time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if !at.Before(from) && at.Before(to) {
			n++
		}
	}
	return n
}

// keepAsking lets callers of each limiter wait again and again until the context ends, and answers each request as it
// was served.
func keepAsking(ctx context.Context, limiters []*throttle.Limiter, callers int) (admitted *admissions, wait func()) {
	admitted = new(admissions)
	var wg sync.WaitGroup
	for _, l := range limiters {
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					p, err := l.Acquire(ctx, nil)
					if err != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					admitted.add()
					time.Sleep(30 * time.Millisecond)
					p.Passed()
					p.Release()
				}
			})
		}
	}
	return admitted, wg.Wait
}

// A pause that one process begins holds in all others: at once where they are told, and else soon.
func TestPauseOfFleet(t *testing.T) {
	for name, test := range map[string]struct {
		fleet func(t testing.TB, ways ...time.Duration) *fleet
		known time.Duration
	}{"told": {newFleet, 100 * time.Millisecond}, "looks": {deafFleet, 600 * time.Millisecond}} {
		for _, tier := range []throttle.Tier{throttle.PerSecond(50), {Limit: 600, Window: time.Minute, Algorithm: throttle.GCRA, Burst: 1}, {Limit: 100, Window: 2 * time.Second}} {
			synctest.Test(t, func(t *testing.T) {
				f := test.fleet(t, 100*time.Microsecond, time.Millisecond, 5*time.Millisecond)
				all := f.limiters(t, throttle.Policy{Name: "paused", Tiers: []throttle.Tier{tier}})
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				admitted, wait := keepAsking(ctx, all, 4)
				time.Sleep(5 * time.Second)
				began := time.Now()
				if err := all[2].Pause(t.Context(), 8*time.Second); err != nil {
					t.Fatal(err)
				}
				end := began.Add(8 * time.Second)
				if err := all[0].Pause(t.Context(), time.Second); err != nil { // which changes nothing
					t.Fatal(err)
				}
				wait()
				if n := admitted.between(began.Add(test.known), end); n > 0 {
					t.Errorf("%s, %v: %d admitted during a pause", name, tier, n)
				}
				if n := admitted.between(end, end.Add(500*time.Millisecond)); n == 0 {
					t.Errorf("%s, %v: none admitted within 500ms after a pause", name, tier)
				}
				before, after := admitted.between(began.Add(-4*time.Second), began), admitted.between(end.Add(time.Second), end.Add(5*time.Second))
				if after*100 < before*90 {
					t.Errorf("%s, %v: %d within 4s after a pause, %d before", name, tier, after, before)
				}
			})
		}
	}
}

// A ban refuses callers in all processes until it ends, also when the keeper forgets everything.
func TestBanOfFleet(t *testing.T) {
	soak.Slow(t, "a fleet waits for the end of a ban")
	for _, forgets := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, farAndNear[:3]...)
			all := f.limiters(t, throttle.Policy{Name: "banned", Tiers: []throttle.Tier{throttle.PerSecond(50)}})
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			admitted, wait := keepAsking(ctx, all, 4)
			time.Sleep(2 * time.Second)
			p, err := all[0].Acquire(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if err := p.Refused(ctx, 20*time.Minute); !errors.Is(err, throttle.ErrBanned) && err != nil {
				t.Fatal(err)
			}
			if forgets {
				time.Sleep(5 * time.Second)
				f.server.Drop()
			}
			wait()
			if n := admitted.between(began.Add(200*time.Millisecond), began.Add(time.Hour)); n > 0 {
				t.Errorf("forgets %v: %d admitted during a ban", forgets, n)
			}
			if err := all[1].Wait(t.Context()); !errors.Is(err, throttle.ErrBanned) {
				t.Errorf("forgets %v: %v, want a ban", forgets, err)
			}
			time.Sleep(21 * time.Minute)
			if err := all[1].Wait(t.Context()); err != nil {
				t.Errorf("after the ban: %v", err)
			}
		})
	}
}

// After a pause that a refusal has begun, one request of the fleet probes. The others follow when its response is in.
func TestOneProbeOfFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		all := f.limiters(t, throttle.Policy{Name: "probed", Tiers: []throttle.Tier{throttle.PerSecond(50)}})
		p, err := all[0].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Refused(t.Context(), 5*time.Second)
		p.Release()
		end := time.Now().Add(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		admitted := new(admissions)
		var wg sync.WaitGroup
		for _, l := range all {
			for range 4 {
				wg.Go(func() {
					p, err := l.Acquire(ctx, nil)
					if err != nil {
						return
					}
					admitted.add()
					time.Sleep(3 * time.Second)
					p.Passed()
					p.Release()
				})
			}
		}
		wg.Wait()
		if n := admitted.between(end.Add(-time.Millisecond), end.Add(3*time.Second)); n != 1 {
			t.Errorf("%d probes, want 1", n)
		}
		if n := admitted.between(end.Add(3*time.Second), end.Add(4*time.Second)); n != 11 {
			t.Errorf("%d follow the probe within a second, want 11", n)
		}
	})
}

// The probe of a quota around others is one request, too, however long its response takes.
func TestProbeOfOuterQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		outer := f.limiters(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerSecond(50)}})
		inner := f.limiters(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(50)}})
		p, err := outer[0].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Refused(t.Context(), 2*time.Second)
		p.Release()
		end := time.Now().Add(2 * time.Second)
		admitted := new(admissions)
		var wg sync.WaitGroup
		for i, l := range inner {
			l = l.Within(outer[i])
			for range 4 {
				wg.Go(func() {
					p, err := l.Acquire(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					admitted.add()
					time.Sleep(8 * time.Second)
					p.Passed()
					p.Release()
				})
			}
		}
		wg.Wait()
		if n := admitted.between(end.Add(-time.Millisecond), end.Add(8*time.Second)); n != 1 {
			t.Errorf("%d probes, want 1", n)
		}
	})
}

// A process that dies with its probe delays the others by some seconds.
func TestProbeOfDeadProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, farAndNear[:3]...)
		dies := &mortal{Keeper: f.server.Client(time.Millisecond)}
		f.stores = append(f.stores, kept.New(dies, kept.Options{Name: "kept", Ahead: true}))
		all := f.limiters(t, throttle.Policy{Name: "probed", Tiers: []throttle.Tier{throttle.PerSecond(50)}})
		p, err := all[3].Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Refused(t.Context(), time.Second)
		p.Release()
		time.Sleep(1500 * time.Millisecond)
		if _, err := all[3].Acquire(t.Context(), nil); err != nil { // the probe
			t.Fatal(err)
		}
		dies.die()
		died := time.Now()
		if err := all[1].Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(died); took < 500*time.Millisecond || took > 2500*time.Millisecond {
			t.Errorf("the next probe is sent %v after its process died", took)
		}
	})
}

// A mortal process reaches no keeper any more once it has died.
type mortal struct {
	kept.Keeper
	mu   sync.Mutex
	dead bool
}

func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
}

func (m *mortal) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	m.mu.Lock()
	dead := m.dead
	m.mu.Unlock()
	if dead {
		return store.ErrUnavailable
	}
	return m.Keeper.Update(ctx, names, change)
}

// A key that is closed during a pause is forgotten when the pause ends, and not before.
func TestClosedKeysAreForgottenAfterTheirPause(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := kept.New(keptmem.New().Client(time.Millisecond), kept.Options{Name: "kept", Ahead: ahead})
			for range 3 {
				l, err := throttle.New(throttle.Policy{Name: "paused", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, s)
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Pause(t.Context(), time.Minute); err != nil {
					t.Fatal(err)
				}
				l.Close()
			}
			time.Sleep(50 * time.Second)
			if n := s.Entries(); n != 1 {
				t.Errorf("%d entries during the pause, want 1", n)
			}
			time.Sleep(time.Minute)
			if n := s.Entries(); n != 0 {
				t.Errorf("%d entries after the pause, want 0", n)
			}
		})
	}
}
