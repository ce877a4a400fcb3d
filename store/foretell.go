package store

import (
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Tiers reports every tier of a ledger.
func Tiers(l *algorithms.Ledger, now algorithms.Moment) []TierStatus {
	tiers := make([]TierStatus, 0, len(l.Plan().Tiers()))
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
		})
	}
	return tiers
}

// Foretell plays a copy of a ledger forward, by a clock. Nothing is admitted before
// an instant.
func Foretell(l *algorithms.Ledger, clock func() algorithms.Moment, from int64) Forecast {
	f := &forecast{ledger: l.Clone(), clock: clock}
	now := clock()
	f.ledger.LandHeld(now)
	f.last = now.Later(from)
	return f
}

type forecast struct {
	ledger algorithms.Ledger
	clock  func() algorithms.Moment
	last   algorithms.Moment // nothing is admitted before
}

func (f *forecast) Book(r Request, within time.Duration) (time.Duration, bool) {
	now := f.clock()
	next := now.Later(f.last.At)
	at, tier := f.ledger.Earliest(next, r.Cost)
	if f.ledger.Plan().Exhausted(tier) {
		return 0, true // it will be refused when its turn comes, unless something is given back
	}
	if r.Leaves() > 0 {
		leaving, _ := f.ledger.EarliestLeaving(next, r.Cost, r.Headroom)
		at = min(leaving, max(at, now.At+algorithms.Micros(r.YieldFor)))
	}
	wait := now.Until(at)
	if wait > within {
		return wait, false
	}
	f.last = now.Later(at)
	flight := f.ledger.Charge(f.last, r.Cost, algorithms.Micros(r.Guard), r.Held)
	if r.Held {
		f.ledger.Land(f.last, flight, r.Cost)
		f.ledger.Settle(f.last, r.Cost, make([]int64, len(r.Cost)))
		f.ledger.Release(r.Cost)
	}
	return wait, true
}

// Observe tells a ledger what the provider says it counts, by the response to a request
// that was admitted at an instant. What is exact holds only if the request was not admitted
// before the one whose response last was: exact is when that was, and what it becomes.
func Observe(l *algorithms.Ledger, now algorithms.Moment, admitted, exact int64, seen []Observation) int64 {
	latest := exact
	for _, o := range seen {
		l.Observe(now, algorithms.Observation{Tier: o.Tier, Used: o.Used, Since: admitted, Exact: o.Exact && admitted >= exact})
		if o.Exact {
			latest = max(latest, admitted)
		}
	}
	return latest
}
