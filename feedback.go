package throttle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/verdict"
	"github.com/apithrottle/throttle/store"
)

// A delivery is what net/http tells of a request on its way.
type delivery struct{ connects, writes atomic.Bool }

// unsent tells whether nothing of a request that failed was written. A base that does
// not tell may have written it.
func (d *delivery) unsent(err error) bool {
	var op *net.OpError
	return d != nil && d.connects.Load() && !d.writes.Load() || errors.As(err, &op) && op.Op == "dial"
}

// trace has net/http tell what becomes of a charged request, unless nobody can call it
// off: a connection that can't be made tells of itself.
func (a *attempt) trace(req *http.Request) (*http.Request, *delivery) {
	if !a.charged() || req.Context().Done() == nil && a.journey.network == nil {
		return req, nil
	}
	d, j := new(delivery), a.journey
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { d.connects.Store(true) },
		GotConn: func(c httptrace.GotConnInfo) {
			if !c.Reused {
				j.connected()
			}
		},
		WroteHeaderField: func(string, []string) { d.writes.Store(true) },
		WroteHeaders:     func() { d.writes.Store(true) },
	})), d
}

// learn reads the response, pauses the quota on a refusal, and ends the back-off on a
// success. A server that fails does neither. The answer is nil where there is nothing to
// know.
func (a *attempt) learn(ctx context.Context, resp *http.Response) *answers.Answer {
	if a.gate == nil {
		return nil
	}
	answer := a.read(resp)
	switch {
	case answer == nil:
		a.gate.accepted(a.booking)
	case answer.Kind == answers.Limited || answer.Kind == answers.Banned:
		a.journey.refused()
		g, b := a.gate, a.booking
		for answer.Wide && g.outer != nil && b.Outer != nil {
			g, b = g.outer, *b.Outer
		}
		// A pause that a shared store did not take is made by the next refusal.
		_ = g.refused(context.WithoutCancel(ctx), b, answer.Refusal)
	case answer.Kind == answers.Passed && resp.StatusCode < 500:
		a.gate.accepted(a.booking)
	}
	if answer != nil && answer.Kind != answers.Passed {
		verdict.Tell(ctx, answer.Refusal)
	}
	return answer
}

// standard is the Profile of a Transport that has none.
var standard answers.Profile

// read is what the response tells, nil if that is not worth a look.
func (a *attempt) read(resp *http.Response) *answers.Answer {
	p := a.transport.Profile
	if p == nil {
		if resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
			return nil
		}
		p = &standard
	}
	r := answers.Response{Status: resp.StatusCode, Header: resp.Header, Sent: a.sent, Got: time.Now()}
	if p.Peeks(r.Status, r.Header) && resp.Body != nil && resp.Body != http.NoBody {
		r.Body = peek(resp)
	}
	answer := p.Read(r)
	return &answer
}

// peekSize is how much of a body is looked at before it is handed on.
const peekSize = 16 << 10

// peek reads the beginning of a body, which can be read again.
func peek(resp *http.Response) []byte {
	var begin bytes.Buffer
	_, err := io.CopyN(&begin, resp.Body, peekSize)
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failed{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin.Bytes()), rest), resp.Body}
	return begin.Bytes()
}

// failed is a reader that has come to its end or its error.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// observe tells the quotas what the provider says it counts.
func (a *attempt) observe(answer *answers.Answer) {
	if answer == nil || len(answer.Readings) == 0 || !a.charged() {
		return
	}
	left := answer.Readings
	for g, b := a.gate, &a.booking; g != nil && b != nil; g, b = g.outer, b.Outer {
		left = g.observe(*b, left)
	}
	for _, r := range left {
		a.gate.heed(r)
	}
}

// observe takes the readings that are of the gate's own tiers, and returns the others.
func (g *gate) observe(b store.Decision, readings []answers.Reading) (others []answers.Reading) {
	var seen []store.Observation
	for _, r := range readings {
		tier := g.tierOf(r)
		if tier < 0 {
			others = append(others, r)
			continue
		}
		if g.plan.Tiers()[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			g.align(r)
		}
		if used, ok := usedOf(r, g.plan.Tiers()[tier]); ok {
			seen = append(seen, store.Observation{Tier: tier, Used: used, Exact: r.Authoritative})
		}
	}
	if o, ok := g.innermost().quota.(store.Observer); ok && len(seen) > 0 {
		o.Observe(b, nil, seen)
	}
	return others
}

// heed pauses the quota where the provider says that something is used up which is no
// tier of the policy, until it says there will be more.
func (g *gate) heed(r answers.Reading) {
	if r.Has&answers.HasRemaining == 0 || r.Remaining > 0 || r.Has&answers.HasReset == 0 || r.Reset <= 0 || r.Full {
		return
	}
	// What a shared store did not take the next response tells again.
	_, _ = g.quota.Pause(context.Background(), store.Pause{For: r.Reset, Close: r.Reset > g.policy.maxPause()})
}

// tierOf is the tier that a reading is of: of its unit and its window or its limit,
// where it tells those, or the only one of its unit; -1 if there is none.
func (g *gate) tierOf(r answers.Reading) int {
	found := -1
	for i, t := range g.plan.Tiers() {
		switch {
		case t.Unit != r.Unit || t.Algorithm == Concurrency || i > 0 && g.plan.Declared(i) == g.plan.Declared(i-1):
		case r.Window != 0 && t.Window != r.Window:
		case r.Limit == t.Capacity():
			return i
		case found < 0:
			found = i
		default:
			found = len(g.plan.Tiers()) // which of them?
		}
	}
	if found == len(g.plan.Tiers()) {
		return -1
	}
	return found
}

// usedOf is how much of a tier its provider says to count.
func usedOf(r answers.Reading, t algorithms.Tier) (used int64, ok bool) {
	switch {
	case r.Has&answers.HasReset != 0 && r.Reset <= 0: // it speaks of a window that has ended
		return 0, false
	case r.Has&answers.HasRemaining != 0:
		return max(0, t.Capacity()-r.Remaining), true
	case r.Has&answers.HasUsed != 0:
		return r.Used, true
	}
	return 0, false
}

// align tells the quota of the end of a window, of which both clocks may be cut to the
// second.
func (g *gate) align(r answers.Reading) {
	if q, ok := g.innermost().quota.(store.Aligner); ok {
		ends := time.Now().Add(r.Reset)
		q.Align(ends.Add(-r.Slack-time.Second), ends.Add(time.Second))
	}
}
