package kept_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// ask lets callers of each limiter wait again and again until the context ends.
func ask(ctx context.Context, limiters []*throttle.Limiter, callers int) (admitted *admissions, wait func()) {
	admitted = new(admissions)
	var wg sync.WaitGroup
	for _, l := range limiters {
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					if l.Wait(ctx) != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					admitted.add()
				}
			})
		}
	}
	return admitted, wg.Wait
}

// A store that comes back serves at full rate within two seconds, however many callers wait.
func TestFullRateAfterOutage(t *testing.T) {
	for _, test := range []struct {
		name       string
		limit      int64
		callers    int
		begin, end func(f *fleet)
		away       time.Duration
	}{
		{"away, slow", 5, 100, func(f *fleet) { f.server.SetAway(true) }, func(f *fleet) { f.server.SetAway(false) }, 10 * time.Second},
		{"away, quick", 1000, 300, func(f *fleet) { f.server.SetAway(true) }, func(f *fleet) { f.server.SetAway(false) }, 10 * time.Second},
		{"lost, slow", 20, 100, func(f *fleet) { f.server.SetLost(true) }, func(f *fleet) { f.server.SetLost(false) }, 5 * time.Second},
		{"lost, quick", 1000, 300, func(f *fleet) { f.server.SetLost(true) }, func(f *fleet) { f.server.SetLost(false) }, 5 * time.Second},
		{"forgets", 50, 20, func(f *fleet) { f.server.Drop() }, func(f *fleet) {}, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 12)
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, farAndNear[:2]...)
				all := f.limiters(t, throttle.Policy{Name: "rate", Tiers: []throttle.Tier{throttle.PerSecond(test.limit)}})
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				admitted, wait := ask(ctx, all, test.callers)
				time.Sleep(4 * time.Second)
				test.begin(f)
				time.Sleep(test.away)
				test.end(f)
				back := time.Now()
				wait()
				full := admitted.between(back.Add(-test.away-3*time.Second), back.Add(-test.away))
				if n := admitted.between(back.Add(2*time.Second), back.Add(5*time.Second)); n*10 < full*9 {
					t.Errorf("%d within 3s, two seconds after the store came back; %d before", n, full)
				}
				if most := mostWithin(admitted.at, time.Second); most > int(test.limit) && test.name != "forgets" {
					t.Errorf("%d within a second", most)
				}
			})
		})
	}
}

// A server that is late is asked less, and serves all the same.
func TestLateServer(t *testing.T) {
	soak.Long(t, "TestFullRateAfterOutage has a late server, too")
	for _, way := range []time.Duration{75 * time.Millisecond, 225 * time.Millisecond} {
		for _, tier := range []throttle.Tier{throttle.PerSecond(5), throttle.PerSecond(1000), {Limit: 50, Window: 10 * time.Second}, {Limit: 5, Window: time.Second, Burst: 5, Algorithm: throttle.TokenBucket}} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, way, way)
				all := f.limiters(t, throttle.Policy{Name: "late", Tiers: []throttle.Tier{tier}})
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				began := time.Now()
				admitted, wait := ask(ctx, all, 100)
				wait()
				n := admitted.between(began.Add(10*time.Second), began.Add(40*time.Second))
				want := int(min(30*float64(tier.Limit)/tier.Window.Seconds(), 30*200)) // with 100 callers
				if n*100 < want*50 {
					t.Errorf("%v away, %v: %d within 30s, want %d", way, tier, n, want)
				}
			})
		}
	}
}

// Every third reply is lost: what it reserved is not used, and no caller fails.
func TestEveryThirdReplyLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		for range 3 {
			f.stores = append(f.stores, kept.New(&forgetful{Keeper: f.server.Client(time.Millisecond)}, kept.Options{Name: "kept", Ahead: true}))
		}
		all := f.limiters(t, throttle.Policy{Name: "third", Tiers: []throttle.Tier{throttle.PerSecond(20)}})
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		began := time.Now()
		admitted, wait := ask(ctx, all, 8)
		wait()
		// A lost reply loses a turn of its process, so a good half of the quota passes unused.
		if n := admitted.between(began, began.Add(40*time.Second)); n < 40*20/5 {
			t.Errorf("%d admitted, want a fifth of %d at least", n, 40*20)
		}
		if most := mostWithin(admitted.at, time.Second); most > 20 {
			t.Errorf("%d within a second", most)
		}
	})
}

// A forgetful keeper loses every third reply.
type forgetful struct {
	kept.Keeper
	mu sync.Mutex
	n  int
}

func (k *forgetful) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	err := k.Keeper.Update(ctx, names, change)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n++; err == nil && k.n%3 == 0 {
		return store.ErrUnavailable
	}
	return err
}

// A hanging keeper answers nothing until the context ends.
type hanging struct {
	kept.Keeper
	mu    sync.Mutex
	hangs bool
}

func (k *hanging) Update(ctx context.Context, names [][]byte, change func(kept.View) ([]kept.Write, error)) error {
	k.mu.Lock()
	hangs := k.hangs
	k.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return errors.Join(store.ErrUnavailable, ctx.Err())
	}
	return k.Keeper.Update(ctx, names, change)
}

func (k *hanging) set(hangs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = hangs
}

// While the keeper hangs, callers wait until their deadlines, and learn why. Then all is as before.
func TestHangingKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		k := &hanging{Keeper: f.server.Client(time.Millisecond)}
		f.stores = append(f.stores, kept.New(k, kept.Options{Name: "kept", Ahead: true}))
		l := f.limiters(t, throttle.Policy{Name: "hangs", Tiers: []throttle.Tier{throttle.PerSecond(20)}})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		admitted, wait := ask(ctx, l, 50)
		time.Sleep(5 * time.Second)
		k.set(true)
		short, end := context.WithTimeout(ctx, 3*time.Second)
		defer end()
		began := time.Now()
		if err := l[0].Wait(short); !errors.Is(err, throttle.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %v, want the store's error by the deadline", err, time.Since(began))
		}
		time.Sleep(10*time.Second - time.Since(began))
		k.set(false)
		back := time.Now()
		wait()
		if n := admitted.between(back.Add(2*time.Second), back.Add(7*time.Second)); n < 90 {
			t.Errorf("%d within 5s, two seconds after the store came back, want 95", n)
		}
	})
}
