// Coinbase runs a batch of requests at all the speed that 5 a second and 10,000
// an hour allow, from several goroutines, without a single 429.
//
//	go run ./examples/coinbase                       # against a strict stand-in, on this machine
//	go run ./examples/coinbase -duration 1m -json    # the last line is for a program
//	go run ./examples/coinbase -policy '20;algo=concurrency + 60/20s'
//	go run ./examples/coinbase -policy '5/s | guard=none'    # what happens without the guard
//	go run ./examples/coinbase -fleet 4                      # four processes, one quota
//	go run ./examples/coinbase -fleet 4 -redis redis://localhost:6379
//
// What a program of your own needs of it is newClient in batch.go: an http.Client
// whose Transport holds a limiter. How much of what the tiers allow was
// used is worked out in report.go, against a client that knows everything and
// loses no time on the way. What changes for several processes is one line in
// worker.go: the limiter is opened on a store in Redis.
//
// 5 a second and 10,000 an hour are the default of the Coinbase Cloud API
// (docs.cloud.coinbase.com/blockchain-infrastructure/docs/rate-limiting, read 21
// November 2026). The page does not say how they are counted: the stand-in counts
// over any second and any hour, which is the strictest way in common use.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if os.Getenv(asWorker) != "" {
		os.Exit(worker(ctx, os.Stdin, os.Stdout))
	}
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
