package algorithms

import "sync"

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
	*v = Ledger{word: v.word}
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
		e := r.earliestTotal(l, now, n)
		if l.readings != nil {
			e = min(e, l.nextReset(i, now))
		}
		if e > at {
			at, tier = e, i
		}
	}
	return at, tier
}

// rounds returns how many times the limit fits into n before the last unit, and the rest of n.
func rounds(n, limit int64) (full, rest int64) {
	full = (n - 1) / limit
	return full, n - full*limit
}

// after returns the instant that many windows later, or Never if that is after Latest.
func after(at, windows, window int64) int64 {
	switch {
	case windows == 0 || window == 0:
		return at
	case at >= Latest || windows > (Latest-at)/window:
		return Never
	}
	return at + windows*window
}
