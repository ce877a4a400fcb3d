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
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/alarm"
	"github.com/apithrottle/throttle/internal/order"
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
	// Owner is what the owner of the queue knows the configuration by. The queue passes it to the
	// functions of a Ticket, and a Result contains the Owner of the deciding configuration.
	Owner any
	// Replanned is called, without a lock, when the quota has a successor. It calls Replace with a
	// configuration of the successor. If nil, nothing is called.
	Replanned func()
	// Quota decides. The queue watches it while callers wait.
	Quota Quota
	// Reserver reserves times in the quota. If nil, the quota reserves none.
	Reserver store.Reserver
	// Fast is the quota if it does not block. If nil, it may block.
	Fast store.FastQuota
	// Order is the order of this queue and others of the same quota. If nil, the quota has no other
	// queues, or it reserves times.
	Order *order.Order
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

// A Quota is what a queue asks: a store.Quota, or several together.
type Quota interface {
	TryAcquire(context.Context, store.Request) (store.Decision, error)
	Watch(changed func(store.Change, time.Duration)) (stop func())
	Forecast() store.Forecast
	Soonest(cost []int64, headroom int64) (wait time.Duration, tier int)
}

// Same is implemented by a quota that may reserve in the same quotas as another one.
type Same interface {
	// ReservesAs reports whether reservations of the other quota are as good as its own.
	ReservesAs(Quota) bool
}

// A Queue is a waiting queue for one quota. It is safe for concurrent use.
type Queue struct {
	waiting atomic.Int64 // callers in the queue
	// timersLate reports that the last timer fired late, so that an alarm may be better. Timers are
	// exact in package synctest, where a goroutine must not sleep on anything else.
	timersLate atomic.Bool

	mu     sync.Mutex // guards all below
	config Config
	// reserver is the quota if it reserves times, and nil otherwise.
	reserver store.Reserver
	// fast is the quota if it does not block, and nil otherwise.
	fast store.FastQuota
	// place is the place of the queue in Config.Order. It is the place of the waiter ahead, which had
	// the rank aheadRank.
	place     order.Place
	ahead     *waiter
	aheadRank time.Time
	// away are the waiters that wait for another quota: see Turn.StepAside. They are not in waiters.
	away tree
	// recalled is the number of those waiters that must come back before any waiter may ask.
	recalled int
	// generation numbers the requests to the quota. Replies to requests of an earlier generation
	// are void.
	generation int
	waiters    tree
	closed     bool // the queue refuses all callers

	// reserved are the times that are reserved for the first waiters, in order.
	reserved []store.Decision
	// batchSize is the largest number of waiters in one call of Reserve.
	batchSize int
	// asking are the waiters for which the queue is asking the quota. The quota may already have
	// charged them.
	asking []*waiter
	// stale are waiters whose requests are under way but not in asking, because the queue was replaced
	// or they have stepped back. A quota that reserves has none.
	stale []*waiter
	// cancel cancels the call to the quota, if that may block. Otherwise it is nil.
	cancel func()
	// changed reports that the quota has changed since the queue last asked.
	changed bool

	// retryWaiter is the waiter that must ask again, by the last reply.
	retryWaiter *waiter
	// askedAt is when the call that is under way began, and lastReplyAt when the quota last replied.
	askedAt, lastReplyAt time.Time
	// nextAskAt is when to ask again if retryWaiter is the first waiter without a time, and readyAt
	// when the quota admits it at the soonest.
	nextAskAt, readyAt time.Time
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

// A newcomer is a caller that may join. It is not a waiter yet, so that a refusal needs little memory.
type newcomer struct {
	// Ticket is what the caller joins with. Its Request is made anew for each configuration, and its
	// Since is set.
	Ticket
	// owner is the Owner of the configuration that the Request was made for.
	owner any
	// free reports that the request costs nothing: see Ticket.Renew.
	free bool
	// rank orders waiters. It is when an Interactive request in the same position would have
	// joined.
	rank time.Time
	// number is the caller's number in the order of joining. If zero, it has not joined.
	number uint64
	// deadline is the earlier of GiveUp and the context's deadline. If zero, there is none.
	deadline time.Time
}

// A waiter is one caller in the queue.
type waiter struct {
	node
	newcomer
	// ended is closed when the caller's context ends.
	ended <-chan struct{}
	// joining reports that Ticket.Joined has not returned. The waiter must not be admitted before
	// that, because Joined may panic.
	joining bool
	// recall makes a waiter that is away come back. If nil, it is not away.
	recall context.CancelFunc
	// recalled reports that the waiter is away and must come back.
	recalled bool
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
	if was := q.config.Order; was != nil && was != c.Order {
		was.Leave(&q.place)
		q.ahead = nil
	}
	q.config = c
	q.forecasts.drop()
	q.reserver, q.fast = c.Reserver, c.Fast
	q.batchSize = minBatch
}

// Len returns how many callers wait.
func (q *Queue) Len() int { return int(q.waiting.Load()) }

// A Result is how a wait has ended.
type Result struct {
	// Decision is the admission. After an error it is zero.
	store.Decision
	// Cost is what the quota has charged.
	Cost []int64
	// Owner is the Owner of the configuration that has decided, also after an error.
	Owner any
}

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
			t.Since, t.place, t.missedStart = w.Since, w.number, true
			return q.Wait(ctx, t)
		default:
			return w.result()
		}
	}
}

// A Ticket describes a caller that joins.
type Ticket struct {
	// Request is the request, if Renew is nil.
	store.Request
	// Renew returns the request under the configuration of an owner, and whether the request is
	// free: it costs nothing, and waits only for a pause, not for the callers ahead. A quota that
	// reserves times has no free requests. After an error the caller is refused with that error.
	// The queue calls Renew when the caller joins and when the configuration is replaced, from any
	// goroutine and with a lock. If nil, the request stays as it is.
	Renew func(owner any) (r store.Request, free bool, err error)
	Class Class
	// GiveUp is when the caller gives up. If zero, never.
	GiveUp time.Time
	// Since is when the caller joined, for its place among the others. If zero, it joins now.
	Since time.Time
	// Ask asks for the request when it is first, in the caller's goroutine. It may block until its
	// context ends. The queue cancels that context when the order changes or the quota is paused,
	// and then asks again. The queue does not use Ask if it has a Reserver. If nil, Config.Quota's
	// TryAcquire.
	Ask func(context.Context, Turn) (Result, error)
	// Recost returns the cost of the request, which may change while it waits, or nil if it has not
	// changed. It is called when the request is first, in the caller's goroutine, before the quota is
	// asked. It must be nil if the quota reserves times. If nil, the cost stays.
	Recost func(owner any) []int64
	// Joined is called when the caller has joined, in its goroutine, with the number of others in the
	// queue. If nil, nothing is called.
	Joined func(others int)
	// Lead is how long before its reserved time Wait returns. If zero, Wait returns at that time.
	Lead time.Duration
	// Hold is the Hold of the request, see store.WaitSpec.
	Hold time.Duration
	// Longer is by how much longer than Config.Guard the request counts.
	Longer time.Duration

	// place is the caller's number in the order of joining. If zero, it joins now.
	place uint64
	// missedStart reports that the caller missed its reserved time, and goes to the head.
	missedStart bool
}

// A Turn is the turn of a caller that asks for itself.
type Turn struct {
	store.Request
	// Owner is the Owner of the configuration that the Request was made for.
	Owner any
	// Away is the cost of the callers that have stepped aside. If nil, there are none.
	Away []int64
	// StepAside lets the callers behind, and those in other queues of the quota, go ahead until Ask
	// returns. Ask calls it when the caller waits for another quota.
	StepAside func()
	// Overtakes reports whether the caller has stepped aside and a caller ahead of it waits for this
	// quota now. Ask then leaves the quota to that caller.
	Overtakes func() bool
	// StepBack ends what StepAside began. Ask calls it when this quota does not admit the caller, before
	// it gives back what another quota has admitted: others may take that at once.
	StepBack func()
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
	q.mu.Lock()
	defer q.mu.Unlock()
	w.joining = false
	return q.next(w)
}

// missedStart reports whether the reserved time has passed because the caller's goroutine ran too
// late.
func (w *waiter) missedStart() bool {
	a := w.decision.Reservation
	return w.reserver != nil && a != nil && a.Expired(time.Now())
}

// result returns how the wait has ended.
func (w *waiter) result() (Result, error) {
	if w.refusal != nil {
		return Result{Owner: w.owner}, w.refusal
	}
	return Result{w.decision, w.Request.Cost, w.owner}, nil
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

// SleepUntil sleeps until a time, for a caller that has left its queue before. It ends with the context.
func SleepUntil(ctx context.Context, at time.Time) error {
	left := time.Until(at)
	if left <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
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
		if n.rank = q.naturalRank(&n); !t.missedStart {
			n.rank = q.rank(&n)
		}
		err = q.refuseIfLate(&n, now)
	}
	if err != nil {
		return nil, action{}, n.owner, err
	}
	w := &waiter{newcomer: n, ended: ctx.Done(), joining: t.Joined != nil, wake: make(chan struct{}, 1)}
	q.add(w)
	q.noteOvertaken(w)
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

// renew makes the waiter's request for the configuration of an owner.
func (w *newcomer) renew(owner any) (err error) {
	w.owner = owner
	if w.Renew != nil {
		w.Request, w.free, err = w.Renew(owner)
	}
	return err
}

// rank returns the rank of a newcomer. Reserved times match the costs of the first waiters, in
// their order. A newcomer that would overtake one of these waiters is placed behind all of them if
// it has another cost or Hold, because it could not use their times.
func (q *Queue) rank(w *newcomer) time.Time {
	rank := q.naturalRank(w)
	if q.reserver == nil {
		return rank
	}
	if last := q.lastRanks[w.Class]; last.After(rank) {
		rank = last
	}
	timed := q.waiters.first()
	if last := q.waiters.at(len(q.reserved) + len(q.asking) - 1); last != nil && last.before(rank, math.MaxUint64) {
		return rank // the newcomer is behind all of them
	}
	for n := len(q.reserved) + len(q.asking); n > 0 && timed != nil; n-- {
		if !timed.before(rank, math.MaxUint64) && (timed.Hold < w.Hold || !equal(timed.Request.Cost, w.Request.Cost)) {
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
func (q *Queue) naturalRank(w *newcomer) time.Time {
	if w.free && q.reserver == nil {
		return time.Time{}
	}
	return w.Since.Add(q.config.Aging * time.Duration([...]int{Interactive: 0, Normal: 1, Batch: 2}[w.Class]))
}

func (q *Queue) add(w *waiter) {
	if w.number == 0 {
		w.number = q.nextNumber()
	}
	q.waiters.insert(w)
	q.takePlace()
	if w.rank.After(q.naturalRank(&w.newcomer)) {
		q.lastRanks[w.Class] = w.rank
	}
	q.waiting.Add(1)
	if q.unwatch == nil {
		q.unwatch = q.config.Quota.Watch(q.onChange)
	}
}

// spec returns how a waiter's request waits from now on. A Batch request yields until it has waited
// for Aging.
func (q *Queue) spec(w *waiter, now time.Time) *store.WaitSpec {
	s := &store.WaitSpec{MaxWait: max(0, w.timeLeft(now)), Hold: w.Hold}
	if old := w.Since.Add(q.config.Aging); w.Class == Batch && old.After(now) {
		s.YieldFor, s.Headroom = old.Sub(now), int64(q.config.Headroom)
	}
	return s
}

// timeLeft returns the time until the deadline.
func (w *newcomer) timeLeft(now time.Time) time.Duration {
	if w.deadline.IsZero() {
		return forever
	}
	return w.deadline.Sub(now)
}

func (w *newcomer) isLate(at time.Time) bool { return !w.deadline.IsZero() && at.After(w.deadline) }

func (w *newcomer) hasGivenUp(now time.Time) bool {
	return !w.GiveUp.IsZero() && !w.GiveUp.After(now)
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
	case w.out.Load():
		return action{wait: forever} // it has been woken
	case len(q.asking) == 0 && w == q.firstUnreserved() && q.chooseAsking(now):
		return action{ask: true, generation: q.generation}
	case w.hasGivenUp(now):
		q.expel(w, q.late(w, now))
		q.reconcile(now, nil)
		return action{wait: forever}
	case len(q.reserved) > 0 && w == q.waiters.first():
		wait = q.reserved[0].Reservation.Start.Sub(now) - w.Lead
	case len(q.asking) == 0 && w == q.firstUnreserved() && q.isOurTurn():
		wait, asks = q.askTime(w).Sub(now), q.reserver == nil
	}
	if !w.GiveUp.IsZero() {
		wait = min(wait, w.GiveUp.Sub(now))
	}
	return action{wait: wait, asks: asks}
}

// late returns the refusal of a waiter that gives up. While the store does not answer, that is the
// reason.
func (q *Queue) late(w *waiter, now time.Time) *Refusal {
	if q.storeErr != nil || q.isUnanswered(w) {
		return q.unavailable(context.DeadlineExceeded)
	}
	sum := make([]int64, len(w.Request.Cost))
	ahead := q.waiters.index(w, sum)
	wait, tier := q.expected(&w.newcomer, ahead, sum, 0, now)
	return &Refusal{Reason: Late, Tier: tier, Wait: wait, Ahead: ahead}
}

// silence is how long a call of a shared store takes if the store does not answer.
const silence = time.Second

// isUnanswered reports whether a call of a shared store is under way, and the store has not answered since
// the waiter joined, or does not answer that call.
func (q *Queue) isUnanswered(w *waiter) bool {
	return q.fast == nil && len(q.asking) > 0 && (q.lastReplyAt.Before(w.Since) || time.Since(q.askedAt) >= silence)
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
func (q *Queue) quit(w *waiter, err error) (Result, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.out.Load() {
		return w.result()
	}
	if q.storeErr != nil || err == context.DeadlineExceeded && q.isUnanswered(w) {
		err = q.unavailable(err)
	}
	wasFirst := w == q.waiters.first()
	q.detach(w)
	if wasFirst || len(q.reserved) > 0 { // else it changes nothing for the waiters that are awake or asked for
		q.reconcile(time.Now(), nil)
	}
	return Result{Owner: w.owner}, err
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
	q.takePlace()
	q.stopIfEmpty()
}

// stopIfEmpty stops watching the quota if nobody waits.
func (q *Queue) stopIfEmpty() {
	if q.isEmpty() && q.unwatch != nil {
		q.stopWatching()
		if q.reserver != nil {
			q.reserver.Leave()
		}
	}
}

func (q *Queue) isEmpty() bool { return q.waiters.len()+q.away.len() == 0 }

// stopWatching forgets what is known of the quota only while the queue watches it.
func (q *Queue) stopWatching() {
	q.unwatch()
	q.unwatch = nil
	q.forecasts, q.overtakenFrom, q.lastRanks, q.decider = forecasts{}, time.Time{}, [3]time.Time{}, 0
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
		full := &Refusal{Reason: Full, Tier: -1, Ahead: q.waiters.len() + q.away.len() - 1}
		if last := q.last(); last.recall != nil {
			q.refuseAway(last, full)
		} else {
			q.expel(last, full)
		}
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
	return first != nil && !first.joining && len(q.reserved) > 0 && !q.reserved[0].Reservation.Start.After(now.Add(first.Lead))
}

// isFull reports whether the last waiter has to leave. All may stay while a store has not answered,
// because it is not known that they have to wait. Waiters in asking may stay too, because the quota
// may have charged them.
func (q *Queue) isFull(now time.Time) bool {
	return q.isLimited(q.waiters.len()+q.away.len(), now) && q.last() != nil
}

// last returns the last waiter that may be expelled, nil if there is none.
func (q *Queue) last() *waiter {
	away, last := q.away.end(), q.waiters.end()
	if q.waiters.len() <= len(q.asking) || q.isAsked(last) || away != nil && last.before(away.rank, away.number) {
		return away
	}
	return last
}

// isLimited reports whether n waiters are too many.
func (q *Queue) isLimited(n int, now time.Time) bool {
	return q.config.MaxQueue > 0 && n > q.config.MaxQueue &&
		(q.reserver == nil || len(q.reserved) > 0 || q.nextAskAt.After(now))
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
	if q.isEmpty() {
		return
	}
	now := time.Now()
	q.changed, q.nextAskAt = true, time.Time{}
	if c != store.Freed && c != store.Eased {
		q.cancelAsks()
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

// cancelAsks cancels all calls of Ticket.Ask.
func (q *Queue) cancelAsks() {
	if q.cancel != nil {
		q.cancel()
	}
	for _, w := range q.away.all() {
		w.recall()
	}
}

// expelAll expels all waiters except those that may already be charged.
func (q *Queue) expelAll(err error) {
	q.expelAway(err)
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
	if q.isEmpty() {
		return
	}
	now := time.Now()
	q.changed, q.nextAskAt = true, time.Time{}
	if q.cancel != nil {
		q.cancel()
	}
	if all {
		q.expelAway(refusal)
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
	q.interrupt()
	q.expelAll(&Refusal{Reason: Closed, Tier: -1})
}

// interrupt cancels all reservations and voids the calls that are under way.
func (q *Queue) interrupt() {
	if q.cancel != nil {
		q.cancel()
	}
	q.generation++
	if q.reserver == nil {
		q.stale = append(q.stale, q.asking...)
	}
	q.asking, q.cancel = nil, nil
	q.cancelReservations()
}

// reservesAs reports whether the times that the queue has reserved hold under a configuration, too.
func (q *Queue) reservesAs(c Config) bool {
	if q.reserver == nil {
		return false
	}
	same, ok := c.Quota.(Same)
	return ok && same.ReservesAs(q.config.Quota) || reflect.ValueOf(c.Quota).Comparable() && c.Quota == q.config.Quota
}

// Replace replaces the queue's configuration. The waiting callers stay in their order, with their
// requests made anew, and keep the times that the same quota has reserved. It refuses those for which Ticket.Renew returns an error. Under another Owner the
// quota may have less room: callers that have stepped aside then come back before any caller may ask.
func (q *Queue) Replace(c Config) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cancel != nil { // the caller may have a place in another quota, which it keeps
		q.goAway(q.asking[0])
	}
	if c.Owner != q.config.Owner {
		q.recall()
	}
	if !q.reservesAs(c) {
		q.interrupt()
	}
	if !q.isEmpty() {
		q.stopWatching()
	}
	q.set(c)
	q.storeErr, q.nextAskAt, q.retryWaiter = nil, time.Time{}, nil
	q.renew(&q.waiters)
	q.renew(&q.away)
	q.takePlace()
	if q.isEmpty() {
		return
	}
	q.unwatch = q.config.Quota.Watch(q.onChange)
	now := time.Now()
	for _, w := range q.asking {
		q.specify(w, now)
	}
	q.review(now, q.steps(now))
	q.reconcile(now, nil)
}

// renew makes the requests of the waiters of a tree anew, and refuses those for which that fails.
func (q *Queue) renew(t *tree) {
	all := t.all()
	kept := all[:0]
	for _, w := range all {
		if err := w.renew(q.config.Owner); err != nil {
			w.refusal = err
			q.waiting.Add(-1)
			w.out.Store(true)
			w.wakeUp()
			if w.recall != nil {
				w.recall()
			}
			continue
		}
		w.rank = q.naturalRank(&w.newcomer)
		kept = append(kept, w)
	}
	t.build(kept)
}
