package algorithms

import "slices"

// Convert returns what a ledger of another plan remembers as a ledger of this one,
// so that a changed policy keeps what has been spent.
//
// A tier takes over from the first old one of its algorithm, unit, and window and
// phase or period and zone.
// Any other starts with the largest use of an old tier of its unit, with the stamps where both
// keep some, else charged now, and be it more than its capacity: the old policy may come back.
// What is on its way stays so.
func (p *Plan) Convert(old Ledger, now Moment) Ledger {
	l := p.NewLedger()
	old = old.Clone()
	now = old.advance(now)
	l.last = now.At
	for i := range p.tiers {
		l.takeOver(i, &old, now)
	}
	for i := range old.slots() {
		l.carry(old.slot(i), old.plan)
	}
	l.carryEstimates(&old, now)
	return l
}

// site is where the i-th tier remembers, and how many words that takes.
func (p *Plan) site(i int) (s site, words, rings int) {
	s = site{word: len(p.units), unit: p.unit[i]}
	for _, r := range p.rules[:i] {
		words, rings = r.words()
		s.word, s.ring = s.word+words, s.ring+rings
	}
	words, rings = p.rules[i].words()
	return s, words, rings
}

// takeOver makes the i-th tier remember what old ones do.
func (l *Ledger) takeOver(i int, old *Ledger, now Moment) {
	t, r := l.plan.tiers[i], l.plan.rules[i]
	j, like := old.predecessor(t, now)
	if j < 0 || !like && t.counter().released {
		return
	}
	_, isBucket := r.(*bucket)
	charged := old.used(j, now)
	if like && !isBucket {
		l.inherit(i, j, old)
	}
	if l.restamp(i, j, old, now) || like && !isBucket {
		charged = old.apart(j, now)
	}
	if charged > 0 {
		r.land(l, now, charged)
	}
}

// predecessor is the tier that another takes over from, and whether it is like that. If none
// is, it is the one of its unit that has used the most, or -1.
func (l *Ledger) predecessor(t Tier, now Moment) (tier int, like bool) {
	tier = -1
	var most int64
	for j, was := range l.plan.tiers {
		if was.Unit != t.Unit {
			continue
		}
		if was.isLike(t) {
			return j, true
		}
		if was.Algorithm == Concurrency {
			continue
		}
		if used := l.used(j, now); used > most {
			tier, most = j, used
		}
	}
	return tier, false
}

// mostStamps is how many units of another algorithm a log takes over at most, if its limit is less.
const mostStamps = 1 << 16

// restamp makes the i-th tier keep the stamps of an old one, where both keep some, and reports
// whether it has the use of that. A window that is shorter than the old one has not: it would
// forget the stamps too soon for a release that still has the old policy.
func (l *Ledger) restamp(i, j int, old *Ledger, now Moment) bool {
	window, was := l.plan.tiers[i].Window, old.plan.tiers[j].Window
	switch r := l.plan.rules[i].(type) {
	case *slidingLog:
		var stamps []int64
		switch from := old.plan.rules[j].(type) {
		case *slidingLog:
			stamps = from.stamps(old)
		case *slidingWindow:
			stamps = from.stamps(old, max(r.limit, mostStamps))
		default:
			used := min(from.used(old, now), max(r.limit, mostStamps))
			stamps = slices.Repeat([]int64{now.At}, int(used))
		}
		l.keep(r, stamps, now.At-Micros(max(window, was)), old.aloft(old.plan.unit[j]))
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
			if was >= window { // if they are alike, they have the same groups
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

// keep makes a log remember stamps. Those after an instant have a place, beside what is in
// flight, be they more than the limit: they count again if the old policy comes back.
func (l *Ledger) keep(r *slidingLog, stamps []int64, after, inFlight int64) {
	gone, _ := slices.BinarySearch(stamps, after+1)
	room := max(r.limit, int64(len(stamps)-gone)+inFlight)
	stamps = stamps[max(0, int64(len(stamps))-room):]
	if room > r.limit { // the other places are of long ago
		stamps = slices.Concat(make([]int64, room-int64(len(stamps))), stamps)
	}
	*l.ring(r.site), l.word[r.word] = stamps, 0
}

// isLike reports whether a tier of the same unit goes on where the other one was.
func (t Tier) isLike(o Tier) bool {
	return t.Algorithm == o.Algorithm && t.Window == o.Window && t.Phase == o.Phase && t.Period == o.Period && t.Zone == o.Zone
}

// inherit copies what an old tier remembers that does not depend on the limit.
func (l *Ledger) inherit(i, like int, old *Ledger) {
	to, words, rings := l.plan.site(i)
	from, _, _ := old.plan.site(like)
	copy(l.word[to.word:to.word+words], old.word[from.word:])
	if rings > 0 {
		*l.ring(to) = *old.ring(from)
	}
}

// carry puts on its way what travels in a slot of an old plan.
func (l *Ledger) carry(was []int64, old *Plan) {
	total, held := make([]int64, len(l.plan.units)), make([]int64, len(l.plan.units))
	for u, unit := range l.plan.units {
		if o := slices.Index(old.units, unit); o >= 0 {
			total[u], held[u] = was[totalOf(o)], was[heldOf(o)]
		}
	}
	l.depart(was[0], 0, total, false)
	s := l.lastSlot()
	for u, n := range held {
		s[heldOf(u)] += n
	}
}

// carryEstimates keeps estimates in flight until they are settled. Of a unit that is not
// estimated any more they land with the guard.
func (l *Ledger) carryEstimates(old *Ledger, now Moment) {
	landing := make([]int64, len(l.plan.units))
	for u, unit := range l.plan.units {
		o := slices.Index(old.plan.units, unit)
		if o < 0 || !old.plan.estimated[o] {
			continue
		}
		if n := old.unslotted(o); l.plan.estimated[u] {
			l.word[u] += n
		} else {
			landing[u] = n
		}
	}
	if slices.ContainsFunc(landing, func(n int64) bool { return n > 0 }) {
		l.charge(now, landing, 0, false)
	}
}

// Translate returns a cost under another plan as one under this plan, by the names of
// the units. A unit that only one of them has is left out, or zero.
func (p *Plan) Translate(old *Plan, cost []int64) []int64 {
	translated := make([]int64, len(p.units))
	for u, unit := range p.units {
		if o := slices.Index(old.units, unit); o >= 0 {
			translated[u] = cost[o]
		}
	}
	return translated
}
