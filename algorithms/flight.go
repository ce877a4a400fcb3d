package algorithms

// A Flight identifies the slot of a request. For a held request it is the latest instant at which the
// request lands, in units of the plan's resolution. For any other it is below Landed.
type Flight int64

// Landed is the Flight of a request that landed the instant it was admitted.
const Landed Flight = -1

// unheld turns the Flight of a held request into that of another request in the same slot, and back.
func (f Flight) unheld() Flight { return Landed - 1 - f }

// A slot is a range of the ledger's words: the instant at which its requests land, then for each
// unit how much they cost and how much of that is held. Requests that would land within one
// resolution of the plan share a slot and land with the last of them. A guard therefore has at most
// 66 slots at any rate. A guard is one resolution at least, because a new slot must not have the
// Flight of a slot that has landed.
const slotHead = 1

func totalOf(unit int) int { return slotHead + 2*unit }
func heldOf(unit int) int  { return slotHead + 2*unit + 1 }

// inFlight returns how many units are in flight.
func (l *Ledger) inFlight(unit int) int64 { return l.word[unit] }

// estimatesInFlight returns how many units are in flight without a slot, because they are
// estimates.
func (l *Ledger) estimatesInFlight(unit int) int64 {
	n := l.word[unit]
	for i := range l.slots() {
		_, carried := l.landing(i, unit)
		n -= carried
	}
	return n
}

func (l *Ledger) slots() int { return (len(l.word) - l.plan.base) / l.plan.stride() }

func (l *Ledger) slot(i int) []int64 {
	start := l.plan.base + i*l.plan.stride()
	return l.word[start : start+l.plan.stride()]
}

// landing returns the instant at which slot i lands, and how many of a unit it holds.
func (l *Ledger) landing(i, unit int) (at, n int64) {
	s := l.slot(i)
	return s[0], s[totalOf(unit)]
}

// addInFlight adds a cost to what is in flight. It lands no earlier than the requests before it.
func (l *Ledger) addInFlight(at, guard int64, cost []int64, held bool) Flight {
	lands := at + guard
	s := l.lastSlot()
	if s != nil && s[0] > lands { // the last slot has a longer guard
		lands = s[0]
	}
	f := l.plan.flight(lands)
	if s == nil || l.plan.flight(s[0]) != f {
		for range l.plan.stride() {
			l.word = append(l.word, 0)
		}
		s = l.lastSlot()
	}
	s[0] = lands
	for u, n := range cost {
		if held && l.plan.estimated[u] {
			continue
		}
		s[totalOf(u)] += n
		if held {
			s[heldOf(u)] += n
		}
		l.word[u] += n
	}
	if !held {
		return f.unheld()
	}
	return f
}

func (l *Ledger) lastSlot() []int64 {
	if len(l.word) == l.plan.base {
		return nil
	}
	return l.word[len(l.word)-l.plan.stride():]
}

// find returns the slot of a flight, or nil if the flight has landed.
func (l *Ledger) find(f Flight) []int64 {
	stride := l.plan.stride()
	for i := len(l.word) - stride; i >= l.plan.base; i -= stride {
		if at := l.plan.flight(l.word[i]); at == f {
			return l.word[i : i+stride]
		} else if at < f {
			return nil
		}
	}
	return nil
}

// removeInFlight removes a cost from what is in flight, and reports whether it was still there.
func (l *Ledger) removeInFlight(f Flight, cost []int64) bool {
	held := f > Landed
	if !held {
		f = f.unheld()
	}
	s := l.find(f)
	if s == nil {
		return false
	}
	for u, n := range cost {
		if held && !l.plan.estimated[u] && s[heldOf(u)] < n || !held && s[totalOf(u)]-s[heldOf(u)] < n {
			return false // the slot does not contain it
		}
	}
	for u, n := range cost {
		if held && l.plan.estimated[u] {
			continue
		}
		s[totalOf(u)] -= n
		if held {
			s[heldOf(u)] -= n
		}
		l.word[u] -= n
	}
	return true
}

// advance moves the clock forward to now, lands the requests whose guard has passed, and returns
// the present moment.
func (l *Ledger) advance(now Moment) Moment {
	if now.At < l.last {
		now = now.on(l.last)
	}
	l.last = now.At
	if l.plan.aligned {
		l.correctDates(now)
	}
	if len(l.word) > l.plan.base && l.word[l.plan.base] <= now.At {
		l.landUntil(now)
	}
	if l.readings != nil {
		l.applyResets(now)
	}
	return now
}

// correctDates corrects the state of the tiers that count by the wall clock, if its date was wrong.
func (l *Ledger) correctDates(now Moment) {
	for i, r := range l.plan.rules {
		if c, ok := r.(corrector); ok {
			c.correct(l, now)
			if l.readings != nil && (*l.readings)[i].hasOwn {
				l.withoutOthers(i, func() { c.correct(l, now) })
			}
		}
	}
}

func (l *Ledger) landUntil(now Moment) {
	l.DropCredit()
	done := 0
	for ; done < l.slots() && l.slot(done)[0] <= now.At; done++ {
		at := now.on(l.slot(done)[0])
		for i, u := range l.plan.unit {
			if _, n := l.landing(done, u); n > 0 {
				l.land(i, at, n)
			}
		}
		for u := range l.plan.units {
			_, n := l.landing(done, u)
			l.word[u] -= n
		}
	}
	l.word = append(l.word[:l.plan.base], l.word[l.plan.base+done*l.plan.stride():]...)
}

// landAll lands every request at the end of its guard, and returns the moment of the last one.
func (l *Ledger) landAll(now Moment) Moment {
	if s := l.lastSlot(); s != nil {
		now = now.on(s[0])
	}
	return l.advance(now)
}

// landingFrom returns how many units in flight may land at an instant or later.
func (l *Ledger) landingFrom(unit int, from int64) int64 {
	n := l.inFlight(unit)
	for i := range l.slots() {
		if at, carried := l.landing(i, unit); at < from {
			n -= carried
		}
	}
	return n
}

// nthLanding returns the instant at which the n-th oldest unit in flight lands.
func (l *Ledger) nthLanding(unit int, n int64) int64 {
	for i := range l.slots() {
		at, carried := l.landing(i, unit)
		if n -= carried; n <= 0 {
			return at
		}
	}
	return Never
}
