package throttle

import (
	"io"
	"net/http"
	"sync"

	"github.com/apithrottle/throttle/answers"
)

// A Meter tells what a request has really cost. It is written the response's body as
// the caller reads it, and asked at its end, or when it is closed before. A Cost that
// does not name an Estimated unit leaves the estimate of that unit.
type Meter interface {
	io.Writer
	Cost() Cost
}

// A profileMeter has what a profile reads: of the header, and then of the body.
type profileMeter struct {
	cost Cost
	body *answers.Meter // nil if the body tells nothing
}

func (m *profileMeter) Write(p []byte) (int, error) {
	if m.body == nil {
		return len(p), nil
	}
	return m.body.Write(p)
}

func (m *profileMeter) Cost() Cost {
	if m.body != nil {
		for _, c := range m.body.Charged() {
			m.cost[c.Unit] = c.N
		}
	}
	return m.cost
}

// meter is that of a response, nil if nothing of the cost was an estimate. What was
// refused, or was the caller's error, cost nothing but what the response says.
func (a *attempt) meter(resp *http.Response, answer *answers.Answer) Meter {
	if !a.estimates() {
		return nil
	}
	if a.transport.Meter != nil {
		return a.transport.Meter(resp)
	}
	if answer == nil {
		answer = new(answers.Answer)
	}
	m := &profileMeter{cost: Cost{}}
	if answer.Kind == answers.Limited || answer.Kind == answers.Banned || resp.StatusCode/100 == 4 {
		m.cost = a.zeroEstimate()
	}
	for _, c := range answer.Charged {
		m.cost[c.Unit] = c.N
	}
	if p := a.transport.Profile; p != nil {
		m.body = p.Meter(answers.Response{Status: resp.StatusCode, Header: resp.Header})
	}
	return m
}

// A watchedBody ends its attempt, once.
type watchedBody struct {
	io.ReadCloser
	attempt attempt
	meter   Meter
	mu      sync.Mutex // guards the meter: a body may be closed while it is read
	once    sync.Once
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.meter != nil && n > 0 {
		b.count(p[:n])
	}
	if err != nil {
		b.end()
	}
	return n, err
}

// count lets go of the lock even if the meter panics: the body is closed then.
func (b *watchedBody) count(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.meter.Write(p) // what it can't read it doesn't count
}

func (b *watchedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

func (b *watchedBody) end() {
	b.once.Do(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.attempt.finish(b.meter)
	})
}

// zeroEstimate returns a Cost of zero in every unit that is estimated.
func (a *admitted) zeroEstimate() Cost {
	cost := Cost{}
	a.each(func(c *charge) {
		for u, unit := range c.terms.plan.Units() {
			if c.terms.plan.Estimated(u) {
				cost[unit] = 0
			}
		}
	})
	return cost
}
