package throttle

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Admitted is one admitted request: what it was charged in its scope and in those around
// it, the inner ones first. Each method runs through all of them.
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

// leave ends the use of the scopes, of which Groups drop only those that nobody uses.
func (a *admitted) leave() {
	a.scope.leave()
	for i := range a.outer {
		a.outer[i].scope.leave()
	}
}

// announce calls Policy.Alert for what the charge of this scope has crossed. If it
// panics the request is not sent.
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

// unanswered reports that the request was sent and no response will come.
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

// settle reports what the request has really cost, where that was an estimate: what actual
// names, or else the estimate. It follows arrived.
func (a *admitted) settle(actual Cost) {
	a.each(func(c *charge) {
		if c.terms.estimates {
			c.terms.quota.Settle(c.decision, c.cost, c.terms.actual(c.cost, actual), c.scope.alert)
		}
	})
}

// refund gives back the charge of a request that was not sent. It does not wait longer
// than the stores do: the caller's time may be over.
func (a *admitted) refund() { _ = a.giveBack(context.Background()) }

func (a *admitted) giveBack(ctx context.Context) error {
	var errs []error
	a.each(func(c *charge) { errs = append(errs, c.terms.quota.Return(ctx, c.decision, c.cost)) })
	return errors.Join(errs...)
}

// unhold lets charges land by themselves whose requests nobody will report. No response
// ends their probe: the next request probes.
func (a *admitted) unhold() {
	a.each(func(c *charge) {
		if c.terms.estimates || c.decision.Probe {
			c.terms.quota.Unanswered(c.decision, c.cost)
		}
	})
}

// landUnguarded lands what arrives the instant it is admitted, and was held only as long
// as it might be refunded. Only the response ends a probe.
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

// expired reports whether a reservation took so long to get that it can't be used any more.
func (a *admitted) expired() (any bool) {
	now := time.Now()
	a.each(func(c *charge) {
		r := c.decision.Reservation
		any = any || r != nil && r.Expired(now)
	})
	return any
}

// estimates reports whether the cost of the request is known only at its end.
func (a *admitted) estimates() bool { return a.some(func(t *terms) bool { return t.estimates }) }

// concurrent reports whether the request holds a place until its end.
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

// A Permit is one admitted request. Until Arrived or Cancel it is in flight: it counts as
// not yet received by the provider, for Policy.Guard at most. On a policy with Concurrency
// it holds its place until Release or Cancel, without a bound. Only the first call of each
// method does anything, and a nil Permit's methods do nothing. It is safe for concurrent
// use.
//
// A request that was sent and got no response is released without Arrived: it may still
// arrive, and counts as in flight until Guard has passed. So `defer p.Release()` is
// always right.
type Permit struct {
	admitted
	state atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted it
	released                    // it has ended
	settled                     // what it cost is known
)

// start begins what the Permit reports.
func (p *Permit) start() *Permit {
	p.leave()
	p.startTiming()
	return p
}

// first sets a mark and reports whether it was not set before.
func (p *Permit) first(mark uint32) bool {
	return p != nil && p.charged() && p.state.Or(mark)&mark == 0
}

// Arrived reports that the response is in, so that the provider has counted the
// request: its window runs from here.
func (p *Permit) Arrived() {
	if p.first(arrived) {
		p.timing.answered(0)
		p.admitted.arrived()
	}
}

// Settle reports that the response is in, and what the request has really cost in the
// units that are Estimated; one that is not named cost what was estimated. It does not
// block. An amount of any other unit is an error.
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

// settles refuses amounts that are no estimates.
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

// Release reports that the request has ended: the response's body was read, or no response
// came. What was not settled cost what was estimated.
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

// Cancel reports that nothing was sent, and gives back what was charged. Once Guard
// has passed it gives back only the place of a Concurrency tier and what was Estimated:
// by then the limiter has to take the rest for counted. After Arrived, Settle or Release
// it does nothing. With a shared store it blocks for one round trip at most.
func (p *Permit) Cancel(ctx context.Context) error {
	if p == nil || !p.charged() || !p.state.CompareAndSwap(0, arrived|released|settled) {
		return nil
	}
	return p.giveBack(ctx)
}

// actual returns what a request cost: what was reported, or else its estimate.
func (c *compiled) actual(estimate []int64, reported Cost) []int64 {
	actual := slices.Clone(estimate)
	for u, unit := range c.plan.Units() {
		if n, ok := reported[unit]; ok && c.plan.Estimated(u) {
			actual[u] = min(max(0, n), mostActual)
		}
	}
	return actual
}
