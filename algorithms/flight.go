package algorithms

// A Flight is the place of a held request among those on their way.
type Flight int64

// Landed is the Flight of a request that counted the instant it was admitted.
const Landed Flight = -1

// A slot is a stretch of the words: the instant at which its requests land, then
// for each unit how much it carries and how much of that is held. Requests that
// leave within one grain of the guard share a slot and land with the last of
// them, so a guard has at most 34 slots at any rate.
const slotHead = 1

func totalOf(unit int) int { return slotHead + 2*unit }
func heldOf(unit int) int  { return slotHead + 2*unit + 1 }

func (l *Ledger) stride() int { return slotHead + 2*len(l.plan.units) }

// aloft is how many of a unit are on their way.
func (l *Ledger) aloft(unit int) int64 { return l.word[l.plan.tierWords+unit] }

func (l *Ledger) slots() int {
	return (len(l.word) - l.plan.tierWords - len(l.plan.units)) / l.stride()
}

func (l *Ledger) slot(i int) []int64 {
	start := l.plan.tierWords + len(l.plan.units) + i*l.stride()
	return l.word[start : start+l.stride()]
}

// landing is when slot i lands and how many of a unit it carries.
func (l *Ledger) landing(i, unit int) (at, n int64) {
	s := l.slot(i)
	return s[0], s[totalOf(unit)]
}

// depart puts the cost on its way.
func (l *Ledger) depart(at int64, cost []int64, held bool) Flight {
	last := l.slots() - 1
	if last < 0 || at/l.plan.grain != (l.slot(last)[0]-l.plan.guard)/l.plan.grain {
		last++
		for range l.stride() {
			l.word = append(l.word, 0)
		}
	}
	s := l.slot(last)
	s[0] = at + l.plan.guard
	for u, n := range cost {
		s[totalOf(u)] += n
		if held {
			s[heldOf(u)] += n
		}
		l.word[l.plan.tierWords+u] += n
	}
	return Flight(l.first + int64(last))
}

// alight takes a held cost off its way and tells whether it still was on it.
func (l *Ledger) alight(f Flight, cost []int64) bool {
	if f == Landed || int64(f) < l.first {
		return false
	}
	s := l.slot(int(int64(f) - l.first))
	for u, n := range cost {
		s[totalOf(u)] -= n
		s[heldOf(u)] -= n
		l.word[l.plan.tierWords+u] -= n
	}
	return true
}

// advance lands the requests whose guard has passed.
func (l *Ledger) advance(now Moment) {
	base := l.plan.tierWords + len(l.plan.units)
	if len(l.word) == base || l.word[base] > now.At {
		return
	}
	l.landUntil(now)
}

func (l *Ledger) landUntil(now Moment) {
	done := 0
	for done < l.slots() && l.slot(done)[0] <= now.At {
		at := now.on(l.slot(done)[0])
		for i, r := range l.plan.rules {
			if _, n := l.landing(done, l.plan.unit[i]); n > 0 {
				r.land(l, at, n)
			}
		}
		for u := range l.plan.units {
			_, n := l.landing(done, u)
			l.word[l.plan.tierWords+u] -= n
		}
		done++
	}
	base := l.plan.tierWords + len(l.plan.units)
	l.word = append(l.word[:base], l.word[base+done*l.stride():]...)
	l.first += int64(done)
}

// landAll lands everything, each when its guard has passed, and returns the
// moment of the last.
func (l *Ledger) landAll(now Moment) Moment {
	if n := l.slots(); n > 0 {
		now = now.on(l.slot(n - 1)[0])
	}
	l.advance(now)
	return now
}

// nthLanding is when the n-th oldest of a unit on its way lands.
func (l *Ledger) nthLanding(unit int, n int64) int64 {
	for i := range l.slots() {
		at, carried := l.landing(i, unit)
		if n -= carried; n <= 0 {
			return at
		}
	}
	return Never
}
