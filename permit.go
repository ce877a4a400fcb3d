package throttle

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

// An admission is one admitted request: its charges in the scope of its Limiter and in the outer
// ones, the inner ones first. Each method acts on all of them.
type admission struct {
	charge
	outer    []charge
	listener listener // nil if nobody listens
	fast     bool     // revision.fast has admitted the request, which has no outer charge
	timing   timing
}

// charged reports whether a quota has charged the request. If not, there is no scope, and reports
// change no quota; the revision is the policy that the request was sent under.
func (a *admission) charged() bool { return a.scope != nil }

// eachCharge calls f for each charge.
func (a *admission) eachCharge(f func(*charge)) {
	if !a.charged() {
		return
	}
	f(&a.charge)
	for i := range a.outer {
		f(&a.outer[i])
	}
}

// eachRevision calls f for each policy that the request was sent under, also if no quota has charged it.
func (a *admission) eachRevision(f func(*revision)) {
	if a.revision == nil {
		return
	}
	f(a.revision)
	for i := range a.outer {
		f(a.outer[i].revision)
	}
}

// leaveScopes ends the use of the scopes, when the request has ended. A Group drops only scopes that
// are not in use.
func (a *admission) leaveScopes() {
	a.eachCharge(func(c *charge) { c.scope.leave() })
	if a.listener != nil {
		a.listener.ended()
	}
}

// announce calls Policy.Alert for the thresholds that the charges have crossed, once, and then reports
// the admission, unless the record is nil. If a callback panics, the charges are refunded and the
// request is not sent.
func (a *admission) announce(r *record) {
	if a.decision.Crossed == nil && a.outer == nil && r == nil {
		return
	}
	done := false
	defer func() {
		if done {
			return
		}
		defer a.leaveScopes()
		a.refund()
		if r != nil && r.decided && r.info.Held {
			a.answered(r.ctx, AnsweredInfo{Unsent: true})
		}
	}()
	a.eachCharge(func(c *charge) {
		crossed := c.decision.Crossed
		c.decision.Crossed = nil
		c.revision.alert(crossed)
	})
	if r != nil {
		a.listen(r.observer)
		r.admit()
	}
	done = true
}

func (c *charge) arrived() { c.revision.quota.Arrived(c.decision, c.cost) }

// arrived reports that the response is in.
func (a *admission) arrived() {
	if !a.fast || !a.revision.fast.OneArrived(a.decision.Flight) {
		a.eachCharge((*charge).arrived)
	}
}

// unanswered reports that the request was sent and that no response will come.
func (a *admission) unanswered() {
	a.eachCharge(func(c *charge) { c.revision.quota.Unanswered(c.decision, c.cost) })
}

// release reports that the request has ended.
func (a *admission) release() {
	a.eachCharge(func(c *charge) {
		if c.revision.concurrent {
			c.revision.quota.Release(c.decision, c.cost)
		}
	})
}

// settle reports the actual cost of the request in the estimated units. A unit that actual does not
// name cost its estimate. It is called after arrived.
func (a *admission) settle(actual Cost, after *callbacks) {
	a.eachCharge(func(c *charge) {
		if c.revision.estimates {
			actual, s := c.revision.actualCost(c.cost, actual), &settlement{scope: c.scope}
			c.revision.quota.Settle(c.decision, c.cost, actual, s.alert)
			after.add(s.end)
			c.revision.observeSettled(c.cost, actual, after)
		}
	})
	if a.listener != nil {
		a.listener.settled(actual)
	}
}

// refund gives back the charges of a request that was not sent. It uses no context of the caller,
// which may have ended, and waits no longer than the stores do.
func (a *admission) refund() { _ = a.refundCharges(context.Background()) }

// refundCharges gives back the charges of a request that was not sent.
func (a *admission) refundCharges(ctx context.Context) error {
	var errs []error
	a.eachCharge(func(c *charge) { errs = append(errs, c.revision.quota.Return(ctx, c.decision, c.cost)) })
	return errors.Join(errs...)
}

// expectNoReport lets the charges land by themselves, for a request whose caller will not report
// its response. Since no response ends a probe either, the next request probes.
func (a *admission) expectNoReport() {
	a.eachCharge(func(c *charge) {
		if c.revision.estimates || c.decision.Probe {
			c.revision.quota.Unanswered(c.decision, c.cost)
		}
	})
}

// landUnguarded lands the charges under policies without a guard. Their requests arrive when they
// are admitted, and were in flight only while they could still be refunded. A probe still ends with
// the response.
func (a *admission) landUnguarded() {
	a.eachCharge(func(c *charge) {
		if c.revision.plan.Guard() == 0 && !c.revision.autoGuard {
			landed := c.decision
			landed.Probe = false
			c.revision.quota.Arrived(landed, c.cost)
			c.decision.Flight = algorithms.Landed
		}
	})
}

// expired reports whether a reservation that charges something has ended, because making the others took
// too long.
func (a *admission) expired() (any bool) {
	now := time.Now()
	a.eachCharge(func(c *charge) {
		r := c.decision.Reservation
		any = any || r != nil && !c.revision.isFree(c.cost) && r.Expired(now)
	})
	return any
}

// estimates reports whether some unit of the cost is known only at the end of the request.
func (a *admission) estimates() bool {
	return a.anyRevision(func(rev *revision) bool { return rev.estimates })
}

// concurrent reports whether the request occupies a Concurrency tier until its end.
func (a *admission) concurrent() bool {
	return a.anyRevision(func(rev *revision) bool { return rev.concurrent })
}

func (a *admission) anyRevision(has func(*revision) bool) (any bool) {
	a.eachRevision(func(rev *revision) { any = any || has(rev) })
	return any
}

// startTiming starts the timing of the request for each scope that learns its guard.
func (a *admission) startTiming() {
	a.eachCharge(func(c *charge) {
		switch {
		case !c.revision.autoGuard:
		case a.timing.estimator == nil:
			a.timing = startTiming(c.scope.estimator())
		default:
			a.timing.others = append(a.timing.others, c.scope.estimator())
		}
	})
}

// own returns the charge in the innermost scope that is not shared. A refusal says nothing about the
// other requests that a shared scope counts.
func (a *admission) own() *charge {
	if !a.charged() || !a.scope.shared {
		return &a.charge
	}
	if i := slices.IndexFunc(a.outer, func(c charge) bool { return !c.scope.shared }); i >= 0 {
		return &a.outer[i]
	}
	return &a.charge
}

// endBackoff ends the back-off, if there is one.
func (a *admission) endBackoff() {
	a.eachCharge(func(c *charge) {
		if c.decision.Level > 0 {
			c.revision.quota.Passed(c.decision)
		}
	})
}

// zeroEstimate returns a Cost of zero in every estimated unit.
func (a *admission) zeroEstimate() Cost {
	cost := Cost{}
	a.eachRevision(func(rev *revision) {
		for u, unit := range rev.plan.Units() {
			if rev.plan.Estimated(u) {
				cost[unit] = 0
			}
		}
	})
	return cost
}

// listen lets an Observer receive how the request ends.
func (a *admission) listen(o *Observer) {
	if o.Answered != nil {
		a.listener = o
	}
}

// answered reports how the request has ended.
func (a *admission) answered(ctx context.Context, info AnsweredInfo) {
	if a.listener != nil {
		info.Policy = a.revision.policy.Name
		a.listener.answered(ctx, info)
	}
}

// reportAnswer reports a response, and what it contains if answer is not nil, after other callbacks.
func (a *admission) reportAnswer(ctx context.Context, status int, answer *answers.Answer, report *RefusalReport, others callbacks) {
	info := AnsweredInfo{Status: status, Report: report}
	if answer != nil {
		info.Kind, info.Reason = answer.Kind, answer.Reason
	}
	defer a.answered(ctx, info)
	others.run()
}

// A Permit is one admitted request. Its methods report what happens to the request.
//
// Until Arrived or Cancel the request is in flight: it counts as not yet received by the provider,
// for at most Policy.Guard. On a policy with Concurrency it also counts as open until Release or
// Cancel, however long that takes. Every Permit must be released or canceled.
//
// A request that was sent and got no response is released without Arrived. It may still arrive, so
// it stays in flight until Policy.Guard has passed. Therefore `defer p.Release()` is always right.
//
// Only the first call of each method has an effect, and only the first of Arrived, Passed and
// Refused. The methods of a nil Permit have none. A Permit is safe for concurrent use.
type Permit struct {
	admission
	ctx   context.Context // of Acquire, for Answered; nil if nobody receives it
	state atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted the request
	released                    // the request has ended
	settled                     // its actual cost is known
)

// start begins the use of a Permit that was charged.
func (p *Permit) start(ctx context.Context) *Permit {
	p.startTiming()
	if p.listener != nil {
		p.ctx = ctx
	}
	return p
}

// answered reports how the request has ended, with the values of the context of Acquire or TryAcquire.
func (p *Permit) answered(info AnsweredInfo) {
	if p.ctx != nil {
		p.admission.answered(context.WithoutCancel(p.ctx), info)
	}
}

// markOnce sets a mark and reports whether the mark was not set before.
func (p *Permit) markOnce(mark uint32) bool {
	return p != nil && p.state.Or(mark)&mark == 0
}

// Arrived reports that the response is in. The provider has counted the request by then, so its
// window runs from the call. Arrived does not block.
func (p *Permit) Arrived() {
	if p.markOnce(arrived) {
		p.arrived()
		p.answered(AnsweredInfo{})
	}
}

func (p *Permit) arrived() {
	p.timing.answered(0)
	p.admission.arrived()
}

// Passed reports that the response is in and that the provider served the request. It is like
// Arrived, and also ends the back-off that refusals have begun. It does not block.
func (p *Permit) Passed() {
	if p.markOnce(arrived) {
		p.endBackoff()
		p.arrived()
		p.answered(AnsweredInfo{})
	}
}

// Refused reports that the response is in and that the provider refused the request for lack of
// quota. It is like Arrived, and also pauses the quota for all callers, as a [Transport] does after a
// 429: for as long as the provider asked, or, if wait is zero or negative, for the time of the
// back-off. In nested limits the innermost quota pauses that is not Shared. With a shared store
// Refused blocks for one round trip. After an error the pause may hold for this process only.
func (p *Permit) Refused(ctx context.Context, wait time.Duration) error {
	if !p.markOnce(arrived) {
		return nil
	}
	p.timing.answered(0)
	answer := &answers.Answer{Refusal: answers.Refusal{Kind: answers.Limited, Delay: max(0, wait), Known: wait > 0}}
	var after callbacks
	err := p.pauseAfterRefusal(ctx, answer.Refusal, 0, &after)
	report := reportRefusal(ctx, &p.admission, nil, answer)
	p.admission.arrived()
	p.reportAnswer(ctx, 0, answer, report, after)
	return err
}

// Settle reports that the response is in, and what the request really cost, in the units that are
// Estimated. A unit that actual does not name cost its estimate. Settle returns an error, and
// reports nothing, if actual names any other unit or has a negative amount. It does not block.
func (p *Permit) Settle(actual Cost) error {
	if p == nil || p.revision == nil {
		return nil
	}
	if err := p.checkActual(actual); err != nil {
		return err
	}
	p.settleOnce(actual)
	return nil
}

func (p *Permit) settleOnce(actual Cost) {
	var after callbacks
	arrives := p.markOnce(arrived)
	if arrives {
		p.arrived()
	}
	if p.markOnce(settled) {
		p.settle(actual, &after)
	}
	defer after.run()
	if arrives {
		p.answered(AnsweredInfo{})
	}
}

// checkActual returns an error if actual names a unit that is not estimated, or a negative amount.
func (a *admission) checkActual(actual Cost) error {
	for unit, n := range actual {
		known := a.anyRevision(func(rev *revision) bool {
			u := slices.Index(rev.plan.Units(), unit)
			return u >= 0 && rev.plan.Estimated(u)
		})
		switch {
		case !known:
			return a.revision.errorf("cost of %q can't be settled: set Estimated in a tier of that unit", unit)
		case n < 0:
			return a.revision.errorf("cost of %q is %d: it must be at least 0", unit, n)
		}
	}
	return nil
}

// Release reports that the request has ended: the body of its response was read, or no response
// came. An estimate that was not settled becomes the cost. Release does not block.
func (p *Permit) Release() {
	if !p.markOnce(released) {
		return
	}
	defer p.leaveScopes()
	var after callbacks
	lost := p.markOnce(arrived)
	switch first := p.markOnce(settled); {
	case first && lost:
		p.unanswered()
	case first:
		p.settle(nil, &after)
	}
	p.release()
	if lost {
		p.answered(AnsweredInfo{Lost: true})
	}
	after.run()
}

// Cancel reports that the request was not sent, and refunds it. After Policy.Guard has passed,
// Cancel refunds only the place in a Concurrency tier and the amounts of Estimated units, because
// the limiter then takes the rest as counted by the provider. After Arrived, Settle or Release it
// does nothing. With a shared store Cancel blocks for at most one round trip; it returns the
// store's error.
func (p *Permit) Cancel(ctx context.Context) error {
	if p == nil || !p.state.CompareAndSwap(0, arrived|released|settled) {
		return nil
	}
	defer p.leaveScopes()
	err := p.refundCharges(ctx)
	p.admission.answered(ctx, AnsweredInfo{Unsent: true})
	return err
}

// actualCost returns the cost of a request: the reported amounts, or else the estimates.
func (c *compiledPolicy) actualCost(estimate []int64, reported Cost) []int64 {
	actual := slices.Clone(estimate)
	for u, unit := range c.plan.Units() {
		if n, ok := reported[unit]; ok && c.plan.Estimated(u) {
			actual[u] = min(max(0, n), maxActual)
		}
	}
	return actual
}
