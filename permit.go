package throttle

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// An admitted is one admitted request: its charges in the scope of its Limiter and in the outer
// ones, the inner ones first. Each method acts on all of them.
type admitted struct {
	charge
	outer  []charge
	timing timing
}

func (a *admitted) charged() bool { return a.scope != nil }

// each calls f for each charge.
func (a *admitted) each(f func(*charge)) {
	if !a.charged() {
		return
	}
	f(&a.charge)
	for i := range a.outer {
		f(&a.outer[i])
	}
}

// leave ends the use of the scopes. A Group drops only scopes that are not in use.
func (a *admitted) leave() {
	a.scope.leave()
	for i := range a.outer {
		a.outer[i].scope.leave()
	}
}

// announce calls Policy.Alert for the thresholds that the charge of this scope has crossed. If
// Alert panics, the charges are refunded and the request is not sent.
func (a *admitted) announce() {
	if a.decision.Crossed == nil {
		return
	}
	done := false
	defer func() {
		if !done {
			a.refund()
			a.leave()
		}
	}()
	a.terms.alert(a.decision.Crossed)
	done = true
}

func (c *charge) arrived() { c.terms.quota.Arrived(c.decision, c.cost) }

// arrived reports that the response is in.
func (a *admitted) arrived() { a.each((*charge).arrived) }

// unanswered reports that the request was sent and that no response will come.
func (a *admitted) unanswered() {
	a.each(func(c *charge) { c.terms.quota.Unanswered(c.decision, c.cost) })
}

// release reports that the request has ended.
func (a *admitted) release() {
	a.each(func(c *charge) {
		if c.terms.concurrent {
			c.terms.quota.Release(c.decision, c.cost)
		}
	})
}

// settle reports the actual cost of the request in the estimated units. A unit that actual does not
// name cost its estimate. It is called after arrived.
func (a *admitted) settle(actual Cost) {
	a.each(func(c *charge) {
		if c.terms.estimates {
			c.terms.quota.Settle(c.decision, c.cost, c.terms.actual(c.cost, actual), c.scope.alert)
		}
	})
}

// refund gives back the charges of a request that was not sent. It uses no context of the caller,
// which may have ended, and waits no longer than the stores do.
func (a *admitted) refund() { _ = a.giveBack(context.Background()) }

// giveBack gives back the charges of a request that was not sent.
func (a *admitted) giveBack(ctx context.Context) error {
	var errs []error
	a.each(func(c *charge) { errs = append(errs, c.terms.quota.Return(ctx, c.decision, c.cost)) })
	return errors.Join(errs...)
}

// unhold lets the charges land by themselves, for a request whose caller will not report its
// response. Since no response ends a probe either, the next request probes.
func (a *admitted) unhold() {
	a.each(func(c *charge) {
		if c.terms.estimates || c.decision.Probe {
			c.terms.quota.Unanswered(c.decision, c.cost)
		}
	})
}

// landUnguarded lands the charges under policies without a guard. Their requests arrive when they
// are admitted, and were in flight only while they could still be refunded. A probe still ends with
// the response.
func (a *admitted) landUnguarded() {
	a.each(func(c *charge) {
		if c.terms.plan.Guard() == 0 && !c.terms.auto {
			landed := c.decision
			landed.Probe = false
			c.terms.quota.Arrived(landed, c.cost)
			c.decision.Flight = algorithms.Landed
		}
	})
}

// expired reports whether a reservation has ended, because making the others took too long.
func (a *admitted) expired() (any bool) {
	now := time.Now()
	a.each(func(c *charge) {
		r := c.decision.Reservation
		any = any || r != nil && r.Expired(now)
	})
	return any
}

// estimates reports whether some unit of the cost is known only at the end of the request.
func (a *admitted) estimates() bool { return a.some(func(t *terms) bool { return t.estimates }) }

// concurrent reports whether the request occupies a Concurrency tier until its end.
func (a *admitted) concurrent() bool { return a.some(func(t *terms) bool { return t.concurrent }) }

func (a *admitted) some(has func(*terms) bool) (any bool) {
	a.each(func(c *charge) { any = any || has(c.terms) })
	return any
}

// startTiming starts the timing of the request for each scope that learns its guard.
func (a *admitted) startTiming() {
	a.each(func(c *charge) {
		switch {
		case !c.terms.auto:
		case a.timing.estimator == nil:
			a.timing = startTiming(c.scope.estimator())
		default:
			a.timing.others = append(a.timing.others, c.scope.estimator())
		}
	})
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
// Only the first call of each method has an effect, and the methods of a nil Permit have none. A
// Permit is safe for concurrent use.
type Permit struct {
	admitted
	state atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted the request
	released                    // the request has ended
	settled                     // its actual cost is known
)

// start begins the use of a Permit that was charged.
func (p *Permit) start() *Permit {
	p.leave()
	p.startTiming()
	return p
}

// first sets a mark and reports whether the mark was not set before.
func (p *Permit) first(mark uint32) bool {
	return p != nil && p.charged() && p.state.Or(mark)&mark == 0
}

// Arrived reports that the response is in. The provider has counted the request by then, so its
// window runs from the call. Arrived does not block.
func (p *Permit) Arrived() {
	if p.first(arrived) {
		p.timing.answered(0)
		p.admitted.arrived()
	}
}

// Settle reports that the response is in, and what the request really cost, in the units that are
// Estimated. A unit that actual does not name cost its estimate. Settle returns an error, and
// reports nothing, if actual names any other unit or has a negative amount. It does not block.
func (p *Permit) Settle(actual Cost) error {
	if p == nil || !p.charged() {
		return nil
	}
	if err := p.settles(actual); err != nil {
		return err
	}
	p.Arrived()
	if p.first(settled) {
		p.settle(actual)
	}
	return nil
}

// settles returns an error if actual names a unit that is not estimated, or a negative amount.
func (a *admitted) settles(actual Cost) error {
	for unit, n := range actual {
		known := a.some(func(t *terms) bool {
			u := slices.Index(t.plan.Units(), unit)
			return u >= 0 && t.plan.Estimated(u)
		})
		switch {
		case !known:
			return a.terms.errorf("cost of %q can't be settled: set Estimated in a tier of that unit", unit)
		case n < 0:
			return a.terms.errorf("cost of %q is %d: it must be at least 0", unit, n)
		}
	}
	return nil
}

// Release reports that the request has ended: the body of its response was read, or no response
// came. An estimate that was not settled becomes the cost. Release does not block.
func (p *Permit) Release() {
	if !p.first(released) {
		return
	}
	switch {
	case p.first(arrived):
		if p.first(settled) {
			p.unanswered()
		}
	case p.first(settled):
		p.settle(nil)
	}
	p.release()
}

// Cancel reports that the request was not sent, and refunds it. After Policy.Guard has passed,
// Cancel refunds only the place in a Concurrency tier and the amounts of Estimated units, because
// the limiter then takes the rest as counted by the provider. After Arrived, Settle or Release it
// does nothing. With a shared store Cancel blocks for at most one round trip; it returns the
// store's error.
func (p *Permit) Cancel(ctx context.Context) error {
	if p == nil || !p.charged() || !p.state.CompareAndSwap(0, arrived|released|settled) {
		return nil
	}
	return p.giveBack(ctx)
}

// actual returns the cost of a request: the reported amounts, or else the estimates.
func (c *compiled) actual(estimate []int64, reported Cost) []int64 {
	actual := slices.Clone(estimate)
	for u, unit := range c.plan.Units() {
		if n, ok := reported[unit]; ok && c.plan.Estimated(u) {
			actual[u] = min(max(0, n), mostActual)
		}
	}
	return actual
}
