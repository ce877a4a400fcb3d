package distributed

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A jointAttempt is a trip that reserves times for the first of some requests in all quotas of a bundle.
type jointAttempt struct {
	trip
	bundle   *bundle
	requests []store.Request
	ways     []time.Duration // by quota, the longest time in flight to the provider
	hold     time.Duration   // how long after the reply the requests are sent at the earliest
	terms    []timing.Terms  // by quota, set when the trip is sent
	termsAt  []int           // by quota, the index of the arguments that contain them
}

func newJointAttempt(b *bundle, guards []time.Duration, requests []store.Request) *jointAttempt {
	q, n := b.quotas[0], len(b.quotas)
	a := &jointAttempt{bundle: b, requests: requests, ways: make([]time.Duration, n), terms: make([]timing.Terms, n), termsAt: make([]int, n)}
	for _, r := range requests {
		a.ways[0], a.hold = max(a.ways[0], cmp.Or(r.Guard, q.plan.Guard())), max(a.hold, r.Hold)
	}
	c := newCall(q, append(q.begin(opBundle, 8+4*len(guards)+len(requests)*(2+len(requests[0].Cost))), nil))
	for i, o := range b.quotas {
		if i > 0 {
			a.ways[i] = cmp.Or(guards[i-1], o.plan.Guard())
			c.args, c.more = o.appendPlan(c.args), slices.Concat(c.more, []string{o.key}, o.leases.keys())
		}
		a.termsAt[i] = len(c.args)
		c.args = o.appendBudgets(append(c.args, nil, nil, b.headroom[i]))
	}
	c.around = b.quotas[1:]
	b.mu.Lock()
	c.args = append(c.args, micros(q.store.options.Horizon), micros(q.Soon()), b.turn, b.promised)
	b.mu.Unlock()
	c.args = appendBundled(c.args, requests)
	a.calls, a.onSend = []*call{c}, a.setTerms
	return a
}

func (a *jointAttempt) setTerms(calls int) {
	args, reply, most := a.calls[0].args, time.Duration(0), store.Forever // most by the bounds of the quotas
	for i, q := range a.bundle.quotas {
		a.terms[i], _ = q.Terms(a.ways[i], a.hold, calls)
		args[a.termsAt[i]], args[a.termsAt[i]+1] = micros(a.terms[i].Guard), q.Clock.Shows(time.Now())
		reply, most = max(reply, a.terms[i].Reply), min(most, max(0, q.Bound-a.terms[i].Good))
	}
	reply = min(reply, most)
	for i := range a.terms {
		a.terms[i].Reply = reply
	}
	args[a.termsAt[0]-1] = micros(reply)
}

// appendBundled appends requests in groups of equal ones.
func appendBundled(args []any, requests []store.Request) []any {
	for i := 0; i < len(requests); {
		r := requests[i]
		n, within := alike(requests[i:], store.Forever)
		i += n
		if r.YieldFor > 0 {
			n = -n
		}
		args = appendCost(append(args, n, within), r.Cost)
	}
	return args
}

// conclude returns the decisions of the trip, and ends the turns of the leases. While Redis is away, quotas
// that go on without it decide one after the other.
func (a *jointAttempt) conclude(failed error) (got []store.Decision, err error) {
	b := a.bundle
	if err = failed; err == nil {
		got, err = a.read()
	}
	if err == nil {
		for i, q := range b.quotas {
			own := partsOf(got, i)
			q.fallback.charge(own)
			q.leases.grant(own)
		}
	}
	apart := errors.Is(err, store.ErrApart)
	if apart && failed == nil {
		b.unlock(nil)
	} else {
		b.unlock(err)
	}
	switch {
	case apart:
		if !isMoving(err) { // otherwise the server or a proxy will always refuse
			b.quotas[0].store.apart.Store(true)
		}
		return nil, store.ErrApart
	case errors.Is(err, store.ErrUnavailable) && slices.ContainsFunc(b.quotas, func(q *quota) bool { return q.fallback != nil }):
		return nil, store.ErrApart
	}
	return got, err
}

// read returns the decisions on the first of the requests.
func (a *jointAttempt) read() (got []store.Decision, err error) {
	b, requests := a.bundle, a.requests
	reply, n, tiers := a.calls[0].reply, len(b.quotas), 0
	if len(reply) < 2+n*headerLen {
		return nil, a.calls[0].garbled()
	}
	lead, promised := reply[headerLen], reply[headerLen+1]
	replies := make([]answer, n)
	var until int64 // the end of all pauses, by the clock of the first quota
	for i, q := range b.quotas {
		numbers := reply
		if i > 0 {
			numbers = reply[2+i*headerLen:]
		}
		h := &replies[i]
		*h = q.recordReply(parseHeader(numbers), &a.trip)
		h.Terms = a.terms[i]
		if closed, ok := h.closed(); ok {
			closed.Tier = tiers - bit(i == 0)
			return slices.Repeat([]store.Decision{closed}, len(requests)), nil
		}
		if h.until > 0 {
			until = max(until, replies[0].now+h.until-h.now)
		}
		tiers += len(q.plan.Tiers())
	}
	runs, crossed := reply[2+n*headerLen:], make([][]algorithms.Crossing, n)
	for i := n - 1; i >= 0; i-- {
		runs, crossed[i] = splitCrossed(b.quotas[i].plan, runs)
	}
	decided, ok := eachOf(runs, len(requests), tiers)
	if !ok || len(decided) == 0 {
		return nil, a.calls[0].garbled()
	}
	a.calls[0].requests = len(decided) / 2
	if slices.Min(decided) >= -1 && promised < 0 {
		return nil, store.ErrApart
	}
	stopped := false // the first request that has to wait asks again for those after it
	for i := range len(decided) / 2 {
		what, at, r := decided[2*i], decided[2*i+1], requests[i]
		if what < -1 {
			got = append(got, a.charged(what, at, replies, r))
			for i, q := range b.quotas {
				if part := &got[len(got)-1].Reservation.Parts[i]; part.Verdict == store.Admitted {
					part.Crossed, crossed[i] = append(q.crossings.take(), crossed[i]...), nil
				}
			}
			continue
		}
		if stopped {
			continue
		}
		d := a.refused(what, at, until, &replies[0], r)
		switch stopped = d.Verdict == store.Later; {
		case !stopped || at == never || at == until:
		case lead < 0:
			d.Ready, d.Wait = d.Wait, timing.UntilReserved(d.Wait)
		default:
			b.setTurn(at, promised)
			d.Wait = b.wait(d.Wait, microseconds(lead), a.got)
			if i > 0 && got[i-1].Verdict == store.Admitted {
				got[i-1].Reservation.Again = a.got // the process asks for the following requests in its turn
			}
		}
		got = append(got, d)
	}
	return got, nil
}

// charged returns the decision on a request that was charged in all quotas in which it has a cost.
func (a *jointAttempt) charged(what, at int64, replies []answer, r store.Request) store.Decision {
	all, cost := &store.Reservation{Cost: r.Cost, Parts: make([]store.Decision, len(replies))}, r.Cost
	d := store.Decision{Verdict: store.Admitted, Tier: -1, Reservation: all}
	for i, q := range a.bundle.quotas {
		n, h, own := len(q.plan.Units()), &replies[i], new(store.Reservation)
		c := h.admitted(&q.Timing, what, at+h.now-replies[0].now, cost[:n:n], own)
		if r.YieldFor > 0 {
			q.turns.next.Store(0) // its turn for requests outside the bundle was taken, too
		}
		switch {
		case !slices.ContainsFunc(own.Cost, func(n int64) bool { return n > 0 }):
			c.Verdict, c.Probe, own.State = store.Ready, false, inFallback // it is not charged
		case all.Told.IsZero(): // the first that charges it
			d.Wait, d.Epoch, d.Level, d.At, d.Probe = c.Wait, c.Epoch, c.Level, c.At, c.Probe
			all.Told, all.Start, all.End, all.Again, all.At, all.Guard, all.State = own.Told, own.Start, own.End, own.Again, own.At, own.Guard, own.State
		default:
			if all.Start, d.Probe = latest(all.Start, own.Start), d.Probe || c.Probe; own.End.Before(all.End) {
				all.End = own.End
			}
		}
		all.Parts[i], cost = c, cost[n:]
	}
	a.bundle.setTurn(0, 0) // it was taken
	return d
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// refused returns the decision on a request that was not charged. until is the end of all pauses.
func (a *jointAttempt) refused(what, at, until int64, reply *answer, r store.Request) store.Decision {
	q, d := a.bundle.quotas[0], reply.later(what, at)
	switch by, tier := a.bundle.decider(d.Tier); {
	case by.plan.Exhausted(tier):
		d.Verdict, d.Crossed = store.Exhausted, by.crossings.take()
	case at != never && timing.IsLate(r, microseconds(at-reply.now)):
		d.Verdict = store.Late
	case what == -1 && at == until:
		d.Wait = q.BeforeEnd(d.Wait)
	case at == never && by.leases != nil:
		d.Wait = by.leases.askAgain() // a message may be lost
	case at == never:
		d.Wait = q.store.options.Horizon
	}
	return d
}

// isMoving reports whether a server refuses a call because its slot is moving.
func isMoving(err error) bool { return strings.Contains(err.Error(), "TRYAGAIN ") }

// apart returns store.ErrApart if a server refuses a call because it has several keys.
func (c *call) apart() error {
	if c.args[0] == opBundle && (isMoving(c.err) || strings.Contains(c.err.Error(), "same slot")) {
		return fmt.Errorf("%w: %w", store.ErrApart, c.err)
	}
	return nil
}
