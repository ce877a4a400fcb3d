// Package rtt estimates from round trips how long requests take to reach a server.
package rtt

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of an estimate.
const (
	Least = 20 * time.Millisecond
	Most  = time.Second
)

const (
	minResponses = 8               // with fewer responses the estimate is Most
	recentTrips  = 32              // recent round trips that distinguish a slow server from a slow network
	period       = 5 * time.Minute // a peak counts for one to two periods
	slowNetwork  = 250 * time.Millisecond
	unknownSetup = 50 * time.Millisecond // estimate for a slow server if there was no new connection
)

// A Sample contains the measurements of one event of a request. Zero fields are no measurements.
type Sample struct {
	// RoundTrip is the time from admission to the response, at least 1 ns.
	RoundTrip time.Duration

	// Upload is the part of the round trip that writing the body took.
	Upload time.Duration

	// Connect is the time from admission to a new connection.
	Connect time.Duration

	// AtLeast is a lower bound of the estimate, after a refusal.
	AtLeast time.Duration
}

// An Estimator computes an estimate from samples. It is safe for concurrent use.
type Estimator struct {
	estimate atomic.Int64 // nanoseconds

	mu            sync.Mutex                 // guards all below
	recent        [recentTrips]time.Duration // ring of round trips without their uploads
	next          int                        // index in recent of the next round trip, before wrapping
	lastConnect   time.Duration
	current, last peaks     // of this period and the previous one
	began         time.Time // start of the current period
}

// peaks contains the largest values of a period.
type peaks struct {
	Sample
	responses int
}

func (p peaks) with(o peaks) peaks {
	return peaks{
		Sample{
			max(p.RoundTrip, o.RoundTrip), max(p.Upload, o.Upload), max(p.Connect, o.Connect), max(p.AtLeast, o.AtLeast),
		},
		p.responses + o.responses,
	}
}

// New returns an Estimator without samples. Its estimate is Most.
func New() *Estimator { return NewAt(time.Now()) }

// NewAt is New at an instant of another clock, for which AddAt must be used.
func NewAt(now time.Time) *Estimator {
	e := &Estimator{began: now}
	e.estimate.Store(int64(Most))
	return e
}

// Estimate returns the longest time that a request takes to reach the server.
func (e *Estimator) Estimate() time.Duration { return time.Duration(e.estimate.Load()) }

// Fresh reports whether the estimate includes responses of the last minutes.
func (e *Estimator) Fresh() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.began) < 2*period && e.last.with(e.current).responses > 0
}

// Add adds a sample.
func (e *Estimator) Add(s Sample) { e.AddAt(time.Now(), s) }

// AddAt adds a sample at an instant.
func (e *Estimator) AddAt(now time.Time, s Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if age := now.Sub(e.began); age > period {
		e.last, e.current, e.began = e.current, peaks{}, now
		if age > 2*period {
			e.last = peaks{}
		}
	}
	added := peaks{Sample: s}
	if s.RoundTrip > 0 {
		added.responses = 1
		e.recent[e.next%recentTrips] = s.RoundTrip - s.Upload
		e.next++
	}
	e.lastConnect = cmp.Or(s.Connect, e.lastConnect)
	e.current = e.current.with(added)
	e.estimate.Store(int64(e.compute()))
}

// compute returns the estimate. If three in four round trips take longer than a network does, the
// server is slow. Connections then describe the network better than responses.
func (e *Estimator) compute() time.Duration {
	all := e.last.with(e.current)
	if all.responses < minResponses {
		return Most
	}
	connect := cmp.Or(all.Connect, e.lastConnect) // the last connection may be older than two periods
	var estimate time.Duration
	switch quick := e.quartile(); {
	case connect == 0 && quick > slowNetwork:
		estimate = unknownSetup
	case connect > 0 && quick > 4*connect+50*time.Millisecond:
		estimate = all.Upload + 2*connect
	default:
		estimate = all.RoundTrip + all.RoundTrip/4 + 128*all.RoundTrip/time.Duration(all.responses)
	}
	return min(Most, max(Least, estimate, all.AtLeast))
}

// quartile returns the time that three in four of the recent round trips exceed.
func (e *Estimator) quartile() time.Duration {
	sorted := e.recent
	trips := sorted[:min(e.next, recentTrips)]
	slices.Sort(trips)
	return trips[len(trips)/4]
}
