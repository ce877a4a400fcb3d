package throttle

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/internal/admit"
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
	path admit.Path
}

// pathOf returns the scopes that a Limiter charges.
func pathOf(l *Limiter) *admit.Path { return &l.path }

// New returns a Limiter of the policy. If s is nil, the Limiter keeps a quota of its own in this
// process. Limiters with the same policy name on the same store share one quota; such a policy must
// have a Name. New returns an error if the policy is not valid or the store cannot keep it.
func New(p Policy, s Store) (*Limiter, error) {
	c, err := compile(p, s)
	if err != nil {
		return nil, err
	}
	l := new(Limiter)
	if err := l.path.Open(c); err != nil {
		return nil, err
	}
	return l, nil
}

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
	nested := new(Limiter)
	nested.path.Nest(&l.path, &outer.path)
	return nested
}

// Name returns the name of the policy.
func (l *Limiter) Name() string { return l.path.Policy().Name }

// Wait blocks until one request may be sent, and charges it. Its errors are those of WaitN for one
// request.
func (l *Limiter) Wait(ctx context.Context) error {
	switch done, err := l.path.WaitOne(ctx); {
	case !done:
		return l.WaitN(ctx, 1)
	case err != nil:
		return waitError(err)
	}
	return nil
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
	if n == 0 && !l.path.IsClosed() {
		return ctx.Err()
	}
	var a admission
	if err := l.admit(ctx, admit.Demand{N: n}, &a); err != nil {
		return err
	}
	a.leave()
	return nil
}

// Allow reports whether one request may be sent now, and charges it if so. It never overtakes
// waiting callers. It returns false on a policy with Concurrency, where every admission must be
// released. Allow does not wait; with a shared store it blocks for one round trip.
func (l *Limiter) Allow() bool {
	if done, allowed := l.path.AllowOne(context.Background()); done {
		return allowed
	}
	return l.AllowN(1)
}

// AllowN is like Allow for n requests at once.
func (l *Limiter) AllowN(n int64) bool {
	if n == 0 {
		return !l.path.IsClosed()
	}
	var a admission
	if l.admit(context.Background(), admit.Demand{N: n, NoWait: true}, &a) != nil {
		return false
	}
	a.leave()
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
	if c != nil || ctx.Err() != nil || !l.tryOne(ctx, &p.a) {
		if err := l.admit(ctx, admit.Demand{Cost: c, N: 1, Held: true, NoWait: noWait}, &p.a); err != nil {
			return nil, err
		}
	}
	return p.start(ctx), nil
}

// tryOne admits a held request of no other cost on the quota's credit, if it can.
func (l *Limiter) tryOne(ctx context.Context, a *admission) bool {
	if !l.path.TryOne(ctx, &a.Admission) {
		return false
	}
	if o := observerOf(a.Revision.Policy); o != nil {
		a.listen(o)
	}
	return true
}

// admit waits until this scope and all outer ones have admitted a demand, unless the demand does not
// wait. If it succeeds, the caller must call a.leave.
func (l *Limiter) admit(ctx context.Context, d admit.Demand, a *admission) error {
	if l.path.Policy().Shadow {
		return new(shadow).admit(ctx, l, d, a)
	}
	return l.request(ctx, &d, a, !d.NoWait)
}

// request is admit under a policy without Shadow. With wait false it may return no error although the
// request is not admitted, because it has to wait.
func (l *Limiter) request(ctx context.Context, d *admit.Demand, a *admission, wait bool) (err error) {
	s, failed := l.path.Enter()
	r := observe(ctx, d, l.path.Policy())
	err = errPanicked
	defer func() { r.refuse(err) }()
	if failed == nil {
		failed = l.path.Admit(ctx, s, d, &a.Admission, wait)
	}
	if err = waitError(failed); err == nil && r != nil && a.Charged() {
		a.listen(r.observer)
	}
	return err
}

// Pause stops all admissions for d, for all callers that share the quota. Waiting callers keep
// their places; those that the pause makes late are refused. A shorter pause never shortens a
// longer one, and a d of 0 or less does nothing. With a shared store Pause blocks for one round
// trip, and the pause holds for the fleet. After an error it may hold for this process only.
func (l *Limiter) Pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	s, err := l.path.Enter()
	if err != nil {
		return waitError(err)
	}
	defer s.Leave()
	var after admit.Callbacks
	err = s.Pause(ctx, s.Revision(), store.Pause{For: d}, admit.PausedBy{Cause: string(PausedByCall)}, &after)
	after.Run()
	return err
}

// Resume ends the pause or ban in force, for all callers that share the quota: with a shared store,
// for the fleet. With a shared store it blocks for one round trip. After an error other processes
// may still pause.
func (l *Limiter) Resume(ctx context.Context) error {
	s, err := l.path.Enter()
	if err != nil {
		return waitError(err)
	}
	defer s.Leave()
	return s.Resume(ctx)
}

// Forget makes the tiers with Learn start again at their limits, for all callers that share the quota, and gives the
// tiers with Follow the limits of the policy until responses name others. With a shared store it blocks for one
// round trip, or two if tiers follow. To fix a learned limit, use SetPolicy with a tier that has it and does not learn.
func (l *Limiter) Forget(ctx context.Context) error {
	s, err := l.path.Enter()
	if err != nil {
		return waitError(err)
	}
	defer s.Leave()
	return s.Forget(ctx)
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
	s, err := l.path.Enter()
	if err != nil {
		return waitError(err)
	}
	defer s.Leave()
	return s.SetPolicy(ctx, p.replacement)
}

// Close refuses all waiting callers and every later call with ErrClosed. It gives back what a
// shared store has reserved for them. Permits stay valid. Close also closes the Limiters that
// Within made from this one or put inside it and, in a Group, all Limiters of the key. Other
// Limiters of the quota, such as one that New returned for the same name and store, keep working.
// Close does not block and may be called more than once.
func (l *Limiter) Close() { l.path.Close() }

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
	e, err := l.foretell(ctx, c, false)
	if err != nil {
		return Forecast{}, err
	}
	return e.Forecast, e.Err
}

// Status returns the state of every tier, the number of waiting callers and the pause or ban in
// force. It charges nothing. For a Limiter inside others it has the tiers of all, the inner ones
// first, each with the name of its policy. With a shared store Status blocks for one round trip for
// each quota. After an error it has the tiers of the quotas that answered.
func (l *Limiter) Status(ctx context.Context) (status Status, err error) {
	status, err = l.path.Status(ctx)
	return status, waitError(err)
}
