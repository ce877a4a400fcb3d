package queue

import "github.com/apithrottle/throttle/internal/order"

// setOrder joins the order of the queues of the quota. Requests of a store.Reserver are in the
// order of their reservations instead.
func (q *Queue) setOrder() {
	var its *order.Order
	if o, ok := q.config.Quota.(order.Ordered); ok && q.reserver == nil {
		its = o.Order()
	}
	if its != q.order && q.order != nil {
		q.order.Leave(&q.place)
		q.ahead = nil
	}
	q.order = its
}

// nextNumber returns the number of a newcomer. It is the highest in all queues of the quota.
func (q *Queue) nextNumber() uint64 {
	if q.order != nil {
		return q.order.Next()
	}
	return q.waiters.last + 1
}

// takePlace gives the queue the place of its first waiter, unless that waits for another quota.
func (q *Queue) takePlace() {
	if q.order == nil {
		return
	}
	first := q.waiters.first()
	if q.aside {
		first = nil
	}
	switch {
	case first == q.ahead:
		return
	case first == nil:
		q.order.Leave(&q.place)
	default:
		q.order.Take(&q.place, first.rank, first.number, first.wakeUp)
	}
	q.ahead = first
}

// isOurTurn reports whether no other queue of the quota is ahead of this one.
func (q *Queue) isOurTurn() bool { return q.order == nil || q.order.IsFirst(&q.place) }

// stepAside lets other queues go ahead while a waiter that is asking waits for another quota.
func (q *Queue) stepAside(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isAsked(w) {
		q.aside = true
		q.takePlace()
	}
}
