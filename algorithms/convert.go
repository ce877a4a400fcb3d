package algorithms

import "slices"

// Convert returns what a ledger of another plan remembers as a ledger of this one,
// so that a changed policy keeps what has been spent. Until the instant it
// returns too, the new ledger would forget something that counts: use it from then on.
//
// A tier takes over from the first old one of its algorithm, unit, and window and
// phase or period and zone.
// Any other starts with the largest use of an old tier of its unit: with the stamps where
// both keep some, else charged now. What old tiers never knew it can't know either. What is
// on its way stays so.
func (p *Plan) Convert(old Ledger, now Moment) (l Ledger, ready int64) {
	l, old = p.NewLedger(), old.Clone()
	now = old.advance(now)
	l.last, ready = now.At, now.At
	for i := range p.tiers {
		ready = max(ready, l.takeOver(i, &old, now))
	}
	for i := range old.slots() {
		l.carry(old.slot(i), old.plan)
	}
	return l, ready
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
func (l *Ledger) takeOver(i int, old *Ledger, now Moment) (ready int64) {
	t, r := l.plan.tiers[i], l.plan.rules[i]
	j, like := old.predecessor(t, now)
	if j < 0 || !like && t.Algorithm == Concurrency {
		return now.At
	}
	_, isBucket := r.(*bucket)
	charged := old.used(j, now)
	switch {
	case like && !isBucket:
		ready, charged = l.inherit(i, j, old, now), old.apart(j, now)
	case l.restamp(i, j, old, now):
		charged = old.apart(j, now)
	}
	if charged > 0 {
		r.land(l, now, min(charged, t.Capacity()))
	}
	return ready
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

// restamp lands in the i-th tier what an old one keeps stamps of, and reports whether both do.
// A window that is shorter than the old one can't keep them: it forgets them too soon for a
// release that still has the old policy.
func (l *Ledger) restamp(i, j int, old *Ledger, now Moment) bool {
	r := l.plan.rules[i]
	switch r.(type) {
	case *slidingLog:
	case *slidingWindow:
		if old.plan.tiers[j].Window > l.plan.tiers[i].Window {
			return false
		}
	default:
		return false
	}
	switch was := old.plan.rules[j].(type) {
	case *slidingLog:
		for _, at := range was.stamps(old) {
			r.land(l, now.on(at), 1)
		}
	case *slidingWindow:
		for groups := *old.ring(was.site); len(groups) > 0; groups = groups[2:] {
			r.land(l, now.on(groups[0]), groups[1])
		}
	default:
		return false
	}
	return true
}

// isLike tells whether a tier of the same unit goes on where the other one was.
func (t Tier) isLike(o Tier) bool {
	return t.Algorithm == o.Algorithm && t.Window == o.Window && t.Phase == o.Phase && t.Period == o.Period && t.Zone == o.Zone
}

// inherit copies what an old tier remembers, which only for logs depends on the limit.
func (l *Ledger) inherit(i, like int, old *Ledger, now Moment) (ready int64) {
	to, words, rings := l.plan.site(i)
	from, _, _ := old.plan.site(like)
	copy(l.word[to.word:to.word+words], old.word[from.word:])
	r, isLog := l.plan.rules[i].(*slidingLog)
	if !isLog {
		if rings > 0 {
			*l.ring(to) = *old.ring(from)
		}
		return now.At
	}
	l.word[to.word] = 0
	for _, at := range old.plan.rules[like].(*slidingLog).stamps(old) {
		r.land(l, now.on(at), 1)
	}
	// A smaller log may not forget a stamp before that has left the window: whoever
	// has the old policy still counts it.
	return newSlidingLog(l.plan.tiers[i], from).earliest(old, now, 0)
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
