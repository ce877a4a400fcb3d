package throttle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A bundledQuota reserves in the quota of a Limiter and in the quotas around it at once. The cost of a
// request contains its costs in all of them, one after the other.
type bundledQuota struct {
	bundle    store.Bundle // nil if the quotas cannot reserve together
	limiter   *Limiter
	scopes    []*scope    // the outermost last
	revisions []*revision // of the scopes
}

var _ store.Reserver = (*bundledQuota)(nil)

// bundled returns the bundledQuota of this scope and the scopes around it under their policies in force.
func (l *Limiter) bundled(s *scope) *bundledQuota {
	l.joint.configure(s, l.jointConfig)
	if !l.bundle.Load().isCurrent() {
		l.joint.reconfigure(s, l.jointConfig)
	}
	return l.bundle.Load()
}

// jointConfig returns the configuration of the queue of callers that are charged in all scopes at once.
func (l *Limiter) jointConfig(rev *revision) queue.Config {
	s := l.scope.Load()
	b := &bundledQuota{limiter: l, scopes: []*scope{s}, revisions: []*revision{rev}}
	var around []store.Quota
	leaves := []int{rev.policy.Headroom}
	for o := l.outer; o != nil; o = o.outer {
		s := o.scope.Load()
		rev := s.adoptSuccessor()
		b.scopes, b.revisions, around = append(b.scopes, s), append(b.revisions, rev), append(around, rev.quota)
		leaves = append(leaves, rev.policy.Headroom)
	}
	b.bundle = bundleOf(rev.quota, around, leaves)
	l.bundle.Store(b)
	c := s.queueConfig(rev)
	c.Owner, c.Quota, c.Reserver, c.Fast = b, b, b, nil
	c.Headroom = slices.Max(leaves) // each quota knows its own
	return c
}

func (b *bundledQuota) innermost() *revision { return b.revisions[0] }

// isCurrent reports whether the outer scopes still have the same policies.
func (b *bundledQuota) isCurrent() bool {
	o := b.limiter.outer
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
		slices.EqualFunc(b.revisions, old.revisions, func(x, y *revision) bool { return x.quota == y.quota })
}

// costOf returns the costs of a request in all scopes.
func (b *bundledQuota) costOf(d *demand) (cost []int64, err error) {
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
	l := b.limiter
	stops := []func(){b.innermost().quota.Watch(changed), b.scopes[0].track(l.joint.refuseAll)}
	for i, s := range b.scopes[1:] {
		stops = append(stops, s.track(l.joint.refuseAll), b.revisions[1+i].quota.Watch(func(change store.Change, left time.Duration) {
			l.outerChanged(&l.joint, l.jointConfig, s.current.Load(), change, left)
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
		n := len(rev.plan.Units())
		if e, decides := rev.quota.Soonest(cost[:n], min(headroom, int64(rev.policy.Headroom))); e > wait {
			if wait, tier = e, -1; decides >= 0 {
				tier = first + decides
			}
		}
		cost, first = cost[n:], first+len(rev.plan.Tiers())
	}
	return wait, tier
}

// Forecast returns a forecast over all scopes, like that of a chain.
func (b *bundledQuota) Forecast() store.Forecast {
	f, from := new(chainForecast), 0
	for _, rev := range b.revisions {
		first := from
		from += len(rev.plan.Units())
		last := from
		f.add(rev.quota, rev.plan, rev.policy.Headroom, func(cost []int64) []int64 { return cost[first:last] })
	}
	return f
}

// joinAtOnce admits a request in all scopes at once. It returns store.ErrApart if the quotas have to
// be asked one after the other.
func (l *Limiter) joinAtOnce(ctx context.Context, s *scope, d demand, giveUp time.Time, a *admission) error {
	around, err := l.enterOuter()
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			leaveAll(around)
		}
	}()
	if b := l.bundled(s); b.bundle == nil {
		return store.ErrApart
	}
	r, err := l.joint.wait(ctx, s, &waitRequest{demand: &d, giveUpAt: giveUp, config: l.jointConfig, explain: l.explain})
	if errors.Is(err, store.ErrApart) {
		return store.ErrApart
	}
	if err != nil {
		return err
	}
	b, cost := r.Owner.(*bundledQuota), r.Cost
	for i, decision := range r.Reservation.Parts {
		n := len(b.revisions[i].plan.Units())
		part := charge{b.scopes[i], b.revisions[i], decision, cost[:n:n]}
		if cost = cost[n:]; i == 0 {
			a.charge = part
		} else {
			a.outer = append(a.outer, part)
		}
	}
	done = true
	return nil
}

// Trip and IsVoid are not used of a bundledQuota.
func (b *bundledQuota) Trip(context.Context) time.Duration { return 0 }
func (b *bundledQuota) IsVoid(store.Decision) bool         { return false }
