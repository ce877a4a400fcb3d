package distributed

import (
	"sync/atomic"
	"time"
)

// askAhead is how long before its time a process in the line asks.
const askAhead = 750 * time.Millisecond

// Turns are what Redis keeps for the waiting callers of this process that have no reservation.
type turns struct {
	place atomic.Pointer[place] // in the line, by the last reply; nil if the process has none
	next  atomic.Int64          // the instant by Redis's clock that the last reply set for asking for requests that have turns; or 0
}

// A place is a turn in the line of processes whose requests go later than soon, see line.lua.
type place struct {
	at, length int64
	since      time.Time // when the process received it
}

// askAhead returns how long before its time, which comes in wait, a process in the line asks. Of several
// with the same time the one that has waited longest asks first.
func (p *place) askAhead(now time.Time, wait, trip time.Duration) time.Duration {
	return askAhead + min((now.Sub(p.since)+wait)/64, askAhead/3) + trip
}

// args returns the arguments that tell the script the place, which may be nil.
func (p *place) args() []any {
	if p == nil {
		return []any{0, -1, 0}
	}
	return []any{0, -1 - p.at, p.length}
}

// setPlace stores and returns the place of a reply, nil if its length is 0.
func (t *turns) setPlace(at, length int64, now time.Time) (p *place) {
	if length > 0 {
		p = &place{at, length, now}
		if old := t.place.Load(); old != nil && old.at == at {
			p.since = old.since
		}
	}
	t.place.Store(p)
	return p
}
