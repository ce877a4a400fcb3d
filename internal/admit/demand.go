package admit

import (
	"cmp"
	"context"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
)

// A Demand is what a caller asks to be admitted.
type Demand struct {
	Cost   map[string]int64 // if nil, N requests
	N      int64            // requests, if Cost is nil
	Held   bool             // the caller reports the request's arrival and end
	NoWait bool             // the caller does not wait
	SendBy time.Time        // the latest time of arrival; zero if there is none

	Object func() string           // returns what the request is for, as Admission.Passed names it; nil if that is not known
	Recost func() map[string]int64 // returns the cost as it is estimated now; nil if it stays the same
	Queued func()                  // is called when the demand takes a place in a queue; nil if nothing is
	Record Record                  // receives what happens to the request; nil if nobody observes it

	refundable bool                     // this charge is one of several scopes', and may be refunded
	bound      string                   // what sets giveUp
	outerBound string                   // in an outer scope, what sets the deadline of the context
	since      time.Time                // when the caller first asked, for its place in a queue; zero for now
	waited     map[*Scope]time.Duration // so far, of a demand that may ask a scope again or has waited for its object; else nil

	anyUnit bool          // the cost may name units that the Path does not count
	option  *queue.Option // of a caller that waits for several members of a Pool; nil for another

	giveUp time.Time // when the request is no longer worth waiting for, as giveUpAt found
	atOnce bool      // one call charges it in all scopes, and finds out which budgets are exhausted

	// lead is how long before its time a reservation is returned, and hold how long after it was made the request is
	// sent at the earliest: the caller asks other scopes meanwhile. If zero, it does not.
	lead, hold, margin time.Duration
}

// earliest returns what ends first: the context, or what giveUpAt has recorded.
func (d *Demand) earliest(ctx context.Context) string {
	if deadline, ok := ctx.Deadline(); ok && (d.giveUp.IsZero() || deadline.Before(d.giveUp)) {
		return cmp.Or(d.outerBound, BoundContext)
	}
	return d.bound
}

// withBound returns the error that a wait ended with. A refusal for lack of time then names what
// bounds the wait. If a context made from ctx was canceled to ask again, and ctx has ended since, the
// error is that of ctx.
func (d *Demand) withBound(ctx context.Context, err error) error {
	if err == context.Canceled && ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := err.(*Refusal); ok && e.Reason == queue.Late && e.Bound == "" {
		e.Bound = d.earliest(ctx)
	}
	return err
}

// joined reports that the demand has taken a place in a queue.
func (d *Demand) joined(ahead int) {
	if d.Queued != nil {
		d.Queued()
	}
	if d.Record != nil {
		d.Record.Queued(ahead)
	}
}

// longer returns by how much longer than for its guard the request counts, because its caller asks other
// scopes meanwhile.
func (d *Demand) longer(rev *Revision) time.Duration {
	if rev.reserves {
		return d.margin
	}
	return d.hold
}

// inPart is the option of one of several charges. No queue takes the choice before all are made.
var inPart queue.Option

// chooses reports whether a queue takes the caller's choice when it admits it. Then no member is asked beside
// its queue.
func (d *Demand) chooses() bool { return d.option != nil && d.option != &inPart }

// choosing returns the demand with an option, for charges that one queue makes all at once.
func (d Demand) choosing(o *queue.Option) Demand {
	d.option = o
	return d
}

// asRefundable returns the demand as one whose charge can be refunded. Its cost stays the same: all scopes
// charge the same estimate.
func (d Demand) asRefundable() Demand {
	d.Held, d.refundable, d.Recost = true, true, nil
	if d.option != nil {
		d.option = &inPart
	}
	return d
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earlier returns the earlier of two times, of which none is if it is zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// withDeadline returns a context that ends at a time, or with its parent only if that is zero.
func withDeadline(ctx context.Context, at time.Time) (context.Context, context.CancelFunc) {
	if at.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, at)
}

// earlierDeadline returns the earlier of the context's deadline and a time, of which none is if it is
// zero.
func earlierDeadline(ctx context.Context, at time.Time) time.Time {
	deadline, _ := ctx.Deadline()
	return earlier(at, deadline)
}
