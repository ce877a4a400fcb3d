package algorithms

import (
	"slices"
	"time"
)

// A Moment is one instant on two clocks, both in microseconds. At never runs
// backwards, from any origin; Wall is Unix time, may step, and matters only to
// tiers whose windows are aligned to the clock.
type Moment struct {
	At   int64
	Wall int64
}

// on is the moment at an instant of the first clock.
func (m Moment) on(at int64) Moment { return Moment{at, m.Wall + at - m.At} }

// Later is the moment at an instant of the first clock, or m if that has passed.
func (m Moment) Later(at int64) Moment { return m.on(max(m.At, at)) }

// A Ledger is what one quota remembers, and decides over all of its tiers as
// one. Every method takes the present moment; one that is older than the last is
// taken for the last, so that a ledger's time never runs backwards. A Ledger is not
// safe for concurrent use.
//
// It is a flat list of words: the units on their way, those of each tier, then the
// slots of the requests on their way, oldest first. A rolling log keeps its stamps
// in a ring beside it.
type Ledger struct {
	plan  *Plan
	word  []int64
	rings *[][]int64 // nil where no tier needs one
	told  *[]reading // of each tier, nil where none was told
	last  int64      // the latest instant seen
	tries bool       // see Tried
	early bool       // for a forecast: groups of stamps leave with their first, and after a reset anything may go
}

// NewLedger returns a ledger of which nothing is used.
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

// Clone returns a copy that shares nothing that changes.
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
	if l.told != nil {
		told := slices.Clone(*l.told)
		c.told = &told
	}
	return c
}

func (l *Ledger) ring(s site) *[]int64 { return &(*l.rings)[s.ring] }

// Plan returns the plan whose tiers the ledger keeps.
func (l *Ledger) Plan() *Plan { return l.plan }

// A Request is what a ledger decides on.
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

// withHeadroom returns n units of a tier and the headroom.
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
	if l.told != nil {
		l.try(now, cost)
	}
	l.start(now, cost)
	if held {
		l.open(cost, 1)
	}
	if guard == 0 {
		guard = l.plan.guard
	}
	if guard == 0 {
		l.landCost(now, cost, held)
		l.prove(now.At, cost, held)
		return Landed
	}
	return l.depart(now.At, min(max(guard, 1<<l.plan.grain), maxWindowUS), cost, held)
}

// Count charges what the provider has counted already, without asking.
func (l *Ledger) Count(now Moment, cost []int64) { l.count(l.advance(now), cost) }

func (l *Ledger) count(now Moment, cost []int64) {
	l.start(now, cost)
	l.landCost(now, cost, false)
}

// Spend charges every tier with all that it has left, as if that had been sent until
// now and had yet to arrive. What is open at once is known, and not charged.
func (l *Ledger) Spend(now Moment) {
	now = l.advance(now.on(now.At + l.plan.guard))
	for i, r := range l.plan.rules {
		if _, ok := r.(releaser); ok {
			continue
		}
		left := max(0, l.plan.tiers[i].Capacity()-r.used(l, now))
		if d, ok := r.(departer); ok {
			d.depart(l, now, left)
		}
		l.land(i, now, left)
	}
}

// start tells the tiers that want to know that requests leave.
func (l *Ledger) start(now Moment, cost []int64) {
	for _, d := range l.plan.departures {
		if n := cost[d.unit]; n > 0 {
			d.depart(l, now, n)
		}
	}
}

// prove tells anchored windows that a request has arrived by now, but for estimates where
// those are open.
func (l *Ledger) prove(now int64, cost []int64, open bool) {
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !(open && l.plan.estimated[r.unit]) {
			r.prove(l, now, now)
		}
	}
}

// open puts what is estimated of a held request on its way, or takes it off: it has no
// slot, for nobody knows when it lands.
func (l *Ledger) open(cost []int64, sign int64) {
	for u, estimated := range l.plan.estimated {
		if estimated {
			l.word[u] = max(0, l.word[u]+sign*cost[u])
		}
	}
}

// Settle says what a held request has really cost, in the units of which its cost was
// an estimate: that lands now, and proves that the request arrived. It may be more than any
// tier admits.
func (l *Ledger) Settle(now Moment, cost, actual []int64) {
	now = l.advance(now)
	l.settle(now, cost, actual)
	for _, r := range l.plan.anchored {
		if l.plan.estimated[r.unit] && actual[r.unit] > 0 {
			r.prove(l, now.At, now.At)
		}
	}
}

func (l *Ledger) settle(now Moment, cost, actual []int64) {
	l.open(cost, -1)
	for i, u := range l.plan.unit {
		if l.plan.estimated[u] && actual[u] > 0 {
			l.land(i, now, actual[u])
		}
	}
}

// Unanswered reports that a held request will get no response. What was estimated of
// it stands, and lands together with the rest when the guard has passed.
func (l *Ledger) Unanswered(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if !l.plan.estimates {
		return
	}
	i := l.find(f)
	if i < 0 {
		l.settle(now, cost, cost)
		return
	}
	for u, estimated := range l.plan.estimated {
		if estimated {
			l.slot(i)[totalOf(u)] += cost[u]
		}
	}
}

// Land says that the provider has counted the request by now, but for what is
// estimated of it. After the guard it only proves that the request had arrived.
func (l *Ledger) Land(now Moment, f Flight, cost []int64) {
	now = l.advance(now)
	if f == Landed {
		return
	}
	if l.alight(f, cost) {
		l.landCost(now, cost, true)
		l.prove(now.At, cost, true)
		return
	}
	first := int64(f) << l.plan.grain // of the instants at which it landed
	for _, r := range l.plan.anchored {
		if cost[r.unit] > 0 && !l.plan.estimated[r.unit] {
			r.proveLanded(l, first, first+1<<l.plan.grain-1)
		}
	}
}

// Cancel says that the request was never sent and gives back what it was
// charged. After the guard only what a concurrency tier holds and what was estimated
// are given back: the rest may long have been counted. It reports whether that was not so.
func (l *Ledger) Cancel(now Moment, f Flight, cost []int64) (inTime bool) {
	l.advance(now)
	inTime = l.alight(f, cost)
	l.open(cost, -1)
	l.Release(cost)
	return inTime
}

// Release says that the request is over, for the tiers that count what is open at once.
func (l *Ledger) Release(cost []int64) {
	for i, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(l, cost[l.plan.unit[i]])
		}
	}
}

// LandHeld lands every held request now: the best that can come, for a forecast. From then
// on what lands within one precision of a SlidingWindow leaves with the first of it: which of
// it is one group depends on when responses come.
func (l *Ledger) LandHeld(now Moment) {
	now, l.early = l.advance(now), true
	held := make([]int64, len(l.plan.units))
	for i := range l.slots() {
		s := l.slot(i)
		for u := range held {
			n := s[heldOf(u)]
			held[u] += n
			s[totalOf(u)] -= n
			s[heldOf(u)] = 0
			l.word[u] -= n
		}
	}
	l.landCost(now, held, true)
	for _, r := range l.plan.anchored { // a response may still prove that the first in the window was sent
		r.prove(l, now.At, 0)
	}
	for u := range held {
		if l.plan.estimated[u] {
			l.word[u] -= l.unslotted(u)
		}
	}
	for _, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(l, Never)
		}
	}
}

// landCost tells every tier of what has been counted, but not of estimates where those
// are open.
func (l *Ledger) landCost(at Moment, cost []int64, open bool) {
	for i, u := range l.plan.unit {
		if n := cost[u]; n > 0 && !(open && l.plan.estimated[u]) {
			l.land(i, at, n)
		}
	}
}

// Usage is what one tier has used.
type Usage struct {
	Used  int64 // units charged, those on their way included
	Next  int64 // the first instant at which the tier admits one unit more
	Fresh int64 // the instant from which all of it counts no more; Never while something must be released
}

// Usage reports every tier.
func (l *Ledger) Usage(now Moment) []Usage {
	now = l.advance(now)
	landed := l.Clone()
	last := landed.landAll(now)
	usage := make([]Usage, len(l.plan.rules))
	for i, r := range l.plan.rules {
		usage[i].Used = l.used(i, now)
		if _, ok := r.(releaser); !ok {
			usage[i].Used += l.aloft(l.plan.unit[i])
		}
		usage[i].Next = l.admits(i, now, 1)
		usage[i].Fresh = now.At
		if usage[i].Used > 0 {
			usage[i].Fresh = max(last.At, r.fresh(&landed, last))
		}
		if l.apart(i, now) > 0 {
			usage[i].Fresh = max(usage[i].Fresh, (*l.told)[i].until)
		}
		if landed.aloft(l.plan.unit[i]) > 0 {
			usage[i].Fresh = Never
		}
	}
	return usage
}

// Fresh reports whether the ledger decides as a new one would.
func (l *Ledger) Fresh(now Moment) bool {
	now = l.advance(now)
	for i, r := range l.plan.rules {
		if l.aloft(l.plan.unit[i]) > 0 || r.fresh(l, now) > now.At || l.apart(i, now) > 0 {
			return false
		}
	}
	return true
}

// Until is the time from now to an instant, rounded to what a Duration holds.
func (m Moment) Until(at int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Microsecond)
	if at == Never || at-m.At > most {
		return 1<<63 - 1
	}
	return time.Duration(at-m.At) * time.Microsecond
}
