package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A Store keeps quotas: in this process, as package local does, or for the processes of a fleet, as
// package distributed does.
type Store = store.Store

// A Status is the state of a quota at one moment.
type Status = store.Status

// A TierStatus is the state of one tier.
type TierStatus = store.TierStatus

const forever = store.Forever

// A Limiter admits requests under a policy, in the order in which callers arrive.
//
// Wait blocks until one request may be sent, WaitN until n may. Allow and TryAcquire never wait.
// Acquire is like Wait but takes a Cost and returns a Permit. Use the Permit to report when the
// request arrives and ends; policies with Concurrency tiers require it, and others free capacity
// sooner. A Transport does all that for an http.Client.
//
// Waiting callers hold places in the queue, not units of the quota. Only an admitted request is
// charged, in all tiers or in none, and a canceled caller leaves no trace in the queue. A later
// request never overtakes an earlier one, however large the cost of the earlier one is, unless its
// [Class] goes first.
//
// Under a policy with Shadow nothing waits and nothing is refused; see [Policy].
//
// Every refusal is a [*WaitError]. A context's own error is returned as it is. New, Group.For and
// Within return Limiters. A Limiter need not be closed and is safe for concurrent use.
type Limiter struct {
	scope atomic.Pointer[scope]
	*nesting
	key string // in the group
}

// A nesting is what surrounds the scope of a Limiter. All Limiters of a Group share one, but for
// those inside others.
type nesting struct {
	group    *Group // keeps the scope; nil if New made the Limiter
	outer    *Limiter
	ownQueue waitQueue // the queue of this Limiter's callers, if it lies inside others
	slower   slower    // see Limiter.holdOne
	joint    waitQueue // the queue of the callers that are charged in all scopes at once
	bundle   atomic.Pointer[bundledQuota]
	err      error           // the error of every call; nil if the Limiter works
	refuses  *compiledPolicy // the policy of a Limiter with an err
}

// alone is the nesting of the Limiters that New returns.
var alone nesting

// refusing returns a Limiter of a policy that fails every call with an error.
func refusing(c *compiledPolicy, err error) *Limiter {
	return &Limiter{nesting: &nesting{err: err, refuses: c}}
}

// New returns a Limiter of the policy. If s is nil, the Limiter keeps a quota of its own in this
// process. Limiters with the same policy name on the same store share one quota; such a policy must
// have a Name. New returns an error if the policy is not valid or the store cannot keep it.
func New(p Policy, s Store) (*Limiter, error) {
	c, err := compile(p, s)
	if err != nil {
		return nil, err
	}
	scope, err := openScope(c, p.Name)
	if err != nil {
		return nil, err
	}
	l := &Limiter{nesting: &alone}
	l.scope.Store(scope)
	return l, nil
}

// checkStore returns an error for a policy that a store cannot keep.
func checkStore(p Policy, s Store) error {
	switch {
	case s == nil:
	case p.Name == "":
		return errors.New("throttle: policy \"\": Name is empty: a shared store keeps quotas by name, so give it one")
	case p.Shadow:
		return fmt.Errorf("throttle: policy %q: Shadow is true: a shadow has no store: pass a nil Store, or set Shadow to false", p.Name)
	}
	return nil
}

// Name returns the name of the policy.
func (l *Limiter) Name() string {
	if l.refuses != nil {
		return l.refuses.policy.Name
	}
	return l.revision().policy.Name
}

// enter returns the Limiter's scope. A Group keeps the scope until leave is called.
func (l *Limiter) enter() (*scope, error) {
	s := l.scope.Load()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.group != nil:
		return l.group.enter(l)
	}
	return s, nil
}

func (l *Limiter) revision() *revision { return l.scope.Load().current.Load() }

// Wait blocks until one request may be sent, and charges it. Its errors are those of WaitN for one
// request.
func (l *Limiter) Wait(ctx context.Context) error {
	s, rev := l.fastPath()
	if rev == nil || ctx.Err() != nil {
		return l.WaitN(ctx, 1)
	}
	if rev.fast != nil {
		if f, _, _, ok := rev.fast.TryOne(false); ok {
			if rev.policy.Observer != nil {
				rev.admittedAtOnce(ctx, f, false)
			}
			return nil
		}
	}
	if rev.policy.Observer != nil {
		return l.WaitN(ctx, 1)
	}
	d, err := rev.quota.TryAcquire(ctx, store.Request{Cost: rev.oneRequest, WaitSpec: rev.initialWaitSpec(ctx)})
	if err == nil && d.Verdict == store.Admitted {
		return nil
	}
	var c charge
	if err := rev.decisionError(ctx, d, err, false); err != nil {
		return err
	}
	return s.wait(ctx, rev, &demand{n: 1}, &c)
}

// fastPath returns the scope and its revision if the next request needs only the quota's own
// decision, as most do. Otherwise the revision is nil.
func (l *Limiter) fastPath() (*scope, *revision) {
	if l.nesting != &alone {
		return nil, nil
	}
	s := l.scope.Load()
	rev := s.current.Load()
	if !rev.fastPath || rev.closed || s.waiting() > 0 {
		return nil, nil
	}
	return s, rev
}

// tryOne admits a held request of no other cost on the quota's credit, if it can.
func (l *Limiter) tryOne(ctx context.Context, a *admission) bool {
	s, rev := l.fastPath()
	if rev == nil || rev.fast == nil {
		return false
	}
	f, at, epoch, ok := rev.fast.TryOne(true)
	if ok {
		a.scope, a.revision, a.cost, a.fast = s, rev, rev.oneRequest, true
		a.decision.Verdict, a.decision.Tier, a.decision.Flight, a.decision.At, a.decision.Epoch = store.Admitted, -1, f, at, epoch
		if o := rev.policy.Observer; o != nil {
			a.listen(o)
			rev.admittedAtOnce(ctx, f, true)
		}
	}
	return ok
}

// WaitN blocks until n requests may be sent at once, and charges them. If n is 0 it returns at
// once.
//
// After an error nothing is charged. The error is ctx.Err() if the context ends first, or a
// *WaitError for one of these reasons: ErrDeadline, ErrExceedsCapacity, ErrExhausted, ErrQueueFull,
// ErrBanned, ErrNeedsPermit on a policy with Concurrency, ErrUnavailable, ErrClosed and, for a
// Limiter of a Group, ErrTooManyKeys. It is another error if n is negative or if no tier counts
// requests.
func (l *Limiter) WaitN(ctx context.Context, n int64) error {
	if n == 0 && !l.isClosed() {
		return ctx.Err()
	}
	var a admission
	if err := l.admit(ctx, demand{n: n}, &a); err != nil {
		return err
	}
	a.leaveScopes()
	return nil
}

// isClosed reports whether every call is refused.
func (l *Limiter) isClosed() bool {
	s := l.scope.Load()
	return l.err != nil || s != nil && s.current.Load().closed
}

// Allow reports whether one request may be sent now, and charges it if so. It never overtakes
// waiting callers. It returns false on a policy with Concurrency, where every admission must be
// released. Allow does not wait; with a shared store it blocks for one round trip.
func (l *Limiter) Allow() bool {
	_, rev := l.fastPath()
	if rev == nil {
		return l.AllowN(1)
	}
	if rev.fast != nil {
		if f, _, _, ok := rev.fast.TryOne(false); ok {
			if rev.policy.Observer != nil {
				rev.admittedAtOnce(context.Background(), f, false)
			}
			return true
		}
	}
	if rev.policy.Observer != nil {
		return l.AllowN(1)
	}
	d, err := rev.quota.TryAcquire(context.Background(), store.Request{Cost: rev.oneRequest})
	if d.Verdict == store.Moved {
		return l.AllowN(1)
	}
	return err == nil && d.Verdict == store.Admitted
}

// AllowN is like Allow for n requests at once.
func (l *Limiter) AllowN(n int64) bool {
	if n == 0 {
		return !l.isClosed()
	}
	var a admission
	if l.admit(context.Background(), demand{n: n, noWait: true}, &a) != nil {
		return false
	}
	a.leaveScopes()
	return true
}

// Acquire blocks until a request of cost c may be sent, charges it and returns its Permit. A nil c
// is one request. The caller must call Release, or Cancel if the request was not sent; see
// [Permit].
//
// The errors are those of WaitN without ErrNeedsPermit. A Cost that names a unit that no tier
// counts, or a negative amount, is an error too.
func (l *Limiter) Acquire(ctx context.Context, c Cost) (*Permit, error) {
	return l.acquire(ctx, c, false)
}

// TryAcquire is like Acquire but does not wait. A request that would have to wait fails with
// ErrDeadline, and the Wait of the *WaitError is the time after which it might be admitted. With a
// shared store TryAcquire blocks for one round trip, or for two if other callers wait. If the
// store does not answer, the error matches ErrUnavailable. If ctx ends before the store answers,
// TryAcquire returns at once, and the error matches ctx.Err().
func (l *Limiter) TryAcquire(ctx context.Context, c Cost) (*Permit, error) {
	return l.acquire(ctx, c, true)
}

func (l *Limiter) acquire(ctx context.Context, c Cost, noWait bool) (*Permit, error) {
	p := new(Permit)
	if c != nil || ctx.Err() != nil || !l.tryOne(ctx, &p.admission) {
		if err := l.admit(ctx, demand{cost: c, n: 1, held: true, noWait: noWait}, &p.admission); err != nil {
			return nil, err
		}
	}
	return p.start(ctx), nil
}

// admit waits until this scope and all outer ones have admitted a demand, unless the demand does not
// wait. If it succeeds, the caller must call a.leaveScopes.
func (l *Limiter) admit(ctx context.Context, d demand, a *admission) error {
	if l.compiled().policy.Shadow {
		return new(shadow).admit(ctx, l, d, a)
	}
	return l.request(ctx, &d, a, !d.noWait)
}

// compiled returns the policy in force.
func (l *Limiter) compiled() *compiledPolicy {
	if l.refuses != nil {
		return l.refuses
	}
	return l.revision().compiledPolicy
}

// request is admit under a policy without Shadow. With wait false it may return no error although the
// request is not admitted, because it has to wait.
func (l *Limiter) request(ctx context.Context, d *demand, a *admission, wait bool) error {
	decision, err := l.decide(ctx, d, a, wait)
	if err == nil && d.noWait && !a.charged() {
		err = l.notNow(ctx, d, a.revision, decision)
		d.observed.refuse(err)
	}
	return err
}

// notNow returns the error of a demand that does not wait and that a decision has not admitted.
func (l *Limiter) notNow(ctx context.Context, d *demand, rev *revision, decision store.Decision) error {
	if !d.held {
		return errNotNow
	}
	ahead := l.waiting()
	yields := rev.initialWaitSpec(ctx) != nil // and does not age, as a forecast assumes
	// Other callers wait, here or for an outer quota, or responses may shorten the wait.
	if ahead > 0 || decision.Tier < 0 && decision.Wait == forever || rev.foresees && !yields {
		var f Explanation
		if err := l.foretell(ctx, *d, &f, false); err == nil {
			return &WaitError{Policy: f.By, Tier: f.Tier, Wait: f.Wait, Ahead: f.Ahead, Err: ErrDeadline}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return rev.refusal(&queue.Refusal{Reason: queue.Late, Tier: decision.Tier, Wait: decision.Wait, Ahead: ahead})
}

// tryNow is decide without waiting.
func (l *Limiter) tryNow(ctx context.Context, d demand, a *admission) (store.Decision, error) {
	return l.decide(ctx, &d, a, false)
}

// decide admits a demand in this scope and all outer ones. If wait is false and the request would have
// to wait, nothing is charged. The decision, under a.revision, then contains the reason unless other
// callers wait.
func (l *Limiter) decide(ctx context.Context, d *demand, a *admission, wait bool) (decision store.Decision, err error) {
	s, err := l.enter()
	r := d.observe(ctx, l.compiled())
	if err != nil {
		r.refuse(err)
		return decision, err
	}
	done := false
	err = errPanicked
	defer func() {
		if !done { // the request is refused or has to wait, or an outer policy's callback panicked
			s.leave()
		}
		r.refuse(err)
	}()
	decision, cause := l.charge(ctx, s, d, a, wait)
	if done = cause == nil && a.charged(); done {
		a.announce(r)
	}
	return decision, cause
}

// charge charges a demand in this scope and all outer ones; see decide.
func (l *Limiter) charge(ctx context.Context, s *scope, d *demand, a *admission, wait bool) (decision store.Decision, err error) {
	for {
		if a.revision, err = l.revisionFor(s, d); err == nil {
			err = ctx.Err()
		}
		switch {
		case err != nil:
		case wait && l.outer == nil:
			err = s.admit(ctx, a.revision, d, &a.charge)
		case wait:
			err = l.admitThrough(ctx, s, a.revision, *d, a)
		case l.outer == nil:
			decision, err = s.tryNow(ctx, a.revision, d, &a.charge)
		default:
			decision, err = l.tryThrough(ctx, s, a.revision, *d, a)
		}
		if err != nil || decision.Verdict != store.Moved {
			return decision, err
		}
		s.adoptSuccessor()
	}
}

// revisionFor returns the revision that can count a demand. If the revisions in force cannot, another
// handle may just have changed a policy, so revisionFor tries their successors.
func (l *Limiter) revisionFor(s *scope, d *demand) (*revision, error) {
	rev := s.current.Load()
	if l.checkDemand(rev, d) == nil {
		return rev, nil
	}
	for o := l.outer; o != nil; o = o.outer {
		if s, err := o.enter(); err == nil {
			s.adoptSuccessor()
			s.leave()
		}
	}
	rev = s.adoptSuccessor()
	return rev, l.checkDemand(rev, d)
}

// checkDemand returns an error for a demand that this scope and the outer ones cannot count.
func (l *Limiter) checkDemand(rev *revision, d *demand) error {
	if rev.closed {
		return rev.refuse(ErrClosed, -1, 0)
	}
	switch {
	case d.refundable:
		return nil // the inner scope has checked it
	case d.cost == nil && d.held && l.outer == nil:
		return rev.requireRequestTier(rev.countsRequests)
	}
	counts, concurrent := rev.countsRequests, rev.concurrent
	for o := l.outer; o != nil; o = o.outer {
		if o.err != nil {
			return o.err
		}
		outer := o.revision()
		if outer.closed {
			return outer.refuse(ErrClosed, -1, 0)
		}
		counts, concurrent = counts || outer.countsRequests, concurrent || outer.concurrent
	}
	switch {
	case d.n < 0:
		return rev.errorf("n is %d: it must be at least 0", d.n)
	case concurrent && !d.held:
		return rev.refuse(ErrNeedsPermit, -1, 0)
	case d.cost == nil:
		return rev.requireRequestTier(counts || d.n == 0)
	}
	return l.checkCost(rev, d.cost)
}

// requireRequestTier returns an error unless some tier counts requests. Without such a tier, a
// request without a Cost would be admitted at any rate.
func (rev *revision) requireRequestTier(counts bool) error {
	if counts {
		return nil
	}
	return rev.errorf("no tier counts requests: use Acquire with a Cost, or Transport.Cost, that names %s", strings.Join(rev.plan.Units(), ", "))
}

// checkCost returns an error for a cost that has a negative amount or names a unit that no scope counts.
func (l *Limiter) checkCost(rev *revision, c Cost) error {
	for unit, n := range c {
		known := unit == algorithms.Requests || rev.countsUnit(unit)
		for o := l.outer; o != nil; o = o.outer {
			known = known || o.revision().countsUnit(unit)
		}
		switch {
		case n < 0:
			return rev.errorf("cost of %q is %d: it must be at least 0", unit, n)
		case !known:
			return rev.errorf("cost names the unit %q: the policy counts %s", unit, strings.Join(l.units(), ", "))
		}
	}
	return nil
}

// units returns the units that the scopes count, those of the inner scopes first.
func (l *Limiter) units() (units []string) {
	for ; l != nil; l = l.outer {
		for _, unit := range l.revision().plan.Units() {
			if !slices.Contains(units, unit) {
				units = append(units, unit)
			}
		}
	}
	return units
}

// waiting returns how many callers wait in the Limiter's own queue.
func (l *Limiter) waiting() int {
	if l.outer != nil {
		return l.ownQueue.len() + l.joint.len()
	}
	return l.scope.Load().waiting()
}

// Pause stops all admissions for d, for all callers that share the quota. Waiting callers keep
// their places; those that the pause makes late are refused. A shorter pause never shortens a
// longer one, and a d of 0 or less does nothing. With a shared store Pause blocks for one round
// trip, and the pause holds for the fleet. After an error it may hold for this process only.
func (l *Limiter) Pause(ctx context.Context, d time.Duration) error {
	s, err := l.enter()
	if err != nil || d <= 0 {
		return err
	}
	defer s.leave()
	var after callbacks
	err = s.pause(ctx, s.current.Load(), store.Pause{For: d}, ownPause{cause: PausedByCall}, &after)
	after.run()
	return err
}

// Resume ends the pause or ban in force, for all callers that share the quota: with a shared store,
// for the fleet. With a shared store it blocks for one round trip. After an error other processes
// may still pause.
func (l *Limiter) Resume(ctx context.Context) error {
	s, err := l.enter()
	if err != nil {
		return err
	}
	defer s.leave()
	return s.current.Load().quota.Resume(ctx)
}

// SetPolicy replaces the policy of the quota, for every Limiter of the quota in this process. Other
// processes keep their own policy until they set another. What is charged stays charged where a
// tier of the same unit remains, and waiting callers keep their order under the new tiers.
// SetPolicy does not wait for callers.
//
// The Name of p must be the Name of the policy that it replaces, and AssumeUsed is ignored.
// SetPolicy returns an error, and changes nothing, if p is not valid or if the store cannot keep what
// is charged under other tiers.
func (l *Limiter) SetPolicy(ctx context.Context, p Policy) error {
	s, err := l.enter()
	if err != nil {
		return err
	}
	defer s.leave()
	c, err := s.current.Load().replacement(p)
	if err != nil {
		return err
	}
	return s.setPolicy(ctx, c)
}

// Close refuses all waiting callers and every later call with ErrClosed. It gives back what a
// shared store has reserved for them. Permits stay valid. Close also closes the Limiters that
// Within made from this one or put inside it and, in a Group, all Limiters of the key. Other
// Limiters of the quota, such as one that New returned for the same name and store, keep working.
// Close does not block and may be called more than once.
func (l *Limiter) Close() {
	if s, err := l.enter(); err == nil {
		defer s.leave()
		l.ownQueue.close()
		l.joint.close()
		s.close()
	}
}

// A Forecast is how long a request would wait, as Limiter.Forecast returns it.
type Forecast struct {
	// Wait is a lower bound of the wait while no caller ahead leaves. Late responses and requests of
	// a higher Class make the wait longer; a caller ahead that is canceled, gives up at its deadline
	// or MaxWait, or is refused by a budget makes it shorter, and so may the callers of nested Limiters
	// whose policies differ in Aging: they are in a different order in each quota. In one quota Wait is
	// exact if all costs are equal and responses come at once, except for an AnchoredWindow beside other
	// tiers with a guard. With a shared store it assumes that the rest of the fleet sends only what is
	// already reserved, or has a turn. If zero, the request may be sent at once, or it is not known how long callers
	// ahead, or the response or the release that Tier waits for, will take.
	Wait time.Duration

	// Tier is the tier that decides, as ParsePolicy reads it. If empty, no tier does.
	Tier string

	// Ahead is how many callers of this process are ahead.
	Ahead int
}

// Forecast returns how long a request of cost c, in the Class of ctx, would wait if it arrived now.
// It charges nothing. If Acquire would fail at once, Forecast returns the same error, and the
// Forecast too if that is ErrDeadline or ErrQueueFull. With a shared store it blocks for one round trip,
// or for two if a Batch request leaves Headroom.
func (l *Limiter) Forecast(ctx context.Context, c Cost) (Forecast, error) {
	var e Explanation
	if err := l.foretell(ctx, demand{cost: c, n: 1, held: true}, &e, false); err != nil {
		return Forecast{}, err
	}
	return e.Forecast, e.Err
}

// Status returns the state of every tier, the number of waiting callers and the pause or ban in
// force. It charges nothing. For a Limiter inside others it has the tiers of all, the inner ones
// first, each with the name of its policy. With a shared store Status blocks for one round trip for
// each quota. After an error it has the tiers of the quotas that answered.
func (l *Limiter) Status(ctx context.Context) (status Status, err error) {
	for o := l; o != nil; o = o.outer {
		s, err := o.enter()
		if err != nil {
			return status, err
		}
		rev, one, err := s.status(ctx)
		s.leave()
		status.Tiers = append(status.Tiers, rev.mergePaces(one.Tiers)...)
		status.Paused, status.Closed = max(status.Paused, one.Paused), max(status.Closed, one.Closed)
		if o == l {
			status.Shared, status.Fallback = one.Shared, one.Fallback
		}
		if err != nil {
			return status, err
		}
	}
	status.Waiting = l.waiting()
	s := l.scope.Load()
	rev := s.current.Load()
	status.Policy, status.Guard = rev.policy.Name, max(s.guard(rev), rev.plan.Guard())
	return status, nil
}

// status returns the state of the quota, and the revision that its tiers belong to.
func (s *scope) status(ctx context.Context) (rev *revision, status Status, err error) {
	for rev = s.adoptSuccessor(); ; {
		status, err = rev.quota.Status(ctx)
		now := s.adoptSuccessor()
		if now == rev {
			return rev, status, err
		}
		rev = now
	}
}

// mergePaces returns the state of the tiers as the policy declares them. The counts are those of the
// tiers themselves. The pace of a tier, if it has one, only restricts what may go now.
func (c *compiledPolicy) mergePaces(deciding []TierStatus) (tiers []TierStatus) {
	for i, s := range deciding {
		if c.plan.IsPace(i) {
			of := &tiers[len(tiers)-1]
			of.Limited = of.Limited || s.Limited
			of.Remaining = min(of.Remaining, s.Remaining)
			of.RetryAfter = max(of.RetryAfter, s.RetryAfter)
			continue
		}
		s.Policy, s.Tier = c.policy.Name, c.policy.Tiers[c.plan.Declared(i)]
		tiers = append(tiers, s)
	}
	return tiers
}
