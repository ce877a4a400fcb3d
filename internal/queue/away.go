package queue

import (
	"context"
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

// goAway takes the waiter that is asking by Ticket.Ask out of the tree.
func (q *Queue) goAway(w *waiter) {
	if q.away == nil {
		q.away = make(map[*waiter]context.CancelFunc)
	}
	q.away[w] = q.cancel
	q.addAway(w)
	q.asking, q.cancel, q.nextAskAt = nil, nil, time.Time{}
	q.waiters.remove(w)
}

// overtakes reports whether a caller ahead of a waiter that is away waits for the quota.
func (q *Queue) overtakes(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, away := q.away[w]; !away {
		return false
	}
	if q.config.Order != nil {
		return q.config.Order.IsAhead(w.rank, w.number)
	}
	first := q.waiters.first()
	return first != nil && first.before(w.rank, w.number)
}

// addAway adds the cost of a waiter to the cost of those that are away.
func (q *Queue) addAway(w *waiter) {
	if q.awayCost == nil {
		q.awayCost = make([]int64, len(w.Request.Cost))
	}
	add(q.awayCost, w.Request.Cost)
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
	if _, back = q.away[w]; !back {
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
	q.changed = true
	if (q.waiters.first() != w || len(q.away) == 0) && q.storeErr == nil { // there may be room now
		q.nextAskAt = time.Time{}
	}
	q.reconcile(now, w)
	return true, replanned
}

// rejoin puts a waiter that was away in its place again.
func (q *Queue) rejoin(w *waiter, d store.Decision, err error, interrupted bool, now time.Time) {
	q.waiters.insert(w)
	q.takePlace()
	q.noteOvertaken(w)
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
	for w, cancel := range q.away {
		if !w.recalled {
			w.recalled = true
			q.recalled++
		}
		cancel()
	}
}

// forgetAway ends the absence of a waiter.
func (q *Queue) forgetAway(w *waiter) {
	delete(q.away, w)
	if w.recalled {
		w.recalled = false
		q.recalled--
	}
	if len(q.away) == 0 {
		q.awayCost = nil
	} else if !w.out.Load() {
		for u, n := range w.Request.Cost {
			q.awayCost[u] -= n
		}
	}
}

// admitAway admits a waiter that was away, even if the queue has refused it meanwhile.
func (q *Queue) admitAway(w *waiter, r Result) {
	w.owner, w.Request.Cost, w.decision, w.refusal = r.Owner, r.Cost, r.Decision, nil
	if !w.out.Load() {
		if r.Owner == q.config.Owner {
			q.forecasts.admitted(w)
		} else {
			q.forecasts.drop()
		}
		q.waiting.Add(-1)
		w.out.Store(true)
	}
}

// refuseAway refuses a waiter that is or was away.
func (q *Queue) refuseAway(w *waiter, err error) {
	if !w.out.Load() {
		w.refusal = err
		q.waiting.Add(-1)
		w.out.Store(true)
	}
}

// expelAway refuses all waiters that are away, unless they have been admitted meanwhile.
func (q *Queue) expelAway(err error) {
	for w, cancel := range q.away {
		q.refuseAway(w, err)
		cancel()
	}
	clear(q.awayCost)
}

// renewAway makes the requests of the waiters that are away anew.
func (q *Queue) renewAway() {
	q.awayCost = nil
	for w, cancel := range q.away {
		if w.out.Load() {
			continue
		}
		if err := w.renew(q.config.Owner); err != nil {
			q.refuseAway(w, err)
			cancel()
			continue
		}
		w.rank = q.naturalRank(&w.newcomer)
		q.addAway(w)
	}
}
