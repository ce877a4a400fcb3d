package throttle

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/store"
)

// A Transport is an http.RoundTripper that sends a request when the limiter admits
// it. The zero Transport limits nothing and works.
//
// RoundTrip blocks until the request is admitted or its context ends; a request
// that is not admitted is not sent, and its error is the limiter's. A 429, or a 503
// with Retry-After, or what else the Profile takes for a refusal, pauses the quota for
// everyone who shares it: for as long as the provider says, but at most one minute on
// a 503; for a second where it says nothing, doubled with every further pause until a
// request succeeds, times 1 to 2 at random. Then one request goes first, and the
// others follow when it has been answered. A wait beyond Policy.MaxPause, and a ban,
// close the quota: callers get ErrBanned until it ends. The response is handed on as it
// came; whoever wants the request repeated uses package retry.
//
// An admitted request is on its way until the response comes, and on a policy with
// Concurrency or Estimated tiers to the end of the response's body: read it to EOF or
// close it. A request of which nothing was sent, because no connection was made or the
// context ended before, is charged nothing, as far as the Base tells (net/http does).
//
// net/http's own Transport sends a request again, unseen by the limiter, if a
// kept-alive connection turns out to be closed before the first byte of an answer,
// provided that the request is idempotent or nothing of it was written. Where a
// provider counts those too, set DisableKeepAlives on the Base or declare a limit
// a little lower.
//
// A Transport must not be changed once in use. It is safe for concurrent use.
type Transport struct {
	Base           http.RoundTripper            // If nil, http.DefaultTransport
	Limiter        *Limiter                     // If nil, and Route too, nothing is limited
	Route          func(*http.Request) *Limiter // chooses the quota. If nil, Limiter; a nil result is not limited
	Cost           func(*http.Request) Cost     // what the request costs, or is estimated to. If nil, one request
	Profile        *answers.Profile             // what responses tell: refusals, what is left, what was charged. If nil, 429, and 503 with Retry-After
	Meter          func(*http.Response) Meter   // tells what was really charged in Estimated units; a nil result tells nothing. If nil, what the Profile reads
	AttemptTimeout time.Duration                // from admission to the end of the body, which http.Client.Timeout would count the waiting into. If zero, none
}

// RoundTrip sends the request when it is admitted.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	l := t.limiter(req)
	if l == nil && t.AttemptTimeout <= 0 {
		return t.base().RoundTrip(req)
	}
	a := attempt{transport: t}
	if l != nil {
		if err := a.admit(l, req); err != nil {
			closeBody(req)
			return nil, err
		}
	}
	resp, err := a.send(req)
	runtime.KeepAlive(l) // a Group may drop a gate that nobody holds, and with it the pause that the response asked for
	return resp, err
}

// CloseIdleConnections forwards to the Base, if it has the method.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) limiter(req *http.Request) *Limiter {
	if t.Route != nil {
		return t.Route(req)
	}
	return t.Limiter
}

// An attempt is one admitted request on its way.
type attempt struct {
	transport *Transport
	gate      *gate // nil if nothing is limited
	booking   store.Decision
	cost      []int64
	journey   journey
	sent      time.Time
	cancel    context.CancelFunc // ends AttemptTimeout; nil if there is none
}

// admit waits for the limiter. A request whose context has ended meanwhile is not sent.
func (a *attempt) admit(l *Limiter, req *http.Request) (err error) {
	if l.err != nil {
		return l.err
	}
	a.gate, a.cost = l.gate, l.gate.one
	if a.transport.Cost != nil {
		if a.cost, err = a.gate.amounts(a.transport.Cost(req)); err != nil {
			return err
		}
	}
	ctx := req.Context()
	if a.booking, err = l.acquire(ctx, a.cost); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		a.undo()
		return err
	}
	a.journey = a.gate.network().start()
	return nil
}

func (a *attempt) charged() bool { return a.gate != nil && a.booking.Verdict == store.Admitted }

// send hands the request to the base, and tells the quota of its arrival and its
// end, each once, whatever the base does.
func (a *attempt) send(req *http.Request) (*http.Response, error) {
	handedOn := false
	defer func() {
		if !handedOn {
			a.over(nil)
		}
	}()
	sent := req
	if timeout := a.transport.AttemptTimeout; timeout > 0 {
		var ctx context.Context
		ctx, a.cancel = context.WithTimeout(req.Context(), timeout)
		sent = req.WithContext(ctx)
	}
	traced, d := a.trace(sent)
	if a.transport.Profile != nil {
		a.sent = time.Now()
	}
	resp, err := a.transport.base().RoundTrip(traced)
	switch {
	case err != nil && d.unsent(err):
		a.undo()
		return resp, err
	case err != nil:
		a.arrived()
		return resp, err
	case resp.Request == traced:
		resp.Request = req
	}
	a.journey.answered()
	answer := a.learn(req.Context(), resp)
	a.arrived()
	a.observe(answer)
	if m := a.meter(resp, answer); resp.Body != nil && resp.Body != http.NoBody && a.lasts() {
		resp.Body = a.watch(resp.Body, m)
		handedOn = true
	} else if m != nil {
		handedOn = true
		a.over(m)
	}
	return resp, nil
}

func (a *attempt) arrived() {
	if a.charged() {
		a.gate.quota.Arrived(a.booking, a.cost)
	}
}

// lasts tells whether the end of the body matters.
func (a *attempt) lasts() bool {
	return a.cancel != nil || a.charged() && (a.gate.concurrent || a.gate.estimates)
}

// over ends the attempt, of which a meter may know the cost. One that panics knows
// nothing, and the rest is done all the same.
func (a *attempt) over(m Meter) {
	if a.cancel != nil {
		defer a.cancel()
	}
	if !a.charged() {
		return
	}
	if a.gate.concurrent {
		defer a.gate.quota.Release(a.booking, a.cost)
	}
	if a.gate.estimates {
		actual := a.cost
		defer func() { a.gate.reckon(a.booking, a.cost, actual) }()
		if m != nil {
			actual = a.gate.actual(a.cost, m.Cost())
		}
	}
}

// undo gives back the charge of a request that is not sent.
func (a *attempt) undo() {
	if a.charged() {
		// The store's time is bounded by the store; the caller's may be over.
		_ = a.gate.quota.Return(context.Background(), a.booking, a.cost)
		a.booking = store.Decision{}
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// watch returns a body that ends the attempt at EOF, at any other error, or when
// it is closed, once. The body of a 101 response stays writable.
func (a *attempt) watch(b io.ReadCloser, m Meter) io.ReadCloser {
	watched := &watchedBody{ReadCloser: b, attempt: *a, meter: m}
	if w, ok := b.(io.Writer); ok {
		return struct {
			*watchedBody
			io.Writer
		}{watched, w}
	}
	return watched
}
