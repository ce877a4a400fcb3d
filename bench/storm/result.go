package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/apithrottle/throttle/throttletest"
)

// A result is what one scenario came to.
type result struct {
	scenario
	admitted       int
	rate           float64 // a second
	refused        int
	calls          int
	longest        time.Duration
	recovery       time.Duration // -1: not before the end
	client, server time.Duration // of processors
	took           time.Duration
	charged, sent  int // in the last tier, where drain says so
	errors         int
	err            string
	seconds        []int // admitted in each, from the start
	notes          []string
}

// result takes down what the fleet did between two instants.
func (r *run) result(first, last usage) (result, error) {
	out := result{
		scenario: r.scenario, calls: last.calls - first.calls, client: last.client - first.client, server: last.server - first.server,
		took: last.at.Sub(first.at), seconds: make([]int, int(last.at.Sub(r.began)/second)+1),
	}
	var all, steady []int64
	sides := make([]int, max(1, len(r.trips)))
	for i, m := range r.members {
		m.mu.Lock()
		all = append(all, m.At...)
		for _, at := range m.At {
			if at >= first.at.UnixMicro() && at <= last.at.UnixMicro() {
				steady = append(steady, at)
				sides[i%len(sides)]++
			}
			if i := (at - r.began.UnixMicro()) / second.Microseconds(); int(i) < len(out.seconds) {
				out.seconds[i]++
			}
		}
		out.longest = max(out.longest, m.Longest)
		out.errors += m.Errors
		if out.err == "" {
			out.err = m.Err
		}
		m.mu.Unlock()
	}
	slices.Sort(all)
	slices.Sort(steady)
	out.admitted = len(steady)
	out.rate = float64(len(steady)) / out.took.Seconds()
	if r.keys == 0 {
		out.rate = rate(steady, int(r.limit), out.rate)
		var err error
		if out.refused, err = r.refusals(all); err != nil {
			return out, err
		}
	}
	out.recovery = recovery(all, r.began.Add(r.from+r.lasts), last.at, r.full)
	if len(sides) > 1 {
		out.notes = append(out.notes, fmt.Sprintf("%d near, %d far", sides[0], sides[1]))
	}
	if r.drain > 0 {
		charged, err := r.charged()
		if err != nil {
			return out, err
		}
		out.charged, out.sent = charged, len(all)
		out.notes = append(out.notes, fmt.Sprintf("charged %d, sent %d", out.charged, out.sent))
	}
	if lost := r.wire.lost.Load(); lost > 0 {
		out.notes = append(out.notes, fmt.Sprintf("%d replies lost, %.2f unused for each", lost, float64(out.charged-out.sent)/float64(lost)))
	}
	return out, nil
}

// rate returns how many were admitted a second, of which as many as the limit may go at once:
// how long so many took, on the average. Few are counted otherwise.
func rate(admitted []int64, limit int, otherwise float64) float64 {
	n := len(admitted) - limit
	if n < limit {
		return otherwise
	}
	var took int64
	for i := range n {
		took += admitted[i+limit] - admitted[i]
	}
	return float64(limit) * float64(n) / (time.Duration(took) * time.Microsecond).Seconds()
}

// refusals returns how many a strict provider refuses that each reaches within the guard.
func (r *run) refusals(admitted []int64) (n int, err error) {
	provider, err := throttletest.NewCounter(r.tiers...)
	if err != nil {
		return 0, err
	}
	arrived := make([]int64, len(admitted))
	for i, at := range admitted {
		arrived[i] = at + rand.Int64N(guard.Microseconds())
	}
	slices.Sort(arrived)
	for _, at := range arrived {
		if !provider.Arrive(at, nil) {
			n++
		}
	}
	return n, nil
}

const (
	tenth   = 100 * ms
	restful = 0.85 // of the full rate is the full rate: windows and seconds do not begin together
)

// recovery returns when, after an instant, a second begins that has the full rate.
func recovery(admitted []int64, calm, end time.Time, full float64) time.Duration {
	for i := time.Duration(0); !calm.Add(i + second).After(end); i += tenth {
		from, _ := slices.BinarySearch(admitted, calm.Add(i).UnixMicro())
		to, _ := slices.BinarySearch(admitted, calm.Add(i+second).UnixMicro())
		if float64(to-from) >= restful*full {
			return i
		}
	}
	return -1
}

func (r result) callsEach() float64 { return float64(r.calls) / float64(max(1, r.admitted)) }

// wrong returns what does not hold.
func (r result) wrong() (wrong []string) {
	b := r.bounds
	check := func(fails bool, format string, args ...any) {
		if fails {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(r.refused > 0, "%d refused", r.refused)
	check(r.errors > 0, "errors")
	check(r.admitted < b.served, "%d of %d served", r.admitted, b.served)
	check(b.full > 0 && r.rate < b.full*r.full, "of full < %g", b.full)
	check(b.calls > 0 && r.callsEach() > b.calls, "calls > %g", b.calls)
	check(b.rest > 0 && float64(r.calls)/r.took.Seconds() > b.rest, "calls/s > %g", b.rest)
	check(b.recovery > 0 && (r.recovery < 0 || r.recovery > b.recovery), "full again after %v", b.recovery)
	check(b.unused > 0 && float64(r.charged-r.sent) > b.unused*float64(r.tiers[len(r.tiers)-1].Limit), "unused > %g %%", 100*b.unused)
	return wrong
}
