package retry

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
)

// mayHedge reports whether a request may be sent twice at the same time. An upgraded connection has a
// state on the server.
func mayHedge(req *http.Request) bool { return isIdempotent(req) && req.Header.Get("Upgrade") == "" }

// A race is the first attempt of a request and its hedge. The goroutine of the caller sends the first
// attempt, and that of a timer the hedge. If the hedge wins, it cancels the first attempt, which then
// returns to the caller.
type race struct {
	of    *attempts
	first *entrant
	spare *http.Request // what is sent as the hedge
	began time.Time     // when the first attempt was admitted
	after time.Duration // the time from then until the hedge is sent
	timer *time.Timer   // sends the hedge; nil if nothing does
	ended chan struct{} // closed when the hedge has ended

	mu      sync.Mutex // guards all below
	hedge   *entrant   // nil if it has not begun
	won     bool       // the hedge decides the race
	decided bool       // the hedge can no longer decide the race
}

// An entrant is one of the two attempts of a race.
type entrant struct {
	attempt
	ctx      context.Context
	cancel   context.CancelFunc
	got      result
	sent     bool // it was admitted; only set for a hedge
	succeeds bool // it has a response that is neither a refusal nor a failure of the server
	returned bool // else a function of the user has panicked or called runtime.Goexit
	panicked any  // with what; nil if it has called runtime.Goexit
}

// newEntrant returns an attempt that ends with ctx, or when it is canceled.
func newEntrant(ctx context.Context, of *attempts) *entrant {
	e := &entrant{attempt: attempt{of: of}}
	e.ctx, e.cancel = context.WithCancel(ctx)
	return e
}

// enter sends the attempt.
func (e *entrant) enter(bodyless *http.Request, again bool) {
	resp, err := e.send(bodyless.WithContext(e.ctx), again)
	e.got = result{resp, err}
	e.succeeds = resp != nil && err == nil && resp.StatusCode < 500 && e.refusalOf(resp).Kind == answers.Passed
	e.returned = true
}

// discard ends an attempt that has lost.
func (e *entrant) discard() {
	defer e.cancel()
	if resp := e.got.resp; resp != nil && resp.Body != nil {
		resp.Body.Close()
	}
}

// keepBody reads the beginning of the body of a response while the other attempt goes on. That frees the
// connection and the place in a Concurrency tier, and the caller can read it after the context has ended.
func (e *entrant) keepBody() {
	resp := e.got.resp
	if resp == nil || resp.Body == nil {
		return
	}
	kept, _ := io.ReadAll(io.LimitReader(resp.Body, maxKeptBody)) // the next Read returns an error again
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(kept), resp.Body), resp.Body}
}

// hand returns what the attempt has got. The context of the attempt ends with the body of the response,
// unless that is an upgraded connection.
func (e *entrant) hand() (*http.Response, error) {
	switch resp := e.got.resp; {
	case resp == nil || resp.Body == nil || resp.Body == http.NoBody:
		e.cancel()
	case resp.StatusCode != http.StatusSwitchingProtocols:
		resp.Body = &lastingBody{resp.Body, e.cancel}
	}
	return e.got.resp, e.got.err
}

// A lastingBody is a body that calls a function when it ends.
type lastingBody struct {
	io.ReadCloser
	end func()
}

func (b *lastingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *lastingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// race sends the first attempt of a request, and perhaps its hedge.
func (a *attempts) race(bodyless *http.Request) (*http.Response, error) {
	ctx := bodyless.Context()
	r := &race{of: a, first: newEntrant(ctx, a), ended: make(chan struct{})}
	// The hedge has a header of its own, because some Bases change that of a request.
	r.spare = bodyless.Clone(admit.AsHedge(ctx))
	r.first.admitted = r.begin
	defer func() {
		if !r.first.returned {
			if r.decide() {
				r.hedge.discard()
			}
			r.first.cancel()
		}
	}()
	r.first.enter(bodyless, false)
	if !r.first.succeeds && r.isHedged() {
		r.first.keepBody()
		select {
		case <-r.ended:
		case <-ctx.Done():
		}
	}
	won := r.decide()
	if r.first.succeeds || won {
		a.of.hedge.learn(time.Since(r.began))
	}
	if !won {
		a.last = &r.first.attempt
		return r.first.hand()
	}
	r.first.discard()
	if !r.hedge.returned {
		r.hedge.fail()
	}
	a.last = &r.hedge.attempt
	return r.hedge.hand()
}

// fail ends the goroutine of the caller as the Base has ended that of the hedge.
func (e *entrant) fail() {
	e.cancel()
	if e.panicked != nil {
		panic(e.panicked)
	}
	runtime.Goexit()
}

// begin is called when the first attempt is admitted.
func (r *race) begin() {
	r.began = time.Now()
	if r.after = r.of.of.hedge.admit(); r.after > 0 {
		r.timer = time.AfterFunc(r.after, r.sendHedge)
	}
}

// isHedged reports whether the hedge has begun. If it has not, it does not begin anymore.
func (r *race) isHedged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided = r.hedge == nil
	return r.hedge != nil
}

// decide ends the race, and the hedge unless that has won. It reports whether it has.
func (r *race) decide() (won bool) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decided = true
	if r.hedge != nil && !r.won {
		r.hedge.cancel()
	}
	return r.won
}

// sendHedge sends the hedge if the race is not decided and the budget allows it.
func (r *race) sendHedge() {
	e := newEntrant(r.spare.Context(), r.of)
	e.admitted = func() {
		e.sent = true
		r.of.of.hedge.count(1, 0)
	}
	r.mu.Lock()
	begins := !r.decided && r.of.of.hedge.spend()
	if begins {
		r.hedge = e
	}
	r.mu.Unlock()
	if !begins {
		e.cancel()
		return
	}
	defer func() {
		if !e.returned {
			e.panicked = recover()
		}
		r.finish(e)
	}()
	e.enter(r.spare, true)
}

// finish ends the hedge. One that has panicked decides the race, too, because it panics again in the
// goroutine of the caller.
func (r *race) finish(e *entrant) {
	r.mu.Lock()
	r.won = !r.decided && (e.succeeds || !e.returned)
	won := r.won
	r.mu.Unlock()
	switch {
	case !e.sent:
		r.of.of.hedge.giveBack()
	case won && e.succeeds:
		r.of.of.hedge.count(0, 1)
	}
	if won {
		r.first.cancel()
	} else {
		e.discard()
	}
	close(r.ended)
	if e.sent {
		r.of.of.log.LogAttrs(e.ctx, slog.LevelInfo, "retry: hedged", slog.Duration("after", r.after),
			slog.Bool("won", won && e.succeeds), slog.String("method", r.of.req.Method), slog.String("host", r.of.req.URL.Host))
	}
	if !won && e.panicked != nil {
		r.of.of.log.LogAttrs(e.ctx, slog.LevelError, "retry: a hedge that had lost panicked", slog.Any("panic", e.panicked))
	}
}
