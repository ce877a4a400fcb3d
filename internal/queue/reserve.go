package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apithrottle/throttle/store"
)

func equal(a, b []int64) bool { return slices.Equal(a, b) }

// firstUnreserved returns the first waiter without a reserved time, or nil if there is none.
func (q *Queue) firstUnreserved() *waiter {
	if len(q.reserved) == 0 {
		return q.waiters.first()
	}
	return q.waiters.at(len(q.reserved))
}

// askTime returns when to ask the quota for the first waiter without a time.
func (q *Queue) askTime(w *waiter) time.Time {
	var at time.Time
	if n := len(q.reserved); n > 0 {
		at = q.reserved[n-1].Reservation.Again
	}
	if (w == q.retryWaiter || q.storeErr != nil) && !q.lastReplyAt.Before(at) { // already asked since, and refused
		return q.nextAskAt
	}
	return at
}

// chooseAsking chooses the waiters for which to ask the quota now, and reports whether there are
// any.
func (q *Queue) chooseAsking(now time.Time) bool {
	w := q.firstUnreserved()
	if w == nil || !q.isOurTurn() || q.askTime(w).After(now) && !w.hasGivenUp(now) {
		return false
	}
	batchSize := 1
	if q.reserver != nil {
		batchSize = q.batchSize
	}
	q.asking = make([]*waiter, 0, min(batchSize, q.waiters.len()-len(q.reserved)))
	for ; w != nil && len(q.asking) < batchSize; w = w.next() {
		q.specify(w, now)
		q.asking = append(q.asking, w)
	}
	q.askedAt, q.changed = now, false
	return true
}

// specify sets what a waiter's request asks for now.
func (q *Queue) specify(w *waiter, now time.Time) {
	if q.config.Guard != nil {
		w.Request.Guard = q.config.Guard() + w.Longer
	}
	w.Request.WaitSpec, w.Request.Queued = q.spec(w, now), true
}

// admitMore asks a quota that does not block for the waiters behind one that it has admitted, up to
// the first that has to wait. They all return together, without a wake-up for each to ask.
func (q *Queue) admitMore(now time.Time) {
	for range maxPass {
		w := q.waiters.first()
		if w == nil || w.joining || w.Ask != nil || w.Recost != nil || !q.isOurTurn() {
			return
		}
		select {
		case <-w.ended: // the caller is about to leave, and then wakes the next one
			return
		default:
		}
		q.specify(w, now)
		d, err := q.config.Quota.TryAcquire(context.Background(), w.Request)
		if err != nil {
			return
		}
		if d.Verdict != store.Admitted {
			now = time.Now() // the wait counts from the reply
		}
		if q.applyDecision(w, d, now); !w.out.Load() {
			return
		}
	}
}

// ask asks the quota, after chooseAsking in the same generation: for the caller itself, or for all
// chosen waiters if the quota reserves times.
func (q *Queue) ask(ctx context.Context, self *waiter, generation int) {
	q.mu.Lock()
	if generation != q.generation { // the queue was closed or replaced in the meantime
		q.dropStale(self)
		q.mu.Unlock()
		return
	}
	if reserver := q.reserver; reserver != nil {
		behind, requests, done := q.question()
		q.mu.Unlock()
		reserver.Reserve(behind, requests, done)
		return
	}
	if q.waiters.first() != self { // the waiter was overtaken in the meantime
		q.asking = nil
		q.reconcile(time.Now(), self)
		q.mu.Unlock()
		return
	}
	turn, asking, ask, quota := Turn{Request: self.Request, Owner: self.owner}, ctx, self.Ask, q.config.Quota
	if ask != nil {
		turn.Away = q.awayAhead(self)
		turn.StepAside, turn.StepBack = func() { q.stepAside(self) }, func() { q.stepBack(self) }
		turn.Overtakes = func() bool { return q.overtakes(self) }
		var cancel func()
		asking, cancel = context.WithCancel(ctx)
		q.cancel = cancel
		defer cancel()
	}
	q.mu.Unlock()
	r, err := Result{}, errPanic
	defer func() {
		interrupted := err != errPanic && asking.Err() != nil && ctx.Err() == nil
		if !q.comeBack(self, r, err, interrupted) && !q.handleReply(self, []store.Decision{r.Decision}, err, generation, interrupted) {
			q.finishStale(self, r, err, interrupted)
		}
	}()
	if self.Recost != nil {
		if cost := self.Recost(turn.Owner); cost != nil {
			turn.Cost = cost
			q.setCost(self, cost, generation)
		}
	}
	if ask != nil {
		r, err = ask(asking, turn)
		return
	}
	r.Cost, r.Owner = turn.Cost, turn.Owner
	r.Decision, err = quota.TryAcquire(asking, turn.Request)
}

// setCost changes the cost of a waiter, which may have left. It does nothing if the generation has
// changed.
func (q *Queue) setCost(w *waiter, cost []int64, generation int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if generation == q.generation && !equal(w.Request.Cost, cost) {
		w.setCost(cost)
		q.forecasts.drop()
	}
}

// errPanic ends the wait of a caller whose Ask or Recost does not return.
var errPanic error = &Final{errors.New("queue: the caller's Ask or Recost panicked")}

// finishStale applies the reply to a request of a waiter that has stepped back, or that was made for a
// configuration that has been replaced, or for a queue that was closed. If the quota has admitted the caller, the caller returns
// with the admission, even if the queue has refused it meanwhile. A reply that is not final is void,
// and a caller that is still in the queue asks again.
func (q *Queue) finishStale(w *waiter, r Result, err error, interrupted bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropStale(w)
	switch {
	case err == nil && r.Verdict == store.Admitted:
		if !w.out.Load() {
			q.detach(w)
		}
		w.owner, w.Request.Cost, w.decision, w.refusal = r.Owner, r.Cost, r.Decision, nil
	case errors.As(err, new(*Final)) && !interrupted:
		q.expel(w, err)
	}
	now := time.Now()
	q.reviewEarly(now)
	q.reconcile(now, w)
}

func (q *Queue) dropStale(w *waiter) {
	q.stale = slices.DeleteFunc(q.stale, func(asked *waiter) bool { return asked == w })
}

// reviewEarly reviews the waiters after the reply to a request that a forecast took for charged: a
// newcomer may have joined that is late.
func (q *Queue) reviewEarly(now time.Time) {
	if q.forecasts.early {
		q.forecasts = forecasts{}
		q.review(now, q.steps(now))
	}
}

// question returns the arguments of a call of Reserve.
func (q *Queue) question() (behind *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	if n := len(q.reserved); n > 0 {
		behind = q.reserved[n-1].Reservation
	}
	requests = make([]store.Request, len(q.asking))
	for i, w := range q.asking {
		requests[i] = w.Request
	}
	generation, reserver := q.generation, q.reserver
	return behind, requests, func(got []store.Decision, err error) {
		if !q.handleReply(nil, got, err, generation, false) {
			reserver.Cancel(slices.DeleteFunc(got, func(d store.Decision) bool { return d.Verdict != store.Admitted }))
		}
	}
}

// handleReply applies the quota's decisions on the first waiters in asking, or on self. It returns false
// if the queue is not asking for them any more: the reply is then void. The queue repeats a call that
// was interrupted.
func (q *Queue) handleReply(self *waiter, got []store.Decision, err error, generation int, interrupted bool) bool {
	more, ok := q.applyReply(self, got, err, generation, interrupted)
	if more != nil {
		more()
	}
	return ok
}

// applyReply is handleReply with the lock. It also returns what to call without the lock, or nil.
func (q *Queue) applyReply(self *waiter, got []store.Decision, err error, generation int, interrupted bool) (more func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if generation != q.generation || self != nil && !q.isAsked(self) {
		return nil, false
	}
	now := time.Now()
	asked := q.asking
	q.asking, q.cancel, q.lastReplyAt, q.nextAskAt, q.storeErr = nil, nil, now, time.Time{}, nil
	switch {
	case err != nil && interrupted:
		got = nil
	case errors.Is(err, store.ErrUnavailable) && !errors.As(err, new(*Final)):
		q.storeErr, q.nextAskAt = err, now.Add(retryStore)
		got = nil
	case err != nil:
		got = nil
		for _, w := range asked {
			q.expel(w, err)
		}
	}
	for i, d := range got {
		q.applyDecision(asked[i], d, now)
	}
	for _, w := range asked {
		if !w.out.Load() && w.hasGivenUp(now) && q.waiters.index(w, make([]int64, len(w.Request.Cost))) >= len(q.reserved) {
			q.expel(w, q.late(w, now))
		}
	}
	if q.changed {
		q.nextAskAt = time.Time{}
	}
	if q.fast != nil && len(got) > 0 && got[0].Verdict == store.Admitted {
		q.admitMore(now)
	}
	q.reviewEarly(now)
	q.reconcile(now, self)
	if slices.ContainsFunc(got, func(d store.Decision) bool { return d.Verdict == store.Moved }) {
		return q.config.Replanned, true
	}
	// If no waiter has a reserved time, callers wait for the store's replies. So ask for more at
	// once.
	if q.batchSize = minBatch; len(q.reserved) == 0 {
		q.batchSize = min(maxBatch, max(q.batchSize, 2*len(got)))
	}
	if q.reserver != nil && q.chooseAsking(now) {
		behind, requests, done := q.question()
		reserver := q.reserver
		more = func() { reserver.Reserve(behind, requests, done) }
	}
	return more, true
}

// applyDecision applies the decision on one waiter, which may have left.
func (q *Queue) applyDecision(w *waiter, d store.Decision, now time.Time) {
	switch {
	case d.Verdict == store.Admitted && q.reserver != nil && d.Reservation != nil:
		q.reserved = append(q.reserved, d)
	case d.Verdict == store.Admitted && w.out.Load():
		q.reserver.Cancel([]store.Decision{d})
	case d.Verdict == store.Admitted:
		q.admit(w, d)
	case d.Verdict == store.Moved: // it asks the successor
	case d.Verdict == store.Closed:
		q.refuse(w, Banned, d)
	case d.Verdict == store.Exhausted:
		q.refuse(w, Exhausted, d)
	case d.Verdict == store.Late, w.hasGivenUp(now),
		d.Tier == -1 && w.timeLeft(now) < d.Wait: // a pause makes the waiter late
		q.refuse(w, Late, d)
	default:
		if w.Request.YieldFor > 0 { // then the quota may admit it
			d.Wait = min(d.Wait, w.Request.YieldFor)
		}
		if w.timeLeft(now) <= 0 {
			d.Wait = forever // its context is ending
		}
		if d.Recheck {
			d.Wait = min(d.Wait, store.RecheckInterval)
		}
		q.retryWaiter, q.nextAskAt, q.readyAt, q.decider = w, now.Add(d.Wait), now.Add(d.Ready), max(0, d.Tier+1)
	}
}

// refuse expels a waiter because of the quota's decision.
func (q *Queue) refuse(w *waiter, reason Reason, d store.Decision) {
	if !w.out.Load() {
		ahead := q.waiters.index(w, make([]int64, len(w.Request.Cost)))
		q.expel(w, &Refusal{Reason: reason, Tier: d.Tier, Wait: d.Wait, Ahead: ahead, Crossed: d.Crossed})
	}
}

// errUnanswered is the cause of Unavailable while the first call is under way.
var errUnanswered = errors.New("the store has not answered yet")

func (q *Queue) unavailable(ended error) *Refusal {
	return &Refusal{Reason: Unavailable, Tier: -1, Cause: fmt.Errorf("%w: %w", ended, cmp.Or(q.storeErr, errUnanswered))}
}

// match assigns the reserved times to waiters: each to the first waiter behind the last one
// matched, if the costs are equal. It refuses waiters that this makes late, and returns the times
// that fit no waiter.
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
		if w == nil || d.Reservation.Expired(now) || !equal(d.Reservation.Cost, w.Request.Cost) {
			unused = append(unused, d)
			continue
		}
		kept = append(kept, d)
		w = w.next()
	}
	q.reserved = kept
	return unused
}
