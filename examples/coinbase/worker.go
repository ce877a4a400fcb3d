package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// workerEnv is the environment variable that makes the program a worker.
const workerEnv = "COINBASE_WORKER"

// A job is the first line of a worker's standard input. The second line, true, starts the batch.
// The end of the input stops it.
type job struct {
	Policy   throttle.Policy
	Duration time.Duration
	Workers  int    // goroutines
	URL      string // of the provider
	Redis    string
}

// A result is a line of a worker's standard output: the first when the worker is ready, the second
// after the run. A result with an Error is the last.
type result struct {
	Sent, Accepted, Rejected int64
	Calls                    int64  // runs of the script in Redis during the batch
	Failure                  string // the error of the last request without a response, if any
	Error                    string // the error that ended the worker, if any
}

// worker runs one process of a fleet and returns its exit code. It ends with its parent, because
// its input then ends.
func worker(ctx context.Context, stdin io.Reader, stdout io.Writer) int {
	input, output := json.NewDecoder(stdin), json.NewEncoder(stdout)
	r, err := runJob(ctx, input, func() error { return output.Encode(result{}) })
	if err != nil {
		r.Error = err.Error()
	}
	if output.Encode(r) != nil || err != nil {
		return 1
	}
	return 0
}

// runJob reads a job, calls ready, waits for the start, and sends requests.
func runJob(ctx context.Context, input *json.Decoder, ready func() error) (res result, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var j job
	if err := input.Decode(&j); err != nil {
		return res, fmt.Errorf("no job: %w", err)
	}
	options, err := redis.ParseURL(j.Redis)
	if err != nil {
		return res, err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	calls := new(callCounter)
	rdb.AddHook(calls)
	// The store is the only difference. Processes that start together on a busy machine may
	// need more than the default of a second for their first answer from Redis.
	store := distributed.New(rdb, distributed.Options{Timeout: 10 * time.Second})
	client, err := newClient(j.Policy, store)
	if err != nil {
		return res, err
	}
	// Status charges nothing. It fails if Redis is unavailable or unsuitable.
	if _, err := client.Transport.(*throttle.Transport).Limiter.Status(ctx); err != nil {
		return res, fmt.Errorf("Redis at %s: %w", options.Addr, err)
	}
	before := calls.n.Load()

	var begin bool
	if err := errors.Join(ready(), input.Decode(&begin)); err != nil {
		return res, fmt.Errorf("no start: %w", err)
	}
	go func() {
		_ = input.Decode(new(any)) // blocks until the input ends
		stop()
	}()
	count := newTally(time.Now(), 0)
	c := config{duration: j.Duration, workers: j.Workers, policy: j.Policy}
	err = send(ctx, c, client, endpoint(j.URL, j.Workers), count)
	r := count.report()
	res = result{Sent: r.Sent, Accepted: r.Accepted, Rejected: r.Rejected, Calls: calls.n.Load() - before}
	if r.Sent > r.Accepted+r.Rejected {
		res.Failure = r.failure.Error()
	}
	return res, err
}

// A callCounter is a hook that counts how often a Redis client runs the limiter's script. It
// ignores commands that set up connections, and subscriptions.
type callCounter struct{ n atomic.Int64 }

func (c *callCounter) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") || cmd.Name() == "fcall" {
			c.n.Add(1)
		}
	}
}

// DialHook implements redis.Hook.
func (c *callCounter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (c *callCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (c *callCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.count(cmds...)
		return next(ctx, cmds)
	}
}
