// Package retry makes an [http.Client] that sends again what was throttled.
//
//	client := retry.NewClient(&throttle.Transport{Limiter: lim})
//
// It is go-retryablehttp over a [throttle.Transport]. Every attempt passes the
// limiter anew, so that a retry costs quota like any request and waits its turn like
// any request; what the provider asked for with Retry-After is waited for there, once
// for everyone who shares the quota.
//
// # What is sent again
//
// A refusal for lack of quota, that is a 429, or a 503 with a Retry-After, or what else
// the transport's Profile takes for one: always, for the provider did nothing with the
// request. So is a request of which nothing was written, such as one whose connection was
// refused. A Retry-After of 0 has one request try at once; only if that is refused too does
// the pause grow.
//
// Other failures, that is a lost connection, an AttemptTimeout, or a status of 500 and
// more except 501: only if twice does no more than once, as with GET, HEAD, OPTIONS,
// TRACE, PUT and DELETE, and with an Idempotency-Key or X-Idempotency-Key header. A POST
// that was answered 502 may have bought something.
//
// Never: a ban, and what the Profile says is no lack of quota, such as a 429 for an
// unpaid bill; the library's own errors ([throttle.ErrBanned], [throttle.ErrDeadline] and the
// others come back at once, unchanged), a request whose context has ended, bad
// certificates and bad URLs, a request that is past the transport's SendBy, and a request
// whose body can't be had a second time. A body is sent whole or not at all: where
// Request.GetBody is nil there is one attempt, and no request body is buffered.
// [http.NewRequest] sets GetBody for the readers of bytes and strings; for a file, set it
// yourself.
//
// # What the caller receives
//
// The last response or the last error of the provider. That holds where the retries run out,
// and where the limiter does not admit another attempt: because Retry-After is beyond the
// context's deadline, SendBy or Policy.MaxPause, because a budget is used up, or for any other
// reason. For that a response that is to be followed by another attempt is read first, up to
// 64 KB. A longer one is lost, and the caller receives the limiter's error.
//
// Every attempt sends the same bytes. What must be fresh in each, such as a signature with a
// date or a token that expires, belongs inside the transport, as its Base: see docs/ordering.md.
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
	"net/http/httptrace"
	"net/url"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/delivery"
	"github.com/apithrottle/throttle/internal/outcome"
)

const (
	defaultMax = 4
	waitMin    = time.Second // these two as in go-retryablehttp
	waitMax    = 30 * time.Second
	keptBody   = 64 << 10 // of a response that another attempt follows, in bytes
)

// A Config is what a retrying client is made of. The zero value makes one that retries
// and limits nothing.
//
// The client waits by the limiter after a refusal, and 1, 2, 4 … 30 seconds after
// other failures; no wait is begun that would outlast the request's context or the
// transport's SendBy. Without a limiter it waits as Retry-After says, and hands the refusal over where that is
// more than 30 seconds. When the retries run out it returns the last response as it
// is, or the last error wrapped. The client is an ordinary [http.Client]: redirects,
// cookies and Timeout are its own, Timeout being for all attempts together. It is safe
// for concurrent use; change no field of Transport once it has sent.
type Config struct {
	Transport *throttle.Transport // sends each attempt. If nil, one that limits nothing
	Max       int                 // retries after the first attempt, negative for none. If zero, 4
	Logger    *slog.Logger        // hears of each retry and of giving up; no URL but its host. If nil, quiet
}

// NewClient returns the client of a Config with Transport t and nothing else.
func NewClient(t *throttle.Transport) *http.Client { return Config{Transport: t}.Client() }

// Client returns a client that retries over c.Transport.
func (c Config) Client() *http.Client {
	return &http.Client{Transport: &transport{
		throttled: cmp.Or(c.Transport, &throttle.Transport{}),
		max:       cmp.Or(c.Max, defaultMax),
		log:       cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
	}}
}

type transport struct {
	throttled *throttle.Transport
	max       int
	log       *slog.Logger
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if hasBody(req) && req.GetBody == nil {
		return t.throttled.RoundTrip(req)
	}
	a := &attempts{of: t, req: req}
	handOn := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: a, CheckRedirect: handOn},
		RetryMax:     t.max,
		CheckRetry:   a.check,
		Backoff:      a.backoff,
		ErrorHandler: a.end,
	}
	// Without its body: go-retryablehttp would read it into memory, and net/http would
	// open it once more for a redirect that it then leaves to us.
	// Nor is it a request from a server, which an http.Client would not send.
	bare := req.WithContext(req.Context())
	bare.Body, bare.GetBody, bare.RequestURI = nil, nil, ""
	resp, err := client.Do(&retryablehttp.Request{Request: bare})
	if a.begun == 0 && req.Body != nil {
		req.Body.Close()
	}
	return resp, err
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t *transport) CloseIdleConnections() { t.throttled.CloseIdleConnections() }

// attempts is one request and what became of it so far. It is both the transport below
// go-retryablehttp and the memory of its hooks, which aren't told the request.
type attempts struct {
	of    *transport    // not embedded: go-retryablehttp would find CloseIdleConnections, and call it on any failure
	req   *http.Request // the caller's, with its body
	begun int
	last  *attempt
	again bool          // another should follow
	wait  time.Duration // before it

	// kept is the result of the last attempt that was sent, for the case that the next is not
	// admitted. If zero, there is none, or it was too long to keep.
	kept result
}

// A result is a response or an error.
type result struct {
	resp *http.Response
	err  error
}

// An attempt is what became of one. As the Base of the throttled transport it sees what
// was let through: where err is nil, an error is not the Base's but the library's own.
type attempt struct {
	base     http.RoundTripper
	err      error           // from base
	limited  bool            // by any Limiter
	refusal  answers.Refusal // as the throttled transport has it, if it limits
	delivery delivery.Delivery
}

// RoundTrip sends the request once more, with its whole body or not at all.
func (a *attempts) RoundTrip(bare *http.Request) (*http.Response, error) {
	a.begun++
	throttled := *a.of.throttled
	a.last = &attempt{base: throttled.Base}
	if a.last.base == nil {
		a.last.base = http.DefaultTransport
	}
	throttled.Base = a.last
	throttled.Route = func(req *http.Request) *throttle.Limiter {
		l := a.of.throttled.Limiter
		if a.of.throttled.Route != nil {
			l = a.of.throttled.Route(req)
		}
		a.last.limited = l != nil
		return l
	}
	req := bare.WithContext(outcome.Into(bare.Context(), &a.last.refusal))
	req.Body, req.GetBody, req.RequestURI = a.req.Body, a.req.GetBody, a.req.RequestURI
	if a.begun > 1 && hasBody(req) {
		var err error
		if req.Body, err = replay(req); err != nil {
			return nil, err
		}
	}
	resp, err := throttled.RoundTrip(req)
	return answering(resp, req, a.req), err
}

func (a *attempt) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	traced := req.WithContext(httptrace.WithClientTrace(req.Context(), a.delivery.Trace()))
	resp, err = a.base.RoundTrip(traced)
	a.err = err
	return answering(resp, traced, req), err
}

// answering returns resp, as the response to of if it is one to the copy that was sent.
func answering(resp *http.Response, sent, of *http.Request) *http.Response {
	if resp != nil && resp.Request == sent {
		resp.Request = of
	}
	return resp
}

// replay opens the body of req once more, and never an empty one in its stead.
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

// check is the CheckRetry of go-retryablehttp. It returns no error, so that the last
// response and the last error come to the caller as they are.
func (a *attempts) check(ctx context.Context, resp *http.Response, err error) (bool, error) {
	a.wait = retryablehttp.DefaultBackoff(waitMin, waitMax, a.begun-1, nil) // given a response it would trust any Retry-After
	again, pause := a.worthwhile(resp, err)
	a.again = again && ctx.Err() == nil && a.inTime(ctx, max(a.wait, pause))
	if a.again && a.begun <= a.of.max {
		a.keep(resp, err)
	}
	return a.again, nil
}

// worthwhile reports whether another attempt may succeed, and how long the limiter pauses
// before it.
func (a *attempts) worthwhile(resp *http.Response, err error) (again bool, pause time.Duration) {
	unsent := false
	if resp == nil {
		if a.last == nil || a.last.err == nil || final(err) {
			return false, 0
		}
		unsent = a.last.delivery.Unsent(a.last.err)
	} else {
		switch r := a.refusal(resp); {
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
	retry, _ := retryablehttp.ErrorPropagatedRetryPolicy(context.Background(), resp, err)
	return retry && (unsent || idempotent(a.req)), 0
}

// inTime reports whether an attempt after that wait would begin before the context's deadline
// and before SendBy.
func (a *attempts) inTime(ctx context.Context, wait time.Duration) bool {
	by, bounded := ctx.Deadline()
	if a.of.throttled.SendBy != nil {
		if t := a.of.throttled.SendBy(a.req); !t.IsZero() && (!bounded || t.Before(by)) {
			by, bounded = t, true
		}
	}
	return !bounded || time.Until(by) > wait
}

// keep has the result of an attempt at hand after the next one. The response's connection, and
// its place in a Concurrency tier, are free by then.
func (a *attempts) keep(resp *http.Response, err error) {
	a.kept = result{}
	if resp == nil {
		a.kept.err = unwrapped(err)
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, keptBody+1))
	if err == nil && len(body) <= keptBody {
		kept := *resp
		kept.Body = io.NopCloser(bytes.NewReader(body))
		a.kept.resp = &kept
	}
}

// refusal is what the response was taken for, or where nothing limits, what its header
// says.
func (a *attempts) refusal(resp *http.Response) answers.Refusal {
	if a.last.limited {
		return a.last.refusal
	}
	return cmp.Or(a.of.throttled.Profile, new(answers.Profile)).Read(answers.Response{
		Status: resp.StatusCode, Header: resp.Header, Got: time.Now(),
	}).Refusal
}

// backoff is called when there will be another attempt.
func (a *attempts) backoff(_, _ time.Duration, _ int, resp *http.Response) time.Duration {
	a.tell(slog.LevelInfo, "sending again", result{resp, a.last.err}, slog.Duration("wait", a.wait))
	return a.wait
}

// end is called when there will be none and the last one failed.
func (a *attempts) end(resp *http.Response, err error, _ int) (*http.Response, error) {
	err = unwrapped(err)
	var refused *throttle.WaitError
	switch last := a.kept; {
	case errors.As(err, &refused) && last != result{}:
		a.begun-- // it was not sent
		a.tell(slog.LevelWarn, "giving up", last, slog.Any("refused", err))
		if last.resp == nil {
			return nil, &exhausted{a.begun, last.err, err}
		}
		return last.resp, nil
	case a.again && a.begun > 1:
		a.tell(slog.LevelWarn, "giving up", result{resp, a.last.err})
		if err != nil {
			err = &exhausted{a.begun, err, nil}
		}
	}
	return resp, err
}

// unwrapped is the error below that of the inner client; the outer client makes its own.
func unwrapped(err error) error {
	if u, ok := err.(*url.Error); ok {
		return u.Err
	}
	return err
}

func (a *attempts) tell(level slog.Level, what string, last result, more ...slog.Attr) {
	became := slog.Any("error", last.err)
	if last.resp != nil {
		became = slog.Int("status", last.resp.StatusCode)
	}
	a.of.log.LogAttrs(a.req.Context(), level, "retry: "+what, append(more, became, slog.Int("attempt", a.begun),
		slog.String("method", a.req.Method), slog.String("host", a.req.URL.Host))...)
}

// exhausted is the last error when the retries have run out, or when the next was refused.
type exhausted struct {
	attempts int
	err      error
	refused  error // by the limiter. If nil, the retries ran out
}

func (e *exhausted) Error() string {
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

func (e *exhausted) Unwrap() []error {
	if e.refused == nil {
		return []error{e.err}
	}
	return []error{e.err, e.refused}
}

// Timeout is what [url.Error.Timeout] asks for.
func (e *exhausted) Timeout() bool {
	t, ok := e.err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// final reports whether another attempt would not change the error: the refusal of a
// throttle.Transport further down, a server that speaks HTTP where the URL says HTTPS, and a
// cancellation.
func final(err error) bool {
	var w *throttle.WaitError
	return errors.As(err, &w) || errors.Is(err, throttle.ErrUnavailable) ||
		errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, context.Canceled)
}

// idempotent reports whether sending req twice does no more than sending it once.
func idempotent(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		// A key without values is net/http's sign for "idempotent, but don't send it".
		if key, ok := req.Header[name]; ok && (len(key) == 0 || key[0] != "") {
			return true
		}
	}
	return false
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }
