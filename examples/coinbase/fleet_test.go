package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// The tests start the test binary as processes of a fleet.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(worker(context.Background(), os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// The fleet gets nine requests. The next would come an hour later, after the end of the run.
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
			var out, errs strings.Builder
			if code := command(t.Context(), parsed(t, "9/h|guard=10s"), strings.Fields(test.args+" -duration 1m -json"), &out, &errs); code != 0 {
				t.Fatalf("code %d, stderr %q", code, &errs)
			}
			r, sum := last(t, out.String()), int64(0)
			for _, n := range r.PerProcess {
				sum += n
			}
			if r.Sent != 9 || r.Accepted != 9 || r.Rejected != 0 || sum != 9 || len(r.PerProcess) != test.processes {
				t.Errorf("%s", &out)
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
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for name, test := range map[string]struct{ addr, want string }{
		"password": {locked.Addr(), "NOAUTH"},
		"gone":     {gone.Addr().String(), gone.Addr().String()},
		"silent":   {silent.Addr().String(), "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "silent" {
				soak.Long(t, "waits ten seconds for the timeout")
			}
			var out, errs strings.Builder
			code := command(t.Context(), policy, []string{"-fleet", "3", "-duration", "1h", "-redis", "redis://" + test.addr}, &out, &errs)
			if code != 1 || !strings.HasPrefix(out.String(), "sent         0 in") || !strings.Contains(errs.String(), "Redis at "+test.addr) || !strings.Contains(errs.String(), test.want) {
				t.Errorf("code %d, stdout %q, stderr %q, want %q in it", code, &out, &errs, test.want)
			}
		})
	}
}

// An interrupted fleet ends its processes and writes its report.
func TestFleetInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := config{duration: 10 * time.Hour, workers: 4, fleet: 2, json: true, policy: parsed(t, "3/s | guard=1s")}
	api := throttletest.NewProvider(c.policy.Tiers...)
	defer api.Close()
	api.Hold = func() time.Duration {
		if len(api.Arrivals()) >= 3 {
			cancel()
		}
		return 0
	}
	var out strings.Builder
	if err := runFleet(ctx, c, target{url: api.URL, summary: api.Summary}, &out, io.Discard); err != nil {
		t.Error(err)
	}
	if r := last(t, out.String()); r.Sent < 2 {
		t.Errorf("%s", &out)
	}
}

// A process that fails ends the others. The report includes their requests.
func TestFleetFails(t *testing.T) {
	server := miniredis.RunT(t)
	c := config{duration: 10 * time.Hour, workers: 4, fleet: 2, json: true, policy: parsed(t, "3/s | guard=1s"), redis: "redis://" + server.Addr()}
	api := throttletest.NewProvider(c.policy.Tiers...)
	defer api.Close()
	api.Delay = func() time.Duration {
		for _, key := range server.DB(0).Keys() {
			_ = server.Set(key, "something else") // the next call finds this value
		}
		return 0
	}
	var out strings.Builder
	err := runFleet(t.Context(), c, target{url: api.URL, summary: api.Summary}, &out, io.Discard)
	if err == nil || !strings.HasPrefix(err.Error(), "process ") || !strings.Contains(err.Error(), "THROTTLE") {
		t.Errorf("error %v", err)
	}
	if r := last(t, out.String()); r.Sent == 0 {
		t.Errorf("%s", &out)
	}
}

// A process ends when its input ends, which happens at the latest when its parent ends.
func TestWorkerEndsWithItsInput(t *testing.T) {
	p := parsed(t, "3/h | guard=1s")
	api := throttletest.NewProvider(p.Tiers...)
	defer api.Close()
	text, err := json.Marshal(job{Policy: p, End: time.Now().Add(10 * time.Hour), Workers: 2, URL: api.URL, Redis: "redis://" + miniredis.RunT(t).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, job string
		code      int
		want      string
	}{{"no job", "", 1, "no job: EOF"}, {"malformed job", "no", 1, "no job: "}, {"job", string(text), 0, ""}} {
		var out, errs strings.Builder
		code := worker(t.Context(), strings.NewReader(test.job), &out, &errs)
		if code != test.code || !strings.HasPrefix(errs.String(), test.want) || (test.want == "") != (errs.Len() == 0) {
			t.Errorf("%s: code %d, %s%s", test.name, code, &out, &errs)
		}
		last(t, out.String())
	}
}
