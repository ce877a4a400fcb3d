// Package blame tells the refusals of one object from those of a limit that all requests share.
package blame

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

const (
	most  = 256              // the most objects that a Record remembers
	many  = 5                // so many refusals in a row, with passes of other objects in between, are about an object
	after = 10 * time.Second // from the first of them: after a pause, a limit of many objects lets one pass
)

var seed = maphash.MakeSeed()

// A Record remembers which objects were refused last, by names such as the method and the path of a request. An
// object that is refused again and again, while others pass, has a limit or a fault of its own. The zero Record
// is ready for use. It is safe for concurrent use. Before the first refusal it takes no memory.
type Record struct {
	list atomic.Pointer[list]
}

type list struct {
	mu      sync.Mutex // guards all below
	passes  int        // how many requests have passed
	refused map[uint64]refusals
}

// Refusals are those of one object since it last passed.
type refusals struct {
	first  time.Time
	passes int // how many requests had passed at the last one
	row    int // how many there were after a pass of another object
}

// Refused records that a request for an object was refused, and reports whether that is about the object alone.
func (r *Record) Refused(object string) (alone bool) {
	l := r.list.Load()
	if l == nil {
		r.list.CompareAndSwap(nil, &list{refused: make(map[uint64]refusals)})
		l = r.list.Load()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := maphash.String(seed, object)
	last, again := l.refused[key]
	if !again {
		last.first = time.Now()
	}
	if !again || l.passes > last.passes {
		last.row++
	}
	if !again && len(l.refused) == most {
		for other := range l.refused { // any of them
			delete(l.refused, other)
			break
		}
	}
	last.passes = l.passes
	l.refused[key] = last
	return last.row > many && time.Since(last.first) >= after
}

// Passed records that a request for an object was not refused.
func (r *Record) Passed(object func() string) {
	l := r.list.Load()
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.passes++
	if len(l.refused) > 0 {
		delete(l.refused, maphash.String(seed, object()))
	}
}
