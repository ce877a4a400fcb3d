package distributed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A bundle is a quota and the quotas around it in the same slot. One call of the script charges all
// of them.
type bundle struct {
	quotas   []*quota // the outermost last
	turns    []*quota // the same in the order of their keys, in which calls take the turns of their leases
	headroom []int    // the percentages that requests which yield leave in them

	mu       sync.Mutex // guards all below
	waiting  bool       // callers wait
	turn     int64      // the instant of the last turn, by the clock of the first quota; or 0
	promised int64      // the requests that turn is for
	asked    time.Time  // when the process last asked for that turn; zero if it has not
	frontier time.Time  // the time of the outermost quota's last reservation, as of then
}

// Bundle returns nil if a quota is of another store or in another slot.
func (q *quota) Bundle(around []store.Quota, headroom []int) store.Bundle {
	b := &bundle{quotas: []*quota{q}, headroom: headroom}
	for _, o := range around {
		o, ok := o.(*quota)
		if !ok || o.store != q.store || len(q.store.nodes) > 1 && slot(o.key) != slot(q.key) {
			return nil
		}
		b.quotas = append(b.quotas, o)
	}
	b.turns = slices.SortedFunc(slices.Values(b.quotas), func(x, y *quota) int { return strings.Compare(x.key, y.key) })
	for i, q := range b.turns {
		if q.store.apart.Load() || i > 0 && q.key == b.turns[i-1].key {
			return nil
		}
	}
	return b
}

// lock takes the turns of the leases of all quotas. It returns false, without the turns, if a quota has
// a successor.
func (b *bundle) lock() bool {
	for _, q := range b.turns {
		_ = q.leases.lock(context.Background())
	}
	if slices.ContainsFunc(b.quotas, func(q *quota) bool { return !q.isNewest() }) {
		b.unlock(nil)
		return false
	}
	for _, q := range b.quotas {
		q.leases.rebase(q)
	}
	return true
}

func (b *bundle) unlock(err error) {
	for _, q := range b.quotas {
		q.leases.unlock(err)
	}
}

// Reserve asks Redis, in a goroutine that ends with the call.
func (b *bundle) Reserve(guards []time.Duration, requests []store.Request, done func([]store.Decision, error)) {
	b.mu.Lock()
	b.waiting = true
	b.mu.Unlock()
	p := b.quotas[0].store.reports.begin()
	go b.reserve(guards, requests, func(got []store.Decision, err error) {
		done(got, err)
		p.end(nil)
	}, 0)
}

// reserve is the method of a quota, for all quotas of the bundle.
func (b *bundle) reserve(guards []time.Duration, requests []store.Request, done func([]store.Decision, error), tries int) {
	q := b.quotas[0]
	if q.store.apart.Load() {
		done(nil, store.ErrApart)
		return
	}
	for _, q := range b.quotas {
		if d, held := q.pausedLocally(); held {
			done(slices.Repeat([]store.Decision{d}, len(requests)), nil)
			return
		}
		_ = q.repay()
	}
	q.measureTrip()
	if !b.lock() {
		done(slices.Repeat([]store.Decision{moved}, len(requests)), nil)
		return
	}
	requests = requests[:min(len(requests), mostACall)]
	t, parts := b.trip(guards, requests)
	t.done = func(err error) {
		got, err := b.conclude(t, parts, requests, err)
		switch {
		case err != nil:
			done(nil, err)
		case t.isLate(got):
			b.Cancel(got)
			if err := q.distanceError(tries); err != nil {
				done(nil, err)
				return
			}
			time.AfterFunc(q.backOff(t, tries), func() { b.reserve(guards, requests[:1], done, tries+1) })
		case b.overtaken(got):
			b.Cancel(got)
			go b.reserve(guards, requests, done, tries)
		default:
			for i, q := range b.quotas {
				q.trackProbes(partsOf(got, i), requests)
				q.listen(got)
			}
			done(got, nil)
			if b.overtaken(got) { // the watchers were called before they had these reservations
				for _, q := range b.quotas {
					q.notifyAgain()
				}
			}
		}
	}
	t.late = func() {
		got, _ := b.read(t, parts, requests)
		for i, q := range b.quotas {
			q.refund(partsOf(got, i), true)
		}
	}
	q.node.make(t)
}

// conclude returns the decisions of a trip, and ends the turns of the leases. While Redis is away, quotas
// that go on without it decide one after the other.
func (b *bundle) conclude(t *trip, parts []trip, requests []store.Request, failed error) (got []store.Decision, err error) {
	if err = failed; err == nil {
		got, err = b.read(t, parts, requests)
	}
	if err == nil {
		for i, q := range b.quotas {
			own := partsOf(got, i)
			q.fallback.charge(own)
			q.leases.grant(own)
		}
	}
	if apart := errors.Is(err, store.ErrApart); apart && failed == nil {
		b.unlock(nil)
	} else {
		b.unlock(err)
	}
	switch {
	case errors.Is(err, store.ErrApart):
		if !isMoving(err) { // otherwise the server or a proxy will always refuse
			b.quotas[0].store.apart.Store(true)
		}
		return nil, store.ErrApart
	case errors.Is(err, store.ErrUnavailable) && slices.ContainsFunc(b.quotas, func(q *quota) bool { return q.fallback != nil }):
		return nil, store.ErrApart
	}
	return got, err
}

// trip returns a trip that reserves requests, and the part of each quota in it.
func (b *bundle) trip(guards []time.Duration, requests []store.Request) (t *trip, parts []trip) {
	q, ways := b.quotas[0], append([]time.Duration{0}, guards...)
	t, parts = new(trip), make([]trip, len(b.quotas))
	for _, r := range requests {
		ways[0], t.hold = max(ways[0], cmp.Or(r.Guard, q.plan.Guard())), max(t.hold, r.Hold)
	}
	c, at := &call{quota: q, key: q.key, more: q.leases.keys()}, make([]int, len(b.quotas))
	args := append(q.begin(opBundle, 8+4*len(guards)+len(requests)*(2+len(requests[0].Cost))), nil)
	for i, o := range b.quotas {
		if i > 0 {
			args, c.more = o.appendPlan(args), slices.Concat(c.more, []string{o.key}, o.leases.keys())
		}
		at[i] = len(args)
		args = o.appendBudgets(append(args, nil, nil, b.headroom[i]))
	}
	b.mu.Lock()
	args = append(args, micros(q.store.options.Horizon), micros(q.soon()), b.turn, b.promised)
	b.mu.Unlock()
	c.args = appendBundled(args, requests)
	t.calls = []*call{c}
	t.onSend = func(calls int) {
		most := store.Forever // of the reply, by the bounds of the quotas
		for i, q := range b.quotas {
			good, reply, _ := q.terms(ways[i], t.hold, calls)
			parts[i].good, parts[i].guard = good, q.guard(ways[i], good)
			c.args[at[i]], c.args[at[i]+1] = micros(parts[i].guard), q.clock.shows(time.Now())
			t.reply, most = max(t.reply, reply), min(most, max(0, q.bound-good))
		}
		t.reply = min(t.reply, most)
		c.args[at[0]-1] = micros(t.reply)
	}
	return t, parts
}

// appendBundled appends requests in groups of equal ones.
func appendBundled(args []any, requests []store.Request) []any {
	for i := 0; i < len(requests); {
		r, n, within := requests[i], 1, int64(never)
		for i+n < len(requests) && requests[i+n].MaxWait == r.MaxWait && requests[i+n].YieldFor > 0 == (r.YieldFor > 0) && slices.Equal(requests[i+n].Cost, r.Cost) {
			n++
		}
		if r.MaxWait < store.Forever {
			within = micros(r.MaxWait)
		}
		i += n
		if r.YieldFor > 0 {
			n = -n
		}
		args = appendCost(append(args, n, within), r.Cost)
	}
	return args
}

// read returns the decisions on the first of the requests.
func (b *bundle) read(t *trip, parts []trip, requests []store.Request) (got []store.Decision, err error) {
	reply, n, tiers := t.calls[0].reply, len(b.quotas), 0
	if len(reply) < 2+n*headerLen {
		return nil, b.garbled(t)
	}
	lead, promised := reply[headerLen], reply[headerLen+1]
	headers, known := make([]header, n), make([]bounds, n)
	var until int64 // the end of all pauses, by the clock of the first quota
	for i, q := range b.quotas {
		numbers := reply
		if i > 0 {
			numbers = reply[2+i*headerLen:]
		}
		parts[i].reply, parts[i].sent, parts[i].got = t.reply, t.sent, t.got
		headers[i] = parseHeader(numbers)
		h := &headers[i]
		h.state, known[i] = q.recordReply(*h, t)
		if h.shut == isBan && h.left() > 0 {
			closed := store.Decision{Verdict: store.Closed, Tier: tiers - bit(i == 0), Wait: h.left(), Epoch: h.epoch}
			return slices.Repeat([]store.Decision{closed}, len(requests)), nil
		}
		if h.until > 0 {
			until = max(until, headers[0].now+h.until-h.now)
		}
		tiers += len(q.plan.Tiers())
	}
	runs, crossed := reply[2+n*headerLen:], make([][]algorithms.Crossing, n)
	for i := n - 1; i >= 0; i-- {
		runs, crossed[i] = b.quotas[i].crossed(runs)
	}
	decided, ok := eachOf(runs, len(requests), tiers)
	if !ok || len(decided) == 0 {
		return nil, b.garbled(t)
	}
	t.calls[0].requests = len(decided) / 2
	if slices.Min(decided) >= -1 && promised < 0 {
		return nil, store.ErrApart
	}
	stopped := false // the first request that has to wait asks again for those after it
	for i := range len(decided) / 2 {
		what, at, r := decided[2*i], decided[2*i+1], requests[i]
		if what < -1 {
			got = append(got, b.charged(what, at, headers, known, parts, r))
			for i, q := range b.quotas {
				if part := &got[len(got)-1].Reservation.Parts[i]; part.Verdict == store.Admitted {
					part.Crossed, crossed[i] = append(q.takeUnreported(), crossed[i]...), nil
				}
			}
			continue
		}
		if stopped {
			continue
		}
		d := b.refused(what, at, until, headers[0], known[0], t, r)
		switch stopped = d.Verdict == store.Later; {
		case !stopped || at == never || at == until:
		case lead < 0:
			d.Ready, d.Wait = d.Wait, untilReserved(d.Wait)
		default:
			b.setTurn(at, promised)
			d.Wait = b.wait(d.Wait, microseconds(lead), t.got)
			if i > 0 && got[i-1].Verdict == store.Admitted {
				got[i-1].Reservation.Again = t.got // the process asks for the following requests in its turn
			}
		}
		got = append(got, d)
	}
	return got, nil
}

// wait returns how long after now to ask again, for a turn that comes after turn. lead is how far
// ahead the outermost quota has reservations: a process asks that much earlier.
//
// The lead changes, so a process first waits for half of that time only. If less was reserved in the
// outermost quota since then than time passed, the instant came hardly nearer, and the process waits
// twice as long as before. So it asks a few times for a turn, however far away the turn is.
func (b *bundle) wait(turn, lead time.Duration, now time.Time) time.Duration {
	soon, frontier := b.quotas[0].soon(), now.Add(lead)
	again, least := max(0, turn-lead), time.Duration(0)
	if again > soon {
		again -= soon / 2
	}
	b.mu.Lock()
	if passed := now.Sub(b.asked); !b.asked.IsZero() {
		least = min(passed, again)
		if frontier.Sub(b.frontier) < passed*3/4 {
			least = min(2*passed, turn-soon/2)
		}
	}
	b.asked, b.frontier = now, frontier
	b.mu.Unlock()
	if lead > soon {
		again = max(min(again, soon), again/2, least)
	}
	return min(again, max(longestInQueue, again-again/8))
}

// setTurn stores a turn, unless the reply repeats the last one. An instant of 0 removes the turn.
func (b *bundle) setTurn(at, promised int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at == 0 || promised != 0 {
		b.turn, b.promised, b.asked = at, max(0, promised), time.Time{}
	}
	if !b.waiting {
		b.leave()
	}
}

// Leave gives back the turn, unless somebody waits soon.
func (b *bundle) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = false
	b.leave()
}

// leave is Leave without the lock.
func (b *bundle) leave() {
	if b.promised == 0 {
		return
	}
	q := b.quotas[0]
	q.store.reports.later(leaveDelay, func() error {
		b.mu.Lock()
		turn, promised := b.turn, b.promised
		if b.waiting {
			turn = 0
		} else {
			b.turn, b.promised, b.asked = 0, 0, time.Time{}
		}
		b.mu.Unlock()
		return q.giveBack(turn, promised)
	})
}

func (b *bundle) garbled(t *trip) error {
	return &unavailableError{fmt.Errorf("the server replied with %d, which the script does not", t.calls[0].reply)}
}

// charged returns the decision on a request that was charged in all quotas in which it has a cost.
func (b *bundle) charged(what, at int64, headers []header, known []bounds, parts []trip, r store.Request) store.Decision {
	all, cost := &store.Reservation{Cost: r.Cost, Parts: make([]store.Decision, len(b.quotas))}, r.Cost
	d := store.Decision{Verdict: store.Admitted, Tier: -1, Reservation: all}
	for i, q := range b.quotas {
		n, h, own := len(q.plan.Units()), headers[i], new(store.Reservation)
		c := q.decided(what, at+h.now-headers[0].now, h, known[i], &parts[i], store.Request{Cost: cost[:n:n], WaitSpec: r.WaitSpec}, own)
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
	b.setTurn(0, 0) // it was taken
	return d
}

// refused returns the decision on a request that was not charged. until is the end of all pauses.
func (b *bundle) refused(what, at, until int64, h header, known bounds, t *trip, r store.Request) store.Decision {
	q := b.quotas[0]
	d := store.Decision{Tier: int(max(what, 0) - 1), Wait: store.Forever, Epoch: h.epoch, Level: h.level}
	if at != never {
		_, to := known.when(at, t.got)
		d.Wait = max(0, to.Sub(t.got))
	}
	switch by, tier := b.decider(d.Tier); {
	case by.plan.Exhausted(tier):
		d.Verdict, d.Crossed = store.Exhausted, by.takeUnreported()
	case at != never && isLate(r, microseconds(at-h.now)):
		d.Verdict = store.Late
	case what == -1 && at == until:
		d.Wait -= min(q.lead(d.Wait, 8), askBeforeEnd, d.Wait/2)
	case at == never && by.leases != nil:
		d.Wait = by.leases.askAgain() // a message may be lost
	case at == never:
		d.Wait = q.store.options.Horizon
	}
	return d
}

// decider returns the quota of a tier, and its index there, which may be -1.
func (b *bundle) decider(tier int) (*quota, int) {
	i := 0
	for tier >= len(b.quotas[i].plan.Tiers()) {
		tier -= len(b.quotas[i].plan.Tiers())
		i++
	}
	return b.quotas[i], tier
}

// overtaken reports whether a charge is void in any quota.
func (b *bundle) overtaken(got []store.Decision) bool {
	for i, q := range b.quotas {
		if q.overtaken(partsOf(got, i)) {
			return true
		}
	}
	return false
}

// partsOf returns the decisions of one of the quotas.
func partsOf(got []store.Decision, i int) []store.Decision {
	parts := make([]store.Decision, len(got))
	for j, d := range got {
		if d.Verdict == store.Admitted {
			parts[j] = d.Reservation.Parts[i]
		}
	}
	return parts
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

// Cancel returns the reservations to each quota. Later requests for all of them take these over.
func (b *bundle) Cancel(reserved []store.Decision) {
	for i, q := range b.quotas {
		q.Cancel(partsOf(reserved, i))
	}
}
