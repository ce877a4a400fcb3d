package throttle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/credentials"
	"github.com/apithrottle/throttle/internal/delivery"
	"github.com/apithrottle/throttle/internal/outcome"
)

// A Transport is an http.RoundTripper that sends a request when the limiter admits it. The zero
// Transport sends every request at once.
//
// RoundTrip blocks until the request is admitted or its context ends. If the limiter refuses the
// request, RoundTrip does not send it and returns the limiter's error.
//
// A 429, a 503 with Retry-After, or another response that the Profile classifies as a refusal pauses the quota
// for all callers that share it. The pause lasts as long as the response asks for, but after a 503 at most one
// minute. If the response names no time, the pause is one second, doubled with each further pause until a
// request succeeds, times a random factor from 1 to 2. After the pause one request is sent as a probe, and the
// others follow when its response is in. A pause longer than Policy.MaxPause, or a ban, closes the quota:
// callers get ErrBanned until it ends. A pause that the Profile reads from the body closes the quota for
// MaxPause at most, because others may have written the body. RoundTrip returns the response unchanged; package
// retry sends refused requests again.
//
// A response that has passed may have a stream with a refusal, if the Profile has rules for its events. The
// quota pauses for it in the Read of the body that returns the end of the event, which takes a round trip with
// a shared store. The request has arrived and passed, and costs what the stream reports.
//
// An admitted request is in flight until its response comes, and on a policy with Concurrency or Estimated
// tiers until the end of the response's body: until that is read to EOF or closed, or until the request's
// context or AttemptTimeout ends. A body that nobody closes holds its place for ever if neither ends. An
// upgraded connection, the body of a 101 response, lasts until it is closed, because net/http keeps it open
// when the context ends. A request that ends in an error may still arrive, so it stays in flight until
// Policy.Guard has passed. A request that never reached the wire is refunded, provided that Base supports
// httptrace, as net/http does, or wraps a Base that does and passes the request's context on.
//
// The limiter does not see requests that net/http's own Transport repeats: it sends a request again if a
// kept-alive connection turns out to be closed before the first byte of a response, and the request is idempotent
// or nothing of it was written. If the provider counts those too, set DisableKeepAlives on the Base or declare a
// slightly lower limit.
//
// A signature that is made before the wait may expire during the wait. Sign in the Base instead; an
// oauth2.Transport that is the Base does so. If an SDK signs before it calls the Transport, set SendBy.
//
// A Transport is safe for concurrent use, as long as its fields are not changed.
type Transport struct {
	// Base sends the requests. If nil, http.DefaultTransport is used.
	Base http.RoundTripper

	// Limiter is the quota. If Limiter and Route are nil, nothing is limited.
	Limiter *Limiter

	// Route chooses the Limiter of a request. A request for which it returns nil is not limited. If
	// Route is nil, Limiter is used.
	Route func(*http.Request) *Limiter

	// Pool is the quota instead of Limiter and Route. If only one of Pool and Rewrite is set, requests fail.
	Pool *Pool

	// Rewrite directs a request to the member of the Pool that has admitted it: it sets the URL and the
	// member's credentials. Package targets has one. Rewrite receives a copy of the request without the
	// credentials of the caller: the fields and query parameters whose names tell that they have some, such
	// as Authorization, Cookie, Api-Key or access_token, those that name their account, such as
	// OpenAI-Organization, and the user of the URL. Those in a path remain. The Base receives that copy. If
	// Rewrite returns an error, or sets empty credentials, or none although the caller's request had more
	// than a Cookie, the request is not sent, and is refunded. Cost and the other functions receive the
	// request as the caller sent it; ProfileFor receives the copy.
	//
	// A redirect of a member to its own host becomes one to the host of the caller's request. A redirect to
	// another host is followed without the Pool, Rewrite and the caller's credentials.
	Rewrite func(req *http.Request, member string) error

	// StickyKey returns a key whose requests prefer one member of the Pool; see WithStickyKey. If it is
	// nil or returns an empty key, the context's key counts.
	StickyKey func(*http.Request) string

	// Cost returns what the request costs, or is estimated to cost. If Cost is nil, each request
	// costs one request.
	Cost func(*http.Request) Cost

	// Settle returns a function that is called once with the cost that the response reports, in Estimated
	// units and in any others that the Profile names, and returns the actual cost. Without a response, or
	// a Meter to read it, the function receives an empty Cost, or zeros if the request was not sent, and
	// its result has no effect. Settle is called when the request is admitted. If it is set, Cost is
	// called again while a request waits, unless the quota is nested or on a shared store. If the
	// request's context ends before the body does, the function is called in a goroutine of its own. The
	// section "Estimates that learn" of docs/costs.md has an example. If Settle or the function is nil,
	// the reported cost counts.
	Settle func(*http.Request) func(reported Cost) (actual Cost)

	// SendBy returns the latest time at which the request is worth sending, such as the end of its
	// signature's validity. The request is admitted at the latest one guard interval before that
	// time. If it would wait longer, it fails at once with ErrDeadline and is not charged. If
	// nothing of it was written by that time, the attempt ends with the same error and is refunded.
	// A zero time is no bound. If SendBy is nil, no request has a bound.
	SendBy func(*http.Request) time.Time

	// Profile describes what responses report: refusals, remaining amounts, charged amounts. If
	// nil, only a 429, and a 503 with Retry-After, are refusals, and nothing else is read.
	Profile *answers.Profile

	// ProfileFor returns the profile of a request, for a Transport to several APIs. If ProfileFor is
	// nil or returns nil, Profile is used.
	ProfileFor func(*http.Request) *answers.Profile

	// Meter returns the Meter that reads the actual cost in Estimated units from a response. If it
	// returns nil, the estimate becomes the cost. If Meter is nil, the Profile is used.
	Meter func(*http.Response) Meter

	// AttemptTimeout bounds the time from the admission to the end of the response's body. Unlike
	// http.Client.Timeout, it does not include the wait. If zero, there is no bound.
	AttemptTimeout time.Duration

	silent int32 // see learnFrom; accessed atomically, so that a Transport can be copied
}

// RoundTrip waits until the limiter admits the request, sends it through the Base and returns the
// response. See Transport. If the request is not admitted, the error is the limiter's, such as a
// *WaitError, or the context's own error. RoundTrip closes the request's body on every path, as an
// http.RoundTripper must.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	a := attempt{transport: t}
	sending := false
	defer func() {
		if !sending { // the request was refused, or a function of the Transport or the Policy panicked
			closeBody(req)
		}
	}()
	switch l := t.limiter(req); {
	case t.Pool != nil && credentials.LeadsAway(req):
		a.target = credentials.WithoutFields(req)
	case l != nil || t.Pool != nil || t.Rewrite != nil:
		if err := a.admit(l, req); err != nil {
			return nil, err
		}
	case t.AttemptTimeout <= 0:
		sending = true
		outcome.Admitted(req.Context())
		return t.base().RoundTrip(req)
	}
	sending = true
	outcome.Admitted(req.Context())
	return a.send(req)
}

// CloseIdleConnections calls the same method of the Base, if it has one.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Unwrap returns the Base, or http.DefaultTransport if that is nil.
func (t *Transport) Unwrap() http.RoundTripper { return t.base() }

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

// NewClient returns a client of http.DefaultTransport whose requests wait for the limiter. For any
// other client, wrap its Transport in a [Transport].
func NewClient(l *Limiter) *http.Client { return &http.Client{Transport: &Transport{Limiter: l}} }

func (t *Transport) limiter(req *http.Request) *Limiter {
	if t.Route != nil {
		return t.Route(req)
	}
	return t.Limiter
}

func (t *Transport) profile(req *http.Request) *answers.Profile {
	if t.ProfileFor != nil {
		if p := t.ProfileFor(req); p != nil {
			return p
		}
	}
	return t.Profile
}

// An attempt is one admitted request that is being sent.
type attempt struct {
	admission // zero if the request is not limited
	transport *Transport
	target    *http.Request    // what is sent instead of the caller's request; nil without a Pool
	profile   *answers.Profile // nil if there is none
	settler   func(Cost) Cost  // the result of Transport.Settle
	sendBy    time.Time
	sent      time.Time
	cancel    context.CancelFunc // ends AttemptTimeout; nil if there is none
}

// admit waits for the limiter. A request whose context ended during the wait is refunded.
func (a *attempt) admit(l *Limiter, req *http.Request) (err error) {
	t, ctx, member := a.transport, req.Context(), ""
	switch {
	case t.Pool != nil || t.Rewrite != nil:
		member, err = a.admitInPool(req)
	case t.Cost != nil || t.SendBy != nil || ctx.Err() != nil || l.path.Holds() || !l.tryOne(ctx, &a.admission):
		err = l.admit(ctx, a.demand(req), &a.admission)
	}
	if err != nil {
		return err
	}
	sends := false
	defer func() {
		if !sends { // the context has ended, or Settle panicked
			a.endUnanswered(ctx, true)
		}
	}()
	if err = ctx.Err(); err == nil && t.Pool != nil {
		if a.target, err = credentials.Replace(req, func(target *http.Request) error { return t.Rewrite(target, member) }); err != nil {
			err = fmt.Errorf("throttle: pool member %q: Rewrite %w", member, err)
		}
	}
	if err != nil {
		return err
	}
	a.profile = t.profile(cmp.Or(a.target, req))
	if !a.Fast { // a learned guard is not fast
		a.StartTiming()
	}
	if a.transport.Settle != nil {
		a.settler = a.transport.Settle(req)
	}
	sends = true
	return nil
}

// admitInPool waits for a member of the Pool, and returns its name.
func (a *attempt) admitInPool(req *http.Request) (member string, err error) {
	t, ctx := a.transport, req.Context()
	if t.Pool == nil || t.Rewrite == nil {
		return "", errors.New("throttle: Transport has only one of Pool and Rewrite: set Rewrite and Pool, or neither")
	}
	if t.StickyKey != nil {
		if key := t.StickyKey(req); key != "" {
			ctx = WithStickyKey(ctx, key)
		}
	}
	return t.Pool.admit(ctx, a.demand(req), &a.admission)
}

// demand returns what the request asks for, and sets sendBy.
func (a *attempt) demand(req *http.Request) admit.Demand {
	t, d := a.transport, admit.Demand{N: 1, Held: true, NoWait: admit.IsHedge(req.Context()), Object: func() string { return objectOf(req) }}
	if t.Cost != nil {
		d.Cost = t.Cost(req)
		if t.Settle != nil {
			d.Recost = func() map[string]int64 { return t.Cost(req) }
		}
	}
	if t.SendBy != nil {
		a.sendBy = t.SendBy(req)
		d.SendBy = a.sendBy
	}
	return d
}

// send passes the request to the Base. It reports the arrival and the end of the request to the
// quotas, once each, also if the Base panics.
func (a *attempt) send(req *http.Request) (*http.Response, error) {
	sent, ctx := cmp.Or(a.target, req), req.Context()
	if timeout := a.transport.AttemptTimeout; timeout > 0 {
		ctx, a.cancel = context.WithTimeout(ctx, timeout)
	}
	ctx, tr := a.trace(ctx, sent)
	if tr != nil || a.cancel != nil {
		sent = sent.WithContext(ctx)
	}
	a.sent = time.Now()
	resp, err := a.roundTrip(req, sent)
	tr.StopTimer()
	a.transport.learnFrom(tr, err != nil)
	switch {
	case err != nil:
		return resp, credentials.Hide(a.target, a.endFailed(req.Context(), err, tr))
	case resp == nil: // the Base breaks the contract; http.Client reports that
		a.endUnanswered(req.Context(), false)
		return nil, nil
	case a.target != nil:
		credentials.LeadBack(resp, sent, req)
	case resp.Request == sent:
		resp.Request = req
	}
	a.Timing.Answered(tr.Upload())
	a.respond(ctx, req, resp)
	return resp, nil
}

// roundTrip passes what is sent of a request to the Base. If the Base panics, no response will come.
func (a *attempt) roundTrip(req, sent *http.Request) (*http.Response, error) {
	returned := false
	defer func() {
		if !returned {
			a.endUnanswered(req.Context(), false)
		}
	}()
	resp, err := a.transport.base().RoundTrip(sent)
	returned = true
	return resp, err
}

// respond reports a response to the quotas and to the Observer. If the attempt lasts longer, the end of
// the body ends it, or the Meter's result. If the Profile, the body or a callback panics, the attempt
// ends and the body is closed.
func (a *attempt) respond(ctx context.Context, req *http.Request, resp *http.Response) {
	reading, ends, returns := true, true, false
	defer func() {
		if !ends {
			return
		}
		defer a.finish(nil)
		if reading {
			a.Arrived()
		}
		if !returns && resp.Body != nil {
			resp.Body.Close()
		}
	}()
	var after admit.Callbacks
	answer := a.handleResponse(req, resp, &after)
	report := reportRefusal(req.Context(), &a.admission, resp.Header, answer, &after)
	reading = false
	a.Arrived()
	a.observe(answer, resp.StatusCode, &after)
	if a.listener != nil || after != nil {
		a.reportAnswer(req.Context(), resp.StatusCode, answer, report, after)
	}
	body := a.bodyMeter(req.Method, resp, answer)
	if a.Fast && a.cancel == nil && a.settler == nil && body == nil { // nothing of it lasts longer than its response
		ends = false
		return
	}
	if m := a.meter(resp, answer, body); resp.Body != nil && resp.Body != http.NoBody && (a.needsBody() || body != nil) {
		if resp.StatusCode == http.StatusSwitchingProtocols {
			ctx = nil // net/http keeps the connection open
		}
		resp.Body = a.watchBody(ctx, resp.Body, m, body)
		ends = false
	} else if m != nil {
		ends = false
		a.finish(m)
	}
	returns = true
}

// endFailed ends an attempt that failed with err. If nothing of the request was written, the
// request is refunded.
func (a *attempt) endFailed(ctx context.Context, err error, tr *delivery.Trace) error {
	unsent := tr.NotSent(err)
	a.endUnanswered(ctx, unsent)
	if unsent && tr.Late() {
		return waitError(a.Revision.TooLate())
	}
	return err
}

// endUnanswered ends an attempt that gets no response. It refunds a request that was not sent.
func (a *attempt) endUnanswered(ctx context.Context, unsent bool) {
	defer a.leave()
	if a.cancel != nil {
		defer a.cancel()
	}
	nothing := Cost{}
	if unsent {
		nothing = a.ZeroEstimate()
		a.Refund()
	} else {
		a.Unanswered()
		a.Release()
	}
	defer a.answered(ctx, AnsweredInfo{Unsent: unsent, Lost: !unsent})
	a.settleNothing(nothing)
}

// settleNothing ends the use of the function of Transport.Settle if no response reports a cost to it.
func (a *attempt) settleNothing(nothing Cost) {
	if a.settler != nil {
		a.settler(nothing)
	}
}

// needsBody reports whether the attempt lasts until the end of the response's body.
func (a *attempt) needsBody() bool { return a.cancel != nil || a.Concurrent() || a.Estimates() }

// finish ends the attempt. If m is not nil, it reports the actual cost. If m panics, the estimate
// becomes the cost, and the attempt ends as usual.
func (a *attempt) finish(m Meter) {
	defer a.leave()
	if a.cancel != nil {
		defer a.cancel()
	}
	var actual Cost
	defer func() {
		var after admit.Callbacks
		a.settle(actual, &after)
		a.Release()
		after.Run()
	}()
	if m != nil {
		actual = m.Cost()
	} else {
		a.settleNothing(Cost{})
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// watchBody returns a body that ends the attempt once: at EOF, at another error, when it is closed, or
// when ctx ends. A nil ctx does not end. The body of a 101 response keeps its further methods: those of
// a writer, of a half-closer or of a connection.
func (a *attempt) watchBody(ctx context.Context, b io.ReadCloser, m Meter, body *answers.Meter) io.ReadCloser {
	type halfCloser interface{ CloseWrite() error }
	type conn interface {
		io.Writer
		LocalAddr() net.Addr
		RemoteAddr() net.Addr
		SetDeadline(time.Time) error
		SetReadDeadline(time.Time) error
		SetWriteDeadline(time.Time) error
	}
	watched := &watchedBody{ReadCloser: b, attempt: *a, meter: m, body: body}
	watched.endWith(ctx)
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
