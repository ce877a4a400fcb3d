package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle/store"
)

func equal(a, b []int64) bool { return slices.Equal(a, b) }

// untimed returns the first waiter without a reserved time, nil if there is none.
func (q *Queue) untimed() *waiter {
	if len(q.reserved) == 0 {
		return q.waiters.first()
	}
	return q.waiters.at(len(q.reserved))
}

// due returns when the quota is to be asked for the first waiter without a time.
func (q *Queue) due(w *waiter) time.Time {
	var due time.Time
	if n := len(q.reserved); n > 0 {
		due = q.reserved[n-1].Reservation.Again
	}
	if (w == q.replied || q.outage != nil) && !q.lastReplyAt.Before(due) { // asked since, and refused
		return q.nextAskAt
	}
	if w.hold.AskAt.After(due) {
		due = w.hold.AskAt
	}
	return due
}

// prepare chooses for whom the quota is to be asked now, and reports whether that is
// anybody.
func (q *Queue) prepare(now time.Time) bool {
	w := q.untimed()
	if w == nil || q.moving > 0 || q.due(w).After(now) && !w.givesUp(now) {
		return false
	}
	most := 1
	if q.reserver != nil {
		most = q.most
	}
	q.asking = make([]*waiter, 0, min(most, q.waiters.len()-len(q.reserved)))
	for ; w != nil && len(q.asking) < most; w = w.next() {
		if q.config.Guard != nil {
			w.request.Guard = q.config.Guard()
		}
		w.request.WaitSpec = q.spec(w, now)
		q.asking = append(q.asking, w)
	}
	q.changed = false
	return true
}

// ask asks the quota, after prepare in that round: for the caller itself, or for all that
// were chosen if times are reserved.
func (q *Queue) ask(ctx context.Context, self *waiter, round int) {
	q.mu.Lock()
	if round != q.round { // the queue was closed or replaced meanwhile
		q.mu.Unlock()
		q.comeBack(self, store.Decision{}, nil)
		return
	}
	if reserver := q.reserver; reserver != nil {
		behind, requests, done := q.question()
		q.mu.Unlock()
		reserver.Reserve(behind, requests, done)
		return
	}
	if q.waiters.first() != self { // it was overtaken meanwhile
		q.asking = nil
		q.settle(time.Now(), self)
		q.mu.Unlock()
		return
	}
	try, asking := self.try, ctx
	if try == nil {
		try = q.config.Quota.TryAcquire
	} else {
		asking, q.cancel = context.WithCancel(ctx)
		defer q.cancel()
	}
	request := self.request
	q.mu.Unlock()
	d, err := store.Decision{}, errPanic
	defer func() {
		interrupted := err != errPanic && asking.Err() != nil && ctx.Err() == nil
		if !q.answered([]store.Decision{d}, err, round, interrupted) {
			q.comeBack(self, d, err)
		}
	}()
	d, err = try(asking, request)
}

// errPanic ends the wait of a caller whose Ask does not return.
var errPanic error = &Final{errors.New("queue: the caller's Ask panicked")}

// comeBack ends the wait of a caller for which the quota of before was being asked. What
// that admitted is charged to it. Any other caller is refused.
func (q *Queue) comeBack(w *waiter, d store.Decision, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.out.Load(): // with the others
		return
	case err == nil && d.Verdict == store.Admitted:
		w.decision = d
		q.moved()
	case q.closed:
		w.refusal = &Refusal{Reason: Closed, Tier: -1}
		q.moved()
	case err == errPanic:
		q.moved()
	default:
		w.refusal = &Refusal{Reason: Moved, Tier: -1}
	}
	w.out.Store(true)
}

// question returns what a Reserver is asked.
func (q *Queue) question() (behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	if n := len(q.reserved); n > 0 {
		behind = q.reserved[n-1].Reservation
	}
	requests = make([]store.Request, len(q.asking))
	for i, w := range q.asking {
		requests[i] = w.request
	}
	round, reserver := q.round, q.reserver
	return behind, requests, func(got []store.Decision, err error) {
		if !q.answered(got, err, round, false) {
			reserver.Cancel(slices.DeleteFunc(got, func(d store.Decision) bool { return d.Verdict != store.Admitted }))
		}
	}
}

// answered takes the quota's answers for those who were first in asking. It reports
// whether it did: answers to a question of an earlier round are void. One that was
// interrupted is asked again.
func (q *Queue) answered(got []store.Decision, err error, round int, interrupted bool) bool {
	q.mu.Lock()
	if round != q.round {
		q.mu.Unlock()
		return false
	}
	now := time.Now()
	asked := q.asking
	q.asking, q.cancel, q.lastReplyAt, q.nextAskAt, q.outage = nil, nil, now, time.Time{}, nil
	switch {
	case err != nil && interrupted:
		got = nil
	case errors.Is(err, store.ErrUnavailable) && !errors.As(err, new(*Final)):
		q.outage, q.nextAskAt = err, now.Add(retryStore)
		got = nil
	case err != nil:
		got = nil
		for _, w := range asked {
			q.expel(w, err)
		}
	}
	for i, d := range got {
		q.answer(asked[i], d, now)
	}
	for _, w := range asked {
		if !w.out.Load() && w.givesUp(now) && q.waiters.index(w, make([]int64, len(w.request.Cost))) >= len(q.reserved) {
			q.expel(w, q.late(w, now))
		}
	}
	if q.changed {
		q.nextAskAt = time.Time{}
	}
	var self *waiter
	if q.reserver == nil {
		self = asked[0]
	}
	q.settle(now, self)
	// Where nobody is left to wait for a time, the answers are what callers wait for.
	if q.most = leastAsked; len(q.reserved) == 0 {
		q.most = min(mostAsked, max(q.most, 2*len(got)))
	}
	var more func()
	if q.reserver != nil && q.prepare(now) {
		behind, requests, done := q.question()
		reserver := q.reserver
		more = func() { reserver.Reserve(behind, requests, done) }
	}
	q.mu.Unlock()
	if more != nil {
		more()
	}
	return true
}

// answer acts on the answer for one waiter, which may have left.
func (q *Queue) answer(w *waiter, d store.Decision, now time.Time) {
	switch {
	case d.Verdict == store.Admitted && q.reserver != nil && d.Reservation != nil:
		q.reserved = append(q.reserved, d)
	case d.Verdict == store.Admitted && w.out.Load():
		q.reserver.Cancel([]store.Decision{d})
	case d.Verdict == store.Admitted:
		q.admit(w, d)
	case d.Verdict == store.Moved:
		q.dismiss(w)
	case d.Verdict == store.Closed:
		q.refuse(w, Banned, d)
	case d.Verdict == store.Exhausted:
		q.refuse(w, Exhausted, d)
	case d.Verdict == store.Late, w.givesUp(now),
		d.Tier == -1 && w.timeLeft(now) < d.Wait: // a pause makes it late
		q.refuse(w, Late, d)
	default:
		if w.request.YieldFor > 0 { // then it may go where it may not now
			d.Wait = min(d.Wait, w.request.YieldFor)
		}
		if w.timeLeft(now) <= 0 {
			d.Wait = forever // its context ends now
		}
		q.replied, q.nextAskAt = w, now.Add(d.Wait)
	}
}

// dismiss refuses a waiter that asked a quota which has a successor. It counts as waiting
// until it has come back.
func (q *Queue) dismiss(w *waiter) {
	if !w.out.Load() {
		q.expel(w, &Refusal{Reason: Moved, Tier: -1})
		q.moving++
		q.waiting.Add(1)
	}
}

// refuse expels a waiter for what the quota decided.
func (q *Queue) refuse(w *waiter, reason Reason, d store.Decision) {
	if !w.out.Load() {
		ahead := q.waiters.index(w, make([]int64, len(w.request.Cost)))
		q.expel(w, &Refusal{Reason: reason, Tier: d.Tier, Wait: d.Wait, Ahead: ahead, Crossed: d.Crossed})
	}
}

func (q *Queue) unavailable(ended error) *Refusal {
	return &Refusal{Reason: Unavailable, Tier: -1, Cause: fmt.Errorf("%w: %w", ended, q.outage)}
}

// isBefore reports whether a reserved time ends too early to be of use to the waiter.
func (w *waiter) isBefore(r *store.Reservation) bool { return !w.hold.NotBefore.Before(r.End) }

// match keeps the times that fit: each for the first waiter behind the last one matched,
// if its cost is equal. It refuses waiters which that makes late.
func (q *Queue) match(now time.Time) (unused []store.Decision) {
	if len(q.reserved) == 0 {
		return nil
	}
	kept := q.reserved[:0]
	w := q.waiters.first()
	for _, d := range q.reserved {
		for w != nil && w.isLate(d.Reservation.Start) {
			late := w
			w = w.next()
			q.expel(late, &Refusal{Reason: Late, Tier: d.Tier, Wait: d.Reservation.Start.Sub(now), Ahead: len(kept)})
		}
		if w == nil || d.Reservation.Expired(now) || !equal(d.Reservation.Cost, w.request.Cost) || w.isBefore(d.Reservation) {
			unused = append(unused, d)
			continue
		}
		kept = append(kept, d)
		w = w.next()
	}
	q.reserved = kept
	return unused
}
