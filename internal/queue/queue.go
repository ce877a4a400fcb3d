// Package queue is where callers wait for a quota, in the order of their classes and
// arrival. A caller holds a place, not a token: only an admitted request is charged, and a
// canceled caller leaves no trace.
//
// The first caller asks the quota and sleeps until the time in the answer; the others
// sleep until they are first. A quota that reserves times ahead, a store.Reserver, is
// asked for many callers at once. Joining and leaving take O(log n).
package queue

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A Class orders waiters: see Config.Aging.
type Class uint8

// The classes.
const (
	Normal Class = iota
	Interactive
	Batch
)

// A Config is what a Queue needs. It must not be changed.
type Config struct {
	// Quota decides. The queue watches it while somebody waits.
	Quota store.Quota
	// MaxQueue is how many callers may wait. If zero, any number.
	MaxQueue int
	// Aging is how much later a Normal request counts than an Interactive one, and a
	// Batch one than a Normal one.
	Aging time.Duration
	// Headroom is the percentage of every tier that a Batch request leaves to others
	// until it has waited for Aging.
	Headroom int
	// Guard returns the guard of a request that is asked for now, zero for the plan's.
	// If nil, the plan's.
	Guard func() time.Duration
}

// A Queue is a waiting queue for one quota. It is safe for concurrent use.
type Queue struct {
	waiting atomic.Int64 // callers in the queue or between two configurations

	mu       sync.Mutex // guards all below
	config   Config
	reserver store.Reserver // the quota, if it reserves ahead; else nil
	version  int            // of the configuration
	round    int            // of questions: answers to those of an earlier one are void
	waiters  tree
	moving   int  // callers that were refused with Moved and have not come back
	closed   bool // refuses everybody

	reserved []store.Decision // times for the first waiters, in order
	most     int              // for how many a reserver is asked at once
	asking   []*waiter        // those for whom the quota is being asked, which may have charged them already
	cancel   func()           // ends the question, if that may block; else nil
	changed  bool             // something changed since the question

	replied     *waiter   // whom the last answer told to ask again
	lastReplyAt time.Time // when the quota last answered
	nextAskAt   time.Time // when to ask again, if replied is the first without a time
	outage      error     // why the last question had no answer

	forecasts     forecasts
	reviewAgainAt time.Time    // not earlier: the last review took long
	doubtful      time.Time    // from this rank on, waiters were overtaken since; zero for none
	lastRanks     [3]time.Time // by class, of the last waiters that went behind the times of others
	unwatch       func()       // ends the watch on the quota; nil while nobody waits
}

// A waiter is one caller in the queue.
type waiter struct {
	node
	request  store.Request
	try      func(context.Context, store.Request) (store.Decision, error) // see Ticket.Ask
	class    Class
	free     bool // see Ticket.Free
	came     time.Time
	rank     time.Time // when an Interactive request would have come that is served next to it
	giveUpAt time.Time // the caller gives up; zero for never
	deadline time.Time // the earlier of giveUpAt and the context's; zero for never
	hold     Hold
	wake     chan struct{} // holds one: look again
	out      atomic.Bool   // it has left the queue, with one of these:
	decision store.Decision
	reserver store.Reserver // of the decision; nil for none
	refusal  error
}

const (
	retryStore = 250 * time.Millisecond // how often a store that does not answer is asked
	leastAsked = 256                    // for how many waiters a quota is asked at once
	mostAsked  = 4096                   // the same, where it has all of them go at once
	forever    = store.Forever
)

// New returns a Queue.
func New(c Config) *Queue {
	q := new(Queue)
	q.set(c)
	return q
}

func (q *Queue) set(c Config) {
	q.config = c
	q.reserver, _ = c.Quota.(store.Reserver)
	q.most = leastAsked
}

// Len returns how many callers wait.
func (q *Queue) Len() int { return int(q.waiting.Load()) }

// Wait blocks until the request is admitted, the context ends, or the request is known to
// be late: past t.GiveUp or the context's deadline. It returns the context's own error, a
// [*Refusal], or what t.Ask returned.
func (q *Queue) Wait(ctx context.Context, t Ticket) (store.Decision, error) {
	return q.wait(ctx, t, false)
}

// Rejoin is Wait for a caller that was refused with Moved, with the Place of that Refusal.
func (q *Queue) Rejoin(ctx context.Context, t Ticket) (store.Decision, error) {
	return q.wait(ctx, t, true)
}

// A Place is when a caller came, and its number among those that came at the same instant.
type Place struct {
	Since  time.Time
	number uint64
}

// A Ticket is what a caller joins with.
type Ticket struct {
	store.Request
	Class Class
	// GiveUp is when the caller gives up. If zero, never.
	GiveUp time.Time
	// Free reports that the request costs nothing: only a pause holds it up, and not those
	// ahead. It is ignored where the quota reserves times.
	Free bool
	// Place is what the caller had of another queue or configuration. If zero, the caller
	// comes now.
	Place Place
	// Ask asks for the request when it is the first, in the caller's goroutine. It may
	// block until its context ends: the queue ends that when the order changes or the
	// quota is paused, and asks again. A store.Reserver is not asked through it. If nil,
	// Config.Quota's TryAcquire.
	Ask func(context.Context, store.Request) (store.Decision, error)
	// A Hold is for quotas that reserve times.
	Hold
	// Version is that of the configuration for which the request was made: 0 for that of
	// New. Under any other it is refused with Stale.
	Version int

	overslept bool // it had a time, and goes to the head
}

// A Hold is how a caller waits that needs the same time of several quotas.
type Hold struct {
	// Lead is how long before its time the caller goes, which then waits itself.
	Lead time.Duration
	// Ahead is how far ahead its time is to be, at least.
	Ahead time.Duration
	// NotBefore is the earliest time that is of use. If zero, any time.
	NotBefore time.Time
	// AskAt is when to ask for it, for all who are there by then. If zero, at once.
	AskAt time.Time
}

// Leave is for a caller that was refused with Moved and does not rejoin.
func (q *Queue) Leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moved()
}

func (q *Queue) wait(ctx context.Context, t Ticket, rejoins bool) (store.Decision, error) {
	w, do, err := q.enter(ctx, t, rejoins)
	if err != nil {
		return store.Decision{}, err
	}
	for {
		if do.ask {
			q.ask(ctx, w, do.round)
		} else {
			w.sleep(ctx, do.nap)
		}
		if err := ctx.Err(); err != nil && !w.out.Load() {
			return q.quit(w, err)
		}
		switch {
		case !w.out.Load():
			do = q.step(w)
		case w.overslept():
			w.reserver.Cancel([]store.Decision{w.decision})
			t.Place, t.overslept = Place{w.came, w.number}, true
			return q.wait(ctx, t, false)
		default:
			return w.decision, w.explain()
		}
	}
}

// overslept reports whether the time that was reserved has passed: the caller has run too
// late.
func (w *waiter) overslept() bool {
	a := w.decision.Reservation
	return w.reserver != nil && a != nil && a.Expired(time.Now())
}

// explain returns why the waiter was refused, nil if it was not. A caller that has Moved
// receives its place.
func (w *waiter) explain() error {
	if r, ok := w.refusal.(*Refusal); ok && r.Reason == Moved {
		own := *r
		own.Place = Place{w.came, w.number}
		return &own
	}
	return w.refusal
}

// An action is what a waiter does next: ask the quota, or sleep.
type action struct {
	ask   bool
	round int // of the question
	nap   time.Duration
}

// sleep is the one place that sleeps. It ends at the time, when the waiter is woken, or
// with the context.
func (w *waiter) sleep(ctx context.Context, d time.Duration) {
	var rings <-chan time.Time
	if d < forever {
		t := time.NewTimer(d)
		defer t.Stop()
		rings = t.C
	}
	select {
	case <-rings:
	case <-w.wake:
	case <-ctx.Done():
	}
}

// look wakes the waiter to look again.
func (w *waiter) look() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// enter gives a newcomer its place, unless the queue is full or the wait would be too
// long.
func (q *Queue) enter(ctx context.Context, t Ticket, rejoins bool) (*waiter, action, error) {
	w := &waiter{request: t.Request, try: t.Ask, free: t.Free, class: t.Class, giveUpAt: t.GiveUp, deadline: t.GiveUp,
		hold: t.Hold, wake: make(chan struct{}, 1)}
	if d, ok := ctx.Deadline(); ok && (t.GiveUp.IsZero() || d.Before(t.GiveUp)) {
		w.deadline = d
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.Version != q.version && !q.closed {
		return nil, action{}, &Refusal{Reason: Stale, Tier: -1}
	}
	if rejoins {
		defer q.moved() // after it has joined: nobody overtakes meanwhile
	}
	if q.closed {
		return nil, action{}, &Refusal{Reason: Closed, Tier: -1}
	}
	now := time.Now()
	if w.came, w.number = t.Place.Since, t.Place.number; w.came.IsZero() {
		w.came = now
	}
	if w.rank = q.naturalRank(w); !t.overslept {
		w.rank = q.rank(w)
	}
	if err := q.foresee(w, now); err != nil {
		return nil, action{}, err
	}
	q.add(w)
	q.overtook(w)
	if w.next() != nil || q.isFull(now) {
		q.settle(now, w) // those behind move back, or the last goes
	}
	if w.out.Load() { // refused, or a reserved time has come
		return w, action{nap: forever}, w.refusal
	}
	if q.cancel != nil && q.waiters.first() == w {
		q.cancel()
	}
	return w, q.next(w), nil
}

// rank returns when an Interactive request would have come that is served next to w.
// Where times are reserved, which are for what the first waiters cost in their order, a
// newcomer of another cost, or to whom not every time is of use, is served behind them.
func (q *Queue) rank(w *waiter) time.Time {
	rank := q.naturalRank(w)
	if q.reserver == nil {
		return rank
	}
	if last := q.lastRanks[w.class]; last.After(rank) {
		rank = last
	}
	timed := q.waiters.first()
	if last := q.waiters.at(len(q.reserved) + len(q.asking) - 1); last != nil && last.before(rank, math.MaxUint64) {
		return rank // behind all of them
	}
	for n := len(q.reserved) + len(q.asking); n > 0 && timed != nil; n-- {
		if !timed.before(rank, math.MaxUint64) && (!w.hold.NotBefore.IsZero() || !equal(timed.request.Cost, w.request.Cost)) {
			if last := q.waiters.at(len(q.reserved) + len(q.asking) - 1); last != nil {
				return last.rank
			}
			return q.waiters.end().rank
		}
		timed = timed.next()
	}
	return rank
}

// naturalRank returns the rank of a waiter that goes behind nobody else's time.
func (q *Queue) naturalRank(w *waiter) time.Time {
	if w.free && q.reserver == nil {
		return time.Time{}
	}
	return w.came.Add(q.config.Aging * time.Duration([...]int{Interactive: 0, Normal: 1, Batch: 2}[w.class]))
}

func (q *Queue) add(w *waiter) {
	q.waiters.insert(w)
	if w.rank.After(q.naturalRank(w)) {
		q.lastRanks[w.class] = w.rank
	}
	q.waiting.Add(1)
	if q.unwatch == nil {
		q.unwatch = q.config.Quota.Watch(q.onChange)
	}
}

// spec returns how a waiter's request waits from now on. A Batch one yields until it
// has waited for Aging.
func (q *Queue) spec(w *waiter, now time.Time) *store.WaitSpec {
	s := &store.WaitSpec{MaxWait: max(0, w.timeLeft(now)), NotBefore: w.hold.NotBefore}
	if w.hold.Ahead > 0 {
		s.NotBefore = now.Add(w.hold.Ahead)
	}
	if old := w.came.Add(q.config.Aging); w.class == Batch && old.After(now) {
		s.YieldFor, s.Headroom = old.Sub(now), int64(q.config.Headroom)
	}
	return s
}

// timeLeft returns the time to the deadline.
func (w *waiter) timeLeft(now time.Time) time.Duration {
	if w.deadline.IsZero() {
		return forever
	}
	return w.deadline.Sub(now)
}

func (w *waiter) isLate(at time.Time) bool { return !w.deadline.IsZero() && at.After(w.deadline) }

func (w *waiter) givesUp(now time.Time) bool { return !w.giveUpAt.IsZero() && !w.giveUpAt.After(now) }

// step tells a waiter that has woken what to do.
func (q *Queue) step(w *waiter) action {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next(w)
}

func (q *Queue) next(w *waiter) action {
	now := time.Now()
	if q.goes(now) {
		q.settle(now, w)
	}
	nap := forever
	switch {
	case w.out.Load() || q.reserver == nil && q.isAsked(w) && w.givesUp(now):
		return action{nap: forever} // its wake-up has been sent, or comes with the answer
	case len(q.asking) == 0 && w == q.untimed() && q.prepare(now):
		return action{ask: true, round: q.round}
	case w.givesUp(now):
		q.expel(w, q.late(w, now))
		q.settle(now, nil)
		return action{nap: forever}
	case len(q.reserved) > 0 && w == q.waiters.first():
		nap = q.reserved[0].Reservation.Start.Sub(now) - w.hold.Lead
	case len(q.asking) == 0 && w == q.untimed() && q.moving == 0:
		nap = q.due(w).Sub(now)
	}
	if !w.giveUpAt.IsZero() {
		nap = min(nap, w.giveUpAt.Sub(now))
	}
	return action{nap: nap}
}

// late refuses a waiter whose caller gives up. During an outage that is the cause.
func (q *Queue) late(w *waiter, now time.Time) *Refusal {
	if q.outage != nil {
		return q.unavailable(context.DeadlineExceeded)
	}
	sum := make([]int64, len(w.request.Cost))
	ahead := q.waiters.index(w, sum)
	wait, tier := q.expected(w, ahead, sum, 0, now)
	return &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
}

func (q *Queue) isAsked(w *waiter) bool {
	for _, asked := range q.asking {
		if asked == w {
			return true
		}
	}
	return false
}

// quit removes a waiter whose context has ended. It was charged nothing; a time that was
// reserved for it goes to those behind.
func (q *Queue) quit(w *waiter, err error) (store.Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.out.Load() {
		return w.decision, w.explain()
	}
	if q.outage != nil {
		err = q.unavailable(err)
	}
	q.remove(w)
	q.settle(time.Now(), nil)
	return store.Decision{}, err
}

// expel refuses a waiter, if it is still in the queue.
func (q *Queue) expel(w *waiter, err error) {
	if !w.out.Load() {
		w.refusal = err
		q.remove(w)
	}
}

// admit lets a waiter go.
func (q *Queue) admit(w *waiter, d store.Decision) {
	w.decision, w.reserver = d, q.reserver
	q.forecasts.admitted(w)
	q.remove(w)
}

// remove takes a waiter out of the queue, whose caller then finds its decision or
// refusal. The count comes first: an admitted caller must not count as one that waits.
func (q *Queue) remove(w *waiter) {
	q.take(w)
	q.waiting.Add(-1)
	w.out.Store(true)
	w.look()
}

// take takes a waiter out of the tree.
func (q *Queue) take(w *waiter) {
	q.waiters.remove(w)
	if q.waiters.len() == 0 {
		q.unwatch()
		q.unwatch = nil
		q.forecasts, q.doubtful, q.lastRanks = forecasts{}, time.Time{}, [3]time.Time{}
	}
}

// settle puts the queue in order after any change: it matches the reserved times with
// the waiters, lets those go whose time has come, refuses those for whom there is no
// place, and wakes those who have to look at the clock anew, except self.
func (q *Queue) settle(now time.Time, self *waiter) {
	unused := q.match(now)
	for q.goes(now) {
		d := q.reserved[0]
		q.reserved = q.reserved[1:]
		q.admit(q.waiters.first(), d)
	}
	for q.isFull(now) {
		last := q.waiters.end()
		q.expel(last, &Refusal{Reason: Full, Tier: -1, Ahead: q.waiters.len() - 1})
	}
	if len(q.reserved) > q.waiters.len() {
		unused = append(unused, q.match(now)...)
	}
	for _, w := range []*waiter{q.waiters.first(), q.untimed()} {
		if w != nil && w != self {
			w.look()
		}
	}
	if len(unused) > 0 {
		q.reserver.Cancel(unused)
	}
}

// goes reports whether the time has come that is reserved for the first waiter.
func (q *Queue) goes(now time.Time) bool {
	first := q.waiters.first()
	return first != nil && len(q.reserved) > 0 && !q.reserved[0].Reservation.Start.After(now.Add(first.hold.Lead))
}

// isFull reports whether the last waiter has to leave. While it is not known that those
// in the queue have to wait, because a store has not answered, all may stay; and who is
// being asked for may be charged already.
func (q *Queue) isFull(now time.Time) bool {
	n := q.waiters.len()
	return q.config.MaxQueue > 0 && n > q.config.MaxQueue && n > len(q.asking) &&
		(q.reserver == nil || len(q.reserved) > 0 || q.nextAskAt.After(now)) &&
		!q.isAsked(q.waiters.end())
}

// onChange is what the quota calls when something else than time has changed.
func (q *Queue) onChange(c store.Change, left time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters.len() == 0 {
		return
	}
	now := time.Now()
	q.changed, q.nextAskAt = true, time.Time{}
	if q.cancel != nil && c != store.Freed && c != store.Eased {
		q.cancel()
	}
	if c != store.Freed {
		q.forecasts.drop()
	}
	if c != store.Freed {
		q.void() // what was reserved before a pause must not go beside its probe
	}
	switch c {
	case store.Slowed:
		q.review(now, mostSteps)
	case store.Shut:
		q.expelAll(&Refusal{Reason: Banned, Tier: -1, Wait: left})
	case store.Replanned:
		q.moveAll()
	}
	q.settle(now, nil)
}

// void cancels all reservations.
func (q *Queue) void() {
	if len(q.reserved) > 0 {
		q.reserver.Cancel(q.reserved)
		q.reserved = nil
	}
}

// expelAll refuses all but those who may be charged already.
func (q *Queue) expelAll(err error) {
	for w := q.waiters.first(); w != nil; {
		next := w.next()
		if !q.isAsked(w) {
			q.expel(w, err)
		}
		w = next
	}
}

// Pause is for a pause or a ban of something else that the callers wait for too, until
// end: they ask again. It refuses callers whose deadline is before, and all if the
// deadline does not matter.
func (q *Queue) Pause(end time.Time, all bool, refusal error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters.len() == 0 {
		return
	}
	now := time.Now()
	q.changed, q.nextAskAt = true, time.Time{}
	if q.cancel != nil {
		q.cancel()
	}
	for w := q.waiters.first(); w != nil; {
		next := w.next()
		if !q.isAsked(w) && (all || w.isLate(end)) {
			q.expel(w, refusal)
		}
		w = next
	}
	q.settle(now, nil)
}

// Close refuses everybody from now on.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.release(&Refusal{Reason: Closed, Tier: -1})
}

// release refuses all waiters and gives back what was reserved for them, also what is
// being asked for. A caller that asks for itself finds out when it has the answer.
func (q *Queue) release(refusal *Refusal) {
	if q.cancel != nil {
		q.cancel()
	}
	if q.reserver == nil {
		for _, w := range q.asking {
			q.take(w)
			q.moving++
		}
	}
	q.round++
	q.asking, q.cancel = nil, nil
	q.void()
	q.expelAll(refusal)
}

// moveAll refuses all with Moved. They count as waiting until they have come back.
func (q *Queue) moveAll() {
	n := q.waiting.Load()
	q.release(&Refusal{Reason: Moved, Tier: -1})
	n -= q.waiting.Swap(n)
	q.moving += int(n)
}

// Replace gives the queue another configuration. Callers who waited under the one before
// are refused with Moved. Each then calls Rejoin or Leave: nobody is admitted before all
// have done so. It returns the configuration's version.
func (q *Queue) Replace(c Config) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moveAll()
	q.set(c)
	q.outage, q.nextAskAt = nil, time.Time{}
	q.version++
	return q.version
}

// moved counts a caller as back that was refused with Moved.
func (q *Queue) moved() {
	q.moving--
	q.waiting.Add(-1)
	if q.moving == 0 && q.waiters.len() > 0 {
		now := time.Now()
		q.review(now, q.steps(now)) // those behind came back before those ahead
		q.settle(now, nil)
	}
}
