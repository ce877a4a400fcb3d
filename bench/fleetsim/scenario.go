package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
)

// A scenario is a fleet, what it is to do, what goes wrong, and what must hold.
type scenario struct {
	name, about        string
	processes, waiters int // and the callers of each
	tiers              []throttle.Tier
	provided           []throttle.Tier  // what the provider counts by. If empty, tiers
	guard              time.Duration    // of the policy
	ways               []way            // to the server, for the processes by turns
	delay              way              // to the provider, and of its response
	batch              func(i int) bool // the processes whose requests yield. If nil, none
	keys               int              // of which each has a quota of its own, for the callers by turns. If zero, one
	rest               time.Duration    // of a caller after a response
	requests           int              // of each caller. If zero, to the end
	costs              []int64          // of the requests, at random. If empty, 1
	cancels            float64          // of the requests, so many are canceled
	patience           time.Duration    // at random within that, if they wait still
	faults             []fault
	warm               time.Duration // how long it runs before goodput is measured
	length             time.Duration // until the end
	drain              time.Duration // how long what is reserved may take to be used, where charges are compared
	busy               service       // of the server. If zero, see service
	alone              bool          // the quota is in the memory of one process, without a server
	full               float64       // requests a second that the fleet could send where nothing goes wrong
	bounds             bounds
	seen               func(now int64, args []string, reply any) // is told of each command that the server has run
	large              bool                                      // it takes long: go test runs it only if told to
}

// Bounds are what must hold. Those that are zero do not bound, but for refused.
type bounds struct {
	goodput  float64       // at least so much of full
	calls    float64       // of the script for each admission, at most
	refused  int           // by the provider, at most
	recovery time.Duration // from the end of the last fault to the full rate, at most
	even     float64       // least ÷ most admitted of all processes, at least
	messages float64       // to subscribers for each admission, at most
	fair     float64       // least ÷ most admitted of the processes at one distance, at least
	lost     float64       // of the last tier's limit: charged and not admitted, at most
	longest  time.Duration // wait
}

// service is about what one core takes.
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

// calm returns when the last fault is over.
func (s scenario) calm() (at time.Duration) {
	for _, f := range s.faults {
		if f.kind != rate {
			at = max(at, f.at+f.lasts)
		}
	}
	return at
}

// A result is what a run came to.
type result struct {
	scenario   string
	Goodput    float64 // accepted requests a second
	Ratio      float64 // of full
	Admitted   int
	Steady     int // of that, after the warm-up
	Refused    int
	Least      int // admitted of a process that lived from the start to the end
	Most       int
	Mean       float64
	Ways       []int         // admitted, by the ways of the processes
	Longest    time.Duration // wait, of those too who still wait
	Tally      tally         // of the server
	Warm       tally         // when the warm-up was over
	Load       float64       // how much of the time the server was busy
	Recovery   time.Duration // from the end of the last fault; -1: not before the end of the run
	Charged    int           // in the last tier, where drain says so
	Sent       int           // and admitted of that
	Errors     int           // that callers got
	Err        error         // the first of them
	Seconds    []int         // what was accepted in each
	Goroutines int
	CPU, Real  time.Duration // real
	Length     time.Duration // virtual
}

// result takes down what has happened so far.
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
	for _, p := range f.providers {
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
	tenth   = 100 * time.Millisecond
	restful = 0.85 // of the full rate is the full rate: windows and seconds do not begin together
)

// recovery returns when a second begins that has the full rate. counts are of tenths of seconds.
func recovery(counts []int, full float64) time.Duration {
	for i := 0; i+10 <= len(counts); i++ {
		n := 0
		for _, c := range counts[i : i+10] {
			n += c
		}
		if float64(n) >= restful*full {
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

// CallsEach are the calls of the script for each admission after the warm-up.
func (r result) CallsEach() float64 {
	return float64(r.Tally.Calls-r.Warm.Calls) / float64(max(1, r.Steady))
}

// ReturnsEach are the calls that give times back.
func (r result) ReturnsEach() float64 {
	return float64(r.Tally.Returns-r.Warm.Returns) / float64(max(1, r.Steady))
}

// check returns what does not hold.
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
	fails(b.recovery > 0 && r.Recovery < 0, "never the full rate again (%v)", b.recovery)
	fails(b.recovery > 0 && r.Recovery > b.recovery, "full rate after %v (%v)", r.Recovery, b.recovery)
	fails(float64(slices.Min(r.Ways)) < b.fair*float64(slices.Max(r.Ways)), "by distance %v (%.2f)", r.Ways, b.fair)
	fails(float64(r.Least) < b.even*float64(r.Most), "least %d and most %d (%.2f)", r.Least, r.Most, b.even)
	messages := float64(r.Tally.Published-r.Warm.Published) / float64(max(1, r.Steady))
	fails(b.messages > 0 && messages > b.messages, "%.2f messages an admission (%.2f)", messages, b.messages)
	fails(b.longest > 0 && r.Longest > b.longest, "a wait of %v (%v)", r.Longest.Round(time.Millisecond), b.longest)
	if b.lost > 0 {
		limit := float64(s.tiers[len(s.tiers)-1].Limit)
		lost := float64(r.Charged-r.Sent) / limit
		fails(lost > b.lost, "%d charged, %d admitted: %.1f %% lost (%.1f %%)", r.Charged, r.Sent, 100*lost, 100*b.lost)
	}
	return wrong
}
