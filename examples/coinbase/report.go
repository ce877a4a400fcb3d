package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
	"github.com/apithrottle/throttle/throttletest"
)

// send runs the batch, in this process or in those of a fleet, and writes a report, also if it fails. It
// sends to a strict provider on this machine, which counts each request 1 to 10 ms after it was sent.
func (c config) send(ctx context.Context, stdout, stderr io.Writer) error {
	api := throttletest.NewProvider(c.Policy.Tiers...)
	defer api.Close()
	api.Delay = func() time.Duration { return time.Millisecond + rand.N(9*time.Millisecond) }
	c.URL = api.URL + "/v1/accounts"
	fmt.Fprintf(stderr, "stand-in for Coinbase at %s; %v; for %v\n", c.URL, c.Policy, c.Duration)
	c.Start = time.Now()
	do := config.alone
	if c.Fleet > 0 {
		c.Start, do = c.Start.Add(time.Second), config.inFleet // when all processes run
	}
	c.End = c.Start.Add(c.Duration)
	perProcess, err := do(c, ctx, stderr)
	s, took := api.Summary(), min(c.Duration, max(time.Since(c.Start), time.Microsecond)) // it may have ended early
	return errors.Join(err, c.report(stdout, s, took, perProcess))
}

// report writes what the provider has counted, with a last line of JSON if -json is set.
func (c config) report(w io.Writer, s throttletest.Summary, took time.Duration, perProcess []int64) error {
	most := possible(c.Policy, took)
	used := float64(s.Accepted) / float64(most)
	_, err := fmt.Fprintf(w, "sent         %d in %.1f s\naccepted     %d\nrefused      %d\nrate         %.2f/s\n"+
		"worst second %d\nutilization  %.1f %% of %d possible requests\n", s.Sent, took.Seconds(), s.Accepted, s.Refused,
		float64(s.Accepted)/took.Seconds(), s.WorstSecond, 100*used, most)
	if c.Fleet > 0 {
		fmt.Fprintf(w, "per process  %d\n", perProcess)
	}
	if c.json {
		err = json.NewEncoder(w).Encode(map[string]any{
			"sent": s.Sent, "accepted": s.Accepted, "refused": s.Refused, "seconds": took.Seconds(),
			"worst_second": s.WorstSecond, "utilization": used, "per_process": perProcess,
		})
	}
	return err
}

// possible returns how many requests the policy accepts within d if each takes no time.
func possible(p throttle.Policy, d time.Duration) (n int64) {
	counter, _ := throttletest.NewCounter(p.Tiers...) // the tiers of a policy are valid
	for at, _ := counter.Earliest(0, nil); at < d.Microseconds(); at, _ = counter.Earliest(at, nil) {
		counter.Arrive(at, nil)
		n++
	}
	return n
}

// alone runs the batch in this process, with a live page if -page is set. The page, and metrics for
// Prometheus, are for this machine only, unless the address names another host.
func (c config) alone(ctx context.Context, stderr io.Writer) (perProcess []int64, err error) {
	stats := observe.NewStats()
	c.Policy.Observer = stats.Observer()
	limiter, err := throttle.New(c.Policy, nil)
	if err != nil {
		return nil, err
	}
	if c.page != "" {
		host, port, err := net.SplitHostPort(c.page)
		var listener net.Listener
		if err == nil {
			listener, err = net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
		}
		if err != nil {
			return nil, fmt.Errorf("-page: %w", err)
		}
		defer listener.Close()
		mux := http.NewServeMux()
		mux.Handle("/", page.New(page.Options{Stats: stats, Title: "Coinbase"}))
		mux.Handle("/metrics", stats.Metrics())
		go func() { _ = http.Serve(listener, mux) }() // until the listener is closed
		fmt.Fprintf(stderr, "live page: http://%s/\n", listener.Addr())
		_ = stats.Watch(limiter.Name(), limiter) // the only one
	}
	_, err = run(ctx, c, limiter, batch.Bar(stderr))
	return nil, err
}
