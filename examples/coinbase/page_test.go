package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/throttletest"
)

// TestPage reads the page of a batch that runs, and checks that it ends with the batch.
func TestPage(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	p := parsed(t, "3/h")
	c := config{duration: time.Hour, requests: 5, workers: 1, policy: p, page: ":0"}
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, c, target{url: "http://api.example.com", base: throttletest.New(p.Tiers...)}, io.Discard, write)
		write.Close()
	}()
	first := make([]byte, 200)
	n, _ := read.Read(first)
	go func() { _, _ = io.Copy(io.Discard, read) }()
	m := regexp.MustCompile(`^live page: (http://127\.0\.0\.1:\d+/)\n$`).FindStringSubmatch(string(first[:n]))
	if m == nil {
		t.Fatalf("%q, want the URL of the page", first[:n])
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
		if code := command(t.Context(), []string{"-page", address}, &out, &errs); code != 1 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: code %d, %q, want %q", address, code, &errs, want)
		}
	}
}
