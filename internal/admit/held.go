package admit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// reserveThrough admits a request in this scope, whose quota reserves, and in those around it: in one
// call where that is possible.
func (p *Path) reserveThrough(ctx context.Context, s *Scope, rev *Revision, d Demand, a *Admission) (err error) {
	defer func() { err = d.withBound(ctx, err) }()
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return err
	}
	d.outerBound, d.atOnce = d.earliest(ctx), p.bundled(s).bundle != nil
	if err := p.outer.refuseIfLate(ctx, &d, giveUp); err != nil {
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
	if err = store.ErrApart; !free && !p.isShared() {
		err = p.joinAtOnce(ctx, s, part.choosing(d.option), giveUp, a)
	}
	if err == store.ErrApart && part.waited == nil { // MaxWait goes on when it asks an outer scope again
		part.waited = make(map[*Scope]time.Duration)
	}
	for err == store.ErrApart {
		err = p.holdOne(ctx, s, part, giveUp, free, a)
	}
	switch {
	case err != nil:
		return err
	case !d.Held && a.Concurrent(): // a policy has changed since
		a.Refund()
		a.leaveOuter(p)
		return rev.refuse(NeedsPermit, -1, 0)
	case !d.Held:
		a.expectNoReport()
	}
	if !d.refundable {
		a.landUnguarded()
	}
	return nil
}

// reserveAll reports whether the quotas of this scope and of all around it reserve times.
func (p *Path) reserveAll() bool {
	for ; p != nil; p = p.outer {
		if !p.revision().reserves {
			return false
		}
	}
	return true
}

// isShared reports whether the quota of this scope or of one around it is Group.Shared.
func (p *Path) isShared() bool {
	for ; p != nil; p = p.outer {
		if p.scope.Load().shared {
			return true
		}
	}
	return false
}

// A slower is the side that a Path asks first, of its own quota and those around it.
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
	var late *Refusal
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
func (p *Path) times(ctx context.Context, around bool) (trip, lead, lasts time.Duration) {
	away := false // a quota around is a round trip away
	for o := p; o != nil; o = o.outer {
		if q := reserverOf(o.revision().quota); q != nil {
			trip, away = max(trip, q.Trip(ctx)*9/8), away || o != p
		}
	}
	near := max(100*time.Millisecond, trip+25*time.Millisecond)
	if !away {
		trip = 0
	}
	lead = 2*trip + 2*time.Millisecond // the other side may have a call under way
	switch {
	case !around || p.outer.reserveAll():
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
func (p *Path) holdOne(ctx context.Context, s *Scope, d Demand, giveUp time.Time, free bool, a *Admission) error {
	around, over := p.slower.first()
	asking := ctx
	if around = around && !free; around {
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		defer s.watch(cancel)()
		asking = limited
	}
	again, err := p.hold(asking, over, s, d, giveUp, around, a)
	if err == store.ErrApart {
		_ = queue.SleepUntil(asking, earlier(giveUp, time.Now().Add(again)))
	}
	if err != nil && asking.Err() != nil && ctx.Err() == nil { // its own quota may refuse it now, or be the slower one
		p.slower.note(true, mostConflicts(true), mostConflicts(true))
		return store.ErrApart
	}
	return err
}

// hold is holdOne with the side to ask first, until over ends. It returns for how long to wait after
// store.ErrApart.
func (p *Path) hold(ctx, over context.Context, s *Scope, d Demand, giveUp time.Time, around bool, a *Admission) (again time.Duration, err error) {
	trip, lead, lasts := p.times(ctx, around)
	part := d
	part.lead, part.hold, part.margin = d.lead+lead, d.hold+cmp.Or(lasts, lead), d.margin+(lead-trip)*5/4+margin
	most := mostConflicts(lasts > 0)
	first, end, err := p.askFirst(ctx, over, s, part, giveUp, around, lasts)
	if err != nil {
		return 0, err
	}
	var second Admission
	defer func() {
		if !a.Charged() { // it is refused, or a callback panicked
			first.giveBack(p)
			second.giveBack(p)
		}
	}()
	if part = d; !end.IsZero() {
		part.hold += max(0, time.Until(first.start()))
		if around || p.outer.reserveAll() { // a quota that reserves takes a trip to decide
			part.hold = max(d.hold, part.hold-trip)
		}
	}
	limited, stop := withDeadline(ctx, earlier(end, giveUp))
	defer stop()
	second, err = p.askSide(limited, s, part, earlier(end, giveUp), !around, false)
	if err == nil {
		err = queue.SleepUntil(ctx, later(first.start(), second.start()).Add(-d.lead))
	}
	switch {
	case err != nil && (end.IsZero() || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)):
		return 0, err
	case err != nil:
		return p.slower.noteConflict(around, most, lead, err), store.ErrApart
	case first.expired() || second.expired() || first.void() || second.void():
		return 0, store.ErrApart
	}
	p.slower.note(around, -1, most)
	if around {
		first, second = second, first
	}
	a.Charge, a.outer = first.Charge, append([]Charge{second.Charge}, second.outer...)
	return 0, nil
}

// askFirst asks the side that holds the request, and returns until when it does, zero if for any time. The
// error is store.ErrApart if the other side is to be asked first.
func (p *Path) askFirst(ctx, over context.Context, s *Scope, d Demand, giveUp time.Time, around bool, lasts time.Duration) (first Admission, end time.Time, err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(over, cancel)()
	if first, err = p.askSide(waiting, s, d, giveUp, around, true); err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = store.ErrApart
	}
	return first, first.end(lasts), err
}

// askSide admits a request in this scope, or in those around it. A request that is held around it already
// waits here among the callers of this scope alone, whose forecasts do not contain the scopes around.
func (p *Path) askSide(ctx context.Context, s *Scope, d Demand, giveUp time.Time, around, first bool) (a Admission, err error) {
	switch {
	case around:
		limited, cancel := withDeadline(ctx, giveUp)
		defer cancel()
		err = p.outer.admit(limited, d, &a)
	case first:
		var r queue.Result
		r, err = p.ownQueue.wait(ctx, s, &waitRequest{demand: &d, giveUpAt: giveUp, config: p.queueConfig, explain: p.explain})
		if err == nil {
			a.Charge = s.charged(r)
		}
	default:
		err = s.admit(ctx, s.current.Load(), &d, &a.Charge)
	}
	if err == context.DeadlineExceeded && ctx.Err() == nil { // MaxWait, while the store was asked
		err = s.current.Load().refuse(queue.Late, -1, 0)
	}
	if err != nil {
		a = Admission{}
	}
	return a, err
}

// bundled returns the bundledQuota of this scope and the scopes around it under their policies in force.
func (p *Path) bundled(s *Scope) *bundledQuota {
	p.joint.configure(s, p.jointConfig)
	if !p.bundle.Load().isCurrent() {
		p.joint.reconfigure(s, p.jointConfig)
	}
	return p.bundle.Load()
}

// jointConfig returns the configuration of the queue of callers that are charged in all scopes at once.
func (p *Path) jointConfig(rev *Revision) queue.Config {
	s := p.scope.Load()
	b := &bundledQuota{path: p, scopes: []*Scope{s}, revisions: []*Revision{rev}}
	var around []store.Quota
	leaves := []int{rev.Headroom}
	for o := p.outer; o != nil; o = o.outer {
		s := o.scope.Load()
		rev := s.adoptSuccessor()
		b.scopes, b.revisions, around = append(b.scopes, s), append(b.revisions, rev), append(around, rev.quota)
		leaves = append(leaves, rev.Headroom)
	}
	b.bundle = bundleOf(rev.quota, around, leaves)
	p.bundle.Store(b)
	c := s.queueConfig(rev)
	c.Owner, c.Quota, c.Reserver, c.Fast = b, b, b, nil
	c.Headroom = slices.Max(leaves) // each quota knows its own
	return c
}

// joinAtOnce admits a request in all scopes at once. It returns store.ErrApart if the quotas have to
// be asked one after the other.
func (p *Path) joinAtOnce(ctx context.Context, s *Scope, d Demand, giveUp time.Time, a *Admission) error {
	around, err := p.enterOuter()
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			leaveAll(around)
		}
	}()
	if b := p.bundled(s); b.bundle == nil {
		return store.ErrApart
	}
	r, err := p.joint.wait(ctx, s, &waitRequest{demand: &d, giveUpAt: giveUp, config: p.jointConfig, explain: p.explain})
	if errors.Is(err, store.ErrApart) {
		return store.ErrApart
	}
	if err != nil {
		return err
	}
	b, cost := r.Owner.(*bundledQuota), r.Cost
	for i, decision := range r.Reservation.Parts {
		n := len(b.revisions[i].Plan.Units())
		part := Charge{b.scopes[i], b.revisions[i], decision, cost[:n:n]}
		if cost = cost[n:]; i == 0 {
			a.Charge = part
		} else {
			a.outer = append(a.outer, part)
		}
	}
	done = true
	return nil
}
