package kept_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/keptmem"
	"github.com/apithrottle/throttle/store"
	"github.com/apithrottle/throttle/store/kept"
)

// pausable are three processes with a quota, of which the last one has not called.
func pausable(t *testing.T) (*fleet, []*throttle.Limiter) {
	f := newFleet(t, 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond)
	var limiters []*throttle.Limiter
	for i, s := range f.stores {
		l, err := throttle.New(throttle.Policy{Name: "paused", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s)
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		limiters = append(limiters, l)
	}
	return f, limiters
}

// checkPaused checks that each process keeps a pause within two seconds, and until its end.
func checkPaused(t *testing.T, limiters []*throttle.Limiter, until time.Time) {
	t.Helper()
	time.Sleep(2 * time.Second)
	for i, l := range limiters {
		ctx, cancel := context.WithDeadline(t.Context(), until.Add(-time.Second))
		if err := l.Wait(ctx); err == nil {
			t.Errorf("process %d: admitted %v before the end of the pause", i, time.Until(until))
		}
		cancel()
	}
	for i, l := range limiters {
		if err := l.Wait(t.Context()); err != nil || time.Now().Before(until) || time.Since(until) > time.Second {
			t.Errorf("process %d: %v, %v after the end of the pause", i, err, time.Since(until))
		}
	}
}

func TestPauseOutlivesATransactionThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, limiters := pausable(t)
		f.server.SetAway(true)
		until := time.Now().Add(10 * time.Second)
		if err := limiters[0].Pause(t.Context(), 10*time.Second); err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		// The next transactions find the keeper, but do not write.
		for range 3 {
			f.server.SetAway(false)
			go func() { _, _ = limiters[0].Status(t.Context()) }()
			time.Sleep(25 * time.Millisecond)
			f.server.SetAway(true)
			time.Sleep(time.Second)
		}
		f.server.SetAway(false)
		checkPaused(t, limiters, until)
	})
}

func TestPauseOutlivesALostState(t *testing.T) {
	for what, lose := range map[string]func(*fleet, []byte){
		"lost": func(f *fleet, _ []byte) { f.server.Drop() },
		"an older one": func(f *fleet, old []byte) {
			f.server.Put(kept.Name("paused"), old)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, limiters := pausable(t)
				old := append([]byte(nil), f.server.Value(kept.Name("paused"))...)
				until := time.Now().Add(10 * time.Second)
				if err := limiters[0].Pause(t.Context(), 10*time.Second); err != nil {
					t.Fatal(err)
				}
				lose(f, old)
				// A process that knows nothing is first, often enough to hide that the state is an older one.
				ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				for limiters[2].Wait(ctx) == nil {
				}
				for range 5 {
					if _, err := limiters[0].Status(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				checkPaused(t, limiters, until)
			})
		})
	}
}

func TestQuotaThatNobodyHasUsedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, lost := keptmem.New(), 0
		defer server.Close()
		var limiters []*throttle.Limiter
		for range 2 {
			s := kept.New(server.Client(time.Millisecond), kept.Options{Ahead: true, OnLost: func([]byte) { lost++ }})
			l, err := throttle.New(throttle.Policy{Name: "unused", Tiers: []throttle.Tier{throttle.PerSecond(50)}}, s)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Status(t.Context()); err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		for _, l := range limiters {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if lost > 0 {
			t.Errorf("%d calls of OnLost", lost)
		}
		time.Sleep(time.Minute)
	})
}

// A function that learns of a loss may call the limiter and end its goroutine. Callers go on at once.
func TestOnLostMayDoAsItLikes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := keptmem.New()
		var l *throttle.Limiter
		var called atomic.Int64
		s := kept.New(server.Client(time.Millisecond), kept.Options{Name: "kept", Ahead: true, OnLost: func([]byte) {
			called.Add(1)
			if err := l.Pause(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			runtime.Goexit()
		}})
		l, err := throttle.New(throttle.Policy{Name: "lost", Tiers: []throttle.Tier{throttle.PerSecond(10)}}, s)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			if err := l.Wait(ctx); err != nil {
				t.Error(err)
			}
			cancel()
			server.Drop()
		}
		time.Sleep(2 * time.Minute) // the store listens on
		if called.Load() < 2 {
			t.Errorf("%d calls of OnLost, want 2", called.Load())
		}
	})
}

// A function that learns of a threshold may end its goroutine. The store still reports.
func TestAlertMayEndItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, time.Millisecond)
		called := make(chan throttle.Alert, 1)
		l, err := throttle.New(throttle.Policy{
			Name: "alert", AlertAt: []int{50}, Alert: func(a throttle.Alert) {
				called <- a
				runtime.Goexit()
			},
			Tiers: []throttle.Tier{{Limit: 100, Algorithm: throttle.Calendar, Period: throttle.Month, Unit: "cents", Budget: true, Estimated: true}},
		}, f.stores[0])
		if err != nil {
			t.Fatal(err)
		}
		permit, err := l.Acquire(t.Context(), throttle.Cost{"cents": 1})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := permit.Settle(throttle.Cost{"cents": 60}); err != nil {
			t.Fatal(err)
		}
		<-called
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := f.stores[0].Flush(ctx); err != nil {
			t.Error(err)
		}
	})
}
