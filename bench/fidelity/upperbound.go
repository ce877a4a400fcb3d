package main

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// UpperBound returns the number of units that the provider would have accepted between from
// and to, in a run that begins at start, from a client that has full knowledge and no delay.
// Such a client sends each request at the first instant at which the provider accepts it. The
// requests are those of the run, in the same order, and a slow provider holds them for the
// same times.
func (r Run) UpperBound(start, from, to time.Time) (units int64, err error) {
	counter, err := throttletest.NewCounter(r.asCounted()...)
	if err != nil {
		return 0, err
	}
	costs, hold := r.costs(), r.hold()
	var responses []int64 // the instants of responses to accepted requests, if concurrency is limited
	for now := start.UnixMicro(); ; {
		n, cost := int64(1), map[string]int64(nil)
		if costs != nil {
			n = costs()
			cost = map[string]int64{tokens: n}
		}
		at, ok := counter.Earliest(now, cost)
		for !ok && len(responses) > 0 { // until a response frees a slot
			slices.Sort(responses)
			now, responses = max(now, responses[0]), responses[1:]
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
			responses = append(responses, now+hold().Microseconds())
		}
	}
}

// accepted returns the number of units that the provider accepted between from and to.
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
