package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
)

const (
	childEnv      = "BENCH_CHILD"
	startBatch    = 16      // children that start at the same time
	minFreeMemory = 4 << 30 // bytes of available memory below which no more children are started
)

// Work does the job of a child and ends the process. In any other process it returns at once. The
// child ends when its parent ends it or dies.
func Work[J, R any](do func(J) (R, error)) {
	if os.Getenv(childEnv) == "" {
		return
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var job J
	err := errors.Join(out.Encode("ready"), in.Decode(&job))
	go func() {
		_ = in.Decode(new(any)) // blocks until the input ends
		os.Exit(0)
	}()
	if err == nil {
		var result R
		if result, err = do(job); err == nil {
			err = out.Encode(result)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {} // calls that the job began may still be in flight
}

// A Child is a process of the operating system that runs this program again, and calls Work.
type Child struct {
	in  io.WriteCloser
	out *json.Decoder
	end func()
}

// Start starts children that wait for jobs. If it starts fewer than n, it returns the reason.
func Start(n int, env ...string) (children []*Child, failed error) {
	for len(children) < n && failed == nil {
		if left, known := availableMemory(); len(children) > 0 && known && left < minFreeMemory {
			return children, fmt.Errorf("%d MB of memory are available, and more processes start only if %d MB are", left>>20, minFreeMemory>>20)
		}
		batch := make([]*Child, min(startBatch, n-len(children)))
		errs := make([]error, len(batch))
		each(batch, func(i int) { batch[i], errs[i] = start(env) })
		for _, c := range batch {
			if c != nil {
				children = append(children, c)
			}
		}
		failed = errors.Join(errs...)
	}
	return children, failed
}

func start(env []string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"=1"), env...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	c := &Child{in, json.NewDecoder(out), sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait()
	})}
	if err := c.out.Decode(new(string)); err != nil {
		c.end()
		return nil, fmt.Errorf("starting a process: %w", err)
	}
	return c, nil
}

// Do gives each child its job and returns the results.
func Do[R, J any](children []*Child, job func(i int) J) ([]R, error) {
	results, errs := make([]R, len(children)), make([]error, len(children))
	each(children, func(i int) {
		if errs[i] = json.NewEncoder(children[i].in).Encode(job(i)); errs[i] == nil {
			errs[i] = children[i].out.Decode(&results[i])
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("process %d: %w", i, errs[i])
		}
	})
	return results, errors.Join(errs...)
}

// End ends children. It may be called again.
func End(children []*Child) {
	each(children, func(i int) { children[i].end() })
}

// each calls do for all indexes at once and waits.
func each[T any](s []T, do func(i int)) {
	var all sync.WaitGroup
	for i := range s {
		all.Go(func() { do(i) })
	}
	all.Wait()
}

var (
	available    = regexp.MustCompile(`(?m)^MemAvailable: +(\d+) kB$`)
	proportional = regexp.MustCompile(`(?m)^Pss: +(\d+) kB$`)
)

// availableMemory returns the bytes of memory that the system has available. It returns false if
// the system doesn't report them.
func availableMemory() (bytes int64, known bool) { return kilobytes("/proc/meminfo", available) }

// UsedMemory returns the bytes of memory of this process, with its proportional part of shared
// memory. It returns 0 if the system doesn't report them.
func UsedMemory() int64 {
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
