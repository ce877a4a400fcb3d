package throttle

import (
	"context"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/queue"
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
// An admitted request is in flight until the response comes, and on a policy with
// Concurrency or Estimated tiers to the end of the response's body: read it to EOF or
// close it. An error is no response: the request may still arrive, and stays in flight
// until Policy.Guard has passed. A request that never reached the wire is refunded,
// provided that Base supports httptrace, as net/http does.
//
// net/http's own Transport sends a request again, unseen by the limiter, if a
// kept-alive connection turns out to be closed before the first byte of an answer,
// provided that the request is idempotent or nothing of it was written. Where a
// provider counts those too, set DisableKeepAlives on the Base or declare a limit
// a little lower.
//
// A wait ages what was signed before it. Sign inside, in the Base, as an oauth2.Transport
// does that is the Base; where an SDK signs outside, set SendBy.
//
// A Transport must not be changed once in use. It is safe for concurrent use.
type Transport struct {
	// Base sends the requests. If nil, http.DefaultTransport.
	Base http.RoundTripper
	// Limiter is the quota. If nil, and Route too, nothing is limited.
	Limiter *Limiter
	// Route chooses the quota. A nil result is not limited. If nil, Limiter.
	Route func(*http.Request) *Limiter
	// Cost returns what the request costs, or is estimated to. If nil, one request.
	Cost func(*http.Request) Cost
	// SendBy returns the latest instant at which the request is worth sending, such as the
	// end of its signature's validity. A request that would wait longer is refused at once
	// with ErrDeadline and charged nothing: it is admitted no later than its guard before
	// SendBy. An attempt of which nothing was written by then ends, too. A zero time is no
	// bound. If nil, none.
	SendBy func(*http.Request) time.Time
	// Profile reads from responses what they report: refusals, what is left, what was
	// charged. If nil, 429, and 503 with Retry-After, are refusals.
	Profile *answers.Profile
	// Meter returns what reads the real cost in Estimated units from a response; a nil
	// result leaves the estimate. If nil, the Profile.
	Meter func(*http.Response) Meter
	// AttemptTimeout bounds the time from admission to the end of the body, into which
	// http.Client.Timeout would count the waiting. If zero, none.
	AttemptTimeout time.Duration
}

// RoundTrip sends the request when it is admitted.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a := attempt{transport: t}
	sending := false
	defer func() {
		if !sending { // it was refused, or a function of the Transport or the Policy panicked
			closeBody(req)
		}
	}()
	l := t.limiter(req)
	if l != nil {
		if err := a.admit(l, req); err != nil {
			return nil, err
		}
		defer a.leave()
	} else if t.AttemptTimeout <= 0 {
		sending = true
		return t.base().RoundTrip(req)
	}
	sending = true
	return a.send(req)
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

// An attempt is one admitted request that is sent.
type attempt struct {
	admitted  // nothing, if the request is not limited
	transport *Transport
	sendBy    time.Time
	sent      time.Time
	cancel    context.CancelFunc // ends AttemptTimeout; nil if there is none
}

// admit waits for the limiter. A request whose context has ended meanwhile is not sent.
func (a *attempt) admit(l *Limiter, req *http.Request) (err error) {
	d := demand{n: 1, held: true}
	if a.transport.Cost != nil {
		d.cost = a.transport.Cost(req)
	}
	if a.transport.SendBy != nil {
		a.sendBy = a.transport.SendBy(req)
		d.sendBy = a.sendBy
	}
	ctx := req.Context()
	if err = l.admit(ctx, d, &a.admitted); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		a.refund()
		a.leave()
		return err
	}
	a.startTiming()
	return nil
}

// send hands the request to the base, and reports its arrival and its end to the quotas,
// each once, whatever the base does.
func (a *attempt) send(req *http.Request) (*http.Response, error) {
	sending, handedOn, returns := true, false, false
	var resp *http.Response
	defer func() {
		switch {
		case sending: // the base panicked
			a.fail()
		case !handedOn:
			defer a.finish(nil)
			if !returns && resp != nil && resp.Body != nil {
				resp.Body.Close()
			}
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
	var err error
	resp, err = a.transport.base().RoundTrip(traced)
	sending = false
	if d != nil {
		d.stop()
	}
	if err != nil {
		handedOn = true
		return resp, a.failed(err, d)
	}
	if resp == nil { // a Base that breaks the contract, which http.Client reports
		handedOn = true
		a.fail()
		return nil, nil
	}
	if resp.Request == traced {
		resp.Request = req
	}
	a.timing.answered(d.upload())
	answer := a.handleResponse(req.Context(), resp)
	a.arrived()
	a.observe(answer)
	if m := a.meter(resp, answer); resp.Body != nil && resp.Body != http.NoBody && a.needsBody() {
		resp.Body = a.watch(resp.Body, m)
		handedOn = true
	} else if m != nil {
		handedOn = true
		a.finish(m)
	}
	returns = true
	return resp, nil
}

// failed ends an attempt without a response. Where the base says that nothing was
// written it is refunded.
func (a *attempt) failed(err error, d *attemptTrace) error {
	if d.unsent(err) {
		if a.cancel != nil {
			a.cancel()
		}
		a.refund()
		if d.late() {
			return a.terms.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1})
		}
		return err
	}
	a.fail()
	return err
}

// fail ends an attempt that may have been sent and gets no response.
func (a *attempt) fail() {
	if a.cancel != nil {
		defer a.cancel()
	}
	a.unanswered()
	a.release()
}

// needsBody reports whether the end of the body matters.
func (a *attempt) needsBody() bool { return a.cancel != nil || a.concurrent() || a.estimates() }

// finish ends the attempt, whose cost a meter may have read. If the meter panics, the
// estimate stands, and the rest is done all the same.
func (a *attempt) finish(m Meter) {
	if a.cancel != nil {
		defer a.cancel()
	}
	defer a.release()
	var actual Cost
	defer func() { a.settle(actual) }()
	if m != nil {
		actual = m.Cost()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// watch returns a body that ends the attempt at EOF, at any other error, or when
// it is closed, once. The body of a 101 response stays what it was: writable, one whose
// writing end can be closed, or a connection.
func (a *attempt) watch(b io.ReadCloser, m Meter) io.ReadCloser {
	type halfCloser interface{ CloseWrite() error }
	type conn interface {
		io.Writer
		LocalAddr() net.Addr
		RemoteAddr() net.Addr
		SetDeadline(time.Time) error
		SetReadDeadline(time.Time) error
		SetWriteDeadline(time.Time) error
	}
	watched := &watchedBody{ReadCloser: b, attempt: *a, meter: m}
	half, halves := b.(halfCloser)
	switch w := b.(type) {
	case conn:
		if halves {
			return struct {
				*watchedBody
				conn
				halfCloser
			}{watched, w, half}
		}
		return struct {
			*watchedBody
			conn
		}{watched, w}
	case io.Writer:
		if halves {
			return struct {
				*watchedBody
				io.Writer
				halfCloser
			}{watched, w, half}
		}
		return struct {
			*watchedBody
			io.Writer
		}{watched, w}
	}
	return watched
}
