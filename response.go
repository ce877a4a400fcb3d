package throttle

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/delivery"
	"github.com/apithrottle/throttle/internal/outcome"
	"github.com/apithrottle/throttle/internal/peek"
	"github.com/apithrottle/throttle/store"
)

// trace returns the context of an attempt that records what the Base reports. It returns ctx itself
// if a record would be of no use: the request is not limited, or nothing can end or measure the attempt
// and the Base asks for no trace.
func (a *attempt) trace(ctx context.Context, req *http.Request) (context.Context, *delivery.Trace) {
	watches := a.Timing.Learns() || !a.sendBy.IsZero()
	if a.Revision == nil || !watches && ctx.Done() == nil && atomic.LoadInt32(&a.transport.silent) >= manySilent {
		return ctx, nil
	}
	tr := new(delivery.Trace)
	tr.Context = ctx
	if watches {
		bound := a.sendBy
		if !a.Charged() {
			bound = time.Time{}
		}
		a.cancel = tr.Watch(a.Timing, req.URL.Hostname(), bound, a.cancel)
	}
	return tr, tr
}

// A Transport counts how many responses in a row its Base has returned without asking for a trace.
const (
	asksForTraces = -1 // it has asked for one
	manySilent    = 8  // so many that further requests have none
)

// learnFrom records whether the Base asked for the trace of a request. If a Base has not, such as that
// of a test, its requests have a trace again once one of them fails. Once it has asked, they always have
// one, because a cache may not ask each time.
func (t *Transport) learnFrom(tr *delivery.Trace, failed bool) {
	switch n := atomic.LoadInt32(&t.silent); {
	case n == asksForTraces:
	case tr != nil && tr.Asked():
		atomic.StoreInt32(&t.silent, asksForTraces)
	case failed:
		atomic.CompareAndSwapInt32(&t.silent, n, 0)
	case tr != nil && n < manySilent:
		atomic.CompareAndSwapInt32(&t.silent, n, n+1)
	}
}

// handleResponse reads the response. It pauses the quota after a refusal, ends the back-off after a
// success, and does neither after a failure of the server. It returns nil if there was nothing to
// read.
func (a *attempt) handleResponse(req *http.Request, resp *http.Response, after *admit.Callbacks) *answers.Answer {
	if a.Revision == nil {
		return nil
	}
	answer := a.readResponse(req.Method, resp)
	object := func() string { return objectOf(req) }
	a.follow(answer, after) // before a pause, in which others reserve the probe: a lower limit may not admit it
	switch {
	case answer == nil || answer.Kind == answers.Passed && resp.StatusCode < 500:
		a.Passed(object, a.sent)
	case answer.Kind == answers.Limited && a.isForObject(answer.Refusal) && a.Blames(object, a.sent, answer.Delay):
		// It has a limit of its own, and pauses.
	case answer.Kind == answers.Limited || answer.Kind == answers.Banned:
		a.Timing.Refused()
		// If a shared store is not available, the next refusal pauses the quota.
		_ = a.pauseAfterRefusal(context.WithoutCancel(req.Context()), answer.Refusal, resp.StatusCode, after)
	}
	if answer != nil && answer.Kind != answers.Passed {
		outcome.Tell(req.Context(), answer.Refusal)
	}
	return answer
}

// pauseAfterEvent pauses the quota that a refusal in a stream is about. The request itself has passed: it
// says nothing of the guard, and costs what the stream reports. In a goroutine of the caller it blocks as
// the pause after a response does.
func (a *attempt) pauseAfterEvent(event answers.Response) {
	event.Got = time.Now()
	r := a.profile.Read(event).Refusal
	if r.Kind != answers.Limited && r.Kind != answers.Banned {
		return
	}
	var after admit.Callbacks
	// If a shared store is not available, the next refusal pauses the quota.
	_ = a.pauseAfterRefusal(context.Background(), r, event.Status, &after)
	after.Run()
}

// pauseAfterRefusal pauses the quota that a refusal is about, for all callers: if the refusal does not say, the
// innermost one that learns its rate, or else the request's own.
func (a *admission) pauseAfterRefusal(ctx context.Context, r answers.Refusal, status int, after *admit.Callbacks) error {
	if !a.Charged() {
		return nil
	}
	of := a.Own()
	a.EachCharge(func(c *admit.Charge) {
		if r.Unit == "" && c.Revision.Plan.Learns() && !of.Revision.Plan.Learns() {
			of = c // the limits of the others are known
		}
		if r.Wide || r.Unit != "" && slices.Contains(c.Revision.Plan.Units(), r.Unit) {
			of = c
		}
	})
	return pauseAfterRefusal(ctx, of, r, status, after)
}

// isForObject reports whether a refusal may be about the object of its request: it does not say what it is about,
// and requests for the object can pause. Those through a Pool can not.
func (a *attempt) isForObject(r answers.Refusal) bool {
	return !r.Wide && r.Unit == "" && a.transport.Pool == nil
}

// objectOf returns what a request is for.
func objectOf(req *http.Request) string {
	return methodOf(req.Method) + " " + req.URL.Host + req.URL.Path
}

// methodOf returns the method of a request, of which "" means GET.
func methodOf(method string) string { return cmp.Or(method, http.MethodGet) }

// defaultProfile is the Profile of a Transport without one.
var defaultProfile answers.Profile

// readResponse returns what the response reports, or nil if the response needs no reading.
func (a *attempt) readResponse(method string, resp *http.Response) *answers.Answer {
	p := a.profile
	if p == nil {
		if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
			return nil
		}
		p = &defaultProfile
	}
	r := answers.Response{Method: methodOf(method), Status: resp.StatusCode, Header: resp.Header, Sent: a.sent, Got: time.Now()}
	if p.Peeks(r.Status, r.Header) && resp.Body != nil && resp.Body != http.NoBody {
		r.Body = peek.Body(resp)
	}
	answer := p.Read(r)
	return &answer
}

const firstPause = time.Second

// toldPause returns the pause for a wait that a response names. A wait of more than MaxPause closes
// the quota. If the wait is from the body, which others may have written, it closes the quota for
// MaxPause only, and one request is sent as a probe after that.
func toldPause(rev *admit.Revision, wait time.Duration, fromBody bool) store.Pause {
	most := rev.MaxPause
	p := store.Pause{For: wait, Close: wait > most}
	if fromBody && p.Close {
		p.For, p.Probe = most, true
	}
	return p
}

// pauseAfterRefusal pauses the quota for all callers after a refusal. It closes the quota if the
// provider has banned the caller or asks for a longer pause than MaxPause.
//
// If the response names no time, or a time of zero, one request is sent as a probe after the pause.
// The first pause for a time of zero takes no time. Any other pause lasts one second, doubled with
// each further refusal, times a random factor from 1 to 2, which keeps fleets out of step.
//
// Tiers with Learn learn from the refusal, unless it is a ban or a 503 that names a wait, which is an outage.
func pauseAfterRefusal(ctx context.Context, c *admit.Charge, r answers.Refusal, status int, after *admit.Callbacks) error {
	most, banned := c.Revision.MaxPause, r.Kind == answers.Banned
	p := toldPause(c.Revision, r.Delay, r.FromBody && !banned)
	p.Close, p.Probe = p.Close || banned, true
	switch {
	case r.Known && r.Delay > 0:
	case banned:
		p.For = most
	default:
		// Refusals of requests that were admitted before the last pause are one event.
		p = store.Pause{
			For: firstPause + rand.N(firstPause), Most: most, AtOnce: r.Known, Once: true, Epoch: c.Decision.Epoch, Probe: true,
		}
	}
	if outage := status == http.StatusServiceUnavailable && r.Known; !banned && !outage {
		p.Refused = c.Refused(r.Unit)
	}
	return c.Scope.Pause(ctx, c.Revision, p, admit.PausedBy{Cause: string(PausedByResponse), Status: status, Reason: r.Reason}, after)
}
