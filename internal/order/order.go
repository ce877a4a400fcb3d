// Package order keeps the order of callers that wait for one quota in several queues. Each queue has
// a place for its first caller, and asks the quota only while that place is the first.
package order

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// An Ordered is a quota whose callers may wait in several queues.
type Ordered interface {
	// Order returns the order of the queues. The quotas that replace this one have the same.
	Order() *Order
}

// An Order is the order of the queues of one quota. The zero Order is ready for use. Its methods do
// not block and are safe for concurrent use, but for the methods of one Place.
type Order struct {
	size atomic.Int32 // how many queues have a place
	last atomic.Uint64

	mu     sync.Mutex // guards all below, and the fields of the places
	places places
}

// A Place is the place of a queue. The zero Place is in no order.
type Place struct {
	rank   time.Time
	number uint64
	wake   func()
	// index is the index in Order.places plus one. If zero, the place is in no order.
	index int
}

// IsBehind reports whether a request must not be admitted before callers that are queued. Requests
// that cost nothing wait for no others. A nil Order has no callers.
func (o *Order) IsBehind(r store.Request) bool {
	return o != nil && o.size.Load() > 0 && !r.Queued && slices.ContainsFunc(r.Cost, func(n int64) bool { return n != 0 })
}

// Next returns a number that is higher than those it returned before.
func (o *Order) Next() uint64 { return o.last.Add(1) }

// Take gives a queue the place of a caller of a rank and a number. Callers of equal rank are in the
// order of their numbers. wake is called, with a lock, when the place becomes the first because
// another queue has left it. It must not block.
func (o *Order) Take(p *Place, rank time.Time, number uint64, wake func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.first()
	p.rank, p.number, p.wake = rank, number, wake
	if p.index > 0 {
		heap.Fix(&o.places, p.index-1)
	} else {
		heap.Push(&o.places, p)
		o.size.Store(int32(len(o.places)))
	}
	o.wakeFirst(first, p)
}

// Leave ends the use of a place. It does nothing if the place is in no order.
func (o *Order) Leave(p *Place) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.index == 0 {
		return
	}
	first := o.first()
	heap.Remove(&o.places, p.index-1)
	p.wake = nil
	o.size.Store(int32(len(o.places)))
	o.wakeFirst(first, p)
}

// IsFirst reports whether no other place is ahead.
func (o *Order) IsFirst(p *Place) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.first() == p
}

// IsAhead reports whether some place is ahead of a caller of a rank and a number.
func (o *Order) IsAhead(rank time.Time, number uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.first()
	return first != nil && first.before(&Place{rank: rank, number: number})
}

func (o *Order) first() *Place {
	if len(o.places) == 0 {
		return nil
	}
	return o.places[0]
}

func (p *Place) before(o *Place) bool {
	if !p.rank.Equal(o.rank) {
		return p.rank.Before(o.rank)
	}
	return p.number < o.number
}

// wakeFirst wakes the first place if it was not the first before a change of p.
func (o *Order) wakeFirst(before, p *Place) {
	if first := o.first(); first != nil && first != before && first != p {
		first.wake()
	}
}

// places is a heap.
type places []*Place

func (s places) Len() int { return len(s) }

func (s places) Less(i, j int) bool { return s[i].before(s[j]) }

func (s places) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i+1, j+1
}

func (s *places) Push(p any) {
	*s = append(*s, p.(*Place))
	p.(*Place).index = len(*s)
}

func (s *places) Pop() any {
	last := len(*s) - 1
	p := (*s)[last]
	(*s)[last] = nil
	*s, p.index = (*s)[:last], 0
	return p
}
