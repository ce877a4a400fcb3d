package throttle

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
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
// Callers that wait for the inner quota do not take places in the queue of the outer one: they join
// it in their order when the inner quota has room for them. Therefore a tenant that has used up its
// own quota does not delay others while the shared quota is idle. Callers that wait for the inner
// quota are admitted in the order of their classes and arrival, whichever Limiter of it they use;
// callers that wait for an outer quota do not hold up those behind them while the inner quota has room
// for all of them. On a store that reserves times, as package distributed does, that order holds for
// each Limiter alone. Forecasts, Status.Waiting and MaxQueue count the callers of one Limiter, so call
// Within once and keep the result. Its Status has the tiers of all quotas, the inner ones first. Its
// Pause, Resume and SetPolicy act on the inner quota only.
//
// Quotas of one distributed.Store that are in one slot are charged in one round trip. With other
// stores on a server an admission takes two or more round trips, one after the other. If an
// outer scope has charged a request that another scope then refuses, the charge is refunded.
func (l *Limiter) Within(outer *Limiter) *Limiter {
	switch {
	case l.err != nil:
		return l
	case outer.err != nil:
		return outer
	case l.revision().policy.Shadow || outer.revision().policy.Shadow:
		return refusing(l.revision().compiledPolicy, l.revision().errorf("Within: Shadow is true: a shadow lies in no other quota, and none in it: set Shadow to false in both"))
	}
	for in := l; in != nil; in = in.outer {
		for out := outer; out != nil; out = out.outer {
			if in.isSameQuota(out) {
				return refusing(l.revision().compiledPolicy, in.revision().errorf("Within: the quota would lie inside itself: name another outer Limiter"))
			}
		}
	}
	nested := l.newHandle()
	if nested.outer = outer; l.outer != nil {
		nested.outer = l.outer.Within(outer)
	}
	return nested
}

// isSameQuota reports whether two Limiters are known to charge one quota: one of this process, or one
// that their store keeps under the same name and key.
func (l *Limiter) isSameQuota(o *Limiter) bool {
	if (l.group == nil) != (o.group == nil) || l.key != o.key {
		return false
	}
	if l.group == o.group && (l.group != nil || l.scope.Load() == o.scope.Load()) {
		return true
	}
	a, b := l.revision(), o.revision()
	return a.policy.Name == b.policy.Name && isSameStore(a.store, b.store)
}

// isSameStore reports whether two stores are equal. Those that cannot be compared are not.
func isSameStore(a, b Store) bool {
	return a != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// newHandle returns another Limiter of the same quota.
func (l *Limiter) newHandle() *Limiter {
	h := &Limiter{nesting: &nesting{group: l.group}, key: l.key}
	s, err := l.enter()
	if err != nil { // h has the same error until there is room
		s = l.scope.Load()
	} else {
		defer s.leave()
	}
	s.handOut(h)
	return h
}

// admitThrough admits a request in this scope and in all outer ones.
func (l *Limiter) admitThrough(ctx context.Context, s *scope, rev *revision, d demand, a *admission) (err error) {
	if rev.reserves {
		return l.reserveThrough(ctx, s, rev, d, a)
	}
	defer func() { err = d.withBound(ctx, err) }()
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return err
	}
	d.outerBound = d.earliest(ctx)
	if _, err = l.tryThrough(ctx, s, rev, d, a); err != nil || a.charged() {
		return err
	}
	if err := l.outer.refuseIfLate(ctx, &d, giveUp); err != nil {
		return err
	}
	around, err := l.enterOuter() // whose changes concern the caller while it waits
	if err != nil {
		return err
	}
	defer leaveAll(around)
	if d.since.IsZero() { // its place in the outer queues, also when it asks again
		d.since = time.Now()
	}
	if d.waited == nil {
		d.waited = make(map[*scope]time.Duration)
	}
	var outer []charge
	overtaken := false
	r, err := l.ownQueue.wait(ctx, s, &waitRequest{
		demand: &d, giveUpAt: giveUp, config: l.queueConfig, explain: l.explain,
		ask: func(ctx context.Context, t queue.Turn) (r queue.Result, err error) {
			d.observed.decidedBy(nil) // an outer scope decides after this one
			around := outerWait{aside: t.StepAside}
			if overtaken {
				around.patience = time.Since(d.since)
			}
			defer around.end()
			d.queued = around.begin
			r, outer, err = l.askThrough(ctx, t, d)
			overtaken = overtaken || around.began && err == nil && r.Verdict != store.Admitted
			return r, err
		},
	})
	if err != nil {
		return err
	}
	a.charge, a.outer = s.charged(r), outer
	return nil
}

// reserveAll reports whether the quotas of this scope and of all around it reserve times.
func (l *Limiter) reserveAll() bool {
	for ; l != nil; l = l.outer {
		if !l.revision().reserves {
			return false
		}
	}
	return true
}

// isShared reports whether the quota of this scope or of one around it is Group.Shared.
func (l *Limiter) isShared() bool {
	for ; l != nil; l = l.outer {
		if l.scope.Load().shared {
			return true
		}
	}
	return false
}

// reserveThrough admits a request in this scope, whose quota reserves, and in those around it: in one
// call where that is possible.
func (l *Limiter) reserveThrough(ctx context.Context, s *scope, rev *revision, d demand, a *admission) (err error) {
	defer func() { err = d.withBound(ctx, err) }()
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return err
	}
	d.outerBound, d.atOnce = d.earliest(ctx), l.bundled(s).bundle != nil
	if err := l.outer.refuseIfLate(ctx, &d, giveUp); err != nil {
		return err
	}
	cost, err := rev.costOf(&d)
	if err != nil {
		return err
	}
	part := d.asRefundable()
	if part.since.IsZero() {
		part.since = time.Now()
	}
	// A request that costs nothing here must not wait behind the callers of this scope alone.
	free := rev.isFree(cost)
	if err = store.ErrApart; !free && !l.isShared() {
		err = l.joinAtOnce(ctx, s, part, giveUp, a)
	}
	if err == store.ErrApart && part.waited == nil { // MaxWait goes on when it asks an outer scope again
		part.waited = make(map[*scope]time.Duration)
	}
	for err == store.ErrApart {
		err = l.holdOne(ctx, s, part, giveUp, free, a)
	}
	switch {
	case err != nil:
		return err
	case !d.held && a.concurrent(): // a policy has changed since
		a.refund()
		a.leaveOuter(l)
		return rev.refuse(ErrNeedsPermit, -1, 0)
	case !d.held:
		a.expectNoReport()
	}
	if !d.refundable {
		a.landUnguarded()
	}
	return nil
}

// A slower is the side that a Limiter asks first, of its own quota and those around it.
type slower struct {
	mu     sync.Mutex         // guards all below
	around bool               // the quotas around
	score  int                // conflicts, weighed, less admissions
	over   context.Context    // ends when the other side is asked first; nil before a caller asks
	end    context.CancelFunc // of over
}

// first returns the side to ask first, and a context that ends when it is the other one.
func (w *slower) first() (around bool, over context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over == nil {
		w.over, w.end = context.WithCancel(context.Background())
	}
	return w.around, w.over
}

const (
	conflictWeight = 2 // a conflict weighs as much as so many admissions
	// A side is the slower one if it is that far behind: the quotas around, and the own quota.
	nearMiss, farBehind = 250 * time.Millisecond, 5 * time.Second
)

// mostConflicts returns with how much more weight of conflicts the other side is asked first. Of two sides
// that are about equal, a quota of this process stays the first one: it admits no bursts, as a quota in
// Redis does.
func mostConflicts(inProcess bool) int {
	if inProcess {
		return 128
	}
	return 16
}

// note records an admission or a conflict of a caller that has asked one side first. It reports whether
// the other side is asked first from now on, because conflicts weigh most. Callers that wait in the first
// side then change over.
func (w *slower) note(around bool, weight, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.around != around {
		return true
	}
	if w.score = max(0, w.score+weight); w.score < most {
		return false
	}
	w.around, w.score = !around, 0
	w.end()
	w.over, w.end = context.WithCancel(context.Background())
	return true
}

// noteConflict records that the other side refused a request that one side held. It returns for how long
// to wait before the caller asks again. If the other side is far behind, it is the slower one: the
// caller waits there in line.
func (w *slower) noteConflict(around bool, most int, lead time.Duration, err error) time.Duration {
	var late *WaitError
	weight, far := conflictWeight, lead+nearMiss
	if around {
		far = lead + farBehind
	}
	if errors.As(err, &late) && late.Wait > far {
		weight = most
	}
	if w.note(around, weight, most) || late == nil {
		return 0
	}
	return late.Wait - lead
}

// times returns how long it takes at most to ask the side that is not asked first, how long before its time
// the first side returns a request, and for how long it holds one if not all of its quotas reserve times.
func (l *Limiter) times(ctx context.Context, around bool) (trip, lead, lasts time.Duration) {
	away := false // a quota around is a round trip away
	for o := l; o != nil; o = o.outer {
		if q := reserverOf(o.revision().quota); q != nil {
			trip, away = max(trip, q.Trip(ctx)*9/8), away || o != l
		}
	}
	near := max(100*time.Millisecond, trip+25*time.Millisecond)
	if !away {
		trip = 0
	}
	lead = 2*trip + 2*time.Millisecond // the other side may have a call under way
	switch {
	case !around || l.outer.reserveAll():
		return trip, lead, 0
	case away:
		return trip, lead, lead + 100*time.Millisecond
	}
	return trip, lead, near
}

// margin is how much longer a request counts, at least, in the scope that is asked first. So that scope is the slower
// of two that are equal, and the other has room at its times.
const margin = 10 * time.Millisecond

// holdOne asks the side that was slower last, and holds the time that it reserves while it asks the
// other side, which has to admit the request in that time. If the other side does not, both are
// refunded, and the error is store.ErrApart: the caller tries again.
func (l *Limiter) holdOne(ctx context.Context, s *scope, d demand, giveUp time.Time, free bool, a *admission) error {
	around, over := l.slower.first()
	asking := ctx
	if around = around && !free; around {
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		defer s.watch(cancel)()
		asking = limited
	}
	again, err := l.hold(asking, over, s, d, giveUp, around, a)
	if err == store.ErrApart {
		_ = queue.SleepUntil(asking, earlier(giveUp, time.Now().Add(again)))
	}
	if err != nil && asking.Err() != nil && ctx.Err() == nil { // its own quota may refuse it now, or be the slower one
		l.slower.note(true, mostConflicts(true), mostConflicts(true))
		return store.ErrApart
	}
	return err
}

// hold is holdOne with the side to ask first, until over ends. It returns for how long to wait after
// store.ErrApart.
func (l *Limiter) hold(ctx, over context.Context, s *scope, d demand, giveUp time.Time, around bool, a *admission) (again time.Duration, err error) {
	trip, lead, lasts := l.times(ctx, around)
	part := d
	part.lead, part.hold, part.margin = d.lead+lead, d.hold+cmp.Or(lasts, lead), d.margin+(lead-trip)*5/4+margin
	most := mostConflicts(lasts > 0)
	first, end, err := l.askFirst(ctx, over, s, part, giveUp, around, lasts)
	if err != nil {
		return 0, err
	}
	var second admission
	defer func() {
		if !a.charged() { // it is refused, or a callback panicked
			first.giveBack(l)
			second.giveBack(l)
		}
	}()
	if part = d; !end.IsZero() {
		part.hold += max(0, time.Until(first.start()))
		if around || l.outer.reserveAll() { // a quota that reserves takes a trip to decide
			part.hold = max(d.hold, part.hold-trip)
		}
	}
	limited, stop := withDeadline(ctx, earlier(end, giveUp))
	defer stop()
	second, err = l.askSide(limited, s, part, earlier(end, giveUp), !around, false)
	if err == nil {
		err = queue.SleepUntil(ctx, later(first.start(), second.start()).Add(-d.lead))
	}
	switch {
	case err != nil && (end.IsZero() || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)):
		return 0, err
	case err != nil:
		return l.slower.noteConflict(around, most, lead, err), store.ErrApart
	case first.expired() || second.expired() || first.void() || second.void():
		return 0, store.ErrApart
	}
	l.slower.note(around, -1, most)
	if around {
		first, second = second, first
	}
	a.charge, a.outer = first.charge, append([]charge{second.charge}, second.outer...)
	return 0, nil
}

// askFirst asks the side that holds the request, and returns until when it does, zero if for any time. The
// error is store.ErrApart if the other side is to be asked first.
func (l *Limiter) askFirst(ctx, over context.Context, s *scope, d demand, giveUp time.Time, around bool, lasts time.Duration) (first admission, end time.Time, err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(over, cancel)()
	if first, err = l.askSide(waiting, s, d, giveUp, around, true); err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = store.ErrApart
	}
	return first, first.end(lasts), err
}

// watch calls changed when the quota is closed, paused or banned, or its policy changes.
func (s *scope) watch(changed func()) (stop func()) {
	untrack := s.track(func(error) { changed() })
	rev := s.current.Load()
	unwatch := rev.quota.Watch(func(c store.Change, _ time.Duration) {
		if c != store.Freed && c != store.Eased {
			changed()
		}
	})
	if rev.closed {
		changed()
	}
	return func() {
		untrack()
		unwatch()
	}
}

// askSide admits a request in this scope, or in those around it. A request that is held around it already
// waits here among the callers of this scope alone, whose forecasts do not contain the scopes around.
func (l *Limiter) askSide(ctx context.Context, s *scope, d demand, giveUp time.Time, around, first bool) (a admission, err error) {
	switch {
	case around:
		limited, cancel := withDeadline(ctx, giveUp)
		defer cancel()
		err = l.outer.admit(limited, d, &a)
	case first:
		var r queue.Result
		r, err = l.ownQueue.wait(ctx, s, &waitRequest{demand: &d, giveUpAt: giveUp, config: l.queueConfig, explain: l.explain})
		if err == nil {
			a.charge = s.charged(r)
		}
	default:
		err = s.admit(ctx, s.current.Load(), &d, &a.charge)
	}
	if err == context.DeadlineExceeded && ctx.Err() == nil { // MaxWait, while the store was asked
		err = s.current.Load().refuse(ErrDeadline, -1, 0)
	}
	if err != nil {
		a = admission{}
	}
	return a, err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// start returns from when on a request may be sent, and end until when, zero if it costs nothing. Its quotas
// reserve.
func (a *admission) start() (start time.Time) {
	a.eachCharge(func(c *charge) {
		if r := c.decision.Reservation; r != nil {
			start = later(start, r.Start)
		}
	})
	return start
}

func (a *admission) end(lasts time.Duration) (end time.Time) {
	if lasts > 0 {
		end = time.Now().Add(lasts)
	}
	a.eachCharge(func(c *charge) {
		if r := c.decision.Reservation; r != nil && !c.revision.isFree(c.cost) && (end.IsZero() || r.End.Before(end)) {
			end = r.End
		}
	})
	return end
}

// void reports whether a pause voids any of the reservations.
func (a *admission) void() (any bool) {
	a.eachCharge(func(c *charge) {
		q := reserverOf(c.revision.quota)
		any = any || q != nil && q.IsVoid(c.decision)
	})
	return any
}

// giveBack refunds a request and leaves its scopes but for the scope of the Limiter.
func (a *admission) giveBack(l *Limiter) {
	a.refund()
	a.leaveOuter(l)
}

// leaveOuter leaves the scopes of a part of a request but for the scope of the Limiter.
func (a *admission) leaveOuter(l *Limiter) {
	a.eachCharge(func(c *charge) {
		if c.scope != l.scope.Load() {
			c.scope.leave()
		}
	})
}

// An outerWait is the wait of a caller of a nested Limiter in the queue of an outer quota, in the order
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

// enterOuter returns the scopes around the Limiter's own, which a Group keeps until leaveAll is
// called.
func (l *Limiter) enterOuter() (around []*scope, err error) {
	for o := l.outer; o != nil; o = o.outer {
		s, err := o.enter()
		if err != nil {
			leaveAll(around)
			return nil, err
		}
		around = append(around, s)
	}
	return around, nil
}

func leaveAll(scopes []*scope) {
	for _, s := range scopes {
		s.leave()
	}
}

// tryThrough asks for an admission without waiting in any scope. If the request is not admitted
// nothing is charged. The decision contains the reason unless other callers wait. If it is that of an
// outer scope, a.revision is the revision of that scope.
func (l *Limiter) tryThrough(ctx context.Context, s *scope, rev *revision, d demand, a *admission) (store.Decision, error) {
	cost, err := rev.costOf(&d)
	if err != nil || l.waiting() > 0 && !rev.isFree(cost) {
		return store.Decision{Tier: -1, Wait: forever}, err
	}
	r := store.Request{Cost: cost, Held: d.held, Guard: s.guardFor(&d, rev), WaitSpec: rev.initialWaitSpec(ctx)}
	var reason *store.Decision
	got, charges, err := l.chargeThrough(ctx, queue.Turn{Request: r, Owner: rev}, d, func(outer *admission) error {
		decision, err := l.outer.tryNow(ctx, d.asRefundable(), outer)
		if err == nil && !outer.charged() {
			reason, a.revision = &decision, outer.revision
		}
		return err
	})
	if reason != nil {
		return *reason, nil
	}
	if err == nil && got.Verdict == store.Admitted {
		a.charge, a.outer = s.charged(got), charges
		return got.Decision, nil
	}
	return got.Decision, rev.decisionError(ctx, got.Decision, err, d.noWait)
}

// askThrough asks for the first caller in the queue of a nested Limiter, under the revision of its
// request. It waits in the queues of the outer scopes, but not past the caller's deadline.
func (l *Limiter) askThrough(ctx context.Context, t queue.Turn, d demand) (queue.Result, []charge, error) {
	for o := l; o != nil; o = o.outer {
		if outer := o.revision(); outer.closed {
			return queue.Result{}, nil, &queue.Final{Err: outer.refuse(ErrClosed, -1, 0)}
		}
	}
	limited, cancel := ctx, func() {}
	if t.MaxWait < forever {
		limited, cancel = context.WithTimeout(ctx, t.MaxWait)
	}
	defer cancel()
	r, outer, err := l.chargeThrough(limited, t, d, func(outer *admission) error {
		err := l.outer.admit(limited, d.asRefundable(), outer)
		if t.Away != nil && errors.Is(err, ErrQueueFull) {
			return nil // it waits here until one of those has left the outer queue
		}
		return err
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return queue.Result{Decision: store.Decision{Tier: -1}}, nil, nil // the queue then refuses the caller as late
	}
	return r, outer, err
}

// notYet is the result of a request that waits until another caller comes back, as for a probe.
var notYet = queue.Result{Decision: store.Decision{Tier: store.Probing, Wait: forever}}

// overtaken is the decision on a request that another caller has overtaken. It asks again in its turn.
var overtaken = store.Decision{Tier: store.Probing}

// chargeThrough asks whether this scope is ready for the request and for those that are away, charges
// the outer scopes with chargeOuter, and then charges this scope. If another caller was faster here,
// the outer charges are refunded.
func (l *Limiter) chargeThrough(ctx context.Context, t queue.Turn, d demand, chargeOuter func(*admission) error) (queue.Result, []charge, error) {
	rev, dry := t.Owner.(*revision), t.Request
	if t.Away != nil {
		if dry.Cost = sum(t.Cost, t.Away); rev.plan.TooLarge(dry.Cost) >= 0 {
			return notYet, nil, nil // until one of them comes back
		}
	}
	if dry.WaitSpec = &dryRun; t.Leaves() > 0 {
		dry.WaitSpec = &store.WaitSpec{DryRun: true, YieldFor: t.YieldFor, Headroom: t.Headroom}
	}
	decision, err := rev.quota.TryAcquire(ctx, dry)
	if err == nil && decision.Verdict == store.Exhausted && t.Away != nil { // unless those that are away leave
		if dry.Cost = t.Cost; rev.isReady(ctx, dry) {
			return notYet, nil, nil
		}
	}
	if err != nil || decision.Verdict != store.Ready {
		return queue.Result{Decision: decision}, nil, err
	}
	var outer admission
	if err := chargeOuter(&outer); err != nil {
		return queue.Result{}, nil, &queue.Final{Err: err}
	}
	if !outer.charged() {
		return notYet, nil, nil
	}
	if !d.held && outer.concurrent() { // an outer policy has changed since the check
		outer.refund()
		outer.leaveScopes()
		return queue.Result{}, nil, &queue.Final{Err: outer.revision.refuse(ErrNeedsPermit, -1, 0)}
	}
	switch err = ctx.Err(); {
	case err != nil: // the queue has recalled the caller
	case t.Overtakes != nil && t.Overtakes():
		decision = overtaken
	default:
		decision, err = rev.quota.TryAcquire(ctx, t.Request)
	}
	if admitted := err == nil && decision.Verdict == store.Admitted; !admitted || outer.expired() {
		if t.StepBack != nil {
			t.StepBack()
		}
		outer.refund()
		outer.leaveScopes()
		if admitted { // the outer reservations have ended
			_ = rev.quota.Return(context.WithoutCancel(ctx), decision, t.Cost)
			decision = store.Decision{Tier: -1}
		}
		return queue.Result{Decision: decision}, nil, err
	}
	if !d.held {
		outer.expectNoReport()
	}
	if !d.refundable {
		outer.landUnguarded()
	}
	return queue.Result{Decision: decision, Cost: t.Cost, Owner: rev}, append([]charge{outer.charge}, outer.outer...), nil
}

// isReady reports whether the quota would admit the request of a dry run.
func (rev *revision) isReady(ctx context.Context, dry store.Request) bool {
	d, err := rev.quota.TryAcquire(ctx, dry)
	return err == nil && d.Verdict == store.Ready
}

func sum(a, b []int64) []int64 {
	total := slices.Clone(a)
	for i, n := range b {
		total[i] += n
	}
	return total
}

// asRefundable returns the demand as one whose charge can be refunded. Its cost stays the same: all scopes
// charge the same estimate.
func (d demand) asRefundable() demand {
	d.held, d.refundable, d.recost = true, true, nil
	return d
}

// refuseIfLate returns the refusal of a request that no wait in the outer scopes admits in time, or
// nil.
func (l *Limiter) refuseIfLate(ctx context.Context, d *demand, giveUp time.Time) error {
	giveUp = earlierDeadline(ctx, giveUp)
	for ; l != nil; l = l.outer {
		s, err := l.enter()
		if err != nil {
			return err
		}
		err = s.refuseIfLate(ctx, d, giveUp)
		if err == nil && !giveUp.IsZero() && l.outer != nil && l.ownQueue.len() > 0 {
			var late error
			_, late, err = l.lateInOwnQueue(ctx, s, d, giveUp)
			if e, ok := late.(*WaitError); ok {
				e.Bound = d.earliest(ctx)
				err = e
			}
		}
		s.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// lateInOwnQueue is lateIn for the queue of this Limiter's callers, which lies inside others.
func (l *Limiter) lateInOwnQueue(ctx context.Context, s *scope, d *demand, giveUp time.Time) (o outlook, late, err error) {
	o, refusal, err := l.ownQueue.forecast(ctx, s, d, giveUp, l.queueConfig)
	if refusal != nil && refusal.Reason == queue.Late {
		late = l.explain(o.revision, refusal)
	}
	if err == nil {
		o.revision, o.tier = l.decider(o.revision, o.tier)
	}
	return o, late, err
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

func (s *scope) refuseIfLate(ctx context.Context, d *demand, giveUp time.Time) error {
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
	if e, ok := late.(*WaitError); ok {
		e.Bound = d.earliest(ctx)
		return e
	}
	return err
}

// lateIn returns what a request would meet in the queue of this scope, in which another request will
// wait for it, and its refusal if no wait admits it in time.
func (s *scope) lateIn(ctx context.Context, d *demand, giveUp time.Time) (o outlook, late, err error) {
	o, refusal, err := s.forecast(ctx, d, giveUp)
	if refusal != nil && refusal.Reason == queue.Late {
		late = o.revision.explain(refusal)
	}
	return o, late, err
}

// queueConfig returns the configuration of the queue of a nested Limiter.
func (l *Limiter) queueConfig(rev *revision) queue.Config {
	c := l.scope.Load().queueConfig(rev)
	c.Quota, c.Fast = chain{rev.quota, rev.plan, l}, nil
	return c
}

// A chain is what the queue of a nested Limiter asks: the inner quota. Its watchers also watch the outer
// quotas, whose pauses delay the same callers.
type chain struct {
	quota   store.Quota
	plan    *algorithms.Plan // the quota's plan, whose units the queue's costs are in
	limiter *Limiter
}

func (c chain) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	return c.quota.TryAcquire(ctx, r)
}

func (c chain) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	own := &c.limiter.ownQueue
	stops := []func(){c.quota.Watch(changed), c.limiter.scope.Load().track(own.refuseAll)}
	for l := c.limiter.outer; l != nil; l = l.outer {
		s := l.scope.Load()
		stops = append(stops, s.track(own.refuseAll), s.adoptSuccessor().quota.Watch(func(change store.Change, left time.Duration) {
			c.limiter.outerChanged(own, c.limiter.queueConfig, s.current.Load(), change, left)
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
func (l *Limiter) outerChanged(own *waitQueue, config func(*revision) queue.Config, rev *revision, change store.Change, left time.Duration) {
	q := own.made.Load()
	switch {
	case q == nil:
	case change == store.Shut:
		q.Pause(time.Now().Add(left), true, &queue.Final{Err: rev.refusal(&queue.Refusal{Reason: queue.Banned, Tier: -1, Wait: left})})
	case change == store.Replanned:
		own.reconfigure(l.scope.Load(), config)
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
	add(c.quota, c.plan, c.limiter.revision().policy.Headroom)
	for l := c.limiter.outer; l != nil; l = l.outer {
		rev := l.revision()
		add(rev.quota, rev.plan, 0) // its headroom ends when a request has aged in its queue
	}
	return f
}

// Soonest makes the assumptions of Forecast.
func (c chain) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	l, rev, first := c.limiter, c.limiter.revision(), 0
	wait, tier = c.quota.Soonest(cost, min(headroom, int64(rev.policy.Headroom)))
	for first += len(c.plan.Tiers()); l.outer != nil; first += len(rev.plan.Tiers()) {
		l = l.outer
		rev = l.revision()
		if e, decides := rev.quota.Soonest(rev.plan.Translate(c.plan, cost), 0); e > wait {
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

// explain returns the caller's error for an error of the queue of a nested Limiter, under the
// policy of the scope whose tier decides.
func (l *Limiter) explain(rev *revision, err error) error {
	var r *queue.Refusal
	if !errors.As(err, &r) || r.Tier < len(rev.plan.Tiers()) {
		return rev.explain(err)
	}
	own := *r
	rev, own.Tier = l.decider(rev, r.Tier)
	if own.Reason == queue.Banned {
		own.Tier = -1
	}
	return rev.refusal(&own)
}

// decider returns the revision whose tier decides, of those of all scopes that a chainForecast numbers,
// and its index there. The index is -1 if no tier decides, or if the policy has changed since.
func (l *Limiter) decider(rev *revision, tier int) (*revision, int) {
	for l.outer != nil && tier >= len(rev.plan.Tiers()) {
		tier -= len(rev.plan.Tiers())
		l = l.outer
		rev = l.revision()
	}
	if tier >= len(rev.plan.Tiers()) {
		tier = -1
	}
	return rev, tier
}
