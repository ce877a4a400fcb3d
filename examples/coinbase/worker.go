package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/calls"
)

// asWorker is the environment variable that makes the program a worker.
const asWorker = "COINBASE_WORKER"

// An order is the first line on a worker's standard input. The second, true, tells
// it to begin, and the end of the input to stop.
type order struct {
	Policy   throttle.Policy
	Duration time.Duration
	Workers  int    // goroutines
	URL      string // of the provider
	Redis    string
}

// An answer is a line on a worker's standard output: the first when it is ready,
// the second when the run is over. None comes after one with an Error.
type answer struct {
	Sent, Accepted, Rejected int64
	Calls                    int64  // of the script in Redis, during the run
	Failure                  string // why a request had no answer, the last one; empty if all had
	Error                    string // why the worker gave up; empty if it didn't
}

// worker is one process of a fleet. It ends with its parent, whatever becomes of
// that: its input ends then. The result is the exit code.
func worker(ctx context.Context, stdin io.Reader, stdout io.Writer) int {
	orders, answers := json.NewDecoder(stdin), json.NewEncoder(stdout)
	a, err := obey(ctx, orders, func() error { return answers.Encode(answer{}) })
	if err != nil {
		a.Error = err.Error()
	}
	if answers.Encode(a) != nil || err != nil {
		return 1
	}
	return 0
}

// obey takes an order, says when it is ready, and sends when it is told to begin.
func obey(ctx context.Context, orders *json.Decoder, ready func() error) (a answer, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var o order
	if err := orders.Decode(&o); err != nil {
		return a, fmt.Errorf("no order: %w", err)
	}
	options, err := redis.ParseURL(o.Redis)
	if err != nil {
		return a, err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	asked := new(calls.Counter)
	rdb.AddHook(asked)
	// The store is the only difference. Processes that start together on a busy machine may
	// need more than the usual second for their first answer.
	limiter, err := throttle.New(o.Policy, distributed.New(rdb, distributed.Options{Timeout: 10 * time.Second}))
	if err != nil {
		return a, err
	}
	if _, err := limiter.Status(ctx); err != nil { // charges nothing, and fails if Redis won't do
		return a, fmt.Errorf("Redis at %s: %w", options.Addr, err)
	}
	before := asked.Count()

	var begin bool
	if err := errors.Join(ready(), orders.Decode(&begin)); err != nil {
		return a, fmt.Errorf("not told to begin: %w", err)
	}
	go func() {
		_ = orders.Decode(new(any)) // blocks until the input ends
		stop()
	}()
	count := newTally(time.Now())
	c := config{duration: o.Duration, workers: o.Workers, policy: o.Policy}
	err = send(ctx, c, limiter, endpoint(o.URL, o.Workers), count)
	r := count.report()
	a = answer{Sent: r.Sent, Accepted: r.Accepted, Rejected: r.Rejected, Calls: asked.Count() - before}
	if r.Sent > r.Accepted+r.Rejected {
		a.Failure = r.failure.Error()
	}
	return a, err
}
