package throttle

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// maxShadows is how many shadows of requests may wait under a policy without MaxQueue.
const maxShadows = 10_000

// shadowMark is the end of the name of a policy in shadow mode.
const shadowMark = " (shadow)"

// inShadow returns the policy that the shadows of requests are admitted under.
func (p Policy) inShadow() Policy {
	p.Name = strings.TrimSuffix(p.Name, shadowMark) + shadowMark
	p.Alert = nil
	if p.MaxQueue == 0 {
		p.MaxQueue = maxShadows
	}
	if p.Observer == nil {
		p.Observer = new(Observer)
	}
	return p
}

// A shadow stands for a request that was sent at once. It is admitted when a limiter would have
// admitted the request. What is reported of the request is passed on to the quota later by as long as
// the shadow has waited.
//
// A shadow is the quota of the request's own charge, and has neither readings nor refusals of the
// provider: they are about requests that a limiter would have delayed.
type shadow struct {
	store.Quota             // of the scope
	sent        *revision   // under which the request was sent
	began       time.Time   // when the request was sent
	atOnce      bool        // the shadow did not wait
	admission   admission   // of the shadow, once it is admitted
	stopWatch   func() bool // the end of the caller's context no longer concerns the shadow

	mu       sync.Mutex // guards all below
	admitted bool
	refused  bool
	waited   time.Duration // until the admission
	reports  []report      // that the shadow has not received
	passing  bool          // one is being passed on, or its time has not come
}

// A report is what has become known of a request, and when.
type report struct {
	at   time.Time
	pass func(*admission)
}

// isOnlyReported reports whether a request in shadow mode is sent despite an error: a refusal, which
// only the Observer receives.
func isOnlyReported(err error) bool {
	e, ok := err.(*WaitError)
	return err == errNotNow || ok && e.Err != ErrClosed
}

// admitInShadow lets a request go at once, and asks for the admission of its shadow, with ask if that
// does not wait. If the shadow is refused at once, the request goes without a charge.
func (l *Limiter) admitInShadow(ctx context.Context, d *demand, a *admission, ask func() error) (err error) {
	if d.noWait {
		if err = ask(); err == nil {
			a.castShadow(a.charge)
		}
		a.tell(ctx, d, err)
	} else if err = l.enterShadow(ctx, *d, a); err != nil {
		a.tell(ctx, d, err)
	}
	if a.charged() {
		a.observer = d.observed.observer
	}
	if isOnlyReported(err) {
		return nil
	}
	return err
}

func (l *Limiter) enterShadow(ctx context.Context, d demand, a *admission) error {
	s, err := l.enter()
	if err != nil {
		return err
	}
	defer func() {
		if !a.charged() {
			s.leave()
		}
	}()
	return l.beginShadow(ctx, s, d, a)
}

// beginShadow charges the request to its shadow, which waits if it must.
func (l *Limiter) beginShadow(ctx context.Context, s *scope, d demand, a *admission) error {
	rev, err := l.revisionFor(s, &d)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	cost, err := rev.costOf(&d)
	if err != nil {
		return err
	}
	var c charge
	if _, err := s.tryNow(ctx, rev, &d, &c); err != nil {
		return err
	}
	if c.scope != nil {
		a.castShadow(c)
		a.tell(ctx, &d, nil)
		return nil
	}
	r := newShadow(rev)
	a.charge = r.charge(s, cost)
	r.wait(ctx, s, d)
	return nil
}

// castShadow replaces the charge of an admitted request by the charge of its shadow.
func (a *admission) castShadow(c charge) {
	r := newShadow(c.revision)
	r.atOnce, r.admission.charge = true, c
	a.charge = r.charge(c.scope, c.cost)
}

func newShadow(rev *revision) *shadow {
	return &shadow{Quota: rev.quota, sent: rev, began: time.Now()}
}

// charge returns the charge of the request.
func (r *shadow) charge(s *scope, cost []int64) charge {
	return charge{
		scope: s, revision: &revision{compiledPolicy: r.sent.compiledPolicy, quota: r},
		decision: store.Decision{Verdict: store.Admitted, Tier: -1}, cost: cost,
	}
}

// wait lets the shadow wait. It returns when the shadow has its place in the queue.
func (r *shadow) wait(ctx context.Context, s *scope, d demand) {
	caller := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	if deadline, ok := caller.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	if !d.held { // nobody reports when the request has ended
		caller = context.Background()
	}
	r.stopWatch = context.AfterFunc(caller, func() {
		if caller.Err() == context.Canceled {
			cancel()
		}
	})
	joined := make(chan struct{})
	d.observed.joined = sync.OnceFunc(func() { close(joined) })
	d.cost, d.recost = maps.Clone(d.cost), nil // the caller may change its own once it has returned
	s.use()
	go func() {
		defer s.leave()
		defer cancel()
		defer r.stopWatch()
		defer d.observed.joined()
		err := errPanicked
		defer func() { r.decided(err) }() // also if the Observer calls runtime.Goexit
		err = s.wait(ctx, r.sent, &d, &r.admission.charge)
		d.observed.end(ctx, &d, err)
	}()
	<-joined
}

// decided records that the shadow was admitted, or refused with an error. The shadow then receives the
// reports that have come before.
func (r *shadow) decided(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refused = err != nil; r.refused {
		r.reports = nil
		return
	}
	r.admitted, r.waited = true, time.Since(r.began)
	r.passReports()
}

// report passes a report on to the shadow, later by as long as the shadow has waited.
func (r *shadow) report(pass func(*admission)) {
	if r.atOnce {
		pass(&r.admission)
		return
	}
	r.stopWatch()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.refused {
		r.reports = append(r.reports, report{time.Now(), pass})
		r.passReports()
	}
}

// passReports passes the reports on in their order, each when its time has come. The scope is in use
// until then. The caller holds r.mu, which is unlocked meanwhile. Those after a report whose Observer
// panics are passed on, too.
func (r *shadow) passReports() {
	if !r.admitted || r.passing || len(r.reports) == 0 {
		return
	}
	next := r.reports[0]
	r.passing = true
	if wait := time.Until(next.at.Add(r.waited)); wait > 0 {
		r.admission.scope.use()
		time.AfterFunc(wait, r.continuePassing)
		return
	}
	r.reports = r.reports[1:]
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.passing = false
		r.passReports()
	}()
	next.pass(&r.admission)
}

func (r *shadow) continuePassing() {
	defer r.admission.scope.leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passing = false
	r.passReports()
}

func (r *shadow) Arrived(store.Decision, []int64) {
	r.report(func(a *admission) {
		a.arrived()
		r.endUnreported(a)
	})
}

func (r *shadow) Unanswered(store.Decision, []int64) {
	r.report(func(a *admission) {
		a.unanswered()
		r.endUnreported(a)
	})
}

// endUnreported ends what the caller does not report, because the shadow was admitted under a later
// policy.
func (r *shadow) endUnreported(a *admission) {
	if a.revision.estimates && !r.sent.estimates {
		a.revision.quota.Settle(a.decision, a.cost, a.cost, nil)
	}
	if !r.sent.concurrent {
		a.release()
	}
}

func (r *shadow) Release(store.Decision, []int64) { r.report((*admission).release) }

func (r *shadow) Settle(_ store.Decision, _, actual []int64, _ func([]algorithms.Crossing)) {
	r.report(func(a *admission) {
		if a.revision.estimates {
			a.revision.quota.Settle(a.decision, a.cost, a.revision.plan.Translate(r.sent.plan, actual), nil)
		}
	})
}

func (r *shadow) Return(context.Context, store.Decision, []int64) error {
	r.report((*admission).refund)
	return nil
}

// Pause does nothing: a limiter would have avoided the refusal.
func (r *shadow) Pause(context.Context, store.Pause) (store.Paused, error) {
	return store.Paused{}, nil
}
