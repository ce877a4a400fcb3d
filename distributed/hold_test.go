package distributed_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
)

// insideLocal returns a Limiter of a quota on a server inside one of this process.
func insideLocal(t *testing.T, s *miniredis.Miniredis, trip time.Duration, inner, outer throttle.Policy) (l, o *throttle.Limiter, counter *calls.Counter) {
	counter = new(calls.Counter)
	rdb := distant(t, s, func() time.Duration { return trip })
	rdb.AddHook(counter)
	inner.Name, outer.Name = "inner", "outer"
	o = limiter(t, outer, nil)
	return limiter(t, inner, distributed.New(rdb, distributed.Options{})).Within(o), o, counter
}

// waitAround makes the callers of a Limiter wait in the quotas around it from now on. The outer quota
// must be used up.
func waitAround(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	if err := l.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestHoldBound checks that a refusal names what bounds the wait: the MaxWait of the innermost quota,
// although the context has a deadline, too.
func TestHoldBound(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		inner := throttle.Policy{Tiers: []throttle.Tier{per(hour, 1, throttle.SlidingLog)}, MaxWait: sec}
		l, _, _ := insideLocal(t, s, ms, inner, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}})
		redis := distributed.New(near(t, s), distributed.Options{})
		inner.Name = "inner bundled"
		bundled := limiter(t, inner, redis).Within(limiter(t, throttle.Policy{Name: "around", Tiers: []throttle.Tier{throttle.PerSecond(100)}}, redis))
		for name, l := range map[string]*throttle.Limiter{"apart": l, "together": bundled} {
			ctx, cancel := context.WithTimeout(t.Context(), 30*sec)
			if err := l.Wait(ctx); err != nil {
				t.Fatal(name, err)
			}
			began := time.Now()
			var late *throttle.WaitError
			if err := l.Wait(ctx); !errors.As(err, &late) || late.Err != throttle.ErrDeadline || late.Bound != throttle.BoundMaxWait || late.Tier != "1/h" {
				t.Errorf("%s: got %v, bound %q, want ErrDeadline by MaxWait", name, err, late.Bound)
			}
			if waited := time.Since(began); waited > sec {
				t.Errorf("%s: got refused after %v, want a second at most", name, waited)
			}
			cancel()
		}
	})
}

// TestHoldInnerFarBehind checks that callers that wait in the quotas around do not sleep through a
// change of their own quota, its Close, or their MaxWait, when that has no room for an hour.
func TestHoldInnerFarBehind(t *testing.T) {
	for name, test := range map[string]struct {
		maxWait time.Duration
		change  func(t *testing.T, l *throttle.Limiter)
		want    error
		within  time.Duration
	}{
		"MaxWait": {maxWait: 2 * sec, want: throttle.ErrDeadline, within: 3 * sec},
		"Resume": {change: func(t *testing.T, l *throttle.Limiter) {
			if err := l.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		}, within: 15 * sec},
		"Close": {change: func(_ *testing.T, l *throttle.Limiter) { l.Close() }, want: throttle.ErrClosed, within: 11 * sec},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				l, o, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}, MaxWait: test.maxWait},
					throttle.Policy{Tiers: []throttle.Tier{per(sec, 1, throttle.SlidingLog)}})
				_ = o.Wait(t.Context())
				waitAround(t, l)
				if err := l.Pause(t.Context(), hour); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 2*hour)
				defer cancel()
				if test.change != nil {
					time.AfterFunc(10*sec, func() { test.change(t, l) })
				}
				if err := l.Wait(ctx); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if waited := time.Since(began); waited > test.within {
					t.Errorf("got an answer after %v, want it within %v", waited, test.within)
				}
			})
		})
	}
}

// TestHoldWaitsAround checks that callers that wait in the quotas around are refused at once when their own quota is closed,
// banned or paused past their deadline.
func TestHoldWaitsAround(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, l *throttle.Limiter)
		want   error
	}{
		"Close": {func(_ *testing.T, l *throttle.Limiter) { l.Close() }, throttle.ErrClosed},
		"Pause": {func(t *testing.T, l *throttle.Limiter) { _ = l.Pause(t.Context(), 5*hour) }, throttle.ErrDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
				l, o, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}},
					throttle.Policy{Tiers: []throttle.Tier{per(hour, 1, throttle.SlidingLog)}})
				_ = o.Wait(t.Context())
				waitAround(t, l)
				ctx, cancel := context.WithTimeout(t.Context(), 2*hour)
				defer cancel()
				began := time.Now()
				time.AfterFunc(10*sec, func() { test.change(t, l) })
				if err := l.Wait(ctx); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				if waited := time.Since(began); waited > 11*sec {
					t.Errorf("got an answer after %v, want it after 10 s", waited)
				}
			})
		})
	}
}

// TestHoldPanics checks that a panic in a callback gives back what the other side holds: a lease, so that
// nothing else would.
func TestHoldPanics(t *testing.T) {
	t.Run("Alert of the outer quota", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			alerts := 0
			l, _, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{atOnce(1)}},
				throttle.Policy{Tiers: []throttle.Tier{throttle.Budget(100, "", throttle.Day)}, AlertAt: []int{1}, Alert: func(throttle.Alert) { alerts++; panic("alert") }})
			func() {
				defer func() { _ = recover() }()
				_, _ = l.Acquire(t.Context(), nil)
			}()
			if alerts != 1 {
				t.Fatalf("%d alerts, want 1", alerts)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*sec)
			defer cancel()
			p, err := l.Acquire(ctx, nil)
			if err != nil {
				t.Errorf("after a panic: got %v, want the place", err)
			}
			p.Release()
		})
	})
	t.Run("Queued while the outer quota is held", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			panics := false
			l, o, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}, Observer: &throttle.Observer{Queued: func(context.Context, throttle.QueuedInfo) {
				if panics {
					panic("queued")
				}
			}}}, throttle.Policy{Tiers: []throttle.Tier{atOnce(1)}})
			p, err := o.Acquire(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(5*sec, p.Release)
			if p, err = l.Acquire(t.Context(), nil); err != nil { // which learns that the outer quota is slower
				t.Fatal(err)
			}
			p.Release()
			panics = true
			func() {
				defer func() { _ = recover() }()
				_, _ = l.Acquire(t.Context(), nil)
			}()
			if p, err := o.TryAcquire(t.Context(), nil); err != nil {
				t.Errorf("after a panic: got %v, want the place", err)
			} else {
				p.Release()
			}
		})
	})
}

// TestHoldFar checks that callers get what a slower outer quota of their process has, however far away
// the server of the inner one is.
func TestHoldFar(t *testing.T) {
	for _, trip := range []time.Duration{ms, 80 * ms, 200 * ms, 400 * ms} {
		bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
			l, _, counter := insideLocal(t, s, trip, throttle.Policy{Tiers: []throttle.Tier{per(10*sec, 100, throttle.SlidingLog)}},
				throttle.Policy{Tiers: []throttle.Tier{per(10*sec, 20, throttle.SlidingLog)}})
			ctx, cancel := context.WithTimeout(t.Context(), 60*sec)
			defer cancel()
			var mu sync.Mutex
			admitted := 0
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for l.Wait(ctx) == nil {
						mu.Lock()
						admitted++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			t.Logf("trips of %v: %d admitted, %d calls", trip, admitted, counter.Count())
			if admitted < 90 {
				t.Errorf("trips of %v: got %d admitted in a minute, want 90 at least", trip, admitted)
			}
		})
	}
}

// TestHoldOuterMaxWait checks that MaxWait of the quota around does not begin anew each time the inner one has no
// room for a request that waited there.
func TestHoldOuterMaxWait(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		l, o, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{atOnce(1)}},
			throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}, MaxWait: 5 * sec})
		_ = o.Pause(t.Context(), 2*sec)
		p, err := l.Acquire(t.Context(), nil) // which learns that the outer quota is slower
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*sec)
		defer cancel()
		go func() {
			for ctx.Err() == nil { // the caller waits around for most of each second
				_ = o.Pause(ctx, 800*ms)
				time.Sleep(sec)
			}
		}()
		if _, err = l.Acquire(ctx, nil); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("got %v, want ErrDeadline for the MaxWait of 5 s", err)
		}
		p.Release()
		cancel()
		time.Sleep(sec)
	})
}

// TestHoldMaxWait checks that the wait in the second side ends with MaxWait.
func TestHoldMaxWait(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		day := per(24*hour, 1000, throttle.SlidingLog)
		l, o, _ := insideLocal(t, s, ms, throttle.Policy{Tiers: []throttle.Tier{day}, MaxWait: sec}, throttle.Policy{Tiers: []throttle.Tier{atOnce(1)}})
		p, err := o.Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(1500*ms, p.Release)
		began := time.Now()
		p, err = l.Acquire(t.Context(), nil)
		if waited := time.Since(began); err == nil || waited > sec {
			t.Errorf("got %v after %v, want a refusal after a second", err, waited)
		}
		p.Release()
	})
}
