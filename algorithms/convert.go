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
	c := conversion{&old, &l.state, now}
	for i := range p.tiers {
		c.takeOver(i)
	}
	for i := range old.slots() {
		c.carrySlot(old.slot(i))
	}
	c.carryEstimates()
	return l
}

// A conversion fills the state of a new plan with that of an old one.
type conversion struct {
	from *Ledger
	to   *state
	now  Moment
}

// takeOver fills the i-th tier with the state of an old tier.
func (c conversion) takeOver(i int) {
	t, r := c.to.plan.tiers[i], c.to.plan.rules[i]
	j, like := c.predecessor(t)
	if j < 0 || !like && t.counter().released {
		return
	}
	_, isBucket := r.(*bucket)
	charged := c.charged(j)
	if like && !isBucket {
		c.inherit(r, c.from.plan.rules[j])
	}
	if c.copyStamps(i, j) || like && !isBucket {
		charged = c.from.othersUsed(j, c.now)
	}
	if charged > 0 {
		if l, ok := r.(*learned); ok {
			l.send(c.to, c.now, charged)
		}
		r.land(c.to, c.now, charged)
	}
}

// predecessor returns the tier whose state a new tier takes over, and whether it continues that
// tier. If it may continue several, predecessor returns one of the same rate, if these are buckets,
// and the one with the largest use. If it continues none, predecessor returns the tier of its unit
// with the largest use, or -1.
func (c conversion) predecessor(t Tier) (tier int, like bool) {
	tier = -1
	var closest, most int64
	for j, was := range c.from.plan.tiers {
		if was.Unit != t.Unit {
			continue
		}
		likeness, used := bit(was.continues(t)), c.charged(j)
		if likeness > 0 && t.counter().burst {
			likeness += bit(was.Limit == t.Limit)
		}
		if tier < 0 || likeness > closest || likeness == closest && used > most {
			tier, closest, most = j, likeness, used
		}
	}
	return tier, closest > 0
}

// charged returns how many units of an old tier a tier of another kind takes over.
func (c conversion) charged(old int) int64 {
	if c.from.plan.tiers[old].counter().released {
		return 0
	}
	return c.from.used(old, c.now)
}

// mostStamps is how many stamps a log takes over at most from another algorithm, unless its limit
// is larger.
const mostStamps = 1 << 16

// copyStamps gives the i-th tier the stamps of the old tier j, and reports whether these cover the
// use of that tier. Only a log takes over a tier without stamps: the use counts as of now. A sliding
// window that is shorter than the old tier takes no stamps, because it would drop them too soon
// for a process that still has the old policy.
func (c conversion) copyStamps(i, j int) bool {
	window, was, old := c.to.plan.tiers[i].Window, c.from.plan.tiers[j].Window, &c.from.state
	switch r := c.to.plan.rules[i].(type) {
	case *slidingLog:
		var stamps []int64
		switch from := old.plan.rules[j].(type) {
		case *slidingLog:
			stamps = from.stamps(old)
		case *slidingWindow:
			stamps = from.stamps(old, max(r.limit, mostStamps))
		case *concurrency: // what is in flight needs room
		default:
			used := min(from.used(old, c.now), max(r.limit, mostStamps))
			stamps = slices.Repeat([]int64{c.now.At}, int(used))
		}
		r.setStamps(c.to, stamps, c.now.At-Micros(max(window, was)), old.inFlight(old.plan.unit[j]))
		return true
	case *slidingWindow:
		switch from := old.plan.rules[j].(type) {
		case *slidingLog:
			if was > window {
				return false
			}
			for _, at := range from.stamps(old) {
				r.land(c.to, c.now.on(at), 1)
			}
			return true
		case *slidingWindow:
			if was >= window { // two tiers alike have the same groups already
				return false
			}
			for groups := *old.ring(from.site); len(groups) > 0; groups = groups[2:] {
				r.land(c.to, c.now.on(groups[0]), groups[1])
			}
			return true
		}
	}
	return false
}

// setStamps sets the stamps of a log. The ring gets a place for each stamp after an instant and for
// each unit in flight, even if these exceed the limit: they count again if the old policy comes
// back.
func (r *slidingLog) setStamps(s *state, stamps []int64, after, inFlight int64) {
	gone, _ := slices.BinarySearch(stamps, after+1)
	room := max(r.limit, int64(len(stamps)-gone)+inFlight)
	stamps = stamps[max(0, int64(len(stamps))-room):]
	if room > r.limit { // the other places get stamps that count no more
		stamps = slices.Concat(make([]int64, room-int64(len(stamps))), stamps)
	}
	*s.ring(r.site), s.word[r.word] = stamps, 0
}

// inherit copies the state of an old rule, which does not depend on the limit.
func (c conversion) inherit(r, old rule) {
	copy(c.to.words(r), c.from.words(old))
	if _, rings := r.words(); rings > 0 {
		*c.to.ring(r.place()) = slices.Clone(*c.from.ring(old.place())) // another tier may continue that tier, too
	}
}

// carrySlot adds an old slot to what is in flight.
func (c conversion) carrySlot(was slot) {
	old := c.from.plan
	total, held := make([]int64, len(old.units)), make([]int64, len(old.units))
	for u := range old.units {
		total[u], held[u] = *was.total(u), *was.held(u)
	}
	c.to.addInFlight(was[0], 0, c.to.plan.Translate(old, total), false)
	last := c.to.lastSlot()
	for u, n := range c.to.plan.Translate(old, held) {
		*last.held(u) += n
	}
}

// carryEstimates keeps the estimates in flight until they are settled. If their unit is no longer
// estimated, they land with the guard.
func (c conversion) carryEstimates() {
	old, p := c.from.plan, c.to.plan
	estimates := make([]int64, len(old.units))
	for u, estimated := range old.estimated {
		if estimated {
			estimates[u] = c.from.estimatesInFlight(u)
		}
	}
	landing := p.Translate(old, estimates)
	for u, estimated := range p.estimated {
		if estimated {
			c.to.word[u] += landing[u]
			landing[u] = 0
		}
	}
	if slices.Max(landing) > 0 {
		c.to.addInFlight(c.now.At, p.guard, landing, false) // of no concurrency tier: it would never be released
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
