package batch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastAhead is how many items wait for the limiter at least.
	leastAhead = 16
	// moreAhead is how many more items wait than were lately admitted. A fleet shares a limit by what waits, so with
	// none the process that was ahead at first would stay ahead.
	moreAhead = 8
	// aheadFor is the time for which items wait ahead: a store on a server admits as many in one round trip.
	aheadFor = 250 * time.Millisecond
)

// A gate lets another item wait for the limiter when the limiter has admitted one. A few more wait than the limiter
// has lately admitted in a quarter of a second. So the limit is used before the duration of a response is known,
// and few items wait.
type gate struct {
	mu       sync.Mutex // guards the fields below
	waiting  int
	ahead    int
	admitted int // since
	since    time.Time
	waits    func(int) // is called when the number of items that wait has changed

	left chan struct{} // has a value if an item may have left since the last look
}

func newGate(waits func(int)) *gate {
	return &gate{ahead: leastAhead, since: time.Now(), waits: waits, left: make(chan struct{}, 1)}
}

// A place is that of one item that waits.
type place struct {
	gate *gate
	left atomic.Bool
}

// enter blocks until another item may wait. It returns nil if ctx ends.
func (g *gate) enter(ctx context.Context) *place {
	for ctx.Err() == nil {
		if g.tryEnter() {
			return &place{gate: g}
		}
		select {
		case <-g.left:
		case <-ctx.Done():
		}
	}
	return nil
}

// tryEnter lets an item wait if another may.
func (g *gate) tryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting >= g.ahead {
		return false
	}
	g.add(1)
	return true
}

// add changes the number of items that wait. The caller holds the lock.
func (g *gate) add(n int) {
	g.waiting += n
	g.waits(g.waiting)
}

// enterAgain lets an item wait that is tried again.
func (g *gate) enterAgain() *place {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.add(1)
	return &place{gate: g}
}

// leave reports that an item no longer waits, because it was admitted or because it is over. It does so once.
func (p *place) leave(admitted bool) {
	if p.left.Swap(true) {
		return
	}
	p.gate.leave(admitted)
}

func (g *gate) leave(admitted bool) {
	g.mu.Lock()
	g.add(-1)
	if admitted {
		g.admitted++
	}
	if now := time.Now(); now.Sub(g.since) >= aheadFor {
		g.ahead = max(leastAhead, g.admitted+moreAhead)
		g.admitted, g.since = 0, now
	}
	g.mu.Unlock()
	select {
	case g.left <- struct{}{}:
	default:
	}
}
