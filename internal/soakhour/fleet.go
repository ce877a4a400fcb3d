package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/redistest"
)

// lasting is how many of the workers are never replaced. Their memory is what the verdict compares, and
// they take over a policy by SetPolicy.
const lasting = 2

// A fleet is the workers of the test. Each has a place, whose proxy leads to Redis.
type fleet struct {
	t       *testing.T
	callers int
	job     job // without Redis and Policy
	seeds   atomic.Uint64

	deploying sync.Mutex // held for a whole deployment

	mu     sync.Mutex // guards all below
	policy string
	places []*place // the last one is for a worker that joins and leaves

	counts struct {
		sync.Mutex
		waits                  []int // since the last line
		canceled, panics, lost int
		errors                 map[string]int
	}
}

// A place is where one worker runs after another.
type place struct {
	proxy *redistest.Proxy
	proc  *process // nil if none runs

	sizes      []float64 // MB of memory, one for each sample of the worker
	goroutines []float64
}

// A process is a running worker.
type process struct {
	cmd        *exec.Cmd
	stdin      io.WriteCloser
	errs       bytes.Buffer
	goroutines atomic.Int64
	deployed   chan struct{} // receives when the worker has taken over a policy
	ending     atomic.Bool   // the fleet ends it
	ended      chan struct{} // closed when it has ended
}

func startFleet(t *testing.T, redis string, workers int, j job, policy string) *fleet {
	f := &fleet{t: t, job: j, policy: policy}
	f.counts.errors = map[string]int{}
	for i := range workers + 1 {
		f.places = append(f.places, &place{proxy: redistest.NewProxy(t, redis)})
		if i < workers {
			f.start(f.places[i])
		}
	}
	return f
}

// start starts a worker at a place.
func (f *fleet) start(at *place) {
	j := f.job
	j.Redis, j.Policy, j.Seed = at.proxy.Addr(), f.policy, f.seeds.Add(1)
	text, _ := json.Marshal(j)
	program, err := os.Executable()
	if err != nil {
		f.fail(err.Error())
		return
	}
	p := &process{cmd: exec.Command(program), deployed: make(chan struct{}, 1), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = &p.errs
	p.stdin, _ = p.cmd.StdinPipe()
	out, _ := p.cmd.StdoutPipe()
	if err := p.cmd.Start(); err != nil {
		f.fail(err.Error())
		return
	}
	at.proc = p
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			f.receive(p, lines.Bytes())
		}
		if err := p.cmd.Wait(); err != nil && !p.ending.Load() || p.errs.Len() > 0 {
			f.fail(fmt.Sprintf("a worker ended: %v: %.2000s", err, p.errs.String()))
		}
	}()
}

func (f *fleet) receive(p *process, line []byte) {
	var r report
	if json.Unmarshal(line, &r) != nil {
		return // a killed worker has printed half a line
	}
	p.goroutines.Store(int64(r.Goroutines))
	if r.Deployed {
		p.deployed <- struct{}{}
	}
	c := &f.counts
	c.Lock()
	defer c.Unlock()
	c.waits = append(c.waits, r.Waits...)
	c.canceled, c.panics, c.lost = c.canceled+r.Canceled, c.panics+r.Panics, c.lost+r.Lost
	for text, n := range r.Errors {
		if c.errors[text] == 0 {
			fmt.Printf("%s  unexpected: %s\n", stamp(time.Now()), text)
		}
		c.errors[text] += n
	}
}

// fail notes an unexpected error.
func (f *fleet) fail(text string) {
	fmt.Printf("%s  unexpected: %s\n", stamp(time.Now()), text)
	f.counts.Lock()
	defer f.counts.Unlock()
	f.counts.errors[text]++
}

// end ends the worker at a place by a signal, and waits until it has ended.
func (f *fleet) end(at *place, sig syscall.Signal) {
	p := at.proc
	if p == nil {
		return
	}
	at.proc = nil
	p.ending.Store(sig == syscall.SIGKILL)
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		f.fail("a worker doesn't end within a minute of " + sig.String())
		p.ending.Store(true)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// replace ends a worker by a signal and starts another one at its place.
func (f *fleet) replace(i int, sig syscall.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(f.places[i], sig)
	f.start(f.places[i])
}

// join lets one more worker work for a while.
func (f *fleet) join(d time.Duration) {
	at := f.places[len(f.places)-1]
	f.mu.Lock()
	joins := at.proc == nil
	if joins {
		f.start(at)
	}
	f.mu.Unlock()
	if joins {
		time.Sleep(d)
		f.mu.Lock()
		f.end(at, syscall.SIGTERM)
		f.mu.Unlock()
	}
}

// deploy gives all workers a policy, one after the other: by a restart, or by SetPolicy.
func (f *fleet) deploy(policy string, pause time.Duration) {
	f.mu.Lock()
	f.policy = policy
	f.mu.Unlock()
	for i, at := range f.places {
		f.mu.Lock()
		switch {
		case at.proc == nil:
		case i < lasting:
			_, _ = io.WriteString(at.proc.stdin, policy+"\n")
			select {
			case <-at.proc.deployed:
			case <-time.After(time.Minute):
				f.fail("SetPolicy takes longer than a minute")
			}
		default:
			f.end(at, syscall.SIGTERM)
			f.start(at)
		}
		f.mu.Unlock()
		time.Sleep(pause)
	}
}

// stop ends all workers as planned.
func (f *fleet) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all sync.WaitGroup
	for _, at := range f.places {
		all.Go(func() { f.end(at, syscall.SIGTERM) })
	}
	all.Wait()
}

// measure samples the workers' sizes and returns them for a line.
func (f *fleet) measure() (text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, at := range f.places {
		if at.proc == nil {
			continue
		}
		size, n := residentMB(at.proc.cmd.Process.Pid), float64(at.proc.goroutines.Load())
		if i < lasting {
			at.sizes, at.goroutines = append(at.sizes, size), append(at.goroutines, n)
		}
		text += fmt.Sprintf(" %.0f/%.0f", size, n)
	}
	return text
}

// residentMB returns the resident memory of a process. If the system does not tell it, it is 0.
func residentMB(pid int) float64 {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if fields := bytes.Fields(b); len(fields) > 1 {
		pages, _ := strconv.ParseFloat(string(fields[1]), 64)
		return pages * float64(os.Getpagesize()) / 1e6
	}
	return 0
}

// waits returns the median and the 99th percentile of the waits since the last call.
func (f *fleet) waits() (p50, p99 time.Duration) {
	f.counts.Lock()
	all := f.counts.waits
	f.counts.waits = nil
	f.counts.Unlock()
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	ms := func(part float64) time.Duration {
		return time.Duration(all[int(part*float64(len(all)-1))]) * time.Millisecond
	}
	return ms(0.5), ms(0.99)
}

// unexpected returns the errors that no fault explains.
func (f *fleet) unexpected() map[string]int {
	f.counts.Lock()
	defer f.counts.Unlock()
	return maps.Clone(f.counts.errors)
}
