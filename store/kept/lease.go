package kept

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A lease is what this process holds of one quota: places in Concurrency tiers, and estimates that are not
// settled. Every transaction reports the whole amounts, so the next one corrects what a lost reply has
// granted. A nil lease holds nothing.
type lease struct {
	id int64

	mu sync.Mutex // guards all below
	// plan has the units of all amounts.
	plan *algorithms.Plan
	// held are the places and open estimates of all admitted requests, by unit.
	held []int64
	// since is by unit when the plan began to hold it as it does, by the quota's clock.
	since []int64
	// ahead are the admitted requests that had not begun in the last transaction.
	ahead []begins
	// settled are the costs of all settled estimates, by unit, and confirmed the part that the keeper has.
	settled, confirmed []int64
	// changes counts what the keeper has to learn of, and reported is the count that it has learned of.
	changes, reported int64
	// far is when the last booking begins that has a lease.
	far time.Time
	// crossed receives the percentages that calendar tiers reach.
	crossed func([]algorithms.Crossing)
}

// A begins is an admitted request that begins at an instant of the quota's clock. Its cost is what it holds.
type begins struct {
	at int64
	// guard is how long it counts, in µs.
	guard int64
	// plan is the one that it was admitted under.
	plan *algorithms.Plan
	// cost is what the request was admitted at, and held are its places and estimates under the plan.
	cost, held []int64
	// state identifies the state that has its booking.
	state int64
	// owned reports that its booking has the lease's owner.
	owned bool
}

func newLease(p *algorithms.Plan) *lease {
	n := len(p.Units())
	return &lease{id: 1 + rand.Int64N(1<<48), plan: p, held: make([]int64, n), since: make([]int64, n), settled: make([]int64, n), confirmed: make([]int64, n)}
}

// rebase translates the amounts to another plan, at an instant of the quota's clock. Estimates of a unit that is no longer
// estimated become its cost.
func (l *lease) rebase(p *algorithms.Plan, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan == p {
		return
	}
	old, all := l.plan, p.Translate(l.plan, l.held)
	l.settled, l.confirmed = p.Translate(old, l.settled), p.Translate(old, l.confirmed)
	since := make([]int64, len(all))
	for u, unit := range p.Units() {
		since[u] = now
		switch o := slices.Index(old.Units(), unit); {
		case o < 0:
		case kindOf(old, o) == kindOf(p, u):
			since[u] = l.since[o]
		case old.Estimated(o) && !p.Estimated(u):
			l.settled[u] += all[u]
			for _, b := range l.ahead {
				if b.at > now { // it costs that when it begins, if it does
					l.settled[u] -= b.held[o]
				}
			}
		}
	}
	for i := range l.ahead {
		l.ahead[i].held = p.TranslateHeld(old, l.ahead[i].held)
	}
	l.held, l.plan, l.since = p.TranslateHeld(old, l.held), p, since
}

// add adds an admitted request of the plan, at an instant of the quota's clock.
func (l *lease) add(b begins, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.plan, b.held = l.plan, l.plan.TranslateHeld(l.plan, b.cost)
	for u, n := range b.held {
		l.held[u] += n
	}
	if b.at > now {
		l.ahead = append(l.ahead, b)
	}
}

// take returns what a request of another plan, for an instant, still holds of the units that are ending, and takes it off
// what those hold that have not begun. Requests that are alike are as good as each other. It needs mu.
func (l *lease) take(p *algorithms.Plan, d store.Decision, cost []int64, ending func(u int) bool) (held []int64) {
	held = l.stillHeld(p, d.At, cost)
	for u := range held {
		if !ending(u) {
			held[u] = 0
		}
	}
	if l.find(d, cost) < 0 {
		return held
	}
	for u := range held {
		if held[u] = 0; !ending(u) {
			continue
		}
		if i := slices.IndexFunc(l.ahead, func(b begins) bool { return b.isLike(d, cost) && b.held[u] > 0 }); i >= 0 {
			held[u], l.ahead[i].held[u] = l.ahead[i].held[u], 0
		}
	}
	return held
}

// find returns the index of a request among those that have not begun, or -1. It needs mu.
func (l *lease) find(d store.Decision, cost []int64) int {
	return slices.IndexFunc(l.ahead, func(b begins) bool { return b.isLike(d, cost) })
}

func (b *begins) isLike(d store.Decision, cost []int64) bool {
	return b.at == d.At && d.Reservation != nil && b.guard == d.Reservation.Guard.Microseconds() && slices.Equal(b.cost, cost)
}

// stillHeld returns the part of an amount, of a request of another plan for an instant, that is held under the plan. It needs mu.
func (l *lease) stillHeld(p *algorithms.Plan, at int64, cost []int64) []int64 {
	held := l.plan.TranslateHeld(p, cost)
	for u := range held {
		if at < l.since[u] { // there was a plan in between
			held[u] = 0
		}
	}
	return held
}

// end takes the places of a request for an instant off the held ones, or its estimates if settled is set. Their actual cost
// is zero if nil.
func (l *lease) end(p *algorithms.Plan, d store.Decision, cost, actual []int64, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.take(p, d, cost, func(u int) bool { return l.plan.Estimated(u) == settled })
	if actual != nil {
		actual = l.stillHeld(p, d.At, actual)
	}
	for u, n := range held {
		if l.plan.Estimated(u) != settled || n == 0 && actual == nil {
			continue
		}
		l.held[u] -= n
		l.changes++
		if actual != nil {
			l.settled[u] += actual[u]
		}
	}
}

// giveBack takes a request that was not sent off the held ones. It reports whether the request had not begun, and its
// booking has no owner.
func (l *lease) giveBack(p *algorithms.Plan, d store.Decision, cost []int64) (isFree bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for u, n := range l.take(p, d, cost, func(int) bool { return true }) {
		l.held[u] -= n
		l.changes += n
	}
	if ahead := l.find(d, cost); ahead >= 0 {
		if isFree = !l.ahead[ahead].owned; !isFree {
			l.changes++
		}
		l.ahead = slices.Delete(l.ahead, ahead, ahead+1)
	}
	return isFree
}

// isIdle reports whether nothing is held and nothing to be reported.
func (l *lease) isIdle() bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Max(l.held) <= 0 && slices.Equal(l.settled, l.confirmed)
}

// lastsUntil renews the lease until an instant at least.
func (l *lease) lastsUntil(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.far) {
		l.far = at
	}
}

// renews reports whether the lease must not end, or the keeper has to learn of something.
func (l *lease) renews(now time.Time) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Max(l.held) > 0 || l.hasNews() || l.far.After(now)
}

// hasNews reports whether the keeper has to learn of something. It needs mu.
func (l *lease) hasNews() bool {
	return l.changes != l.reported || !slices.Equal(l.settled, l.confirmed)
}

// differs reports whether the last report is not what the process holds now.
func (l *lease) differs() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hasNews()
}

// doubt records that the keeper may have granted what this process does not know of.
func (l *lease) doubt() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plan.Concurrent() || l.plan.Estimates() {
		l.changes++
	}
}

// A report is what a transaction reports of a lease.
type report struct {
	held, settled, confirmed []int64
	// ahead are the requests that have not begun.
	ahead   []begins
	changes int64
}

// report returns what the process holds of requests that have begun, or whose booking was lost with its state.
func (l *lease) report(state, now int64) report {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead = slices.DeleteFunc(l.ahead, func(b begins) bool { return b.at <= now || b.state != state })
	r := report{held: slices.Clone(l.held), settled: slices.Clone(l.settled), confirmed: slices.Clone(l.confirmed), ahead: slices.Clone(l.ahead), changes: l.changes}
	for _, b := range l.ahead {
		for u, n := range b.held {
			r.held[u] -= n
		}
	}
	return r
}

// confirm records that the keeper has a report.
func (l *lease) confirm(r report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirmed, l.reported = r.settled, r.changes
}

// apply makes the state as the lease reports, and extends the lease to an instant. waits reports that callers of the
// process wait.
func (t *txn) apply(l *lease, until int64, waits bool) report {
	if l == nil {
		return report{}
	}
	l.rebase(t.plan, t.now.At)
	r := l.report(t.birth, t.now.At)
	o := t.owner(l.id)
	if o == nil {
		if slices.Max(r.held) <= 0 && slices.Equal(r.settled, r.confirmed) {
			return r
		}
		o = t.newOwner(l.id, r.confirmed)
	}
	held, settled := t.spread(r.held), t.spread(r.settled)
	less, more, actual := make([]int64, len(held)), make([]int64, len(held)), make([]int64, len(held))
	differs := false
	for u := range held {
		less[u], more[u] = max(0, o.held[u]-held[u]), max(0, held[u]-o.held[u])
		actual[u] = max(0, settled[u]-o.settled[u])
		differs = differs || less[u]+more[u]+actual[u] > 0
	}
	if differs {
		t.end(less, actual)
		t.each(more, func(l *algorithms.Ledger, cost []int64) { l.Hold(cost) })
	}
	o.held, o.settled, o.kinds = slices.Clone(held), slices.Clone(settled), t.kinds
	if o.waits > 0 && (!waits || !t.isHeld(o.wants)) {
		o.waits, t.changed = 0, true
	}
	t.dropUnknown(o.id, r.ahead)
	switch {
	case o.isDone(t.book) && slices.Equal(r.settled, r.confirmed):
		t.owners = slices.DeleteFunc(t.owners, func(o owner) bool { return o.id == l.id })
		t.changed = true
	case until > o.expires+o.slack(t.lease):
		o.expires, t.changed = until, true
	}
	return r
}

// slack returns how much of its lease an owner may have used before a transaction renews it.
func (o *owner) slack(lease int64) int64 {
	if slices.Max(o.held) > 0 {
		return lease / 8
	}
	return lease / 2 // it only waits
}

// dropUnknown frees the bookings of an owner that its process does not know of, because no reply has come or the
// requests were canceled. ahead are the requests that it knows. Those of one instant are told apart as far as their costs are
// still known.
func (t *txn) dropUnknown(id int64, ahead []begins) {
	known := make(map[int]bool, len(ahead))
	find := func(a *begins, isIt func(b *booking) bool) bool {
		first, _ := slices.BinarySearchFunc(t.book, a.at, byInstant)
		for i := first; i < len(t.book) && t.book[i].at == a.at; i++ {
			if b := &t.book[i]; b.owner == id && !known[i] && isIt(b) {
				known[i] = true
				return true
			}
		}
		return false
	}
	unlike := ahead[:0:0]
	for _, a := range ahead {
		if !a.owned {
			continue
		}
		cost := t.plan.Translate(a.plan, a.cost)
		if !find(&a, func(b *booking) bool { return b.guard == a.guard && slices.Equal(t.of(t.own, b.cost), cost) }) {
			unlike = append(unlike, a)
		}
	}
	for _, a := range unlike {
		find(&a, func(*booking) bool { return true })
	}
	for i := range t.book {
		if b := &t.book[i]; b.owner == id && !known[i] {
			b.free, b.owner = true, 0
			t.changed, t.whole = true, nil
		}
	}
	t.book = trim(t.book)
}

// end ends places and estimates of requests in all ledgers. The actual cost of the estimates lands now.
func (t *txn) end(held, actual []int64) {
	t.each(held, func(l *algorithms.Ledger, cost []int64) { l.Release(cost) })
	for i := range t.ledgers {
		l, cost := &t.ledgers[i].ledger, t.of(i, actual)
		if l.Plan().Estimates() { // else it would only move the ledger's clock
			l.Settle(t.now, t.of(i, held), cost)
		}
		if guest := guestCost(l.Plan(), cost); guest != nil {
			l.Count(t.now, guest)
		}
	}
}

// guestCost returns the part of a cost in the units that a plan does not estimate, or nil if there is none.
func guestCost(p *algorithms.Plan, cost []int64) (guest []int64) {
	for u, n := range cost {
		if n > 0 && !p.Estimated(u) {
			if guest == nil {
				guest = make([]int64, len(cost))
			}
			guest[u] = n
		}
	}
	return guest
}

// ownerOf returns the owner of a lease, which it adds if there is none.
func (t *txn) ownerOf(l *lease) *owner {
	if o := t.owner(l.id); o != nil {
		return o
	}
	l.mu.Lock()
	confirmed := slices.Clone(l.confirmed)
	l.mu.Unlock()
	return t.newOwner(l.id, confirmed)
}

// newOwner adds an owner that has reported settled estimates before.
func (t *txn) newOwner(id int64, settled []int64) *owner {
	n := len(t.kinds)
	t.owners = append(t.owners, owner{
		id: id, expires: t.now.At + 1, kinds: t.kinds, wants: make([]int64, n), held: make([]int64, n), settled: slices.Clone(t.spread(settled)),
	})
	t.changed = true
	return &t.owners[len(t.owners)-1]
}

// hold adds the places and estimates of a request that begins now to those of the lease's owner.
func (t *txn) hold(l *lease, until int64, cost []int64) {
	if l == nil || !t.isHeld(cost) {
		return
	}
	o := t.ownerOf(l)
	o.expires = max(o.expires, until)
	o.add(cost)
}

// isHeld reports whether a request of a cost holds places or estimates.
func (t *txn) isHeld(cost []int64) bool {
	for u, n := range cost {
		if n > 0 && t.kinds[u] != 0 {
			return true
		}
	}
	return false
}

// mostSilent is for how many leases without a transaction the time does not count for leases.
const mostSilent = 12

// pauseLeases extends the leases after a time without transactions. While nobody can reach the keeper, nobody can renew a
// lease, so such a time counts as a third of a lease at most: a process that lives has renewed its own within a quarter.
func (t *txn) pauseLeases(lease int64) {
	if len(t.owners) == 0 {
		return
	}
	silent := t.now.At - t.last
	if silent > lease/4 { // this process has reached the keeper
		t.changed = true
	}
	if by := silent - lease/3; by > 0 && silent <= mostSilent*lease {
		for i := range t.owners {
			t.owners[i].expires += by
		}
	}
}

// expireOwners ends the leases of processes that do not live any more. Their places are free, their
// estimates become the cost of the requests, and others may take over their bookings.
func (t *txn) expireOwners() {
	for i := range t.owners {
		o := &t.owners[i]
		if o.expires > t.now.At {
			continue
		}
		t.dropUnknown(o.id, nil)
		t.end(o.held, o.estimates())
		o.id = 0
	}
	n := len(t.owners)
	t.owners = slices.DeleteFunc(t.owners, func(o owner) bool { return o.id == 0 })
	if len(t.owners) < n {
		t.changed, t.whole = true, nil
	}
}

// isDone reports whether an owner has nothing any more.
func (o *owner) isDone(book []booking) bool {
	return o.waits == 0 && slices.Max(o.held) <= 0 && !slices.ContainsFunc(book, func(b booking) bool { return b.owner == o.id })
}

// mostMissed is how long a place is kept for a process that waits and does not ask, in µs.
const mostMissed = 2_000_000

// before reports whether an owner has a place in the line before the owner of a lease.
func (t *txn) before(o *owner, l *lease) bool {
	since := t.now.At + 1
	if own := t.owner(l.id); own != nil && own.waits > 0 {
		since = own.waits
	}
	return o.id != l.id && o.waits > 0 && o.waits < since && (o.missed == 0 || o.missed > t.now.At-mostMissed)
}

// wantedBefore returns what processes want which have waited longer for places or estimates, or nil.
func (t *txn) wantedBefore(l *lease) (wanted []int64) {
	for i := range t.owners {
		if o := &t.owners[i]; t.before(o, l) {
			if wanted == nil {
				wanted = make([]int64, len(o.wants))
			}
			wanted = sum(wanted, o.wants)
		}
	}
	return wanted
}

// miss records that places are kept for the processes that have waited longer.
func (t *txn) miss(l *lease) {
	for i := range t.owners {
		if o := &t.owners[i]; o.missed == 0 && t.before(o, l) {
			o.missed, t.changed = t.now.At, true
		}
	}
}
