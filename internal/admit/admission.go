package admit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/rtt"
	"github.com/apithrottle/throttle/store"
)

// A Charge is what one scope charged for a request.
type Charge struct {
	Scope    *Scope
	Revision *Revision
	Decision store.Decision
	Cost     []int64
}

// An Admission is one admitted request: its charges in the scope of its Path and in the outer
// ones, the inner ones first. Each method acts on all of them.
type Admission struct {
	Charge
	outer  []Charge
	Fast   bool // Revision.fast has admitted the request, which has no outer charge
	Timing rtt.Timing
}

// Charged reports whether a quota has charged the request. If not, there is no scope, and reports
// change no quota; the revision is the policy that the request was sent under.
func (a *Admission) Charged() bool { return a.Scope != nil }

// EachCharge calls f for each charge.
func (a *Admission) EachCharge(f func(*Charge)) {
	if !a.Charged() {
		return
	}
	f(&a.Charge)
	for i := range a.outer {
		f(&a.outer[i])
	}
}

// Passed records that the request for an object was not refused, which was sent at a time. It ends the back-off, if
// there is one.
func (a *Admission) Passed(object func() string, sent time.Time) {
	if a.EndBackoff(); a.Charged() {
		a.Own().Scope.objects.Passed(object, sent)
	}
}

// Blames records that the request for an object was refused, which was sent at a time, and reports whether the object
// alone is. If so, the object pauses, for as long as the response tells or longer.
func (a *Admission) Blames(object func() string, sent time.Time, told time.Duration) bool {
	return a.Charged() && a.Own().Scope.objects.Refused(object(), sent, told)
}

// EachRevision calls f for each policy that the request was sent under, also if no quota has charged it.
func (a *Admission) EachRevision(f func(*Revision)) {
	if a.Revision == nil {
		return
	}
	f(a.Revision)
	for i := range a.outer {
		f(a.outer[i].Revision)
	}
}

// Leave ends the use of the scopes, when the request has ended. A Group drops only scopes that
// are not in use.
func (a *Admission) Leave() {
	a.EachCharge(func(c *Charge) { c.Scope.Leave() })
}

// leaveOuter leaves the scopes of a part of a request but for the scope of the Path.
func (a *Admission) leaveOuter(p *Path) {
	a.EachCharge(func(c *Charge) {
		if c.Scope != p.scope.Load() {
			c.Scope.Leave()
		}
	})
}

// drop refunds a request and leaves its scopes.
func (a *Admission) drop() {
	a.Refund()
	a.Leave()
}

// giveBack refunds a request and leaves its scopes but for the scope of the Path.
func (a *Admission) giveBack(p *Path) {
	a.Refund()
	a.leaveOuter(p)
}

// announce calls Policy.Alert for the thresholds that the charges have crossed, once, and then reports
// the admission, unless the record is nil. If a callback panics, the charges are refunded and the
// request is not sent.
func (a *Admission) announce(r Record) {
	if a.Decision.Crossed == nil && a.outer == nil && r == nil {
		return
	}
	done := false
	defer func() {
		if done {
			return
		}
		defer a.Leave()
		a.Refund()
		if r != nil {
			r.Unsent()
		}
	}()
	a.EachCharge(func(c *Charge) {
		crossed := c.Decision.Crossed
		c.Decision.Crossed = nil
		c.Revision.alert(crossed)
	})
	if r != nil {
		r.Admitted()
	}
	done = true
}

func (c *Charge) arrived() { c.Revision.quota.Arrived(c.Decision, c.Cost) }

// Arrived reports that the response is in.
func (a *Admission) Arrived() {
	if !a.Fast || !a.Revision.fast.OneArrived(a.Decision.Flight) {
		a.EachCharge((*Charge).arrived)
	}
}

// Unanswered reports that the request was sent and that no response will come.
func (a *Admission) Unanswered() {
	a.EachCharge(func(c *Charge) { c.Revision.quota.Unanswered(c.Decision, c.Cost) })
}

// Release reports that the request has ended.
func (a *Admission) Release() {
	a.EachCharge(func(c *Charge) {
		if c.Revision.concurrent {
			c.Revision.quota.Release(c.Decision, c.Cost)
		}
	})
}

// Settle reports the actual cost of the request in the estimated units. A unit that actual does not
// name cost its estimate. It is called after arrived.
func (a *Admission) Settle(actual map[string]int64, after *Callbacks) {
	a.EachCharge(func(c *Charge) {
		if c.Revision.estimates {
			actual, s := c.Revision.actualCost(c.Cost, actual), &settlement{scope: c.Scope}
			c.Revision.quota.Settle(c.Decision, c.Cost, actual, s.alert)
			after.Add(s.end)
			c.reportSettled(actual, after)
		}
	})
}

// reportSettled reports the actual cost in the estimated units, after the event.
func (c *Charge) reportSettled(actual []int64, after *Callbacks) {
	rev, estimate := c.Revision, c.Cost
	if rev.Events == nil {
		return
	}
	for u, unit := range rev.Plan.Units() {
		if rev.Plan.Estimated(u) && estimate[u]|actual[u] != 0 {
			if report := rev.Events.Settled(unit, estimate[u], actual[u]); report != nil {
				after.Add(report)
			}
		}
	}
}

// A settlement keeps the thresholds that it crossed until all quotas have received it. The store
// reports them at once, or later from another goroutine.
type settlement struct {
	scope *Scope

	mu      sync.Mutex // guards all below
	done    bool
	crossed []algorithms.Crossing // before it was done
}

// alert announces thresholds. The policy may have changed since the request was admitted.
func (s *settlement) alert(crossed []algorithms.Crossing) {
	s.mu.Lock()
	done := s.done
	if !done {
		s.crossed = append(s.crossed, crossed...)
	}
	s.mu.Unlock()
	if done {
		s.scope.adoptSuccessor().alert(crossed)
	}
}

// end announces the thresholds that were kept, and those that follow at once.
func (s *settlement) end() {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	if s.crossed != nil {
		s.scope.adoptSuccessor().alert(s.crossed)
	}
}

// Refund gives back the charges of a request that was not sent. It uses no context of the caller,
// which may have ended, and waits no longer than the stores do.
func (a *Admission) Refund() { _ = a.RefundIn(context.Background()) }

// RefundIn gives back the charges of a request that was not sent.
func (a *Admission) RefundIn(ctx context.Context) error {
	var errs []error
	a.EachCharge(func(c *Charge) { errs = append(errs, c.Revision.quota.Return(ctx, c.Decision, c.Cost)) })
	return errors.Join(errs...)
}

// expectNoReport lets the charges land by themselves, for a request whose caller will not report
// its response. Since no response ends a probe either, the next request probes.
func (a *Admission) expectNoReport() {
	a.EachCharge(func(c *Charge) {
		if c.Revision.estimates || c.Decision.Probe {
			c.Revision.quota.Unanswered(c.Decision, c.Cost)
		}
	})
}

// landUnguarded lands the charges under policies without a guard. Their requests arrive when they
// are admitted, and were in flight only while they could still be refunded. A probe still ends with
// the response.
func (a *Admission) landUnguarded() {
	a.EachCharge(func(c *Charge) {
		if c.Revision.Plan.Guard() == 0 && !c.Revision.AutoGuard {
			landed := c.Decision
			landed.Probe = false
			c.Revision.quota.Arrived(landed, c.Cost)
			c.Decision.Flight = algorithms.Landed
		}
	})
}

// expired reports whether a reservation that charges something has ended, because making the others took
// too long.
func (a *Admission) expired() (any bool) {
	now := time.Now()
	a.EachCharge(func(c *Charge) {
		r := c.Decision.Reservation
		any = any || r != nil && !c.Revision.isFree(c.Cost) && r.Expired(now)
	})
	return any
}

// start returns from when on a request may be sent, and end until when, zero if it costs nothing. Its quotas
// reserve.
func (a *Admission) start() (start time.Time) {
	a.EachCharge(func(c *Charge) {
		if r := c.Decision.Reservation; r != nil {
			start = later(start, r.Start)
		}
	})
	return start
}

func (a *Admission) end(lasts time.Duration) (end time.Time) {
	if lasts > 0 {
		end = time.Now().Add(lasts)
	}
	a.EachCharge(func(c *Charge) {
		if r := c.Decision.Reservation; r != nil && !c.Revision.isFree(c.Cost) && (end.IsZero() || r.End.Before(end)) {
			end = r.End
		}
	})
	return end
}

// void reports whether a pause voids any of the reservations.
func (a *Admission) void() (any bool) {
	a.EachCharge(func(c *Charge) {
		q := reserverOf(c.Revision.quota)
		any = any || q != nil && q.IsVoid(c.Decision)
	})
	return any
}

// Estimates reports whether some unit of the cost is known only at the end of the request.
func (a *Admission) Estimates() bool {
	return a.anyRevision(func(rev *Revision) bool { return rev.estimates })
}

// Concurrent reports whether the request occupies a Concurrency tier until its end.
func (a *Admission) Concurrent() bool {
	return a.anyRevision(func(rev *Revision) bool { return rev.concurrent })
}

func (a *Admission) anyRevision(has func(*Revision) bool) (any bool) {
	a.EachRevision(func(rev *Revision) { any = any || has(rev) })
	return any
}

// StartTiming starts the timing of the request for each scope that learns its guard.
func (a *Admission) StartTiming() {
	a.EachCharge(func(c *Charge) {
		switch {
		case !c.Revision.AutoGuard:
		case !a.Timing.Learns():
			a.Timing = rtt.StartTiming(c.Scope.Estimator())
		default:
			a.Timing.AddOther(c.Scope.Estimator())
		}
	})
}

// Own returns the charge in the innermost scope that is not blameless. A refusal says nothing about the
// other requests that a blameless scope counts.
func (a *Admission) Own() *Charge {
	if !a.Charged() || !a.Scope.blameless {
		return &a.Charge
	}
	if i := slices.IndexFunc(a.outer, func(c Charge) bool { return !c.Scope.blameless }); i >= 0 {
		return &a.outer[i]
	}
	return &a.Charge
}

// EndBackoff ends the back-off, if there is one.
func (a *Admission) EndBackoff() {
	a.EachCharge(func(c *Charge) {
		if c.Decision.Level > 0 {
			c.Revision.quota.Passed(c.Decision)
		}
	})
}

// ZeroEstimate returns a Cost of zero in every estimated unit.
func (a *Admission) ZeroEstimate() map[string]int64 {
	cost := make(map[string]int64)
	a.EachRevision(func(rev *Revision) {
		for u, unit := range rev.Plan.Units() {
			if rev.Plan.Estimated(u) {
				cost[unit] = 0
			}
		}
	})
	return cost
}

// CheckActual returns an error if actual names a unit that is not estimated, or a negative amount.
func (a *Admission) CheckActual(actual map[string]int64) error {
	for unit, n := range actual {
		known := a.anyRevision(func(rev *Revision) bool {
			u := slices.Index(rev.Plan.Units(), unit)
			return u >= 0 && rev.Plan.Estimated(u)
		})
		switch {
		case !known:
			return a.Revision.Errorf("cost of %q can't be settled: set Estimated in a tier of that unit", unit)
		case n < 0:
			return a.Revision.Errorf("cost of %q is %d: it must be at least 0", unit, n)
		}
	}
	return nil
}

// Feedback returns what receives the readings of responses.
func (c *Charge) Feedback() store.Feedback { return feedbackOf(c.Revision.quota) }

// Guard returns the guard interval in force, learned or not. If no quota has charged the request, it is that of the
// policy.
func (c *Charge) Guard() time.Duration {
	if c.Scope == nil {
		return c.Revision.Plan.Guard()
	}
	return c.Scope.guardInForce(c.Revision)
}

// StatusOfReport returns the state of the quota after a refusal, or the zero Status if it is not known. It
// reports what the refusal has changed.
func (c *Charge) StatusOfReport(ctx context.Context, after *Callbacks) store.Status {
	if c.Revision.reserves && !c.Scope.mayAsk() {
		return store.Status{}
	}
	rev, status, err := c.Scope.status(context.WithoutCancel(ctx))
	if err != nil || rev != c.Revision {
		return store.Status{}
	}
	c.reportDecreases(status, after)
	return status
}

// Took returns the time since the admission, or -1 if that is not known.
func (c *Charge) Took(now store.Status) time.Duration {
	switch r := c.Decision.Reservation; {
	case r != nil:
		return time.Since(r.Start)
	case now.At > 0 && c.Decision.At > 0:
		return time.Duration(now.At-c.Decision.At) * time.Microsecond
	}
	return -1
}
