package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

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
	Err        string        // the first error
	Seconds    []int         // accepted requests in each second
	Goroutines int
	CPU, Real  time.Duration // real
	Length     time.Duration // over which CPU was measured
	notes      []string
}

// result returns the figures of a run. The server had done first at its start, and warm after the
// warm-up.
func (f *fleet) result(first, warm, last tally) result {
	r := result{scenario: f.name, Tally: last, Warm: warm, Length: f.length, Ways: make([]int, max(1, len(f.ways))), Seconds: make([]int, int((f.length+time.Second-1)/time.Second))}
	r.Load = float64(last.Busy-first.Busy) / float64(f.length)
	r.Least = -1
	lived := 0
	var requests []request
	for i, m := range f.members {
		o := m.observe()
		n := len(o.Admitted)
		requests = append(requests, o.Admitted...)
		r.Admitted += n
		r.Ways[i%len(r.Ways)] += n
		if f.livesThrough(i) {
			lived++
			r.Mean += float64(n)
			r.Most = max(r.Most, n)
			if r.Least < 0 || n < r.Least {
				r.Least = n
			}
		}
		r.Longest = max(r.Longest, o.Longest)
		r.Errors += o.Errors
		r.Err = cmp.Or(r.Err, o.Err)
		if len(o.Refusals) > 0 {
			r.notes = append(r.notes, fmt.Sprintf("urgent requests refused after p50 %v, p99 %v, max %v (floor p99 %v), %d of %d not at once; %.0f others refused a second",
				percentile(o.Refusals, 50), percentile(o.Refusals, 99), percentile(o.Refusals, 100), percentile(o.Floors, 99), o.NotAtOnce, len(o.Refusals), float64(o.Deadlines)/(f.length-f.warm).Seconds()))
		}
	}
	if f.real {
		r.CPU += last.Used - warm.Used
		r.Length -= f.warm
	}
	r.Mean /= float64(max(1, lived))
	f.rates(&r, requests)
	return r
}

// rates sets the figures that depend on when requests were admitted and accepted.
func (f *fleet) rates(r *result, requests []request) {
	calm := f.calm()
	after := make([]int, max(0, int((f.length-calm)/tenth)))
	accepted, refused := f.replay(requests)
	for _, at := range accepted {
		r.Seconds[min(int(at/time.Second), len(r.Seconds)-1)]++
		if at >= f.warm {
			r.Goodput++
		}
		if i := int((at - calm) / tenth); at >= calm && i < len(after) {
			after[i]++
		}
	}
	r.Refused = refused
	var steady []time.Duration
	for _, q := range requests {
		if q.At >= f.warm {
			r.Steady++
			steady = append(steady, slices.Repeat([]time.Duration{q.At}, int(q.Cost))...)
		}
	}
	r.Goodput /= (f.length - f.warm).Seconds()
	if f.real {
		r.Goodput = cadence(steady, f.shared(), r.Goodput)
	}
	r.Ratio = r.Goodput / f.full
	r.Recovery = recovery(after, f.full)
}

// shared returns the limit that all callers share. It returns 0 if there is none.
func (s scenario) shared() int {
	switch {
	case s.around != nil:
		return int(s.around[0].Limit)
	case s.keys > 1:
		return 0
	}
	return int(s.tiers[0].Limit)
}

func percentile(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[(len(d)-1)*p/100].Round(time.Microsecond)
}

// cadence returns the admissions a second. As many requests as the limit may be admitted at once, and
// in real time a run does not last for whole cycles. So cadence averages how long each sequence of that
// many admissions took. It returns fallback if there are too few.
func cadence(admitted []time.Duration, limit int, fallback float64) float64 {
	n := len(admitted) - limit
	if limit == 0 || n < limit {
		return fallback
	}
	slices.Sort(admitted)
	var took time.Duration
	for i := range n {
		took += admitted[i+limit] - admitted[i]
	}
	return float64(limit) * float64(n) / took.Seconds()
}

// An action is what a provider does with a request: it counts its arrival, or frees its place.
type action struct {
	at      time.Duration
	request int
	answers bool
}

// replay returns when strict providers accepted requests until the end of the run, and how many
// they refused. A provider is a counter of the tiers of one key, or of the quota around all keys. It
// counts each unit of a request as one that arrives alone.
func (f *fleet) replay(requests []request) (accepted []time.Duration, refused int) {
	var actions []action
	for i, q := range requests {
		actions = append(actions, action{q.Arrives, i, false}, action{q.Answered, i, true})
	}
	slices.SortStableFunc(actions, func(a, b action) int { return cmp.Compare(a.at, b.at) })
	var providers []*throttletest.Counter
	for range max(1, f.keys) {
		providers = append(providers, newProvider(f.counted()))
	}
	outer := newProvider(f.around)
	arrive := func(p *throttletest.Counter, at time.Duration) bool {
		ok := p.Arrive(f.began.Add(at).UnixMicro(), nil)
		if !ok {
			refused++
		}
		return ok
	}
	taken := make([]bool, len(requests))
	for _, a := range actions {
		q := requests[a.request]
		switch p := providers[q.Key]; {
		case a.at > f.length:
			return accepted, refused
		case a.answers && taken[a.request]:
			p.Release(nil)
		case !a.answers:
			for range q.Cost { // each quota counts the unit, also if the other refuses it
				around := f.around == nil || arrive(outer, a.at)
				if arrive(p, a.at) && around {
					taken[a.request] = true
					accepted = append(accepted, a.at)
				}
			}
		}
	}
	return accepted, refused
}

func newProvider(tiers []throttle.Tier) *throttletest.Counter {
	c, err := throttletest.NewCounter(tiers...)
	if err != nil {
		panic(err) // a mistake in the scenario
	}
	return c
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

// livesThrough reports whether process i lives from the start to the end.
func (s scenario) livesThrough(i int) bool {
	for _, f := range s.faults {
		if (f.kind == kill || f.kind == start) && f.hits(i) {
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
	fails(s.real && r.Errors > 0, "%d errors", r.Errors)
	if b.lost > 0 {
		limit := float64(s.tiers[len(s.tiers)-1].Limit)
		lost := float64(r.Charged-r.Sent) / limit
		fails(lost > b.lost, "%d charged, %d admitted: %.1f %% lost (%.1f %%)", r.Charged, r.Sent, 100*lost, 100*b.lost)
	}
	return wrong
}
