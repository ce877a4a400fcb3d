package gauntlet

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// Possible is how many units the provider would have accepted between two instants, in a
// run from its start, from a client that knows everything and has no delay: each request is sent at the first
// instant at which the provider takes it. The requests are those of the run, in their
// order, and a slow provider holds them for the same times.
func (r Run) Possible(start, from, to time.Time) (units int64, err error) {
	counter, err := throttletest.NewCounter(r.asCounted()...)
	if err != nil {
		return 0, err
	}
	costs, hold := r.costs(), r.hold()
	var open []int64 // the instants at which what was accepted is answered, if anybody asks
	for now := start.UnixMicro(); ; {
		n, cost := int64(1), map[string]int64(nil)
		if costs != nil {
			n = costs()
			cost = map[string]int64{tokens: n}
		}
		at, ok := counter.Earliest(now, cost)
		for !ok && len(open) > 0 { // until somebody is done
			slices.Sort(open)
			now, open = max(now, open[0]), open[1:]
			counter.Release(cost)
			at, ok = counter.Earliest(now, cost)
		}
		if now = at; !ok || now >= to.UnixMicro() {
			return units, nil
		}
		counter.Arrive(now, cost)
		if now >= from.UnixMicro() {
			units += n
		}
		switch {
		case hold == nil:
			counter.Release(cost)
		case r.concurrent():
			open = append(open, now+hold().Microseconds())
		}
	}
}

// accepted is how many units the provider accepted between two instants.
func (r Run) accepted(arrivals []throttletest.Arrival, from, to time.Time) (units int64) {
	unit := algorithms.Requests
	if r.countsTokens() {
		unit = tokens
	}
	for _, a := range arrivals {
		if !a.Accepted || a.At.Before(from) || !a.At.Before(to) {
			continue
		}
		if n, ok := a.Cost[unit]; ok {
			units += n
		} else {
			units++
		}
	}
	return units
}
