package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// workerEnv is the environment variable that makes the program a process of a fleet.
const workerEnv = "COINBASE_WORKER"

// A job is what a process of a fleet does: the first line of its input. The end of the input stops it.
type job struct {
	Policy     throttle.Policy
	Workers    int
	Start, End time.Time
	URL        string // of the provider
	Redis      string
}

// worker runs one process of a fleet and returns its exit code. It writes its result. It ends with
// its parent, because its input then ends.
func worker(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var j job
	t := new(tally)
	err := json.NewDecoder(stdin).Decode(&j)
	if err != nil {
		err = fmt.Errorf("no job: %w", err)
	} else {
		go func() {
			_, _ = io.Copy(io.Discard, stdin) // blocks until the input ends
			stop()
		}()
		err = do(ctx, j, t)
	}
	if err := errors.Join(err, json.NewEncoder(stdout).Encode(t.counts())); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// do sends the requests of a job.
func do(ctx context.Context, j job, t *tally) error {
	options, err := redis.ParseURL(j.Redis)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	// The store is the only difference. Processes that start together on a busy machine may
	// need more than the default of a second for their first answer from Redis.
	j.Policy.Observer = t.observer()
	client, err := newClient(j.Policy, distributed.New(rdb, distributed.Options{Timeout: 10 * time.Second}))
	if err != nil {
		return err
	}
	// Status charges nothing. It fails if Redis is unavailable or unsuitable.
	if _, err := client.Transport.(*throttle.Transport).Limiter.Status(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("Redis at %s: %w", options.Addr, err)
	}
	select {
	case <-time.After(time.Until(j.Start)):
	case <-ctx.Done():
	}
	return send(ctx, j.Workers, j.End, client, target{url: j.URL, base: newBase()}, t)
}

// runFleet is like run, with several processes that share one quota in Redis. It ends all processes
// when one of them fails or the context ends. They also end with this process.
func runFleet(ctx context.Context, c config, api target, stdout, stderr io.Writer) error {
	at := c.redis
	if at == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		at = "redis://" + server.Addr()
	}
	c.policy.Name += fmt.Sprintf("-%08x", rand.Uint32()) // each run has a new quota
	fmt.Fprintf(stderr, "stand-in for Coinbase at %s; %v; processes: %d, workers in each: %d; for %v\n", api.url, c.policy, c.fleet, c.workers, c.duration)

	start := time.Now().Add(time.Second) // when all processes run
	j := job{Policy: c.policy, Workers: c.workers, Start: start, End: start.Add(c.duration), URL: api.url, Redis: at}
	stop := showProgress(stderr, start, func() result {
		s := api.summary()
		return result{Sent: s.Sent, Accepted: s.Accepted, Rejected: s.Refused}
	})
	results := make([]result, c.fleet)
	processes, working := errgroup.WithContext(ctx)
	for i := range results {
		processes.Go(func() (err error) {
			if results[i], err = process(working, j); err != nil {
				return fmt.Errorf("process %d: %w", i+1, err)
			}
			return nil
		})
	}
	err := processes.Wait()
	stop()
	var r report
	for _, p := range results {
		r.Sent, r.Accepted, r.Rejected = r.Sent+p.Sent, r.Accepted+p.Accepted, r.Rejected+p.Rejected
		r.Waited, r.Longest = r.Waited+p.Waited, max(r.Longest, p.Longest)
		r.PerProcess = append(r.PerProcess, p.Sent)
	}
	return finish(ctx, c, api, r, start, err, stdout)
}

// process runs another copy of this program, which does a job, and returns its result.
func process(ctx context.Context, j job) (r result, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return r, err
	}
	if err := json.NewEncoder(stdin).Encode(j); err != nil { // the pipe keeps it until the process reads it
		return r, err
	}
	cmd.Cancel = stdin.Close // the process ends with its input,
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	noResult := json.Unmarshal(stdout.Bytes(), &r)
	if cmd.ProcessState == nil || !cmd.ProcessState.Success() { // err is also set after Cancel
		return r, fmt.Errorf("%w %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return r, noResult
}
