package queue

import (
	"time"

	"github.com/apithrottle/throttle/internal/order"
)

// A line is the waiters of a queue in their order. Among the queues of the quota, the queue has the
// place of its first waiter.
type line struct {
	tree
	// order is the order of those queues. If nil, there are no others.
	order *order.Order
	// place is the place of leader, which had the rank leaderRank.
	place      order.Place
	leader     *waiter
	leaderRank time.Time
}

// enter gives the queue its place in an order, in place of the one before.
func (l *line) enter(o *order.Order) {
	if l.order != nil && l.order != o {
		l.order.Leave(&l.place)
		l.leader = nil
	}
	l.order = o
}

// nextNumber returns the number of a newcomer. It is the highest in all queues of the quota.
func (l *line) nextNumber() uint64 {
	if l.order != nil {
		return l.order.Next()
	}
	return l.last + 1
}

func (l *line) insert(w *waiter) {
	l.tree.insert(w)
	l.takePlace()
}

func (l *line) remove(w *waiter) {
	l.tree.remove(w)
	l.takePlace()
}

func (l *line) build(waiters []*waiter) {
	l.tree.build(waiters)
	l.takePlace()
}

// takePlace gives the queue the place of its first waiter.
func (l *line) takePlace() {
	if l.order == nil {
		return
	}
	first := l.first()
	switch {
	case first == l.leader && (first == nil || first.rank.Equal(l.leaderRank)):
		return
	case first == nil:
		l.order.Leave(&l.place)
	default:
		l.order.Take(&l.place, first.rank, first.number, first.wakeUp)
	}
	if l.leader = first; first != nil {
		l.leaderRank = first.rank
	}
}

// isFirst reports whether no other queue of the quota is ahead of this one.
func (l *line) isFirst() bool { return l.order == nil || l.order.IsFirst(&l.place) }

// isAhead reports whether a waiter of any queue of the quota is ahead of w, which is in none.
func (l *line) isAhead(w *waiter) bool {
	if l.order != nil {
		return l.order.IsAhead(w.rank, w.number)
	}
	first := l.first()
	return first != nil && first.before(w.rank, w.number)
}
