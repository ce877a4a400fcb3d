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
	if os.Getenv(workerEnv) != "" {
		os.Exit(runJob(os.Stdin, os.Stdout))
	}
	os.Exit(redistest.Run(m))
}

// TestRun checks that a scenario of each kind runs and ends. Its speed depends on the machine.
func TestRun(t *testing.T) {
	kinds := map[string]scenario{ // smaller sizes for one scenario of each kind
		"keys/at-once/2000":   {processes: 1, waiters: 20, keys: 20, length: 5 * second},
		"keys/steady/3000":    {processes: 1, waiters: 10, keys: 10, every: 100 * ms, from: 300 * ms, duration: 50 * ms, length: second},
		"processes/10x8/5000": {processes: 2, waiters: 2, length: 500 * ms},
		"nested/100x8/5000":   {processes: 2, waiters: 2, keys: 2, length: 500 * ms},
		"nested/1000x8/50":    {processes: 2, waiters: 2, keys: 2, length: 500 * ms},
		"mixed/80ms/50":       {processes: 2, waiters: 2, length: second},
		"spike/5s/hour":       {processes: 2, waiters: 2, from: 100 * ms, duration: 200 * ms, length: 500 * ms, drain: second},
		"lost/5%/hour":        {processes: 2, waiters: 2, from: 100 * ms, duration: 200 * ms, length: 500 * ms, drain: second},
	}
	for name, small := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly sleeps
			all := scenarios()
			i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
			if i < 0 {
				t.Fatalf("no scenario is named %q", name)
			}
			s := all[i]
			s.processes, s.waiters, s.keys, s.every = small.processes, small.waiters, small.keys, small.every
			s.from, s.duration, s.warmUp, s.length, s.drain = small.from, small.duration, 0, small.length, small.drain
			r, err := s.run(t)
			for err == nil && r.admitted == 0 && s.length < 40*small.length { // the machine is busy
				s.length *= 3
				r, err = s.run(t)
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.admitted == 0 || r.calls == 0 || r.took <= 0 || r.server <= 0 {
				t.Errorf("the result is %+v, want admissions, calls and processor time", r)
			}
			if row := r.String(); strings.Count(row, "\n") > 0 || !strings.HasPrefix(row, name) {
				t.Errorf("the row is %q, want one line that begins with the name", row)
			}
		})
	}
}

// TestScenarios checks that each scenario has a unique name and ends within a minute.
func TestScenarios(t *testing.T) {
	names := make(map[string]bool)
	for _, s := range scenarios() {
		if names[s.name] || s.warmUp+s.length+s.drain > time.Minute || s.from+s.duration+second > s.warmUp+s.length {
			t.Errorf("the scenario has a duplicate name or is too long: %+v", s)
		}
		names[s.name] = true
	}
}

func TestFigures(t *testing.T) {
	var bursts []int64 // of ten admissions, every 1.1 s
	for i := range int64(100) {
		bursts = append(bursts, i/10*1_100_000)
	}
	if got := rate(bursts, 10, 0); got < 9.09 || got > 9.1 {
		t.Errorf("the rate is %v, want 10 in 1.1 s", got)
	}
	if got := rate(bursts[:15], 10, 3); got != 3 {
		t.Errorf("the rate of too few admissions is %v, want the fallback 3", got)
	}
	start := time.UnixMicro(0)
	if got := recovery(bursts[20:], start, start.Add(10*second), 10); got != 1300*ms {
		t.Errorf("recovery is %v, want %v", got, 1300*ms)
	}
	if got := recovery(bursts[20:], start, start.Add(2*second), 10); got != -1 {
		t.Errorf("recovery before the end is %v, want -1", got)
	}
	r := result{scenario: scenario{full: 10, bounds: bounds{served: 2, full: 1, calls: 1, callRate: 1, recovery: second, unused: 0.1}, tiers: scenarios()[0].tiers},
		admitted: 1, refused: 1, errors: 1, calls: 2, took: second, recovery: -1, charged: 2}
	if got := r.violations(); len(got) != 8 {
		t.Errorf("violations are %q, want 8", got)
	}
}

func TestRefusals(t *testing.T) {
	for _, want := range []int{0, 1} {
		n, err := refusals(make([]int64, 5+want), perSecond(5))
		if n != want || err != nil {
			t.Errorf("refusals = %d, %v, want %d", n, err, want)
		}
	}
}

func TestMemory(t *testing.T) {
	for file, field := range map[string]*regexp.Regexp{"storm_test.go": available, "none": proportional} {
		if n, known := kilobytes(file, field); n != 0 || known {
			t.Errorf("kilobytes(%s) = %d, %v, want 0, false", file, n, known)
		}
	}
}

func TestCommand(t *testing.T) {
	var out, errs bytes.Buffer
	if code := command(t, []string{"-list", "-run", "^far"}, &out, &errs); code != 0 || strings.Count(out.String(), "\n") != 15 {
		t.Errorf("-list: exit code %d, want 0 and 15 scenarios\n%s\n%s", code, &out, &errs)
	}
	for _, args := range [][]string{nil, {"-run", "("}, {"-sed"}, {"-run", "none such"}} {
		if code := command(t, args, &out, &errs); code != 2 {
			t.Errorf("%q: exit code %d, want 2", args, code)
		}
	}
}
