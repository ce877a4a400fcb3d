package admit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// An outlook is what a request would meet that came now.
type outlook struct {
	wait     time.Duration // a lower bound
	revision *Revision     // of the tier that decides
	tier     int           // that decides; -1 if none does
	ahead    [3]int        // by class
	// limiting is the tier that the dry run named, and epoch its pause.
	limiting int
	epoch    int64
	verdict  store.Verdict // of the dry run; Ready if the quota would admit the request now
}

// ask asks the quota what a request would meet. The error is that of a quota that refuses it.
func (s *Scope) ask(ctx context.Context, d *Demand) (o outlook, err error) {
	rev, spec := s.current.Load(), &dryRun
	yields := rev.initialWaitSpec(ctx) // a Batch request leaves headroom until it has aged
	if yields != nil {
		yields = &store.WaitSpec{DryRun: true, YieldFor: yields.YieldFor, Headroom: yields.Headroom}
	}
	if yields != nil && rev.foresees {
		spec = yields
	}
	rev, decision, err := s.tryDry(ctx, d, spec)
	o = outlook{revision: rev, tier: -1, limiting: decision.Tier, epoch: decision.Epoch, verdict: decision.Verdict}
	switch {
	case err != nil:
		o.verdict = store.Ready
		return o, rev.explain(err)
	case decision.Verdict == store.Closed || decision.Verdict == store.Exhausted:
		return o, rev.refused(decision)
	case rev.foresees || decision.Verdict == store.Ready:
	case decision.Wait < store.Forever && decision.Tier != store.Probing:
		o.wait, o.tier = decision.Wait, decision.Tier
	}
	if yields != nil && !rev.foresees {
		rev, decision, err := s.tryDry(ctx, d, yields)
		if err != nil {
			return o, rev.explain(err)
		}
		if wait := min(decision.Wait, yields.YieldFor); wait > o.wait {
			o.wait, o.tier, o.revision = wait, decision.Tier, rev
		}
	}
	return o, nil
}

// dryRun is the WaitSpec of a dry run.
var dryRun = store.WaitSpec{DryRun: true}

// tryDry asks the quota, under the newest plan, whether it would admit a request.
func (s *Scope) tryDry(ctx context.Context, d *Demand, spec *store.WaitSpec) (*Revision, store.Decision, error) {
	for rev := s.current.Load(); ; rev = s.adoptSuccessor() {
		cost, err := rev.costOf(d)
		if err != nil {
			return rev, store.Decision{}, &queue.Final{Err: err}
		}
		dry := store.Request{Cost: cost, Held: true, Queued: true, Guard: s.guard(rev), WaitSpec: spec}
		decision, err := rev.quota.TryAcquire(ctx, dry)
		if err != nil || decision.Verdict != store.Moved {
			return rev, decision, err
		}
	}
}

// forecast returns what a request would meet in the queue of this scope alone. The refusal is nil if
// it would join.
func (s *Scope) forecast(ctx context.Context, d *Demand, giveUp time.Time) (outlook, *queue.Refusal, error) {
	return s.queue.forecast(ctx, s, d, giveUp, nil)
}

// forecast returns what a request would meet in the queue if it gave up at a time, or never if that is
// zero. The refusal is nil if it would join.
func (wq *waitQueue) forecast(ctx context.Context, s *Scope, d *Demand, giveUp time.Time, config func(*Revision) queue.Config) (o outlook, refusal *queue.Refusal, err error) {
	q := wq.lock(s, config) // keeps the policy the same for the cost and the forecast
	defer q.mu.Unlock()
	rev := q.revision
	if rev.closed { // the queue may be configured for an earlier revision
		return o, nil, rev.refuse(queue.Closed, -1, 0)
	}
	cost, err := rev.costOf(d)
	if err != nil {
		return o, nil, err
	}
	got := q.Forecast(queue.Ticket{
		Class: ClassOf(ctx), GiveUp: giveUp,
		Renew: func(any) (store.Request, bool, error) {
			return store.Request{Cost: cost, Held: true, Guard: s.guard(rev)}, !rev.reserves && rev.isFree(cost), nil
		},
	})
	return outlook{wait: got.Wait, revision: rev, tier: got.Tier, ahead: got.Ahead}, got.Refusal, nil
}

// lateIn returns what a request would meet in the queue of this scope, in which another request will
// wait for it, and its refusal if no wait admits it in time.
func (s *Scope) lateIn(ctx context.Context, d *Demand, giveUp time.Time) (o outlook, late, err error) {
	o, refusal, err := s.forecast(ctx, d, giveUp)
	if refusal != nil && refusal.Reason == queue.Late {
		late = o.revision.explain(refusal)
	}
	return o, late, err
}

func (s *Scope) refuseIfLate(ctx context.Context, d *Demand, giveUp time.Time) error {
	var refused *queue.Final
	rev, decision, err := s.current.Load(), store.Decision{}, error(nil)
	if rev.reserves && (d.atOnce || !rev.hasBudget()) {
		if _, err := rev.costOf(d); err != nil {
			return err
		}
	} else {
		rev, decision, err = s.tryDry(ctx, d, &dryRun)
	}
	if errors.As(err, &refused) {
		return refused.Err
	}
	if err == nil && (decision.Verdict == store.Closed || decision.Verdict == store.Exhausted) {
		return rev.refused(decision)
	}
	if giveUp.IsZero() {
		return nil
	}
	_, late, err := s.lateIn(ctx, d, giveUp)
	if e, ok := late.(*Refusal); ok {
		e.Bound = d.earliest(ctx)
		return e
	}
	return err
}

// A Forecast is what a request would meet that came now.
type Forecast struct {
	Wait   time.Duration // a lower bound
	By     *Policy       // of the tier or the pause that decides, or of the innermost scope
	Tier   int           // of By that decides; -1 if none does
	Member string        // of a Pool, that would admit the request; empty without one
	Ahead  [3]int        // the callers ahead, by class
	Err    error         // with which the queue would refuse the request at once; nil if it would not
	At     time.Time     // when the state of Quotas held
	Quotas []State       // the innermost first
}

// A State is the state of one quota. The Tiers of its Status are those that its Policy declares.
type State struct {
	store.Status
	Policy  *Policy
	Member  string   // of a Pool; empty without one
	Err     error    // why the store does not answer
	Probing bool     // the first request after a pause is in flight
	By      PausedBy // what has paused the quota; zero if that is not known
}

// Elsewhere is the Cause of a pause by another process or another Scope.
const Elsewhere = "elsewhere"

// Ask sets what a request would meet and, if all is set, the states of the quotas. It returns the error of
// a quota that would refuse the request.
func (f *Forecast) Ask(ctx context.Context, p *Path, d Demand, all bool) error {
	f.Tier = -1
	s, err := p.Enter()
	if err != nil {
		return err
	}
	defer s.Leave()
	if _, err := p.revisionFor(s, &d); err != nil {
		return err
	}
	around, err := p.enterOuter()
	if err != nil {
		return err
	}
	defer leaveAll(around)
	asked, err := f.askQuotas(ctx, p, &d, append([]*Scope{s}, around...), all)
	if err != nil {
		return err
	}
	f.Err, err = f.meet(ctx, p, d, asked)
	if f.Wait == 0 && f.Tier < 0 { // a response or a release is all that the request may wait for
		for _, o := range asked {
			if o.verdict != store.Ready && f.Tier < 0 && o.limiting >= 0 {
				f.By, f.Tier = o.revision.Policy, o.limiting
			}
		}
	}
	if f.Err == nil && err == nil && !asked[0].revision.foresees {
		f.Err = f.refusalOf(ctx, p)
	}
	return err
}

// AskPool is Ask for a Pool: the request goes to the member that admits it first.
func (f *Forecast) AskPool(ctx context.Context, p *Pool, d Demand, all bool) (err error) {
	f.Tier = -1
	if err := p.checkUnits(d.Cost); err != nil {
		return err
	}
	d.anyUnit = true
	c := &caller{pool: p, demand: d, key: stickyKeyOf(ctx), since: time.Now()}
	stages, err := c.stages()
	if err != nil {
		return err
	}
	asked, decided := make(map[*Member]bool), false
	var first *Forecast // of the members that may serve the request
	var states []State
	for _, members := range stages {
		for _, m := range members {
			if asked[m] || decided && !all {
				continue
			}
			asked[m] = true
			one := &Forecast{At: f.At, Member: m.Name}
			failed := one.Ask(ctx, m.Path, d, all)
			states = append(states, one.statesOf(m)...)
			switch {
			case decided:
			case failed != nil:
				err = betterError(err, failed)
			case first == nil || one.isBefore(first):
				first = one
			}
		}
		if first != nil && !decided {
			*f = *first
			f.addRoom(ctx, p.room(members), c)
			decided = f.Err == nil && f.Wait <= p.spill()
		}
	}
	if f.Quotas = states; first == nil {
		return err
	}
	return nil
}

// statesOf returns the states of a member's quotas.
func (f *Forecast) statesOf(m *Member) []State {
	for i := range f.Quotas {
		f.Quotas[i].Member = m.Name
	}
	return f.Quotas
}

// isBefore reports whether a request would be admitted sooner than by another forecast.
func (f *Forecast) isBefore(o *Forecast) bool {
	if (f.Err == nil) != (o.Err == nil) {
		return f.Err == nil
	}
	return f.Wait < o.Wait || f.Wait == o.Wait && !f.waits() && o.waits()
}

// waits reports whether the request would wait, which it may for a time that is not known.
func (f *Forecast) waits() bool {
	return f.Wait > 0 || f.Tier >= 0 || total(f.Ahead) > 0 || slices.ContainsFunc(f.Quotas, func(s State) bool { return s.Probing })
}

// addRoom adds what the request would meet among the callers of a Pool that the same members may serve.
func (f *Forecast) addRoom(ctx context.Context, r *room, c *caller) {
	v := r.configure()
	got := r.queue.Forecast(c.ticket(ctx, time.Time{}))
	if got.Wait > f.Wait && total(got.Ahead) > 0 {
		m, rev, tier := v.decider(got.Tier)
		f.Wait, f.By, f.Tier, f.Member = got.Wait, rev.Policy, tier, m.Name
	}
	if deadline, ok := ctx.Deadline(); ok && f.Err == nil && f.Wait > time.Until(deadline) {
		refused := f.refusal()
		refused.Bound, f.Err = BoundContext, refused
	}
}

// askQuotas asks the quotas of scopes, the innermost first, and returns the error of the first one that
// would refuse the request.
func (f *Forecast) askQuotas(ctx context.Context, p *Path, d *Demand, scopes []*Scope, all bool) (asked []outlook, failed error) {
	for i, s := range scopes {
		one := outlook{tier: -1, verdict: store.Ready}
		if failed == nil {
			one, failed = s.ask(ctx, d)
			if i == 0 && one.verdict == store.Exhausted && !p.asksAtOnce(one.revision, d) {
				failed = nil // the queue asks the budget in the request's turn
			}
			if f.By == nil {
				f.By = one.revision.Policy
			}
			f.add(one)
		}
		if asked = append(asked, one); all {
			f.Quotas = append(f.Quotas, s.state(ctx, one))
			f.At = time.Now()
		}
	}
	return asked, failed
}

// meet adds what a request would meet in the queues of a Path, whose quotas have been asked. It returns
// the refusal that the request would get at once.
func (f *Forecast) meet(ctx context.Context, p *Path, d Demand, asked []outlook) (refused, err error) {
	s, rev := p.scope.Load(), asked[0].revision
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return nil, err
	}
	if giveUp = earlierDeadline(ctx, giveUp); d.NoWait {
		giveUp = time.Time{}
	}
	asksAtOnce := p.asksAtOnce(rev, &d)
	if p.outer == nil {
		if asksAtOnce && asked[0].verdict == store.Ready {
			return nil, nil
		}
		o, refusal, err := s.forecast(ctx, &d, giveUp)
		if f.add(o); refusal != nil {
			refused = d.withBound(ctx, o.revision.explain(refusal))
		}
		return refused, err
	}
	d.outerBound = d.earliest(ctx)
	if refused, err = f.meetOuter(ctx, p, &d, giveUp); err != nil {
		return nil, err
	}
	if rev.foresees || p.ownQueue.len() > 0 {
		o, refusal, err := p.ownQueue.forecast(ctx, s, &d, giveUp, p.queueConfig)
		if err != nil {
			return nil, err
		}
		if refusal != nil && refused == nil {
			refused = p.explain(o.revision, refusal)
		}
		o.revision, o.tier = p.decider(o.revision, o.tier)
		f.add(o)
	}
	if refused == nil && asksAtOnce && asked[0].verdict == store.Ready && !d.NoWait { // it would go on to the outer scope at once
		limited, cancel := withDeadline(ctx, giveUp)
		defer cancel()
		if refused, err = (&Forecast{Tier: -1}).meet(limited, p.outer, d.asRefundable(), asked[1:]); err != nil {
			return nil, err
		}
	}
	return d.withBound(ctx, refused), nil
}

// meetOuter adds what a request would meet in the queues around that of a Path, and returns the first refusal for
// lack of time.
func (f *Forecast) meetOuter(ctx context.Context, p *Path, d *Demand, giveUp time.Time) (refused, err error) {
	add := func(o outlook, late error) {
		if f.add(o); refused == nil {
			refused = late
		}
	}
	for o := p.outer; o != nil; o = o.outer {
		one, late, err := o.scope.Load().lateIn(ctx, d, giveUp)
		if err != nil {
			return nil, err
		}
		if add(one, late); o.outer == nil || o.ownQueue.len() == 0 {
			continue
		}
		if one, late, err = o.lateInOwnQueue(ctx, o.scope.Load(), d, giveUp); err != nil {
			return nil, err
		}
		add(one, late)
	}
	f.addAhead(p.joint.ahead(ctx))
	return refused, nil
}

// add adds what a request would meet in a scope.
func (f *Forecast) add(o outlook) {
	f.addAhead(o.ahead)
	if o.wait > f.Wait || o.wait == f.Wait && f.Wait > 0 && f.Tier < 0 {
		f.Wait, f.Tier, f.By = o.wait, o.tier, o.revision.Policy
	}
}

func (f *Forecast) addAhead(n [3]int) {
	for class := range n {
		f.Ahead[class] += n[class]
	}
}

func total(n [3]int) int { return n[0] + n[1] + n[2] }

// refusal returns the forecast as the refusal of a request that does not wait.
func (f *Forecast) refusal() *Refusal {
	return &Refusal{Policy: f.By, Tier: f.Tier, Reason: queue.Late, Wait: f.Wait, Ahead: total(f.Ahead)}
}

// refusalOf returns the error with which a request fails at once if it has to wait as long as the
// store says, or nil.
func (f *Forecast) refusalOf(ctx context.Context, p *Path) error {
	rev, left := p.revision(), store.Forever
	if f.Wait == 0 && total(f.Ahead) == 0 {
		return nil
	}
	refused := f.refusal()
	if rev.MaxWait > 0 {
		left, refused.Bound = rev.MaxWait, BoundMaxWait
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < left {
		left, refused.Bound = time.Until(deadline), BoundContext
	}
	if refused.Wait > left {
		return refused
	}
	if n := total(p.queue().ahead(ctx)); rev.MaxQueue > 0 && n >= rev.MaxQueue {
		refused = rev.refuse(queue.Full, -1, 0)
		refused.Ahead = n
		return refused
	}
	return nil
}

// state returns the state of the quota.
func (s *Scope) state(ctx context.Context, o outlook) State {
	rev, status, err := s.status(ctx)
	status.Tiers, status.Guard = rev.mergePaces(status.Tiers), s.guardInForce(rev)
	q := State{Status: status, Policy: rev.Policy, Err: err}
	if q.Paused == 0 && q.Closed == 0 {
		return q
	}
	if q.Probing = o.limiting == store.Probing; !q.Probing && o.verdict != store.Ready {
		by := s.pausedBy()
		switch {
		case by.Cause == "" || by.known && by.epoch < o.epoch:
			q.By.Cause = Elsewhere
		case by.known && by.epoch == o.epoch:
			q.By = by
		}
	}
	return q
}
