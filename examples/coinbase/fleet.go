package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"golang.org/x/sync/errgroup"
)

const maxProcesses = 64

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
	fmt.Fprintf(stderr, "%s; %v; processes: %d, workers in each: %d; for %v\n", api.name, c.policy, c.fleet, c.workers, c.duration)

	working, end := context.WithCancel(ctx)
	f := fleet{processes: make([]process, c.fleet), end: end}
	defer f.wait()
	err := f.each(func(p *process) error {
		return p.start(working, job{Policy: c.policy, Duration: c.duration, Workers: c.workers, URL: api.url, Redis: at})
	})
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	start := time.Now()
	possible := sync.OnceValue(func() int64 { return upperBound(c.policy, start, c.duration) })
	stop := showProgress(stderr, func() progress {
		s := api.summary()
		p := progress{Elapsed: time.Since(start), Sent: s.Sent, Accepted: s.Accepted, Rejected: s.Refused, InFlight: -1}
		p.until(c.duration, possible)
		return p
	})
	err = f.each((*process).work)
	stop()
	return writeReport(ctx, c, api, start, f.report(), err, stdout)
}

// A fleet is the processes of a run.
type fleet struct {
	processes []process
	end       context.CancelFunc // ends the processes
}

// each calls do for all processes concurrently. The first error ends all processes.
func (f *fleet) each(do func(*process) error) error {
	var all errgroup.Group
	for i := range f.processes {
		all.Go(func() error {
			err := do(&f.processes[i])
			if err != nil {
				f.end()
				return fmt.Errorf("process %d: %w", i+1, err)
			}
			return nil
		})
	}
	return all.Wait()
}

// wait ends the processes and waits for their exit.
func (f *fleet) wait() {
	f.end()
	for i := range f.processes {
		_ = f.processes[i].exit()
	}
}

// report adds up the results of the processes.
func (f *fleet) report() report {
	r := report{Fleet: len(f.processes)}
	calls := int64(0)
	for i := range f.processes {
		a := f.processes[i].last
		r.Sent, r.Accepted, r.Rejected = r.Sent+a.Sent, r.Accepted+a.Accepted, r.Rejected+a.Rejected
		r.PerWorker = append(r.PerWorker, a.Sent)
		calls += a.Calls
		if a.Failure != "" {
			r.failure = errors.New(a.Failure)
		}
	}
	if r.Sent > 0 {
		fair := round(float64(slices.Min(r.PerWorker))/float64(slices.Max(r.PerWorker)), 4)
		each := round(float64(calls)/float64(r.Sent), 4)
		r.LeastToMost, r.RedisCalls = &fair, &each
	}
	return r
}

// A process is a worker process: another copy of this program. The zero process has not started.
type process struct {
	cmd    *exec.Cmd
	input  *json.Encoder
	output *json.Decoder
	last   result
	stderr bytes.Buffer
}

// start starts the process and blocks until it is ready.
func (p *process) start(ctx context.Context, j job) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	cmd.Stderr = &p.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = stdin.Close      // the process ends with its input,
	cmd.WaitDelay = grace + grace // or is killed
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.input, p.output = cmd, json.NewEncoder(stdin), json.NewDecoder(stdout)
	_ = p.input.Encode(j) // if this fails, so does readResult
	return p.readResult()
}

// work starts the process's batch and blocks until the process has reported and exited.
func (p *process) work() error {
	_ = p.input.Encode(true)
	if err := p.readResult(); err != nil {
		return err
	}
	return p.exit()
}

// readResult reads the next result of the process.
func (p *process) readResult() error {
	if err := p.output.Decode(&p.last); err != nil {
		_ = p.cmd.Cancel() // the process may still run
		return cmp.Or(p.exit(), fmt.Errorf("no result: %w", err))
	}
	if p.last.Error != "" {
		return errors.New(p.last.Error)
	}
	return nil
}

// exit waits for the end of the process.
func (p *process) exit() error {
	if p.cmd == nil || p.cmd.ProcessState != nil {
		return nil
	}
	if err := p.cmd.Wait(); !p.cmd.ProcessState.Success() { // err is also set after Cancel
		return fmt.Errorf("%w %s", err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	return nil
}
