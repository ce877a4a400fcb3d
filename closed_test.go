package throttle_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
)

// TestClosedStaysClosed checks that a closed Limiter refuses calls after SetPolicy and after its
// Group has dropped its quota.
func TestClosedStaysClosed(t *testing.T) {
	t.Run("SetPolicy", func(t *testing.T) {
		l := mustNew(t, api(throttle.PerHour(10)), nil)
		l.Close()
		_ = l.SetPolicy(t.Context(), api(throttle.PerHour(20)))
		if l.Allow() {
			t.Error("Allow of a closed Limiter is true")
		}
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) {
			t.Error(err)
		}
		if err := l.WaitN(t.Context(), 0); !errors.Is(err, throttle.ErrClosed) || l.AllowN(0) {
			t.Errorf("for 0 requests: %v, %t; want ErrClosed and false", err, l.AllowN(0))
		}
	})
	t.Run("dropped by its Group", func(t *testing.T) {
		g, err := throttle.NewGroup(api(throttle.PerHour(10)), nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l := g.For("a")
		l.Close()
		for _, key := range []string{"b", "c", "d", "e"} {
			g.For(key).Allow()
		}
		if l.Allow() {
			t.Error("Allow of a closed Limiter is true")
		}
	})
	t.Run("closed once", func(t *testing.T) {
		s := local.New()
		a, _ := throttle.NewGroup(api(throttle.PerHour(10)), s, throttle.GroupOptions{})
		b, _ := throttle.NewGroup(api(throttle.PerHour(10)), s, throttle.GroupOptions{})
		lb := b.For("k")
		a.For("k").Close()
		for _, key := range []string{"x", "y", "z"} {
			a.For(key).Allow()
		}
		la := a.For("k")
		n := 0
		for range 20 {
			for _, l := range []*throttle.Limiter{la, lb} {
				if l.Allow() {
					n++
				}
			}
		}
		if n != 10 {
			t.Errorf("%d admitted, want 10", n)
		}
	})
}

// TestWithinClosedOuter checks that a Limiter inside a closed one refuses at once, also if it would
// have to wait.
func TestWithinClosedOuter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, outer := within(t, api(throttle.PerHour(1)), api(throttle.PerHour(100)))
		l.Allow()
		outer.Close()
		began := time.Now()
		if err := l.Wait(t.Context()); !errors.Is(err, throttle.ErrClosed) || time.Since(began) != 0 {
			t.Errorf("%v after %v, want ErrClosed at once", err, time.Since(began))
		}
	})
}
