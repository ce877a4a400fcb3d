package throttle

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/rtt"
)

// maxShadows is how many shadows of requests may wait under a policy without MaxQueue.
const maxShadows = 10_000

// shadowMark is the end of the name of a policy in shadow mode.
const shadowMark = " (shadow)"

// inShadow returns the policy that the shadows of requests are admitted under.
func inShadow(p Policy) Policy {
	p.Name = strings.TrimSuffix(p.Name, shadowMark) + shadowMark
	p.Alert = nil
	if p.MaxQueue == 0 {
		p.MaxQueue = maxShadows
	}
	return p
}

// A shadow is a second request beside one that was sent at once. It is admitted when a limiter would
// have admitted the request. As the listener of the request it passes what becomes of that on to its
// own Permit, later by as long as the shadow has waited.
//
// The request itself has an admission without a charge, so that neither readings nor refusals of the
// provider change a quota: they are about requests that a limiter would have delayed.
type shadow struct {
	permit    Permit
	held      bool          // the caller reports what becomes of the request
	stopWatch func() bool   // the end of the caller's context no longer concerns the shadow; nil if it never does
	waited    time.Duration // until the admission

	mu      sync.Mutex // guards all below
	reports []report   // that the Permit has not received
	busy    bool       // the shadow is not admitted, or a report is being passed on, or its time has not come
}

// A report is what has become of a request, and when.
type report struct {
	at   time.Time
	pass func(*Permit)
}

// admit lets a request go at once, and asks the Limiter for the admission of its shadow beside it. It
// returns the errors with which no request is sent; the Observer alone receives a refusal.
func (sh *shadow) admit(ctx context.Context, l *Limiter, d admit.Demand, a *admission) error {
	s, err := l.path.Enter()
	if err == nil {
		defer s.Leave() // until the shadow has its place
	}
	sh.held, sh.busy = d.Held, true
	own := &sh.permit.a
	err = l.request(ctx, &d, own, false)
	if a.Revision = own.Revision; err != nil {
		if e, ok := err.(*WaitError); err == admit.ErrNotNow || ok && e.Err != ErrClosed {
			return nil
		}
		return err
	}
	if d.Held {
		a.listener = sh
	}
	if a.Revision.AutoGuard && s != nil {
		a.Timing = rtt.StartTiming(s.Estimator())
	}
	if own.Charged() {
		sh.begin(ctx)
	} else {
		sh.wait(ctx, l, d)
	}
	return nil
}

// begin begins the use of the Permit of a shadow that was admitted. Without reports the use ends at once.
func (sh *shadow) begin(ctx context.Context) {
	if !sh.held {
		sh.permit.a.leave()
		return
	}
	sh.permit.ctx = ctx
	sh.passOn()
}

// wait lets the shadow wait in a goroutine. It returns when the shadow has its place in the queue.
func (sh *shadow) wait(caller context.Context, l *Limiter, d admit.Demand) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(caller))
	if deadline, ok := caller.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	if sh.held {
		sh.stopWatch = context.AfterFunc(caller, func() {
			if caller.Err() == context.Canceled {
				cancel()
			}
		})
	}
	joined, began := make(chan struct{}), time.Now()
	d.Queued = sync.OnceFunc(func() { close(joined) })
	d.Cost, d.Recost = maps.Clone(d.Cost), nil // the caller may change its own once it has returned
	if r, ok := d.Record.(*record); ok {
		r.ctx, r.info.Cost = ctx, d.Cost
	}
	go func() {
		defer cancel()
		defer d.Queued()
		if l.request(ctx, &d, &sh.permit.a, true) == nil {
			sh.waited = time.Since(began)
			sh.begin(ctx)
		}
	}()
	<-joined
}

func (sh *shadow) answered(ctx context.Context, info AnsweredInfo) {
	sh.report(func(p *Permit) {
		switch {
		case info.Unsent:
			_ = p.Cancel(ctx)
		case info.Lost:
			p.Release()
		case p.markOnce(arrived):
			p.arrived()
			p.a.answered(ctx, info)
		}
	})
}

func (sh *shadow) settled(actual Cost) { sh.report(func(p *Permit) { p.settleOnce(actual) }) }

func (sh *shadow) ended() { sh.report((*Permit).Release) }

// report passes a report on when its time has come.
func (sh *shadow) report(pass func(*Permit)) {
	if sh.stopWatch != nil {
		sh.stopWatch()
	}
	sh.mu.Lock()
	sh.reports = append(sh.reports, report{time.Now(), pass})
	busy := sh.busy
	sh.busy = true
	sh.mu.Unlock()
	if !busy {
		sh.passOn()
	}
}

// passOn passes the reports on in their order, those after one whose Observer panics, too.
func (sh *shadow) passOn() {
	sh.mu.Lock()
	if sh.busy = len(sh.reports) > 0; !sh.busy {
		sh.mu.Unlock()
		return
	}
	next := sh.reports[0]
	if wait := time.Until(next.at.Add(sh.waited)); wait > 0 {
		time.AfterFunc(wait, sh.passOn)
		sh.mu.Unlock()
		return
	}
	sh.reports = sh.reports[1:]
	sh.mu.Unlock()
	defer sh.passOn()
	next.pass(&sh.permit)
}
