package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A result is the result of one scenario.
type result struct {
	scenario
	admitted       int
	rate           float64 // admissions per second
	refused        int
	calls          int
	longest        time.Duration // wait
	recovery       time.Duration // -1 if the fleet didn't recover before the end
	client, server time.Duration // of processors
	took           time.Duration
	charged, sent  int    // units in the last tier. If drain is zero, not measured
	errors         int    // of callers
	err            string // the first of the errors
	seconds        []int  // admissions in each second from the start
	notes          []string
}

// result returns the result between two instants.
func (r *run) result(first, last usage) (result, error) {
	out := result{
		scenario: r.scenario, calls: last.calls - first.calls, client: last.client - first.client, server: last.server - first.server,
		took: last.at.Sub(first.at), seconds: make([]int, int(last.at.Sub(r.start)/second)+1),
	}
	var all, measured []int64 // admissions
	byKey := make([][]int64, max(1, r.keys))
	least, most := math.MaxInt, 0 // of a process
	byRoundTrip := make([]int, max(1, len(r.roundTrips)))
	for i, p := range r.fleet {
		p.mu.Lock()
		all = append(all, p.Admitted...)
		for j, key := range p.Keys {
			byKey[key] = append(byKey[key], p.Admitted[j])
		}
		least, most = min(least, len(p.Admitted)), max(most, len(p.Admitted))
		for _, at := range p.Admitted {
			if at >= first.at.UnixMicro() && at <= last.at.UnixMicro() {
				measured = append(measured, at)
				byRoundTrip[i%len(byRoundTrip)]++
			}
			if i := (at - r.start.UnixMicro()) / second.Microseconds(); int(i) < len(out.seconds) {
				out.seconds[i]++
			}
		}
		out.longest = max(out.longest, p.Longest)
		out.errors += p.Errors
		if out.err == "" {
			out.err = p.Err
		}
		p.mu.Unlock()
	}
	slices.Sort(all)
	slices.Sort(measured)
	out.admitted = len(measured)
	out.rate = float64(len(measured)) / out.took.Seconds()
	if r.keys == 0 || r.inner > 0 {
		out.rate = rate(measured, int(r.limit), out.rate)
		var err error
		if out.refused, err = refusals(all, r.tiers...); err != nil {
			return out, err
		}
		out.notes = append(out.notes, fmt.Sprintf("%d to %d of a process", least, most))
	}
	if r.inner > 0 {
		for _, admitted := range byKey {
			n, err := refusals(admitted, perSecond(r.inner))
			if err != nil {
				return out, err
			}
			out.refused += n
		}
	}
	out.recovery = recovery(all, r.start.Add(r.from+r.duration), last.at, r.full)
	if len(byRoundTrip) > 1 {
		out.notes = append(out.notes, fmt.Sprintf("%d near, %d far", byRoundTrip[0], byRoundTrip[1]))
	}
	if r.drain > 0 {
		charged, err := r.charged()
		if err != nil {
			return out, err
		}
		out.charged, out.sent = charged, len(all)
		out.notes = append(out.notes, fmt.Sprintf("charged %d, sent %d", out.charged, out.sent))
	}
	if lost := r.network.lost.Load(); lost > 0 {
		out.notes = append(out.notes, fmt.Sprintf("%d replies lost, %.2f unused units for each", lost, float64(out.charged-out.sent)/float64(lost)))
	}
	return out, nil
}

// rate returns the admissions per second. As many requests as the limit may be admitted at
// once. So rate averages how long each sequence of that many admissions took. It returns
// fallback if there are too few.
func rate(admitted []int64, limit int, fallback float64) float64 {
	n := len(admitted) - limit
	if n < limit {
		return fallback
	}
	var took int64
	for i := range n {
		took += admitted[i+limit] - admitted[i]
	}
	return float64(limit) * float64(n) / (time.Duration(took) * time.Microsecond).Seconds()
}

// refusals returns how many requests a strict provider refuses if each request arrives at a
// random time within the guard.
func refusals(admitted []int64, tiers ...throttle.Tier) (n int, err error) {
	provider, err := throttletest.NewCounter(tiers...)
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
	tenth = 100 * ms

	// recoveredShare of the full rate counts as recovered, because windows and seconds don't
	// begin together.
	recoveredShare = 0.85
)

// recovery returns the time from start to the first second that has the full rate. It returns
// -1 if no second before end has it.
func recovery(admitted []int64, start, end time.Time, full float64) time.Duration {
	for d := time.Duration(0); !start.Add(d + second).After(end); d += tenth {
		from, _ := slices.BinarySearch(admitted, start.Add(d).UnixMicro())
		to, _ := slices.BinarySearch(admitted, start.Add(d+second).UnixMicro())
		if float64(to-from) >= recoveredShare*full {
			return d
		}
	}
	return -1
}

func (r result) callsPerAdmission() float64 { return float64(r.calls) / float64(max(1, r.admitted)) }

// violations describes the bounds that the result violates.
func (r result) violations() (violations []string) {
	b := r.bounds
	check := func(violated bool, format string, args ...any) {
		if violated {
			violations = append(violations, fmt.Sprintf(format, args...))
		}
	}
	check(r.refused > 0, "%d refused", r.refused)
	check(r.errors > 0, "errors")
	check(r.admitted < b.served, "%d of %d served", r.admitted, b.served)
	check(b.full > 0 && r.rate < b.full*r.full, "of full < %g", b.full)
	check(b.calls > 0 && r.callsPerAdmission() > b.calls, "calls > %g", b.calls)
	check(b.callRate > 0 && float64(r.calls)/r.took.Seconds() > b.callRate, "calls/s > %g", b.callRate)
	check(b.recovery > 0 && (r.recovery < 0 || r.recovery > b.recovery), "full again after %v", b.recovery)
	check(b.unused > 0 && float64(r.charged-r.sent) > b.unused*float64(r.tiers[len(r.tiers)-1].Limit), "unused > %g %%", 100*b.unused)
	return violations
}
