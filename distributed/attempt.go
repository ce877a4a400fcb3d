package distributed

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

const (
	leastCalls = 4                      // how many calls may always share a round trip
	mostCalls  = 64                     // how many may if a trip takes long
	askAhead   = 750 * time.Millisecond // how long before its time a process in the line asks
)

// An attempt is a trip that reserves times for requests: for the first of them, as many as fit in it.
type attempt struct {
	trip
	timing.Terms // set when the trip is sent
	quota        *quota
	requests     []store.Request
	// way is the longest time in flight to the provider, and hold how long after the reply the requests
	// are sent at the earliest.
	way, hold time.Duration
	// termsAt is the index of the arguments that contain the terms.
	termsAt int
	// mixed reports that all requests that wait have turns, not only those that yield.
	mixed bool
	// lined reports that the first call takes part in the line, asks that it receives no turn, and place is
	// the process's turn there.
	lined, asks bool
	place       *place
	// toldTurn reports that a call of the trip has the process's turn.
	toldTurn bool
}

// newAttempt returns an attempt for requests of callers that wait.
func newAttempt(q *quota, behind *store.Reservation, requests []store.Request) *attempt {
	a := &attempt{quota: q, requests: requests, mixed: q.mixed.Load()}
	calls, floor := callsATrip(q.UsualTrip()), int64(0)
	if q.leases != nil {
		calls = 1 // each call reports the held units, which include the grants of the call before
	}
	for _, r := range requests {
		a.way, a.hold = max(a.way, cmp.Or(r.Guard, q.plan.Guard())), max(a.hold, r.Hold)
	}
	if behind != nil {
		floor = behind.At
	}
	turn := micros(q.turnLength(requests))
	within := store.Forever
	for i, before := 0, 0; i < calls && len(requests) > 0; i++ {
		n := min(mostACall, len(requests))
		if i > 0 && (a.hasTurns(requests[0]) || q.turns.place.Load() != nil) { // each call would give the process another turn
			break
		}
		if i > 0 {
			// Only the first request of the trip may be reserved any time ahead. Those of later
			// calls get no returned times, which might be before those of the earlier calls.
			within, floor = q.store.options.Horizon, lastInstant
		}
		args := a.appendTerms(append(q.beginReserve(5+n*(4+len(q.plan.Units()))), turn, before, floor))
		if i == 0 {
			a.lined = true
			args = append(args, q.turns.place.Load().args()...)
		}
		a.calls = append(a.calls, newCall(q, a.appendRequests(args, requests[:n], within)))
		requests, before = requests[n:], before+n
	}
	return a
}

// callsATrip returns how many calls may share a round trip without making it much longer.
func callsATrip(trip time.Duration) int {
	return int(min(mostCalls, max(leastCalls, trip/time.Millisecond)))
}

// appendTerms appends four arguments, which are set when the trip is sent.
func (a *attempt) appendTerms(args []any) []any {
	a.termsAt, a.onSend = len(args), a.setTerms
	return append(args, nil, nil, nil, nil)
}

func (a *attempt) setTerms(calls int) {
	var slack time.Duration
	a.Terms, slack = a.quota.Terms(a.way, a.hold, calls)
	shows := a.quota.Clock.Shows(time.Now())
	for _, c := range a.calls {
		copy(c.args[a.termsAt:], []any{micros(a.Guard), micros(a.Reply), shows, micros(slack)})
	}
}

// hasTurns reports whether the trip reserves a request in a turn of this process: one that yields, or any
// that waits while releases with other plans call, too, since what one of them reserves ahead delays
// the others.
func (a *attempt) hasTurns(r store.Request) bool { return r.YieldFor > 0 || a.mixed && r.MaxWait > 0 }

// appendRequests appends requests as groups of equal ones.
func (a *attempt) appendRequests(args []any, requests []store.Request, most time.Duration) []any {
	turn := a.quota.turns.next.Load()
	if a.toldTurn {
		turn = -turn
	}
	for i := 0; i < len(requests); {
		r := requests[i]
		n, within := alike(requests[i:], most)
		yields, hasTurns := r.YieldFor > 0, a.hasTurns(r)
		if hasTurns {
			args = append(args, -n, within)
		} else {
			args = append(args, n, within)
		}
		if hasTurns {
			soon := micros(a.quota.Soon())
			if !yields {
				soon = -soon
			}
			args = append(args, r.Headroom, soon, turn)
			if within != any(dryRunArg) && turn > 0 {
				a.toldTurn, turn = true, -turn
			}
		}
		args = appendCost(args, r.Cost)
		i += n
	}
	return args
}

// alike returns how many of the requests at the beginning are equal, and the script's argument for their
// longest wait, which is no longer than most.
func alike(requests []store.Request, most time.Duration) (n int, within any) {
	r := requests[0]
	wait := min(r.MaxWait, most)
	for n = 1; n < len(requests); n++ {
		if o := requests[n]; min(o.MaxWait, most) != wait || o.YieldFor > 0 != (r.YieldFor > 0) || !slices.Equal(o.Cost, r.Cost) {
			break
		}
	}
	switch wait {
	case store.Forever:
		return n, never
	case dryRun:
		return n, dryRunArg
	}
	return n, micros(wait)
}

// conclude returns the decisions of the trip, or of the fallback if the trip failed, and ends the turn
// of the leases. lost is the reason why Redis did not decide, and err the error for the callers.
func (a *attempt) conclude(failed error) (got []store.Decision, lost, err error) {
	q := a.quota
	if lost = failed; lost == nil {
		got, lost = a.read()
	}
	if lost == nil {
		q.fallback.charge(got)
	} else {
		got, err = a.fallBack(lost)
	}
	q.leases.grant(got)
	q.leases.unlock(lost)
	return got, lost, err
}

// fallBack decides on the requests in Redis's place if Redis is away and the process has a fallback. It
// respects the pauses and bans that the process has seen.
func (a *attempt) fallBack(lost error) ([]store.Decision, error) {
	q := a.quota
	s := q.record.get()
	if d, paused := s.decision(); paused && q.fallback != nil && errors.Is(lost, store.ErrUnavailable) {
		return slices.Repeat([]store.Decision{d}, len(a.requests)), nil
	}
	got, err := q.fallback.reserve(a.requests, lost)
	if len(got) > 0 {
		q.store.debtors.Store(q, nil)
	}
	s = q.record.get()
	for i := range got { // a refusal then pauses, unless there is a newer pause
		got[i].Epoch, got[i].Level = s.epoch, s.level
	}
	return got, err
}

// read returns the decisions in the replies: on the first of the requests up to the first that has to
// wait, and the reservations after it.
func (a *attempt) read() (got []store.Decision, err error) {
	q, requests, stopped := a.quota, a.requests, false
	got = make([]store.Decision, 0, min(len(requests), mostACall*len(a.calls)))
	for i, c := range a.calls {
		reply := q.recordReply(parseHeader(c.reply), &a.trip)
		reply.Terms = a.Terms
		n := min(mostACall, len(requests))
		if closed, ok := reply.closed(); ok {
			return append(got, slices.Repeat([]store.Decision{closed}, len(requests))...), nil
		}
		own := c.reply[headerLen:]
		a.place = nil
		if i == 0 && a.lined && len(own) >= 2 {
			if !a.asks {
				a.place = q.turns.setPlace(own[0], own[1], a.got)
			}
			own = own[2:]
		}
		runs, crossed := splitCrossed(q.plan, own)
		decided, ok := eachOf(runs, n, len(q.plan.Tiers()))
		if !ok || len(decided) == 0 {
			return got, c.garbled()
		}
		if c.requests == 0 { // else the caller of q.call knows it
			c.requests = len(decided) / 2
		}
		ahead := make([]store.Reservation, len(decided)/2)
		for i := range ahead {
			last := len(got) - 1
			d := a.decision(decided[2*i], decided[2*i+1], &reply, requests[i], &ahead[i])
			if d.Verdict == store.Admitted {
				d.Crossed, crossed = append(q.crossings.take(), crossed...), nil
			} else if d.Verdict == store.Exhausted {
				d.Crossed = q.crossings.take()
			}
			if !stopped || d.Verdict == store.Admitted {
				got = append(got, d)
			}
			stopped = stopped || d.Verdict == store.Later
			if d.Verdict == store.Later && a.place != nil && last >= 0 && got[last].Verdict == store.Admitted {
				before := got[last].Reservation
				if before.Again = a.got; before.Start.Before(a.got) { // the process asks for the following requests in its turn
					before.Again = before.Start
				}
			}
		}
		stopped = stopped || len(ahead) < n
		requests = requests[n:]
	}
	return got, nil
}

// readMade returns the reservations of the calls before the first one that failed.
func (a *attempt) readMade() (got []store.Decision) {
	if failed := slices.IndexFunc(a.calls, func(c *call) bool { return c.err != nil }); failed > 0 {
		a.calls = a.calls[:failed]
		got, _ = a.read()
	}
	return got
}

// decision returns the decision for two numbers of a reply: what is a reservation or the tier that
// decided, and at is the time.
func (a *attempt) decision(what, at int64, reply *answer, r store.Request, reserved *store.Reservation) store.Decision {
	q := a.quota
	if what < -1 {
		if a.hasTurns(r) {
			q.turns.next.Store(0) // the turn was taken
		}
		return reply.admitted(&q.Timing, what, at, r.Cost, reserved)
	}
	d := reply.later(what, at)
	switch {
	case q.plan.Exhausted(d.Tier):
		d.Verdict = store.Exhausted
	case at == never && q.leases != nil:
		d.Wait = q.leases.askAgain() // a message may be lost
	case at == never: // a release may help soon enough
		d.Wait = q.store.options.Horizon
	case timing.IsLate(r, d.Wait):
		d.Verdict = store.Late
	case what == -1 && at == reply.until: // the end of the pause
		d.Wait = q.BeforeEnd(d.Wait)
	case a.hasTurns(r):
		if at-reply.now <= micros(r.MaxWait) { // else it has no turn
			q.turns.next.Store(at)
		}
		if soon := q.Soon(); d.Wait > soon {
			d.Wait -= soon / 2
		}
		d.Wait = min(d.Wait, longestInQueue)
	case a.place != nil:
		d.Ready, d.Wait = d.Wait, max(0, d.Wait-a.place.askAhead(a.got, d.Wait, q.UsualTrip()))
	case d.Wait > timing.MostApart:
		d.Ready, d.Wait = d.Wait, timing.UntilReserved(d.Wait)
	default:
		d.Wait = min(d.Wait, q.store.options.Horizon)
	}
	return d
}

// Turns are what Redis keeps for the waiting callers of this process that have no reservation.
type turns struct {
	place atomic.Pointer[place] // in the line, by the last reply; nil if the process has none
	next  atomic.Int64          // the instant by Redis's clock that the last reply set for asking for requests that have turns; or 0
}

// A place is a turn in the line of processes whose requests go later than soon, see line.lua.
type place struct {
	at, length int64
	since      time.Time // when the process received it
}

// askAhead returns how long before its time, which comes in wait, a process in the line asks. Of several
// with the same time the one that has waited longest asks first.
func (p *place) askAhead(now time.Time, wait, trip time.Duration) time.Duration {
	return askAhead + min((now.Sub(p.since)+wait)/64, askAhead/3) + trip
}

// args returns the arguments that tell the script the place, which may be nil.
func (p *place) args() []any {
	if p == nil {
		return []any{0, -1, 0}
	}
	return []any{0, -1 - p.at, p.length}
}

// setPlace stores and returns the place of a reply, nil if its length is 0.
func (t *turns) setPlace(at, length int64, now time.Time) (p *place) {
	if length > 0 {
		p = &place{at, length, now}
		if old := t.place.Load(); old != nil && old.at == at {
			p.since = old.since
		}
	}
	t.place.Store(p)
	return p
}
