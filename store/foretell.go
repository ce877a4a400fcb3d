package store

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Tiers reports every tier of a ledger.
func Tiers(l *algorithms.Ledger, now algorithms.Moment) []TierStatus {
	tiers, rates := make([]TierStatus, 0, len(l.Plan().Tiers())), l.Plan().MaxRates()
	for i, u := range l.Usage(now) {
		t := l.Plan().Tiers()[i]
		tiers = append(tiers, TierStatus{
			Tier:       t,
			Limited:    u.Next > now.At,
			Limit:      t.Capacity(),
			Used:       u.Used,
			Remaining:  max(0, t.Capacity()-u.Used),
			RetryAfter: now.Until(u.Next),
			ResetAfter: now.Until(u.Fresh),
			MaxRate:    rates[i],
		})
	}
	return tiers
}

// Foretell makes a forecast of a copy of a ledger, by a clock. Nothing is admitted
// before an instant.
func Foretell(l *algorithms.Ledger, clock func() algorithms.Moment, from int64) Forecast {
	f := &forecast{next: l.Clone(), made: clock(), loose: isLoose(l.Plan())}
	f.next.LandHeld(f.made)
	f.total = f.next.Clone()
	f.from = f.made.Later(from)
	f.last = f.from
	return f
}

type forecast struct {
	loose       bool // Next returns no bound
	next, total algorithms.Ledger
	made        algorithms.Moment
	from        algorithms.Moment // nothing is admitted before
	last        algorithms.Moment // when the last request that Next added is admitted
}

// isLoose reports whether the best that can come is not that every response comes at once:
// beside other tiers, a request that goes later may open an anchored window at a better time
// for those behind it. Then Next returns no bound.
func isLoose(p *algorithms.Plan) bool {
	anchored := slices.ContainsFunc(p.Tiers(), func(t algorithms.Tier) bool { return t.Algorithm == algorithms.AnchoredWindow })
	return anchored && len(p.Tiers()) > 1 && p.Guard() > 0
}

func (f *forecast) Next(r Request) (at time.Duration, tier int) {
	if f.loose {
		return 0, -1
	}
	instant, tier := f.next.Earliest(f.last, algorithms.Request{Cost: r.Cost})
	if f.next.Plan().Exhausted(tier) {
		return f.made.Until(f.last.At), -1 // refused when its turn comes, unless something is given back
	}
	if instant >= algorithms.Latest {
		return Forever, tier
	}
	f.last = f.last.Later(instant)
	flight := f.next.Charge(f.last, algorithms.Request{Cost: r.Cost, Guard: algorithms.Micros(r.Guard), Held: r.Held})
	if r.Held {
		f.next.Land(f.last, flight, r.Cost)
		f.next.Settle(f.last, r.Cost, make([]int64, len(r.Cost)))
		f.next.Release(r.Cost)
	}
	return f.made.Until(f.last.At), tier
}

func (f *forecast) Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int) {
	instant, tier := f.total.EarliestTotal(f.from, ahead, cost, headroom)
	return f.made.Until(instant), tier
}

// Until is how long the count goes on, in microseconds; zero where that is not told.
func (o Observation) Until() int64 {
	if o.Full {
		return 0
	}
	return algorithms.Micros(o.Reset)
}

// Observe gives a ledger what the response to a request of some cost reports, which was
// admitted at an instant. What is exact holds only if the request was not admitted before
// the one whose response last was: exact is when that was, and what it becomes.
func Observe(l *algorithms.Ledger, now algorithms.Moment, admitted int64, cost []int64, exact int64, seen []Observation) int64 {
	latest := exact
	for _, o := range seen {
		l.Observe(now, algorithms.Observation{
			Tier: o.Tier, Used: o.Used, Since: admitted, Cost: cost[l.Plan().UnitOf(o.Tier)], Exact: o.Exact && admitted >= exact,
			Reset: o.Until(), Slack: algorithms.Micros(o.Slack), Try: true, Refused: o.Refused,
		})
		if o.Exact {
			latest = max(latest, admitted)
		}
	}
	return latest
}
