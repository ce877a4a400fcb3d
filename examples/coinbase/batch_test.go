package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

func parsed(t *testing.T, spec string) throttle.Policy {
	t.Helper()
	p, err := throttle.ParsePolicy("coinbase", spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// runIn runs four workers in the caller's bubble, and returns the last line of the report.
func runIn(ctx context.Context, t *testing.T, p throttle.Policy, duration time.Duration, api http.RoundTripper) (report, error) {
	t.Helper()
	var out strings.Builder
	to := target{url: "http://api.example.com/v1/accounts", base: api, summary: func() (s throttletest.Summary) { return s }}
	if provider, ok := api.(interface{ Summary() throttletest.Summary }); ok {
		to.summary = provider.Summary
	}
	err := run(ctx, config{duration: duration, workers: 4, policy: p, json: true}, to, &out, io.Discard)
	return last(t, out.String()), err
}

// last returns the report in the last line of a program's output.
func last(t *testing.T, out string) (r report) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("the last line is not JSON: %v\n%s", err, out)
	}
	return r
}

// In each window of 6 minutes, the tier of a second limits the batch for 200 seconds, and the tier
// of 6 minutes for the rest. The provider and the batch count the same.
func TestTwoTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		minutes := 12 * soak.Times(1)
		p := parsed(t, "5/s + 1000/6m")
		api := throttletest.New(p.Tiers...)
		api.Delay = func() time.Duration { return 9 * time.Millisecond }
		r, err := runIn(t.Context(), t, p, time.Duration(minutes)*time.Minute, api)
		if err != nil || r.Rejected != 0 || r.WorstSecond > 5 || r.Seconds != float64(60*minutes) || r.Utilization < 0.95 || r.Utilization > 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if s := api.Summary(); s.Sent != r.Sent || s.Accepted != r.Accepted {
			t.Errorf("the provider counted %+v, the batch %+v", s, r)
		}
		if average := r.Waited / time.Duration(r.Sent); average < 700*time.Millisecond || r.Longest < 2*time.Minute || r.Longest > 3*time.Minute {
			t.Errorf("callers waited %v on average, and %v at most", average, r.Longest)
		}
	})
}

func TestEnds(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		duration   time.Duration
		interrupt  time.Duration
		hold       time.Duration // until the provider answers
		sent       int64
		seconds    float64
	}{
		{name: "interrupted", spec: "5/s", duration: time.Hour, interrupt: 2500 * time.Millisecond, sent: 15, seconds: 2.5},
		{name: "nothing is sent at the end", spec: "5/s | guard=none", duration: 2 * time.Second, sent: 10, seconds: 2},
		{name: "requests in flight at the end finish", spec: "4/h", duration: time.Second, hold: 3 * time.Second, sent: 4, seconds: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.interrupt > 0 {
					time.AfterFunc(test.interrupt, cancel)
				}
				p := parsed(t, test.spec)
				api := throttletest.New(p.Tiers...)
				if test.hold > 0 {
					api.Hold = func() time.Duration { return test.hold }
				}
				r, err := runIn(ctx, t, p, test.duration, api)
				if err != nil || r.Sent != test.sent || r.Accepted != test.sent || r.Seconds != test.seconds || r.Utilization != 1 {
					t.Errorf("%+v, %v", r, err)
				}
			})
		})
	}
}

type responder func() (*http.Response, error)

func (r responder) RoundTrip(*http.Request) (*http.Response, error) { return r() }

func TestGivesUp(t *testing.T) {
	for name, api := range map[string]responder{
		"connection refused": func() (*http.Response, error) { return nil, errors.New("connection refused") },
		"401 Unauthorized":   func() (*http.Response, error) { return &http.Response{StatusCode: 401, Body: http.NoBody}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := runIn(t.Context(), t, parsed(t, "5/s"), time.Hour, api)
				if err == nil || !strings.Contains(err.Error(), "gave up after 10 failures in a row") || !strings.Contains(err.Error(), name) {
					t.Errorf("error %v", err)
				}
				if r.Accepted != 0 || r.Rejected != 0 || r.Sent < 10 || r.Seconds > 3 || !strings.Contains(r.Failure, name) {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// A countingBody counts how often it was read to its end and closed.
type countingBody struct {
	io.Reader
	ends, closes *atomic.Int64
}

func (b countingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		b.ends.Add(1)
	}
	return n, err
}

func (b countingBody) Close() error {
	b.closes.Add(1)
	return nil
}

// Failures with successes in between do not end the batch. Each body is read to its end and closed.
func TestContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n, ends, closes atomic.Int64
		r, err := runIn(t.Context(), t, parsed(t, "5/s"), time.Minute, responder(func() (*http.Response, error) {
			if n.Add(1)%2 == 0 {
				return nil, errors.New("connection reset")
			}
			return &http.Response{StatusCode: 200, Body: countingBody{strings.NewReader("{}"), &ends, &closes}}, nil
		}))
		if err != nil || r.Sent < 285 || r.Sent > 300 || r.Accepted != (r.Sent+1)/2 || r.Seconds != 60 { // a failed request may still have arrived later
			t.Errorf("%+v, %v", r, err)
		}
		if ends.Load() != r.Accepted || closes.Load() != r.Accepted {
			t.Errorf("of %d bodies %d read to the end and %d closed", r.Accepted, ends.Load(), closes.Load())
		}
	})
}

// The batch ends if the provider closes the quota for longer than max_pause.
func TestClosedByTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.PerHour(3))
		api.Penalty = time.Hour
		r, err := runIn(t.Context(), t, parsed(t, "5/s"), 2*time.Hour, api)
		if !errors.Is(err, throttle.ErrBanned) || r.Accepted != 3 || r.Rejected == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestPossible(t *testing.T) {
	for _, test := range []struct {
		spec string
		d    time.Duration
		want int64
	}{
		{"5/s", time.Microsecond, 5},
		{"5/s", time.Second, 5}, // the run is [start, end), and the next five come at its end
		{"5/s", time.Second + time.Microsecond, 10},
		{"5/s", 15 * time.Second, 75},
		{"5/s + 10000/h", time.Hour, 10000},
		{"5/s + 10000/h", time.Hour + time.Second, 10005},
		{"5/s;algo=token_bucket", 15 * time.Second, 5 + 74}, // the 75th comes at the end
	} {
		if got := possible(parsed(t, test.spec), test.d); got != test.want {
			t.Errorf("%s in %v: %d, want %d", test.spec, test.d, got, test.want)
		}
	}
}
