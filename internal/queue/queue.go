// Package queue lets callers wait for a quota, in the order of their classes and arrival. The quota
// charges a caller only when it admits the caller. A canceled caller leaves no trace.
//
// The first caller asks the quota and sleeps until the time in the reply. The others sleep until
// they are first. If the quota is a store.Reserver, the queue reserves times for many callers at
// once. Joining and leaving take O(log n).
package queue

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/alarm"
	"github.com/apithrottle/throttle/store"
)

// A Class determines the order of waiters: see Config.Aging.
type Class uint8

// The classes.
const (
	Normal Class = iota
	Interactive
	Batch
)

// A Config configures a Queue. It must not be changed.
type Config struct {
	// Quota decides. The queue watches it while callers wait.
	Quota store.Quota
	// MaxQueue is the largest number of waiting callers. If zero, any number.
	MaxQueue int
	// Aging is how much later a Normal request counts than an Interactive one, and a Batch request
	// than a Normal one. If zero, all classes count alike.
	Aging time.Duration
	// Headroom is the percentage of every tier that a Batch request leaves to others until it has
	// waited for Aging. If zero, it leaves none.
	Headroom int
	// Guard returns the guard of a request that asks now, or zero for the plan's guard. If nil, the
	// plan's guard.
	Guard func() time.Duration
}

// A Queue is a waiting queue for one quota. It is safe for concurrent use.
type Queue struct {
	waiting atomic.Int64 // callers in the queue, or between two configurations
	// timersLate reports that the last timer fired late, so that an alarm may be better. Timers are
	// exact in package synctest, where a goroutine must not sleep on anything else.
	timersLate atomic.Bool

	mu     sync.Mutex // guards all below
	config Config
	// reserver is the quota if it reserves times, and nil otherwise.
	reserver store.Reserver
	// recheck is the longest time until the quota is asked again.
	recheck time.Duration
	// fast is the quota if it does not block, and nil otherwise.
	fast store.FastQuota
	// version is the version of the configuration.
	version int
	// generation numbers the requests to the quota. Replies to requests of an earlier generation
	// are void.
	generation int
	waiters    tree
	// moving is the number of callers that were refused with Moved and have not come back.
	moving int
	closed bool // the queue refuses all callers

	// reserved are the times that are reserved for the first waiters, in order.
	reserved []store.Decision
	// batchSize is the largest number of waiters in one call of Reserve.
	batchSize int
	// asking are the waiters for which the queue is asking the quota. The quota may already have
	// charged them.
	asking []*waiter
	// cancel cancels the call to the quota, if that may block. Otherwise it is nil.
	cancel func()
	// changed reports that the quota has changed since the queue last asked.
	changed bool

	// retryWaiter is the waiter that must ask again, by the last reply.
	retryWaiter *waiter
	// lastReplyAt is when the quota last replied.
	lastReplyAt time.Time
	// nextAskAt is when to ask again if retryWaiter is the first waiter without a time.
	nextAskAt time.Time
	// decider is the tier for which a waiter has last had to wait, plus one.
	decider int
	// storeErr is why the last call had no reply. If nil, it had one.
	storeErr error

	forecasts forecasts
	// nextReviewAt is when the next review may run, after a long one.
	nextReviewAt time.Time
	// overtakenFrom is the rank from which on waiters have been overtaken since the last review. If
	// zero, none have.
	overtakenFrom time.Time
	// lastRanks are, by class, the ranks of the last waiters that were placed behind others'
	// reserved times.
	lastRanks [3]time.Time
	// unwatch ends the watch of the quota. It is nil while no callers wait.
	unwatch func()
}

// A waiter is one caller in the queue.
type waiter struct {
	node
	request store.Request
	// ended is closed when the caller's context ends.
	ended <-chan struct{}
	// try is Ticket.Ask.
	try func(context.Context, store.Request) (store.Decision, error)
	// recost is Ticket.Recost.
	recost func() []int64
	class  Class
	// free is Ticket.Free.
	free     bool
	joinedAt time.Time
	// rank orders waiters. It is when an Interactive request in the same position would have
	// joined.
	rank time.Time
	// giveUpAt is when the caller gives up. If zero, never.
	giveUpAt time.Time
	// deadline is the earlier of giveUpAt and the context's deadline. If zero, there is none.
	deadline time.Time
	hold     Hold
	// wake holds one value after a wake-up.
	wake chan struct{}
	// alarm is what the waiter sleeps on instead. If nil, it does not.
	alarm atomic.Pointer[alarm.Alarm]
	// out reports that the waiter has left the queue. The fields below are then set.
	out      atomic.Bool
	decision store.Decision
	// reserver is the reserver that made the decision. If nil, none did.
	reserver store.Reserver
	refusal  error
}

const (
	retryStore = 250 * time.Millisecond // interval between calls to a store that does not answer
	minBatch   = 256                    // smallest limit of waiters in one call of Reserve
	maxBatch   = 4096                   // largest limit, if the store admits all of them at once
	maxPass    = 1 << 14                // largest number of waiters that one pass admits, some milliseconds
	alarmBelow = 50 * time.Millisecond  // in longer waits a late timer costs little of the quota
	alarmLate  = time.Millisecond       // by more, a timer may be better
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
	q.forecasts.drop()
	q.reserver, _ = c.Quota.(store.Reserver)
	q.fast, _ = c.Quota.(store.FastQuota)
	q.recheck = forever
	if r, ok := c.Quota.(store.Rechecker); ok {
		q.recheck = r.Recheck()
	}
	q.batchSize = minBatch
}

// Len returns how many callers wait.
func (q *Queue) Len() int { return int(q.waiting.Load()) }

// Wait blocks until the request is admitted, the context ends, or it is known that the request will
// be late: past t.GiveUp or the context's deadline. It returns the context's own error, a
// [*Refusal], or an error of t.Ask.
func (q *Queue) Wait(ctx context.Context, t Ticket) (store.Decision, error) {
	return q.wait(ctx, t, false)
}

// Rejoin is like Wait, for a caller that was refused with Moved. t.Place is the Place of that
// Refusal.
func (q *Queue) Rejoin(ctx context.Context, t Ticket) (store.Decision, error) {
	return q.wait(ctx, t, true)
}

// A Place is when a caller joined, and its number among callers that joined at the same instant.
type Place struct {
	Since  time.Time
	number uint64
}

// A Ticket describes a caller that joins.
type Ticket struct {
	store.Request
	Class Class
	// GiveUp is when the caller gives up. If zero, never.
	GiveUp time.Time
	// Free reports that the request costs nothing. It waits only for a pause, and not for the
	// callers ahead. Free is ignored if the quota reserves times.
	Free bool
	// Place is the caller's place in another queue or configuration. If zero, the caller joins now.
	Place Place
	// Ask asks for the request when it is first, in the caller's goroutine. It may block until its
	// context ends. The queue cancels that context when the order changes or the quota is paused,
	// and then asks again. The queue does not use Ask for a store.Reserver. If nil, Config.Quota's
	// TryAcquire.
	Ask func(context.Context, store.Request) (store.Decision, error)
	// Recost returns the cost of the request, which may change while it waits. It is called when the
	// request is first, in the caller's goroutine, before the quota is asked. It must be nil if the
	// quota reserves times. If nil, the cost stays.
	Recost func() []int64
	// Joined is called when the caller has joined, in its goroutine, with the number of others in the
	// queue. If nil, nothing is called.
	Joined func(others int)
	// Hold is used with quotas that reserve times.
	Hold
	// Version is the version of the configuration for which the request was made, 0 for the
	// configuration of New. Under another version the request is refused with Stale.
	Version int

	// missedStart reports that the caller missed its reserved time, and goes to the head.
	missedStart bool
}

// A Hold describes how a caller waits that needs the same time of several quotas.
type Hold struct {
	// Lead is how long before its reserved time Wait returns. The caller waits for the rest itself.
	// If zero, Wait returns at the reserved time.
	Lead time.Duration
	// Ahead is the least distance of the reserved time from now. If zero, any.
	Ahead time.Duration
	// NotBefore is the earliest useful time. If zero, any time is useful.
	NotBefore time.Time
	// AskAt is when to ask for the time, for all callers in the queue by then. If zero, at once.
	AskAt time.Time
}

// Leave reports that a caller that was refused with Moved does not rejoin.
func (q *Queue) Leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.countRejoined()
}

func (q *Queue) wait(ctx context.Context, t Ticket, rejoins bool) (store.Decision, error) {
	w, do, err := q.enter(ctx, t, rejoins)
	if err != nil {
		return store.Decision{}, err
	}
	if t.Joined != nil {
		q.reportJoined(w, t.Joined)
	}
	for {
		if do.ask {
			q.ask(ctx, w, do.generation)
		} else {
			q.sleep(ctx, w, do)
		}
		if err := ctx.Err(); err != nil && !w.out.Load() {
			return q.quit(w, err)
		}
		switch {
		case !w.out.Load():
			do = q.step(w)
		case w.missedStart():
			w.reserver.Cancel([]store.Decision{w.decision})
			t.Place, t.missedStart = Place{w.joinedAt, w.number}, true
			return q.wait(ctx, t, false)
		default:
			return w.decision, w.explain()
		}
	}
}

// reportJoined reports that a waiter has joined. If joined panics, the waiter leaves.
func (q *Queue) reportJoined(w *waiter, joined func(others int)) {
	done := false
	defer func() {
		if !done {
			q.quit(w, context.Canceled)
		}
	}()
	joined(max(0, q.Len()-1))
	done = true
}

// missedStart reports whether the reserved time has passed because the caller's goroutine ran too
// late.
func (w *waiter) missedStart() bool {
	a := w.decision.Reservation
	return w.reserver != nil && a != nil && a.Expired(time.Now())
}

// explain returns why the waiter was refused, or nil if it was not. With Moved it includes the
// caller's place.
func (w *waiter) explain() error {
	if r, ok := w.refusal.(*Refusal); ok && r.Reason == Moved {
		own := *r
		own.Place = Place{w.joinedAt, w.number}
		return &own
	}
	return w.refusal
}

// An action is what a waiter does next: ask the quota, or sleep.
type action struct {
	ask bool
	// generation is the generation of the request to the quota.
	generation int
	wait       time.Duration
	// asks reports that the waiter asks when it wakes. If that is late, all behind it are late too,
	// by the sum of what each of them is late.
	asks bool
}

// sleep is the only function that sleeps. It ends after do.wait, when the waiter is woken, or with
// the context.
func (q *Queue) sleep(ctx context.Context, w *waiter, do action) {
	if do.asks && do.wait > 0 && do.wait < alarmBelow && q.timersLate.Load() {
		if a := alarm.Get(); a != nil {
			q.sleepUntil(ctx, w, do.wait, a)
			return
		}
	}
	var rings <-chan time.Time
	var start time.Time
	if do.wait < forever {
		start = time.Now()
		t := time.NewTimer(do.wait)
		defer t.Stop()
		rings = t.C
	}
	select {
	case <-rings:
		q.timersLate.Store(time.Since(start) > max(0, do.wait))
	case <-w.wake:
	case <-ctx.Done():
	}
}

// sleepUntil sleeps on an alarm, and returns it. If the alarm is not on time either, the next waiter
// uses a timer.
func (q *Queue) sleepUntil(ctx context.Context, w *waiter, d time.Duration, a *alarm.Alarm) {
	defer a.Put()
	start := time.Now()
	a.Start()
	w.alarm.Store(a)
	defer w.alarm.Store(nil)
	defer context.AfterFunc(ctx, a.Stop)()
	if len(w.wake) == 0 && ctx.Err() == nil {
		a.Sleep(d)
	}
	select {
	case <-w.wake:
	default:
		if late := time.Since(start) - d; ctx.Err() == nil && (late < 0 || late > alarmLate) {
			q.timersLate.Store(false)
		}
	}
}

// wakeUp wakes the waiter, which then decides anew what to do.
func (w *waiter) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
	if a := w.alarm.Load(); a != nil {
		a.Stop()
	}
}

// enter adds a newcomer to the queue, unless the queue is full or the wait would be too long.
func (q *Queue) enter(ctx context.Context, t Ticket, rejoins bool) (*waiter, action, error) {
	w := newcomers.Get().(*waiter)
	*w = waiter{request: t.Request, ended: ctx.Done(), try: t.Ask, recost: t.Recost, free: t.Free, class: t.Class, giveUpAt: t.GiveUp, deadline: t.GiveUp,
		hold: t.Hold}
	if d, ok := ctx.Deadline(); ok && (t.GiveUp.IsZero() || d.Before(t.GiveUp)) {
		w.deadline = d
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.Version != q.version && !q.closed {
		return nil, action{}, &Refusal{Reason: Stale, Tier: -1}
	}
	if rejoins {
		defer q.countRejoined() // after the newcomer has joined: it must not be overtaken in between
	}
	if q.closed {
		return nil, action{}, &Refusal{Reason: Closed, Tier: -1}
	}
	now := time.Now()
	if w.joinedAt, w.number = t.Place.Since, t.Place.number; w.joinedAt.IsZero() {
		w.joinedAt = now
	}
	if w.rank = q.naturalRank(w); !t.missedStart {
		w.rank = q.rank(w)
	}
	if err := q.refuseIfLate(w, now); err != nil {
		w.recycle()
		return nil, action{}, err
	}
	w.wake = make(chan struct{}, 1)
	q.add(w)
	q.noteOvertaken(w)
	if w.next() != nil || q.isFull(now) {
		q.reconcile(now, w) // waiters behind it move back, or the last one is expelled
	}
	if w.out.Load() { // refused, or a reserved time has begun
		return w, action{wait: forever}, w.refusal
	}
	if q.cancel != nil && q.waiters.first() == w {
		q.cancel()
	}
	return w, q.next(w), nil
}

// rank returns the rank of a newcomer. Reserved times match the costs of the first waiters, in
// their order. A newcomer that would overtake one of these waiters is placed behind all of them if
// it has another cost or a NotBefore, because it could not use their times.
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
		return rank // the newcomer is behind all of them
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

// naturalRank returns the rank of a waiter without regard to reserved times.
func (q *Queue) naturalRank(w *waiter) time.Time {
	if w.free && q.reserver == nil {
		return time.Time{}
	}
	return w.joinedAt.Add(q.config.Aging * time.Duration([...]int{Interactive: 0, Normal: 1, Batch: 2}[w.class]))
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

// spec returns how a waiter's request waits from now on. A Batch request yields until it has waited
// for Aging.
func (q *Queue) spec(w *waiter, now time.Time) *store.WaitSpec {
	s := &store.WaitSpec{MaxWait: max(0, w.timeLeft(now)), NotBefore: w.hold.NotBefore}
	if w.hold.Ahead > 0 {
		s.NotBefore = now.Add(w.hold.Ahead)
	}
	if old := w.joinedAt.Add(q.config.Aging); w.class == Batch && old.After(now) {
		s.YieldFor, s.Headroom = old.Sub(now), int64(q.config.Headroom)
	}
	return s
}

// timeLeft returns the time until the deadline.
func (w *waiter) timeLeft(now time.Time) time.Duration {
	if w.deadline.IsZero() {
		return forever
	}
	return w.deadline.Sub(now)
}

func (w *waiter) isLate(at time.Time) bool { return !w.deadline.IsZero() && at.After(w.deadline) }

func (w *waiter) hasGivenUp(now time.Time) bool {
	return !w.giveUpAt.IsZero() && !w.giveUpAt.After(now)
}

// step returns what a waiter that has woken does next.
func (q *Queue) step(w *waiter) action {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next(w)
}

func (q *Queue) next(w *waiter) action {
	now := time.Now()
	if q.headIsDue(now) {
		q.reconcile(now, w)
	}
	wait, asks := forever, false
	switch {
	case w.out.Load() || q.reserver == nil && q.isAsked(w) && w.hasGivenUp(now):
		return action{wait: forever} // it has been woken, or will be with the reply
	case len(q.asking) == 0 && w == q.firstUnreserved() && q.chooseAsking(now):
		return action{ask: true, generation: q.generation}
	case w.hasGivenUp(now):
		q.expel(w, q.late(w, now))
		q.reconcile(now, nil)
		return action{wait: forever}
	case len(q.reserved) > 0 && w == q.waiters.first():
		wait = q.reserved[0].Reservation.Start.Sub(now) - w.hold.Lead
	case len(q.asking) == 0 && w == q.firstUnreserved() && q.moving == 0:
		wait, asks = q.askTime(w).Sub(now), q.reserver == nil
	}
	if !w.giveUpAt.IsZero() {
		wait = min(wait, w.giveUpAt.Sub(now))
	}
	return action{wait: wait, asks: asks}
}

// late returns the refusal of a waiter that gives up. While the store is unavailable, that is the
// reason.
func (q *Queue) late(w *waiter, now time.Time) *Refusal {
	if q.storeErr != nil {
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

// quit removes a waiter whose context has ended. The waiter is charged nothing, and its reserved
// time goes to the waiters behind.
func (q *Queue) quit(w *waiter, err error) (store.Decision, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.out.Load() {
		return w.decision, w.explain()
	}
	if q.storeErr != nil {
		err = q.unavailable(err)
	}
	wasFirst := w == q.waiters.first()
	q.detach(w)
	if wasFirst || len(q.reserved) > 0 { // else it changes nothing for the waiters that are awake or asked for
		q.reconcile(time.Now(), nil)
	}
	return store.Decision{}, err
}

// expel refuses a waiter if it is still in the queue.
func (q *Queue) expel(w *waiter, err error) {
	if !w.out.Load() {
		w.refusal = err
		q.remove(w)
	}
}

// admit admits a waiter.
func (q *Queue) admit(w *waiter, d store.Decision) {
	if d.Tier < 0 {
		d.Tier = q.decider - 1
	}
	w.decision, w.reserver = d, q.reserver
	q.forecasts.admitted(w)
	q.remove(w)
}

// remove removes a waiter from the queue. Its caller then returns the decision or the refusal.
func (q *Queue) remove(w *waiter) {
	q.detach(w)
	w.wakeUp()
}

// detach is remove for the waiter's own caller, which is awake. The count is updated first, because
// an admitted caller must not count as waiting.
func (q *Queue) detach(w *waiter) {
	q.unlink(w)
	q.waiting.Add(-1)
	w.out.Store(true)
}

// unlink removes a waiter from the tree.
func (q *Queue) unlink(w *waiter) {
	q.waiters.remove(w)
	if q.waiters.len() == 0 {
		q.unwatch()
		q.unwatch = nil
		q.forecasts, q.overtakenFrom, q.lastRanks, q.decider = forecasts{}, time.Time{}, [3]time.Time{}, 0
	}
}

// reconcile updates the queue after a change. It matches the reserved times with the waiters,
// admits waiters whose time has come, expels waiters beyond MaxQueue, and wakes waiters whose next
// step may have changed, except self.
func (q *Queue) reconcile(now time.Time, self *waiter) {
	unused := q.match(now)
	for q.headIsDue(now) {
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
	for _, w := range []*waiter{q.waiters.first(), q.firstUnreserved()} {
		if w != nil && w != self {
			w.wakeUp()
		}
	}
	if len(unused) > 0 {
		q.reserver.Cancel(unused)
	}
}

// headIsDue reports whether the reserved time of the first waiter has come.
func (q *Queue) headIsDue(now time.Time) bool {
	first := q.waiters.first()
	return first != nil && len(q.reserved) > 0 && !q.reserved[0].Reservation.Start.After(now.Add(first.hold.Lead))
}

// isFull reports whether the last waiter has to leave. All may stay while a store has not answered,
// because it is not known that they have to wait. Waiters in asking may stay too, because the quota
// may have charged them.
func (q *Queue) isFull(now time.Time) bool {
	n := q.waiters.len()
	return q.isLimited(n, now) && n > len(q.asking) && !q.isAsked(q.waiters.end())
}

// isLimited reports whether n waiters are too many.
func (q *Queue) isLimited(n int, now time.Time) bool {
	return q.config.MaxQueue > 0 && n > q.config.MaxQueue &&
		(q.reserver == nil || len(q.reserved) > 0 || q.nextAskAt.After(now))
}

// onChange receives the quota's changes.
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
		q.cancelReservations() // a time that was reserved before a pause must not be used beside the probe
	}
	switch c {
	case store.Slowed:
		q.review(now, mostSteps)
	case store.Shut:
		q.expelAll(&Refusal{Reason: Banned, Tier: -1, Wait: left})
	case store.Replanned:
		q.moveAll()
	}
	q.reconcile(now, nil)
}

// cancelReservations cancels all reservations.
func (q *Queue) cancelReservations() {
	if len(q.reserved) > 0 {
		q.reserver.Cancel(q.reserved)
		q.reserved = nil
	}
}

// expelAll expels all waiters except those that may already be charged.
func (q *Queue) expelAll(err error) {
	for w := q.waiters.first(); w != nil; {
		next := w.next()
		if !q.isAsked(w) {
			q.expel(w, err)
		}
		w = next
	}
}

// Pause reports a pause or a ban, until end, of another quota that the callers wait for too. They
// ask again. Pause refuses callers whose deadline is before end, or all callers if all is true.
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
	q.reconcile(now, nil)
}

// Close refuses all waiting and all later callers.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.refuseAll(&Refusal{Reason: Closed, Tier: -1})
}

// refuseAll refuses all waiters and cancels their reservations. It ignores the replies to calls
// that are under way. A caller that is asking for itself is refused when it has the reply.
func (q *Queue) refuseAll(refusal *Refusal) {
	if q.cancel != nil {
		q.cancel()
	}
	if q.reserver == nil {
		for _, w := range q.asking {
			q.unlink(w)
			q.moving++
		}
	}
	q.generation++
	q.asking, q.cancel = nil, nil
	q.cancelReservations()
	q.expelAll(refusal)
}

// moveAll refuses all waiters with Moved. They count as waiting until they have come back.
func (q *Queue) moveAll() {
	n := q.waiting.Load()
	q.refuseAll(&Refusal{Reason: Moved, Tier: -1})
	n -= q.waiting.Swap(n)
	q.moving += int(n)
}

// Replace changes the queue's configuration and returns its version. It refuses the waiting callers
// with Moved, each of which then calls Rejoin or Leave. No caller is admitted until all of them
// have done so.
func (q *Queue) Replace(c Config) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moveAll()
	q.set(c)
	q.storeErr, q.nextAskAt = nil, time.Time{}
	q.version++
	return q.version
}

// countRejoined counts the return of a caller that was refused with Moved.
func (q *Queue) countRejoined() {
	q.moving--
	q.waiting.Add(-1)
	if q.moving == 0 && q.waiters.len() > 0 {
		now := time.Now()
		q.review(now, q.steps(now)) // callers may have come back before others ahead of them
		q.reconcile(now, nil)
	}
}
