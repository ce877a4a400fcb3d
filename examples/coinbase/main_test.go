package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/throttletest"
)

// The tests start the test binary as processes of a fleet.
func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(worker(context.Background(), text, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func parsed(t *testing.T, spec string) throttle.Policy {
	t.Helper()
	p, err := throttle.ParsePolicy("coinbase", spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBadCommandLines(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-workers 0", "-workers is 0: they must be above 0"},
		{"-workers many", "many"},
		{"-duration -1s", "-duration is -1s"},
		{"-duration 15", "15"},
		{"-speed 5", "-speed"},
		{"15s", `"15s" is not a flag`},
		{"-fleet -1", "-fleet is -1: it must be from 1 to 64"},
		{"-fleet 65", "-fleet is 65: it must be from 1 to 64"},
		{"-page :8080 -fleet 2", "-page can't be set with a fleet"},
		{"-redis localhost:6379", "-redis: "},
		{"-redis http://localhost:6379 -fleet 2", "-redis: "},
		{"-redis redis://localhost/none", "-redis: "},
	} {
		var out, errs strings.Builder
		code := command(t.Context(), policy, strings.Fields(test.args), &out, &errs)
		if code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%s: code %d, stdout %q, stderr %q, want %q in it", test.args, code, &out, &errs, test.want)
		}
	}
}

func TestHelp(t *testing.T) {
	var out, errs strings.Builder
	code := command(t.Context(), policy, []string{"-h"}, &out, &errs)
	for _, name := range []string{"-duration", "-workers", "-json", "-fleet", "-redis", "-page"} {
		if code != 0 || !strings.Contains(errs.String(), "\n  "+name) {
			t.Errorf("code %d, %s is missing in\n%s", code, name, &errs)
		}
	}
}

// The stand-in accepts two requests. The next would come an hour later, after the end of the run.
func TestStandIn(t *testing.T) {
	var out, errs strings.Builder
	if code := command(t.Context(), parsed(t, "2/h"), []string{"-duration", "1s", "-json"}, &out, &errs); code != 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	const want = `sent         2 in 1.0 s
accepted     2
refused      0
rate         2.00/s
worst second 2
utilization  100.0 % of 2 possible requests
{"accepted":2,"per_process":null,"refused":0,"seconds":1,"sent":2,"utilization":1,"worst_second":2}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// runIn runs four workers against an API in virtual time.
func runIn(ctx context.Context, t *testing.T, spec string, duration time.Duration, api http.RoundTripper) (batch.Report, error) {
	limiter, err := throttle.New(parsed(t, spec), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := config{Workers: 4, URL: "http://api.example.com", base: api, End: time.Now().Add(duration)}
	return run(ctx, c, limiter, nil)
}

// In each window of 6 minutes, the tier of a second limits the batch for 200 seconds, and the tier
// of 6 minutes for the rest.
func TestTwoTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, duration := parsed(t, "5/s + 1000/6m"), 12*time.Minute
		api := throttletest.New(p.Tiers...)
		api.Delay = func() time.Duration { return 9 * time.Millisecond }
		r, err := runIn(t.Context(), t, p.String(), duration, api)
		s, most := api.Summary(), possible(p, duration)
		if err != nil || s.Refused != 0 || s.WorstSecond > 5 || s.Accepted != r.Done || s.Accepted < most*95/100 || s.Accepted > most {
			t.Errorf("%+v of %d, %+v, %v", s, most, r, err)
		}
	})
}

func TestEnds(t *testing.T) {
	for _, test := range []struct {
		name, spec                string
		duration, interrupt, hold time.Duration
		sent                      int64
	}{
		{name: "interrupted", spec: "5/s", duration: time.Hour, interrupt: 2500 * time.Millisecond, sent: 15},
		{name: "nothing is sent after the end", spec: "5/s | guard=none", duration: 1999 * time.Millisecond, sent: 10},
		{name: "requests in flight at the end finish", spec: "4/h", duration: time.Second, hold: 3 * time.Second, sent: 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.interrupt > 0 {
					time.AfterFunc(test.interrupt, cancel)
				}
				api := throttletest.New(parsed(t, test.spec).Tiers...)
				if test.hold > 0 {
					api.Hold = func() time.Duration { return test.hold }
				}
				r, err := runIn(ctx, t, test.spec, test.duration, api)
				if s := api.Summary(); err != nil || s.Sent != test.sent || s.Accepted != test.sent || r.Done != test.sent {
					t.Errorf("%+v, %+v, %v", s, r, err)
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
		"401 Unauthorized": func() (*http.Response, error) {
			return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: http.NoBody}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := runIn(t.Context(), t, "5/s", time.Hour, api)
				if !errors.Is(err, batch.ErrTooManyFailed) || !strings.Contains(err.Error(), name) || r.Done != 0 || r.Failed < 10 {
					t.Errorf("%+v, %v", r, err)
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
		r, err := runIn(t.Context(), t, "5/s", time.Minute, responder(func() (*http.Response, error) {
			if n.Add(1)%2 == 0 {
				return nil, errors.New("connection reset")
			}
			return &http.Response{StatusCode: 200, Body: countingBody{strings.NewReader("{}"), &ends, &closes}}, nil
		}))
		if err != nil || r.Done+r.Failed < 285 || r.Done+r.Failed > 300 { // a failed request may still have arrived later
			t.Errorf("%+v, %v", r, err)
		}
		if ends.Load() != r.Done || closes.Load() != r.Done {
			t.Errorf("of %d bodies %d read to the end and %d closed", r.Done, ends.Load(), closes.Load())
		}
	})
}

// The batch ends if the provider closes the quota for longer than max_pause.
func TestClosedByTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.PerHour(3))
		api.Penalty = time.Hour
		r, err := runIn(t.Context(), t, "5/s", 2*time.Hour, api)
		if !errors.Is(err, throttle.ErrBanned) || r.Done != 3 || r.Failed != 0 {
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
		{"5/s + 10000/h", time.Hour + time.Second, 10005},
		{"5/s;algo=token_bucket", 15 * time.Second, 5 + 74}, // the 75th comes at the end
	} {
		if got := possible(parsed(t, test.spec), test.d); got != test.want {
			t.Errorf("%s in %v: %d, want %d", test.spec, test.d, got, test.want)
		}
	}
}

// TestPage reads the page of a batch that runs, and checks that it ends with the batch.
func TestPage(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	p := parsed(t, "3/h")
	api := throttletest.New(p.Tiers...)
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		c := config{Workers: 5, Policy: p, page: ":0", URL: "http://api.example.com", base: api, End: time.Now().Add(time.Hour)}
		_, err := c.alone(ctx, write)
		write.Close()
		done <- err
	}()
	first := make([]byte, 200)
	n, _ := read.Read(first)
	go func() { _, _ = io.Copy(io.Discard, read) }()
	m := regexp.MustCompile(`^live page: (http://127\.0\.0\.1:\d+/)\n$`).FindStringSubmatch(string(first[:n]))
	if m == nil {
		t.Fatalf("%q, want the URL of the page", first[:n])
	}
	for len(api.Arrivals()) < 3 {
		time.Sleep(time.Millisecond)
	}
	for path, want := range map[string]string{"": "<title>", "metrics": `throttle_tier_limit{policy="coinbase",tier="3/h"`, "health": `"watched":1`} {
		resp, err := http.Get(m[1] + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.Contains(string(body), want) {
			t.Errorf("/%s: want %q in\n%s", path, want, body)
		}
	}
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if l, err := net.Listen("tcp", strings.TrimSuffix(strings.TrimPrefix(m[1], "http://"), "/")); err != nil {
		t.Errorf("the page is served after the batch: %v", err)
	} else {
		l.Close()
	}
}

func TestPageInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for address, want := range map[string]string{l.Addr().String(): "-page: listen tcp", "8080": "missing port"} {
		var out, errs strings.Builder
		if code := command(t.Context(), policy, []string{"-page", address}, &out, &errs); code != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: code %d, %q, want %q", address, code, &errs, want)
		}
	}
}

// The fleet gets nine requests. The next would come an hour later.
func TestFleet(t *testing.T) {
	server := miniredis.RunT(t)
	for name, test := range map[string]struct {
		args      string
		processes int
	}{
		"stand-in":      {"-fleet 3", 3},
		"Redis":         {"-fleet 3 -redis redis://" + server.Addr() + "/1", 3},
		"Redis, again":  {"-fleet 3 -redis redis://" + server.Addr() + "/1", 3}, // with a new quota
		"Redis and one": {"-redis redis://" + server.Addr(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			if code := command(t.Context(), parsed(t, "9/h|guard=10s"), strings.Fields(test.args+" -duration 5s -json"), &out, &errs); code != 0 {
				t.Fatalf("code %d, stderr %q", code, &errs)
			}
			text, sum := out.String(), int64(0)
			var r struct {
				Sent, Accepted, Refused int64
				PerProcess              []int64 `json:"per_process"`
			}
			if err := json.Unmarshal([]byte(text[strings.LastIndex(text, "\n{"):]), &r); err != nil {
				t.Fatal(err)
			}
			for _, n := range r.PerProcess {
				sum += n
			}
			if r.Sent != 9 || r.Accepted != 9 || r.Refused != 0 || sum != 9 || len(r.PerProcess) != test.processes {
				t.Errorf("%s", text)
			}
		})
	}
}

func TestFleetWithoutRedis(t *testing.T) {
	locked := miniredis.RunT(t)
	locked.RequireAuth("secret")
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, test := range map[string]struct{ addr, want string }{
		"password": {locked.Addr(), "NOAUTH"},
		"gone":     {gone.Addr().String(), gone.Addr().String()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			code := command(t.Context(), policy, []string{"-fleet", "3", "-duration", "1h", "-redis", "redis://" + test.addr}, &out, &errs)
			if code != 1 || !strings.HasPrefix(out.String(), "sent         0 in") || !strings.Contains(errs.String(), "process ") || !strings.Contains(errs.String(), test.want) {
				t.Errorf("code %d, stdout %q, stderr %q, want %q in it", code, &out, &errs, test.want)
			}
		})
	}
}

// An interrupted fleet ends its processes and writes its report.
func TestFleetInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := parsed(t, "3/s | guard=1s")
	api := throttletest.NewProvider(p.Tiers...)
	defer api.Close()
	api.Hold = func() time.Duration {
		if len(api.Arrivals()) >= 3 {
			cancel()
		}
		return 0
	}
	c := config{Workers: 4, Fleet: 2, Policy: p, URL: api.URL, End: time.Now().Add(10 * time.Hour)}
	if perProcess, err := c.inFleet(ctx, io.Discard); err != nil || perProcess[0]+perProcess[1] < 2 {
		t.Errorf("%d, %v", perProcess, err)
	}
}

// A process sends nothing before the start of the batch.
func TestWorkerWaitsForTheStart(t *testing.T) {
	t.Parallel()
	p := parsed(t, "3/h | guard=1s")
	api := throttletest.NewProvider(p.Tiers...)
	defer api.Close()
	start := time.Now().Add(500 * time.Millisecond)
	text, err := json.Marshal(config{
		Policy: p, Start: start, End: start.Add(time.Second), Workers: 2, URL: api.URL, Redis: "redis://" + miniredis.RunT(t).Addr(),
	})
	if err != nil {
		t.Fatal(err)
	}
	stdin, end := io.Pipe()
	defer end.Close()
	var out, errs strings.Builder
	if code := worker(t.Context(), string(text), stdin, &out, &errs); code != 0 {
		t.Errorf("code %d, %s%s", code, &out, &errs)
	}
	for _, a := range api.Arrivals() {
		if a.At.Before(start.Truncate(time.Microsecond)) {
			t.Errorf("a request %v before the start", start.Sub(a.At))
		}
	}
}

// A process ends when its input ends, which happens at the latest when its parent ends.
func TestWorkerEndsWithItsInput(t *testing.T) {
	p := parsed(t, "3/h | guard=1s")
	api := throttletest.NewProvider(p.Tiers...)
	defer api.Close()
	text, err := json.Marshal(config{Policy: p, End: time.Now().Add(10 * time.Hour), Workers: 2, URL: api.URL, Redis: "redis://" + miniredis.RunT(t).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	if code := worker(t.Context(), string(text), strings.NewReader(""), &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("code %d, %s%s", code, &out, &errs)
	}
}
