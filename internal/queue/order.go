package queue

// nextNumber returns the number of a newcomer. It is the highest in all queues of the quota.
func (q *Queue) nextNumber() uint64 {
	if q.config.Order != nil {
		return q.config.Order.Next()
	}
	return q.waiters.last + 1
}

// takePlace gives the queue the place of its first waiter.
func (q *Queue) takePlace() {
	if q.config.Order == nil {
		return
	}
	first := q.waiters.first()
	switch {
	case first == q.ahead && (first == nil || first.rank.Equal(q.aheadRank)):
		return
	case first == nil:
		q.config.Order.Leave(&q.place)
	default:
		q.config.Order.Take(&q.place, first.rank, first.number, first.wakeUp)
	}
	if q.ahead = first; first != nil {
		q.aheadRank = first.rank
	}
}

// isOurTurn reports whether no other queue of the quota is ahead of this one, and no waiter of this
// queue is coming back.
func (q *Queue) isOurTurn() bool {
	return q.recalled == 0 && (q.config.Order == nil || q.config.Order.IsFirst(&q.place))
}
