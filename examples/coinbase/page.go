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

// servePage serves the live page, and metrics for Prometheus, until stop is called. The page is for
// this machine only, unless the address names another host.
func servePage(c config, stats *observe.Stats, l *throttle.Limiter, stderr io.Writer) (stop func(), err error) {
	if c.page == "" {
		return func() {}, nil
	}
	if err := stats.Watch(c.policy.Name, l); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(c.page)
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
