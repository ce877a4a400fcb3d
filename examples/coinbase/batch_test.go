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

// In each window of 6 minutes, the tier of a second limits the batch for 200 seconds, and the tier
// of 6 minutes for the rest.
func TestTwoTiers(t *testing.T) {
	minutes := 12 * soak.Times(1)
	r := batch(t, "5/s + 1000/6m", time.Duration(minutes)*time.Minute)
	if r.Rejected != 0 || r.WorstSecond > 5 || r.Seconds != float64(60*minutes) {
		t.Errorf("%+v", r)
	}
	if *r.Utilization < 0.95 || *r.Utilization > 1 {
		t.Errorf("utilization %v", *r.Utilization)
	}
}

func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		spec  string
		least float64 // utilization
	}{
		{"5/s", 0.95},
		{"5/s;algo=token_bucket", 0.95},
		{"5/s;algo=leaky_bucket;burst=1", 0.95},
		{"5/s;algo=gcra;burst=10", 0.95},
		{"5/s;algo=fixed_window", 0.95},
		{"100/m;algo=weighted_window", 0.95},
		{"20/20s;algo=anchored_window", 0.95},
		{"2;algo=concurrency + 5/s", 0.95},
		{"20;algo=concurrency + 5/s + 100/m", 0.95},
		{"5000/h", 0.95},
		{"300/m;unit=tokens", 0.95},
		{"5/s + 40/m;unit=tokens", 0.95},
		{"5/s | max_wait=1ms;max_queue=1", 0.95},
		{"1/h", 1},
	} {
		t.Run(test.spec, func(t *testing.T) {
			r := batch(t, test.spec, time.Duration(soak.Times(4))*time.Minute)
			if r.Rejected != 0 || r.Accepted != r.Sent || *r.Utilization < test.least || *r.Utilization > 1 {
				t.Errorf("%+v, utilization %v, want at least %v", r, *r.Utilization, test.least)
			}
		})
	}
}

// A concurrency limit doesn't limit a client whose requests take no time.
func TestConcurrencyAlone(t *testing.T) {
	r := batch(t, "2;algo=concurrency", 10*time.Second)
	if r.Rejected != 0 || r.Accepted < 100 || r.Utilization != nil {
		t.Errorf("%+v", r)
	}
}

// Without the guard, a late request falls into the next window.
func TestWithoutGuard(t *testing.T) {
	r := batch(t, "5/s | guard=none", time.Minute)
	if r.Rejected == 0 || r.Accepted+r.Rejected != r.Sent || *r.Utilization >= 0.95 {
		t.Errorf("%+v, utilization %v", r, *r.Utilization)
	}
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2500*time.Millisecond, cancel)
		p := parsed(t, "5/s")
		r, err := runIn(ctx, t, p, time.Hour, throttletest.New(p.Tiers...))
		if err != nil || r.Accepted != 15 || r.Sent != 15 || r.Seconds != 2.5 || *r.Utilization != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// The run is [start, end). A request admitted at its end is not sent.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := parsed(t, "5/s")
		r, err := runIn(t.Context(), t, p, 2*time.Second, throttletest.New(p.Tiers...))
		if err != nil || r.Sent != 10 || *r.Utilization != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// The batch waits for requests in flight at the end, and counts them.
func TestInFlightAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := parsed(t, "4/h")
		api := throttletest.New(p.Tiers...)
		api.Hold = func() time.Duration { return 3 * time.Second }
		r, err := runIn(t.Context(), t, p, time.Second, api)
		if err != nil || r.Accepted != 4 || r.Sent != 4 || r.Seconds != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A request without a response within the grace period is not accepted.
func TestNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		p := parsed(t, "4/h")
		api := throttletest.New(p.Tiers...)
		api.Hold = func() time.Duration { return time.Hour }
		r, err := runIn(t.Context(), t, p, time.Second, api)
		if err == nil || r.Accepted != 0 || r.Sent != 4 || *r.Utilization != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if took := time.Since(start); took != 6*time.Second {
			t.Errorf("took %v, want 6 s", took)
		}
	})
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
				if r.Accepted != 0 || r.Rejected != 0 || r.Sent < 10 || r.Seconds > 3 {
					t.Errorf("%+v", r)
				}
			})
		})
	}
}

// A batch of requests that never reach the provider ends too.
func TestRequestsGiveUp(t *testing.T) {
	for _, n := range []int64{1, 5, 30} {
		synctest.Test(t, func(t *testing.T) {
			p := parsed(t, "5/s")
			c := config{duration: always, requests: n, workers: 4, policy: p}
			var out strings.Builder
			err := run(t.Context(), c, target{url: "http://api.example.com", base: responder(func() (*http.Response, error) { return nil, errors.New("no route") })}, &out, io.Discard)
			if err == nil || !strings.Contains(out.String(), "no route") {
				t.Errorf("%d requests: %v\n%s", n, err, &out)
			}
		})
	}
}

// Failures with successes in between do not end the batch.
func TestContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		r, err := runIn(t.Context(), t, parsed(t, "5/s"), time.Minute, responder(func() (*http.Response, error) {
			if n.Add(1)%2 == 0 {
				return nil, errors.New("connection reset")
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		}))
		if err != nil || r.Sent < 285 || r.Sent > 300 || r.Accepted != (r.Sent+1)/2 || r.Seconds != 60 { // a failed request may still have arrived later
			t.Errorf("%+v, %v", r, err)
		}
	})
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

func TestReadsAndClosesBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends, closes atomic.Int64
		r, err := runIn(t.Context(), t, parsed(t, "5/s"), time.Minute, responder(func() (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: countingBody{strings.NewReader("{}"), &ends, &closes}}, nil
		}))
		if err != nil || ends.Load() != r.Sent || closes.Load() != r.Sent {
			t.Errorf("of %[3]d bodies %[1]d read to the end and %[2]d closed, %[4]v", ends.Load(), closes.Load(), r.Sent, err)
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

func TestReportNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		r.Close()
		p := parsed(t, "5/s")
		c := config{duration: time.Second, workers: 1, policy: p}
		err := run(t.Context(), c, target{url: "http://api.example.com", base: throttletest.New(p.Tiers...)}, w, io.Discard)
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("error %v", err)
		}
	})
}

// batch runs a batch in virtual time, against a provider in memory with the tiers of the policy.
func batch(t *testing.T, spec string, duration time.Duration) report {
	t.Helper()
	var got report
	synctest.Test(t, func(t *testing.T) {
		p := parsed(t, spec)
		api := throttletest.New(p.Tiers...)
		asCoinbase(api, p)
		var err error
		if got, err = runIn(t.Context(), t, p, duration, api); err != nil {
			t.Error(err)
		}
		if s := api.Summary(); s.Sent != got.Sent || s.Accepted != got.Accepted || s.Refused != got.Rejected {
			t.Errorf("the provider counted %+v, the batch %+v", s, got)
		}
	})
	return got
}

// runIn runs four workers in the caller's bubble, and returns the last line of the report.
func runIn(ctx context.Context, t *testing.T, p throttle.Policy, duration time.Duration, api http.RoundTripper) (report, error) {
	t.Helper()
	var out strings.Builder
	c := config{duration: duration, workers: 4, policy: p, json: true}
	err := run(ctx, c, target{url: "http://api.example.com/v1/accounts", base: api}, &out, io.Discard)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	var r report
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("the last line is not JSON: %v\n%s", err, out.String())
	}
	return r, err
}

func parsed(t *testing.T, spec string) throttle.Policy {
	t.Helper()
	c, _, err := parse([]string{"-policy", spec})
	if err != nil {
		t.Fatal(err)
	}
	return c.policy
}
