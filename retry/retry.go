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
// request. So is a request that had no connection to leave by.
//
// Other failures, that is a lost connection, an AttemptTimeout, or a status of 500 and
// more except 501: only if twice does no more than once, as with GET, HEAD, OPTIONS,
// TRACE, PUT and DELETE, and with an Idempotency-Key or X-Idempotency-Key header. A POST
// that was answered 502 may have bought something.
//
// Never: a ban, and what the Profile says is no lack of quota, such as a 429 for an
// unpaid bill; the library's own errors ([throttle.ErrBanned], [throttle.ErrDeadline] and the
// others come back at once, unchanged), a request whose context has ended, bad
// certificates and bad URLs, and a request whose body can't be had a second time. A
// body is sent whole or not at all: where Request.GetBody is nil there is one attempt,
// and nothing is buffered. [http.NewRequest] sets GetBody for the readers of bytes and
// strings; for a file, set it yourself.
package retry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/verdict"
)

const (
	defaultMax = 4
	waitMin    = time.Second // these two as in go-retryablehttp
	waitMax    = 30 * time.Second
)

// A Config is what a retrying client is made of. The zero value makes one that retries
// and limits nothing.
//
// The client waits by the limiter after a refusal, and 1, 2, 4 … 30 seconds after
// other failures; no wait is begun that would outlast the request's context. Without
// a limiter it waits as Retry-After says, and hands the refusal over where that is
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
	bare := req.WithContext(req.Context())
	bare.Body, bare.GetBody = nil, nil
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
}

// An attempt is what became of one. As the Base of the throttled transport it sees what
// was let through: where err is nil, an error is not the Base's but the library's own.
type attempt struct {
	base        http.RoundTripper
	err         error           // from base
	limited     bool            // by any Limiter
	refusal     answers.Refusal // as the throttled transport has it, if it limits
	wanted, got atomic.Bool     // a connection, says httptrace; a base that doesn't know it wants none
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
	req := bare.WithContext(verdict.Into(bare.Context(), &a.last.refusal))
	req.Body, req.GetBody = a.req.Body, a.req.GetBody
	if a.begun > 1 && hasBody(req) {
		var err error
		if req.Body, err = replay(req); err != nil {
			return nil, err
		}
	}
	return throttled.RoundTrip(req)
}

func (a *attempt) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	resp, err = a.base.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { a.wanted.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { a.got.Store(true) },
	})))
	a.err = err
	return resp, err
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
	a.again = a.worthwhile(resp, err) && ctx.Err() == nil
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= a.wait {
		a.again = false
	}
	return a.again, nil
}

func (a *attempts) worthwhile(resp *http.Response, err error) bool {
	unsent := false
	if resp == nil {
		if a.last == nil || a.last.err == nil || final(a.last.err) {
			return false
		}
		unsent = a.last.wanted.Load() && !a.last.got.Load()
	} else {
		switch r := a.refusal(resp); {
		case r.Kind == answers.Banned || r.Kind == answers.Other:
			return false
		case r.Kind == answers.Limited && a.last.limited:
			a.wait = 0 // the pause is the limiter's
			return true
		case r.Kind == answers.Limited:
			a.wait = cmp.Or(r.Delay, a.wait)
			return a.wait <= waitMax
		}
	}
	retry, _ := retryablehttp.ErrorPropagatedRetryPolicy(context.Background(), resp, err)
	return retry && (unsent || idempotent(a.req))
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
	a.tell(slog.LevelInfo, "sending again", resp, slog.Duration("wait", a.wait))
	return a.wait
}

// end is called when there will be none and the last one failed.
func (a *attempts) end(resp *http.Response, err error, _ int) (*http.Response, error) {
	if u, ok := err.(*url.Error); ok { // the outer client makes its own
		err = u.Err
	}
	if a.again && a.begun > 1 {
		a.tell(slog.LevelWarn, "giving up", resp)
		if err != nil {
			err = &exhausted{a.begun, err}
		}
	}
	return resp, err
}

func (a *attempts) tell(level slog.Level, what string, resp *http.Response, more ...slog.Attr) {
	outcome := slog.Any("error", a.last.err)
	if resp != nil {
		outcome = slog.Int("status", resp.StatusCode)
	}
	a.of.log.LogAttrs(a.req.Context(), level, "retry: "+what, append(more, outcome, slog.Int("attempt", a.begun),
		slog.String("method", a.req.Method), slog.String("host", a.req.URL.Host))...)
}

// exhausted is the last error when the retries have run out.
type exhausted struct {
	attempts int
	err      error
}

func (e *exhausted) Error() string {
	return fmt.Sprintf("retry: gave up after %d attempts: %v", e.attempts, e.err)
}

func (e *exhausted) Unwrap() error { return e.err }

// Timeout is what [url.Error.Timeout] asks for.
func (e *exhausted) Timeout() bool {
	t, ok := e.err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// final tells what another attempt would not change: the refusal of a throttle.Transport
// further down, and that somebody called it off.
func final(err error) bool {
	var w *throttle.WaitError
	return errors.As(err, &w) || errors.Is(err, throttle.ErrUnavailable) || errors.Is(err, context.Canceled)
}

// idempotent tells whether sending req twice does no more than sending it once.
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
