package admit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// admitThrough admits a request in this scope and in all outer ones.
func (p *Path) admitThrough(ctx context.Context, s *Scope, rev *Revision, d Demand, a *Admission) (err error) {
	if rev.reserves {
		return p.reserveThrough(ctx, s, rev, d, a)
	}
	defer func() { err = d.withBound(ctx, err) }()
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return err
	}
	d.outerBound = d.earliest(ctx)
	if !d.chooses() {
		if _, err = p.tryThrough(ctx, s, rev, d, a); err != nil || a.Charged() {
			return err
		}
	}
	if err := p.outer.refuseIfLate(ctx, &d, giveUp); err != nil {
		return err
	}
	around, err := p.enterOuter() // whose changes concern the caller while it waits
	if err != nil {
		return err
	}
	defer leaveAll(around)
	if d.since.IsZero() { // its place in the outer queues, also when it asks again
		d.since = time.Now()
	}
	if d.waited == nil {
		d.waited = make(map[*Scope]time.Duration)
	}
	r, outer, err := p.waitThrough(ctx, s, &d, giveUp)
	if err != nil {
		return err
	}
	a.Charge, a.outer = s.charged(r), outer
	return nil
}

// waitThrough waits in the queue of a nested Path, and in those around it when its turn comes.
func (p *Path) waitThrough(ctx context.Context, s *Scope, d *Demand, giveUp time.Time) (r queue.Result, outer []Charge, err error) {
	overtaken := false
	r, err = p.ownQueue.wait(ctx, s, &waitRequest{
		demand: d, giveUpAt: giveUp, config: p.queueConfig, explain: p.explain,
		ask: func(ctx context.Context, t queue.Turn) (r queue.Result, err error) {
			if d.Record != nil {
				d.Record.Undecided() // an outer scope decides after this one
			}
			around := outerWait{aside: t.StepAside}
			if overtaken {
				around.patience = time.Since(d.since)
			}
			defer around.end()
			d.Queued = around.begin
			r, outer, err = p.askThrough(ctx, t, *d)
			overtaken = overtaken || around.began && err == nil && r.Verdict != store.Admitted
			return r, err
		},
	})
	return r, outer, err
}

// An outerWait is the wait of a caller of a nested Path in the queue of an outer quota, in the order
// of that quota. Meanwhile other callers of the inner quota go ahead if that has room for them too, so
// that they take their places in the outer quotas. If they overtake the caller, so that the inner
// quota has no room for it when the outer one has, the caller keeps its place in the inner quota the
// next time, for as long as it has waited by then: else smaller requests could overtake it forever.
type outerWait struct {
	aside    func() // see queue.Turn
	patience time.Duration
	began    bool
	timer    *time.Timer
}

func (w *outerWait) begin() {
	switch {
	case w.began:
	case w.patience == 0:
		w.aside()
	default:
		w.timer = time.AfterFunc(w.patience, w.aside)
	}
	w.began = true
}

func (w *outerWait) end() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// tryThrough asks for an admission without waiting in any scope. If the request is not admitted
// nothing is charged. The decision contains the reason unless other callers wait. If it is that of an
// outer scope, a.Revision is the revision of that scope.
func (p *Path) tryThrough(ctx context.Context, s *Scope, rev *Revision, d Demand, a *Admission) (store.Decision, error) {
	cost, err := rev.costOf(&d)
	if err != nil || p.Waiting() > 0 && !rev.isFree(cost) {
		return store.Decision{Tier: -1, Wait: store.Forever}, err
	}
	r := store.Request{Cost: cost, Held: d.Held, Guard: s.guardFor(&d, rev), WaitSpec: rev.initialWaitSpec(ctx)}
	var reason *store.Decision
	got, charges, err := p.chargeThrough(ctx, queue.Turn{Request: r, Owner: rev}, d, func(outer *Admission) error {
		decision, err := p.outer.tryNow(ctx, d.asRefundable(), outer)
		if err == nil && !outer.Charged() {
			reason, a.Revision = &decision, outer.Revision
		}
		return err
	})
	if reason != nil {
		return *reason, nil
	}
	if err == nil && got.Verdict == store.Admitted {
		a.Charge, a.outer = s.charged(got), charges
		return got.Decision, nil
	}
	return got.Decision, rev.decisionError(ctx, got.Decision, err, d.NoWait)
}

// askThrough asks for the first caller in the queue of a nested Path, under the revision of its
// request. It waits in the queues of the outer scopes, but not past the caller's deadline.
func (p *Path) askThrough(ctx context.Context, t queue.Turn, d Demand) (queue.Result, []Charge, error) {
	for o := p; o != nil; o = o.outer {
		if outer := o.revision(); outer.closed {
			return queue.Result{}, nil, &queue.Final{Err: outer.refuse(queue.Closed, -1, 0)}
		}
	}
	limited, cancel := ctx, func() {}
	if t.MaxWait < store.Forever {
		limited, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	r, outer, err := p.chargeThrough(limited, t, d, func(outer *Admission) error {
		err := p.outer.admit(limited, d.asRefundable(), outer)
		if t.Away != nil && hasReason(err, queue.Full) {
			return nil // it waits here until one of those has left the outer queue
		}
		return err
	})
	if r, ok := banned(err); ok && d.chooses() { // it sits the ban out, while other members may admit it
		return queue.Result{Decision: store.Decision{Verdict: store.Closed, Tier: -1, Wait: r.Wait}}, nil, nil
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return queue.Result{Decision: store.Decision{Tier: -1}}, nil, nil // the queue then refuses the caller as late
	}
	return r, outer, err
}

// hasReason reports whether an error is a refusal for a reason.
func hasReason(err error, reason queue.Reason) bool {
	e, ok := err.(*Refusal)
	return ok && e.Reason == reason
}

// banned returns the refusal of an outer scope that is banned.
func banned(err error) (r *Refusal, ok bool) {
	var final *queue.Final
	if errors.As(err, &final) && hasReason(final.Err, queue.Banned) {
		return final.Err.(*Refusal), true
	}
	return nil, false
}

// notYet is the result of a request that waits until another caller comes back, as for a probe.
var notYet = queue.Result{Decision: store.Decision{Tier: store.Probing, Wait: store.Forever}}

// overtaken is the decision on a request that another caller has overtaken. It asks again in its turn.
var overtaken = store.Decision{Tier: store.Probing}

// chargeThrough asks whether this scope is ready for the request and for those that are away, charges
// the outer scopes with chargeOuter, and then charges this scope. If another caller was faster here,
// the outer charges are refunded.
func (p *Path) chargeThrough(ctx context.Context, t queue.Turn, d Demand, chargeOuter func(*Admission) error) (queue.Result, []Charge, error) {
	rev, dry := t.Owner.(*Revision), t.Request
	if t.Away != nil {
		if dry.Cost = sum(t.Cost, t.Away); rev.Plan.TooLarge(dry.Cost) >= 0 {
			return notYet, nil, nil // until one of them comes back
		}
	}
	decision, err := rev.askDry(ctx, t, dry)
	if err != nil || decision.Verdict != store.Ready {
		return queue.Result{Decision: decision}, nil, err
	}
	var outer Admission
	if err := chargeOuter(&outer); err != nil {
		return queue.Result{}, nil, &queue.Final{Err: err}
	}
	if !outer.Charged() {
		return notYet, nil, nil
	}
	if !d.Held && outer.Concurrent() { // an outer policy has changed since the check
		outer.drop()
		return queue.Result{}, nil, &queue.Final{Err: outer.Revision.refuse(NeedsPermit, -1, 0)}
	}
	return rev.chargeInside(ctx, t, d, &outer)
}

// chargeInside charges this scope for a request that the outer scopes have charged.
func (rev *Revision) chargeInside(ctx context.Context, t queue.Turn, d Demand, outer *Admission) (queue.Result, []Charge, error) {
	decision, err := overtaken, ctx.Err()
	if err == nil && (t.Overtakes == nil || !t.Overtakes()) { // else the caller asks again in its turn
		decision, err = d.option.TryAcquire(ctx, rev.quota, fastOf(rev.quota) == nil, t.Request)
	}
	if admitted := err == nil && decision.Verdict == store.Admitted; !admitted || outer.expired() {
		if t.StepBack != nil {
			t.StepBack()
		}
		outer.drop()
		if admitted { // the outer reservations have ended
			_ = rev.quota.Return(context.WithoutCancel(ctx), decision, t.Cost)
			d.option.GiveBack()
			decision = store.Decision{Tier: -1}
		}
		return queue.Result{Decision: decision}, nil, err
	}
	if !d.Held {
		outer.expectNoReport()
	}
	if !d.refundable {
		outer.landUnguarded()
	}
	return queue.Result{Decision: decision, Cost: t.Cost, Owner: rev}, append([]Charge{outer.Charge}, outer.outer...), nil
}

// askDry asks whether the quota is ready for a request. A budget that is exhausted by the requests that are
// away is not ready yet.
func (rev *Revision) askDry(ctx context.Context, t queue.Turn, dry store.Request) (store.Decision, error) {
	if dry.WaitSpec = &dryRun; t.Leaves() > 0 {
		dry.WaitSpec = &store.WaitSpec{DryRun: true, YieldFor: t.YieldFor, Headroom: t.Headroom}
	}
	decision, err := rev.quota.TryAcquire(ctx, dry)
	if err == nil && decision.Verdict == store.Exhausted && t.Away != nil { // unless those that are away leave
		dry.Cost = t.Cost
		if d, err := rev.quota.TryAcquire(ctx, dry); err == nil && d.Verdict == store.Ready {
			return notYet.Decision, nil
		}
	}
	return decision, err
}

func sum(a, b []int64) []int64 {
	total := slices.Clone(a)
	for i, n := range b {
		total[i] += n
	}
	return total
}

// refuseIfLate returns the refusal of a request that no wait in the outer scopes admits in time, or
// nil.
func (p *Path) refuseIfLate(ctx context.Context, d *Demand, giveUp time.Time) error {
	giveUp = earlierDeadline(ctx, giveUp)
	for ; p != nil; p = p.outer {
		s, err := p.Enter()
		if err != nil {
			return err
		}
		err = s.refuseIfLate(ctx, d, giveUp)
		if err == nil && !giveUp.IsZero() && p.outer != nil && p.ownQueue.len() > 0 {
			var late error
			_, late, err = p.lateInOwnQueue(ctx, s, d, giveUp)
			if e, ok := late.(*Refusal); ok {
				e.Bound = d.earliest(ctx)
				err = e
			}
		}
		s.Leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// lateInOwnQueue is lateIn for the queue of this Path's callers, which lies inside others.
func (p *Path) lateInOwnQueue(ctx context.Context, s *Scope, d *Demand, giveUp time.Time) (o outlook, late, err error) {
	o, refusal, err := p.ownQueue.forecast(ctx, s, d, giveUp, p.queueConfig)
	if refusal != nil && refusal.Reason == queue.Late {
		late = p.explain(o.revision, refusal)
	}
	if err == nil {
		o.revision, o.tier = p.decider(o.revision, o.tier)
	}
	return o, late, err
}

// queueConfig returns the configuration of the queue of a nested Path.
func (p *Path) queueConfig(rev *Revision) queue.Config {
	c := p.scope.Load().queueConfig(rev)
	c.Quota, c.Fast = chain{rev.quota, rev.Plan, p}, nil
	return c
}

// A chain is what the queue of a nested Path asks: the inner quota. Its watchers also watch the outer
// quotas, whose pauses delay the same callers.
type chain struct {
	quota store.Quota
	plan  *algorithms.Plan // the quota's plan, whose units the queue's costs are in
	path  *Path
}

func (c chain) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	return c.quota.TryAcquire(ctx, r)
}

func (c chain) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	own := &c.path.ownQueue
	told := own.follow(c.path.scope.Load(), c.path.queueConfig)
	stops := []func(){c.quota.Watch(changed), c.path.scope.Load().track(told)}
	for p := c.path.outer; p != nil; p = p.outer {
		s := p.scope.Load()
		stops = append(stops, s.track(told), s.adoptSuccessor().quota.Watch(func(change store.Change, left time.Duration) {
			c.path.outerChanged(own, c.path.queueConfig, s.current.Load(), change, left)
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
func (p *Path) outerChanged(own *waitQueue, config func(*Revision) queue.Config, rev *Revision, change store.Change, left time.Duration) {
	q := own.made.Load()
	switch {
	case q == nil:
	case change == store.Shut:
		q.Pause(time.Now().Add(left), true, &queue.Final{Err: rev.refusal(&queue.Refusal{Reason: queue.Banned, Tier: -1, Wait: left})})
	case change == store.Replanned:
		own.reconfigure(p.scope.Load(), config)
	case change == store.Eased:
		q.DropForecast()
	case change == store.Slowed:
		q.Pause(time.Now().Add(left), false, &queue.Final{Err: rev.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1, Wait: left})})
	}
}

// Forecast returns a forecast over all scopes: a request is admitted when the last of them admits
// it. It does not contain the callers that wait for an outer quota in other queues. It numbers the
// tiers from the inner scope outward.
func (c chain) Forecast() store.Forecast {
	f := new(chainForecast)
	add := func(q store.Quota, plan *algorithms.Plan, headroom int) {
		f.add(q, plan, headroom, func(cost []int64) []int64 { return plan.Translate(c.plan, cost) })
	}
	add(c.quota, c.plan, c.path.revision().Headroom)
	for p := c.path.outer; p != nil; p = p.outer {
		rev := p.revision()
		add(rev.quota, rev.Plan, 0) // its headroom ends when a request has aged in its queue
	}
	return f
}

// Soonest makes the assumptions of Forecast.
func (c chain) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	p, rev, first := c.path, c.path.revision(), 0
	wait, tier = c.quota.Soonest(cost, min(headroom, int64(rev.Headroom)))
	for first += len(c.plan.Tiers()); p.outer != nil; first += len(rev.Plan.Tiers()) {
		p = p.outer
		rev = p.revision()
		if e, decides := rev.quota.Soonest(rev.Plan.Translate(c.plan, cost), 0); e > wait {
			if wait, tier = e, -1; decides >= 0 {
				tier = first + decides
			}
		}
	}
	return wait, tier
}

// A chainForecast combines the forecasts of several scopes. It translates costs to the outer scopes
// by the names of their units, and leaves out units that only outer scopes count.
type chainForecast struct {
	scopes []scopeForecast
	tiers  int
}

type scopeForecast struct {
	store.Forecast
	costOf    func([]int64) []int64 // returns the part of a cost that the scope counts
	headroom  int64                 // the percentage that Batch requests leave in the scope
	firstTier int                   // the number of the scope's first tier
}

func (f *chainForecast) add(q store.Quota, plan *algorithms.Plan, headroom int, costOf func([]int64) []int64) {
	if own := q.Forecast(); own != nil {
		f.scopes = append(f.scopes, scopeForecast{own, costOf, int64(headroom), f.tiers})
	}
	f.tiers += len(plan.Tiers())
}

func (f *chainForecast) Next(r store.Request) (at time.Duration, tier int) {
	cost := r.Cost
	return f.latest(func(s scopeForecast) (time.Duration, int) {
		r.Cost = s.costOf(cost)
		return s.Next(r)
	})
}

func (f *chainForecast) Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int) {
	return f.latest(func(s scopeForecast) (time.Duration, int) {
		return s.Total(s.costOf(ahead), s.costOf(cost), min(headroom, s.headroom))
	})
}

func (f *chainForecast) latest(ask func(scopeForecast) (time.Duration, int)) (at time.Duration, tier int) {
	tier = -1
	for _, s := range f.scopes {
		if e, decides := ask(s); e > at {
			at, tier = e, -1
			if decides >= 0 {
				tier = s.firstTier + decides
			}
		}
	}
	return at, tier
}

// explain returns the caller's error for an error of the queue of a nested Path, under the
// policy of the scope whose tier decides.
func (p *Path) explain(rev *Revision, err error) error {
	var r *queue.Refusal
	if !errors.As(err, &r) || r.Tier < len(rev.Plan.Tiers()) {
		return rev.explain(err)
	}
	own := *r
	rev, own.Tier = p.decider(rev, r.Tier)
	if own.Reason == queue.Banned {
		own.Tier = -1
	}
	return rev.refusal(&own)
}

// decider returns the revision whose tier decides, of those of all scopes that a chainForecast numbers,
// and its index there. The index is -1 if no tier decides, or if the policy has changed since.
func (p *Path) decider(rev *Revision, tier int) (*Revision, int) {
	for p.outer != nil && tier >= len(rev.Plan.Tiers()) {
		tier -= len(rev.Plan.Tiers())
		p = p.outer
		rev = p.revision()
	}
	if tier >= len(rev.Plan.Tiers()) {
		tier = -1
	}
	return rev, tier
}
