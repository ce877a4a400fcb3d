package kept

import (
	"math"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A claim asks for times for requests, in one quota or in several at once. The instants of its results are
// those of the first quota's clock.
type claim struct {
	parts []*part
	// requests have costs in the units of all parts, one after the other.
	requests []store.Request
	// floor is the instant of a reservation that the caller has. The times come behind it.
	floor int64
	// reply is how long the reply takes at most: no request is sent before.
	reply time.Duration
	// horizon is the length of a turn.
	horizon time.Duration
	// soon is how far ahead a request that yields is reserved.
	soon time.Duration

	turn turn
	// room is how many more requests the process may book.
	room int
}

// A part is one quota of a claim.
type part struct {
	*txn
	lease *lease
	// leaseEnds is when the lease ends if this transaction renews it.
	leaseEnds int64
	// waits reports that callers of the process wait.
	waits bool
	// terms are those of the reservations, and slack by how much shorter they may be valid.
	terms timing.Terms
	slack time.Duration
	// headroom is the percentage that requests which yield leave. If negative, it is theirs.
	headroom int64
	// full reports that no booking is free.
	full bool
	// ahead are the places and estimates that processes want which have waited longer.
	ahead []int64
	// keeps reports that places are kept for them.
	keeps bool
}

// A result is the decision on a request.
type result struct {
	verdict store.Verdict
	// tier is the tier that decides, counted over all parts, or -1.
	tier int
	// at is when the request may go, or never.
	at int64
	// nth counts the requests of all processes that go at the same instant, from 1, or is zero.
	nth int64
	// probes are whether the request is a probe of each part, and guards how long it counts there.
	probes []bool
	guards []int64
	flight algorithms.Flight
}

// isProbe reports whether the request is a probe of any part.
func (r *result) isProbe() bool { return slices.Contains(r.probes, true) }

// A turn is what a process reserves in one call, so that others have theirs: of the times to come as many as the
// tier that decides admits in a horizon, at least one.
type turn struct {
	// begun reports that a time to come is reserved.
	begun bool
	// part and tier are the tier that ends the first instant to come, or tier is -1.
	part, tier int
	// left is the amount that the process may still reserve in that tier.
	left int64
}

// soonEnds is how long before the end of a pause requests are reserved behind it, in µs.
const soonEnds = 250_000

// mostAClaim is the most requests that a transaction reserves.
const mostAClaim = 256

// decide decides on the requests in their order, up to the first that has to wait.
func (c *claim) decide() (results []result) {
	c.room = mostAClaim
	for _, p := range c.parts {
		p.ahead = p.wantedBefore(p.lease)
		c.room = min(c.room, p.roomInBook())
		p.full = !slices.ContainsFunc(p.book, func(b booking) bool { return b.free })
		p.book = slices.Grow(p.book, max(0, min(c.room, len(c.requests))))
	}
	for i := range c.requests[:min(len(c.requests), mostAClaim)] {
		r := &c.requests[i]
		got, ok := c.decideOne(r, len(results) == 0)
		if !ok {
			break
		}
		if results = append(results, got); got.verdict == store.Later || got.isProbe() {
			break
		}
	}
	return results
}

// decideOne decides on a request. ok is false if the process's turn is over.
func (c *claim) decideOne(r *store.Request, first bool) (got result, ok bool) {
	now := c.parts[0].now.At
	if got, ok := c.closed(); ok {
		return got, true
	}
	got.at, got.tier = c.earliestOf(r)
	wait := time.Duration(max(0, got.at-now)) * time.Microsecond
	notBefore, probes := c.notBefore()
	switch {
	case c.exhausted(got.tier):
		got.verdict = store.Exhausted
	case got.at >= algorithms.Latest:
		got.at = algorithms.Never
		got.verdict = store.Later
		c.await(r)
	case r.IsDryRun():
		if got.verdict = store.Later; got.at <= now && notBefore <= now {
			got.verdict = store.Ready
		}
	case timing.IsLate(*r, max(wait, time.Duration(notBefore-now)*time.Microsecond)):
		got.verdict, got.at = store.Late, max(got.at, notBefore)
	case notBefore > now+soonEnds || notBefore > now && probes > 0:
		got.at, got.verdict, got.tier = max(got.at, notBefore), store.Later, min(got.tier, probingTier(probes))
	case r.YieldFor > 0 && got.at > now+(c.reply+c.soon).Microseconds():
		got.verdict = store.Later
	case c.room <= 0 && got.at > now:
		got.verdict, got.at, got.tier = store.Later, now+c.horizon.Microseconds(), -1
	case !first && !c.isInTurn(&got, r):
		return got, false
	default:
		c.admit(r, &got, notBefore)
	}
	return got, true
}

// closed returns the result during a ban.
func (c *claim) closed() (got result, ok bool) {
	for _, p := range c.parts {
		if p.pause.Banned > p.now.At {
			return result{verdict: store.Closed, tier: -1, at: c.here(p, p.pause.Banned)}, true
		}
	}
	return got, false
}

// probingTier returns the tier of a result while a probe is in flight, and else -1.
func probingTier(probes int) int {
	if probes > 0 {
		return store.Probing
	}
	return -1
}

// here converts an instant of a part's clock to the clock of the first part.
func (c *claim) here(p *part, at int64) int64 {
	if at >= algorithms.Latest {
		return at
	}
	return at - p.offset + c.parts[0].offset
}

// there converts an instant of the clock of the first part to a part's clock.
func (c *claim) there(p *part, at int64) int64 { return at - c.parts[0].offset + p.offset }

// notBefore returns when all pauses end, and how many quotas wait for the response to a probe.
func (c *claim) notBefore() (at int64, probes int) {
	at = c.parts[0].now.At
	for _, p := range c.parts {
		if p.pause.Until <= p.now.At {
			continue
		}
		at = max(at, c.here(p, p.pause.Until))
		if p.pause.Probing {
			probes++
		}
	}
	return at, probes
}

// costs returns the costs of a request by part.
func (c *claim) costs(r *store.Request) (costs [][]int64) {
	cost := r.Cost
	for _, p := range c.parts {
		n := len(p.plan.Units())
		costs, cost = append(costs, cost[:n:n]), cost[n:]
	}
	return costs
}

// earliest returns the first instant at which all parts admit a request behind what is booked, and the
// tier that decides. It is never if only a release or a settlement can help.
func (c *claim) earliest(r *store.Request, headroom int64) (at int64, tier int) {
	costs := c.costs(r)
	at, tier = max(c.parts[0].now.At, c.floor), -1
	for at < algorithms.Latest { // each round is later than the one before, at an event of some part
		before, tiers := at, 0
		for i, p := range c.parts {
			if isFree(costs[i]) {
				tiers += len(p.plan.Tiers())
				continue
			}
			e, t := p.admits(c.there(p, at), costs[i], p.leaves(headroom))
			if e = c.here(p, e); e > at {
				at, tier = e, tiers+t
			} else if t >= 0 && p.plan.Exhausted(t) {
				tier = tiers + t
			}
			tiers += len(p.plan.Tiers())
		}
		if at == before || len(c.parts) == 1 {
			break
		}
	}
	return at, tier
}

// earliestOf is earliest for a request that is decided. Processes for which places are kept have a turn that they may miss.
func (c *claim) earliestOf(r *store.Request) (at int64, tier int) {
	for _, p := range c.parts {
		p.keeps = false
	}
	at, tier = c.earliest(r, r.Leaves())
	for _, p := range c.parts {
		if p.keeps {
			p.miss(p.lease)
		}
	}
	return at, tier
}

// isFree reports whether a cost is zero.
func isFree(cost []int64) bool {
	return !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// leaves returns the headroom of a request, which is zero if it does not yield.
func (p *part) leaves(headroom int64) int64 {
	if headroom > 0 && p.headroom >= 0 {
		return p.headroom
	}
	return headroom
}

// admits returns the first instant from an instant on at which the tiers admit a cost, and places and estimates
// remain for the processes that have waited longer.
func (p *part) admits(from int64, cost []int64, headroom int64) (at int64, tier int) {
	l, m := p.total(), p.frontier()
	if from > m.At { // which must not move the clock of the total
		later := l.Clone()
		l, m = &later, p.moment(from)
	}
	at, tier = l.Earliest(m, algorithms.Request{Cost: cost, Headroom: headroom})
	switch {
	case at >= algorithms.Latest || p.plan.Exhausted(tier):
		return at, tier
	case at > p.now.At && p.hasGuests(cost):
		return algorithms.Latest, tier
	}
	if all := p.spread(cost); p.isHeld(all) {
		if p.grantsFrom > p.now.At { // not even ahead: others have not reported what they hold
			return algorithms.Latest, p.holdingTier()
		}
		if p.ahead != nil {
			with := p.of(p.own, sum(all, p.ahead))
			if e, t := l.Earliest(m, algorithms.Request{Cost: with}); e >= algorithms.Latest {
				p.keeps = true
				return e, t
			}
		}
	}
	return at, tier
}

// holdingTier returns the first tier of a unit that the plan holds.
func (p *part) holdingTier() int {
	i := 0
	for !p.plan.Holds(p.plan.UnitOf(i)) {
		i++
	}
	return i
}

func sum(a, b []int64) []int64 {
	c := slices.Clone(a)
	for i, n := range b {
		c[i] += n
	}
	return c
}

// exhausted reports whether a tier, counted over all parts, is a budget.
func (c *claim) exhausted(tier int) bool {
	p, own := c.decider(tier)
	return own >= 0 && c.parts[p].plan.Exhausted(own)
}

// decider returns the part of a tier, and its index there, which may be -1.
func (c *claim) decider(tier int) (part, own int) {
	for part = 0; part < len(c.parts)-1 && tier >= len(c.parts[part].plan.Tiers()); part++ {
		tier -= len(c.parts[part].plan.Tiers())
	}
	return part, tier
}

// isInTurn reports whether the process may reserve a request in this turn, beside those that it has reserved.
func (c *claim) isInTurn(got *result, r *store.Request) bool {
	t := &c.turn
	switch {
	case slices.ContainsFunc(c.parts, func(p *part) bool { return p.ahead != nil }): // others wait for places
		return false
	case got.at <= c.parts[0].now.At || !t.begun || t.tier < 0:
		return true
	}
	return c.amount(r) <= t.left
}

// amount returns what a request costs in the tier of the turn.
func (c *claim) amount(r *store.Request) int64 {
	t := &c.turn
	return c.costs(r)[t.part][c.parts[t.part].plan.UnitOf(t.tier)]
}

// beginTurn begins the turn with a request for an instant to come.
func (c *claim) beginTurn(r *store.Request, at int64) {
	t := &c.turn
	t.begun = true
	if t.part, t.tier = c.decider(c.ends(r, at)); t.tier < 0 {
		return
	}
	tier := c.parts[t.part].plan.Tiers()[t.tier]
	window := tier.Window
	if tier.Algorithm == algorithms.Calendar {
		window = tier.Period.Longest()
	}
	t.left = math.MaxInt64
	if window > 0 {
		t.left = int64(math.RoundToEven(c.parts[t.part].limit(t.tier) * c.horizon.Seconds() / window.Seconds()))
	}
}

// roomInBook returns how many requests the process may book, so that the rest of the book is left to others.
func (p *part) roomInBook() int {
	return min((mostBooked-len(p.book))/16, (mostRuns-runs(p.book))/4, (MostBytes-MostBytes/16-p.size)/32)
}

// admit reserves a request, and sets its result.
func (c *claim) admit(r *store.Request, got *result, notBefore int64) {
	got.verdict, got.at = store.Admitted, max(got.at, notBefore)
	sendFrom := c.parts[0].now.At + c.reply.Microseconds()
	costs := c.costs(r)
	var free []int
	if r.YieldFor == 0 { // else it would leave less headroom
		free = c.findFree(costs, max(c.floor, sendFrom))
	}
	if free != nil {
		got.at = c.here(c.parts[0], c.parts[0].book[free[0]].at)
	}
	for i, p := range c.parts {
		if isFree(costs[i]) {
			got.guards, got.probes = append(got.guards, 0), append(got.probes, false)
			continue
		}
		b := p.booking(c.there(p, got.at), costs[i], sendFrom-got.at)
		if free != nil {
			b.guard = p.takeOver(free[i], b)
		} else if f := p.reserve(b); i == 0 {
			got.flight = f
		}
		got.guards = append(got.guards, b.guard)
		got.probes = append(got.probes, c.startProbe(p, r, got.at))
		p.ahead = p.wantedBefore(p.lease) // the others have a turn
	}
	if c.room--; got.at <= c.parts[0].now.At {
		return
	}
	t := &c.turn
	if !t.begun {
		c.beginTurn(r, got.at)
	}
	if t.tier >= 0 {
		t.left -= c.amount(r)
	}
	got.nth = c.parts[0].bookedAt(c.there(c.parts[0], got.at))
}

// booking returns the booking of a request that may go an amount of time before it is sent.
func (p *part) booking(at int64, cost []int64, early int64) booking {
	b := booking{at: at, guard: p.terms.Guard.Microseconds(), cost: p.spread(cost)}
	if early > 0 && b.guard > 0 {
		b.guard += early
	}
	if p.hasOwner(b.cost, b.at) {
		o := p.ownerOf(p.lease)
		b.owner, o.expires, o.waits, o.missed = o.id, max(o.expires, p.leaseEnds), 0, 0
	}
	return b
}

// ends returns the tier that ends an instant: it refuses the first of the requests like one that do not fit
// there.
func (c *claim) ends(r *store.Request, at int64) (tier int) {
	refuses := func(count int) bool {
		more := store.Request{Cost: slices.Clone(r.Cost)}
		for u := range more.Cost {
			more.Cost[u] *= int64(count)
		}
		next, decides := c.earliest(&more, 0)
		if next > at {
			tier = decides
		}
		return next > at
	}
	tier = -1
	most := 1
	for most < mostAClaim && !refuses(most) {
		most *= 2
	}
	for least := most / 2; most-least > 1; {
		if middle := (least + most) / 2; refuses(middle) {
			most = middle
		} else {
			least = middle
		}
	}
	refuses(most)
	return tier
}

// takeOver books a request in place of a free booking, and returns how long the request counts.
func (p *part) takeOver(i int, b booking) (guard int64) {
	free := &p.book[i]
	b.guard = min(b.guard, free.guard)
	if b.guard != free.guard || !slices.Equal(b.cost, free.cost) {
		p.whole = nil
	}
	if p.pace.next = 0; i < p.pace.to {
		p.pace.used = nil
	}
	*free, p.changed = b, true
	return b.guard
}

// reserve books a request, or charges it if its instant has come.
func (p *part) reserve(b booking) (f algorithms.Flight) {
	if b.at <= p.now.At {
		return p.charge(&b)
	}
	p.chargeTo(p.total(), p.own, &b, p.owner(b.owner), true)
	p.book, p.changed = append(p.book, b), true
	return 0
}

// findFree returns by part the index of a free booking that a request can take over, or nil. In several quotas
// it takes over only what was reserved together.
func (c *claim) findFree(costs [][]int64, from int64) (free []int) {
	for i, p := range c.parts {
		if isFree(costs[i]) {
			if i == 0 {
				return nil
			}
			free = append(free, -1)
			continue
		}
		if p.full {
			return nil
		}
		alike := len(p.ledgers) == 1 || !p.isHeld(p.spread(costs[i])) // else it may stay longer than those behind it expect
		if !alike || p.pause.Until > p.now.At || p.pause.Probe {
			return nil
		}
		j := p.takeFree(c.there(p, from), p.spread(costs[i]), p.terms.Guard.Microseconds(), p.slack, len(c.parts) == 1)
		if j < 0 {
			return nil
		}
		if from = c.here(p, p.book[j].at); i > 0 && from != c.here(c.parts[0], c.parts[0].book[free[0]].at) {
			return nil
		}
		free = append(free, j)
	}
	return free
}

// startProbe makes the request for an instant the probe of a part that awaits one after a pause. It reports whether it did.
func (c *claim) startProbe(p *part, r *store.Request, at int64) bool {
	if !p.pause.Probe {
		return false
	}
	m := p.moment(c.there(p, at))
	if p.pause.StartProbe(new(store.Decision), m, p.ledger(), *r); r.Held { // its process extends the wait as long as it lives
		p.pause.Until = m.At + p.terms.Guard.Microseconds() + 2*algorithms.Micros(store.ProbeTime)
	}
	p.changed, p.urgent = true, true
	return true
}

// await records that the process waits for places or estimates, if it does not yet.
func (c *claim) await(r *store.Request) {
	costs := c.costs(r)
	for i, p := range c.parts {
		wants := slices.Clone(p.spread(costs[i]))
		if !p.waits || r.IsDryRun() || r.MaxWait == 0 || !p.isHeld(wants) {
			continue
		}
		o := p.ownerOf(p.lease)
		for u := range wants {
			if p.kinds[u] == 0 {
				wants[u] = 0
			}
		}
		if o.waits == 0 {
			o.waits = p.now.At
		}
		if o.waits == p.now.At || o.missed > 0 || !slices.Equal(o.wants, wants) {
			o.expires, o.missed, o.wants, p.changed = p.leaseEnds, 0, wants, true
		}
	}
}

// hasOwner reports whether a request of a cost that goes at an instant has an owner.
func (p *part) hasOwner(cost []int64, at int64) bool { return p.isHeld(cost) || at > p.leaseEnds }
