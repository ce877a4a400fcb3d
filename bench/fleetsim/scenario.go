package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

// A scenario describes a fleet, its work, its faults and the bounds that must hold.
type scenario struct {
	name, about string
	// processes is the number of processes, waiters the number of callers of each.
	processes, waiters int
	tiers              []throttle.Tier
	// tiersOf returns the tiers of process i, for releases side by side. If nil, tiers.
	tiersOf func(i int) []throttle.Tier
	// provided are the tiers that the provider enforces. If nil, tiers.
	provided []throttle.Tier
	// guard is the guard of the policy.
	guard time.Duration
	// ways are the delays to the server. The processes take them by turns.
	ways []way
	// delay is the delay to the provider, and of its response.
	delay way
	// batch reports whether the requests of process i yield. If nil, none do.
	batch func(i int) bool
	// keys is the number of keys, each with a quota of its own. The callers take them by turns. If
	// zero, 1.
	keys int
	// around are the tiers of one quota around those of all keys. If nil, there is none.
	around []throttle.Tier
	// rest is how long a caller pauses after a response.
	rest time.Duration
	// requests is the number of requests of each caller. If zero, callers send until the end.
	requests int
	// costs are the costs of requests, of which each draws one. If empty, 1.
	costs []int64
	// cancels is the share of requests that are canceled if they still wait.
	cancels float64
	// cancelWithin is the longest time until a request is canceled.
	cancelWithin time.Duration
	faults       []fault
	// warm is how long the fleet runs before goodput is measured.
	warm time.Duration
	// length is when the run ends.
	length time.Duration
	// drain is how long callers may take to use their reservations before charges are compared with
	// admissions. If zero, they are not compared.
	drain time.Duration
	// busy are the service times of the server. If zero, see service.
	busy service
	// alone puts the quota into the memory of one process, without a server.
	alone bool
	// full is how many requests a second the fleet could send if nothing went wrong.
	full   float64
	bounds bounds
	// seen, if not nil, is called for each command that the server has run.
	seen func(now int64, args []string, reply any)
	// large marks a scenario that takes long. TestScenarios plays it only with -large.
	large bool
}

// A bounds contains what must hold. Fields that are zero do not bound, except refused.
type bounds struct {
	// goodput is the least share of full.
	goodput float64
	// calls is the most calls of the script for each admission.
	calls float64
	// refused is the most requests that the provider refuses.
	refused int
	// recovery is the longest time from the end of the last fault to the full rate.
	recovery time.Duration
	// even is the least ratio of the fewest and the most admissions of a process.
	even float64
	// messages is the most messages to subscribers for each admission.
	messages float64
	// fair is the least ratio of the fewest and the most admissions at one distance.
	fair float64
	// lost is the most units that are charged and not admitted, as a share of the last tier's
	// limit.
	lost float64
	// longest is the longest wait of a caller.
	longest time.Duration
}

// service returns the service times, by default about those of one core.
func (s scenario) service() service {
	if s.busy != (service{}) {
		return s.busy
	}
	return service{
		Call: 60 * time.Microsecond, Request: 2 * time.Microsecond, Other: 5 * time.Microsecond,
		Connect: 50 * time.Microsecond, Compile: 2 * time.Millisecond,
	}
}

func (s scenario) counted() []throttle.Tier {
	if s.provided != nil {
		return s.provided
	}
	return s.tiers
}

func (s scenario) policy(key int) throttle.Policy {
	return throttle.Policy{Name: fmt.Sprintf("key %d", key), Tiers: s.tiers, Guard: s.guard}
}

// calm returns when the last fault ends.
func (s scenario) calm() (at time.Duration) {
	for _, f := range s.faults {
		if f.kind != rate {
			at = max(at, f.at+f.lasts)
		}
	}
	return at
}

// A result contains the figures of a run.
type result struct {
	scenario   string
	Goodput    float64 // accepted requests a second
	Ratio      float64 // of full
	Admitted   int
	Steady     int // admitted after the warm-up
	Refused    int
	Least      int // admissions of a process that lived from the start to the end
	Most       int
	Mean       float64
	Ways       []int         // admissions by the distance of the processes
	Longest    time.Duration // longest wait, including callers that still wait
	Tally      tally         // of the server
	Warm       tally         // of the server after the warm-up
	Load       float64       // share of the time in which the server was busy
	Recovery   time.Duration // from the end of the last fault; -1: not before the end of the run
	Charged    int           // units in the last tier, if drain is set
	Sent       int           // requests admitted, if drain is set
	Errors     int           // that callers got
	Err        error         // the first error
	Seconds    []int         // accepted requests in each second
	Goroutines int
	CPU, Real  time.Duration // real
	Length     time.Duration // virtual
}

// result returns the figures of the run so far.
func (f *fleet) result() result {
	r := result{scenario: f.name, Tally: f.server.counted(), Warm: f.warmed, Length: f.length, Ways: make([]int, len(f.ways)), Seconds: make([]int, int((f.length+time.Second-1)/time.Second))}
	r.Load = float64(r.Tally.Busy) / float64(f.length)
	r.Least = -1
	calm, lived := f.calm(), 0
	after := make([]int, max(0, int((f.length-calm)/tenth)))
	for _, m := range f.members {
		m.mu.Lock()
		n := len(m.admitted)
		r.Admitted += n
		for _, at := range m.admitted {
			if at.Sub(f.began) >= f.warm {
				r.Steady++
			}
		}
		r.Ways[m.index%len(f.ways)] += n
		if m.livedThrough() {
			lived++
			r.Mean += float64(n)
			r.Most = max(r.Most, n)
			if r.Least < 0 || n < r.Least {
				r.Least = n
			}
		}
		r.Longest = max(r.Longest, m.longest)
		for _, since := range m.waiting {
			if !m.killed.Load() {
				r.Longest = max(r.Longest, time.Since(since))
			}
		}
		for _, at := range m.arrived {
			r.Seconds[min(int(at/time.Second), len(r.Seconds)-1)]++
			if at >= f.warm {
				r.Goodput++
			}
			if i := int((at - calm) / tenth); at >= calm && i < len(after) {
				after[i]++
			}
		}
		r.Errors += m.errors
		if r.Err == nil {
			r.Err = m.err
		}
		m.mu.Unlock()
	}
	r.Mean /= float64(max(1, lived))
	providers := f.providers
	if f.outer != nil {
		providers = append(slices.Clip(providers), f.outer)
	}
	for _, p := range providers {
		p.mu.Lock()
		r.Refused += p.refused
		p.mu.Unlock()
	}
	r.Goodput /= (f.length - f.warm).Seconds()
	r.Ratio = r.Goodput / f.full
	r.Recovery = recovery(after, f.full)
	return r
}

const (
	tenth = 100 * time.Millisecond
	// enough is the share of the full rate that counts as the full rate: windows and seconds do not
	// begin together.
	enough = 0.85
)

// recovery returns when the first second begins that has the full rate. The counts are those of
// tenths of a second.
func recovery(counts []int, full float64) time.Duration {
	for i := 0; i+10 <= len(counts); i++ {
		n := 0
		for _, c := range counts[i : i+10] {
			n += c
		}
		if float64(n) >= enough*full {
			return time.Duration(i) * tenth
		}
	}
	return -1
}

func (m *member) livedThrough() bool {
	for _, f := range m.fleet.faults {
		if (f.kind == kill || f.kind == start) && f.hits(m.index) {
			return false
		}
	}
	return true
}

// CallsEach returns the calls of the script for each admission after the warm-up.
func (r result) CallsEach() float64 {
	return float64(r.Tally.Calls-r.Warm.Calls) / float64(max(1, r.Steady))
}

// ReturnsEach returns the calls for each admission that return times.
func (r result) ReturnsEach() float64 {
	return float64(r.Tally.Returns-r.Warm.Returns) / float64(max(1, r.Steady))
}

// check returns the bounds that do not hold.
func (s scenario) check(r result) (wrong []string) {
	b := s.bounds
	fails := func(failed bool, format string, args ...any) {
		if failed {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	fails(r.Refused > b.refused, "%d refused (%d)", r.Refused, b.refused)
	fails(r.Ratio < b.goodput, "goodput %.3f of full (%.3f)", r.Ratio, b.goodput)
	fails(b.calls > 0 && r.CallsEach() > b.calls, "%.2f calls an admission (%.2f)", r.CallsEach(), b.calls)
	fails(b.recovery > 0 && r.Recovery < 0, "full rate never reached again (%v)", b.recovery)
	fails(b.recovery > 0 && r.Recovery > b.recovery, "full rate after %v (%v)", r.Recovery, b.recovery)
	fails(float64(slices.Min(r.Ways)) < b.fair*float64(slices.Max(r.Ways)), "by distance %v (%.2f)", r.Ways, b.fair)
	fails(float64(r.Least) < b.even*float64(r.Most), "least %d and most %d (%.2f)", r.Least, r.Most, b.even)
	messages := float64(r.Tally.Published-r.Warm.Published) / float64(max(1, r.Steady))
	fails(b.messages > 0 && messages > b.messages, "%.2f messages an admission (%.2f)", messages, b.messages)
	fails(b.longest > 0 && r.Longest > b.longest, "longest wait %v (%v)", r.Longest.Round(time.Millisecond), b.longest)
	if b.lost > 0 {
		limit := float64(s.tiers[len(s.tiers)-1].Limit)
		lost := float64(r.Charged-r.Sent) / limit
		fails(lost > b.lost, "%d charged, %d admitted: %.1f %% lost (%.1f %%)", r.Charged, r.Sent, 100*lost, 100*b.lost)
	}
	return wrong
}
