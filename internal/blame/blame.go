// Package blame tells the refusals of one object from those of a limit that all requests share.
package blame

import (
	"context"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	most  = 64               // the most objects that a Record remembers
	many  = 5                // so many more refusals than passes, with passes of other objects in between, are about an object
	after = 10 * time.Second // from the first of them: after a pause, a limit of many objects lets one pass

	shortest = time.Second      // the first pause of an object; each further refusal doubles it
	longest  = 16 * time.Second // its longest pause, unless a response tells a longer one
)

var seed = maphash.MakeSeed()

// A Record remembers which objects were refused last, by names such as the method and the path of a request. An
// object that is refused again and again, while others pass, has a limit or a fault of its own, and pauses alone. The
// zero Record is ready for use. It is safe for concurrent use. Before the first refusal it takes no memory.
type Record struct {
	list atomic.Pointer[list]
}

type list struct {
	gates atomic.Int32 // how many objects have one

	mu      sync.Mutex // guards all below
	passed  time.Time  // when the last request was sent that has passed
	refused map[uint64]refusals
}

// Refusals are those of one object. Of the requests that were in flight at one of them, and of those that follow it
// before another object has passed, none counts: they can be refused by a limit that was used up at one moment.
type refusals struct {
	first, last time.Time
	more        int   // how many more were refused than passed
	own         bool  // it has been refused alone and passed since
	gate        *gate // nil unless it is refused alone
}

// A gate lets one request for an object through at a time, in the order in which they came.
type gate struct {
	turn   chan struct{} // holds one element while the first of them waits for its time
	opened chan struct{} // is closed once the object has passed
	next   time.Time     // when the next one is sent; guarded by the list
	gap    time.Duration // how long the one after it waits; guarded by the list
}

// Refused records that a request for an object was refused, which was sent at a time. It reports whether that is
// about the object alone. If so, the object pauses, for as long as the response tells or longer.
func (r *Record) Refused(object string, sent time.Time, told time.Duration) (alone bool) {
	l := r.list.Load()
	if l == nil {
		r.list.CompareAndSwap(nil, &list{refused: make(map[uint64]refusals)})
		l = r.list.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, key := time.Now(), maphash.String(seed, object)
	of, again := l.refused[key]
	switch {
	case !again:
		l.makeRoom()
		of = refusals{first: now, last: now, more: 1}
	case sent.After(of.last) && l.passed.After(of.last):
		of.last, of.more = now, of.more+1
	}
	if alone = of.more > many && now.Sub(of.first) >= after; alone {
		if of.gate == nil {
			of.gate = &gate{turn: make(chan struct{}, 1), opened: make(chan struct{}), gap: shortest}
			l.gates.Add(1)
		} else if of.last.Equal(now) {
			of.gate.gap = min(2*of.gate.gap, longest)
		}
		of.gate.delay(now, max(told, of.gate.gap))
	}
	l.refused[key] = of
	return alone
}

// delay makes the next request wait for some time at least.
func (g *gate) delay(now time.Time, wait time.Duration) {
	if next := now.Add(wait); next.After(g.next) {
		g.next = next
	}
}

// makeRoom forgets any object if there is no room for another one.
func (l *list) makeRoom() {
	for other, of := range l.refused {
		if len(l.refused) < most {
			return
		}
		l.open(of)
		delete(l.refused, other)
	}
}

// open ends the pause of an object.
func (l *list) open(of refusals) {
	if of.gate != nil {
		close(of.gate.opened)
		l.gates.Add(-1)
	}
}

// Passed records that a request for an object was not refused, which was sent at a time. Of an object that was refused
// alone before, the next refusal is its own too.
func (r *Record) Passed(object func() string, sent time.Time) {
	l := r.list.Load()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if sent.After(l.passed) {
		l.passed = sent
	}
	if len(l.refused) == 0 {
		return
	}
	key := maphash.String(seed, object())
	of := l.refused[key]
	switch l.open(of); {
	case of.gate != nil || of.own:
		of.more, of.own, of.gate = many, true, nil
	case of.more > 1:
		of.more--
	default:
		delete(l.refused, key)
		return
	}
	l.refused[key] = of
}

// Holds reports whether any object pauses.
func (r *Record) Holds() bool {
	l := r.list.Load()
	return l != nil && l.gates.Load() > 0
}

// Wait waits until a request for an object may be sent. If the context has ended or its deadline is before that, the
// error is the context's, and wait is how much longer it would have waited at least.
func (r *Record) Wait(ctx context.Context, object string) (wait time.Duration, err error) {
	l, g := r.list.Load(), (*gate)(nil)
	if l != nil {
		l.mu.Lock()
		g = l.refused[maphash.String(seed, object)].gate
		l.mu.Unlock()
	}
	if g == nil {
		return 0, nil
	}
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-g.opened:
		return 0, nil
	case <-ctx.Done():
		return l.until(g), ctx.Err()
	}
	for wait = l.until(g); wait > 0; wait = l.until(g) {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return wait, context.DeadlineExceeded
		}
		select {
		case <-time.After(wait):
		case <-g.opened:
			return 0, nil
		case <-ctx.Done():
			return l.until(g), ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g.delay(time.Now(), g.gap)
	return 0, nil
}

func (l *list) until(g *gate) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(g.next)
}
