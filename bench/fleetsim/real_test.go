package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/redistest"
)

func TestMain(m *testing.M) {
	os.Exit(redistest.Run(m))
}

// TestReal checks that a scenario of each kind runs and ends. Its speed depends on the machine.
func TestReal(t *testing.T) {
	stalls := []fault{{kind: stall, at: 300 * ms, lasts: 50 * ms}}
	slows := []fault{{kind: slow, at: 100 * ms, lasts: 200 * ms, by: 100 * ms}}
	loses := []fault{{kind: lose, at: 100 * ms, lasts: 200 * ms, share: 0.05}}
	kinds := map[string]scenario{ // smaller sizes for one scenario of each kind
		"keys/2000-at-once":    {processes: 1, waiters: 20, keys: 20, length: second},
		"keys/3000-steady/5ms": {processes: 1, waiters: 10, keys: 10, rest: 100 * ms, faults: stalls, length: second},
		"crowd/10x8/5000":      {processes: 2, waiters: 2, length: 500 * ms},
		"nested/100x8/7-in-50": {processes: 2, waiters: 2, keys: 2, length: 500 * ms},
		"mixed/80ms/50":        {processes: 2, waiters: 2, length: second},
		"spike/5s/hour":        {processes: 2, waiters: 2, faults: slows, length: 500 * ms, drain: second},
		"fault/lost":           {processes: 2, waiters: 2, faults: loses, length: 500 * ms},

		"overload/27000":               {processes: 1, waiters: 3000, length: 2500 * ms},
		"overload/27000/costs+classes": {processes: 1, waiters: 3000, length: 2500 * ms},
	}
	for name, small := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly sleeps
			s := realScenario(t, name)
			s.processes, s.waiters, s.keys, s.rest = small.processes, small.waiters, small.keys, small.rest
			s.faults, s.warm, s.length, s.drain = small.faults, 0, small.length, small.drain
			r := played(t, s, 1)
			for r.Admitted == 0 && s.length < 40*small.length { // the machine is busy
				s.length *= 3
				r = played(t, s, 1)
			}
			if s.alone {
				units := 0
				for _, n := range r.Seconds {
					units += n
				}
				if maximum := 1000 * (1 + int(r.Real/second)); units > maximum || r.Goodput <= 0 || len(r.notes) != 1 {
					t.Errorf("%d units were admitted, want at most %d, refusals and a rate: %+v", units, maximum, r)
				}
				return
			}
			if r.Admitted == 0 || r.Tally.Calls == 0 || r.Real <= 0 || r.Tally.Busy <= 0 || r.Errors > 0 && s.faults == nil {
				t.Errorf("the result is %+v, want admissions, calls, processor time and no errors", r)
			}
			if row := strings.Join(r.row(nil), " "); strings.Count(row, "\n") > 0 || !strings.HasPrefix(row, name) {
				t.Errorf("the row is %q, want one line that begins with the name", row)
			}
		})
	}
}

// realScenario returns the scenario of real time with a name.
func realScenario(t *testing.T, name string) scenario {
	t.Helper()
	all := scenarios()
	i := slices.IndexFunc(all, func(s scenario) bool { return s.real && s.name == name })
	if i < 0 {
		t.Fatalf("no scenario of real time is named %q", name)
	}
	return all[i]
}

func TestFigures(t *testing.T) {
	var bursts []time.Duration // of ten admissions, every 1.1 s
	for i := range time.Duration(100) {
		bursts = append(bursts, i/10*1100*ms)
	}
	if got := cadence(bursts, 10, 0); got < 9.09 || got > 9.1 {
		t.Errorf("the rate is %v, want 10 in 1.1 s", got)
	}
	if got := cadence(bursts[:15], 10, 3); got != 3 {
		t.Errorf("the rate of too few admissions is %v, want the fallback 3", got)
	}
	tenths := make([]int, 100)
	for _, at := range bursts[20:] { // the first of which is at 2.2 s
		if i := int(at / tenth); i < len(tenths) {
			tenths[i]++
		}
	}
	if got := recovery(tenths, 10); got != 1300*ms {
		t.Errorf("recovery is %v, want %v", got, 1300*ms)
	}
	if got := recovery(tenths[:20], 10); got != -1 {
		t.Errorf("recovery before the end is %v, want -1", got)
	}
	s := scenario{real: true, tiers: []throttle.Tier{throttle.PerSecond(5)},
		bounds: bounds{goodput: 1, calls: 1, recovery: second, lost: 0.1, even: 0.5, fair: 0.5, messages: 1, longest: second}}
	r := result{Steady: 1, Refused: 1, Errors: 1, Tally: tally{Calls: 2, Published: 2}, Recovery: -1, Charged: 2, Most: 1, Ways: []int{0, 1}, Longest: time.Minute}
	if got := s.check(r); len(got) != 10 {
		t.Errorf("violations are %q, want 10", got)
	}
}

// TestReplay checks that strict providers refuse what exceeds their limits, and that a response
// frees a place.
func TestReplay(t *testing.T) {
	for _, want := range []int{0, 1} {
		f := &fleet{scenario: scenario{tiers: []throttle.Tier{throttle.PerSecond(5)}, length: second}}
		accepted, refused := f.replay(make([]request, 5+want))
		if len(accepted) != 0 || refused != 0 {
			t.Errorf("requests without units: %d accepted, %d refused, want none", len(accepted), refused)
		}
		units := make([]request, 5+want)
		for i := range units {
			units[i].Cost = 1
		}
		if accepted, refused := f.replay(units); len(accepted) != 5 || refused != want {
			t.Errorf("%d accepted, %d refused, want 5 and %d", len(accepted), refused, want)
		}
		f.around = []throttle.Tier{throttle.PerSecond(3)}
		if accepted, refused := f.replay(units); len(accepted) != 3 || refused != 2+2*want {
			t.Errorf("around: %d accepted, %d refused, want 3 and %d", len(accepted), refused, 2+2*want)
		}
	}
	f := &fleet{scenario: scenario{tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}, length: second}}
	accepted, refused := f.replay([]request{{Cost: 1, Answered: 10 * ms}, {Cost: 1, Arrives: 5 * ms, Answered: 6 * ms}, {Cost: 1, Arrives: 11 * ms, Answered: 2 * second}, {Cost: 1, Arrives: 2 * second}})
	if len(accepted) != 2 || refused != 1 {
		t.Errorf("at once: accepted at %v, %d refused, want 2 and 1", accepted, refused)
	}
}
