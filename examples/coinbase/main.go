// Coinbase sends a batch of requests at the full rate of 5 a second and 10,000 an hour, without a
// single 429. Its policy, run and call are the part to copy. Add a Journal to a batch of yours that ends:
// it then goes on where it was after a crash, as docs/batch.md describes.
//
//	go run ./examples/coinbase                     # sends to a strict stand-in on this machine
//	go run ./examples/coinbase -duration 1h -page :8080           # with a live page
//	go run ./examples/coinbase -fleet 4 -redis redis://localhost:6379    # see worker in fleet.go
//
// 5 a second and 10,000 an hour are the default of the Coinbase Cloud API, by
// docs.cloud.coinbase.com/blockchain-infrastructure/docs/rate-limiting, read 21 November 2026.
package main

import (
	"cmp"
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
	"github.com/apithrottle/throttle/batch"
)

var policy = throttle.Policy{
	Name:  "coinbase",
	Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(10_000)},
}

// run sends requests until c.End. It waits until the limiter admits each.
func run(ctx context.Context, c config, limiter *throttle.Limiter, progress func(batch.Progress)) (batch.Report, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = c.Workers // by default two connections stay open
	transport := &throttle.Transport{Limiter: limiter, Base: cmp.Or(c.base, http.RoundTripper(base))}
	client := &http.Client{Transport: transport}
	ctx, cancel := context.WithDeadline(ctx, c.End)
	defer cancel()
	report, err := batch.Run(ctx, batch.Job[int, int, int]{
		Items:     endless,
		Transport: transport,
		AtOnce:    c.Workers,
		MaxInARow: 9,
		Do:        func(ctx context.Context, i int) (int, error) { return i, call(ctx, client, c.URL) },
		Progress:  progress,
	})
	if ctx.Err() != nil {
		err = nil // the batch lasts until then
	}
	return report, err
}

// endless yields items without end. Replace it with yours, such as slices.All(accounts).
func endless(yield func(int, int) bool) {
	for i := 0; yield(i, i); i++ {
	}
}

// call sends one request and reads the whole body, so that net/http can reuse the connection.
func call(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req) // blocks until the limiter admits the request
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch _, err = io.Copy(io.Discard, resp.Body); {
	case resp.StatusCode == http.StatusTooManyRequests:
		return &batch.RefusedError{Err: errors.New(resp.Status)} // the batch sends it again
	case resp.StatusCode >= http.StatusBadRequest:
		return errors.New(resp.Status)
	}
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if text := os.Getenv(workerEnv); text != "" {
		os.Exit(worker(ctx, text, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(command(ctx, policy, os.Args[1:], os.Stdout, os.Stderr))
}

// A config is the command line, and what the batch is about. A fleet passes it to its processes.
type config struct {
	Duration       time.Duration
	Workers, Fleet int
	Redis, page    string // addresses; if empty, there is none
	json           bool
	Policy         throttle.Policy
	URL            string            // of the API
	base           http.RoundTripper // if nil, a connection for each worker
	Start, End     time.Time         // of the batch
}

// command returns 0 on success, 1 if the batch failed, and 2 if the command line is wrong.
func command(ctx context.Context, p throttle.Policy, args []string, stdout, stderr io.Writer) int {
	c := config{Policy: p}
	flags := flag.NewFlagSet("coinbase", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&c.Duration, "duration", 15*time.Second, "how `long` to send requests")
	flags.IntVar(&c.Workers, "workers", 4, "how `many` requests wait or are sent at once, in each process")
	flags.BoolVar(&c.json, "json", false, "write one JSON object as the last line")
	flags.StringVar(&c.page, "page", "", "serve a live page at an `address` such as :8080 while the batch runs, to this machine\nunless the address names a host; /metrics is for Prometheus")
	flags.IntVar(&c.Fleet, "fleet", 0, "how `many` processes share one quota in Redis, at most 64")
	flags.StringVar(&c.Redis, "redis", "", "the `address` of a Redis for the fleet, such as redis://localhost:6379/0, instead\nof a stand-in in this process; without -fleet, for a fleet of one")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2 // flags has said why
	}
	code, err := 2, c.check(flags.Args())
	if err == nil {
		code, err = 1, c.send(ctx, stdout, stderr)
	}
	if err != nil {
		fmt.Fprintln(stderr, "coinbase:", err)
		return code
	}
	return 0
}

// check returns an error for a wrong command line.
func (c *config) check(args []string) (err error) {
	if c.Redis != "" {
		c.Fleet = max(c.Fleet, 1)
		if _, err = redis.ParseURL(c.Redis); err != nil {
			return fmt.Errorf("-redis: %w: it must be like redis://localhost:6379/0", err)
		}
	}
	switch {
	case len(args) > 0:
		return fmt.Errorf("%q is not a flag: see -h", args[0])
	case c.Duration <= 0 || c.Workers <= 0:
		return fmt.Errorf("-duration is %v and -workers is %d: they must be above 0", c.Duration, c.Workers)
	case c.Fleet < 0 || c.Fleet > 64:
		return fmt.Errorf("-fleet is %d: it must be from 1 to 64, or 0 for none", c.Fleet)
	case c.Fleet > 0 && c.page != "":
		return errors.New("-page can't be set with a fleet: the limiters are in the other processes")
	}
	return nil
}
