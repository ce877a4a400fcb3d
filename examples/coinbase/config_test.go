package main

import (
	"net"
	"strings"
	"testing"
)

func TestBadCommandLines(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-policy 5/x", `-policy: throttle: policy "coinbase": tier 0 "5/x"`},
		{"-policy 0/s", "Limit is 0"},
		{"-policy=", "-policy: "},
		{"-workers 0", "-workers is 0: it must be at least 1"},
		{"-workers many", "many"},
		{"-duration -1s", "-duration is -1s: it must be above 0"},
		{"-duration 15", "15"},
		{"-requests -1", "-requests is -1: it must be from 1 to 50000"},
		{"-requests 50001", "-requests is 50001: it must be from 1 to 50000"},
		{"-requests 5 -duration 15s", "-duration can't be set with -requests"},
		{"-requests 5 -fleet 2", "-requests can't be set with a fleet"},
		{"-url localhost:80", "-url"},
		{"-url ftp://example.com", "-url"},
		{"-speed 5", "-speed"},
		{"15s", `"15s" is not a flag`},
		{"-fleet -1", "-fleet is -1: it must be from 1 to 64"},
		{"-fleet 65", "-fleet is 65: it must be from 1 to 64"},
		{"-fleet 2 -url http://localhost", "-url can't be set with a fleet"},
		{"-redis redis://localhost -url http://localhost", "-url can't be set with a fleet"},
		{"-page :8080 -fleet 2", "-page can't be set with a fleet"},
		{"-redis localhost:6379", "-redis: "},
		{"-redis http://localhost:6379 -fleet 2", "-redis: "},
		{"-redis redis://localhost/none", "-redis: "},
	} {
		var out, errs strings.Builder
		code := command(t.Context(), strings.Fields(test.args), &out, &errs)
		if code != 2 || out.Len() > 0 || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%s: code %d, stdout %q, stderr %q, want %q in it", test.args, code, &out, &errs, test.want)
		}
	}
}

func TestHelp(t *testing.T) {
	var out, errs strings.Builder
	if code := command(t.Context(), []string{"-h"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	for _, name := range []string{"-duration", "-requests", "-workers", "-policy", "-url", "-json", "-fleet", "-redis", "-page"} {
		if !strings.Contains(out.String(), "\n  "+name) {
			t.Errorf("%s is missing in\n%s", name, &out)
		}
	}
}

// The stand-in accepts two requests. The next would come an hour later, after the end of the run.
func TestStandIn(t *testing.T) {
	var out, errs strings.Builder
	if code := command(t.Context(), []string{"-policy", "2/h", "-duration", "1s"}, &out, &errs); code != 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	const want = `sent         2 in 1 s
accepted     2
refused      0
rate         2.00/s
worst second 2, measured by the provider
utilization  100.0 % of 2 possible requests
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// The batch ends with its last request. Nothing is refused.
func TestRequests(t *testing.T) {
	var out, errs strings.Builder
	if code := command(t.Context(), []string{"-policy", "50/s|guard=10s", "-requests", "60"}, &out, &errs); code != 0 {
		t.Errorf("code %d, stderr %q", code, &errs)
	}
	if !strings.HasPrefix(out.String(), "sent         60 in ") || !strings.Contains(out.String(), "accepted     60\nrefused      0\n") {
		t.Errorf("got\n%s", &out)
	}
}

func TestConnectionRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	var out, errs strings.Builder
	code := command(t.Context(), []string{"-policy", "50/s", "-url", "http://" + l.Addr().String()}, &out, &errs)
	if code != 1 || !strings.Contains(errs.String(), "gave up") || !strings.Contains(out.String(), "\nfailed ") {
		t.Errorf("code %d, stdout\n%sstderr\n%s", code, &out, &errs)
	}
}
