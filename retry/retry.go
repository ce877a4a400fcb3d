// Package retry provides an [http.Client] that retries throttled requests.
//
//	client := retry.NewClient(&throttle.Transport{Limiter: lim})
//
// It is go-retryablehttp over a [throttle.Transport]. Every attempt passes the limiter. A retry
// therefore costs quota and waits its turn like any request, and the limiter waits for a
// Retry-After once for all callers that share the quota.
//
// # What is retried
//
// Always: a refusal for lack of quota, which is a 429, a 503 with a Retry-After, or another
// response that the transport's Profile classifies as one. The provider did not process such a
// request. The same holds for a request of which nothing was written, for example because its
// connection was refused. After a Retry-After of 0 one request tries at once. The pause grows only
// if that request is refused too.
//
// Idempotent requests only: other failures, which are a lost connection, an AttemptTimeout, or a
// status of 500 and more except 501. A request is idempotent if its method is GET, HEAD, OPTIONS,
// TRACE, PUT or DELETE, or if it has an Idempotency-Key or X-Idempotency-Key header. A POST that
// was answered 502 may have bought something.
//
// Never:
//   - a ban, unless the transport has a Pool
//   - a response that the Profile classifies as no lack of quota, such as a 429 for an unpaid bill
//   - the library's own errors: [throttle.ErrBanned], [throttle.ErrDeadline] and the others are
//     returned at once, unchanged
//   - a request whose context has ended, or that is past the transport's SendBy
//   - bad certificates and bad URLs
//   - a request whose body can't be read again
//
// If the transport has a [throttle.Pool], what one member has refused or banned is sent again through
// the pool at once: to another member that has room, or to the member that has room first. Only if none
// of them has room does it wait for a pause, and at most Max times in all is it sent again. A failure
// that is no refusal waits as without a pool. A ban that concerns all members, such as one of the
// address that they are called from, must close a limit around them: see [throttle.Limiter.Within].
//
// A body is sent whole or not at all. If Request.GetBody is nil, there is only one attempt. Request
// bodies are not buffered. [http.NewRequest] sets GetBody for the readers of bytes and strings. For
// a file, set it yourself.
//
// # What the caller receives
//
// The caller receives the provider's last response or error. This holds if the retries run out, and
// also if the limiter does not admit another attempt, whether because Retry-After is beyond the
// context's deadline, SendBy or Policy.MaxPause, because a budget is used up, or for another
// reason. The client therefore reads a response before it retries, up to 64 KB. A longer response
// is lost, and the caller receives the limiter's error.
//
// Every attempt sends the same bytes. A header that must be fresh in each attempt, such as a
// signature with a date or a token that expires, belongs inside the transport, as its Base: see
// docs/ordering.md.
//
// # Hedging
//
// A hedge is a second copy of a request, which is sent when the first one has had no response for a
// while. The first response wins, and the other copy is canceled. That shortens the longest
// latencies where few responses are slow, and by chance. Hedging is off by default:
//
//	client := retry.Config{Transport: t, Hedge: new(retry.Hedge)}.Client()
//
// A request is hedged only if it is idempotent, as above, its body can be read again and it has no
// Upgrade header. It has one hedge at most, of its first attempt: a retry is never hedged, because
// it follows a refusal or a failure. The hedge is sent [Hedge].After after the request was
// admitted. By default that is the 95th percentile of the last 256 latencies, each from the
// admission to the response's header. For a stream that is its beginning. No request is hedged
// before 100 latencies are known. The client keeps one percentile: endpoints whose latencies differ
// need a Hedge each, or an After.
//
// Hedges are at most a share of the requests that may be hedged, 5 % by default. Each such request
// that is admitted adds the share to a budget, which is empty at first, and each hedge takes 1 from
// it. The first 20 requests therefore have one hedge at most, and 1,000 requests from the first one
// on have 50. At most 10 hedges are saved up: if all responses become slow, the provider receives 10
// hedges, and then 5 % more requests. Each process has a budget of its own. The two defaults are
// those of J. Dean and L. A. Barroso, "The Tail at Scale", Communications of the ACM 56 (2), 2013.
//
// A hedge passes the limiter and is charged like any request, but it never waits. It is sent only
// if it is admitted at once. It therefore overtakes no waiting caller, and none is sent during a
// pause or a ban. A hedge that is not admitted takes nothing from the budget, and no Observer
// receives its refusal. Under a policy with Shadow nothing is refused, hence no hedge either. With
// a shared store, a hedge takes a round trip or two more to be admitted. With a Pool, a hedge goes
// to whichever member admits it.
//
// The copy that loses gives back its place in a Concurrency tier at once. If nothing of it was
// written it is refunded. Otherwise the provider may count it, so it costs what it was estimated to
// cost, and stays in flight until Policy.Guard has passed, as any request without a response.
//
// A refusal, a status of 500 and more and an error don't win while the other copy is in flight. If
// both fail, the caller receives the result of the first one, which is retried as usual. The
// refusal of a hedge pauses the quota like any other. AttemptTimeout and SendBy hold for each copy,
// and the request's context ends both.
//
// The hedge is sent in a goroutine of its own. The Base must end a request whose context ends, or
// the hedge does not help. GetBody is called while the first body is in use. A panic of the Base in
// a hedge is repeated in the goroutine of the caller; if the hedge has lost by then, it is logged.
//
// Don't hedge requests that the provider bills by the request or by their results, such as the
// tokens of a language model, because it may bill both copies. Don't hedge where responses are slow
// because the provider is overloaded, where an idempotent request is expensive for the provider, or
// where the quota is used up all the time: then no hedge is admitted.
package retry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/credentials"
	"github.com/apithrottle/throttle/internal/delivery"
	"github.com/apithrottle/throttle/internal/outcome"
)

const (
	defaultMax = 4
	// waitMin and waitMax have the values of go-retryablehttp.
	waitMin     = time.Second
	waitMax     = 30 * time.Second
	maxKeptBody = 64 << 10 // of a response before another attempt, in bytes
)

// A Config describes a retrying client. The zero value describes a client that retries and limits
// nothing.
//
// After a refusal the client waits as the limiter decides. After other failures it waits 1, 2, 4 …
// 30 seconds. It does not begin a wait that would outlast the request's context or the transport's
// SendBy. Without a limiter it waits for Retry-After, and returns the refusal if that is more than
// 30 seconds. When the retries run out it returns the last response unchanged, or the last error
// wrapped. The client is an ordinary [http.Client]: it handles redirects, cookies and Timeout
// itself, and Timeout covers all attempts together. It is safe for concurrent use. Do not change a
// field of Transport after its first request.
type Config struct {
	// Transport sends each attempt. If nil, a Transport that limits nothing.
	Transport *throttle.Transport
	// Max is the number of retries after the first attempt. If negative, none. If zero, 4.
	Max int
	// Hedge describes when a request is sent a second time because the first has no response yet. See
	// "Hedging" in the package documentation. If nil, never.
	Hedge *Hedge
	// Log logs each retry, the end of retries and each hedge. It logs the host of a URL and nothing
	// else of it. If nil, nothing is logged.
	Log *slog.Logger
}

// NewClient returns the client of a Config with Transport t.
func NewClient(t *throttle.Transport) *http.Client { return Config{Transport: t}.Client() }

// Client returns a client that retries over c.Transport.
func (c Config) Client() *http.Client {
	return &http.Client{Transport: &transport{
		throttled: cmp.Or(c.Transport, &throttle.Transport{}),
		max:       cmp.Or(c.Max, defaultMax),
		hedge:     c.Hedge,
		log:       cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
	}}
}

type transport struct {
	throttled *throttle.Transport
	max       int
	hedge     *Hedge // nil if no request is hedged
	log       *slog.Logger
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if hasBody(req) && req.GetBody == nil {
		return t.throttled.RoundTrip(req)
	}
	a := &attempts{of: t, req: req}
	returnRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: a, CheckRedirect: returnRedirect},
		RetryMax:     t.max,
		CheckRetry:   a.check,
		Backoff:      a.backoff,
		ErrorHandler: a.end,
	}
	// Pass the request without its body. go-retryablehttp would read the body into memory, and
	// net/http would open it once more for a redirect, which it then does not follow. Clear
	// RequestURI too, because an http.Client does not send a server's request.
	bodyless := req.WithContext(req.Context())
	bodyless.Body, bodyless.GetBody, bodyless.RequestURI = nil, nil, ""
	resp, err := client.Do(&retryablehttp.Request{Request: bodyless})
	if a.started == 0 && req.Body != nil {
		req.Body.Close()
	}
	return resp, err
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.throttled.CloseIdleConnections() }

// attempts is one request and the outcome of its attempts so far. It is both the transport below
// go-retryablehttp and the state of its hooks, which do not receive the request.
type attempts struct {
	// of is not embedded, because go-retryablehttp would find CloseIdleConnections and call it on
	// any failure.
	of *transport
	// req is the caller's request, with its body.
	req     *http.Request
	started int
	last    *attempt
	// retry reports that another attempt should follow.
	retry bool
	// wait is the wait before the next attempt.
	wait time.Duration

	// lastResult is the result of the last attempt that was sent. The caller receives it if the
	// next attempt is not admitted. If zero, there is none, or it was too long to keep.
	lastResult result
}

// A result is a response or an error.
type result struct {
	resp *http.Response
	err  error
}

// An attempt records one attempt. As the Base of the throttled transport, it sees admitted
// requests. If err is nil, an error of the throttled transport is the library's own.
type attempt struct {
	of       *attempts
	admitted func() // is called when the attempt is admitted; nil if nothing is
	base     http.RoundTripper
	err      error           // the error of base
	limited  bool            // a Limiter or a Pool limits the attempt
	refusal  answers.Refusal // the throttled transport's classification, if limited
	delivery delivery.Delivery
}

// RoundTrip sends the request once, with its whole body or not at all. The first attempt may be hedged.
func (a *attempts) RoundTrip(bodyless *http.Request) (*http.Response, error) {
	a.started++
	if a.of.hedge != nil && a.started == 1 && mayHedge(a.req) {
		return a.race(bodyless)
	}
	a.last = &attempt{of: a}
	return a.last.send(bodyless, a.started > 1)
}

// send passes the request to the throttled transport, with the caller's body or, if that was used before,
// with another one.
func (a *attempt) send(bodyless *http.Request, again bool) (*http.Response, error) {
	throttled := *a.of.of.throttled
	a.base = throttled.Base
	if a.base == nil {
		a.base = http.DefaultTransport
	}
	throttled.Base, throttled.Route = a, a.route
	req := bodyless.WithContext(outcome.Into(bodyless.Context(), &a.refusal))
	req.Body, req.GetBody, req.RequestURI = a.of.req.Body, a.of.req.GetBody, a.of.req.RequestURI
	if again && hasBody(req) {
		var err error
		if req.Body, err = replay(req); err != nil {
			return nil, err
		}
	}
	resp, err := throttled.RoundTrip(req)
	return replaceRequest(resp, req, a.of.req), err
}

// route is the Route of the throttled transport. It records whether the attempt is limited.
func (a *attempt) route(req *http.Request) *throttle.Limiter {
	t := a.of.of.throttled
	if t.Pool != nil {
		a.limited = !credentials.LeadsAway(req)
		return nil
	}
	l := t.Limiter
	if t.Route != nil {
		l = t.Route(req)
	}
	a.limited = l != nil
	return l
}

func (a *attempt) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	if a.admitted != nil {
		a.admitted()
	}
	a.delivery.Context = req.Context()
	traced := req.WithContext(&a.delivery)
	resp, err = a.base.RoundTrip(traced)
	a.err = err
	return replaceRequest(resp, traced, req), err
}

// replaceRequest returns resp. If resp.Request is the copy that was sent, it sets it to of.
func replaceRequest(resp *http.Response, sent, of *http.Request) *http.Response {
	if resp != nil && resp.Request == sent {
		resp.Request = of
	}
	return resp
}

// replay opens the body of req again. It fails if GetBody returns no body.
func replay(req *http.Request) (io.ReadCloser, error) {
	body, err := req.GetBody()
	if err == nil && (body == nil || body == http.NoBody) {
		err = errors.New("GetBody returned no body")
	}
	if err != nil {
		return nil, fmt.Errorf("retry: replaying the request body: %w", err)
	}
	return body, nil
}

// check is the CheckRetry of go-retryablehttp. It returns no error, because then the caller
// receives the last response or error unchanged.
func (a *attempts) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	// Pass no response, because DefaultBackoff would accept any Retry-After.
	a.wait = retryablehttp.DefaultBackoff(waitMin, waitMax, a.started-1, nil)
	retry, pause := a.shouldRetry(resp, err)
	a.retry = retry && ctx.Err() == nil && a.hasTime(ctx, max(a.wait, pause))
	if a.retry && a.started <= a.of.max {
		a.keepResult(resp, err)
	}
	return a.retry, nil
}

// shouldRetry reports whether another attempt may succeed, and how long the limiter pauses before
// it.
func (a *attempts) shouldRetry(resp *http.Response, err error) (retry bool, pause time.Duration) {
	unsent := false
	if resp == nil {
		if a.last == nil || a.last.err == nil || isPermanent(err) {
			return false, 0
		}
		unsent = a.last.delivery.Unsent(a.last.err)
	} else {
		pooled := a.last.limited && a.of.throttled.Pool != nil
		switch r := a.last.refusalOf(resp); {
		case pooled && (r.Kind == answers.Limited || r.Kind == answers.Banned):
			a.wait = 0 // another member may have room
			return true, 0
		case r.Kind == answers.Banned || r.Kind == answers.Other:
			return false, 0
		case r.Kind == answers.Limited && a.last.limited:
			a.wait = 0 // the pause is the limiter's
			return true, r.Delay
		case r.Kind == answers.Limited:
			a.wait = cmp.Or(r.Delay, a.wait)
			return a.wait <= waitMax, 0
		}
	}
	retryable, _ := retryablehttp.ErrorPropagatedRetryPolicy(context.Background(), resp, err)
	return retryable && (unsent || isIdempotent(a.req)), 0
}

// hasTime reports whether an attempt after the wait would begin before the context's deadline and
// before SendBy.
func (a *attempts) hasTime(ctx context.Context, wait time.Duration) bool {
	by, bounded := ctx.Deadline()
	if a.of.throttled.SendBy != nil {
		if t := a.of.throttled.SendBy(a.req); !t.IsZero() && (!bounded || t.Before(by)) {
			by, bounded = t, true
		}
	}
	return !bounded || time.Until(by) > wait
}

// keepResult keeps the result of an attempt until after the next one. It reads the response's
// body, which frees the connection and the place in a Concurrency tier.
func (a *attempts) keepResult(resp *http.Response, err error) {
	a.lastResult = result{}
	if resp == nil {
		a.lastResult.err = unwrap(err)
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeptBody+1))
	if err == nil && len(body) <= maxKeptBody {
		copied := *resp
		copied.Body = io.NopCloser(bytes.NewReader(body))
		a.lastResult.resp = &copied
	}
}

// refusalOf returns the transport's classification of the response. Without a limiter it classifies
// the header.
func (a *attempt) refusalOf(resp *http.Response) answers.Refusal {
	if a.limited {
		return a.refusal
	}
	return cmp.Or(a.of.of.throttled.Profile, new(answers.Profile)).Read(answers.Response{
		Method: a.of.req.Method, Status: resp.StatusCode, Header: resp.Header, Got: time.Now(),
	}).Refusal
}

// backoff is called before another attempt.
func (a *attempts) backoff(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
	a.logAttempt(slog.LevelInfo, "sending again", result{resp, a.last.err}, slog.Duration("wait", a.wait))
	return a.wait
}

// end is called after the last attempt, if that failed.
func (a *attempts) end(resp *http.Response, err error, _ int) (*http.Response, error) {
	err = unwrap(err)
	var refused *throttle.WaitError
	switch last := a.lastResult; {
	case errors.As(err, &refused) && last != result{}:
		a.started-- // the last attempt was not sent
		a.logAttempt(slog.LevelWarn, "giving up", last, slog.Any("refused", err))
		if last.resp == nil {
			return nil, &gaveUpError{a.started, last.err, err}
		}
		return last.resp, nil
	case a.retry && a.started > 1:
		a.logAttempt(slog.LevelWarn, "giving up", result{resp, a.last.err})
		if err != nil {
			err = &gaveUpError{a.started, err, nil}
		}
	}
	return resp, err
}

// unwrap returns the error inside of the inner client's url.Error. The outer client makes its own.
func unwrap(err error) error {
	if u, ok := err.(*url.Error); ok {
		return u.Err
	}
	return err
}

func (a *attempts) logAttempt(level slog.Level, what string, last result, more ...slog.Attr) {
	attr := slog.Any("error", last.err)
	if last.resp != nil {
		attr = slog.Int("status", last.resp.StatusCode)
	}
	a.of.log.LogAttrs(a.req.Context(), level, "retry: "+what, append(more, attr, slog.Int("attempt", a.started),
		slog.String("method", a.req.Method), slog.String("host", a.req.URL.Host))...)
}

// gaveUpError wraps the last error when the retries have run out or the limiter refused the next
// attempt.
type gaveUpError struct {
	attempts int
	err      error
	refused  error // the limiter's refusal; if nil, the retries ran out
}

func (e *gaveUpError) Error() string {
	plural := "s"
	if e.attempts == 1 {
		plural = ""
	}
	s := fmt.Sprintf("retry: gave up after %d attempt%s: %v", e.attempts, plural, e.err)
	if e.refused != nil {
		s += fmt.Sprintf("; the next was refused: %v", e.refused)
	}
	return s
}

func (e *gaveUpError) Unwrap() []error {
	if e.refused == nil {
		return []error{e.err}
	}
	return []error{e.err, e.refused}
}

// Timeout implements the interface that [url.Error.Timeout] uses.
func (e *gaveUpError) Timeout() bool {
	t, ok := e.err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// isPermanent reports whether another attempt would have the same error. Such errors are a refusal
// of a throttle.Transport further down, a server that speaks HTTP where the URL has HTTPS, and a
// cancellation.
func isPermanent(err error) bool {
	var w *throttle.WaitError
	return errors.As(err, &w) || errors.Is(err, throttle.ErrUnavailable) ||
		errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, context.Canceled)
}

// isIdempotent reports whether sending req twice has the same effect as sending it once.
func isIdempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		// In net/http, a key without values means that the request is idempotent and the header is
		// not sent.
		if key, ok := req.Header[name]; ok && (len(key) == 0 || key[0] != "") {
			return true
		}
	}
	return false
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }
