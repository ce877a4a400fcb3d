package retry

import (
	"slices"
	"sync"
	"time"
)

const (
	defaultShare = 0.05
	// savedHedges is the number of hedges that requests save up at most.
	savedHedges = 10
	// recentLatencies is the number of latencies that are kept, and leastLatencies the number from which
	// on their percentile counts. It is computed again after each rankEvery latencies.
	recentLatencies, leastLatencies, rankEvery = 256, 100, 16
	// wholeHedge is one hedge in the unit of Hedge.credit.
	wholeHedge = 1_000_000_000
)

// A Hedge describes when a client sends a request a second time because the first has no response
// yet, and counts those hedges. See "Hedging" in the package documentation. The zero value describes
// hedges after the 95th percentile of the latencies, for at most 5 % of the requests.
//
// Clients with the same Hedge share its budget, its latencies and its counts. A Hedge is safe for
// concurrent use, as long as its fields are not changed. Do not copy it.
type Hedge struct {
	// After is the time after the admission of a request at which its hedge is sent, unless the header
	// of a response is in. If zero or negative, it is the 95th percentile of the last 256 latencies, as
	// the client has measured them. No request is hedged before 100 latencies are known.
	After time.Duration
	// Share is the largest number of hedges for each request that may be hedged, from 0 to 1. If zero,
	// 0.05. If negative, no request is hedged.
	Share float64

	mu        sync.Mutex // guards all below
	credit    int64      // hedges that may be sent, in parts of wholeHedge
	sent, won int64
	recent    [recentLatencies]time.Duration
	known     int           // latencies so far
	slow      time.Duration // the 95th percentile of recent; zero if it is not known
}

// Counts returns how many hedges were sent so far, and how many of them had the first response. It does
// not block.
func (h *Hedge) Counts() (sent, won int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent, h.won
}

// admit records that a request was admitted, and returns how long it is waited for until its hedge is
// sent, or zero if it is not hedged.
func (h *Hedge) admit() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+h.share(), savedHedges*wholeHedge)
	if h.After > 0 {
		return h.After
	}
	return h.slow
}

// share returns Share in parts of wholeHedge.
func (h *Hedge) share() int64 {
	switch {
	case h.Share == 0:
		return defaultShare * wholeHedge
	case h.Share > 0:
		return int64(min(h.Share, 1) * wholeHedge)
	}
	return 0
}

// spend reports whether the budget has a hedge left, and takes it.
func (h *Hedge) spend() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.credit < wholeHedge {
		return false
	}
	h.credit -= wholeHedge
	return true
}

// giveBack gives back a hedge that was not sent.
func (h *Hedge) giveBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.credit = min(h.credit+wholeHedge, savedHedges*wholeHedge)
}

// count adds to the counts.
func (h *Hedge) count(sent, won int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent += sent
	h.won += won
}

// learn records a latency: the time from the admission of a first attempt until its response, or until
// that of its hedge.
func (h *Hedge) learn(latency time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent[h.known%recentLatencies] = latency
	if h.known++; h.known < leastLatencies || h.known > leastLatencies && h.known%rankEvery != 0 {
		return
	}
	ranked := h.recent
	n := min(h.known, recentLatencies)
	slices.Sort(ranked[:n])
	h.slow = ranked[n*95/100]
}
