package algorithms

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// resolutions is the number of parts into which a guard is divided at least. Requests that would
// land within the same 1/32 of the guard land together, with the last of them.
const resolutions = 32

// A Plan is a set of tiers, validated and ready to decide. It never changes, and any number of
// ledgers and goroutines may share it.
type Plan struct {
	given      []Tier // as NewPlan received them
	tiers      []Tier // those that decide, including the paces
	declared   []int  // of each tier, its index in given
	rules      []rule // of each tier
	unit       []int  // of each tier, the index of its unit
	estimated  []bool // of each unit
	usual      []rule // that count one request, the usual cost; nil if ledgers give no credit
	usualUnit  int
	senders    []sender
	calendars  []*fixedWindow
	anchored   []*anchoredWindow
	units      []string
	guard      int64     // microseconds
	resolution int       // a slot holds the landings of 1<<resolution microseconds
	base       int       // the number of a ledger's words before its slots
	rings      int       // the number of a ledger's rings
	start      time.Time // until when the use is unknown; zero if a quota starts unused
	aligned    bool      // some tier follows the wall clock
	budgets    bool      // some tier is a budget
	concurrent bool      // some tier counts units until they are released
	estimates  bool      // some unit is estimated
	learned    []*learned
	unfollowed *Plan    // without what it has taken over; nil if that is nothing
	followed   Followed // what it has taken over from responses
}

// A rule is the counter of one tier. It never changes. The state of a quota is in the quota's
// ledger, at the rule's site.
type rule interface {
	// place returns the rule's site, and words the size of its state there.
	place() site
	words() (words, rings int)
	// earliest returns the first instant from now on at which the tier admits n units behind
	// everything that has landed or is in flight.
	earliest(s *state, now Moment, n int64) int64
	// earliestTotal returns a lower bound of the instant at which the tier has admitted n units,
	// in requests of any size. n may exceed the tier's capacity.
	earliestTotal(s *state, now Moment, n int64) int64
	// land counts n units that the provider has counted by the moment.
	land(s *state, at Moment, n int64)
	// used returns how many landed units still count.
	used(s *state, now Moment) int64
	// fresh returns the instant from which no landed unit counts.
	fresh(s *state, now Moment) int64
	// forget reduces the landed units that count to keep at most.
	forget(s *state, now Moment, keep int64)
	// recurs reports whether the rule's state in s is that in o, but later by so many microseconds.
	recurs(s, o *state, by int64) bool
	// sound reports whether the rule may rely on its state, which was decoded.
	sound(s *state) bool
}

// A refunder is a rule that can take back n units that have landed at from or later, as far as they still
// count. Where it can't tell them from others, it takes back those that leave no later, or less.
type refunder interface {
	refund(s *state, now Moment, from, n int64)
}

// A sender is a rule that also records n units when they are admitted, before they are in
// flight.
type sender interface {
	place() site
	send(s *state, now Moment, n int64)
}

// A corrector is a rule that counts by the wall clock. correct changes the rule's state if the date of
// the last landing was wrong: the wall clock has since stepped back by more than clocks ordinarily
// do. The units then count in the window that the clock now shows for that landing.
type corrector interface {
	correct(s *state, now Moment)
}

// A grouper is a rule whose units leave in groups. joined returns the moment of the last group if a
// unit that lands at a moment joins that group, and else that moment.
type grouper interface {
	joined(s *state, at Moment) Moment
}

// A releaser is a rule whose units count until they are released.
type releaser interface {
	release(s *state, n int64)
}

// A site is the place of a rule's state in a ledger, and the indexes of its unit and its tier.
type site struct {
	word, ring, unit, tier int
}

func (s site) place() site { return s }

// NewPlan returns a plan of the tiers. The guard is the longest time that an admitted request may
// take to reach the provider, rounded up to microseconds. If zero, a request arrives the instant
// it is admitted. The error joins all problems, and each names its tier.
func NewPlan(tiers []Tier, guard time.Duration) (*Plan, error) {
	var errs []error
	if len(tiers) == 0 {
		errs = append(errs, errors.New("Tiers is empty: it must have at least one tier, such as PerSecond(5)"))
	}
	if guard < 0 || guard > MaxWindow {
		errs = append(errs, fmt.Errorf("Guard is %v: it must be from 0 to %v", guard, MaxWindow))
	}
	for _, t := range tiers {
		if err := t.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("tier %q: %w", t, err))
		}
	}
	for _, t := range tiers {
		if t.counter().released && slices.ContainsFunc(tiers, func(o Tier) bool { return o.Estimated && o.Unit == t.Unit }) {
			errs = append(errs, fmt.Errorf("tier %q: Unit is %q: %v can't count estimates, name another unit", t, t.Unit, t.Algorithm))
		}
		if t.Learns() && slices.ContainsFunc(tiers, func(o Tier) bool { return o.Estimated && o.Unit == t.Unit }) {
			errs = append(errs, fmt.Errorf("tier %q: Unit is %q: a learned tier can't count estimates, name another unit", t, t.Unit))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p := &Plan{given: slices.Clone(tiers), guard: Micros(guard)}
	p.resolution = max(1, bits.Len64(uint64(p.guard/resolutions))) - 1
	for _, t := range tiers {
		if unit := t.normal().Unit; !slices.Contains(p.units, unit) {
			p.units = append(p.units, unit)
		}
	}
	p.base = len(p.units)
	p.estimated = make([]bool, len(p.units))
	for _, t := range tiers {
		if t.Estimated {
			p.estimated[slices.Index(p.units, t.Unit)], p.estimates = true, true
		}
	}
	for i, t := range tiers {
		p.add(t.normal(), i)
		if t.PaceBurst > 0 {
			p.add(t.pace().normal(), i)
		}
	}
	p.findUsual()
	return p, nil
}

func (p *Plan) add(t Tier, declared int) {
	u := slices.Index(p.units, t.Unit)
	c := t.counter()
	r := c.newRule(t, site{word: p.base, ring: p.rings, unit: u, tier: len(p.tiers)})
	if c.period {
		p.calendars = append(p.calendars, r.(*fixedWindow))
	}
	if a, ok := r.(*anchoredWindow); ok {
		p.anchored = append(p.anchored, a)
	}
	if l, ok := r.(*learned); ok {
		p.learned = append(p.learned, l)
	}
	words, rings := r.words()
	p.tiers = append(p.tiers, t)
	p.declared = append(p.declared, declared)
	p.rules = append(p.rules, r)
	p.unit = append(p.unit, u)
	if d, ok := r.(sender); ok {
		p.senders = append(p.senders, d)
	}
	p.base += words
	p.rings += rings
	p.aligned = p.aligned || c.aligned
	p.budgets = p.budgets || t.Budget
	p.concurrent = p.concurrent || c.released
}

// NewLedger returns the ledger of an unused quota.
func (p *Plan) NewLedger() Ledger { return Ledger{state: newState(p)} }

// Tiers returns the tiers that decide: those passed to NewPlan, with their defaults set. A tier
// with a PaceBurst is followed by its pace.
func (p *Plan) Tiers() []Tier { return p.tiers }

// Given returns the tiers as NewPlan received them.
func (p *Plan) Given() []Tier { return p.given }

// Declared returns the index in Given of a tier, or of the tier whose pace it is.
func (p *Plan) Declared(tier int) int { return p.declared[tier] }

// IsPace reports whether a tier is the pace of the tier before it.
func (p *Plan) IsPace(tier int) bool { return tier > 0 && p.declared[tier] == p.declared[tier-1] }

// Units returns the names of the units that the tiers count. The i-th amount of a cost is in the
// i-th unit.
func (p *Plan) Units() []string { return p.units }

// UnitOf returns the index of the unit that a tier counts.
func (p *Plan) UnitOf(tier int) int { return p.unit[tier] }

// Guard returns how long a request is in flight at most, unless it has a guard of its own.
func (p *Plan) Guard() time.Duration { return time.Duration(p.guard) * time.Microsecond }

// AssumeUsedAt returns the plan for quotas that count as used up at an instant, because the use
// before it is unknown.
func (p *Plan) AssumeUsedAt(at time.Time) *Plan {
	started := *p
	started.start = at
	return &started
}

// WithShortLogs returns a plan that keeps no log of more than some stamps: a tier of more is a
// SlidingWindow, also if it is a FixedWindow of UnknownPhase. It is the plan itself if it has none.
func (p *Plan) WithShortLogs(most int64) *Plan {
	long := func(t Tier) bool { return t.Algorithm == SlidingLog && t.Limit > most }
	if !slices.ContainsFunc(p.tiers, long) {
		return p
	}
	tiers := slices.Clone(p.given)
	for i, t := range p.tiers {
		if long(t) && !p.IsPace(i) {
			own := &tiers[p.declared[i]]
			own.Algorithm, own.Phase = SlidingWindow, 0
		}
	}
	short, err := NewPlan(tiers, p.Guard())
	if err != nil {
		return p // its window is too short for parts
	}
	short.start = p.start
	return short
}

// Start returns the instant passed to AssumeUsedAt. It is zero for quotas that start unused.
func (p *Plan) Start() time.Time { return p.start }

// Resolution returns the resolution of landings: requests that would land within the same
// 1<<Resolution microseconds land together.
func (p *Plan) Resolution() int { return p.resolution }

// Aligned reports whether a tier follows the wall clock. If not, Moment.Wall has no effect.
func (p *Plan) Aligned() bool { return p.aligned }

// Concurrent reports whether the plan has a concurrency tier. If so, every admission must be
// released.
func (p *Plan) Concurrent() bool { return p.concurrent }

// Estimates reports whether some unit is estimated. If so, every admission must be settled or
// canceled, or reported as unanswered.
func (p *Plan) Estimates() bool { return p.estimates }

// Estimated reports whether amounts of a unit are estimates until they are settled.
func (p *Plan) Estimated(unit int) bool { return p.estimated[unit] }

// MaxCost returns for each unit the largest amount that every tier of that unit can admit. It is
// MaxLimit if one of them is a budget, because a budget refuses larger amounts.
func (p *Plan) MaxCost() []int64 {
	most := slices.Repeat([]int64{MaxLimit}, len(p.units))
	for i, t := range p.tiers {
		most[p.unit[i]] = min(most[p.unit[i]], t.Capacity())
	}
	for i, t := range p.tiers {
		if t.Budget {
			most[p.unit[i]] = MaxLimit
		}
	}
	return most
}

// TooLarge returns the first tier that can never admit the cost, or -1.
func (p *Plan) TooLarge(cost []int64) int {
	for i, t := range p.tiers {
		if cost[p.unit[i]] > t.Capacity() {
			return i
		}
	}
	return -1
}

// Equal reports whether two plans decide alike.
func (p *Plan) Equal(q *Plan) bool {
	return p == q || p.guard == q.guard && slices.Equal(p.tiers, q.tiers)
}

// MaxRates returns for each tier how many units a second it admits at most in the long run, if
// each request costs one unit and responses are not reported. Every unit is then in flight for the
// whole guard, and its window starts after that: 100/s with a Burst of 1 and a guard of 50 ms
// admits one request every 60 ms, 16.7 a second. Responses that come sooner raise the rate. The
// rate of Concurrency and Calendar is zero, which stands for none. The rate of a tier with a
// PaceBurst is the rate of its pace, if that is lower.
func (p *Plan) MaxRates() []float64 {
	rates := make([]float64, len(p.tiers))
	for i, t := range p.tiers {
		if rate := t.counter().rate; rate != nil {
			rates[i] = 1e6 * rate(float64(t.Limit), float64(Micros(t.Window)), float64(t.Burst), float64(p.guard))
		}
		if p.IsPace(i) {
			rates[i-1] = min(rates[i-1], rates[i])
		}
	}
	return rates
}

// Learns reports whether any tier learns its rate.
func (p *Plan) Learns() bool { return p.learned != nil }

// LearnedRate returns what the words of a tier mean, as a store keeps them: the words of a Ledger.
func (p *Plan) LearnedRate(tier int, words []int64, now int64) *LearnedRate {
	r, ok := p.rules[tier].(*learned)
	if !ok || len(words) != learnedWords {
		return nil
	}
	return r.report(words, now)
}

// stride is the number of words of a slot.
func (p *Plan) stride() int { return 1 + 2*len(p.units) }

// flight returns the Flight of a request that lands at an instant.
func (p *Plan) flight(lands int64) Flight { return Flight(lands >> p.resolution) }

// Exhausted reports whether the deciding tier is a budget. If so, the request must not wait.
func (p *Plan) Exhausted(tier int) bool { return tier >= 0 && p.tiers[tier].Budget }

// Quick reports whether ledgers of the plan give credit.
func (p *Plan) Quick() bool { return p.usual != nil }

// findUsual sets the rules that count the usual cost, if every tier is steady.
func (p *Plan) findUsual() {
	for i, t := range p.tiers {
		if !t.counter().steady || t.Learns() || t.Phase == UnknownPhase || p.guard == 0 || p.estimates {
			p.usual = nil
			return
		}
		if t.Unit == Requests {
			p.usual, p.usualUnit = append(p.usual, p.rules[i]), p.unit[i]
		}
	}
}

// PeriodStarts returns for each calendar tier in turn the starts of five periods, as Unix time in
// microseconds: the period before that of an instant, its own, and the next three.
func (p *Plan) PeriodStarts(wall int64) (starts []int64) {
	for _, r := range p.calendars {
		own := r.periodStart(wall, 0)
		starts = append(starts, r.periodStart(own-1, 0), own)
		for range 3 {
			starts = append(starts, r.periodStart(starts[len(starts)-1], 1))
		}
	}
	return starts
}
