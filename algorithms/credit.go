package algorithms

import "math"

// Credit is how many requests of the usual cost, which is one request and nothing else, the tiers are
// sure to admit from now on. Time only adds to that number in counters that are steady, so a ledger
// need not ask its tiers again until the credit is used up or something else was charged. What is
// charged on credit is the same to the bit as what Take charges.

// Quick reports whether ledgers of the plan give credit.
func (p *Plan) Quick() bool { return p.usual != nil }

// findUsual sets the rules that count the usual cost, if every tier is steady.
func (p *Plan) findUsual() {
	for i, t := range p.tiers {
		if !t.counter().steady || t.Phase == UnknownPhase || p.guard == 0 || p.estimates {
			p.usual = nil
			return
		}
		if t.Unit == Requests {
			p.usual, p.usualUnit = append(p.usual, p.rules[i]), p.unit[i]
		}
	}
}

// GiveCredit computes the credit anew, and reports whether there is any.
func (l *Ledger) GiveCredit(now Moment) bool {
	if !l.plan.Quick() || l.readings != nil || l.lastSlot() == nil {
		return false
	}
	credit := int64(math.MaxInt32)
	for i, r := range l.plan.rules {
		if u := l.plan.unit[i]; u == l.plan.usualUnit {
			credit = min(credit, l.plan.tiers[i].Capacity()-r.used(l, now)-l.inFlight(u))
		}
	}
	l.credit = int32(max(0, credit))
	return credit > 0
}

// DropCredit makes TakeOne fail until GiveCredit is called.
func (l *Ledger) DropCredit() { l.credit = 0 }

// TakeOne is Take for the usual cost. It fails, and changes nothing, if there is no credit, or if the
// request does not share the last slot.
func (l *Ledger) TakeOne(at int64, held bool) (f Flight, ok bool) {
	if l.credit == 0 {
		return Landed, false
	}
	at = max(at, l.last)
	s, lands := l.lastSlot(), at+l.plan.guard
	if f = l.plan.flight(s[0]); f != l.plan.flight(lands) {
		return Landed, false
	}
	u := l.plan.usualUnit
	s[0] = max(s[0], lands)
	s[totalOf(u)]++
	l.word[u]++
	l.last = at
	l.credit--
	if !held {
		return f.unheld(), true
	}
	s[heldOf(u)]++
	return f, true
}

// ArriveOne is Arrived for a held request of the usual cost. It fails, and changes nothing, if the
// ledger has more to do than to land that request.
func (l *Ledger) ArriveOne(at int64, f Flight) bool {
	at = max(at, l.last) // which TakeOne may have moved beyond the end of a guard
	if !l.plan.Quick() || l.readings != nil || len(l.word) == l.plan.base || l.word[l.plan.base] <= at {
		return false
	}
	s, u := l.find(f), l.plan.usualUnit
	if s == nil || s[heldOf(u)] == 0 {
		return false
	}
	s[totalOf(u)]--
	s[heldOf(u)]--
	l.word[u]--
	l.last = at
	for _, r := range l.plan.usual {
		r.land(l, Moment{At: at}, 1)
	}
	return true
}
