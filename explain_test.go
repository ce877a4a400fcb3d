package throttle_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// TestErrDeadlineNamesTheBound checks that a refusal for lack of time names what the wait would
// outlast, before the wait and during it, in one quota and in nested ones.
func TestErrDeadlineNamesTheBound(t *testing.T) {
	within := func(d time.Duration) func(context.Context) (context.Context, context.CancelFunc) {
		return func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, d) }
	}
	for _, tt := range []struct {
		name         string
		inner, outer time.Duration // MaxWait
		timeout      time.Duration
		want, text   string
	}{
		{"context", 0, 0, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait", sec, 0, 0, "MaxWait", "the wait would outlast MaxWait: "},
		{"the context is earlier", 2 * sec, 2 * sec, sec, "context", "the wait would outlast the context's deadline: "},
		{"MaxWait is earlier", sec, 0, 2 * sec, "MaxWait", "the wait would outlast MaxWait: "},
		{"MaxWait of the outer policy", 0, sec, 0, "MaxWait", "the wait would outlast MaxWait: "},
	} {
		for _, nested := range []string{"", "the inner quota is full", "the outer quota is full"} {
			for _, pauses := range []bool{false, true} {
				if tt.outer > 0 && tt.inner == 0 && nested != "the outer quota is full" {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					policy := func(name string, maxWait time.Duration, full bool) *throttle.Limiter {
						p := exact(throttle.PerMinute(1))
						p.Name, p.MaxWait = name, maxWait
						l := mustNew(t, p, nil)
						if full && !pauses {
							l.Allow()
						}
						return l
					}
					l := policy("inner", tt.inner, nested != "the outer quota is full")
					paused := l
					if nested != "" {
						outer := policy("outer", tt.outer, nested == "the outer quota is full")
						l = l.Within(outer)
						if nested == "the outer quota is full" {
							paused = outer
						}
					}
					if pauses { // during the wait
						_ = paused.Pause(t.Context(), sec/2)
						time.AfterFunc(sec/4, func() { _ = paused.Pause(t.Context(), time.Minute) })
					}
					ctx, cancel := t.Context(), func() {}
					if tt.timeout > 0 {
						ctx, cancel = within(tt.timeout)(ctx)
					}
					defer cancel()
					_, err := l.Acquire(ctx, nil)
					var e *throttle.WaitError
					if !errors.As(err, &e) || e.Err != throttle.ErrDeadline || e.Bound != tt.want || !strings.Contains(err.Error(), tt.text) {
						t.Errorf("%s, %q, pause %v: %v, bound %q; want bound %q", tt.name, nested, pauses, err, e.Bound, tt.want)
					}
				})
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, exact(throttle.PerMinute(1)), nil)
		base := trNewBase(nil)
		tr := &throttle.Transport{Limiter: l, Base: base, SendBy: func(*http.Request) time.Time { return time.Now().Add(sec) }}
		trExpect(t, tr, 200)
		_, err := trSend(t.Context(), tr)
		var e *throttle.WaitError
		if !errors.As(err, &e) || e.Bound != "SendBy" || !strings.Contains(err.Error(), "the wait would outlast SendBy: 1m0s for tier 1/m") {
			t.Errorf("SendBy: %v", err)
		}
		if _, err = l.TryAcquire(nil); !errors.As(err, &e) || e.Bound != "" || !strings.Contains(err.Error(), "the wait would outlast the deadline: ") {
			t.Errorf("TryAcquire: %v", err)
		}
	})
}
