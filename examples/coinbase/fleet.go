package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/apithrottle/throttle/batch"
	"github.com/apithrottle/throttle/distributed"
)

// workerEnv is the environment variable that has the config of a process of a fleet.
const workerEnv = "COINBASE_WORKER"

// worker runs one process of a fleet until its input ends. It writes how many requests were accepted.
func worker(ctx context.Context, text string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // blocks until the input ends
		stop()
	}()
	var c config
	_ = json.Unmarshal([]byte(text), &c) // the parent has written it
	options, _ := redis.ParseURL(c.Redis)
	rdb := redis.NewClient(options)
	defer rdb.Close()
	// The store is the only difference. Processes that start together may wait long for its first answer.
	limiter, err := throttle.New(c.Policy, distributed.New(rdb, distributed.Options{Timeout: 10 * time.Second}))
	if err == nil {
		_, err = limiter.Status(ctx) // which fails if Redis is unavailable, and charges nothing
	}
	var r batch.Report
	if err == nil {
		time.Sleep(time.Until(c.Start)) // a second at most
		r, err = run(ctx, c, limiter, nil)
	}
	fmt.Fprintln(stdout, r.Done)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(stderr, "Redis at %s: %v\n", options.Addr, err)
		return 1
	}
	return 0
}

// inFleet runs the batch in processes that share one quota in Redis, and end with this one.
func (c config) inFleet(ctx context.Context, _ io.Writer) (perProcess []int64, err error) {
	if c.Redis == "" {
		server, err := miniredis.Run()
		if err != nil {
			return nil, err
		}
		defer server.Close()
		c.Redis = "redis://" + server.Addr()
	}
	c.Policy.Name += fmt.Sprintf("-%08x", rand.Uint32()) // each run has a new quota
	perProcess = make([]int64, c.Fleet)
	processes, ctx := errgroup.WithContext(ctx)
	for i := range perProcess {
		processes.Go(func() (err error) {
			if perProcess[i], err = process(ctx, c); err != nil {
				return fmt.Errorf("process %d: %w", i+1, err)
			}
			return nil
		})
	}
	return perProcess, processes.Wait()
}

// process runs another copy of this program as a worker.
func process(ctx context.Context, c config) (done int64, err error) {
	text, _ := json.Marshal(c)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	cmd.Cancel, cmd.WaitDelay = stdin.Close, 10*time.Second // the process ends with its input
	err = cmd.Run()
	_, _ = fmt.Sscan(stdout.String(), &done)
	if cmd.ProcessState == nil || !cmd.ProcessState.Success() { // err is also set after Cancel
		return done, fmt.Errorf("%w %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return done, nil
}
