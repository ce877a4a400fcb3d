package throttle

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/refusal"
	"github.com/apithrottle/throttle/store"
)

// A Transport is an http.RoundTripper that sends a request when the limiter admits
// it. The zero Transport limits nothing and works.
//
// RoundTrip blocks until the request is admitted or its context ends; a request
// that is not admitted is not sent, and its error is the limiter's. A 429, or a 503
// with Retry-After, pauses the quota for everyone who shares it: for as long as
// Retry-After says, but at most one minute on a 503; for a second where it says
// nothing, doubled with every further pause until a request succeeds, times 1 to 2
// at random. A Retry-After beyond Policy.MaxPause closes the quota: callers get
// ErrBanned until it ends. The response is handed on as it came; whoever wants the
// request repeated uses package retry.
//
// An admitted request is on its way until the response comes, and on a policy with
// Concurrency it holds its place to the end of the response's body: read it to EOF
// or close it.
//
// net/http's own Transport sends a request again, unseen by the limiter, if a
// kept-alive connection turns out to be closed before the first byte of an answer,
// provided that the request is idempotent or nothing of it was written. Where a
// provider counts those too, set DisableKeepAlives on the Base or declare a limit
// a little lower.
//
// A Transport must not be changed once in use. It is safe for concurrent use.
type Transport struct {
	Base           http.RoundTripper              // If nil, http.DefaultTransport
	Limiter        *Limiter                       // If nil, and Route too, nothing is limited
	Route          func(*http.Request) *Limiter   // chooses the quota. If nil, Limiter; a nil result is not limited
	Cost           func(*http.Request) Cost       // what the request costs. If nil, one request
	Reset          func(*http.Response) time.Time // when the provider's window ends, by its clock and to the second, for a tier of UnknownPhase; zero if the response does not tell. If nil, nothing is learned
	AttemptTimeout time.Duration                  // from admission to the end of the body, which http.Client.Timeout would count the waiting into. If zero, none
}

// RoundTrip sends the request when it is admitted.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	l := t.limiter(req)
	if l == nil && t.AttemptTimeout <= 0 {
		return t.base().RoundTrip(req)
	}
	var a attempt
	if l != nil {
		if err := t.admit(&a, l, req); err != nil {
			closeBody(req)
			return nil, err
		}
	}
	if t.AttemptTimeout > 0 {
		var ctx context.Context
		ctx, a.cancel = context.WithTimeout(req.Context(), t.AttemptTimeout)
		req = req.WithContext(ctx)
	}
	var sent time.Time
	if t.Reset != nil {
		sent = time.Now()
	}
	resp, err := a.send(t.base(), req)
	if err == nil && l != nil && t.Reset != nil {
		l.gate.align(sent, resp, t.Reset(resp))
	}
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

// admit waits for the limiter. A request whose context has ended meanwhile is not sent.
func (t *Transport) admit(a *attempt, l *Limiter, req *http.Request) (err error) {
	if l.err != nil {
		return l.err
	}
	a.gate, a.cost = l.gate, l.gate.one
	if t.Cost != nil {
		if a.cost, err = a.gate.amounts(t.Cost(req)); err != nil {
			return err
		}
	}
	ctx := req.Context()
	if a.booking, err = l.acquire(ctx, a.cost); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		a.undo(ctx)
		return err
	}
	a.journey = a.gate.network().start()
	return nil
}

// An attempt is one admitted request on its way.
type attempt struct {
	gate    *gate // nil if nothing is limited
	booking store.Booking
	cost    []int64
	journey journey
	cancel  context.CancelFunc // ends AttemptTimeout; nil if there is none
}

func (a *attempt) charged() bool { return a.gate != nil && a.booking.Verdict == store.Admitted }

// send hands the request to the base, and tells the quota of its arrival and its
// end, each once, whatever the base does.
func (a *attempt) send(base http.RoundTripper, req *http.Request) (*http.Response, error) {
	handedOn := false
	defer func() {
		if !handedOn {
			a.over()
		}
	}()
	resp, err := base.RoundTrip(a.journey.trace(req))
	if err == nil {
		a.journey.answered()
		a.learn(req.Context(), resp) // first of all: nobody slips past a pause
	}
	if a.charged() {
		a.gate.quota.Arrived(a.booking, a.cost)
	}
	if err != nil {
		return resp, err
	}
	if resp.Body != nil && resp.Body != http.NoBody && a.lasts() {
		resp.Body = a.watch(resp.Body)
		handedOn = true
	}
	return resp, nil
}

// lasts tells whether the end of the body matters.
func (a *attempt) lasts() bool {
	return a.cancel != nil || a.charged() && a.gate.plan.Concurrent()
}

// over ends the attempt.
func (a *attempt) over() {
	if a.charged() && a.gate.plan.Concurrent() {
		a.gate.quota.Release(a.booking, a.cost)
	}
	if a.cancel != nil {
		a.cancel()
	}
}

// undo gives back the charge of a request that is not sent.
func (a *attempt) undo(ctx context.Context) {
	if a.charged() {
		// The store's time is bounded by the store; the caller's is over.
		_ = a.gate.quota.Return(context.WithoutCancel(ctx), a.booking, a.cost)
	}
}

// learn pauses the quota on a refusal and ends the back-off on a success. A server
// that fails does neither.
func (a *attempt) learn(ctx context.Context, resp *http.Response) {
	if a.gate == nil {
		return
	}
	if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
		a.gate.accepted(a.booking)
		return
	}
	if r, refused := refusal.Read(resp, time.Now()); refused {
		a.journey.refused()
		// A pause that a shared store did not take is made by the next refusal.
		_ = a.gate.refused(context.WithoutCancel(ctx), a.booking, r)
	}
}

// align tells the quota of the end of a window. The provider's clock is read from
// the response's Date, which it wrote to the second after the request was sent;
// without one it is taken to be ours.
func (g *gate) align(sent time.Time, resp *http.Response, ends time.Time) {
	q, ok := g.quota.(store.Aligner)
	if !ok || ends.IsZero() {
		return
	}
	from, to := ends.Add(-time.Second), ends.Add(time.Second)
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		left := ends.Sub(date)
		from, to = sent.Add(left-2*time.Second), time.Now().Add(left+time.Second)
	}
	q.Align(from, to)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// watch returns a body that ends the attempt at EOF, at any other error, or when
// it is closed, once. The body of a 101 response stays writable.
func (a *attempt) watch(b io.ReadCloser) io.ReadCloser {
	watched := &watchedBody{ReadCloser: b, attempt: *a}
	if w, ok := b.(io.Writer); ok {
		return struct {
			*watchedBody
			io.Writer
		}{watched, w}
	}
	return watched
}

type watchedBody struct {
	io.ReadCloser
	attempt attempt
	once    sync.Once
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.once.Do(b.attempt.over)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	defer b.once.Do(b.attempt.over)
	return b.ReadCloser.Close()
}
