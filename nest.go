package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Within returns a Limiter of the same quota inside another: an endpoint's limit inside
// its account's, an account's inside an IP address's. A request is admitted by all of
// them or charged in none.
//
// Who waits for the inner limit waits there, and only the first of them stands in the
// line of the outer one when it is the inner's turn: a tenant that waits for its own
// quota does not hold up an idle shared one. Callers of the returned Limiter are
// admitted in their order. Call it once and keep what it returns: another one has a
// line of its own. The Status has the tiers of all, the inner ones first.
//
// With stores on a server an admission takes a few round trips one after the other, and
// what was charged for a request that another scope then refuses is taken back.
func (l *Limiter) Within(outer *Limiter) *Limiter {
	switch {
	case l.err != nil:
		return l
	case outer.err != nil:
		return outer
	}
	return &Limiter{gate: l.gate.within(outer.gate), parts: [2]*Limiter{l, outer}}
}

// within puts a gate inside another. One that is nested is taken apart, so that only the
// outer ones are: each scope's waiters then stand in the line of the next.
func (g *gate) within(outer *gate) *gate {
	if n, ok := g.quota.(*nested); ok {
		return n.inner.within(n.outer.within(outer))
	}
	t := *g.terms
	t.books = false
	n := &nested{Quota: g.quota, inner: g, outer: outer, units: len(t.units)}
	t.units, t.estimated = slices.Clone(t.units), slices.Clone(t.estimated)
	for u, unit := range outer.units {
		i := slices.Index(t.units, unit)
		if i < 0 {
			i, t.units, t.estimated = len(t.units), append(t.units, unit), append(t.estimated, false)
		}
		t.estimated[i] = t.estimated[i] || outer.estimated[u]
		n.index = append(n.index, i)
	}
	t.concurrent, t.estimates = t.concurrent || outer.concurrent, t.estimates || outer.estimates
	t.most = nil // each scope has its own
	t.one = t.requests(1)
	return &gate{terms: &t, quota: n, outer: outer}
}

// innermost is the gate that keeps what this process has learned of a quota: a nested
// one lives no longer than somebody holds its Limiter.
func (g *gate) innermost() *gate {
	if n, ok := g.quota.(*nested); ok {
		return n.inner
	}
	return g
}

// A nested quota is one inside others, and is not nested itself: see within. A cost has
// the inner units first.
type nested struct {
	store.Quota
	inner *gate // never nested
	outer *gate
	units int
	index []int // of each unit of the outer quota, where in a cost it is
}

var _ store.Forecaster = (*nested)(nil)

func (n *nested) innerCost(cost []int64) []int64 { return n.inner.clamp(cost[:n.units]) }

func (n *nested) outerCost(cost []int64) []int64 { return n.outer.clamp(n.outerPart(cost)) }

func (n *nested) outerPart(cost []int64) []int64 {
	part := make([]int64, len(n.index))
	for u, i := range n.index {
		part[u] = cost[i]
	}
	return part
}

// TryAcquire does not wait: it is refused where others stand in the outer line.
func (n *nested) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	return n.reserve(ctx, r, func(ctx context.Context, r store.Request) (store.Decision, error) {
		if err := n.outer.fits(r.Cost); err != nil {
			return store.Decision{}, err
		}
		if n.outer.waiting() > 0 {
			return store.Decision{Tier: -1, Wait: forever}, nil
		}
		b, err := n.outer.quota.TryAcquire(ctx, r)
		switch {
		case err == nil && b.Verdict == store.Closed:
			err = n.outer.banned(b.Wait)
		case err == nil && b.Verdict == store.Exhausted:
			err = n.outer.exhausted(b)
		}
		n.outer.alert(b.Crossed)
		return b, err
	})
}

// stand asks for the first waiter of a room. One of a nested quota stands in the outer
// line, until somebody comes who goes ahead of it, or the inner quota is paused: then it is
// called back.
func (g *gate) stand(ctx context.Context, r store.Request) (store.Decision, error) {
	n, ok := g.quota.(*nested)
	if !ok {
		return g.quota.TryAcquire(ctx, r)
	}
	limited, recall := context.WithTimeout(ctx, r.MaxWait) // Forever is out of reach
	defer recall()
	room := g.aside()
	room.mu.Lock()
	room.recall = recall
	room.mu.Unlock()
	b, err := n.reserve(limited, r, n.outer.admit)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return store.Decision{Tier: -1}, nil // the room says who is next, or how late it is
	}
	return b, err
}

// reserve asks the inner quota whether it is ready, has the outer one charged, and then
// charges the inner one.
func (n *nested) reserve(ctx context.Context, r store.Request, charge func(context.Context, store.Request) (store.Decision, error)) (store.Decision, error) {
	inner, outer := r, r
	inner.Cost, outer.Cost, outer.Guard = n.innerCost(r.Cost), n.outerCost(r.Cost), n.guard(r)
	asked := store.WaitSpec{DryRun: true}
	if r.WaitSpec != nil {
		asked.YieldFor, asked.Headroom = r.YieldFor, r.Headroom
	}
	inner.WaitSpec, outer.WaitSpec = &asked, n.outer.fresh(ctx)
	b, err := n.Quota.TryAcquire(ctx, inner)
	if err != nil || b.Verdict != store.Ready {
		return b, err
	}
	var around *store.Decision
	if !n.outer.free(outer.Cost) {
		ob, err := charge(ctx, outer)
		if err != nil || ob.Verdict != store.Admitted {
			ob.Tier = min(ob.Tier, -1) // the tiers that are told are the inner ones
			return ob, err
		}
		around = &ob
	}
	inner.WaitSpec = r.WaitSpec
	if b, err = n.Quota.TryAcquire(ctx, inner); err == nil && b.Verdict == store.Admitted {
		if b.Outer = around; !isVoid(around) {
			return b, nil
		}
		return store.Decision{Tier: -1}, n.Return(context.WithoutCancel(ctx), b, r.Cost)
	}
	if around != nil { // somebody else has used the inner quota, or it was paused
		_ = n.outer.quota.Return(context.WithoutCancel(ctx), *around, outer.Cost)
	}
	return b, err
}

// isVoid tells whether a booking took so long to get that it can't be used any more.
func isVoid(b *store.Decision) bool {
	return b != nil && b.Reservation != nil && b.Reservation.Expired(time.Now())
}

// guard is that of the outer request, which is learned with the inner one.
func (n *nested) guard(r store.Request) time.Duration {
	if n.inner.auto && n.outer.auto {
		return r.Guard
	}
	return n.outer.guard()
}

func (n *nested) Arrived(b store.Decision, cost []int64) {
	n.Quota.Arrived(b, n.innerCost(cost))
	if b.Outer != nil {
		n.outer.quota.Arrived(*b.Outer, n.outerCost(cost))
	}
}

func (n *nested) Unanswered(b store.Decision, cost []int64) {
	n.Quota.Unanswered(b, n.innerCost(cost))
	if b.Outer != nil {
		n.outer.quota.Unanswered(*b.Outer, n.outerCost(cost))
	}
}

func (n *nested) Release(b store.Decision, cost []int64) {
	if n.inner.concurrent {
		n.Quota.Release(b, n.innerCost(cost))
	}
	if b.Outer != nil && n.outer.concurrent {
		n.outer.quota.Release(*b.Outer, n.outerCost(cost))
	}
}

func (n *nested) Settle(b store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	if n.inner.estimates {
		n.Quota.Settle(b, n.innerCost(cost), actual[:n.units], crossed)
	}
	if b.Outer != nil && n.outer.estimates {
		n.outer.reckon(*b.Outer, n.outerCost(cost), n.outerPart(actual))
	}
}

func (n *nested) Return(ctx context.Context, b store.Decision, cost []int64) error {
	err := n.Quota.Return(ctx, b, n.innerCost(cost))
	if b.Outer != nil {
		err = errors.Join(err, n.outer.quota.Return(ctx, *b.Outer, n.outerCost(cost)))
	}
	return err
}

// Forecast is that of the inner quota, as if the outer one were idle.
func (n *nested) Forecast() store.Forecast {
	if q, ok := n.Quota.(store.Forecaster); ok {
		return innerForecast{q.Forecast(), n}
	}
	return innerForecast{nil, n}
}

type innerForecast struct {
	store.Forecast
	nested *nested
}

func (f innerForecast) Book(r store.Request, within time.Duration) (time.Duration, bool) {
	if f.Forecast == nil {
		return 0, true
	}
	r.Cost = f.nested.innerCost(r.Cost)
	return f.Forecast.Book(r, within)
}
