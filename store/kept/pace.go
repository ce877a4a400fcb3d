package kept

import (
	"slices"

	"github.com/apithrottle/throttle/algorithms"
)

// A rate that is learned may have decreased since a booking was made, which was returned since. If all such bookings were taken
// over, requests would go at the pace of before, and the provider would refuse them. If none were, no request would go until
// the last booking. So a request takes one over if the requests before and after it are far enough away. If nothing but
// learned rates depends on the instant of the booking, it moves for that.

// A pace has what keeps has found in a transaction.
type pace struct {
	// used is the plan's ledger with the bookings before the index to that are not free. If nil, it has not been needed.
	used *algorithms.Ledger
	to   int
	// next is the index of the first booking that is not free behind those that were looked at. If too low, it is not known.
	next int
	// hasty has the instants of free bookings that are too near to others.
	hasty map[int64]bool
}

// keeps reports whether the tiers admit a cost at the instant of the i-th booking, which is free, and then the next booking
// that is not free. If moves is set, the booking may become a little later for that. A plan that learns no rates always does.
func (p *pace) keeps(t *txn, i int, cost []int64, moves bool) bool {
	if !t.plan.Learns() {
		return true
	}
	b := t.book[i]
	if p.hasty[b.at] {
		return false
	}
	if p.used == nil || p.to > i {
		l := t.ledger().Clone()
		p.used, p.to = &l, 0
	}
	for ; p.to < i; p.to++ {
		if b := &t.book[p.to]; !b.free {
			t.chargeTo(p.used, t.own, b, t.owner(b.owner), true)
		}
	}
	p.next = max(p.next, i+1)
	for p.next < len(t.book) && t.book[p.next].free {
		p.next++
	}
	last, at := b.at, admitsFrom(t, p.used, b.at, cost)
	if p.next < len(t.book) && moves && isMovable(t) {
		last = t.book[p.next].at
	}
	fits := at <= last
	if fits && p.next < len(t.book) {
		l, next := p.used.Clone(), &t.book[p.next]
		t.chargeTo(&l, t.own, &booking{at: at, guard: b.guard, cost: cost, free: true}, nil, true)
		fits = admitsFrom(t, &l, next.at, next.cost) <= next.at
	}
	if !fits {
		if p.hasty == nil {
			p.hasty = make(map[int64]bool)
		}
		p.hasty[b.at] = true
	} else if at > b.at {
		p.move(t, i, at)
	}
	return fits
}

// admitsFrom returns the first instant from an instant on at which a ledger of the plan admits a cost.
func admitsFrom(t *txn, l *algorithms.Ledger, from int64, cost []int64) (at int64) {
	at, _ = l.Earliest(t.moment(from), algorithms.Request{Cost: t.of(t.own, cost)})
	return at
}

// isMovable reports whether only learned rates depend on the instants of bookings.
func isMovable(t *txn) bool {
	return len(t.ledgers) == 1 && !slices.ContainsFunc(t.plan.Tiers(), func(tier algorithms.Tier) bool { return !tier.Learns() })
}

// move moves a free booking to a later instant. It drops the free bookings until then. No other is as early.
func (p *pace) move(t *txn, i int, at int64) {
	n := i + 1
	for n < len(t.book) && t.book[n].free && t.book[n].at <= at {
		n++
	}
	t.book[i].at = at
	t.book = slices.Delete(t.book, i+1, n)
	p.next -= n - i - 1
	t.changed, t.whole = true, nil
}
