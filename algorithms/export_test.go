package algorithms

import "slices"

// SameAs reports whether two ledgers remember the same, bit for bit but for the clock.
func (l *Ledger) SameAs(o *Ledger) bool {
	if !slices.Equal(l.word, o.word) || !slices.Equal(l.readings(), o.readings()) {
		return false
	}
	if l.rings == nil || o.rings == nil {
		return l.rings == o.rings
	}
	return slices.EqualFunc(*l.rings, *o.rings, slices.Equal[[]int64])
}

// Advance lands what must have landed by now.
func (l *Ledger) Advance(now Moment) { l.advance(now) }

// Slots is how many groups of requests are on their way.
func (l *Ledger) Slots() int { return l.slots() }

// InFlight is how many of a unit are in flight.
func (l *Ledger) InFlight(unit int) int64 { return l.aloft(unit) }
