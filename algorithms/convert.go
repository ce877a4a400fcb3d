package algorithms

import "slices"

// Convert returns the state of a ledger of another plan as a ledger of this plan. A changed policy
// thereby keeps what callers have spent.
//
// A tier takes over the state of the old tier with its algorithm, unit, and window and phase or
// period and zone. If there are several, it takes over from the most used one: of buckets, from the
// most used one of its rate. Without such a tier, it starts with the largest use of an old tier of
// its unit. It keeps the stamps if both tiers have some, and else charges the use now, even if that
// exceeds its capacity, because the old policy may come back. What is in flight stays in flight.
//
// The new ledger shares only the plan with others, and its tiers share nothing.
func (p *Plan) Convert(old Ledger, now Moment) Ledger {
	l := p.NewLedger()
	old = old.Clone()
	now = old.advance(now)
	l.last = now.At
	for i := range p.tiers {
		l.takeOver(i, &old, now)
	}
	for i := range old.slots() {
		l.carrySlot(old.slot(i), old.plan)
	}
	l.carryEstimates(&old, now)
	return l
}

// takeOver fills the i-th tier with the state of an old tier.
func (l *Ledger) takeOver(i int, old *Ledger, now Moment) {
	t, r := l.plan.tiers[i], l.plan.rules[i]
	j, like := old.predecessor(t, now)
	if j < 0 || !like && t.counter().released {
		return
	}
	_, isBucket := r.(*bucket)
	charged := old.charged(j, now)
	if like && !isBucket {
		l.inherit(i, j, old)
	}
	if l.copyStamps(i, j, old, now) || like && !isBucket {
		charged = old.othersUsed(j, now)
	}
	if charged > 0 {
		r.land(l, now, charged)
	}
}

// predecessor returns the tier whose state a new tier takes over, and whether it continues that
// tier. If it may continue several, predecessor returns one of the same rate, if these are buckets,
// and the one with the largest use. If it continues none, predecessor returns the tier of its unit
// with the largest use, or -1.
func (l *Ledger) predecessor(t Tier, now Moment) (tier int, like bool) {
	tier = -1
	var closest, most int64
	for j, was := range l.plan.tiers {
		if was.Unit != t.Unit {
			continue
		}
		likeness, used := bit(was.continues(t)), l.charged(j, now)
		if likeness > 0 && t.counter().burst {
			likeness += bit(was.Limit == t.Limit)
		}
		if tier < 0 || likeness > closest || likeness == closest && used > most {
			tier, closest, most = j, likeness, used
		}
	}
	return tier, closest > 0
}

// charged returns how many units of a tier a tier of another kind takes over.
func (l *Ledger) charged(tier int, now Moment) int64 {
	if l.plan.tiers[tier].counter().released {
		return 0
	}
	return l.used(tier, now)
}

// mostStamps is how many stamps a log takes over at most from another algorithm, unless its limit
// is larger.
const mostStamps = 1 << 16

// copyStamps gives the i-th tier the stamps of an old tier, and reports whether these cover the use
// of the old tier. Only a log takes over a tier without stamps: the use counts as of now. A sliding
// window that is shorter than the old tier takes no stamps, because it would drop them too soon
// for a process that still has the old policy.
func (l *Ledger) copyStamps(i, j int, old *Ledger, now Moment) bool {
	window, was := l.plan.tiers[i].Window, old.plan.tiers[j].Window
	switch r := l.plan.rules[i].(type) {
	case *slidingLog:
		var stamps []int64
		switch from := old.plan.rules[j].(type) {
		case *slidingLog:
			stamps = from.stamps(old)
		case *slidingWindow:
			stamps = from.stamps(old, max(r.limit, mostStamps))
		case *concurrency: // what is in flight needs room
		default:
			used := min(from.used(old, now), max(r.limit, mostStamps))
			stamps = slices.Repeat([]int64{now.At}, int(used))
		}
		l.setStamps(r, stamps, now.At-Micros(max(window, was)), old.inFlight(old.plan.unit[j]))
		return true
	case *slidingWindow:
		switch from := old.plan.rules[j].(type) {
		case *slidingLog:
			if was > window {
				return false
			}
			for _, at := range from.stamps(old) {
				r.land(l, now.on(at), 1)
			}
			return true
		case *slidingWindow:
			if was >= window { // two tiers alike have the same groups already
				return false
			}
			for groups := *old.ring(from.site); len(groups) > 0; groups = groups[2:] {
				r.land(l, now.on(groups[0]), groups[1])
			}
			return true
		}
	}
	return false
}

// setStamps sets the stamps of a log. The ring gets a place for each stamp after an instant and for
// each unit in flight, even if these exceed the limit: they count again if the old policy comes
// back.
func (l *Ledger) setStamps(r *slidingLog, stamps []int64, after, inFlight int64) {
	gone, _ := slices.BinarySearch(stamps, after+1)
	room := max(r.limit, int64(len(stamps)-gone)+inFlight)
	stamps = stamps[max(0, int64(len(stamps))-room):]
	if room > r.limit { // the other places get stamps that count no more
		stamps = slices.Concat(make([]int64, room-int64(len(stamps))), stamps)
	}
	*l.ring(r.site), l.word[r.word] = stamps, 0
}

// inherit copies the state of an old tier, which does not depend on the limit.
func (l *Ledger) inherit(i, like int, old *Ledger) {
	to, from := l.plan.rules[i].place(), old.plan.rules[like].place()
	words, rings := l.plan.rules[i].words()
	copy(l.word[to.word:to.word+words], old.word[from.word:])
	if rings > 0 {
		*l.ring(to) = slices.Clone(*old.ring(from)) // another tier may continue that tier, too
	}
}

// carrySlot adds a slot of an old plan to what is in flight.
func (l *Ledger) carrySlot(was []int64, old *Plan) {
	total, held := make([]int64, len(l.plan.units)), make([]int64, len(l.plan.units))
	for u, unit := range l.plan.units {
		if o := slices.Index(old.units, unit); o >= 0 {
			total[u], held[u] = was[totalOf(o)], was[heldOf(o)]
		}
	}
	l.addInFlight(was[0], 0, total, false)
	s := l.lastSlot()
	for u, n := range held {
		s[heldOf(u)] += n
	}
}

// carryEstimates keeps the estimates in flight until they are settled. If their unit is no longer
// estimated, they land with the guard.
func (l *Ledger) carryEstimates(old *Ledger, now Moment) {
	landing := make([]int64, len(l.plan.units))
	for u, unit := range l.plan.units {
		o := slices.Index(old.plan.units, unit)
		if o < 0 || !old.plan.estimated[o] {
			continue
		}
		if n := old.estimatesInFlight(o); l.plan.estimated[u] {
			l.word[u] += n
		} else {
			landing[u] = n
		}
	}
	if slices.ContainsFunc(landing, func(n int64) bool { return n > 0 }) {
		l.addInFlight(now.At, l.plan.guard, landing, false) // of no concurrency tier: it would never be released
	}
}

// Translate returns a cost of another plan as a cost of this plan, by the names of the units.
// Units that only the other plan has are left out, and units that only this plan has are zero.
func (p *Plan) Translate(old *Plan, cost []int64) []int64 {
	translated := make([]int64, len(p.units))
	for u, unit := range p.units {
		if o := slices.Index(old.units, unit); o >= 0 {
			translated[u] = cost[o]
		}
	}
	return translated
}

// Holds reports whether requests hold their amounts of a unit until they are settled or released:
// the unit is estimated or has a Concurrency tier.
func (p *Plan) Holds(unit int) bool {
	return p.estimated[unit] || slices.ContainsFunc(p.tiers, func(t Tier) bool {
		return t.Unit == p.units[unit] && t.counter().released
	})
}

// TranslateHeld is Translate for the amounts that a request holds. A unit that the two plans do not
// hold in the same way is zero: what Convert has made of it is settled and released by nobody. So
// the request does not take from what others hold.
func (p *Plan) TranslateHeld(old *Plan, cost []int64) []int64 {
	translated := p.Translate(old, cost)
	for u, unit := range p.units {
		o := slices.Index(old.units, unit)
		if o < 0 || !p.Holds(u) || !old.Holds(o) || p.estimated[u] != old.estimated[o] {
			translated[u] = 0
		}
	}
	return translated
}
