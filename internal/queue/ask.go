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

// firstUnreserved returns the first waiter that needs a reserved time and has none, or nil if there is none.
func (q *Queue) firstUnreserved() *waiter {
	w := q.waiters.at(len(q.reserved) + q.skipped)
	for w != nil && q.isContent(w) {
		w = w.next()
	}
	return w
}

// soon is how long a caller waits for a reserved time without asking another queue for an earlier one.
const soon = 50 * time.Millisecond

// isContent reports whether a waiter has a time in another queue that this one would not undercut. A quota that
// reserves no times is asked in any case, when it has room.
func (q *Queue) isContent(w *waiter) bool {
	if q.config.Reserver == nil {
		return false
	}
	at := w.Option.elsewhere()
	if at.IsZero() || q.waiters.root.mixed {
		return false
	}
	n := len(q.reserved)
	return w.asked || time.Until(at) < soon || n > 0 && !at.After(q.reserved[n-1].Reservation.Start)
}

// isOurTurn reports whether no other queue of the quota is ahead of this one, and no waiter of this
// queue is coming back.
func (q *Queue) isOurTurn() bool {
	return q.config.Quota != nil && q.away.recalled == 0 && q.waiters.isFirst()
}

// askTime returns when to ask the quota for the first waiter without a time.
func (q *Queue) askTime(w *waiter) time.Time {
	at := q.calls.again
	if n := len(q.reserved); n > 0 {
		at = q.reserved[n-1].Reservation.Again
	}
	if c := &q.calls; (w == c.retry || q.config.Reserver != nil && c.hasRefused(w) || c.err != nil) && !c.repliedAt.Before(at) { // already asked since, and refused
		if w == c.retry && w.timeLeft(c.repliedAt) <= 0 {
			return c.repliedAt.Add(forever) // its context is ending
		}
		return c.retryAt
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
	c, most := &q.calls, 1
	if q.config.Reserver != nil {
		most = c.batchSize
	}
	c.asking = make([]*waiter, 0, min(most, q.waiters.len()-len(q.reserved)))
	for first := w; w != nil && len(c.asking) < most; w = w.next() {
		if w == first || !q.isContent(w) {
			q.config.specify(w, now)
			w.asked = true
			c.asking = append(c.asking, w)
		}
	}
	c.askedAt, c.changed = now, false
	return true
}

// ask asks the quota, after chooseAsking in the same generation: for the caller itself, or for all
// chosen waiters if the quota reserves times.
func (q *Queue) ask(ctx context.Context, self *waiter, generation int) {
	q.mu.Lock()
	if generation != q.calls.generation { // the queue was closed or replaced in the meantime
		q.calls.dropStale(self)
		q.mu.Unlock()
		return
	}
	if q.config.Reserver != nil {
		inquiry := q.inquiry()
		q.mu.Unlock()
		inquiry.ask()
		return
	}
	if q.waiters.first() != self { // the waiter was overtaken in the meantime
		q.calls.asking = nil
		q.reconcile(time.Now(), self)
		q.mu.Unlock()
		return
	}
	turn, asking, ask := Turn{Request: self.Request, Owner: self.owner}, ctx, self.Ask
	quota, blocks := q.config.Quota, q.config.Fast == nil
	if ask != nil {
		turn.Away = q.away.costAhead(self)
		turn.StepAside, turn.StepBack = func() { q.stepAside(self) }, func() { q.stepBack(self) }
		turn.Overtakes = func() bool { return q.overtakes(self) }
		var cancel func()
		asking, cancel = context.WithCancel(ctx)
		q.calls.cancel = cancel
		defer cancel()
	}
	q.mu.Unlock()
	r, err := Result{}, errPanic
	defer func() {
		q.finish(self, r, err, generation, err != errPanic && asking.Err() != nil && ctx.Err() == nil)
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
	if self.Option == nil {
		r.Decision, err = quota.TryAcquire(asking, turn.Request)
		return
	}
	r.Decision, err = self.Option.TryAcquire(asking, quota, blocks, turn.Request)
}

// setCost changes the cost of a waiter, which may have left. It does nothing if the generation has
// changed.
func (q *Queue) setCost(w *waiter, cost []int64, generation int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if generation == q.calls.generation && !slices.Equal(w.Request.Cost, cost) {
		w.setCost(cost)
		q.forecasts.drop()
	}
}

// errPanic ends the wait of a caller whose Ask or Recost does not return.
var errPanic error = &Final{errors.New("queue: the caller's Ask or Recost panicked")}

// mayAskAgain reports whether an error does not end the wait.
func mayAskAgain(err error) bool {
	return errors.Is(err, store.ErrUnavailable) && !errors.As(err, new(*Final))
}

// finish applies the reply to the request of a waiter that asked for itself. The queue repeats a
// call that was interrupted.
func (q *Queue) finish(w *waiter, r Result, err error, generation int, interrupted bool) {
	var then func() // to call without the lock
	defer func() {
		if then != nil {
			then()
		}
	}()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case w.recall != nil:
		then = q.comeBack(w, r, err, interrupted)
	case generation == q.calls.generation && q.calls.includes(w):
		then = q.applyReply(w, []store.Decision{r.Decision}, err, interrupted)
	default:
		q.finishStale(w, r, err, interrupted)
	}
}

// finishStale applies the reply to a request of a waiter that has stepped back, or that was made for a
// configuration that has been replaced, or for a queue that was closed. If the quota has admitted the
// caller, the caller returns with the admission, even if the queue has refused it meanwhile. A reply
// that is not final is void, and a caller that is still in the queue asks again.
func (q *Queue) finishStale(w *waiter, r Result, err error, interrupted bool) {
	q.calls.dropStale(w)
	switch {
	case err == nil && r.Verdict == store.Admitted:
		if !w.out.Load() {
			q.remove(w)
		}
		w.accept(r)
	case errors.As(err, new(*Final)) && !interrupted:
		q.expel(w, err)
	}
	now := time.Now()
	q.reviewEarly(now)
	q.reconcile(now, w)
}

// An inquiry is a call of Reserve for the waiters in calls.asking. It is asked without the lock.
type inquiry struct {
	queue      *Queue
	reserver   store.Reserver
	generation int
	behind     *store.Reservation
	requests   []store.Request
}

func (q *Queue) inquiry() inquiry {
	x := inquiry{queue: q, reserver: q.config.Reserver, generation: q.calls.generation}
	if n := len(q.reserved); n > 0 {
		x.behind = q.reserved[n-1].Reservation
	}
	x.requests = make([]store.Request, len(q.calls.asking))
	for i, w := range q.calls.asking {
		x.requests[i] = w.Request
	}
	return x
}

func (x inquiry) ask() { x.reserver.Reserve(x.behind, x.requests, x.answer) }

// answer applies the quota's decisions.
func (x inquiry) answer(got []store.Decision, err error) {
	if then := x.apply(got, err); then != nil {
		then()
	}
}

// apply applies the quota's decisions, which are void if the queue is not asking any more. It returns what to
// call without the lock, or nil.
func (x inquiry) apply(got []store.Decision, err error) (then func()) {
	x.queue.mu.Lock()
	defer x.queue.mu.Unlock()
	if x.generation == x.queue.calls.generation {
		return x.queue.applyReply(nil, got, err, false)
	}
	return func() {
		x.reserver.Cancel(slices.DeleteFunc(got, func(d store.Decision) bool { return d.Verdict != store.Admitted }))
	}
}

// applyReply applies the quota's decisions on the first waiters in asking, of which self is awake. It
// returns what to call without the lock, or nil.
func (q *Queue) applyReply(self *waiter, got []store.Decision, err error, interrupted bool) (then func()) {
	now := time.Now()
	asked := q.calls.end(now)
	if err != nil {
		got = nil
	}
	switch {
	case err == nil || interrupted:
	case mayAskAgain(err):
		q.calls.fail(err, now)
	default:
		for _, w := range asked {
			q.expel(w, err)
		}
	}
	for i, d := range got {
		q.applyDecision(asked[i], d, now)
	}
	for _, w := range asked {
		if !w.out.Load() && w.hasGivenUp(now) && q.waiters.ahead(w.rank, w.number, nil) >= len(q.reserved) {
			q.expel(w, q.late(w, now))
		}
	}
	if q.calls.changed {
		q.calls.retryAt = time.Time{}
	}
	if q.config.Fast != nil && len(got) > 0 && got[0].Verdict == store.Admitted {
		q.admitMore(now)
	}
	q.reviewEarly(now)
	q.reconcile(now, self)
	if slices.ContainsFunc(got, func(d store.Decision) bool { return d.Verdict == store.Moved }) {
		return q.config.Replanned
	}
	if q.config.Reserver == nil {
		return nil
	}
	told := q.toldAfter(asked, got)
	// If no waiter has a reserved time, callers wait for the store's replies. So ask for more at
	// once.
	if q.calls.batchSize = minBatch; len(q.reserved) == 0 {
		q.calls.batchSize = min(maxBatch, max(minBatch, 2*len(got)))
	}
	if q.chooseAsking(now) {
		ask := q.inquiry().ask
		return func() { told(); ask() }
	}
	return told
}

// toldAfter returns what calls Option.Told of the waiters for which times were reserved.
func (q *Queue) toldAfter(asked []*waiter, got []store.Decision) func() {
	var calls []func()
	if q.waiters.root != nil && q.waiters.root.mixed {
		for i, d := range got {
			if w := asked[i]; w.Option != nil && w.Option.Told != nil && !w.out.Load() && d.Reservation != nil {
				calls = append(calls, func() { w.Option.Told(d.Reservation.Start) })
			}
		}
	}
	return func() {
		for _, call := range calls {
			call()
		}
	}
}

// maxPass is the largest number of waiters that one pass admits, which takes some milliseconds.
const maxPass = 1 << 14

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
		q.config.specify(w, now)
		d, err := w.Option.TryAcquire(context.Background(), q.config.Quota, q.config.Fast == nil, w.Request)
		if err == errTaken {
			q.expel(w, err)
			continue
		}
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

// applyDecision applies the decision on one waiter, which may have left.
func (q *Queue) applyDecision(w *waiter, d store.Decision, now time.Time) {
	switch {
	case d.Verdict == store.Admitted && q.config.Reserver != nil && d.Reservation != nil:
		q.reserved = append(q.reserved, d)
	case d.Verdict == store.Admitted && w.out.Load():
		q.config.Reserver.Cancel([]store.Decision{d})
	case d.Verdict == store.Admitted:
		q.admit(w, d)
	case d.Verdict == store.Moved: // it asks the successor
	case d.Verdict == store.Closed && !(q.sitsOut(w) && d.Wait <= w.timeLeft(now)):
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
		if d.Recheck {
			d.Wait = min(d.Wait, store.RecheckInterval)
		}
		q.calls.wait(w, d, now)
	}
}

// refuse expels a waiter because of the quota's decision.
func (q *Queue) refuse(w *waiter, reason Reason, d store.Decision) {
	if !w.out.Load() {
		ahead := q.waiters.ahead(w.rank, w.number, nil)
		q.expel(w, &Refusal{Reason: reason, Tier: d.Tier, Wait: d.Wait, Ahead: ahead, Crossed: d.Crossed})
	}
}

// silence is how long a call of a shared store takes if the store does not answer.
const silence = time.Second

// errUnanswered is the cause of Unavailable while the first call is under way.
var errUnanswered = errors.New("the store has not answered yet")

// unavailable returns the refusal of a waiter whose wait has ended with an error while the store does
// not answer, or nil if that is not the reason. After a deadline, the reason may be a call that is
// under way: the store has not answered since the waiter joined, or does not answer that call.
func (q *Queue) unavailable(w *waiter, ended error, now time.Time) *Refusal {
	c := &q.calls
	unanswered := ended == context.DeadlineExceeded && q.config.Fast == nil && len(c.asking) > 0 &&
		(c.repliedAt.Before(w.Since) || now.Sub(c.askedAt) >= silence)
	if c.err == nil && !unanswered {
		return nil
	}
	return &Refusal{Reason: Unavailable, Tier: -1, Cause: fmt.Errorf("%w: %w", ended, cmp.Or(c.err, errUnanswered))}
}

// match assigns the reserved times to waiters: each to the first waiter behind the last one
// matched, if the costs are equal. It refuses waiters that this makes late, and returns the times
// that fit no waiter. If all costs are equal, waiters that another queue admits sooner leave their times to
// those behind, so that no caller keeps two.
func (q *Queue) match(now time.Time) (unused []store.Decision) {
	defer q.forget(q.matched)
	q.matches, q.matched, q.skipped = q.matches+1, nil, 0
	if len(q.reserved) == 0 {
		return nil
	}
	kept := q.reserved[:0]
	w, elsewhere := q.waiters.first(), 0 // waiters ahead that may be admitted elsewhere leave their times to others
	for _, d := range q.reserved {
		for w != nil && elsewhere == 0 && w.isLate(d.Reservation.Start) {
			late := w
			w = w.next()
			q.expel(late, &Refusal{Reason: Late, Tier: d.Tier, Wait: d.Reservation.Start.Sub(now), Ahead: len(kept)})
		}
		if w == nil || d.Reservation.Expired(now) || !slices.Equal(d.Reservation.Cost, w.Request.Cost) {
			unused = append(unused, d)
			continue
		}
		for w != nil && !q.reserveFor(w, d.Reservation.Start) && !q.waiters.root.mixed {
			q.skipped++
			w = w.next()
		}
		if w == nil {
			unused = append(unused, d)
			continue
		}
		if w.Option != nil {
			elsewhere++
		}
		kept = append(kept, d)
		w = w.next()
	}
	q.reserved = kept
	return unused
}

// reserveFor tells the other queues in which a waiter waits that it has a time. It reports whether the waiter needs
// the time.
func (q *Queue) reserveFor(w *waiter, at time.Time) bool {
	if !w.Option.isChoice() {
		return true
	}
	if !w.Option.reserve(at) {
		return false
	}
	w.Option.match = q.matches
	q.matched = append(q.matched, w.Option)
	return true
}

// forget tells the other queues which waiters have lost the times of a match before.
func (q *Queue) forget(matched []*Option) {
	for _, o := range matched {
		if o.match != q.matches {
			o.reserve(time.Time{})
		}
	}
}

// stepAside takes a waiter that is asking out of the line while it waits for another quota.
func (q *Queue) stepAside(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calls.includes(w) {
		q.goAway(w)
		q.reconcile(time.Now(), nil)
	}
}

// goAway takes the waiter that is asking by Ticket.Ask out of the line.
func (q *Queue) goAway(w *waiter) {
	w.recall = q.calls.cancel
	q.calls.asking, q.calls.cancel, q.calls.retryAt = nil, nil, time.Time{}
	q.waiters.remove(w)
	q.away.insert(w)
}

// overtakes reports whether a caller ahead of a waiter that is away waits for the quota.
func (q *Queue) overtakes(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return w.recall != nil && q.waiters.isAhead(w)
}

// stepBack puts a waiter that is away in its place again, before its Ask returns.
func (q *Queue) stepBack(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.recall == nil || w.out.Load() {
		return
	}
	q.away.forget(w)
	q.calls.stale = append(q.calls.stale, w)
	q.calls.mayHaveRoom()
	q.rejoin(w)
}

// rejoin puts a waiter that was away in its place in the line.
func (q *Queue) rejoin(w *waiter) {
	q.waiters.insert(w)
	q.reviews.noteOvertaken(w)
	q.cancelBehind(w)
}

// cancelBehind makes the caller that is asking ask again behind a waiter that is now first.
func (q *Queue) cancelBehind(w *waiter) {
	if q.waiters.first() == w {
		q.calls.abort()
	}
}

// comeBack applies the reply to a waiter that is away. If the waiter is neither admitted nor refused,
// it takes its place in the line again. It returns what to call without the lock, or nil.
func (q *Queue) comeBack(w *waiter, r Result, err error, interrupted bool) (then func()) {
	q.away.forget(w)
	now := time.Now()
	switch {
	case err == nil && r.Verdict == store.Admitted:
		if !w.out.Load() {
			q.forecasts.drop() // they may contain its charge, or be of another configuration
			q.end(w)
		}
		w.accept(r)
	case w.out.Load(): // refused meanwhile
	case err == nil || interrupted || mayAskAgain(err):
		q.rejoin(w)
		q.applyAnswer(w, r.Decision, err, interrupted, now)
		if r.Verdict == store.Moved {
			then = q.config.Replanned
		}
	default:
		w.refusal = err
		q.end(w)
	}
	if q.calls.changed = true; q.waiters.first() != w || q.away.len() == 0 {
		q.calls.mayHaveRoom()
	}
	q.reconcile(now, w)
	return then
}

// applyAnswer applies the reply to a waiter that is back in the line.
func (q *Queue) applyAnswer(w *waiter, d store.Decision, err error, interrupted bool, now time.Time) {
	switch {
	case interrupted:
		q.review(now, q.forecasts.steps(now))
	case err != nil:
		q.calls.fail(err, now)
	case w.Request.WaitSpec != nil: // else the configuration has been replaced, and it asks again
		q.calls.repliedAt, q.calls.retryAt = now, time.Time{} // the reply to a caller behind it says less
		q.applyDecision(w, d, now)
	}
	if !w.out.Load() && w.hasGivenUp(now) {
		q.expel(w, q.late(w, now))
	}
}
