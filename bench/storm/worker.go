package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/bench/internal/cpu"
)

const (
	workerEnv     = "STORM_WORKER"
	startBatch    = 16      // workers that start at the same time
	minFreeMemory = 4 << 30 // bytes of available memory below which no worker is started
)

// A job is the work of a worker.
type job struct {
	Addr                   string // of the server
	Limit                  int64  // per second
	Waiters, Keys, First   int
	Inner                  int64 // see scenario
	Begin, Measure, Finish time.Time
}

// A report has the results of a worker.
type report struct {
	Observations observations
	CPU          time.Duration // during the measurement
	// Memory is in bytes, with a proportional part of memory that processes share. If zero, it
	// is not known.
	Memory int64
}

// A worker is a process of the operating system.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startWorker starts this program as a worker, which waits for its job. A worker ends when its
// input ends, which also happens when this program dies.
func startWorker() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd, in, bufio.NewReader(out)}
	if _, err := w.out.ReadString('\n'); err != nil {
		w.end()
		return nil, fmt.Errorf("starting a worker: %w", err)
	}
	return w, nil
}

func (w *worker) end() {
	w.in.Close()
	_ = w.cmd.Wait()
}

// runWorkers runs a fleet of processes of the operating system. The available memory limits
// their number.
func (r *run) runWorkers() (result, error) {
	workers, failed := r.startAll()
	defer func() {
		var ends sync.WaitGroup
		for _, w := range workers {
			ends.Go(w.end)
		}
		ends.Wait()
	}()
	if len(workers) == 0 {
		return result{}, failed
	}
	r.start = time.Now().Add(second)
	j := job{Addr: r.server.Addr(), Limit: r.limit, Waiters: r.waiters, Keys: r.keys, Inner: r.inner, Begin: r.start, Measure: r.start.Add(r.warmUp), Finish: r.start.Add(r.warmUp + r.length)}
	reports, errs := make([]report, len(workers)), make([]error, len(workers))
	var all sync.WaitGroup
	for i, w := range workers {
		own := j
		own.First = i
		all.Go(func() {
			if errs[i] = json.NewEncoder(w.in).Encode(own); errs[i] == nil {
				errs[i] = json.NewDecoder(w.out).Decode(&reports[i])
			}
		})
	}
	time.Sleep(time.Until(j.Measure))
	first, err := r.usage()
	if err != nil {
		return result{}, err
	}
	time.Sleep(time.Until(j.Finish))
	last, err := r.usage()
	if err != nil {
		return result{}, err
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return result{}, err
	}
	last.client -= first.client
	first.client = 0
	var memory int64
	for _, w := range reports {
		r.fleet = append(r.fleet, &process{observations: w.Observations})
		last.client += w.CPU
		memory += w.Memory
	}
	out, err := r.result(first, last)
	out.notes = append(out.notes, fmt.Sprintf("%d processes, %d MB", len(workers), memory>>20))
	if failed != nil {
		out.notes = append(out.notes, failed.Error())
	}
	return out, err
}

// startAll starts the workers. If it starts fewer than r.processes, it returns the reason.
func (r *run) startAll() (workers []*worker, failed error) {
	for len(workers) < r.processes && failed == nil {
		if left, known := availableMemory(); known && left < minFreeMemory {
			return workers, fmt.Errorf("%d MB of memory are available, and a worker starts only if %d MB are", left>>20, minFreeMemory>>20)
		}
		batch := make([]*worker, min(startBatch, r.processes-len(workers)))
		errs := make([]error, len(batch))
		var all sync.WaitGroup
		for i := range batch {
			all.Go(func() { batch[i], errs[i] = startWorker() })
		}
		all.Wait()
		for _, w := range batch {
			if w != nil {
				workers = append(workers, w)
			}
		}
		failed = errors.Join(errs...)
	}
	return workers, failed
}

// runJob is the main function of a worker. It returns the exit code.
func runJob(in io.Reader, out io.Writer) int {
	redis.SetLogger(silent{})
	fmt.Fprintln(out, "ready")
	var j job
	input := json.NewDecoder(in)
	if err := input.Decode(&j); err != nil {
		return 1
	}
	go func() {
		_ = input.Decode(new(any)) // blocks until the input ends
		os.Exit(0)
	}()
	rdb := redis.NewClient(&redis.Options{Addr: j.Addr})
	p, err := newProcess(scenario{waiters: j.Waiters, keys: j.Keys, inner: j.Inner, tiers: []throttle.Tier{perSecond(j.Limit)}}, rdb)
	if err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		return 1
	}
	p.first = j.First
	time.Sleep(time.Until(j.Begin))
	ctx, cancel := context.WithCancel(context.Background())
	go p.run(ctx, j.Begin)
	time.Sleep(time.Until(j.Measure))
	used := cpu.Used()
	time.Sleep(time.Until(j.Finish))
	r := report{CPU: cpu.Used() - used, Memory: usedMemory()}
	cancel()
	<-p.done
	r.Observations = p.observations
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return 1
	}
	select {} // until the input ends: cancellations of reservations may still be in flight
}

var (
	available    = regexp.MustCompile(`(?m)^MemAvailable: +(\d+) kB$`)
	proportional = regexp.MustCompile(`(?m)^Pss: +(\d+) kB$`)
)

// availableMemory returns the bytes of memory that the system has available. It returns false
// if the system doesn't report them.
func availableMemory() (bytes int64, known bool) { return kilobytes("/proc/meminfo", available) }

// usedMemory returns the bytes of memory of this process, with its proportional part of shared
// memory.
func usedMemory() int64 {
	n, _ := kilobytes("/proc/self/smaps_rollup", proportional)
	return n
}

func kilobytes(file string, field *regexp.Regexp) (bytes int64, known bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	found := field.FindSubmatch(text)
	if found == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	return n << 10, err == nil
}
