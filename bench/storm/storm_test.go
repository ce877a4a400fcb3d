package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	os.Exit(redistest.Run(m))
}

// TestRun: a scenario of each kind runs and ends. How fast it is depends on the machine.
func TestRun(t *testing.T) {
	kinds := map[string]scenario{ // by a scenario of the kind, which is made smaller
		"keys/at-once/2000":   {processes: 1, waiters: 20, keys: 20, length: 5 * second},
		"keys/steady/3000":    {processes: 1, waiters: 10, keys: 10, every: 100 * ms, from: 300 * ms, lasts: 50 * ms, length: second},
		"processes/10x8/5000": {processes: 2, waiters: 2, length: 500 * ms},
		"mixed/80ms/50":       {processes: 2, waiters: 2, length: second},
		"spike/5s/hour":       {processes: 2, waiters: 2, from: 100 * ms, lasts: 200 * ms, length: 500 * ms, drain: second},
		"lost/5%/hour":        {processes: 2, waiters: 2, from: 100 * ms, lasts: 200 * ms, length: 500 * ms, drain: second},
	}
	for name, small := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it sleeps most of the time
			all := scenarios()
			i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
			if i < 0 {
				t.Fatal("no scenario has this name")
			}
			s := all[i]
			s.processes, s.waiters, s.keys, s.every = small.processes, small.waiters, small.keys, small.every
			s.from, s.lasts, s.warm, s.length, s.drain = small.from, small.lasts, 0, small.length, small.drain
			r, err := s.run(t)
			if err != nil {
				t.Fatal(err)
			}
			if r.admitted == 0 || r.calls == 0 || r.took <= 0 || r.server <= 0 {
				t.Errorf("%+v", r)
			}
			if row := r.String(); strings.Count(row, "\n") > 0 || !strings.HasPrefix(row, name) {
				t.Errorf("the row is %q", row)
			}
		})
	}
}

// TestScenarios: each has a name of its own, and ends within a minute.
func TestScenarios(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range scenarios() {
		if names[s.name] || s.warm+s.length+s.drain > time.Minute || s.from+s.lasts+second > s.warm+s.length {
			t.Errorf("%+v", s)
		}
		names[s.name] = true
	}
}

func TestFigures(t *testing.T) {
	var bursts []int64 // of ten, each 1.1 s
	for i := range int64(100) {
		bursts = append(bursts, i/10*1_100_000)
	}
	if got := rate(bursts, 10, 0); got < 9.09 || got > 9.1 {
		t.Errorf("the rate is %v", got)
	}
	if got := rate(bursts[:15], 10, 3); got != 3 {
		t.Errorf("the rate of few is %v", got)
	}
	began := time.UnixMicro(0)
	if got := recovery(bursts[20:], began, began.Add(10*second), 10); got != 1300*ms {
		t.Errorf("recovery is %v", got)
	}
	if got := recovery(bursts[20:], began, began.Add(2*second), 10); got != -1 {
		t.Errorf("recovery is %v before there is any", got)
	}
	r := result{scenario: scenario{full: 10, bounds: bounds{served: 2, full: 1, calls: 1, rest: 1, recovery: second, unused: 0.1}, tiers: scenarios()[0].tiers},
		admitted: 1, refused: 1, errors: 1, calls: 2, took: second, recovery: -1, charged: 2}
	if got := r.wrong(); len(got) != 8 {
		t.Errorf("wrong is %q", got)
	}
}

func TestRefusals(t *testing.T) {
	r := &run{scenario: scenarios()[0]} // 5/s
	for _, want := range []int{0, 1} {
		n, err := r.refusals(make([]int64, 5+want))
		if n != want || err != nil {
			t.Errorf("%d are refused, %v: want %d", n, err, want)
		}
	}
}

func TestMemory(t *testing.T) {
	for file, field := range map[string]*regexp.Regexp{"storm_test.go": available, "none": proportional} {
		if n, known := kilobytes(file, field); n != 0 || known {
			t.Errorf("%s: %d, %v", file, n, known)
		}
	}
}

func TestCommand(t *testing.T) {
	var out, errs bytes.Buffer
	if code := command(t, []string{"-list", "-run", "^far"}, &out, &errs); code != 0 || strings.Count(out.String(), "\n") != 15 {
		t.Errorf("code %d\n%s\n%s", code, &out, &errs)
	}
	for _, args := range [][]string{nil, {"-run", "("}, {"-sed"}, {"-run", "none such"}} {
		if code := command(t, args, &out, &errs); code != 2 {
			t.Errorf("%q: code %d", args, code)
		}
	}
}
