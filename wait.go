package throttle

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/store"
)

// A Store keeps quotas: in this process, as package local does, or for a fleet.
type Store = store.Store

// A Status is the state of a quota at one moment.
type Status = store.Status

// A TierStatus is the state of one tier.
type TierStatus = store.TierStatus

const forever = store.Forever

// A Limiter admits requests under a policy, in the order in which callers arrive.
//
// Wait blocks until one request may be sent, WaitN until n may; Allow asks and
// never blocks; Acquire is Wait for any Cost and tells the limiter afterwards what
// became of the request, which policies with Concurrency need and which makes room
// sooner for all others. A Transport does all that for an http.Client.
//
// Callers hold places, not tokens: only an admitted request is charged, in all
// tiers or in none, and one whose context ends leaves the queue as if it had never
// come. Nothing overtakes, however large the cost at the head, but a request of a
// [Class] that goes first.
//
// A refusal is a [*WaitError]. A context's own error is returned as it is. A
// Limiter is made by New or Group.For and is safe for concurrent use.
type Limiter struct {
	gate  *gate
	parts [2]*Limiter // of which a nested one is made, which must not be dropped
	err   error       // refuses everything, where a Group has too many keys
}

// A gate is a quota with what this process keeps around it: the waiting room and
// the back-off. Limiters are handles on it.
type gate struct {
	*terms
	quota store.Quota
	outer *gate                // around this one, nil if there is none
	room  atomic.Pointer[room] // nil until somebody needs it
}

// New returns a Limiter of the policy. With a nil store its quota is its own, in
// this process; limiters with the same name on the same store share one.
func New(p Policy, s Store) (*Limiter, error) {
	t, err := newTerms(p)
	if err != nil {
		return nil, err
	}
	if s != nil && p.Name == "" {
		return nil, errors.New("throttle: policy \"\": Name is empty: a shared store keeps quotas by name, so give it one")
	}
	g, err := t.open(s, p.Name)
	if err != nil {
		return nil, err
	}
	return &Limiter{gate: g}, nil
}

var inProcess local.Store

func (t *terms) open(s Store, key string) (*gate, error) {
	if s == nil {
		s, key = &inProcess, ""
	}
	q, err := s.Open(key, t.plan)
	if err != nil {
		return nil, fmt.Errorf("throttle: policy %q: %w", t.policy.Name, err)
	}
	g := &gate{terms: t, quota: q}
	if _, books := q.(store.Reserver); books != t.books { // as all of a store do
		t.books = books
	}
	return g, nil
}

// Wait blocks until one request may be sent.
func (l *Limiter) Wait(ctx context.Context) error {
	if l.err != nil {
		return l.err
	}
	if l.gate.concurrent {
		return l.gate.refuse(ErrNeedsPermit, -1, 0)
	}
	_, err := l.gate.admit(ctx, l.gate.request(l.gate.one, false))
	runtime.KeepAlive(l) // a Group may drop a gate that is fresh and held by nobody
	return err
}

// WaitN blocks until n requests may be sent at once. It does not wait for 0, and
// refuses with ErrNever what is above a tier's capacity.
func (l *Limiter) WaitN(ctx context.Context, n int64) error {
	cost, err := l.cost(n)
	if err != nil {
		return err
	}
	if n == 0 {
		return ctx.Err()
	}
	_, err = l.gate.admit(ctx, l.gate.request(cost, false))
	runtime.KeepAlive(l)
	return err
}

// Allow tells whether one request may be sent now, and charges it if so. It never
// goes past those who wait, and it is false on a policy with Concurrency, whose
// admissions must be released. It does not wait; with a shared store it blocks for
// one round trip.
func (l *Limiter) Allow() bool { return l.AllowN(1) }

// AllowN is Allow for n requests at once.
func (l *Limiter) AllowN(n int64) bool {
	cost, err := l.cost(n)
	if err != nil || n == 0 {
		return err == nil
	}
	g := l.gate
	if g.waiting() > 0 || g.fits(cost) != nil {
		return false
	}
	b, err := g.quota.TryAcquire(context.Background(), g.request(cost, false))
	g.alert(b.Crossed)
	runtime.KeepAlive(l)
	return err == nil && b.Verdict == store.Admitted
}

// cost is that of n requests which nobody will release.
func (l *Limiter) cost(n int64) ([]int64, error) {
	if l.err != nil {
		return nil, l.err
	}
	if l.gate.concurrent {
		return nil, l.gate.refuse(ErrNeedsPermit, -1, 0)
	}
	return l.gate.count(n)
}

// Acquire blocks until a request of that cost may be sent. The caller tells the
// permit what became of it: Arrived when the response is in, Release at the end of
// its body, or Cancel if nothing was sent.
func (l *Limiter) Acquire(ctx context.Context, c Cost) (*Permit, error) {
	if l.err != nil {
		return nil, l.err
	}
	cost, err := l.gate.amounts(c)
	if err != nil {
		return nil, err
	}
	b, err := l.acquire(ctx, cost)
	if err != nil {
		return nil, err
	}
	return &Permit{gate: l.gate, booking: b, cost: cost, journey: l.gate.network().start()}, nil
}

// acquire admits a held request.
func (l *Limiter) acquire(ctx context.Context, cost []int64) (store.Decision, error) {
	if !l.gate.isOne(cost) && l.gate.free(cost) {
		return store.Decision{}, ctx.Err()
	}
	b, err := l.gate.admit(ctx, l.gate.request(cost, true))
	runtime.KeepAlive(l)
	return b, err
}

// request asks for an admission.
func (g *gate) request(cost []int64, held bool) store.Request {
	return store.Request{Cost: cost, Held: held, Guard: g.guard()}
}

// isOne tells whether a cost is that of one request, without a look at it.
func (t *terms) isOne(cost []int64) bool { return &cost[0] == &t.one[0] }

// free tells whether a cost charges nothing, neither now nor when it is settled.
func (t *terms) free(cost []int64) bool { return !t.estimates && isZero(cost) }

func isZero(cost []int64) bool {
	return !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// Pause admits nothing for d, to nobody who shares the quota; those who wait
// already wait on, or are refused if that makes them late. A shorter pause never
// shortens a longer one.
func (l *Limiter) Pause(ctx context.Context, d time.Duration) error {
	if l.err != nil || d <= 0 {
		return l.err
	}
	_, err := l.gate.quota.Pause(ctx, store.Pause{For: d})
	runtime.KeepAlive(l)
	return err
}

// Status reports every tier, the callers that wait and the pause, and charges nothing.
func (l *Limiter) Status(ctx context.Context) (Status, error) {
	if l.err != nil {
		return Status{}, l.err
	}
	s, err := l.gate.quota.Status(ctx)
	runtime.KeepAlive(l)
	s.Waiting = l.gate.waiting()
	s.Tiers = l.gate.declared(s.Tiers)
	for g := l.gate.outer; g != nil && err == nil; g = g.outer {
		var around Status
		around, err = g.quota.Status(ctx)
		s.Tiers = append(s.Tiers, g.declared(around.Tiers)...)
		s.Paused, s.Closed = max(s.Paused, around.Paused), max(s.Closed, around.Closed)
	}
	return s, err
}

// declared is the state of the policy's tiers, each with its pace, if it has one.
func (t *terms) declared(deciding []TierStatus) (tiers []TierStatus) {
	for i, s := range deciding {
		n := t.plan.Declared(i)
		if n < len(tiers) { // a pace
			of := &tiers[n]
			of.Limited = of.Limited || s.Limited
			of.Limit = min(of.Limit, s.Limit)
			of.Remaining = min(of.Remaining, s.Remaining)
			of.RetryAfter = max(of.RetryAfter, s.RetryAfter)
			of.ResetAfter = max(of.ResetAfter, s.ResetAfter)
			continue
		}
		s.Tier = t.policy.Tiers[n]
		tiers = append(tiers, s)
	}
	return tiers
}

// admit charges the request at once if nobody waits and the tiers admit it, and
// otherwise takes a place in the waiting room.
func (g *gate) admit(ctx context.Context, r store.Request) (store.Decision, error) {
	if err := ctx.Err(); err != nil {
		return store.Decision{}, err
	}
	if !g.isOne(r.Cost) { // every tier admits one
		if err := g.fits(r.Cost); err != nil {
			return store.Decision{}, err
		}
	}
	if g.waiting() == 0 && !g.books {
		r.WaitSpec = g.fresh(ctx)
		b, err := g.quota.TryAcquire(ctx, r)
		switch {
		case err == nil && b.Verdict == store.Admitted:
			g.alert(b.Crossed)
			return b, nil
		case err == nil && b.Verdict == store.Closed:
			return b, g.banned(b.Wait)
		case err == nil && b.Verdict == store.Exhausted:
			return b, g.exhausted(b)
		}
	}
	b, err := g.wait(ctx, r)
	g.alert(b.Crossed)
	return b, err
}

// fresh is how a request that has just come waits.
func (g *gate) fresh(ctx context.Context) *store.WaitSpec {
	if g.yields != nil && classOf(ctx) == Batch {
		return g.yields
	}
	return nil
}

// fits refuses a cost that no wait will admit.
func (g *gate) fits(cost []int64) error {
	if n, ok := g.quota.(*nested); ok {
		return n.inner.fits(n.innerCost(cost))
	}
	if tier := g.plan.TooLarge(cost); tier >= 0 {
		return g.refuse(ErrNever, tier, 0)
	}
	return nil
}
