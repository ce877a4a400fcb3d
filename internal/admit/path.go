// Package admit decides when a request may be sent. It knows neither responses nor the errors of the root.
// If it does not admit a request, it returns a [Refusal].
//
// A [Policy] is a policy made ready to decide (compiled.go). A [Scope] is one quota, the policy in force and
// the queue of its callers (scope.go, waitqueue.go). A [Path] is the scopes that a request is charged in
// (path.go): the quotas are asked one after the other (chain.go), or, if they reserve times, in one call
// (bundle.go) or with a time held in one of them (held.go). A [Demand] is what a caller asks for, and an
// [Admission] has the charges of a request (demand.go, admission.go). A [Forecast] is what a request would
// meet (forecast.go). A [Group] keeps a scope for each key (group.go). A [Pool] admits a request in one of
// several Paths (pool.go): its caller chooses among them (choose.go) and waits in a room (room.go).
//
// # Locks
//
// A goroutine that holds one of these locks takes only those behind it: that of a Group, of a
// configuredQueue or a room, of its queue.Queue, of a queue.Choice, of a Scope, those of a quota. It takes no
// other lock while it holds that of a slower, a settlement, a Pool or a caller of one. It holds none of them
// while it calls a function of the user.
package admit

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A Path is the scopes that a request is charged in, the inner ones first: the scope of the Path itself,
// and those of the Path that it lies in. Each Limiter of the root has one.
type Path struct {
	scope atomic.Pointer[Scope]
	*nesting
	key string // in the group
}

// A nesting is what surrounds the scope of a Path. All Paths of a Group share one, but for those inside
// others.
type nesting struct {
	group    keeper // keeps the scope; nil if Open made the Path
	outer    *Path
	ownQueue waitQueue // the queue of this Path's callers, if it lies inside others
	slower   slower    // see Path.holdOne
	joint    waitQueue // the queue of the callers that are charged in all scopes at once
	bundle   atomic.Pointer[bundledQuota]
	err      error   // the error of every call; nil if the Path works
	refuses  *Policy // the policy of a Path with an err
}

// A keeper keeps the scopes of Paths. It is a Group.
type keeper interface {
	// reopen returns the scope of a Path, whose own has been dropped. It is not dropped until Leave is called.
	reopen(*Path) (*Scope, error)
}

// alone is the nesting of the Paths that Open opens.
var alone nesting

// Open opens the quota of a policy by its name, for a new Path.
func (p *Path) Open(c *Policy) error {
	s, err := openScope(c, c.Name)
	p.nesting = &alone
	p.scope.Store(s)
	return err
}

// refuse makes every call of a new Path fail with an error.
func (p *Path) refuse(c *Policy, err error) {
	p.nesting = &nesting{err: err, refuses: c}
}

// Enter returns the Path's scope. A Group keeps the scope until Leave is called.
func (p *Path) Enter() (*Scope, error) {
	s := p.scope.Load()
	switch {
	case p.err != nil:
		return nil, p.err
	case p.group == nil || s.uses.Add(1) > 0:
		return s, nil
	}
	s.uses.Add(-1)
	return p.group.reopen(p)
}

func (p *Path) revision() *Revision { return p.scope.Load().current.Load() }

// Policy returns the policy in force.
func (p *Path) Policy() *Policy {
	if p.refuses != nil {
		return p.refuses
	}
	return p.revision().Policy
}

// IsClosed reports whether every call is refused.
func (p *Path) IsClosed() bool {
	s := p.scope.Load()
	return p.err != nil || s != nil && s.current.Load().closed
}

// Nest makes a new Path of the same quota as inner, inside outer and all that inner lies in. If a quota
// would lie inside itself, every call of the Path returns an error.
func (p *Path) Nest(inner, outer *Path) {
	for _, failed := range []*Path{inner, outer} {
		if failed.err != nil {
			p.nesting = failed.nesting
			return
		}
	}
	c := inner.Policy()
	if c.Shadow || outer.Policy().Shadow {
		p.refuse(c, c.Errorf("Within: Shadow is true: a shadow lies in no other quota, and none in it: set Shadow to false in both"))
		return
	}
	for in := inner; in != nil; in = in.outer {
		for out := outer; out != nil; out = out.outer {
			if in.isSameQuota(out) {
				p.refuse(c, in.Policy().Errorf("Within: the quota would lie inside itself: name another outer Limiter"))
				return
			}
		}
	}
	p.nesting, p.key = &nesting{group: inner.group, outer: outer}, inner.key
	s, err := inner.Enter()
	if err != nil { // p has the same error until there is room
		s = inner.scope.Load()
	} else {
		defer s.Leave()
	}
	s.handOut(p)
	if inner.outer != nil {
		p.outer = new(Path)
		p.outer.Nest(inner.outer, outer)
	}
}

// isSameQuota reports whether two Paths are known to charge one quota: one of this process, or one
// that their store keeps under the same name and key.
func (p *Path) isSameQuota(o *Path) bool {
	if (p.group == nil) != (o.group == nil) || p.key != o.key {
		return false
	}
	if p.group == o.group && (p.group != nil || p.scope.Load() == o.scope.Load()) {
		return true
	}
	a, b := p.revision(), o.revision()
	return a.Name == b.Name && isSameStore(a.Store, b.Store)
}

// isSameStore reports whether two stores are equal. Those that cannot be compared are not.
func isSameStore(a, b store.Store) bool {
	return a != nil && reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// fastPath returns the scope and its revision if the next request needs only the quota's own
// decision, as most do. Otherwise the revision is nil.
func (p *Path) fastPath() (s *Scope, rev *Revision) {
	if p.nesting == &alone {
		s = p.scope.Load()
		if rev = s.current.Load(); !rev.fastPath || rev.closed || s.waiting() > 0 {
			rev = nil
		}
	}
	return s, rev
}

// WaitOne admits one request on the fast path, and waits if necessary. If done is false, the request
// needs Admit.
func (p *Path) WaitOne(ctx context.Context) (done bool, err error) {
	s, rev := p.fastPath()
	if rev == nil || ctx.Err() != nil {
		return false, nil
	}
	if rev.fast != nil {
		if f, _, _, ok := rev.fast.TryOne(false); ok {
			if rev.Events != nil {
				rev.reportOne(ctx, f, false)
			}
			return true, nil
		}
	}
	if rev.Events != nil {
		return false, nil
	}
	return true, s.waitOne(ctx, rev)
}

// AllowOne admits one request on the fast path if it need not wait. If done is false, the request
// needs Admit.
func (p *Path) AllowOne(ctx context.Context) (done, allowed bool) {
	_, rev := p.fastPath()
	if rev == nil {
		return false, false
	}
	if rev.fast != nil {
		if f, _, _, ok := rev.fast.TryOne(false); ok {
			if rev.Events != nil {
				rev.reportOne(ctx, f, false)
			}
			return true, true
		}
	}
	if rev.Events != nil {
		return false, false
	}
	d, err := rev.quota.TryAcquire(ctx, store.Request{Cost: rev.oneRequest, WaitSpec: rev.initialWaitSpec(ctx)})
	return d.Verdict != store.Moved, err == nil && d.Verdict == store.Admitted
}

// TryOne admits a held request of no other cost on the quota's credit, if it can.
func (p *Path) TryOne(ctx context.Context, a *Admission) bool {
	s, rev := p.fastPath()
	if rev == nil || rev.fast == nil {
		return false
	}
	f, at, epoch, ok := rev.fast.TryOne(true)
	if ok {
		a.Scope, a.Revision, a.Cost, a.Fast = s, rev, rev.oneRequest, true
		a.Decision.Verdict, a.Decision.Tier, a.Decision.Flight, a.Decision.At, a.Decision.Epoch = store.Admitted, -1, f, at, epoch
		if rev.Events != nil {
			rev.reportOne(ctx, f, true)
		}
	}
	return ok
}

// reportOne reports a request that TryOne has admitted. If that panics, the request is not sent, and is
// refunded.
func (rev *Revision) reportOne(ctx context.Context, f algorithms.Flight, held bool) {
	done := false
	defer func() {
		if done {
			return
		}
		_ = rev.quota.Return(context.Background(), store.Decision{Flight: f}, rev.oneRequest)
		if held {
			rev.Events.Unsent(ctx)
		}
	}()
	rev.Events.Admitted(ctx, held)
	done = true
}

// enterOuter returns the scopes around the Path's own, which a Group keeps until leaveAll is
// called.
func (p *Path) enterOuter() (around []*Scope, err error) {
	for o := p.outer; o != nil; o = o.outer {
		s, err := o.Enter()
		if err != nil {
			leaveAll(around)
			return nil, err
		}
		around = append(around, s)
	}
	return around, nil
}

func leaveAll(scopes []*Scope) {
	for _, s := range scopes {
		s.Leave()
	}
}

// Admit admits a demand in this scope, which Enter has returned, and all outer ones. With wait false it may
// return no error although the request is not admitted, because it has to wait. Unless the request is
// admitted, Admit leaves the scope.
func (p *Path) Admit(ctx context.Context, s *Scope, d *Demand, a *Admission, wait bool) error {
	if (wait || d.NoWait) && d.Object != nil && p.Holds() {
		if err := p.awaitObject(ctx, s, d); err != nil {
			s.Leave()
			return err
		}
	}
	decision, err := p.decide(ctx, s, d, a, wait)
	if err == nil && d.NoWait && !a.Charged() {
		err = p.notNow(ctx, d, a.Revision, decision)
	}
	return err
}

// Holds reports whether any object pauses in a scope of the Path.
func (p *Path) Holds() bool {
	for ; p != nil; p = p.outer {
		if s := p.scope.Load(); s != nil && s.objects.Holds() {
			return true
		}
	}
	return false
}

// awaitObject waits until the object of a demand pauses no longer, in the innermost scope that is not blameless.
// A demand that does not wait is refused instead.
func (p *Path) awaitObject(ctx context.Context, s *Scope, d *Demand) error {
	for s.blameless && p.outer != nil {
		p = p.outer
		if s = p.scope.Load(); s == nil { // its Group has parked it, and it remembers no object
			return nil
		}
	}
	rev := s.current.Load()
	giveUp, err := s.giveUpAt(rev, d)
	if err != nil {
		return err
	}
	if d.NoWait {
		giveUp = time.Now()
	}
	bounded := ctx
	if !giveUp.IsZero() {
		var cancel context.CancelFunc
		bounded, cancel = context.WithDeadline(ctx, giveUp)
		defer cancel()
	}
	began := time.Now()
	wait, err := s.objects.Wait(bounded, d.Object())
	if rev.MaxWait > 0 { // it goes on in the queue
		d.waited = map[*Scope]time.Duration{s: time.Since(began)}
	}
	if err == context.DeadlineExceeded {
		late := rev.refuse(queue.Late, -1, wait)
		late.Bound = d.earliest(ctx)
		return late
	}
	return err
}

// ErrNotNow is the error of a demand that neither waits nor is held.
var ErrNotNow = errors.New("throttle: not now")

// notNow returns the error of a demand that does not wait and that a decision has not admitted.
func (p *Path) notNow(ctx context.Context, d *Demand, rev *Revision, decision store.Decision) error {
	if !d.Held {
		return ErrNotNow
	}
	ahead := p.Waiting()
	yields := rev.initialWaitSpec(ctx) != nil // and does not age, as a forecast assumes
	// Other callers wait, here or for an outer quota, or responses may shorten the wait.
	if ahead > 0 || decision.Tier < 0 && decision.Wait == store.Forever || rev.foresees && !yields {
		var f Forecast
		if err := f.Ask(ctx, p, *d, false); err == nil {
			return f.refusal()
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return rev.refusal(&queue.Refusal{Reason: queue.Late, Tier: decision.Tier, Wait: decision.Wait, Ahead: ahead})
}

// admit is Admit for a demand of its own, which waits unless it has NoWait.
func (p *Path) admit(ctx context.Context, d Demand, a *Admission) error {
	s, err := p.Enter()
	if err != nil {
		return err
	}
	return p.Admit(ctx, s, &d, a, !d.NoWait)
}

// tryNow is decide without waiting.
func (p *Path) tryNow(ctx context.Context, d Demand, a *Admission) (store.Decision, error) {
	s, err := p.Enter()
	if err != nil {
		return store.Decision{}, err
	}
	return p.decide(ctx, s, &d, a, false)
}

// decide is Admit, but if wait is false and the request would have to wait, nothing is charged, and the
// decision, under a.Revision, contains the reason unless other callers wait.
func (p *Path) decide(ctx context.Context, s *Scope, d *Demand, a *Admission, wait bool) (decision store.Decision, err error) {
	done := false
	defer func() {
		if !done { // the request is refused or has to wait, or an outer policy's callback panicked
			s.Leave()
		}
	}()
	decision, err = p.charge(ctx, s, d, a, wait)
	if done = err == nil && a.Charged(); !done {
		return decision, err
	}
	if d.refundable {
		a.announce(nil)
	} else {
		a.announce(d.Record)
	}
	return decision, nil
}

// charge charges a demand in this scope and all outer ones; see decide.
func (p *Path) charge(ctx context.Context, s *Scope, d *Demand, a *Admission, wait bool) (decision store.Decision, err error) {
	for {
		if a.Revision, err = p.revisionFor(s, d); err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
		case wait && p.outer == nil:
			err = s.admit(ctx, a.Revision, d, &a.Charge)
		case wait:
			err = p.admitThrough(ctx, s, a.Revision, *d, a)
		case p.outer == nil:
			decision, err = s.tryNow(ctx, a.Revision, d, &a.Charge)
		default:
			decision, err = p.tryThrough(ctx, s, a.Revision, *d, a)
		}
		if err != nil || decision.Verdict != store.Moved {
			return decision, err
		}
		s.adoptSuccessor()
	}
}

// revisionFor returns the revision that can count a demand. If the revisions in force cannot, another
// handle may just have changed a policy, so revisionFor tries their successors.
func (p *Path) revisionFor(s *Scope, d *Demand) (*Revision, error) {
	rev := s.current.Load()
	if p.checkDemand(rev, d) == nil {
		return rev, nil
	}
	for o := p.outer; o != nil; o = o.outer {
		if s, err := o.Enter(); err == nil {
			s.adoptSuccessor()
			s.Leave()
		}
	}
	rev = s.adoptSuccessor()
	return rev, p.checkDemand(rev, d)
}

// checkDemand returns an error for a demand that this scope and the outer ones cannot count.
func (p *Path) checkDemand(rev *Revision, d *Demand) error {
	if rev.closed {
		return rev.refuse(queue.Closed, -1, 0)
	}
	switch {
	case d.refundable:
		return nil // the inner scope has checked it
	case d.Cost == nil && d.Held && p.outer == nil:
		return rev.requireRequestTier(rev.countsRequests)
	}
	counts, concurrent := rev.countsRequests, rev.concurrent
	for o := p.outer; o != nil; o = o.outer {
		if o.err != nil {
			return o.err
		}
		outer := o.revision()
		if outer.closed {
			return outer.refuse(queue.Closed, -1, 0)
		}
		counts, concurrent = counts || outer.countsRequests, concurrent || outer.concurrent
	}
	switch {
	case d.N < 0:
		return rev.Errorf("n is %d: it must be at least 0", d.N)
	case concurrent && !d.Held:
		return rev.refuse(NeedsPermit, -1, 0)
	case d.Cost == nil:
		return rev.requireRequestTier(counts || d.N == 0)
	}
	if d.anyUnit {
		return nil
	}
	return p.checkCost(rev, d.Cost)
}

// checkCost returns an error for a cost that has a negative amount or names a unit that no scope counts.
func (p *Path) checkCost(rev *Revision, c map[string]int64) error {
	for unit, n := range c {
		known := unit == algorithms.Requests || rev.countsUnit(unit)
		for o := p.outer; o != nil; o = o.outer {
			known = known || o.revision().countsUnit(unit)
		}
		switch {
		case n < 0:
			return rev.Errorf("cost of %q is %d: it must be at least 0", unit, n)
		case !known:
			return rev.Errorf("cost names the unit %q: the policy counts %s", unit, strings.Join(p.units(), ", "))
		}
	}
	return nil
}

// units returns the units that the scopes count, those of the inner scopes first.
func (p *Path) units() (units []string) {
	for ; p != nil; p = p.outer {
		for _, unit := range p.revision().Plan.Units() {
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}
	return units
}

// Waiting returns how many callers wait in the Path's own queue.
func (p *Path) Waiting() int {
	if p.outer != nil {
		return p.ownQueue.len() + p.joint.len()
	}
	return p.scope.Load().waiting()
}

// queue returns the queue that callers of the Path join first.
func (p *Path) queue() *waitQueue {
	switch {
	case p.outer == nil:
		return &p.scope.Load().queue
	case p.joint.len() > 0:
		return &p.joint
	}
	return &p.ownQueue
}

// asksAtOnce reports whether a request that came now would ask the quota before it joined a queue.
func (p *Path) asksAtOnce(rev *Revision, d *Demand) bool {
	cost, err := rev.costOf(d)
	if p.outer == nil {
		s := p.scope.Load()
		return err == nil && s.skipsQueue(rev, &s.queue, cost, false)
	}
	return err == nil && (p.Waiting() == 0 || rev.isFree(cost))
}

// Status returns the state of the scopes. After an error it has the tiers of the quotas that answered.
func (p *Path) Status(ctx context.Context) (status store.Status, err error) {
	for o := p; o != nil; o = o.outer {
		s, err := o.Enter()
		if err != nil {
			return status, err
		}
		rev, one, err := s.status(ctx)
		s.Leave()
		status.Tiers = append(status.Tiers, rev.mergePaces(one.Tiers)...)
		status.Paused, status.Closed = max(status.Paused, one.Paused), max(status.Closed, one.Closed)
		if o == p {
			status.Shared, status.Fallback = one.Shared, one.Fallback
		}
		if err != nil {
			return status, err
		}
	}
	status.Waiting = p.Waiting()
	s := p.scope.Load()
	rev := s.current.Load()
	status.Policy, status.Guard = rev.Name, s.guardInForce(rev)
	return status, nil
}

// Close refuses all waiting callers and every later call, also those of other Paths of the scope or
// inside it.
func (p *Path) Close() {
	if s, err := p.Enter(); err == nil {
		defer s.Leave()
		p.ownQueue.close()
		p.joint.close()
		s.close()
	}
}
