package observe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/store"
)

// newLogger returns a logger that writes lines without a time.
func newLogger(w *bytes.Buffer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		o := Log(newLogger(&text, slog.LevelInfo), LogOptions{})
		l := limiter(t, throttle.Policy{
			Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1), throttle.PerHour(4)}, Observer: o, Guard: throttle.NoGuard, MaxWait: time.Minute,
		})
		for range 4 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // the second and the third line are suppressed
			if err := l.Wait(throttle.WithClass(t.Context(), throttle.Batch)); !errors.Is(err, throttle.ErrDeadline) {
				t.Fatal(err)
			}
		}
		if l.Allow() {
			t.Fatal("allowed")
		}
		for i := range 2 { // the second line has no number
			time.Sleep(time.Second)
			if err := l.Pause(t.Context(), time.Duration(2+i)*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		want := `level=INFO msg="throttle: request waited" policy=api class=normal result=admitted waited=1s tier=1/s
level=INFO msg="throttle: request waited" policy=api class=normal result=admitted waited=1s tier=1/s
level=INFO msg="throttle: request waited" policy=api class=normal result=admitted waited=1s tier=1/s
level=WARN msg="throttle: request refused" policy=api class=batch reason=deadline waited=0s tier=4/h wait=59m57s ahead=0
level=WARN msg="throttle: quota paused" policy=api cause=call for=2h0m0s suppressed=2
level=WARN msg="throttle: quota paused" policy=api cause=call for=3h0m0s
`
		if text.String() != want {
			t.Errorf("%s\nwant\n%s", text.String(), want)
		}
	})
}

// TestLogEvents checks what each event writes, and that nothing secret is written.
func TestLogEvents(t *testing.T) {
	ctx := t.Context()
	until := time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC)
	secret := errors.New("secret")
	for _, tt := range []struct {
		name  string
		event func(o *throttle.Observer)
		want  string
	}{
		{"short wait", func(o *throttle.Observer) {
			o.Admitted(ctx, throttle.AdmittedInfo{Policy: "api", Queued: true, Waited: 1999 * time.Millisecond})
		}, ""},
		{"wait for an outer tier", func(o *throttle.Observer) {
			o.Admitted(ctx, throttle.AdmittedInfo{Policy: "api", Queued: true, Waited: 2 * time.Second, By: "account", Tier: "9/d", Cost: throttle.Cost{"secret": 1}})
		}, `level=INFO msg="throttle: request waited" policy=api class=normal result=admitted waited=2s tier=9/d by=account`},
		{"canceled soon", func(o *throttle.Observer) {
			o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: context.Canceled})
		}, ""},
		{"canceled late", func(o *throttle.Observer) {
			o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: context.DeadlineExceeded, Queued: true, Waited: 3 * time.Second})
		}, `level=INFO msg="throttle: request waited" policy=api class=normal result=deadline waited=3s`},
		{"not now", func(o *throttle.Observer) { o.Refused(ctx, throttle.RefusedInfo{Policy: "api"}) }, ""},
		{"banned", func(o *throttle.Observer) {
			o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: &throttle.WaitError{Policy: "account", Err: throttle.ErrBanned, Until: until}})
		}, `level=WARN msg="throttle: request refused" policy=api class=normal reason=banned waited=0s by=account wait=0s ahead=0 until=2026-11-22T09:30:00.000Z`},
		{"store away", func(o *throttle.Observer) {
			o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: fmt.Errorf("%w: %w", &throttle.WaitError{Policy: "api", Err: throttle.ErrUnavailable, Cause: secret, Ahead: 2}, secret)})
		}, `level=WARN msg="throttle: request refused" policy=api class=normal reason=unavailable waited=0s wait=0s ahead=2`},
		{"other error", func(o *throttle.Observer) {
			o.Refused(ctx, throttle.RefusedInfo{Policy: "api", Err: secret, Cost: throttle.Cost{"secret": 1}})
		}, `level=WARN msg="throttle: request refused" policy=api class=normal reason=error waited=0s`},
		{"a success", func(o *throttle.Observer) { o.Answered(ctx, throttle.AnsweredInfo{Policy: "api", Status: 200}) }, ""},
		{"a 429", func(o *throttle.Observer) {
			o.Answered(ctx, throttle.AnsweredInfo{Policy: "api", Status: 429, Reason: "secret", Report: &throttle.RefusalReport{}})
		}, `level=WARN msg="throttle: provider refused" policy=api status=429`},
		{"a report", func(o *throttle.Observer) {
			o.Answered(ctx, throttle.AnsweredInfo{Policy: "api", Status: 429, Report: &throttle.RefusalReport{
				Fullest: &throttle.TierCount{Policy: "account", Tier: "5/s", Unit: "secret", Used: 2, Limit: 5},
				Named:   &throttle.TierCount{Policy: "api", Tier: "9/m", Used: 9, Limit: 9},
				Foreign: 3, ClockAhead: -3 * time.Second, Took: time.Second, Guard: time.Millisecond, Backoffs: 2,
			}})
		}, `level=WARN msg="throttle: provider refused" policy=api status=429 tier=5/s by=account used=2 limit=5 named=9/m named_used=9 named_limit=9 foreign=3 clock_ahead=-3s took=1s guard=1ms backoffs=2`},
		{"an unknown limit", func(o *throttle.Observer) {
			o.Answered(ctx, throttle.AnsweredInfo{Policy: "api", Report: &throttle.RefusalReport{Named: &throttle.TierCount{Unit: "secret"}}})
		}, `level=WARN msg="throttle: provider refused" policy=api status=0 named=unknown named_used=0 named_limit=0`},
		{"closed", func(o *throttle.Observer) {
			o.Paused(throttle.PausedInfo{Policy: "api", For: store.Forever, Closed: true, Cause: "response"})
		}, `level=WARN msg="throttle: quota closed" policy=api cause=response for=2562047h47m16.854775807s`},
		{"a named limit", func(o *throttle.Observer) {
			o.Changed(throttle.ChangedInfo{Policy: "api", Tier: "5000/h;follow=15000", From: 5000, To: 15000, Cause: throttle.ChangedByLimit})
		}, `level=WARN msg="throttle: rate changed" policy=api tier="5000/h;follow=15000" from=5000/h to=15000/h cause=limit`},
		{"a learned rate", func(o *throttle.Observer) {
			o.Changed(throttle.ChangedInfo{Policy: "api", Tier: "5/s;algo=gcra;learn=1000", From: 13.536, To: 10.8288, Cause: throttle.ChangedByRefusal})
		}, `level=WARN msg="throttle: rate changed" policy=api tier="5/s;algo=gcra;learn=1000" from=13.5/s to=10.8/s cause=refusal`},
		{"call", func(o *throttle.Observer) { o.Called(throttle.CalledInfo{Policy: "api", Duration: time.Minute}) }, ""},
		{"failed call", func(o *throttle.Observer) {
			o.Called(throttle.CalledInfo{Policy: "api", Duration: time.Second, Err: fmt.Errorf("%w: %w: %w", throttle.ErrUnavailable, context.DeadlineExceeded, secret)})
		}, `level=WARN msg="throttle: call of the store failed" policy=api outcome=timeout took=1s`},
		{"unsent call", func(o *throttle.Observer) {
			o.Called(throttle.CalledInfo{Policy: "api", Unsent: true, Err: fmt.Errorf("%w: %w", throttle.ErrUnavailable, secret)})
		}, `level=WARN msg="throttle: call of the store failed" policy=api outcome=unsent took=0s`},
		{"hostile name", func(o *throttle.Observer) {
			o.Paused(throttle.PausedInfo{Policy: "a\nlevel=ERROR \xff\"", Cause: "secret"})
		}, `level=WARN msg="throttle: quota paused" policy="a\nlevel=ERROR \xff\"" cause=other for=0s`},
	} {
		var text bytes.Buffer
		tt.event(Log(newLogger(&text, slog.LevelInfo), LogOptions{Wait: 2 * time.Second}))
		if got := strings.TrimSuffix(text.String(), "\n"); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
		text.Reset()
		if tt.event(Log(newLogger(&text, slog.LevelError), LogOptions{})); text.Len() > 0 {
			t.Errorf("%s: a logger of level Error has %s", tt.name, text.String())
		}
	}
}

// TestLogBounds checks that the lines of a great number of policies are bounded, and count what was
// suppressed.
func TestLogBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		o := Log(newLogger(&text, slog.LevelInfo), LogOptions{})
		for second := range 2 {
			var wg sync.WaitGroup
			for i := range 1000 {
				wg.Go(func() {
					policy := fmt.Sprintf("policy %d", i)
					o.Paused(throttle.PausedInfo{Policy: policy})
					o.Admitted(t.Context(), throttle.AdmittedInfo{Policy: policy, Waited: time.Minute})
				})
			}
			wg.Wait()
			lines := slices.Collect(strings.Lines(text.String()))
			if len(lines) != 2*(maxPolicies+1) {
				t.Errorf("%d lines in second %d", len(lines), second)
			}
			if got := strings.Count(text.String(), fmt.Sprintf("suppressed=%d\n", 1000-maxPolicies-1)); got != 2*second {
				t.Errorf("%d lines in second %d report what was suppressed", got, second)
			}
			text.Reset()
			time.Sleep(time.Second)
		}
	})
}
