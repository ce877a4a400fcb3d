package throttle

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
)

// An admission is one admitted request, and what receives its end.
type admission struct {
	admit.Admission
	listener listener // nil if nobody listens
}

// listen lets an Observer receive how the request ends.
func (a *admission) listen(o *Observer) {
	if o.Answered != nil || o.Changed != nil {
		a.listener = o
	}
}

// answered reports how the request has ended.
func (a *admission) answered(ctx context.Context, info AnsweredInfo) {
	if a.listener != nil {
		info.Policy = a.Revision.Name
		a.listener.answered(ctx, info)
	}
}

// leave ends the use of the scopes, when the request has ended.
func (a *admission) leave() {
	a.Leave()
	if a.listener != nil {
		a.listener.ended()
	}
}

// settle reports the actual cost of the request in the estimated units.
func (a *admission) settle(actual Cost, after *admit.Callbacks) {
	a.Settle(actual, after)
	if a.listener != nil {
		a.listener.settled(actual)
	}
}

// reportAnswer reports a response, and what it contains if answer is not nil, after other callbacks.
func (a *admission) reportAnswer(ctx context.Context, status int, answer *answers.Answer, report *RefusalReport, others admit.Callbacks) {
	info := AnsweredInfo{Status: status, Report: report}
	if answer != nil {
		info.Kind, info.Reason = answer.Kind, answer.Reason
	}
	defer a.answered(ctx, info)
	others.Run()
}

// A Permit is one admitted request. Its methods report what happens to the request.
//
// Until Arrived or Cancel the request is in flight: it counts as not yet received by the provider,
// for at most Policy.Guard. On a policy with Concurrency it also counts as open until Release or
// Cancel, however long that takes. Every Permit must be released or canceled.
//
// A request that was sent and got no response is released without Arrived. It may still arrive, so
// it stays in flight until Policy.Guard has passed. Therefore `defer p.Release()` is always right.
//
// Only the first call of each method has an effect, and only the first of Arrived, Passed and
// Refused. The methods of a nil Permit have none. A Permit is safe for concurrent use.
type Permit struct {
	a   admission
	ctx context.Context // of Acquire, for Answered; nil if nobody receives it

	member string // see Member
	state  atomic.Uint32
}

const (
	arrived  uint32 = 1 << iota // the provider has counted the request
	released                    // the request has ended
	settled                     // its actual cost is known
)

// start begins the use of a Permit that was charged.
func (p *Permit) start(ctx context.Context) *Permit {
	p.a.StartTiming()
	if p.a.listener != nil {
		p.ctx = ctx
	}
	return p
}

// answered reports how the request has ended, with the values of the context of Acquire or TryAcquire.
func (p *Permit) answered(info AnsweredInfo) {
	if p.ctx != nil {
		p.a.answered(context.WithoutCancel(p.ctx), info)
	}
}

// Member returns the name of the member of a Pool that has admitted the request. It is empty for the
// Permit of a Limiter.
func (p *Permit) Member() string {
	if p == nil {
		return ""
	}
	return p.member
}

// markOnce sets a mark and reports whether the mark was not set before.
func (p *Permit) markOnce(mark uint32) bool {
	return p != nil && p.state.Or(mark)&mark == 0
}

// Arrived reports that the response is in. The provider has counted the request by then, so its
// window runs from the call. Arrived does not block.
func (p *Permit) Arrived() {
	if p.markOnce(arrived) {
		p.arrived()
		p.answered(AnsweredInfo{})
	}
}

func (p *Permit) arrived() {
	p.a.Timing.Answered(0)
	p.a.Arrived()
}

// Passed reports that the response is in and that the provider served the request. It is like
// Arrived, and also ends the back-off that refusals have begun. It does not block.
func (p *Permit) Passed() {
	if p.markOnce(arrived) {
		p.a.EndBackoff()
		p.arrived()
		p.answered(AnsweredInfo{})
	}
}

// Refused reports that the response is in and that the provider refused the request for lack of
// quota. It is like Arrived, and also pauses the quota for all callers, as a [Transport] does after a
// 429: for as long as the provider asked, or, if wait is zero or negative, for the time of the
// back-off. In nested limits the innermost quota pauses that is not Shared. With a shared store
// Refused blocks for one round trip. After an error the pause may hold for this process only.
func (p *Permit) Refused(ctx context.Context, wait time.Duration) error {
	if !p.markOnce(arrived) {
		return nil
	}
	p.a.Timing.Answered(0)
	p.a.Timing.Refused()
	answer := &answers.Answer{Refusal: answers.Refusal{Kind: answers.Limited, Delay: max(0, wait), Known: wait > 0}}
	var after admit.Callbacks
	err := p.a.pauseAfterRefusal(ctx, answer.Refusal, 0, &after)
	report := reportRefusal(ctx, &p.a, nil, answer, &after)
	p.a.Arrived()
	p.a.reportAnswer(ctx, 0, answer, report, after)
	return err
}

// Settle reports that the response is in, and what the request really cost, in the units that are
// Estimated. A unit that actual does not name cost its estimate. Settle returns an error, and
// reports nothing, if actual names any other unit or has a negative amount. It does not block.
func (p *Permit) Settle(actual Cost) error {
	if p == nil || p.a.Revision == nil {
		return nil
	}
	if err := p.a.CheckActual(actual); err != nil {
		return err
	}
	p.settleOnce(actual)
	return nil
}

func (p *Permit) settleOnce(actual Cost) {
	var after admit.Callbacks
	arrives := p.markOnce(arrived)
	if arrives {
		p.arrived()
	}
	if p.markOnce(settled) {
		p.a.settle(actual, &after)
	}
	defer after.Run()
	if arrives {
		p.answered(AnsweredInfo{})
	}
}

// Release reports that the request has ended: the body of its response was read, or no response
// came. An estimate that was not settled becomes the cost. Release does not block.
func (p *Permit) Release() {
	if !p.markOnce(released) {
		return
	}
	defer p.a.leave()
	var after admit.Callbacks
	lost := p.markOnce(arrived)
	switch first := p.markOnce(settled); {
	case first && lost:
		p.a.Unanswered()
	case first:
		p.a.settle(nil, &after)
	}
	p.a.Release()
	if lost {
		p.answered(AnsweredInfo{Lost: true})
	}
	after.Run()
}

// Cancel reports that the request was not sent, and refunds it. After Policy.Guard has passed,
// Cancel refunds only the place in a Concurrency tier and the amounts of Estimated units, because
// the limiter then takes the rest as counted by the provider. After Arrived, Settle or Release it
// does nothing. With a shared store Cancel blocks for at most one round trip; it returns the
// store's error.
func (p *Permit) Cancel(ctx context.Context) error {
	if p == nil || !p.state.CompareAndSwap(0, arrived|released|settled) {
		return nil
	}
	defer p.a.leave()
	err := p.a.RefundIn(ctx)
	p.a.answered(ctx, AnsweredInfo{Unsent: true})
	return err
}
