package store

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// Tiers returns the state of every tier of a ledger.
func Tiers(l *algorithms.Ledger, now algorithms.Moment) []TierStatus {
	tiers, rates := make([]TierStatus, 0, len(l.Plan().Tiers())), l.Plan().MaxRates()
	learned := l.LearnedRates(now)
	for i, u := range l.Usage(now) {
		t := l.Plan().Tiers()[i]
		tiers = append(tiers, TierStatus{
			Tier:       t,
			Limited:    u.Next > now.At,
			Limit:      t.Capacity(),
			Used:       u.Used,
			InFlight:   u.InFlight,
			Others:     u.Others,
			Remaining:  max(0, t.Capacity()-u.Used),
			RetryAfter: now.Until(u.Next),
			ResetAfter: now.Until(u.Fresh),
			MaxRate:    rates[i],
		})
		if learned != nil && learned[i] != nil {
			tiers[i].SetLearned(learned[i], now.At)
		}
	}
	return tiers
}

// SetLearned sets what a quota knows of the rate of the tier at an instant, and with that its MaxRate.
func (t *TierStatus) SetLearned(l *algorithms.LearnedRate, now int64) {
	t.Learned = &Learned{Rate: l.Rate, Refused: l.Refused, Next: l.Next, Noise: l.Noise}
	if l.At > 0 {
		t.Learned.Ago = time.Duration(max(0, now-l.At)) * time.Microsecond
	}
	t.MaxRate = l.Rate / t.Tier.Window.Seconds()
}

// Soonest returns the result of a Quota's Soonest for a quota that keeps a ledger and admits
// nothing before the instant from.
func Soonest(l *algorithms.Ledger, now algorithms.Moment, from int64, cost []int64, headroom int64) (wait time.Duration, tier int) {
	at, tier := l.Soonest(now, cost, headroom)
	switch {
	case at >= algorithms.Latest:
		return Forever, tier
	case at <= from:
		at, tier = from, -1
	}
	return max(0, now.Until(at)), tier
}

// Foretell returns a forecast that works on a copy of a ledger. It begins at the present time of
// clock and admits nothing before the instant from.
func Foretell(l *algorithms.Ledger, clock func() algorithms.Moment, from int64) Forecast {
	f := &forecast{total: l.Clone(), start: clock(), loose: isLoose(l.Plan())}
	f.total.LandHeld(f.start)
	f.from = f.start.Later(from)
	return f
}

type forecast struct {
	// Next returns no bound: see isLoose.
	loose bool
	total algorithms.Ledger
	start algorithms.Moment
	// from is the instant before which the forecast admits nothing.
	from algorithms.Moment
	// next is the copy to which Next adds requests. If nil, it has added none.
	next *algorithms.Ledger
	// last is when the last request that Next added is admitted.
	last algorithms.Moment
}

// isLoose reports whether immediate responses are not the best case. Beside other tiers, a request
// that goes later may open an anchored window at a better time for the requests behind it. Next
// then returns no bound.
func isLoose(p *algorithms.Plan) bool {
	anchored := slices.ContainsFunc(p.Tiers(), func(t algorithms.Tier) bool { return t.Algorithm == algorithms.AnchoredWindow })
	return anchored && len(p.Tiers()) > 1 && p.Guard() > 0
}

func (f *forecast) Next(r Request) (at time.Duration, tier int) {
	if f.loose {
		return 0, -1
	}
	if f.next == nil {
		next := f.total.Clone()
		f.next, f.last = &next, f.from
	}
	instant, tier := f.next.Earliest(f.last, algorithms.Request{Cost: r.Cost})
	if f.next.Plan().Exhausted(tier) {
		return f.start.Until(f.last.At), -1 // refused in its turn, unless units are returned before
	}
	if instant >= algorithms.Latest {
		return Forever, tier
	}
	f.last = f.last.Later(instant)
	lead := f.next.Lead(&f.total, r.Cost)
	flight := f.next.Charge(f.last, algorithms.Request{Cost: r.Cost, Guard: algorithms.Micros(r.Guard), Held: r.Held})
	if r.Held {
		f.next.Arrived(f.last, flight, r.Cost)
		f.next.Settle(f.last, r.Cost, make([]int64, len(r.Cost)))
		f.next.Release(r.Cost)
	}
	return max(f.start.Until(f.from.At), f.start.Until(f.last.At-lead)), tier
}

func (f *forecast) Total(ahead, cost []int64, headroom int64) (at time.Duration, tier int) {
	instant, tier := f.total.EarliestTotal(f.from, ahead, cost, headroom)
	return f.start.Until(instant), tier
}

// Until returns how long the count goes on, in microseconds. It is zero where the response does not
// contain that.
func (o Observation) Until() int64 {
	if o.Full {
		return 0
	}
	return algorithms.Micros(o.Reset)
}

// Observe applies to a ledger the readings of a response. The request had a cost and was admitted
// at the instant admitted. exact is when the last request with an authoritative reading was
// admitted. An authoritative reading holds only if its request was not admitted before that.
// Observe returns the new value of exact.
func Observe(l *algorithms.Ledger, now algorithms.Moment, admitted int64, cost []int64, exact int64, seen []Observation) int64 {
	newExact := exact
	for _, o := range seen {
		l.Observe(now, algorithms.Observation{
			Tier: o.Tier, Used: o.Used, Since: admitted, Cost: cost[l.Plan().UnitOf(o.Tier)], Exact: o.Exact && admitted >= exact,
			Reset: o.Until(), Slack: algorithms.Micros(o.Slack), Probe: true, Refused: o.Refused,
		})
		if o.Exact {
			newExact = max(newExact, admitted)
		}
	}
	return newExact
}
