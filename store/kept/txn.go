package kept

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A txn is the state of a quota within a transaction, at one moment.
type txn struct {
	state
	plan *algorithms.Plan
	// base is the text of the plan's base.
	base string
	now  algorithms.Moment
	// own is the index of the plan's ledger.
	own int
	// index has for each ledger the indexes of its plan's units among the state's units. It is nil if there
	// is one ledger.
	index [][]int
	// kinds are how the plan holds each of the state's units.
	kinds []int64
	// lease is the length of a lease, in µs.
	lease int64
	// size is the length of the value, and known the number of owners in it that live.
	size, known int
	// whole is the plan's ledger with the bookings, or nil while it is not needed.
	whole *algorithms.Ledger
	// pace finds the free bookings that keep the pace of rates that are learned.
	pace pace

	// changed reports that the state must be written, and urgent that others should learn of it at once.
	changed, urgent bool
	// unwritten reports that there is no value yet.
	unwritten bool
	// lost reports that the state is not the one that this process knew, or an older one.
	lost bool
	// ends is an instant from which the state that was written decides as none would.
	ends int64
}

// idleRecord is how long a plan without decisions keeps a ledger of its own beside others, in µs.
const idleRecord = 60_000_000

// mostRecords is how many plans have ledgers of their own at a time, and fewest how many have them in a value that is large.
// Processes that adapt their limits may decide by a plan each, and every request is charged to all ledgers.
const (
	mostRecords   = 8
	fewestRecords = 2
)

// begin reads a value of a quota.
func begin(value []byte, v View, q *quota) (*txn, error) {
	t, known := &txn{plan: q.plan, base: q.base, size: len(value)}, q.remembers()
	if value != nil {
		var err error
		if t.state, err = parse(value); err == nil {
			err = t.decode()
		}
		if err != nil {
			return nil, err
		}
	}
	t.now, t.changed = t.state.now(v.Wall, known.at)
	t.checkClock(q.clock.Shows(v.Sent))
	if q.store.options.Ahead {
		t.findLoss(value != nil, known)
	}
	if err := t.choose(q); err != nil {
		return nil, err
	}
	t.lease = q.store.options.Lease.Microseconds()
	t.pauseLeases(t.lease)
	t.commit()
	t.expireOwners()
	if q.store.options.Ahead && len(t.owners) == 0 {
		t.holdNothing()
	}
	t.known = len(t.owners)
	return t, nil
}

// holdNothing frees all places and estimates: no process has any. What the ledgers of releases that hold a unit in another way
// have counted then ends, too.
func (t *txn) holdNothing() {
	for i := range t.ledgers {
		l := &t.ledgers[i].ledger
		n := len(l.Plan().Units())
		all := slices.Repeat([]int64{math.MaxInt64}, n)
		l.Release(all)
		if l.Plan().Estimates() {
			l.Settle(t.now, all, make([]int64, n))
		}
	}
}

// checkClock compares the clock with the earliest time that it may show by the process's estimate. If that is later,
// the keeper's clock was set back, by less than has passed since the last transaction. The offset then changes a little,
// so that all processes notice.
func (t *txn) checkClock(shows int64) {
	if shows > t.now.At {
		t.now.At, t.offset, t.changed = t.now.At+1, t.offset+1, true
	}
	if t.changed {
		t.takesFrom = t.frontier().At
	}
}

// findLoss finds out whether the state is another than the process knew. It restores the pause that the
// process knows of.
func (t *txn) findLoss(exists bool, known *known) {
	t.unwritten = !exists
	// What decided as none would may have been forgotten, and another process may have begun anew since.
	wasForgotten := t.now.Wall >= known.expires && (!exists || t.birth != known.birth)
	// Others may have written an older state often enough to hide that, but not the pauses that it lacks.
	older := t.revision < known.revision || t.pause.Epoch < known.pause.Epoch
	t.lost = known.birth != 0 && !wasForgotten && (t.birth != known.birth || older)
	if !exists || t.lost && t.birth == known.birth {
		t.birth, t.urgent = 1+rand.Int64N(1<<48), true // processes that knew another state then learn of it
	}
	if !t.lost {
		return
	}
	t.changed = true
	if known.pause.Epoch > t.pause.Epoch {
		by := t.offset - known.offset
		t.pause, t.level, t.urgent = known.pause, known.level, true
		t.pause.Until += by
		t.pause.Banned += by
	}
}

// choose finds the plan's ledger. If there is none, it converts the ledger of the plan that this one replaces, or else
// the one that shows the most use.
func (t *txn) choose(q *quota) error {
	older, err := t.meet(q)
	if err != nil {
		return err
	}
	text := q.text
	is := func(r record) bool { return r.text == text }
	switch t.own = slices.IndexFunc(t.ledgers, is); {
	case t.own >= 0:
		if t.ledgers[t.own].plan != t.plan { // the same tiers
			if err := t.ledgers[t.own].rebind(t.plan); err != nil {
				return err
			}
		}
	case len(t.ledgers) == 0:
		t.ledgers = []record{{text: text, plan: t.plan, ledger: fresh(t.plan)}}
		t.own = 0
	default:
		t.own = 0
		t.indexUnits()
		t.commit() // at instants that the other plans have decided
		from, kept := t.ledgers, t.ledgers
		if len(older) > 0 {
			from, kept = t.split(older)
			t.changed, t.urgent = true, true
		} else if i := slices.IndexFunc(t.ledgers, func(r record) bool { return r.text == q.replaces }); i >= 0 {
			if from = t.ledgers[i : i+1]; t.size > MostBytes/2 { // else it stays for those that decide by it
				_, kept = t.split([]int{i})
			}
		}
		t.remap(append(slices.Clip(kept), record{text: text, plan: t.plan, ledger: t.convert(from)}))
	}
	t.ledgers[t.own].used = t.now.At
	if len(t.ledgers) > 1 {
		t.remap(t.recent(text))
		t.own = slices.IndexFunc(t.ledgers, is)
	}
	t.indexUnits()
	return nil
}

// split returns the ledgers with some indexes, and the others.
func (t *txn) split(some []int) (from, others []record) {
	for i, r := range t.ledgers {
		if slices.Contains(some, i) {
			from = append(from, r)
		} else {
			others = append(others, r)
		}
	}
	return from, others
}

// recent returns the ledgers that are kept beside that of a text: of the plans that were used last, in their order.
func (t *txn) recent(text string) []record {
	most := mostRecords
	if t.size > MostBytes/2 {
		most = fewestRecords
	}
	recent := slices.SortedFunc(slices.Values(t.ledgers), func(a, b record) int { return cmp.Compare(b.used, a.used) })
	oldest := max(t.now.At-idleRecord, recent[min(most, len(recent))-1].used)
	return slices.DeleteFunc(slices.Clone(t.ledgers), func(r record) bool { return r.text != text && r.used < oldest })
}

// heldOtherwise returns what the owners hold in the units that their plans hold as one plan does, and another does not.
func (t *txn) heldOtherwise(p, other *algorithms.Plan) (held []int64) {
	units, _ := t.units()
	for u, name := range p.Units() {
		i, kind, n := slices.Index(units, name), kindOf(p, u), int64(0)
		for _, o := range t.owners {
			if i >= 0 && o.kinds[i] == kind && kind != kindIn(other, name) {
				n += o.held[i]
			}
		}
		held = append(held, n)
	}
	return held
}

// convert returns a ledger for the plan, from the ledgers of other plans. What the owners hold is theirs under any plan. A
// log that is short may not contain all use.
func (t *txn) convert(from []record) (most algorithms.Ledger) {
	var used int64 = -1
	for i := range from {
		old := from[i].ledger.Clone()
		held := t.heldOtherwise(from[i].plan, t.plan)
		old.Release(held)
		old.Settle(t.now, held, make([]int64, len(held)))
		l, sum := t.plan.Convert(old, t.now), int64(0)
		l.Hold(t.heldOtherwise(t.plan, from[i].plan))
		for _, u := range l.Usage(t.now) {
			sum += u.Used
		}
		if sum > used {
			most, used = l, sum
		}
	}
	return most
}

// rebind makes the ledger one of an equal plan.
func (r *record) rebind(p *algorithms.Plan) error {
	data, _ := r.ledger.AppendBinary(nil)
	r.plan, r.data = p, data
	return r.decode()
}

// remap replaces the ledgers, and translates the costs of the book and the owners to their units.
func (t *txn) remap(ledgers []record) {
	old, _ := t.units()
	t.ledgers = ledgers
	now, _ := t.units()
	if t.own = len(ledgers) - 1; slices.Equal(old, now) {
		return
	}
	translate := func(cost []int64) []int64 {
		to := make([]int64, len(now))
		for i, u := range now {
			if j := slices.Index(old, u); j >= 0 {
				to[i] = cost[j]
			}
		}
		return to
	}
	for i := range t.book {
		t.book[i].cost = translate(t.book[i].cost)
	}
	for i := range t.owners {
		o := &t.owners[i]
		o.kinds, o.wants, o.held, o.settled = translate(o.kinds), translate(o.wants), translate(o.held), translate(o.settled)
	}
}

func (t *txn) indexUnits() {
	units, _ := t.units()
	t.index, t.kinds = nil, make([]int64, len(units))
	for i := range t.ledgers {
		p := t.ledgers[i].plan
		index := make([]int, len(p.Units()))
		for u, name := range p.Units() {
			index[u] = slices.Index(units, name)
			if i == t.own {
				t.kinds[index[u]] = kindOf(p, u)
			}
		}
		if len(t.ledgers) > 1 {
			t.index = append(t.index, index)
		}
	}
}

// fresh returns the ledger of a quota that has no value. Nothing is used, except for what is unknown.
func fresh(p *algorithms.Plan) algorithms.Ledger {
	l := p.NewLedger()
	if start := p.Start(); !start.IsZero() {
		l.AssumeUsed(algorithms.Moment{At: start.UnixMicro(), Wall: start.UnixMicro()})
	}
	return l
}

// spread returns a cost of the plan in the state's units.
func (t *txn) spread(cost []int64) []int64 {
	if t.index == nil {
		return cost
	}
	all := make([]int64, len(t.kinds))
	for u, n := range cost {
		all[t.index[t.own][u]] = n
	}
	return all
}

// of returns a cost in the state's units as a cost of the i-th plan.
func (t *txn) of(i int, all []int64) []int64 {
	if t.index == nil {
		return all
	}
	cost := make([]int64, len(t.index[i]))
	for u, j := range t.index[i] {
		cost[u] = all[j]
	}
	return cost
}

// ledger returns the plan's ledger.
func (t *txn) ledger() *algorithms.Ledger { return &t.ledgers[t.own].ledger }

// each calls f with each ledger, and the cost in the units of its plan.
func (t *txn) each(cost []int64, f func(l *algorithms.Ledger, cost []int64)) {
	for i := range t.ledgers {
		f(&t.ledgers[i].ledger, t.of(i, cost))
	}
	t.changed, t.whole = true, nil
}

// moment returns the moment at which the quota's clock shows at.
func (t *txn) moment(at int64) algorithms.Moment {
	return algorithms.Moment{At: at, Wall: t.now.Wall + at - t.now.At}
}

// at returns the moment at which the keeper's clock showed a time, but no later than now. The clock may
// have stepped back since.
func (t *txn) at(wall int64) algorithms.Moment {
	wall = min(wall, t.now.Wall)
	return algorithms.Moment{At: wall + t.offset, Wall: wall}
}

// commit charges the bookings whose instant has come.
func (t *txn) commit() {
	n := 0
	for ; n < len(t.book) && t.book[n].at <= t.now.At; n++ {
		if b := &t.book[n]; !b.free {
			t.charge(b)
		}
	}
	t.book = t.book[n:]
}

// charge charges a booking, at its instant, to all ledgers, and adds what it holds to its owner. It returns the
// Flight in the plan's ledger.
func (t *txn) charge(b *booking) (f algorithms.Flight) {
	o := t.owner(b.owner)
	for i := range t.ledgers {
		g := t.chargeTo(&t.ledgers[i].ledger, i, b, o, false)
		if i == t.own {
			f = g
		}
	}
	if o != nil {
		o.add(b.cost)
	}
	t.changed, t.whole = true, nil
	return f
}

// chargeTo charges a booking of an owner, or nil, to a ledger that is like the i-th. With guests it charges estimates
// also if its plan has none.
func (t *txn) chargeTo(l *algorithms.Ledger, i int, b *booking, o *owner, guests bool) (f algorithms.Flight) {
	p, cost, alone := l.Plan(), t.of(i, b.cost), len(t.ledgers) == 1
	if alone && !p.Estimates() && !p.Concurrent() {
		return l.Charge(t.moment(b.at), algorithms.Request{Cost: cost, Guard: b.guard})
	}
	var kinds []int64 // how its process holds it, which may have booked it under another plan
	switch {
	case o != nil:
		kinds = t.of(i, o.kinds)
	case alone && b.free: // one that takes it over may hold it
		kinds = t.kinds
	}
	rest, open, free := divide(p, cost, kinds, guests)
	f = l.Charge(t.moment(b.at), algorithms.Request{Cost: rest, Guard: b.guard})
	if !isFree(open) {
		l.Charge(t.moment(b.at), algorithms.Request{Cost: open, Guard: b.guard, Held: true})
	}
	l.Release(free) // its places are known to its own release only
	return f
}

// divide divides a cost of a plan, of a request whose own plan holds the units as kinds, into what is charged, the open
// estimates, and the places that are not held.
func divide(p *algorithms.Plan, cost, kinds []int64, guests bool) (rest, open, free []int64) {
	rest, open, free = make([]int64, len(cost)), make([]int64, len(cost)), make([]int64, len(cost))
	for u, n := range cost {
		kind := int64(0)
		if kinds != nil {
			kind = kinds[u]
		}
		switch {
		case kind == estimates && p.Estimated(u):
			open[u] = n
		case kind != estimates || guests:
			rest[u] = n
		}
		if kind == 0 {
			free[u] = n
		}
	}
	return rest, open, free
}

// total returns the plan's ledger with all bookings. Free bookings count: what was booked behind them
// relies on them, and others may take them over.
func (t *txn) total() *algorithms.Ledger {
	if t.whole == nil {
		l := t.ledger().Clone()
		for i := range t.book {
			t.chargeTo(&l, t.own, &t.book[i], t.owner(t.book[i].owner), true)
		}
		if guests := t.guests(); guests != nil {
			l.Charge(t.frontier(), algorithms.Request{Cost: guests})
		}
		t.whole = &l
	}
	return t.whole
}

// guests returns the open estimates of other releases in units that the plan does not estimate, or nil.
func (t *txn) guests() (open []int64) {
	if len(t.ledgers) == 1 {
		return nil
	}
	all := make([]int64, len(t.kinds))
	for i := range t.owners {
		all = sum(all, t.owners[i].estimates())
	}
	return guestCost(t.plan, t.of(t.own, all))
}

// frontier is the moment of the last booking, or now.
func (t *txn) frontier() algorithms.Moment {
	if n := len(t.book); n > 0 {
		return t.moment(t.book[n-1].at)
	}
	return t.now
}

// take admits a request now if the tiers do, and books nothing ahead.
func (p *part) take(r store.Request) store.Decision {
	d, all := store.Decision{Tier: -1, Epoch: p.pause.Epoch, Level: p.level}, p.spread(r.Cost)
	switch {
	case p.pause.Until > p.now.At:
		p.pause.Refuse(&d, p.now, p.ledger(), r)
	case r.IsDryRun():
		pause.DryRun(&d, p.now, p.ledger(), r)
	case p.isHeld(all) && p.grantsFrom > p.now.At:
		d.Wait = p.now.Until(p.grantsFrom)
	case p.hasGuests(r.Cost) && p.isFull(r):
		d.Wait = store.RecheckInterval
	case pause.Take(&d, p.now, p.ledger(), r):
		p.hold(p.lease, p.leaseEnds, all)
		for i := range p.ledgers {
			if i != p.own {
				p.chargeTo(&p.ledgers[i].ledger, i, &booking{at: p.now.At, guard: algorithms.Micros(r.Guard), cost: all}, p.ownerIf(all), false)
			}
		}
		p.changed, p.whole = true, nil
		if p.pause.Probe {
			p.pause.StartProbe(&d, p.now, p.ledger(), r)
		}
	}
	return d
}

// hasGuests reports whether other releases have estimates, open or booked, in a unit of a cost that the plan does not
// estimate. When they are settled is not known, so nothing is reserved behind them.
func (t *txn) hasGuests(cost []int64) bool {
	if len(t.ledgers) == 1 {
		return false
	}
	all := make([]int64, len(t.kinds))
	for i := range t.owners {
		all = sum(all, t.owners[i].estimates())
	}
	for i := range t.book {
		if o := t.owner(t.book[i].owner); o != nil {
			for u, n := range t.book[i].cost {
				if o.kinds[u] == estimates {
					all[u] += n
				}
			}
		}
	}
	guests := guestCost(t.plan, t.of(t.own, all))
	for u, n := range cost {
		if n > 0 && guests != nil && guests[u] > 0 {
			return true
		}
	}
	return false
}

// isFull reports whether the tiers do not admit a request now beside the guests.
func (p *part) isFull(r store.Request) bool {
	at, _ := p.total().Earliest(p.now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
	return at > p.now.At
}

// ownerIf returns the process's owner if a request of a cost has one.
func (p *part) ownerIf(cost []int64) *owner {
	if p.lease == nil || !p.isHeld(cost) {
		return nil
	}
	return p.owner(p.lease.id)
}

// crossings returns the percentages that calendar tiers have reached with what was charged.
func (t *txn) crossings() []algorithms.Crossing {
	if !t.changed {
		return nil
	}
	return t.ledger().Crossings(t.now)
}

// finish prepares the state for being written, and returns it.
func (t *txn) finish() Write {
	if !t.changed {
		if t.unwritten { // another process may choose another birth
			t.birth = 0
		}
		return Write{}
	}
	t.last = t.now.At
	t.revision++
	t.land()
	t.ends = t.expires()
	return Write{Value: t.encode(), Expires: t.ends - t.offset, Urgent: t.urgent}
}

// land lands in all ledgers what has landed by now, by the date that the keeper's clock shows now.
func (t *txn) land() {
	for i := range t.ledgers {
		l := &t.ledgers[i].ledger
		l.Earliest(t.now, algorithms.Request{Cost: make([]int64, len(l.Plan().Units()))})
	}
}

// expires returns an instant from which the state decides as none would.
func (t *txn) expires() int64 {
	at := max(t.now.At, t.pause.Until, t.grantsFrom)
	if t.pause.Probe || t.level > 0 {
		at += afterPause
	}
	for _, o := range t.owners { // see pauseLeases
		at = max(at, o.expires+mostSilent*t.lease)
	}
	ends := max(at, t.frontier().At) // of the last lease or booking
	for i := range t.ledgers {
		r := &t.ledgers[i]
		if at = max(at, t.fresh(&r.ledger, ends)); r.knows() || len(t.book) > 0 && r.plan.Learns() {
			at = max(at, t.now.At+learnedFor)
		}
	}
	return min(at, algorithms.Latest)
}

// fresh returns an instant from which a ledger decides as a new one would, if its last request, place and estimate
// end by another instant.
func (t *txn) fresh(l *algorithms.Ledger, ends int64) (at int64) {
	tiers, after := l.Plan().Tiers(), ends+l.Plan().Guard().Microseconds()
	if len(t.book) > 0 { // a bound, which takes no time
		for _, tier := range tiers {
			at = max(at, after+lasting(tier))
		}
		return at
	}
	for i, u := range l.Usage(t.now) {
		if u.Fresh == algorithms.Never {
			u.Fresh = after + lasting(tiers[i])
		}
		at = max(at, u.Fresh)
	}
	return at
}

// afterPause is how long a quota without requests knows that a probe is due, or how often it has backed off, in µs.
const afterPause = 3_600_000_000

// lasting returns a bound of how long a tier counts a request.
func lasting(t algorithms.Tier) int64 {
	if t.Algorithm == algorithms.Calendar {
		return 2 * algorithms.Micros(t.Period.Longest())
	}
	window := algorithms.Micros(t.Window)
	return min(2*window+window*(t.Burst/max(1, t.Limit)), algorithms.Latest)
}

// cancel refunds a request, but for its places and estimates, which the lease reports.
func (t *txn) cancel(wall int64, d store.Decision, cost []int64) {
	if t.plan.Concurrent() || t.plan.Estimates() {
		t.ledger().Hold(cost)
	}
	t.ledger().Cancel(t.at(wall), d.Flight, cost)
}

// refund takes a reservation of a plan out of the ledgers, or out of the book if it is booked and has no owner. The report
// of its process takes out what has one.
func (t *txn) refund(of *algorithms.Plan, r *store.Reservation, cost []int64, booked bool) {
	b := booking{at: r.At, guard: r.Guard.Microseconds(), cost: t.spread(t.plan.Translate(of, cost))}
	if booked && t.state.giveBack(&b) {
		t.changed, t.whole = true, nil
		return
	}
	if b.at > t.now.At { // no ledger has it yet
		return
	}
	for i := range t.ledgers {
		l := &t.ledgers[i].ledger
		p, cost := l.Plan(), t.of(i, b.cost)
		if len(t.ledgers) > 1 || p.Estimates() {
			cost, _, _ = divide(p, cost, kindsIn(p, of), false)
		}
		if l.Refund(t.now, b.at, b.guard, cost, false) {
			t.changed, t.whole = true, nil
		}
	}
}

// kindsIn returns how another plan holds the units of a plan.
func kindsIn(p, of *algorithms.Plan) (kinds []int64) {
	for _, name := range p.Units() {
		kinds = append(kinds, kindIn(of, name))
	}
	return kinds
}

// tiers returns the status of the tiers, with what is booked.
func (t *txn) tiers() []store.TierStatus {
	tiers := store.Tiers(t.ledger(), t.now)
	if len(t.book) == 0 {
		return tiers
	}
	for _, b := range t.book {
		cost := t.of(t.own, b.cost)
		for i := range tiers {
			n := cost[t.plan.UnitOf(i)]
			tiers[i].Used += n
			tiers[i].InFlight += n
		}
	}
	ends := t.now.Until(t.frontier().At)
	for i, u := range t.total().Usage(t.frontier()) {
		s := &tiers[i]
		s.Remaining = max(0, s.Limit-s.Used)
		s.Limited, s.RetryAfter, s.ResetAfter = true, max(s.RetryAfter, ends, t.now.Until(u.Next)), max(s.ResetAfter, t.now.Until(u.Fresh))
	}
	return tiers
}

// checkSize returns an error if a value is too large, or has no room for one more process.
func (t *txn) checkSize(value []byte, ahead bool) error {
	switch {
	case !ahead:
	case len(t.owners) > t.known && len(appendOwners(nil, t.owners, t.last)) > MostBytes*3/4:
		return fmt.Errorf("%d processes hold or wait for places or estimates of the quota, and its value has no room for more: let fewer processes share it, or use package distributed", t.known)
	case len(value) > MostBytes:
		return fmt.Errorf("the value of the quota has %d bytes, and %d at most: use shorter windows, or package distributed", len(value), MostBytes)
	}
	return nil
}

// takeFree returns the index of the first free booking from an instant on that a request can take over, or
// -1. The request counts for its guard, less slack at most, and no longer than the booking. The farther away the booking
// is, the less the slack: else the clocks part until then by more than the request is valid. The booking may move to keep the
// pace if moves is set.
func (t *txn) takeFree(from int64, cost []int64, guard int64, slack time.Duration, moves bool) int {
	for i := range t.book {
		b := &t.book[i]
		if b.free && b.at >= max(from, t.takesFrom) && fits(cost, b.cost) {
			shorter := max(0, slack-timing.Parting(t.now.Until(b.at)))
			if b.guard >= guard-shorter.Microseconds() && t.pace.keeps(t, i, cost, moves) {
				return i
			}
		}
	}
	return -1
}

// limit returns how many units a tier admits in a window, now.
func (t *txn) limit(tier int) float64 {
	if rates := t.ledger().LearnedRates(t.now); rates != nil && rates[tier] != nil {
		return rates[tier].Rate
	}
	return float64(t.plan.Tiers()[tier].Limit)
}

// meet compares the plan of a quota with those of the same base that the state has. It returns the indexes of those that
// are older, or the error behind.
func (t *txn) meet(q *quota) (older []int, err error) {
	if !q.given.Follows() {
		return nil, nil
	}
	own, newest := q.given.Followed(), q.given.Followed()
	for i := range t.ledgers {
		_, base, f, err := splitText(t.ledgers[i].text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", ErrUnsound, err)
		case base != q.base:
		case isNewer(f, newest):
			newest = f
		case isNewer(own, f):
			older = append(older, i)
		}
	}
	if isNewer(newest, own) {
		return nil, &behind{q, newest}
	}
	return older, nil
}
