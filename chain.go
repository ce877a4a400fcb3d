package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// Within returns a Limiter of the same quota inside another: an endpoint's limit inside its
// account's, or an account's limit inside an IP address's. A request is admitted by all of the
// quotas, or charged in none. If a quota would lie inside itself, every call of the returned
// Limiter returns an error. Within does not block and is safe for concurrent use.
//
// Callers that wait for the inner quota do not take places in the queue of the outer one: only the
// first of them joins it, when the inner quota has room. Therefore a tenant that has used up its
// own quota does not delay others while the shared quota is idle. The callers of the returned
// Limiter are admitted in their order. Each returned Limiter has a queue of its own, so call Within
// once and keep the result. Its Status has the tiers of all quotas, the inner ones first. Its
// Pause, Resume and SetPolicy act on the inner quota only.
//
// With stores on a server an admission takes two or more round trips, one after the other. If an
// outer scope has charged a request that another scope then refuses, the charge is refunded.
func (l *Limiter) Within(outer *Limiter) *Limiter {
	switch {
	case l.err != nil:
		return l
	case outer.err != nil:
		return outer
	}
	for in := l; in != nil; in = in.outer {
		for out := outer; out != nil; out = out.outer {
			if in.isSameQuota(out) {
				return &Limiter{err: in.terms().errorf("Within: the quota would lie inside itself: name another outer Limiter")}
			}
		}
	}
	nested := l.handle()
	if nested.outer = outer; l.outer != nil {
		nested.outer = l.outer.Within(outer)
	}
	return nested
}

func (l *Limiter) isSameQuota(o *Limiter) bool {
	if l.group != nil || o.group != nil {
		return l.group == o.group && l.key == o.key
	}
	return l.scope.Load() == o.scope.Load()
}

// handle returns another Limiter of the same quota.
func (l *Limiter) handle() *Limiter {
	h := &Limiter{group: l.group, key: l.key}
	h.scope.Store(l.scope.Load())
	return h
}

// admitThrough admits a request in this scope and in all outer ones.
func (l *Limiter) admitThrough(ctx context.Context, s *scope, t *terms, d demand, a *admitted) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.reserves && l.joins() {
		if cost, err := t.compile(&d); err == nil && !t.isFree(cost) {
			return l.join(ctx, s, t, d, a)
		}
	}
	giveUp, err := s.giveUp(t, &d)
	if err != nil {
		return err
	}
	if _, err = l.tryThrough(ctx, s, t, d, a); err != nil || a.charged() {
		return err
	}
	if err := l.outer.foresee(ctx, &d, giveUp); err != nil {
		return err
	}
	var outer []charge
	a.charge, err = l.own.wait(ctx, s, waitRequest{
		demand: d, giveUp: giveUp, config: l.config, explain: l.explain,
		ask: func(ctx context.Context, t *terms, r store.Request) (decision store.Decision, err error) {
			if d.since.IsZero() { // its place in the outer queues, also when it asks again
				d.since = time.Now()
			}
			decision, outer, err = l.ask(ctx, t, r, d)
			return decision, err
		},
	})
	a.outer = outer
	return err
}

// tryThrough asks for an admission without waiting in any scope. If the request is not admitted
// nothing is charged. The decision contains the reason unless other callers wait.
func (l *Limiter) tryThrough(ctx context.Context, s *scope, t *terms, d demand, a *admitted) (store.Decision, error) {
	cost, err := t.compile(&d)
	if err != nil || l.own.len() > 0 && !t.isFree(cost) {
		return store.Decision{Tier: -1, Wait: forever}, err
	}
	r := store.Request{Cost: cost, Held: d.held, Guard: s.guardOf(&d, t), WaitSpec: t.fresh(ctx)}
	decision, charges, err := l.step(ctx, t, r, d, func(around *admitted) error {
		_, err := l.outer.tryNow(ctx, d.refund(), around)
		return err
	})
	if err == nil && decision.Verdict == store.Admitted {
		a.charge, a.outer = charge{s, t, decision, cost}, charges
		return decision, nil
	}
	return decision, t.judge(ctx, decision, err, d.now)
}

// ask asks for the first caller in the queue of a nested Limiter, under the terms of its request.
// It waits in the queues of the outer scopes, but not past the caller's deadline.
func (l *Limiter) ask(ctx context.Context, t *terms, r store.Request, d demand) (store.Decision, []charge, error) {
	for o := l; o != nil; o = o.outer {
		if around := o.terms(); around.closed {
			return store.Decision{}, nil, &queue.Final{Err: around.refuse(ErrClosed, -1, 0)}
		}
	}
	limited, cancel := ctx, func() {}
	if r.MaxWait < forever {
		limited, cancel = context.WithTimeout(ctx, r.MaxWait)
	}
	defer cancel()
	decision, outer, err := l.step(limited, t, r, d, func(around *admitted) error {
		return l.outer.admit(limited, d.refund(), around)
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return store.Decision{Tier: -1}, nil, nil // the queue then refuses the caller as late
	}
	return decision, outer, err
}

// step asks whether this scope is ready, charges the outer scopes with chargeOuter, and then
// charges this scope. If another caller was faster here, the outer charges are refunded.
func (l *Limiter) step(ctx context.Context, t *terms, r store.Request, d demand, chargeOuter func(*admitted) error) (store.Decision, []charge, error) {
	dry := r
	dry.WaitSpec = &store.WaitSpec{DryRun: true}
	if r.WaitSpec != nil {
		dry.YieldFor, dry.Headroom = r.YieldFor, r.Headroom
	}
	decision, err := t.quota.TryAcquire(ctx, dry)
	if err != nil || decision.Verdict != store.Ready {
		return decision, nil, err
	}
	var around admitted
	if err := chargeOuter(&around); err != nil {
		return store.Decision{}, nil, &queue.Final{Err: err}
	}
	if !around.charged() {
		return store.Decision{Tier: -1, Wait: forever}, nil, nil
	}
	if !d.held && around.concurrent() { // an outer policy has changed since the check
		around.refund()
		around.leave()
		return store.Decision{}, nil, &queue.Final{Err: around.terms.refuse(ErrNeedsPermit, -1, 0)}
	}
	decision, err = t.quota.TryAcquire(ctx, r)
	if admitted := err == nil && decision.Verdict == store.Admitted; !admitted || around.expired() {
		around.refund()
		around.leave()
		if admitted { // the outer reservations have ended
			_ = t.quota.Return(context.WithoutCancel(ctx), decision, r.Cost)
			decision = store.Decision{Tier: -1}
		}
		return decision, nil, err
	}
	if !d.held {
		around.unhold()
	}
	if !d.refundable {
		around.landUnguarded()
	}
	return decision, append([]charge{around.charge}, around.outer...), nil
}

// refund returns the demand as one whose charge can be refunded.
func (d demand) refund() demand {
	d.held, d.refundable = true, true
	return d
}

// foresee returns the refusal of a request that no wait in the outer scopes admits in time.
func (l *Limiter) foresee(ctx context.Context, d *demand, giveUp time.Time) error {
	if deadline, ok := ctx.Deadline(); ok && (giveUp.IsZero() || deadline.Before(giveUp)) {
		giveUp = deadline
	}
	for ; l != nil; l = l.outer {
		s, err := l.enter()
		if err != nil {
			return err
		}
		err = s.foresee(ctx, d, giveUp)
		s.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *scope) foresee(ctx context.Context, d *demand, giveUp time.Time) error {
	var refused *queue.Final
	t, decision, err := s.terms.Load(), store.Decision{}, error(nil)
	if t.reserves && !t.hasBudget() {
		if _, err := t.compile(d); err != nil {
			return err
		}
	} else {
		t, decision, err = s.tryDry(ctx, d)
	}
	if errors.As(err, &refused) {
		return refused.Err
	}
	if err == nil && (decision.Verdict == store.Closed || decision.Verdict == store.Exhausted) {
		return t.refused(decision)
	}
	if giveUp.IsZero() {
		return nil
	}
	late, err := s.late(ctx, d)
	if err == nil && time.Until(giveUp) < late.Wait {
		err = late
	}
	return err
}

// config returns the configuration of the queue of a nested Limiter.
func (l *Limiter) config(t *terms) queue.Config {
	c := l.scope.Load().config(t)
	nested := chained{t.quota, t.plan, l}
	if c.Quota = nested; l.joins() {
		c.Quota = joined{nested, t.quota.(store.Joiner)}
	}
	return c
}

// A chained is the inner quota of a nested Limiter. Its watchers also watch the outer quotas, whose
// pauses delay the same callers.
type chained struct {
	store.Quota
	plan    *algorithms.Plan // the quota's plan, whose units the queue's costs are in
	limiter *Limiter
}

// A joined is a chained quota that reserves ahead; see Limiter.join.
type joined struct {
	chained
	store.Reserver
}

func (c chained) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	own := &c.limiter.own
	stops := []func(){c.Quota.Watch(changed), c.limiter.scope.Load().keep(own)}
	for l := c.limiter.outer; l != nil; l = l.outer {
		s := l.scope.Load()
		stops = append(stops, s.keep(own), s.adopt().quota.Watch(func(change store.Change, left time.Duration) {
			c.limiter.outerChanged(s.terms.Load(), change, left)
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// outerChanged handles a change of an outer quota: a pause refuses the callers that it makes late,
// a ban refuses all, and a new plan configures the queue again.
func (l *Limiter) outerChanged(t *terms, change store.Change, left time.Duration) {
	q := l.own.queue.Load()
	switch {
	case q == nil:
	case change == store.Shut:
		q.Pause(time.Now().Add(left), true, t.refusal(&queue.Refusal{Reason: queue.Banned, Tier: -1, Wait: left}))
	case change == store.Replanned:
		l.own.renew(l.scope.Load(), l.config)
	case change == store.Slowed:
		q.Pause(time.Now().Add(left), false, t.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1, Wait: left}))
	}
}

// Forecast returns a forecast over all scopes: a request is admitted when the last of them admits
// it. It does not contain the callers that wait for an outer quota in other queues. It numbers the
// tiers from the inner scope outward.
func (c chained) Forecast() store.Forecast {
	f := chainForecast{plan: c.plan}
	f.add(c.Quota, c.plan)
	for l := c.limiter.outer; l != nil; l = l.outer {
		t := l.terms()
		f.add(t.quota, t.plan)
	}
	return &f
}

// A chainForecast combines the forecasts of several scopes. It translates costs to the outer scopes
// by the names of their units, and leaves out units that only outer scopes count.
type chainForecast struct {
	plan   *algorithms.Plan // of the inner scope
	scopes []scopeForecast
	tiers  int
}

type scopeForecast struct {
	store.Forecast
	plan *algorithms.Plan
	tier int // the number of the scope's first tier
}

func (f *chainForecast) add(q store.Quota, plan *algorithms.Plan) {
	if q, ok := q.(store.Forecaster); ok {
		f.scopes = append(f.scopes, scopeForecast{q.Forecast(), plan, f.tiers})
	}
	f.tiers += len(plan.Tiers())
}

func (f *chainForecast) Next(r store.Request) (at time.Duration, tier int) {
	cost := r.Cost
	return f.latest(func(s scopeForecast) (time.Duration, int) {
		r.Cost = s.plan.Translate(f.plan, cost)
		return s.Next(r)
	})
}

func (f *chainForecast) Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int) {
	return f.latest(func(s scopeForecast) (time.Duration, int) {
		return s.Total(s.plan.Translate(f.plan, ahead), s.plan.Translate(f.plan, cost), headroom)
	})
}

func (f *chainForecast) latest(ask func(scopeForecast) (time.Duration, int)) (at time.Duration, tier int) {
	tier = -1
	for _, s := range f.scopes {
		if e, decides := ask(s); e > at {
			at, tier = e, -1
			if decides >= 0 {
				tier = s.tier + decides
			}
		}
	}
	return at, tier
}

// explain returns the caller's error for an error of the queue of a nested Limiter, under the
// policy of the scope whose tier decides.
func (l *Limiter) explain(t *terms, err error) error {
	var r *queue.Refusal
	if !errors.As(err, &r) || r.Tier < len(t.plan.Tiers()) {
		return t.explain(err)
	}
	own := *r
	for l.outer != nil && own.Tier >= len(t.plan.Tiers()) {
		own.Tier -= len(t.plan.Tiers())
		l = l.outer
		t = l.terms()
	}
	if own.Tier >= len(t.plan.Tiers()) { // the policy has changed since
		own.Tier = -1
	}
	return t.refusal(&own)
}
