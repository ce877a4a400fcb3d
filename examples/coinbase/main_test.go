package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/throttletest"
)

func TestBadCommandLines(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-workers 0", "-workers is 0: it must be at least 1"},
		{"-workers many", "many"},
		{"-duration -1s", "-duration is -1s: it must be above 0"},
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
	if code := command(t.Context(), policy, []string{"-h"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	for _, name := range []string{"-duration", "-workers", "-json", "-fleet", "-redis", "-page"} {
		if !strings.Contains(out.String(), "\n  "+name) {
			t.Errorf("%s is missing in\n%s", name, &out)
		}
	}
}

// The stand-in accepts two requests. The next would come an hour later, after the end of the run.
func TestStandIn(t *testing.T) {
	var out, errs strings.Builder
	if code := command(t.Context(), parsed(t, "2/h"), []string{"-duration", "1s"}, &out, &errs); code != 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	const want = `sent         2 in 1 s
accepted     2
refused      0
rate         2.00/s
worst second 2, measured by the provider
utilization  100.0 % of 2 possible requests
waited       0.00 s on average, 0.00 s at most
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

func TestReport(t *testing.T) {
	r := report{
		result:  result{Sent: 18, Accepted: 16, Rejected: 1, Waited: 9 * time.Second, Longest: 1250 * time.Millisecond, Failure: "connection reset"},
		Seconds: 1, PerSecond: 16, WorstSecond: 5, Utilization: 0.8, PerProcess: []int64{10, 8},
	}
	const want = `sent         18 in 1 s
accepted     16
refused      1
failed       1, last error: connection reset
rate         16.00/s
worst second 5, measured by the provider
utilization  80.0 % of 20 possible requests
waited       0.50 s on average, 1.25 s at most
per process  10 8
{"sent":18,"accepted":16,"rejected":1,"waited_ns":9000000000,"longest_wait_ns":1250000000,"failure":"connection reset","seconds":1,"per_second":16,"worst_second":5,"utilization":0.8,"per_process":[10,8]}
`
	var b strings.Builder
	if err := r.write(&b, 20, true); err != nil || b.String() != want {
		t.Errorf("%v, got\n%swant\n%s", err, &b, want)
	}
	read, write := io.Pipe()
	read.Close()
	if err := r.write(write, 20, false); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a report that can't be written: %v", err)
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
		c := config{duration: 2 * time.Hour, workers: 5, policy: p, page: ":0"}
		done <- run(ctx, c, target{url: "http://api.example.com", base: api, summary: api.Summary}, io.Discard, write)
		write.Close()
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
	if resp, err := http.Get(m[1]); err == nil {
		resp.Body.Close()
		t.Error("the page is served after the batch")
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
