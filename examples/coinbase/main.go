// Coinbase sends a batch of requests at the full rate of 5 a second and 10,000 an hour, from
// several goroutines, without a single 429. Its policy and newClient are the part to copy. The rest
// of the program runs workers and measures.
//
//	go run ./examples/coinbase                       # sends to a strict stand-in on this machine
//	go run ./examples/coinbase -duration 1m -json    # with a last line of JSON
//	go run ./examples/coinbase -requests 10001       # the last one takes half an hour: 10,000 an hour
//	go run ./examples/coinbase -duration 1h -page :8080      # with a live page
//	go run ./examples/coinbase -policy '20;algo=concurrency + 60/20s'
//	go run ./examples/coinbase -policy '5/s | guard=none'    # what happens without the guard
//	go run ./examples/coinbase -fleet 4                      # four processes with one quota
//	go run ./examples/coinbase -fleet 4 -redis redis://localhost:6379
//
// The report in report.go compares the batch with a perfect client, which loses no time. With
// several processes, only the store differs: see worker.go.
//
// 5 a second and 10,000 an hour are the default of the Coinbase Cloud API
// (docs.cloud.coinbase.com/blockchain-infrastructure/docs/rate-limiting, read 21 November 2026).
// The page does not document how Coinbase counts. The stand-in counts over any second and any hour,
// which is the strictest way in common use.
package main

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/apithrottle/throttle"
)

// policy is the default of the flag -policy.
var policy = throttle.Policy{
	Name:  "coinbase",
	Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10_000)},
}

// newClient returns a client whose requests wait until the policy admits them. With a nil store,
// the quota is the client's own. With a store in Redis, processes share it.
func newClient(p throttle.Policy, store throttle.Store) (*http.Client, error) {
	limiter, err := throttle.New(p, store)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &throttle.Transport{Limiter: limiter}}, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if os.Getenv(workerEnv) != "" {
		os.Exit(worker(ctx, os.Stdin, os.Stdout))
	}
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
