package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// always is the duration of a batch that ends with its last request.
const always = 1000 * time.Hour

// maxRequests is the most requests that wait in the queue, each with a goroutine.
const maxRequests = 50_000

// A config is the command line.
type config struct {
	duration time.Duration
	requests int64 // if 0, as many as the duration allows
	workers  int
	policy   throttle.Policy
	url      string // a real endpoint; if empty, the stand-in
	json     bool
	page     string // where the live page listens; if empty, there is none
	fleet    int    // processes that share the quota; if 0, this process has its own quota
	redis    string // the address of the fleet's Redis; if empty, a stand-in
}

// command runs the program. It returns 0 on success, 1 if the batch failed, and 2 if the command
// line is wrong.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
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
	api := endpoint(c.url, c.workers)
	if c.url == "" {
		api = standIn(c.policy, c.workers)
	}
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
	flags.Int64Var(&c.requests, "requests", 0, "send so `many` requests instead, at most 50000, and foretell when the last one is sent;\nall wait in the limiter's queue, so -workers means nothing")
	flags.IntVar(&c.workers, "workers", 4, "how `many` goroutines send requests, in each process")
	spec := flags.String("policy", policy.String(), "the `limits`, in the syntax of ParsePolicy; the stand-in has the same tiers.\nA batch waits as long as it must, so max_wait and max_queue are ignored")
	flags.StringVar(&c.url, "url", "", "a real `endpoint` to GET, instead of the stand-in")
	flags.BoolVar(&c.json, "json", false, "write one JSON object as the last line")
	flags.StringVar(&c.page, "page", "", "serve a live page at an `address` such as :8080 while the batch runs, to this machine\nunless the address names a host; /metrics is for Prometheus")
	flags.IntVar(&c.fleet, "fleet", 0, "how `many` processes share one quota in Redis, at most 64")
	flags.StringVar(&c.redis, "redis", "", "the `address` of a Redis for the fleet, such as redis://localhost:6379/0, instead\nof a stand-in in this process; without -fleet, for a fleet of one")
	if err := flags.Parse(args); err != nil {
		return c, flags, err
	}
	timed := false
	flags.Visit(func(f *flag.Flag) { timed = timed || f.Name == "duration" })
	if c.requests > 0 && !timed {
		c.duration = always
	}
	if c.redis != "" && c.fleet == 0 {
		c.fleet = 1
	}
	var err error
	c.policy, err = throttle.ParsePolicy(policy.Name, *spec)
	c.policy.MaxWait, c.policy.MaxQueue = 0, 0
	switch {
	case err != nil:
		err = fmt.Errorf("-policy: %w", err)
	case flags.NArg() > 0:
		err = fmt.Errorf("%q is not a flag: see -h", flags.Arg(0))
	case c.duration <= 0:
		err = fmt.Errorf("-duration is %v: it must be above 0", c.duration)
	case c.requests > 0 && timed:
		err = errors.New("-duration can't be set with -requests: the batch ends with its last request")
	case c.requests < 0 || c.requests > maxRequests:
		err = fmt.Errorf("-requests is %d: it must be from 1 to %d, or 0 for none", c.requests, maxRequests)
	case c.requests > 0 && c.fleet > 0:
		err = errors.New("-requests can't be set with a fleet: its queue is in several processes")
	case c.workers <= 0:
		err = fmt.Errorf("-workers is %d: it must be at least 1", c.workers)
	case c.fleet < 0 || c.fleet > maxProcesses:
		err = fmt.Errorf("-fleet is %d: it must be from 1 to %d, or 0 for none", c.fleet, maxProcesses)
	case c.fleet > 0 && c.page != "":
		err = errors.New("-page can't be set with a fleet: the limiters are in the other processes")
	case c.fleet > 0 && c.url != "":
		err = errors.New("-url can't be set with a fleet: only the stand-in counts the requests of all processes")
	case c.redis != "":
		err = checkRedis(c.redis)
	case c.url != "":
		err = checkURL(c.url)
	}
	return c, flags, err
}

// extent returns how long the batch is, in words.
func (c config) extent() string {
	if c.requests > 0 {
		return fmt.Sprintf("requests: %d", c.requests)
	}
	return fmt.Sprintf("workers: %d; for %v", c.workers, c.duration)
}

func checkRedis(text string) error {
	if _, err := redis.ParseURL(text); err != nil {
		return fmt.Errorf("-redis: %w: it must be like redis://localhost:6379/0", err)
	}
	return nil
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return fmt.Errorf("-url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("-url is %q: it must be like https://api.example.com/v1/time", text)
	}
	return nil
}

// oneOfEach returns the cost of a request: one of each unit that the policy counts.
func oneOfEach(p throttle.Policy) map[string]int64 {
	cost := map[string]int64{algorithms.Requests: 1}
	for _, t := range p.Tiers {
		if t.Unit != "" {
			cost[t.Unit] = 1
		}
	}
	return cost
}
