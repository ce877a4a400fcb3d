package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// watched sets the Observer of the policy if the batch has a page, and returns what it observes.
func (c *config) watched() *observe.Stats {
	if c.page == "" {
		return nil
	}
	stats := observe.NewStats()
	c.policy.Observer = stats.Observer()
	return stats
}

// servePage serves the live page, and metrics for Prometheus, until stop is called. The page is for
// this machine only, unless the address names another host.
func servePage(address string, stats *observe.Stats, l *throttle.Limiter, stderr io.Writer) (stop func(), err error) {
	if stats == nil {
		return func() {}, nil
	}
	if err := stats.Watch(policy.Name, l); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("-page: %w", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return nil, fmt.Errorf("-page: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", page.New(page.Options{Stats: stats, Title: "Coinbase"}))
	mux.Handle("/metrics", stats.Metrics())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = server.Serve(listener) }() // until stop
	fmt.Fprintf(stderr, "live page: http://%s/\n", listener.Addr())
	return func() { _ = server.Close() }, nil
}
