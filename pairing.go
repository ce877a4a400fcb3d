package throttle

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// joins reports whether the quotas of this scope and of all around it reserve times that
// can be held together. A time in a shared quota is not held: if an outer quota is full for an hour,
// the time would be in an hour, and callers inside other outer quotas would have to wait behind it.
func (l *Limiter) joins() bool {
	for ; l != nil; l = l.outer {
		if _, ok := l.revision().quota.(store.Joiner); !ok || l.scope.Load().shared {
			return false
		}
	}
	return true
}

// trip returns how long it takes to ask those scopes for a time of which others were asked.
func (l *Limiter) trip(ctx context.Context) time.Duration {
	longest, scopes := time.Duration(0), time.Duration(-1)
	for ; l != nil; l = l.outer {
		if q, ok := l.revision().quota.(store.Joiner); ok {
			longest, scopes = max(longest, q.Trip(ctx)), scopes+1
		}
	}
	return scopes * (longest*5/4 + time.Millisecond)
}

// A pairing is how a request is asked for that needs the same time in several scopes.
type pairing struct {
	trip      time.Duration // how long it takes to ask the others
	notBefore time.Time     // the earliest time that is of use. If zero, any time
}

// join admits a request in this scope and in all around it, whose quotas reserve. A caller
// holds a time in one of them, and asks the others for the same time shortly before it.
func (l *Limiter) join(ctx context.Context, s *scope, rev *revision, d demand, a *admission) (err error) {
	defer func() { err = d.withBound(ctx, err) }()
	giveUp, err := s.giveUpAt(rev, &d)
	if err != nil {
		return err
	}
	d.outerBound = d.earliest(ctx)
	if err := l.outer.refuseIfLate(ctx, &d, giveUp); err != nil {
		return err
	}
	part := d.asRefundable()
	if part.since.IsZero() {
		part.since = time.Now()
	}
	cost, err := rev.costOf(&d)
	if err != nil {
		return err
	}
	// The others in these scopes charge all of them at once, and would go ahead of a caller that holds a
	// time in a part of them. A caller that costs nothing in this scope takes no time there, which the
	// callers of this scope alone would have to wait for.
	if !rev.isFree(cost) && (d.pairing == nil || d.notBefore.IsZero()) {
		switch err := l.joinAtOnce(ctx, s, part, giveUp, a); {
		case err == nil && !d.refundable:
			if !d.held {
				a.expectNoReport()
			}
			a.landUnguarded()
			return nil
		case err != store.ErrApart:
			return err
		}
	}
	for {
		p := pairing{trip: l.trip(ctx)}
		if d.pairing != nil {
			p.trip, p.notBefore = max(p.trip, d.trip), d.notBefore
		}
		part.pairing = &p
		got, err := l.pair(ctx, s, part, giveUp)
		if err != nil {
			return err
		}
		if d.pairing != nil { // the caller holds another time, and waits itself
			*a = got
			return nil
		}
		err = got.sleep(ctx)
		if err == nil && !d.held && got.concurrent() { // a policy has changed since
			err = rev.refuse(ErrNeedsPermit, -1, 0)
		}
		if err == nil && !got.passed() && !got.void() {
			if !d.held {
				got.expectNoReport()
			}
			if !d.refundable {
				got.landUnguarded()
			}
			*a = got
			return nil
		}
		got.drop()
		if err != nil {
			return err
		}
	}
}

// pair reserves one time in this scope and in those around it. The caller waits in one of
// the two and asks the other for the time that it is given. If that has a later one only, the
// caller returns its time, and asks again when the other has room: never does it wait for one
// scope while it holds a time in the other.
func (l *Limiter) pair(ctx context.Context, s *scope, d demand, giveUp time.Time) (admission, error) {
	for unknown := shortestNap; ; {
		got, late, err := l.tryPair(ctx, s, d, giveUp)
		if err != nil || got.charged() {
			return got, err
		}
		d.pairing = &pairing{trip: d.trip}
		if late == 0 {
			late, unknown = rand.N(unknown), min(longestNap, 2*unknown)
		} else if late -= 2*d.trip + companions; late <= longestNap {
			d.notBefore = time.Now().Add(late + 2*d.trip + companions)
		}
		if err := nap(ctx, min(late, longestNap)); err != nil {
			return admission{}, err
		}
	}
}

// A caller sleeps for so long before it asks again, at least where it is not known when there
// may be room, and at most.
const (
	shortestNap = 2 * time.Millisecond
	longestNap  = 500 * time.Millisecond
)

// tryPair is pair, but if the other scope has no room at the time held it returns in how long
// that may have some. If callers wait elsewhere from now on that is zero.
func (l *Limiter) tryPair(ctx context.Context, s *scope, d demand, giveUp time.Time) (both admission, late time.Duration, err error) {
	around, over := l.shift.get()
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(over, cancel)()
	hold, err := l.reserve(waiting, s, d, giveUp, around)
	if err != nil {
		if over.Err() != nil && ctx.Err() == nil {
			err = nil
		} else if err == context.DeadlineExceeded && ctx.Err() == nil { // MaxWait, while the store was asked
			err = s.current.Load().refuse(ErrDeadline, -1, 0)
		}
		return admission{}, 0, err
	}
	start, end := hold.window()
	bound, free := end.Add(-leastOverlap), end.IsZero()
	if free { // at any time of the other
		_ = hold.sleep(ctx) // it was paused
		d.pairing, bound = nil, giveUp
	} else if start.After(d.notBefore) {
		d.pairing = &pairing{d.trip, start}
	}
	next, err := l.reserveWith(ctx, s, &hold, d, bound, !around)
	switch {
	case err == nil:
		l.shift.note(around, false)
		if around {
			hold, next = next, hold
		}
		return admission{charge: hold.charge, outer: append([]charge{next.charge}, next.outer...)}, 0, nil
	case free && err == context.DeadlineExceeded && ctx.Err() == nil:
		return admission{}, 0, s.current.Load().refuse(ErrDeadline, -1, 0) // MaxWait, in the other
	case free || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return admission{}, 0, err
	}
	var refused *WaitError
	if errors.As(err, &refused) {
		late = refused.Wait
	}
	if near := late > 0 && late < time.Until(start)+minShift; !near && l.shift.note(around, true) {
		late = 0
	}
	return admission{}, late, nil
}

// A shift tells where the callers of a Limiter wait: in its own scope, or in those around it
// if these are the slower ones.
type shift struct {
	mu     sync.Mutex // guards all below
	around bool
	score  int                // conflicts, weighed, less admissions
	over   context.Context    // until the next one; nil before anybody waits
	end    context.CancelFunc // of over
}

const (
	// minShift is how much later the other scope has room where that is a reason for a shift.
	minShift = 100 * time.Millisecond
	// A conflict weighs as much as so many admissions. Callers wait elsewhere when conflicts
	// weigh so much more.
	conflictWeight       = 16
	toAround, fromAround = 2 * conflictWeight, 8 * conflictWeight
)

// get returns where to wait, and a context that ends when that changes.
func (s *shift) get() (around bool, over context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over, s.end = context.WithCancel(context.Background())
	}
	return s.around, s.over
}

// note takes note of a conflict or an admission of a caller that has waited there. It reports
// whether callers wait elsewhere now.
func (s *shift) note(around, conflict bool) (elsewhere bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case around != s.around:
		return true
	case !conflict:
		s.score = max(0, s.score-1)
		return false
	}
	s.score += conflictWeight
	if around && s.score < fromAround || !around && s.score < toAround {
		return false
	}
	s.end()
	s.around, s.score = !around, 0
	s.over, s.end = context.WithCancel(context.Background())
	return true
}

// reserveWith asks for another time that fits the one held, which is given back if there is none.
func (l *Limiter) reserveWith(ctx context.Context, s *scope, hold *admission, d demand, bound time.Time, outer bool) (next admission, err error) {
	fits := false
	defer func() {
		if !fits {
			hold.refund()
			hold.leaveOuter(l)
		}
	}()
	if next, err = l.reserve(ctx, s, d, bound, outer); err != nil {
		return next, err
	}
	if fits = next.fits(hold); !fits {
		next.refund()
		next.leaveOuter(l)
		return next, context.DeadlineExceeded // as if the other had been asked too late
	}
	return next, nil
}

// reserve asks for a time in this scope, or in all those around it.
func (l *Limiter) reserve(ctx context.Context, s *scope, d demand, giveUp time.Time, outer bool) (a admission, err error) {
	if !outer {
		r, err := l.ownQueue.wait(ctx, s, &waitRequest{demand: &d, giveUpAt: giveUp, config: l.queueConfig, explain: l.explain})
		if err == nil {
			a.charge = s.charged(r)
		}
		return a, err
	}
	limited, cancel := ctx, func() {}
	if !giveUp.IsZero() {
		limited, cancel = context.WithDeadline(ctx, giveUp)
	}
	defer cancel()
	err = l.outer.admit(limited, d, &a)
	return a, err
}

// companions is for how long a caller that holds a time waits for others that hold the next
// ones, so that they ask together.
const companions = 4 * time.Millisecond

// farTrip is what a trip takes so long that a time that is now is over before it ends.
const farTrip = 5 * time.Millisecond

// margin is how much longer than its guard a request counts in the scope where callers wait.
// So that scope is the slower of two that are equal, and the other has room at its times.
const margin = 5 * time.Millisecond

// hold returns how a request waits that is to be charged in several scopes at one time.
func (d *demand) hold() (h queue.Hold) {
	if d.pairing == nil {
		return h
	}
	h.Lead = 2*d.trip + companions
	switch {
	case !d.notBefore.IsZero():
		h.NotBefore, h.AskAt = d.notBefore, d.notBefore.Add(-2*d.trip)
	case d.trip > farTrip:
		h.Ahead = 2*d.trip + companions
	}
	return h
}

// holdGuard returns the guard of a request, which is longer for one that holds a time.
func (d *demand) holdGuard(guard time.Duration, rev *revision) time.Duration {
	if d.pairing == nil || !d.notBefore.IsZero() {
		return guard
	}
	if guard = cmp.Or(guard, rev.plan.Guard()); guard > 0 {
		guard += margin
	}
	return guard
}

// window returns from when the request may be sent, and until when in all scopes that charge it. If
// none does, end is zero.
func (a *admission) window() (start, end time.Time) {
	a.eachCharge(func(c *charge) {
		r := c.decision.Reservation
		if r.Start.After(start) {
			start = r.Start
		}
		if !c.revision.isFree(c.cost) && (end.IsZero() || r.End.Before(end)) {
			end = r.End
		}
	})
	return start, end
}

// passed reports whether it is too late to send the request, for a scope that charges it.
func (a *admission) passed() (any bool) {
	now := time.Now()
	a.eachCharge(func(c *charge) {
		any = any || !c.revision.isFree(c.cost) && c.decision.Reservation.Expired(now)
	})
	return any
}

// leastOverlap is for how long two reservations have to be good together, so that the caller
// has time to wake up.
const leastOverlap = 2 * time.Millisecond

// fits reports whether the two can be sent together.
func (a *admission) fits(b *admission) bool {
	start, end := a.window()
	from, to := b.window()
	if end.IsZero() || to.IsZero() { // one is free
		return true
	}
	if from.After(start) {
		start = from
	}
	if to.Before(end) {
		end = to
	}
	return end.Sub(start) >= leastOverlap
}

// sleep waits until the request may be sent.
func (a *admission) sleep(ctx context.Context) error {
	start, _ := a.window()
	return nap(ctx, time.Until(start))
}

func nap(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// void reports whether a pause voids any of the reservations.
func (a *admission) void() (any bool) {
	a.eachCharge(func(c *charge) {
		q, ok := c.revision.quota.(store.Joiner)
		any = any || ok && q.IsVoid(c.decision)
	})
	return any
}

// drop gives back a request that is charged in nested scopes, which the caller leaves but
// for the innermost.
func (a *admission) drop() {
	a.refund()
	for i := range a.outer {
		a.outer[i].scope.leave()
	}
}

// leaveOuter leaves the scopes of a part of a request but for the scope of the Limiter.
func (a *admission) leaveOuter(l *Limiter) {
	a.eachCharge(func(c *charge) {
		if c.scope != l.scope.Load() {
			c.scope.leave()
		}
	})
}
