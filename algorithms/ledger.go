package algorithms

import (
	"slices"
	"time"
)

// A Moment is one instant on two clocks, in microseconds.
type Moment struct {
	// At is the time of a clock that never runs backwards, from any origin.
	At int64

	// Wall is Unix time, which may step. Only tiers whose windows follow the wall clock use it.
	Wall int64
}

// on returns the moment at which the first clock shows at.
func (m Moment) on(at int64) Moment { return Moment{at, m.Wall + at - m.At} }

// Later returns the moment at which the first clock shows at, or m if that has passed.
func (m Moment) Later(at int64) Moment { return m.on(max(m.At, at)) }

// A Ledger is the state of one quota. It decides over all tiers of its plan at once. Its methods
// take the present moment. A moment before that of an earlier call counts as the latest one, and
// so a ledger's time never runs backwards. A Ledger is not safe for concurrent use.
//
// The state is a list of words: for each unit how much is in flight, then the words of each tier,
// then the slots of the requests in flight, the oldest first. A tier that keeps stamps has a ring
// beside the list.
type Ledger struct {
	plan     *Plan
	word     []int64
	rings    *[][]int64 // nil if no tier needs one
	readings *[]reading // of each tier; nil before the first report
	last     int64      // the latest instant of a call
	credit   int32      // see GiveCredit
	probed   bool       // see Probed

	// forecasting: the ledger forecasts. Groups of stamps leave with their first stamp, and every
	// request may be a probe after a reset.
	forecasting bool
}

// NewLedger returns the ledger of an unused quota.
func (p *Plan) NewLedger() Ledger {
	l := Ledger{plan: p}
	oneSlot := p.stride()
	if p.guard == 0 {
		oneSlot = 0
	}
	l.word = make([]int64, p.base, p.base+oneSlot)
	if p.rings > 0 {
		rings := make([][]int64, p.rings)
		l.rings = &rings
	}
	return l
}

// Clone returns a copy. It shares only the plan with l.
func (l *Ledger) Clone() Ledger {
	c := *l
	c.word = slices.Clone(l.word)
	if l.rings != nil {
		rings := make([][]int64, len(*l.rings))
		for i, r := range *l.rings {
			rings[i] = slices.Clone(r)
		}
		c.rings = &rings
	}
	if l.readings != nil {
		readings := slices.Clone(*l.readings)
		c.readings = &readings
	}
	return c
}

func (l *Ledger) ring(s site) *[]int64 { return &(*l.rings)[s.ring] }

// Plan returns the ledger's plan.
func (l *Ledger) Plan() *Plan { return l.plan }

// A Request is a cost that a ledger decides on.
type Request struct {
	// Cost is an amount of each unit of the plan.
	Cost []int64

	// Headroom is the percentage of every tier's capacity, rounded down, that must remain for
	// others, as far as the cost itself leaves it. Budgets have no headroom: a request that a
	// budget refuses is not served later.
	Headroom int64

	// Guard is how long the request is in flight, in microseconds: a resolution at least and
	// MaxWindow at most. If zero, the plan's.
	Guard int64

	// Held is true if the request may be landed or canceled before its guard has passed.
	Held bool
}

// Earliest returns the first instant from now on at which every tier admits the request,
// behind everything that has landed or is in flight, and the tier that decides, or -1 if the
// instant is now. A budget without room decides before all others. The instant is Never if
// only a release can help. Earliest changes nothing but the ledger's clock.
func (l *Ledger) Earliest(now Moment, r Request) (at int64, tier int) {
	return l.earliest(l.advance(now), r.Cost, r.Headroom)
}

func (l *Ledger) earliest(now Moment, cost []int64, headroom int64) (at int64, tier int) {
	at, tier = now.At, -1
	for i := range l.plan.rules {
		n := cost[l.plan.unit[i]]
		if n == 0 {
			continue
		}
		if e := l.admits(i, now, l.withHeadroom(i, n, headroom)); e > at {
			at, tier = e, i
		}
	}
	if tier >= 0 && l.plan.budgets {
		tier = l.exhausted(now, cost, tier)
	}
	return at, tier
}

// exhausted returns the first budget that cannot admit the cost now, or else the tier that
// decides.
func (l *Ledger) exhausted(now Moment, cost []int64, tier int) int {
	for i, t := range l.plan.tiers {
		if n := cost[l.plan.unit[i]]; t.Budget && n > 0 && l.admits(i, now, n) > now.At {
			return i
		}
	}
	return tier
}

// withHeadroom returns n units of a tier plus the headroom of the request.
func (l *Ledger) withHeadroom(tier int, n, headroom int64) int64 {
	if headroom == 0 || l.plan.tiers[tier].Budget {
		return n
	}
	capacity := l.plan.tiers[tier].Capacity()
	return n + max(0, min(capacity*headroom/100, capacity-n))
}

// Take charges the cost of a request if every tier admits the request now, and otherwise
// changes nothing. It returns the instant and the tier of Earliest. If the cost was charged,
// the tier is -1.
func (l *Ledger) Take(now Moment, r Request) (f Flight, at int64, tier int) {
	now = l.advance(now)
	if at, tier = l.earliest(now, r.Cost, r.Headroom); tier < 0 {
		f = l.charge(now, r.Cost, r.Guard, r.Held)
	}
	return f, at, tier
}

// Charge charges the cost of a request, whether or not the tiers admit it.
func (l *Ledger) Charge(now Moment, r Request) Flight {
	return l.charge(l.advance(now), r.Cost, r.Guard, r.Held)
}

func (l *Ledger) charge(now Moment, cost []int64, guard int64, held bool) Flight {
	l.DropCredit()
	if l.readings != nil {
		l.probe(now, cost)
	}
	l.start(now, cost)
	if held {
		l.addEstimates(cost, 1)
	}
	if guard == 0 {
		guard = l.plan.guard
	}
	if guard == 0 {
		l.landCost(now, cost, held)
		l.proveArrival(now.At, cost, held)
		return Landed
	}
	return l.addInFlight(now.At, min(max(guard, 1<<l.plan.resolution), maxWindowUS), cost, held)
}

// Count charges a cost that the provider has already counted. It lands now.
func (l *Ledger) Count(now Moment, cost []int64) { l.count(l.advance(now), cost) }

func (l *Ledger) count(now Moment, cost []int64) {
	l.DropCredit()
	l.start(now, cost)
	l.landCost(now, cost, false)
}

// AssumeUsed charges every tier with all its remaining units, as if the caller had sent them until
// now and they landed a guard later. Concurrency tiers stay as they are, because the ledger has the
// exact number of open units.
func (l *Ledger) AssumeUsed(now Moment) {
	now = l.advance(now.on(now.At + l.plan.guard))
	l.DropCredit()
	for i, r := range l.plan.rules {
		if _, ok := r.(releaser); ok {
			continue
		}
		left := max(0, l.plan.tiers[i].Capacity()-r.used(l, now))
		if d, ok := r.(sender); ok {
			d.send(l, now, left)
		}
		l.land(i, now, left)
	}
}

// start lets the senders of the plan record a cost, before it is in flight.
func (l *Ledger) start(now Moment, cost []int64) {
	for _, d := range l.plan.senders {
		if n := cost[d.unit]; n > 0 {
			d.send(l, now, n)
		}
	}
}

// proveArrival records in the anchored windows that a request has arrived by now. If its estimates
// are open, windows that count estimates are left out.
func (l *Ledger) proveArrival(now int64, cost []int64, open bool) {
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !(open && l.plan.estimated[r.unit]) {
			r.proveOpen(l, now, now)
		}
	}
}

// addEstimates adds the estimated part of a held request to what is in flight, or removes it if
// sign is -1. That part has no slot, because its landing is not bounded by the guard.
func (l *Ledger) addEstimates(cost []int64, sign int64) {
	for u, estimated := range l.plan.estimated {
		if estimated {
			l.word[u] = max(0, l.word[u]+sign*cost[u])
		}
	}
}

// Settle replaces the estimates in the cost of a held request by the actual cost. The actual cost
// lands now, and proves that the request arrived. It may exceed what the tiers admit.
func (l *Ledger) Settle(now Moment, cost, actual []int64) {
	now = l.advance(now)
	l.settle(now, cost, actual)
	for _, r := range l.plan.anchored {
		if l.plan.estimated[r.unit] && actual[r.unit] > 0 {
			r.proveOpen(l, now.At, now.At)
		}
	}
}

func (l *Ledger) settle(now Moment, cost, actual []int64) {
	l.addEstimates(cost, -1)
	for i, u := range l.plan.unit {
		if l.plan.estimated[u] && actual[u] > 0 {
			l.land(i, now, actual[u])
		}
	}
}

// Unanswered records that a held request gets no response. Its estimates become its cost, and
// land with the rest of it when the guard has passed.
func (l *Ledger) Unanswered(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if !l.plan.estimates {
		return
	}
	s := l.find(f)
	if s == nil {
		l.settle(now, cost, cost)
		return
	}
	for u, estimated := range l.plan.estimated {
		if estimated {
			s[totalOf(u)] += cost[u]
		}
	}
}

// Arrived records that the provider has counted the request by now, all but its estimates. After
// the guard it only proves that the request had arrived.
func (l *Ledger) Arrived(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if f == Landed {
		return
	}
	if l.removeInFlight(f, cost) {
		l.landCost(now, cost, true)
		l.proveArrival(now.At, cost, true)
		return
	}
	first := int64(f) << l.plan.resolution // of the instants at which it may have landed
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !l.plan.estimated[r.unit] {
			r.proveLanded(l, first, first+1<<l.plan.resolution-1)
		}
	}
}

// Cancel refunds a request that was never sent, and reports whether its guard had not passed by now. If
// the guard has passed, the provider may have counted the request, and Cancel refunds only its
// estimates and its places in concurrency tiers. The request may have landed before, because a charge
// of a later moment has moved the ledger's clock.
func (l *Ledger) Cancel(now Moment, f Flight, cost []int64) (inTime bool) {
	called := now.At
	now = l.advance(now)
	inTime = l.removeInFlight(f, cost)
	if lands := int64(f) << l.plan.resolution; !inTime && f > Landed && called < lands && lands <= now.At {
		l.refundLanded(now, lands, cost)
		inTime = true
	}
	if f == Landed && l.plan.guard == 0 { // its arrival was assumed
		for _, r := range l.plan.anchored {
			if cost[r.unit] > 0 {
				r.doubtOpen(l)
			}
		}
	}
	if f >= Landed {
		l.addEstimates(cost, -1)
	}
	l.Release(cost)
	return inTime
}

// refundLanded takes back a request that has landed at from or later. A tier with a report keeps the
// units, because the report was compared with them.
func (l *Ledger) refundLanded(now Moment, from int64, cost []int64) {
	l.DropCredit()
	for i, rule := range l.plan.rules {
		n := cost[l.plan.unit[i]]
		r, ok := rule.(refunder)
		if !ok || n == 0 || l.plan.estimated[l.plan.unit[i]] || l.readings != nil && (*l.readings)[i].at > 0 {
			continue
		}
		r.refund(l, now, from, n)
	}
}

// Release frees the places of a request in concurrency tiers.
func (l *Ledger) Release(cost []int64) {
	for i, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(l, cost[l.plan.unit[i]])
		}
	}
}

// LandHeld lands every held request now, which is the best case of a forecast. From then on,
// units that land within one precision of a SlidingWindow leave with the first of them, because
// their grouping depends on when the responses come.
func (l *Ledger) LandHeld(now Moment) {
	now = l.advance(now)
	l.assumeAnswered(now)
	l.advance(now)
}

// assumeAnswered moves all held requests to a slot that lands now, settles all estimates at zero,
// and frees all places in concurrency tiers. The rings stay as they are.
func (l *Ledger) assumeAnswered(now Moment) {
	l.forecasting = true
	stride, base := l.plan.stride(), l.plan.base
	if l.slots() > 0 {
		l.word = append(l.word, make([]int64, stride)...)
		copy(l.word[base+stride:], l.word[base:])
		answered := l.slot(0)
		clear(answered)
		answered[0] = now.At
		for i := 1; i < l.slots(); i++ {
			s := l.slot(i)
			for u := range l.plan.units {
				n := s[heldOf(u)]
				answered[totalOf(u)] += n
				s[totalOf(u)] -= n
				s[heldOf(u)] = 0
			}
		}
	}
	for _, r := range l.plan.anchored { // a response may still prove that the first request opened the window
		r.proveOpen(l, now.At, 0)
	}
	for u, estimated := range l.plan.estimated {
		if estimated {
			l.word[u] -= l.estimatesInFlight(u)
		}
	}
	for _, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(l, Never)
		}
	}
}

// landCost lands a cost in every tier. If its estimates are open, they are left out.
func (l *Ledger) landCost(at Moment, cost []int64, open bool) {
	for i, u := range l.plan.unit {
		if n := cost[u]; n > 0 && !(open && l.plan.estimated[u]) {
			l.land(i, at, n)
		}
	}
}

// Usage is the use of one tier.
type Usage struct {
	// Used is the number of units that count now, including those in flight.
	Used int64

	// InFlight is how many of them are in flight. It is zero for tiers that count units until they
	// are released.
	InFlight int64

	// Others is how many of them only the provider's reports show.
	Others int64

	// Next is the first instant at which the tier admits one more unit.
	Next int64

	// Fresh is the instant from which none of the used units counts. It is Never while units must
	// be released or settled.
	Fresh int64
}

// Usage returns the use of every tier.
func (l *Ledger) Usage(now Moment) []Usage {
	now = l.advance(now)
	landed := l.Clone()
	last := landed.landAll(now)
	usage := make([]Usage, len(l.plan.rules))
	for i, r := range l.plan.rules {
		usage[i].Used = l.used(i, now)
		if _, ok := r.(releaser); !ok {
			usage[i].InFlight = l.inFlight(l.plan.unit[i])
			usage[i].Used += usage[i].InFlight
		}
		usage[i].Next = l.admits(i, now, 1)
		usage[i].Fresh = now.At
		if usage[i].Used > 0 {
			usage[i].Fresh = max(last.At, r.fresh(&landed, last))
		}
		if usage[i].Others = l.othersUsed(i, now); usage[i].Others > 0 {
			usage[i].Fresh = max(usage[i].Fresh, (*l.readings)[i].until)
		}
		if landed.inFlight(l.plan.unit[i]) > 0 {
			usage[i].Fresh = Never
		}
	}
	return usage
}

// Fresh reports whether the ledger decides as a new one would.
func (l *Ledger) Fresh(now Moment) bool {
	now = l.advance(now)
	for i, r := range l.plan.rules {
		if l.inFlight(l.plan.unit[i]) > 0 || r.fresh(l, now) > now.At || l.othersUsed(i, now) > 0 {
			return false
		}
	}
	return true
}

// Recurs reports whether the ledger is as o was, but by microseconds later on both clocks: then both
// give the same answers to the same calls, at moments that far apart, for ever. So what has happened
// between the two happens again and again, if what calls the ledger recurs, too. Recurs may return
// false for ledgers that are alike: always with a Calendar, whose periods differ in length, and after
// a report of the provider.
func (l *Ledger) Recurs(o *Ledger, by int64) bool {
	p := l.plan
	units := len(p.units)
	switch {
	case p != o.plan, by <= 0, by%(1<<p.resolution) != 0, l.last-o.last != by, l.readings != nil || o.readings != nil,
		len(l.word) != len(o.word), !slices.Equal(l.word[:units], o.word[:units]):
		return false
	}
	for i := range l.slots() {
		s, before := l.slot(i), o.slot(i)
		if s[0]-before[0] != by || !slices.Equal(s[1:], before[1:]) {
			return false
		}
	}
	for _, r := range p.rules {
		if !r.recurs(l, o, by) {
			return false
		}
	}
	return true
}

// Until returns the time from m to an instant, limited to the largest Duration.
func (m Moment) Until(at int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Microsecond)
	if at == Never || at-m.At > most {
		return 1<<63 - 1
	}
	return time.Duration(at-m.At) * time.Microsecond
}
