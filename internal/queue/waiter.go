package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/alarm"
	"github.com/apithrottle/throttle/store"
)

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
	// Option is that of a caller that waits in other queues too, one of which may admit it. Forecasts for
	// the callers behind then leave it out. If nil, the caller waits in this queue only.
	Option *Option

	// Elsewhere is, in a queue without a Quota, the choice of the queue that admits the caller. Forecasts take
	// the caller for charged as soon as it may be taken.
	Elsewhere *Choice

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

// A Result is how a wait has ended.
type Result struct {
	// Decision is the admission. After an error it is zero.
	store.Decision
	// Cost is what the quota has charged.
	Cost []int64
	// Owner is the Owner of the configuration that has decided, also after an error.
	Owner any
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

// renew makes the waiter's request for the configuration of an owner.
func (w *newcomer) renew(owner any) (err error) {
	w.owner = owner
	if w.Renew != nil {
		w.Request, w.free, err = w.Renew(owner)
	}
	return err
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

// dismiss makes the caller of a waiter that is out return.
func (w *waiter) dismiss() {
	w.wakeUp()
	if w.recall != nil {
		w.recall()
	}
}

// accept ends the wait with what the quota has charged, even if the queue has refused the waiter
// meanwhile.
func (w *waiter) accept(r Result) {
	w.owner, w.Request.Cost, w.decision, w.refusal = r.Owner, r.Cost, r.Decision, nil
}
