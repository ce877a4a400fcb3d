package algorithms

import (
	"slices"
	"sync"
)

// views are ledgers whose memory Soonest uses.
var views = sync.Pool{New: func() any { return new(Ledger) }}

// Soonest returns a lower bound of the instant at which the tiers admit a cost with a headroom, and
// the tier that decides, or -1 if that instant is now. It is what Earliest would return if the
// responses to all held requests came now and every place were free. A request does not wait for a
// budget, so an exhausted budget does not decide. Soonest changes nothing but the ledger's clock,
// and copies only the words of the ledger, into memory that it keeps.
func (l *Ledger) Soonest(now Moment, cost []int64, headroom int64) (at int64, tier int) {
	now = l.advance(now)
	v := views.Get().(*Ledger)
	word := append(v.word[:0], l.word...)
	*v = *l
	v.word = word
	v.assumeAnswered(now)
	at, tier = v.earliest(now, cost, headroom)
	*v = Ledger{state: state{word: v.word}}
	views.Put(v)
	if l.plan.Exhausted(tier) {
		return now.At, -1
	}
	return at, tier
}

// EarliestTotal returns a lower bound of the instant at which the tiers admit a cost with a
// headroom, behind an amount of other requests. It also returns the tier that decides, or -1 if
// that instant is now. The amount ahead may be far above the capacity of every tier. The bound is
// exact for one tier and requests of one unit whose responses come at once. It leaves out budgets,
// because a request does not wait for them, and estimates, because they may settle at zero.
func (l *Ledger) EarliestTotal(now Moment, ahead, cost []int64, headroom int64) (at int64, tier int) {
	now = l.advance(now)
	at, tier = now.At, -1
	for i, r := range l.plan.rules {
		unit := l.plan.unit[i]
		if cost[unit] <= 0 || l.plan.tiers[i].Budget || l.plan.estimated[unit] {
			continue
		}
		n := ahead[unit] + l.withHeadroom(i, cost[unit], headroom)
		e := r.earliestTotal(&l.state, now, n)
		if l.readings != nil {
			e = min(e, reported(&l.state, i).nextReset(now))
		}
		if e > at {
			at, tier = e, i
		}
	}
	return at, tier
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
	l.landHeld(now.At)
	for _, r := range l.plan.anchored { // a response may still prove that the first request opened the window
		r.proveOpen(&l.state, now.At, 0)
	}
	for _, r := range l.plan.rules {
		if r, ok := r.(releaser); ok {
			r.release(&l.state, Never)
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
	landed, last := l.Clone(), now
	if s := l.lastSlot(); s != nil {
		last = landed.advance(now.on(s[0]))
	}
	usage := make([]Usage, len(l.plan.rules))
	for i, r := range l.plan.rules {
		usage[i].Used = l.used(i, now)
		if _, ok := r.(releaser); !ok {
			usage[i].InFlight = l.inFlight(l.plan.unit[i])
		}
		if !l.plan.tiers[i].Learns() { // which has counted them at their admission
			usage[i].Used += usage[i].InFlight
		}
		usage[i].Next = l.admits(i, now, 1)
		usage[i].Fresh = now.At
		if usage[i].Used > 0 {
			usage[i].Fresh = max(last.At, r.fresh(&landed.state, last))
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
		if l.inFlight(l.plan.unit[i]) > 0 || r.fresh(&l.state, now) > now.At || l.othersUsed(i, now) > 0 {
			return false
		}
	}
	return !l.KnowsRate()
}

// Lead returns how much sooner than l says a cost may be admitted behind what l has charged since it was the
// ledger o: by as much as the units that learned rates had left take longer at the lower rates of o.
func (l *Ledger) Lead(o *Ledger, cost []int64) (lead int64) {
	for _, r := range l.plan.learned {
		if left := r.burst - cost[r.unit]; cost[r.unit] > 0 && left > 0 {
			lead = max(lead, r.drain(left, r.now(&o.state))-r.drain(left, r.now(&l.state)))
		}
	}
	return lead
}

// KnowsRate reports whether a tier has learned another rate than that of a new ledger.
func (l *Ledger) KnowsRate() bool {
	return slices.ContainsFunc(l.plan.learned, func(r *learned) bool { return r.hasLearned(&l.state) })
}

// Unused returns a ledger without charges, whose tiers know the rates that they have learned.
func (l *Ledger) Unused() Ledger {
	u := l.plan.NewLedger()
	for _, r := range l.plan.learned {
		copy(r.state(&u.state)[badWord:], r.state(&l.state)[badWord:])
	}
	return u
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
		if !r.recurs(&l.state, &o.state, by) {
			return false
		}
	}
	return true
}

// Crossings returns how far the calendar tiers have come since the last call. It returns each
// percent of a period once, even if a tier reaches it again after a refund.
func (l *Ledger) Crossings(now Moment) (crossed []Crossing) {
	if len(l.plan.calendars) == 0 {
		return nil
	}
	now = l.advance(now)
	for _, r := range l.plan.calendars {
		if c, ok := r.cross(&l.state, now); ok {
			crossed = append(crossed, c)
		}
	}
	return crossed
}
