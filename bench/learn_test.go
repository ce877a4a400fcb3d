package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"golang.org/x/time/rate"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/hidden"
)

var allRows = flag.Bool("learn", false, "TestLearnTable plays all rows, which takes minutes")

// A learner is a client of an API whose limit it does not know.
type learner struct {
	name string
	open func(testing.TB) hidden.Client
}

var learners = []learner{
	{"throttle", func(t testing.TB) hidden.Client {
		return limitedTo(t, throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1000}})
	}},
	{"AIMD", func(testing.TB) hidden.Client {
		return func(base http.RoundTripper) http.RoundTripper {
			return &aimd{base: base, limiter: rate.NewLimiter(5, 1), changed: time.Now()}
		}
	}},
	{"failsafe", func(testing.TB) hidden.Client {
		return func(base http.RoundTripper) http.RoundTripper {
			return &concurrent{base, adaptivelimiter.NewBuilder[any]().WithQueueing(100, 100).Build()}
		}
	}},
	{"AWS SDK", func(testing.TB) hidden.Client {
		return func(base http.RoundTripper) http.RoundTripper {
			mode := retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) { o.FailOnNoAttemptTokens = true })
			return &adaptive{base, mode, make(chan struct{}, 1)}
		}
	}},
	{"fixed 5/s", func(t testing.TB) hidden.Client {
		return limitedTo(t, throttle.PerSecond(5))
	}},
	{"fixed 50/s", func(t testing.TB) hidden.Client {
		return limitedTo(t, throttle.PerSecond(50))
	}},
}

func limitedTo(t testing.TB, tier throttle.Tier) hidden.Client {
	return func(base http.RoundTripper) http.RoundTripper { return hidden.Limited(t, base, tier, 0) }
}

// An aimd halves its rate after a refusal, but at most once a second, and raises it by 1/s in each second.
type aimd struct {
	base    http.RoundTripper
	limiter *rate.Limiter

	mu      sync.Mutex // guards the fields below
	changed time.Time  // when the rate last increased
	halved  time.Time
}

func (a *aimd) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := a.limiter.Wait(r.Context()); err != nil {
		return nil, err
	}
	resp, err := a.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	limit := float64(a.limiter.Limit()) + now.Sub(a.changed).Seconds()
	a.changed = now
	if resp.StatusCode == http.StatusTooManyRequests && now.Sub(a.halved) >= time.Second {
		limit, a.halved = limit/2, now
	}
	a.limiter.SetLimit(rate.Limit(min(1000, max(0.05, limit))))
	return resp, nil
}

// A concurrent client limits how many requests are in flight.
type concurrent struct {
	base    http.RoundTripper
	limiter adaptivelimiter.AdaptiveLimiter[any]
}

func (c *concurrent) RoundTrip(r *http.Request) (*http.Response, error) {
	permit, err := c.limiter.AcquirePermit(r.Context())
	for errors.Is(err, adaptivelimiter.ErrExceeded) {
		if err = sleep(r.Context(), 100*time.Millisecond); err == nil {
			permit, err = c.limiter.AcquirePermit(r.Context())
		}
	}
	if err != nil {
		return nil, err
	}
	resp, err := c.base.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusTooManyRequests {
		permit.Drop()
		return resp, err
	}
	permit.Record()
	return resp, nil
}

// An adaptive client makes up to three attempts for a request, as the SDK does. The waits of GetAttemptToken
// may be rounded to zero, which takes forever in virtual time. So one caller at a time asks each millisecond.
type adaptive struct {
	base   http.RoundTripper
	mode   *retry.AdaptiveMode
	asking chan struct{}
}

func (a *adaptive) token(ctx context.Context) (release func(error) error, err error) {
	a.asking <- struct{}{}
	defer func() { <-a.asking }()
	for {
		if release, err = a.mode.GetAttemptToken(ctx); err == nil {
			return release, nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (a *adaptive) RoundTrip(r *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		release, err := a.token(r.Context())
		if err != nil {
			return nil, err
		}
		resp, err := a.base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		var refused error
		if resp.StatusCode == http.StatusTooManyRequests {
			refused = &smithy.GenericAPIError{Code: "ThrottlingException"}
		}
		if err := release(refused); err != nil {
			return nil, err
		}
		if refused == nil || attempt == a.mode.MaxAttempts() {
			return resp, nil
		}
		resp.Body.Close()
		wait, err := a.mode.RetryDelay(attempt, refused)
		if err == nil {
			err = sleep(r.Context(), wait)
		}
		if err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// learnRows returns the rows of the table.
func learnRows() (rows []hidden.Cell) {
	row := func(limit int64, a algorithms.Algorithm, response time.Duration, noise float64) {
		tier := algorithms.Tier{Limit: limit, Window: time.Second, Algorithm: a}
		rows = append(rows, hidden.Cell{Tier: tier, Response: response, Workers: 64, Minutes: 20, Noisy: noise})
	}
	for _, limit := range []int64{1, 10, 100} {
		row(limit, algorithms.TokenBucket, 100*time.Millisecond, 0)
	}
	row(10, algorithms.SlidingLog, 100*time.Millisecond, 0)
	row(10, algorithms.FixedWindow, 100*time.Millisecond, 0)
	row(10, algorithms.SlidingLog, 5*time.Second, 0)
	row(10, algorithms.TokenBucket, 100*time.Millisecond, 0.01)
	return rows
}

// TestLearnTable prints the table of docs/learned.md: the goodput of minutes 10 to 20 as a part of what a client
// gets that knows the limit, and in parentheses the part of requests of minutes 2 to 20 that the limit refuses.
func TestLearnTable(t *testing.T) {
	rows := learnRows()
	if !*allRows {
		rows = rows[:1]
	}
	head := "| hidden limit | responses after |"
	for _, l := range learners {
		head += " " + l.name + " |"
	}
	lines := make([]string, len(rows))
	t.Run("rows", func(t *testing.T) {
		for i, c := range rows {
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				lines[i] = learnRow(t, c)
			})
		}
	})
	t.Logf("\n%s\n| --- | --- |%s\n%s", head, strings.Repeat(" ---: |", len(learners)), strings.Join(lines, "\n"))
}

func learnRow(t *testing.T, c hidden.Cell) string {
	quiet := c
	quiet.Noisy = 0
	knows := hidden.Knows(t, quiet, 1, 10, 20)
	noise := ""
	if c.Noisy > 0 {
		noise = fmt.Sprintf(", %.0f %% noise", 100*c.Noisy)
	}
	line := fmt.Sprintf("| %v%s | %v |", c.Tier, noise, c.Response)
	best := 0.0
	for i, l := range learners {
		r := hidden.Play(t, c, 1, l.open(t))
		share, refused := r.Goodput(10, 20)/knows, r.RefusedPart(2, 20)
		line += fmt.Sprintf(" %.2f (%.1f %%) |", share, 100*refused)
		if i == 0 {
			best = share
		}
	}
	if best < 0.6 {
		t.Errorf("throttle has %.2f of the goodput, want 0.6 at least", best)
	}
	t.Log(line)
	return line
}
