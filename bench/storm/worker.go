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
	asWorker    = "STORM_WORKER"
	startedOnce = 16      // workers that start at the same time
	spareMemory = 4 << 30 // bytes that are left to others: no worker is started beyond
)

// An order is what a worker does.
type order struct {
	Addr                   string // of the server
	Limit                  int64  // a second
	Waiters                int
	Begin, Measure, Finish time.Time
}

// A report is what a worker did.
type report struct {
	Seen   seen
	CPU    time.Duration // while it was measured
	Memory int64         // bytes, of which those that processes share count in parts; 0 where not known
}

// A worker is a process of the system.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startWorker starts this program as a worker, which waits for its order. It ends when its
// input does, as when this program has died.
func startWorker() (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asWorker+"=1", "GOMAXPROCS=1")
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
		return nil, fmt.Errorf("a worker does not start: %w", err)
	}
	return w, nil
}

func (w *worker) end() {
	w.in.Close()
	_ = w.cmd.Wait()
}

// hire plays a fleet of processes of the system: as many as there is memory for.
func (r *run) hire() (result, error) {
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
	r.began = time.Now().Add(second)
	o := order{Addr: r.server.Addr(), Limit: r.limit, Waiters: r.waiters, Begin: r.began, Measure: r.began.Add(r.warm), Finish: r.began.Add(r.warm + r.length)}
	reports, errs := make([]report, len(workers)), make([]error, len(workers))
	var all sync.WaitGroup
	for i, w := range workers {
		all.Go(func() {
			if errs[i] = json.NewEncoder(w.in).Encode(o); errs[i] == nil {
				errs[i] = json.NewDecoder(w.out).Decode(&reports[i])
			}
		})
	}
	time.Sleep(time.Until(o.Measure))
	first, err := r.usage()
	if err != nil {
		return result{}, err
	}
	time.Sleep(time.Until(o.Finish))
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
	for _, p := range reports {
		r.members = append(r.members, &member{seen: p.Seen})
		last.client += p.CPU
		memory += p.Memory
	}
	out, err := r.result(first, last)
	out.notes = append(out.notes, fmt.Sprintf("%d processes, %d MB", len(workers), memory>>20))
	if failed != nil {
		out.notes = append(out.notes, failed.Error())
	}
	return out, err
}

// startAll starts the workers, and returns why there are no more.
func (r *run) startAll() (workers []*worker, failed error) {
	for len(workers) < r.processes && failed == nil {
		if left, known := availableMemory(); known && left < spareMemory {
			return workers, fmt.Errorf("%d MB of memory are left", left>>20)
		}
		some := make([]*worker, min(startedOnce, r.processes-len(workers)))
		errs := make([]error, len(some))
		var all sync.WaitGroup
		for i := range some {
			all.Go(func() { some[i], errs[i] = startWorker() })
		}
		all.Wait()
		for _, w := range some {
			if w != nil {
				workers = append(workers, w)
			}
		}
		failed = errors.Join(errs...)
	}
	return workers, failed
}

// work is what a worker does. It returns what to exit with.
func work(in io.Reader, out io.Writer) int {
	redis.SetLogger(silent{})
	fmt.Fprintln(out, "ready")
	var o order
	input := json.NewDecoder(in)
	if err := input.Decode(&o); err != nil {
		return 1
	}
	go func() {
		_ = input.Decode(new(any)) // blocks until the input ends
		os.Exit(0)
	}()
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr})
	m, err := newMember(scenario{waiters: o.Waiters, tiers: []throttle.Tier{perSecond(o.Limit)}}, rdb)
	if err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		return 1
	}
	time.Sleep(time.Until(o.Begin))
	ctx, cancel := context.WithCancel(context.Background())
	go m.work(ctx, o.Begin)
	time.Sleep(time.Until(o.Measure))
	used := cpu.Used()
	time.Sleep(time.Until(o.Finish))
	p := report{CPU: cpu.Used() - used, Memory: ownMemory()}
	cancel()
	<-m.done
	p.Seen = m.seen
	if err := json.NewEncoder(out).Encode(p); err != nil {
		return 1
	}
	select {} // until the input ends: what is given back is on its way
}

var (
	available    = regexp.MustCompile(`(?m)^MemAvailable: +(\d+) kB$`)
	proportional = regexp.MustCompile(`(?m)^Pss: +(\d+) kB$`)
)

// availableMemory returns how many bytes the system has to spare, if it tells.
func availableMemory() (bytes int64, known bool) { return kilobytes("/proc/meminfo", available) }

// ownMemory returns the bytes of this process, its part of what processes share.
func ownMemory() int64 {
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
