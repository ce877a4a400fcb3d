// Coinbase sends a batch of requests at the full rate of 5 a second and 10,000 an hour, from
// several goroutines, without a single 429. Its policy and newClient are the part to copy. The rest
// of the program runs workers and reports what they got.
//
//	go run ./examples/coinbase                       # sends to a strict stand-in on this machine
//	go run ./examples/coinbase -duration 1m -json    # with a last line of JSON
//	go run ./examples/coinbase -duration 1h -page :8080      # with a live page
//	go run ./examples/coinbase -fleet 4                      # four processes with one quota
//	go run ./examples/coinbase -fleet 4 -redis redis://localhost:6379
//
// With several processes, only the store differs: see worker in fleet.go.
//
// 5 a second and 10,000 an hour are the default of the Coinbase Cloud API
// (docs.cloud.coinbase.com/blockchain-infrastructure/docs/rate-limiting, read 21 November 2026).
// The page does not document how Coinbase counts. The stand-in counts over any second and any hour,
// which is the strictest way in common use.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
)

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
		os.Exit(worker(ctx, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(command(ctx, policy, os.Args[1:], os.Stdout, os.Stderr))
}

// A config is the command line, and the policy of the batch.
type config struct {
	duration time.Duration
	workers  int
	fleet    int    // processes that share the quota; if 0, this process has its own quota
	redis    string // the address of the fleet's Redis; if empty, a stand-in
	page     string // where the live page listens; if empty, there is none
	json     bool
	policy   throttle.Policy
}

// command runs the program. It returns 0 on success, 1 if the batch failed, and 2 if the command
// line is wrong.
func command(ctx context.Context, p throttle.Policy, args []string, stdout, stderr io.Writer) int {
	c, flags, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, "Usage: coinbase [flags]\n\nSends a batch of requests within the limits of an API.\n\n")
		flags.SetOutput(stdout)
		flags.PrintDefaults()
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "coinbase: %v\nRun it with -h for the flags.\n", err)
		return 2
	}
	c.policy = p
	api := standIn(p)
	defer api.close()
	batch := run
	if c.fleet > 0 {
		batch = runFleet
	}
	if err := batch(ctx, c, api, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "coinbase:", err)
		return 1
	}
	return 0
}

// parse reads and checks the command line.
func parse(args []string) (config, *flag.FlagSet, error) {
	var c config
	flags := flag.NewFlagSet("coinbase", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.DurationVar(&c.duration, "duration", 15*time.Second, "how `long` to send requests")
	flags.IntVar(&c.workers, "workers", 4, "how `many` goroutines send requests, in each process")
	flags.BoolVar(&c.json, "json", false, "write one JSON object as the last line")
	flags.StringVar(&c.page, "page", "", "serve a live page at an `address` such as :8080 while the batch runs, to this machine\nunless the address names a host; /metrics is for Prometheus")
	flags.IntVar(&c.fleet, "fleet", 0, "how `many` processes share one quota in Redis, at most 64")
	flags.StringVar(&c.redis, "redis", "", "the `address` of a Redis for the fleet, such as redis://localhost:6379/0, instead\nof a stand-in in this process; without -fleet, for a fleet of one")
	if err := flags.Parse(args); err != nil {
		return c, flags, err
	}
	if c.redis != "" && c.fleet == 0 {
		c.fleet = 1
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag: see -h", flags.Arg(0))
	case c.duration <= 0:
		err = fmt.Errorf("-duration is %v: it must be above 0", c.duration)
	case c.workers <= 0:
		err = fmt.Errorf("-workers is %d: it must be at least 1", c.workers)
	case c.fleet < 0 || c.fleet > 64:
		err = fmt.Errorf("-fleet is %d: it must be from 1 to 64, or 0 for none", c.fleet)
	case c.fleet > 0 && c.page != "":
		err = errors.New("-page can't be set with a fleet: the limiters are in the other processes")
	case c.redis != "":
		if _, err = redis.ParseURL(c.redis); err != nil {
			err = fmt.Errorf("-redis: %w: it must be like redis://localhost:6379/0", err)
		}
	}
	return c, flags, err
}
