package admit

import (
	"context"
	"slices"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A bundledQuota reserves in the quota of a Path and in the quotas around it at once. The cost of a
// request contains its costs in all of them, one after the other.
type bundledQuota struct {
	bundle    store.Bundle // nil if the quotas cannot reserve together
	path      *Path
	scopes    []*Scope    // the outermost last
	revisions []*Revision // of the scopes
}

var _ store.Reserver = (*bundledQuota)(nil)

func (b *bundledQuota) innermost() *Revision { return b.revisions[0] }

// isCurrent reports whether the outer scopes still have the same policies.
func (b *bundledQuota) isCurrent() bool {
	o := b.path.outer
	for i, s := range b.scopes[1:] {
		if o.scope.Load() != s || s.adoptSuccessor() != b.revisions[1+i] {
			return false
		}
		o = o.outer
	}
	return true
}

// ReservesAs reports whether another quota reserves in the same quotas, so that its reservations hold.
func (b *bundledQuota) ReservesAs(q queue.Quota) bool {
	old, ok := q.(*bundledQuota)
	return ok && b.bundle != nil && old.bundle != nil &&
		slices.EqualFunc(b.revisions, old.revisions, func(x, y *Revision) bool { return x.quota == y.quota })
}

// costOf returns the costs of a request in all scopes.
func (b *bundledQuota) costOf(d *Demand) (cost []int64, err error) {
	for _, rev := range b.revisions {
		own, err := rev.costOf(d)
		if err != nil {
			return nil, err
		}
		cost = append(cost, own...)
	}
	return cost, nil
}

// TryAcquire asks the innermost quota alone. A queue with a Reserver does not use it.
func (b *bundledQuota) TryAcquire(ctx context.Context, r store.Request) (store.Decision, error) {
	return b.innermost().quota.TryAcquire(ctx, r)
}

// Reserve reserves in all quotas at once.
func (b *bundledQuota) Reserve(_ *store.Reservation, requests []store.Request, done func([]store.Decision, error)) {
	if b.bundle == nil {
		go done(nil, store.ErrApart)
		return
	}
	guards := make([]time.Duration, len(b.scopes)-1)
	for i := range guards {
		guards[i] = b.scopes[1+i].guard(b.revisions[1+i])
	}
	b.bundle.Reserve(guards, requests, done)
}

// Cancel returns reservations to all quotas.
func (b *bundledQuota) Cancel(reserved []store.Decision) { b.bundle.Cancel(reserved) }

// Leave gives back what the quotas keep for callers that have no reservation.
func (b *bundledQuota) Leave() {
	if b.bundle != nil {
		b.bundle.Leave()
	}
}

// Watch watches all quotas. A change that voids reservations in one of them voids them in all.
func (b *bundledQuota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	p := b.path
	told := p.joint.follow(b.scopes[0], p.jointConfig)
	stops := []func(){b.innermost().quota.Watch(changed), b.scopes[0].track(told)}
	for i, s := range b.scopes[1:] {
		stops = append(stops, s.track(told), b.revisions[1+i].quota.Watch(func(change store.Change, left time.Duration) {
			p.outerChanged(&p.joint, p.jointConfig, s.current.Load(), change, left)
			if change != store.Freed && change != store.Replanned {
				change, left = store.Eased, 0
			}
			changed(change, left)
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// Soonest makes the assumptions of Forecast.
func (b *bundledQuota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	tier = -1
	first := 0
	for _, rev := range b.revisions {
		n := len(rev.Plan.Units())
		if e, decides := rev.quota.Soonest(cost[:n], min(headroom, int64(rev.Headroom))); e > wait {
			if wait, tier = e, -1; decides >= 0 {
				tier = first + decides
			}
		}
		cost, first = cost[n:], first+len(rev.Plan.Tiers())
	}
	return wait, tier
}

// Forecast returns a forecast over all scopes, like that of a chain.
func (b *bundledQuota) Forecast() store.Forecast {
	f, from := new(chainForecast), 0
	for _, rev := range b.revisions {
		first := from
		from += len(rev.Plan.Units())
		last := from
		f.add(rev.quota, rev.Plan, rev.Headroom, func(cost []int64) []int64 { return cost[first:last] })
	}
	return f
}

// Trip and IsVoid are not used of a bundledQuota.
func (b *bundledQuota) Trip(context.Context) time.Duration { return 0 }
func (b *bundledQuota) IsVoid(store.Decision) bool         { return false }
