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
	minResponses = 8               // below it the estimate is Most
	recentTrips  = 32              // how many round trips tell a slow server from a slow network
	period       = 5 * time.Minute // peaks count for one period to two
	slowNetwork  = 250 * time.Millisecond
	unknownSetup = 50 * time.Millisecond // the estimate for a slow server without a connection seen
)

// A Sample is what one event of a request reports. Zero fields report nothing.
type Sample struct {
	// RoundTrip is from admission to the response, at least 1 ns.
	RoundTrip time.Duration

	// Upload is how much of the round trip it took to write the body.
	Upload time.Duration

	// Connect is from admission to a new connection.
	Connect time.Duration

	// AtLeast is a lower bound of the estimate, after a refusal.
	AtLeast time.Duration
}

// An Estimator learns from samples. It is safe for concurrent use.
type Estimator struct {
	estimate atomic.Int64 // nanoseconds

	mu            sync.Mutex                 // guards all below
	recent        [recentTrips]time.Duration // round trips less uploads, a ring
	next          int                        // the index in recent of the next round trip, not wrapped
	lastConnect   time.Duration
	current, last peaks     // of this period and the one before
	began         time.Time // when the current period did
}

// Peaks are the largest values of a period.
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
func New() *Estimator {
	e := &Estimator{began: time.Now()}
	e.estimate.Store(int64(Most))
	return e
}

// Estimate returns how long a request takes to reach the server at most.
func (e *Estimator) Estimate() time.Duration { return time.Duration(e.estimate.Load()) }

// Fresh reports whether the estimate is from responses of the last minutes.
func (e *Estimator) Fresh() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.began) < 2*period && e.last.with(e.current).responses > 0
}

// Add learns from a sample.
func (e *Estimator) Add(s Sample) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if age := time.Since(e.began); age > period {
		e.last, e.current, e.began = e.current, peaks{}, time.Now()
		if age > 2*period {
			e.last = peaks{}
		}
	}
	seen := peaks{Sample: s}
	if s.RoundTrip > 0 {
		seen.responses = 1
		e.recent[e.next%recentTrips] = s.RoundTrip - s.Upload
		e.next++
	}
	e.lastConnect = cmp.Or(s.Connect, e.lastConnect)
	e.current = e.current.with(seen)
	e.estimate.Store(int64(e.compute()))
}

// compute returns the estimate. If three in four round trips take longer than a network does,
// the server is slow, and connections tell more of the network than responses.
func (e *Estimator) compute() time.Duration {
	all := e.last.with(e.current)
	if all.responses < minResponses {
		return Most
	}
	connect := cmp.Or(all.Connect, e.lastConnect) // the connection may be older than two periods
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
	trips := e.recent
	known := trips[:min(e.next, recentTrips)]
	slices.Sort(known)
	return known[len(known)/4]
}
