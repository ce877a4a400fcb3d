package throttle

import (
	"cmp"
	"context"
	"time"

	"github.com/apithrottle/throttle/internal/admit"
)

// A Member is one quota of a Pool.
type Member struct {
	// Name identifies the member in the Pool, for example the name of a deployment or a region.
	Name string

	// Limiter is the quota of the member. Limiters of several members must not share a quota.
	Limiter *Limiter

	// Rank orders the members: rank 0 is preferred to rank 1, and so on. See Pool.Spill.
	Rank int

	// Weight is the member's share among members of its Rank that have room at once. If zero, 1.
	Weight int
}

// A Pool admits each request in one of its members: several deployments, regions or accounts that one
// owns, each with limits of its own. A request goes to the member that admits it first. Among members
// that have room when it comes, the lowest Rank goes first, and then the Weights decide.
//
// A caller that waits has a place in the queue of each member that may serve it, by its arrival, and
// only the member that admits the caller charges it. Callers that the same members may serve are
// therefore admitted in the order of their classes and arrival. Callers that use a member's Limiter
// directly, or through a second Pool, keep their places in the same order. A pause or ban of a member
// changes no place: the other members serve the callers meanwhile. A request fails only if no member can
// serve it, for example with ErrBanned if all of them are banned, with the earliest end.
//
// Keys of one account usually share one limit. They do not add up, so they are no members of a Pool. To
// keep an account's limit over several members, put each Limiter within that of the account.
//
// The zero Pool has no members. A Pool is safe for concurrent use, as long as its fields are not changed.
type Pool struct {
	// Name is what an Observer knows the Pool by. If empty, "pool".
	Name string

	// Spill is how long a request waits for the members of the lowest Rank, or for the member that
	// WithStickyKey chooses, before others may serve it. A request that is known to wait longer goes
	// on at once. If zero, a request goes on if it would have to wait.
	Spill time.Duration

	// Observer receives the Queued, Admitted, Refused and Answered events of the requests, with the
	// Name of the Pool as their Policy. The Observers of the members' policies receive the other events.
	// If nil, nothing receives the events.
	Observer *Observer

	pool admit.Pool
}

// NewPool returns a Pool of the members, which may be none. It returns an error for more than 64 members, if a
// member has no Name or no Limiter, if two have the same Name or are known to have the same quota, if a Weight
// or Rank is negative, or if a policy has Shadow.
func NewPool(members ...Member) (*Pool, error) {
	p := new(Pool)
	if err := p.Add(members...); err != nil {
		return nil, err
	}
	return p, nil
}

// Add adds members, or none after an error; see NewPool. Waiting callers may go to the new members at once.
func (p *Pool) Add(members ...Member) error {
	added := make([]*admit.Member, len(members))
	for i, m := range members {
		added[i] = &admit.Member{Name: m.Name, Weight: cmp.Or(m.Weight, 1), Rank: m.Rank}
		if m.Limiter != nil {
			added[i].Path, added[i].Of = &m.Limiter.path, m.Limiter
		}
	}
	return p.pool.Add(&p.Spill, added...)
}

// Remove removes a member, and reports whether there was one of that name. Waiting callers keep their
// places at the other members, and those whom no other member can serve are refused. The member's Limiter
// stays open, and so do the Permits of the requests that it has admitted.
func (p *Pool) Remove(name string) bool { return p.pool.Remove(name) }

// Wait blocks until a member admits one request. Its errors are those of Limiter.Wait, of the member that
// would admit the request soonest.
func (p *Pool) Wait(ctx context.Context) error {
	if p.Observer == nil && ctx.Err() == nil && p.pool.AllowOne(ctx) {
		return nil
	}
	var a admission
	if _, err := p.admit(ctx, admit.Demand{N: 1}, &a); err != nil {
		return err
	}
	a.leave()
	return nil
}

// Acquire blocks until a member admits a request of cost c, and returns its Permit, whose Member tells
// which one. A nil c is one request. The caller must call Release, or Cancel if the request was not sent.
// A member that does not count a unit of the cost ignores it; a unit that none counts is an error. The
// other errors are those of Limiter.Acquire.
func (p *Pool) Acquire(ctx context.Context, c Cost) (*Permit, error) { return p.acquire(ctx, c, false) }

// TryAcquire is like Acquire but does not wait. It asks the members one after the other, in the order of
// their ranks, and blocks for a round trip for each that has a shared store. A request that would have to
// wait fails with ErrDeadline and the shortest Wait.
func (p *Pool) TryAcquire(ctx context.Context, c Cost) (*Permit, error) {
	return p.acquire(ctx, c, true)
}

func (p *Pool) acquire(ctx context.Context, c Cost, noWait bool) (_ *Permit, err error) {
	permit := new(Permit)
	if c == nil && p.Observer == nil && ctx.Err() == nil {
		if m := p.pool.TryOne(ctx, &permit.a.Admission); m != nil {
			permit.member = m.Name
			return permit.start(ctx), nil
		}
	}
	if permit.member, err = p.admit(ctx, admit.Demand{Cost: c, N: 1, Held: true, NoWait: noWait}, &permit.a); err != nil {
		return nil, err
	}
	return permit.start(ctx), nil
}

// admit admits a demand in a member and returns its name. If it succeeds, the caller must call a.leave.
func (p *Pool) admit(ctx context.Context, d admit.Demand, a *admission) (member string, err error) {
	var r *record
	if p.Observer != nil {
		r = newRecord(ctx, &d, p.Observer, cmp.Or(p.Name, "pool"))
		err = errPanicked
		defer func() { r.refuse(err) }()
	}
	m, failed := p.pool.Admit(ctx, &d, &a.Admission)
	if err = waitError(failed); err != nil {
		return "", err
	}
	if r != nil {
		a.listener = memberListener{p.Observer, r.info.Policy, m.Name}
	}
	return m.Name, nil
}

// WithStickyKey returns a copy of ctx whose requests to a Pool prefer one member of the lowest Rank, which the
// key determines, for example the member that has cached the beginning of a prompt. While the wait for that
// member is shorter than Pool.Spill, the requests go to no other. Every process chooses the same member, and
// one that is added or removed changes the choice of its own share of the keys only.
func WithStickyKey(ctx context.Context, key string) context.Context {
	return admit.WithStickyKey(ctx, key)
}

// A memberListener is the listener of a request that a member of a Pool has admitted.
type memberListener struct {
	*Observer
	pool, member string
}

func (l memberListener) answered(ctx context.Context, info AnsweredInfo) {
	info.Policy, info.Member = l.pool, l.member
	l.Observer.answered(ctx, info)
}

// Forecast returns how long a request of cost c, in the Class of ctx, would wait if it arrived now. It is
// a lower bound, like that of Limiter.Forecast. It blocks for the members that have a shared store, one
// after the other.
func (p *Pool) Forecast(ctx context.Context, c Cost) (Forecast, error) {
	e, err := p.foretell(ctx, c, false)
	if err != nil {
		return Forecast{}, err
	}
	return e.Forecast, e.Err
}

// Explain is like Limiter.Explain. Its Quotas are those of all members.
func (p *Pool) Explain(ctx context.Context, c Cost) (Explanation, error) {
	return explain(ctx, func() (Explanation, error) { return p.foretell(ctx, c, true) })
}

func (p *Pool) foretell(ctx context.Context, c Cost, all bool) (Explanation, error) {
	return foretell(func(f *admit.Forecast, d admit.Demand) error { return f.AskPool(ctx, &p.pool, d, all) }, c)
}

// A MemberStatus is the state of one member of a Pool.
type MemberStatus struct {
	Member Member
	Status Status
	Err    error // why the Status lacks tiers; nil if it does not
}

// A PoolStatus is the state of a Pool.
type PoolStatus struct {
	Waiting int            // the number of callers that wait
	Members []MemberStatus // by rank
}

// Status returns the state of the Pool. It blocks for the members with a shared store, all at the same time.
func (p *Pool) Status(ctx context.Context) PoolStatus {
	members := admit.Each(&p.pool, func(m *admit.Member) MemberStatus {
		s := MemberStatus{Member: Member{Name: m.Name, Limiter: m.Of.(*Limiter), Rank: m.Rank, Weight: m.Weight}}
		s.Status, s.Err = s.Member.Limiter.Status(ctx)
		return s
	})
	return PoolStatus{p.pool.Waiting(), members}
}
