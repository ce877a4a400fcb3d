package throttle

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/apithrottle/throttle/answers"
)

// A Meter reads the actual cost of a request from its response. The Transport writes the response's
// body to it as the caller reads the body, and calls Cost once, at EOF, when the body is closed, or, in
// a goroutine of its own, when the request's context or AttemptTimeout ends. A Cost that does not name
// an Estimated unit leaves the estimate of that unit. The calls are not concurrent, and they must not
// block, because Read and Close of the body wait for them.
type Meter interface {
	io.Writer
	Cost() Cost
}

// A profileMeter has the cost that a Profile describes: from the header, and then from the body.
type profileMeter struct {
	cost Cost
	body *answers.Meter // nil if the body reports nothing
}

// Write does nothing, because the body is written to the answers.Meter.
func (m *profileMeter) Write(p []byte) (int, error) { return len(p), nil }

func (m *profileMeter) Cost() Cost {
	if m.body != nil {
		for _, c := range m.body.Charged() {
			m.cost[c.Unit] = c.N
		}
	}
	return m.cost
}

// A settlingMeter passes the cost that another Meter reads to the function of Transport.Settle.
type settlingMeter struct {
	Meter
	settle func(Cost) Cost
}

func (m settlingMeter) Cost() Cost { return m.settle(m.Meter.Cost()) }

// meter returns the Meter of a response, or nil if the request has no estimate.
func (a *attempt) meter(resp *http.Response, answer *answers.Answer, body *answers.Meter) (m Meter) {
	switch {
	case !a.Estimates():
		return nil
	case a.transport.Meter != nil:
		m = a.transport.Meter(resp)
	default:
		m = a.profileMeter(resp, answer, body)
	}
	if a.settler != nil && m != nil {
		m = settlingMeter{m, a.settler}
	}
	return m
}

// profileMeter returns the Meter that the Profile describes. A request that was refused or redirected, or that
// was the caller's error, costs only what the response reports.
func (a *attempt) profileMeter(resp *http.Response, answer *answers.Answer, body *answers.Meter) Meter {
	if answer == nil {
		answer = new(answers.Answer)
	}
	m := &profileMeter{cost: Cost{}, body: body}
	if class := resp.StatusCode / 100; answer.Kind != answers.Passed || class == 3 || class == 4 {
		m.cost = a.ZeroEstimate()
	}
	for _, c := range answer.Charged {
		m.cost[c.Unit] = c.N
	}
	return m
}

// bodyMeter returns what the Profile reads in the body of a response: the cost, unless there is no
// estimate or another Meter, and a refusal in a stream, unless the response is one. It returns nil if
// that is nothing.
func (a *attempt) bodyMeter(method string, resp *http.Response, answer *answers.Answer) *answers.Meter {
	if a.profile == nil || len(a.profile.Rules) == 0 && len(a.profile.Charges) == 0 {
		return nil
	}
	p := *a.profile
	if !a.Estimates() || a.transport.Meter != nil {
		p.Charges = nil
	}
	if !a.Charged() || answer == nil || answer.Kind != answers.Passed {
		p.Rules = nil
	}
	return p.Meter(answers.Response{Method: methodOf(method), Status: resp.StatusCode, Header: resp.Header})
}

// A watchedBody ends its attempt once, when the body or the context of the request ends. Either may come
// while the body is read. It pauses the quota after a refusal in a stream, once.
type watchedBody struct {
	io.ReadCloser
	attempt attempt

	mu        sync.Mutex     // guards all below, and calls of Meter.Write
	meter     Meter          // nil if there is none, or if the attempt has ended
	body      *answers.Meter // the same
	refused   bool           // the body has refused the request
	ended     bool           // the attempt has ended
	stopWatch func() bool    // the end of the context no longer concerns the body; nil if it never does
}

// endWith lets the attempt end with ctx, unless that is nil.
func (b *watchedBody) endWith(ctx context.Context) {
	if ctx == nil || ctx.Done() == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopWatch = context.AfterFunc(ctx, b.end)
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if event, refused := b.write(p[:n]); refused {
			b.attempt.pauseAfterEvent(event)
		}
	}
	if err != nil {
		b.end()
	}
	return n, err
}

// write passes a part of the body to the meters. It returns the event that refuses the request, once.
// It unlocks even if a meter panics, because the body is closed then.
func (b *watchedBody) write(p []byte) (event answers.Response, refused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body != nil {
		_, _ = b.body.Write(p)
		if event, refused = b.body.Refused(); b.refused {
			refused = false
		}
		b.refused = b.refused || refused
	}
	if b.meter != nil {
		_, _ = b.meter.Write(p) // a failed Write leaves that part uncounted
	}
	return event, refused
}

func (b *watchedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

func (b *watchedBody) end() {
	b.mu.Lock()
	m, ended, stop := b.meter, b.ended, b.stopWatch
	b.meter, b.body, b.ended = nil, nil, true
	b.mu.Unlock()
	if ended {
		return
	}
	if stop != nil {
		stop()
	}
	b.attempt.finish(m)
}
