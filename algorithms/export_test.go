package algorithms

import "slices"

// SameAs reports whether two ledgers have the same state, bit for bit, except for the clock.
func (l *Ledger) SameAs(o *Ledger) bool {
	if !slices.Equal(l.word, o.word) || !slices.Equal(l.encodedReadings(), o.encodedReadings()) {
		return false
	}
	if l.rings == nil || o.rings == nil {
		return l.rings == o.rings
	}
	return slices.EqualFunc(*l.rings, *o.rings, slices.Equal[[]int64])
}

// Advance lands the requests whose guard has passed.
func (l *Ledger) Advance(now Moment) { l.advance(now) }

// Slots returns how many slots have requests in flight.
func (l *Ledger) Slots() int { return l.slots() }

// InFlight returns how many units are in flight.
func (l *Ledger) InFlight(unit int) int64 { return l.inFlight(unit) }

// Algorithms lists all algorithms.
func Algorithms() (list []Algorithm) {
	for i := range counters {
		list = append(list, Algorithm(i))
	}
	return list
}
