package queue

import (
	"errors"
	"time"

	"github.com/apithrottle/throttle/store"
)

// stepAside takes a waiter that is asking out of the order while it waits for another quota.
func (q *Queue) stepAside(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isAsked(w) {
		q.goAway(w)
		q.takePlace()
		q.reconcile(time.Now(), nil)
	}
}

// goAway takes the waiter that is asking by Ticket.Ask out of the order of those that may ask.
func (q *Queue) goAway(w *waiter) {
	w.recall = q.cancel
	q.asking, q.cancel, q.nextAskAt = nil, nil, time.Time{}
	q.waiters.remove(w)
	q.away.insert(w)
}

// overtakes reports whether a caller ahead of a waiter that is away waits for the quota.
func (q *Queue) overtakes(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.recall == nil {
		return false
	}
	if q.config.Order != nil {
		return q.config.Order.IsAhead(w.rank, w.number)
	}
	first := q.waiters.first()
	return first != nil && first.before(w.rank, w.number)
}

// stepBack puts a waiter that is away in its place again, before its Ask returns.
func (q *Queue) stepBack(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.recall == nil || w.out.Load() {
		return
	}
	q.forgetAway(w)
	q.insert(w)
	q.stale = append(q.stale, w)
	q.letAskAgain()
	q.cancelBehind(w)
}

// insert inserts a waiter that was away.
func (q *Queue) insert(w *waiter) {
	q.waiters.insert(w)
	q.takePlace()
	q.noteOvertaken(w)
}

// cancelBehind makes the caller that is asking ask again behind a waiter that is now first.
func (q *Queue) cancelBehind(w *waiter) {
	if q.cancel != nil && q.waiters.first() == w {
		q.cancel()
	}
}

// letAskAgain lets the first waiter ask: a waiter that was away may have left room.
func (q *Queue) letAskAgain() {
	if q.changed = true; q.storeErr == nil {
		q.nextAskAt = time.Time{}
	}
}

// awayAhead returns the cost of the waiters that are away and ahead of a waiter, nil if none is.
func (q *Queue) awayAhead(w *waiter) (sum []int64) {
	sum = make([]int64, len(w.Request.Cost))
	if n, _ := q.away.ahead(w.rank, w.number, sum); n == 0 {
		return nil
	}
	return sum
}

// comeBack applies the reply to a waiter that is away. If the waiter is neither admitted nor refused,
// it takes its place in the order again. It returns false if the waiter is not away.
func (q *Queue) comeBack(w *waiter, r Result, err error, interrupted bool) bool {
	back, replanned := q.takeBack(w, r, err, interrupted)
	if replanned != nil {
		replanned()
	}
	return back
}

// takeBack is comeBack with the lock. It also returns what to call without the lock, or nil.
func (q *Queue) takeBack(w *waiter, r Result, err error, interrupted bool) (back bool, replanned func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.recall == nil {
		return false, nil
	}
	q.forgetAway(w)
	now := time.Now()
	switch {
	case err == nil && r.Verdict == store.Admitted:
		q.admitAway(w, r)
	case w.out.Load(): // refused meanwhile
	case err == nil || interrupted || errors.Is(err, store.ErrUnavailable) && !errors.As(err, new(*Final)):
		q.rejoin(w, r.Decision, err, interrupted, now)
		if r.Verdict == store.Moved {
			replanned = q.config.Replanned
		}
	default:
		q.refuseAway(w, err)
	}
	q.stopIfEmpty()
	if q.changed = true; q.waiters.first() != w || q.away.len() == 0 {
		q.letAskAgain()
	}
	q.reconcile(now, w)
	return true, replanned
}

// rejoin puts a waiter that was away in its place again.
func (q *Queue) rejoin(w *waiter, d store.Decision, err error, interrupted bool, now time.Time) {
	q.insert(w)
	q.cancelBehind(w)
	switch {
	case interrupted:
		q.review(now, q.steps(now))
	case err != nil:
		q.storeErr, q.nextAskAt, q.retryWaiter, q.lastReplyAt = err, now.Add(retryStore), w, now
	case w.Request.WaitSpec != nil: // else the configuration has been replaced, and it asks again
		q.lastReplyAt = now
		q.applyDecision(w, d, now)
	}
	if !w.out.Load() && w.hasGivenUp(now) {
		q.expel(w, q.late(w, now))
	}
}

// recall makes all waiters come back that are away.
func (q *Queue) recall() {
	for _, w := range q.away.all() {
		if !w.recalled {
			w.recalled = true
			q.recalled++
		}
		w.recall()
	}
}

// forgetAway ends the absence of a waiter.
func (q *Queue) forgetAway(w *waiter) {
	if w.recall = nil; w.recalled {
		w.recalled = false
		q.recalled--
	}
	if !w.out.Load() {
		q.away.remove(w)
	}
}

// admitAway admits a waiter that was away, even if the queue has refused it meanwhile.
func (q *Queue) admitAway(w *waiter, r Result) {
	w.owner, w.Request.Cost, w.decision, w.refusal = r.Owner, r.Cost, r.Decision, nil
	if !w.out.Load() {
		q.forecasts.drop() // they may contain its charge, or be of another configuration
		q.waiting.Add(-1)
		w.out.Store(true)
	}
}

// refuseAway refuses a waiter that is away, and makes it come back, or that was away.
func (q *Queue) refuseAway(w *waiter, err error) {
	if w.out.Load() {
		return
	}
	if w.recall != nil {
		q.away.remove(w)
		w.recall()
	}
	w.refusal = err
	q.waiting.Add(-1)
	w.out.Store(true)
}

// expelAway refuses all waiters that are away, unless they have been admitted meanwhile.
func (q *Queue) expelAway(err error) {
	for _, w := range q.away.all() {
		q.refuseAway(w, err)
	}
}
