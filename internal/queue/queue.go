// Package queue lets callers wait for a quota, in the order of their classes and arrival. The quota
// charges a caller only when it admits the caller. A canceled caller leaves no trace.
//
// The first caller asks the quota and sleeps until the time in the reply. The others sleep until
// they are first. If the quota reserves times, the queue reserves times for many callers at
// once. Joining and leaving take O(log n).
package queue

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A Queue is a waiting queue for one quota. It is safe for concurrent use.
type Queue struct {
	waiting atomic.Int64 // callers in the queue
	timers  timers

	// mu guards all below and the fields of the waiters. Any goroutine may wake a waiter without it, and
	// the waiter's caller reads how the wait has ended once out is set.
	mu      sync.Mutex
	config  Config
	closed  bool // the queue refuses all callers
	waiters line
	away    away
	calls   calls
	// reserved are the times that are reserved for the first waiters, in order.
	reserved []store.Decision
	// skipped is the number of waiters that do not need the reserved times, and matched are the options of
	// those that have them, by the last of so many matches.
	skipped int
	matched []*Option
	matches uint64
	// lastRanks are, by class, the ranks of the last waiters that were placed behind others'
	// reserved times.
	lastRanks [3]time.Time
	forecasts forecasts
	reviews   reviews
	// unwatch ends the watch of the quota. It is nil while no callers wait.
	unwatch func()
}

const forever = store.Forever

// New returns a Queue.
func New(c Config) *Queue {
	q := new(Queue)
	q.set(c)
	return q
}

func (q *Queue) set(c Config) {
	q.config = c
	q.waiters.enter(c.Order)
	q.forecasts.drop()
	q.calls.batchSize = minBatch
}

// Len returns how many callers wait.
func (q *Queue) Len() int { return int(q.waiting.Load()) }

// Wait blocks until the request is admitted, the context ends, or it is known that the request will
// be late: past t.GiveUp or the context's deadline. It returns the context's own error, a
// [*Refusal], or an error of t.Renew or t.Ask.
func (q *Queue) Wait(ctx context.Context, t Ticket) (Result, error) {
	w, do, owner, err := q.enter(ctx, t)
	if err != nil {
		return Result{Owner: owner}, err
	}
	if w.joining {
		do = q.reportJoined(w)
	}
	for {
		if do.ask {
			q.ask(ctx, w, do.generation)
		} else {
			q.timers.sleep(ctx, do, w)
		}
		if err := ctx.Err(); err != nil && !w.out.Load() {
			return q.quit(w, err)
		}
		switch {
		case !w.out.Load():
			do = q.step(w)
		case w.missedStart():
			w.reserver.Cancel([]store.Decision{w.decision})
			t.Since, t.place, t.missedStart = w.Since, w.number, true
			t.Option.GiveBack()
			return q.Wait(ctx, t)
		default:
			return w.result()
		}
	}
}

// reportJoined calls Ticket.Joined, and returns what the waiter does next. If Joined panics, the
// waiter leaves.
func (q *Queue) reportJoined(w *waiter) action {
	done := false
	defer func() {
		if !done {
			_, _ = q.quit(w, context.Canceled)
		}
	}()
	w.Joined(max(0, q.Len()-1))
	done = true
	return q.step(w)
}

// enter adds a newcomer to the queue, unless the queue is full or the wait would be too long. It
// returns what the newcomer does next if that is not joining, and the Owner of the configuration.
func (q *Queue) enter(ctx context.Context, t Ticket) (*waiter, action, any, error) {
	n := newcomer{Ticket: t, number: t.place, deadline: t.GiveUp}
	if d, ok := ctx.Deadline(); ok && (t.GiveUp.IsZero() || d.Before(t.GiveUp)) {
		n.deadline = d
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	err := n.renew(q.config.Owner)
	if q.closed {
		err = &Refusal{Reason: Closed, Tier: -1}
	}
	now := time.Now()
	if n.Since.IsZero() {
		n.Since = now
	}
	if err == nil {
		if n.rank = q.config.rank(&n); !t.missedStart {
			n.rank = q.rank(&n)
		}
		err = q.refuseIfLate(&n, now)
	}
	if err != nil {
		return nil, action{}, n.owner, err
	}
	if n.wake == nil {
		n.wake = make(chan struct{}, 1)
	}
	w := &waiter{newcomer: n, ended: ctx.Done(), joining: t.Joined != nil}
	q.add(w)
	q.reviews.noteOvertaken(w)
	if w.next() != nil || q.isFull(now) {
		q.reconcile(now, w) // waiters behind it move back, or the last one is expelled
	}
	if w.out.Load() { // refused, or a reserved time has begun
		return w, action{wait: forever}, w.owner, w.refusal
	}
	q.cancelBehind(w)
	if w.joining {
		return w, action{}, w.owner, nil
	}
	return w, q.next(w), w.owner, nil
}

// rank returns the rank of a newcomer. Reserved times match the costs of the first waiters, in
// their order. A newcomer that would overtake one of these waiters is placed behind all of them if
// it has another cost or Hold, because it could not use their times.
func (q *Queue) rank(w *newcomer) time.Time {
	rank := q.config.rank(w)
	if q.config.Reserver == nil {
		return rank
	}
	if last := q.lastRanks[w.Class]; last.After(rank) {
		rank = last
	}
	n := min(len(q.reserved)+len(q.calls.asking), q.waiters.len())
	last := q.waiters.at(n - 1)
	if last == nil || last.before(rank, math.MaxUint64) {
		return rank // the newcomer is behind all of them
	}
	for timed := q.waiters.first(); n > 0; n, timed = n-1, timed.next() {
		if !timed.before(rank, math.MaxUint64) && (timed.Hold < w.Hold || !slices.Equal(timed.Request.Cost, w.Request.Cost)) {
			return last.rank
		}
	}
	return rank
}

func (q *Queue) add(w *waiter) {
	if w.number == 0 {
		w.number = q.waiters.nextNumber()
	}
	q.waiters.insert(w)
	w.Option.join(w)
	if w.rank.After(q.config.rank(&w.newcomer)) {
		q.lastRanks[w.Class] = w.rank
	}
	if w.Elsewhere != nil && w.Elsewhere.mayBeTaken() { // it was admitted before it came here
		q.forecasts.charged(w)
	}
	q.waiting.Add(1)
	if q.unwatch == nil {
		q.unwatch = q.config.outlook().Watch(q.onChange)
	}
}

// step returns what a waiter that has joined or woken does next.
func (q *Queue) step(w *waiter) action {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.joining = false
	return q.next(w)
}

func (q *Queue) next(w *waiter) action {
	now := time.Now()
	if w.Option.hasChanged() || q.headIsDue(now) {
		q.reconcile(now, w)
	}
	first := q.firstUnreserved()
	if first != nil && first != w && w.Option.isChoice() { // w may have slept until the time to ask
		first.wakeUp()
	}
	wait, asks := forever, false
	switch {
	case w.out.Load():
		return action{wait: forever} // it has been woken
	case len(q.calls.asking) == 0 && w == first && q.chooseAsking(now):
		return action{ask: true, generation: q.calls.generation}
	case w.hasGivenUp(now):
		q.expel(w, q.late(w, now))
		q.reconcile(now, nil)
		return action{wait: forever}
	case len(q.reserved) > 0 && w == q.waiters.first():
		wait = q.reserved[0].Reservation.Start.Sub(now) - w.Lead
	case len(q.calls.asking) == 0 && w == first && q.isOurTurn():
		wait, asks = q.askTime(w).Sub(now), q.config.Reserver == nil
	}
	if !w.GiveUp.IsZero() {
		wait = min(wait, w.GiveUp.Sub(now))
	}
	return action{wait: wait, asks: asks}
}

// late returns the refusal of a waiter that gives up. While the store does not answer, that is the
// reason.
func (q *Queue) late(w *waiter, now time.Time) *Refusal {
	if u := q.unavailable(w, context.DeadlineExceeded, now); u != nil {
		return u
	}
	sum := make([]int64, len(w.Request.Cost))
	ahead, firm := q.waiters.firmAhead(w.rank, w.number, sum)
	wait, tier := q.expected(&w.newcomer, firm, sum, 0, now)
	return &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
}

// quit removes a waiter whose context has ended. The waiter is charged nothing, and its reserved
// time goes to the waiters behind.
func (q *Queue) quit(w *waiter, err error) (Result, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.out.Load() {
		return w.result()
	}
	now := time.Now()
	if u := q.unavailable(w, err, now); u != nil {
		err = u
	}
	wasFirst := w == q.waiters.first()
	if w.Elsewhere != nil && w.Elsewhere.IsTaken() {
		q.forecasts.admitted(w)
	}
	q.remove(w)
	if wasFirst || len(q.reserved) > 0 { // else it changes nothing for the waiters that are awake or asked for
		q.reconcile(now, nil)
	}
	return Result{Owner: w.owner}, err
}

// expel refuses a waiter if it is still in the queue.
func (q *Queue) expel(w *waiter, err error) {
	if !w.out.Load() {
		w.refusal = err
		q.remove(w)
		w.dismiss()
	}
}

// admit admits a waiter.
func (q *Queue) admit(w *waiter, d store.Decision) {
	if d.Tier < 0 {
		d.Tier = q.calls.decider - 1
	}
	w.decision, w.reserver = d, q.config.Reserver
	q.forecasts.admitted(w)
	q.remove(w)
	w.wakeUp()
}

// remove removes a waiter from the queue.
func (q *Queue) remove(w *waiter) {
	if w.recall != nil {
		q.away.remove(w)
	} else {
		q.waiters.remove(w)
	}
	q.end(w)
}

// end ends the wait of a waiter that is not in the queue any more. The count is updated first, because
// an admitted caller must not count as waiting.
func (q *Queue) end(w *waiter) {
	if q.waiting.Add(-1) == 0 && q.unwatch != nil {
		q.stopWatching()
		if q.config.Reserver != nil {
			q.config.Reserver.Leave()
		}
	}
	w.Option.leave()
	w.out.Store(true)
}

// stopWatching forgets what is known of the quota only while the queue watches it.
func (q *Queue) stopWatching() {
	q.unwatch()
	q.unwatch = nil
	q.forecasts, q.lastRanks = forecasts{}, [3]time.Time{}
	q.reviews.overtakenFrom, q.calls.decider, q.calls.retry = time.Time{}, 0, nil
}

// reconcile updates the queue after a change. It matches the reserved times with the waiters,
// admits waiters whose time has come, expels waiters beyond MaxQueue, and wakes waiters whose next
// step may have changed, except self.
func (q *Queue) reconcile(now time.Time, self *waiter) {
	unused := q.match(now)
	for q.headIsDue(now) {
		w, d := q.waiters.first(), q.reserved[0]
		if !w.Option.take() {
			q.expel(w, errTaken)
			unused = append(unused, q.match(now)...) // the time may be another's
			continue
		}
		q.reserved, q.calls.again = q.reserved[1:], d.Reservation.Again
		q.admit(w, d)
	}
	for q.isFull(now) {
		q.expel(q.last(), &Refusal{Reason: Full, Tier: -1, Ahead: q.Len() - 1})
	}
	if len(q.reserved) > q.waiters.len() {
		unused = append(unused, q.match(now)...)
	}
	for _, w := range []*waiter{q.waiters.first(), q.firstUnreserved()} {
		if w != nil && w != self {
			w.wakeUp()
		}
	}
	if len(unused) > 0 {
		q.config.Reserver.Cancel(unused)
	}
}

// headIsDue reports whether the reserved time of the first waiter has come.
func (q *Queue) headIsDue(now time.Time) bool {
	first := q.waiters.first()
	return first != nil && !first.joining && len(q.reserved) > 0 && !q.reserved[0].Reservation.Start.After(now.Add(first.Lead))
}

// isFull reports whether the last waiter has to leave. All may stay while a store has not answered,
// because it is not known that they have to wait. Waiters in asking may stay too, because the quota
// may have charged them.
func (q *Queue) isFull(now time.Time) bool {
	return q.isLimited(q.Len(), now) && q.last() != nil
}

// last returns the last waiter that may be expelled, nil if there is none.
func (q *Queue) last() *waiter {
	away, last := q.away.end(), q.waiters.end()
	if q.waiters.len() <= len(q.calls.asking) || q.calls.includes(last) || away != nil && last.before(away.rank, away.number) {
		return away
	}
	return last
}

// isLimited reports whether n waiters are too many.
func (q *Queue) isLimited(n int, now time.Time) bool {
	return q.config.MaxQueue > 0 && n > q.config.MaxQueue &&
		(q.config.Reserver == nil || len(q.reserved) > 0 || q.calls.retryAt.After(now))
}

// onChange receives the quota's changes.
func (q *Queue) onChange(c store.Change, left time.Duration) {
	if c == store.Replanned {
		q.mu.Lock()
		replanned := q.config.Replanned
		q.mu.Unlock()
		if replanned != nil {
			replanned()
		}
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.Len() == 0 {
		return
	}
	now := time.Now()
	q.calls.changedNow()
	if c != store.Freed && c != store.Eased {
		q.calls.abort()
		q.away.cancel()
	}
	if c != store.Freed {
		q.forecasts.drop()
		q.cancelReservations() // a time that was reserved before a pause must not be used beside the probe
	}
	switch c {
	case store.Slowed:
		q.review(now, mostSteps)
	case store.Shut:
		q.expelAll(&Refusal{Reason: Banned, Tier: -1, Wait: left}, true)
	}
	q.reconcile(now, nil)
}

// cancelReservations cancels all reservations.
func (q *Queue) cancelReservations() {
	if len(q.reserved) > 0 {
		q.config.Reserver.Cancel(q.reserved)
		q.reserved = nil
	}
}

// sitsOut reports whether a waiter keeps its place during a ban, because another queue may admit it. It does not
// if the ban is known only after a round trip: then its caller does not know when all queues are banned.
func (q *Queue) sitsOut(w *waiter) bool {
	return w.Option != nil && q.config.Reserver == nil && (q.config.Fast != nil || q.config.Order != nil)
}

// expelAll expels all waiters except those that may already be charged. In a ban some keep their places.
func (q *Queue) expelAll(err error, ban bool) {
	for _, w := range append(q.away.all(), q.waiters.all()...) {
		if !q.calls.includes(w) && !(ban && q.sitsOut(w)) {
			q.expel(w, err)
		}
	}
}

// Pause reports a pause or a ban, until end, of another quota that the callers wait for too. They
// ask again. Pause refuses callers whose deadline is before end, and in a ban all that no other queue may admit.
func (q *Queue) Pause(end time.Time, ban bool, refusal error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.Len() == 0 {
		return
	}
	q.calls.changedNow()
	q.calls.abort()
	if ban {
		q.expelAll(refusal, true)
	}
	for _, w := range q.waiters.all() {
		if !q.calls.includes(w) && w.isLate(end) {
			q.expel(w, refusal)
		}
	}
	q.reconcile(time.Now(), nil)
}

// Refuse refuses all waiting callers, because another quota that they wait for is closed.
func (q *Queue) Refuse(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls.changedNow()
	q.calls.abort()
	q.expelAll(err, false)
	q.reconcile(time.Now(), nil)
}

// Close refuses all waiting and all later callers.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.interrupt()
	q.expelAll(&Refusal{Reason: Closed, Tier: -1}, false)
}

// interrupt cancels all reservations and voids the call that is under way.
func (q *Queue) interrupt() {
	c := &q.calls
	c.abort()
	c.generation++
	if q.config.Reserver == nil {
		c.stale = append(c.stale, c.asking...)
	}
	c.asking, c.cancel = nil, nil
	q.cancelReservations()
}

// Replace replaces the queue's configuration. The waiting callers stay in their order, with their
// requests made anew, and keep the times that the same quota has reserved. It refuses those for which
// Ticket.Renew returns an error. Under another Owner the quota may have less room: callers that have
// stepped aside then come back before any caller may ask.
func (q *Queue) Replace(c Config) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calls.cancel != nil { // the caller may have a place in another quota, which it keeps
		q.goAway(q.calls.asking[0])
	}
	if c.Owner != q.config.Owner {
		q.away.recall()
	}
	if !c.reservesAs(&q.config) {
		q.interrupt()
	}
	if q.Len() > 0 {
		q.stopWatching()
	}
	q.set(c)
	q.calls.err, q.calls.retryAt, q.calls.retry = nil, time.Time{}, nil
	q.waiters.build(q.renew(q.waiters.all()))
	q.away.build(q.renew(q.away.all()))
	if q.Len() == 0 {
		return
	}
	q.unwatch = q.config.outlook().Watch(q.onChange)
	now := time.Now()
	for _, w := range q.calls.asking {
		q.config.specify(w, now)
	}
	q.review(now, q.forecasts.steps(now))
	q.reconcile(now, nil)
}

// renew makes the requests of waiters anew. It refuses those for which that fails, and returns the
// others.
func (q *Queue) renew(all []*waiter) (kept []*waiter) {
	kept = all[:0]
	for _, w := range all {
		if err := w.renew(q.config.Owner); err != nil {
			w.refusal = err
			q.end(w)
			w.dismiss()
			continue
		}
		w.rank = q.config.rank(&w.newcomer)
		kept = append(kept, w)
	}
	return kept
}
