package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// The tests start the test binary as workers.
func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		os.Exit(worker(context.Background(), os.Stdin, os.Stdout))
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
			if code := command(t.Context(), strings.Fields(test.args+" -policy 9/h|guard=10s -duration 1m -json"), &out, &errs); code != 0 {
				t.Fatalf("code %d, stderr %q", code, &errs)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var r report
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			sum := int64(0)
			for _, n := range r.PerWorker {
				sum += n
			}
			if r.Sent != 9 || r.Accepted != r.Sent || r.Rejected != 0 || sum != r.Sent {
				t.Errorf("%s", &out)
			}
			if r.Fleet != test.processes || len(r.PerWorker) != test.processes {
				t.Errorf("%d processes, each sent %v", r.Fleet, r.PerWorker)
			}
			if *r.RedisCalls <= 0 || *r.LeastToMost < 0 || *r.LeastToMost > 1 {
				t.Errorf("%v calls each, least to most %v", *r.RedisCalls, *r.LeastToMost)
			}
		})
	}
}

func TestReportWithoutFleet(t *testing.T) {
	line, err := json.Marshal(report{})
	if err != nil || strings.Contains(string(line), "fleet") || strings.Contains(string(line), "redis") {
		t.Errorf("%s, %v", line, err)
	}
}

func TestFleetReport(t *testing.T) {
	f := fleet{processes: []process{
		{last: result{Sent: 10, Accepted: 8, Rejected: 1, Calls: 12, Failure: "connection reset"}},
		{last: result{Sent: 8, Accepted: 8, Calls: 15}},
	}}
	var b strings.Builder
	r := f.report()
	r.observer = "the provider"
	r.setRates(time.Second, 20)
	if err := r.write(&b, true); err != nil {
		t.Error(err)
	}
	const want = `sent         18 in 1 s
accepted     16
refused      1
failed       1, last error: connection reset
rate         16.00/s
worst second 0, measured by the provider
utilization  80.0 % of 20 possible requests
per process  10 8
least ÷ most 0.80
Redis calls  1.50 per request
{"sent":18,"accepted":16,"rejected":1,"seconds":1,"per_second":16,"worst_second":0,"utilization":0.8,"fleet":2,"per_worker":[10,8],"least_to_most":0.8,"redis_calls_per_admission":1.5}
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", &b, want)
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
			code := command(t.Context(), []string{"-fleet", "3", "-duration", "1h", "-redis", "redis://" + test.addr}, &out, &errs)
			if code != 1 || out.Len() > 0 || !strings.Contains(errs.String(), "Redis at "+test.addr) || !strings.Contains(errs.String(), test.want) {
				t.Errorf("code %d, stdout %q, stderr %q, want %q in it", code, &out, &errs, test.want)
			}
		})
	}
}

// An interrupted fleet writes its report and ends its processes.
func TestFleetInterrupted(t *testing.T) {
	c, _, err := parse([]string{"-fleet", "2", "-policy", "3/s | guard=1s", "-duration", "10h", "-json"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
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
	if !strings.HasPrefix(out.String(), "sent  ") || strings.HasPrefix(out.String(), "sent         0 in") {
		t.Errorf("%s", &out)
	}
}

// A process that fails ends the others. The report includes their requests.
func TestFleetFails(t *testing.T) {
	c, _, err := parse([]string{"-fleet", "2", "-policy", "3/s | guard=1s", "-duration", "10h"})
	if err != nil {
		t.Fatal(err)
	}
	api := throttletest.NewProvider(c.policy.Tiers...)
	defer api.Close()
	server := miniredis.RunT(t)
	c.redis = "redis://" + server.Addr()
	api.Delay = func() time.Duration {
		for _, key := range server.DB(0).Keys() {
			_ = server.Set(key, "something else") // the next call finds this value
		}
		return 0
	}
	var out strings.Builder
	err = runFleet(t.Context(), c, target{url: api.URL, summary: api.Summary}, &out, io.Discard)
	if err == nil || !strings.HasPrefix(err.Error(), "process ") || !strings.Contains(err.Error(), "THROTTLE") {
		t.Errorf("error %v", err)
	}
	if !strings.HasPrefix(out.String(), "sent  ") {
		t.Errorf("%s", &out)
	}
}

// A worker ends when its input ends, which happens at the latest when its parent ends.
func TestWorkerEndsWithItsInput(t *testing.T) {
	policy := parsed(t, "3/h | guard=1s")
	api := throttletest.NewProvider(policy.Tiers...)
	defer api.Close()
	j := job{Policy: policy, Duration: 10 * time.Hour, Workers: 2, URL: api.URL, Redis: "redis://" + miniredis.RunT(t).Addr()}
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, input string
		code        int
		want        string
	}{
		{"no job", "", 1, "no job: EOF"},
		{"malformed job", "no", 1, "no job: "},
		{"no start", string(text), 1, "no start: EOF"},
		{"started", string(text) + "true", 0, ""},
	} {
		var out strings.Builder
		code := worker(t.Context(), strings.NewReader(test.input), &out)
		var last result
		for results := json.NewDecoder(strings.NewReader(out.String())); ; {
			if err := results.Decode(&last); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if code != test.code || !strings.HasPrefix(last.Error, test.want) || (test.want == "") != (last.Error == "") {
			t.Errorf("%s: code %d, %s", test.name, code, &out)
		}
	}
}

func TestNoSuchProcess(t *testing.T) {
	var p process
	if err := p.exit(); err != nil {
		t.Error(err)
	}
	f := fleet{processes: make([]process, 3), end: func() {}}
	f.wait()
	if r := f.report(); r.LeastToMost != nil || r.RedisCalls != nil || !slices.Equal(r.PerWorker, []int64{0, 0, 0}) {
		t.Errorf("%+v", r)
	}
}
