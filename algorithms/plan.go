package algorithms

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// grains is how fine a guard is cut at least: requests that would land within the
// same 1/32 of it land together, with the last of them.
const grains = 32

// A Plan is a set of tiers made ready to decide. It never changes, so that any
// number of ledgers and goroutines share one.
type Plan struct {
	given      []Tier // as they came
	tiers      []Tier // those that decide, the paces too
	declared   []int  // the index of each among the tiers that were given
	rules      []rule
	unit       []int  // which unit each tier counts
	estimated  []bool // of each unit
	departures []departure
	calendars  []*calendar
	anchored   []*anchoredWindow
	units      []string
	guard      int64 // microseconds
	grain      int   // a slot of the guard is 1<<grain microseconds
	base       int   // words of a ledger before its slots
	rings      int
	start      time.Time // what was sent before is unknown, zero if nothing was
	learns     *view     // of the first tier whose boundaries may be learned, nil if there is none
	aligned    bool
	budgets    bool // a tier is one
	concurrent bool
	estimates  bool // some unit is estimated
}

// A rule is the counter of one tier. It never changes either: what it remembers
// of a quota lies in that quota's ledger, at its site.
type rule interface {
	// words says how much of a ledger the rule needs.
	words() (words, rings int)
	// earliest is the first instant from now on at which n units are admitted
	// behind everything that has landed or is on its way.
	earliest(l *Ledger, now Moment, n int64) int64
	// earliestTotal is a lower bound of when n units, however many, have been admitted,
	// in requests of any size.
	earliestTotal(l *Ledger, now Moment, n int64) int64
	// land is told of n units that have been counted by the provider at the latest.
	land(l *Ledger, at Moment, n int64)
	// used is how many units that have landed still count.
	used(l *Ledger, now Moment) int64
	// fresh is the instant from which all that has landed counts no more.
	fresh(l *Ledger, now Moment) int64
	// forget makes all but some of the units that have landed count no more.
	forget(l *Ledger, now Moment, keep int64)
}

// A departer is a rule that must also be told of n units when they are admitted,
// before they are on their way.
type departer interface {
	depart(l *Ledger, now Moment, n int64)
}

// A departure is a departer and the unit that it counts.
type departure struct {
	departer
	unit int
}

// A releaser is a rule whose units count until they are released.
type releaser interface {
	release(l *Ledger, n int64)
}

// A site is where in a ledger a rule finds what it remembers.
type site struct {
	word, ring, unit int
}

// NewPlan makes tiers ready. The guard is the longest that an admitted request
// may take to reach the provider, rounded up to microseconds; zero means that it
// arrives the instant it is admitted. The error joins every problem, each naming
// its tier.
func NewPlan(tiers []Tier, guard time.Duration) (*Plan, error) {
	var errs []error
	if len(tiers) == 0 {
		errs = append(errs, errors.New("Tiers is empty: it must have at least one tier, such as PerSecond(5)"))
	}
	if guard < 0 || guard > MaxWindow {
		errs = append(errs, fmt.Errorf("Guard is %v: it must be from 0 to %v", guard, MaxWindow))
	}
	for i, t := range tiers {
		if err := t.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("tier %d %q: %w", i, t, err))
		}
	}
	for i, t := range tiers {
		if t.counter().released && slices.ContainsFunc(tiers, func(o Tier) bool { return o.Estimated && o.Unit == t.Unit }) {
			errs = append(errs, fmt.Errorf("tier %d %q: Unit is %q: %v can't count what is Estimated, name another", i, t, t.Unit, t.Algorithm))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p := &Plan{given: slices.Clone(tiers), guard: Micros(guard)}
	p.grain = max(1, bits.Len64(uint64(p.guard/grains))) - 1
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
	return p, nil
}

func (p *Plan) add(t Tier, declared int) {
	u := slices.Index(p.units, t.Unit)
	c := t.counter()
	r := c.newRule(t, site{word: p.base, ring: p.rings, unit: u})
	if r, ok := r.(*calendar); ok {
		r.tier = len(p.tiers)
		p.calendars = append(p.calendars, r)
	}
	if a, ok := r.(*anchoredWindow); ok {
		p.anchored = append(p.anchored, a)
	}
	words, rings := r.words()
	p.tiers = append(p.tiers, t)
	p.declared = append(p.declared, declared)
	p.rules = append(p.rules, r)
	p.unit = append(p.unit, u)
	if v, ok := r.(viewer); ok && t.Phase == UnknownPhase && p.learns == nil {
		p.learns = v.boundaries()
	}
	if d, ok := r.(departer); ok {
		p.departures = append(p.departures, departure{d, u})
	}
	p.base += words
	p.rings += rings
	p.aligned = p.aligned || c.aligned
	p.budgets = p.budgets || t.Budget
	p.concurrent = p.concurrent || c.released
}

// Tiers are the tiers that decide: those that were given, with their defaults written
// out, each followed by its pace where it is spread.
func (p *Plan) Tiers() []Tier { return p.tiers }

// Given are the tiers as they were given to NewPlan.
func (p *Plan) Given() []Tier { return p.given }

// Declared is the index of a tier, or of the one whose pace it is, among those given.
func (p *Plan) Declared(tier int) int { return p.declared[tier] }

// Units are the names of what the tiers count. The i-th amount of a cost is of
// the i-th unit.
func (p *Plan) Units() []string { return p.units }

// UnitOf is which of the units a tier counts.
func (p *Plan) UnitOf(tier int) int { return p.unit[tier] }

// Guard is how long a request is on its way at most, where it names no guard itself.
func (p *Plan) Guard() time.Duration { return time.Duration(p.guard) * time.Microsecond }

// Starting is the plan for quotas that count as spent at an instant, because nobody
// knows what was sent before.
func (p *Plan) Starting(at time.Time) *Plan {
	started := *p
	started.start = at
	return &started
}

// Start is that instant; zero for quotas that begin with nothing used.
func (p *Plan) Start() time.Time { return p.start }

// Grain is how finely requests on their way are told apart: those that would land
// within the same 1<<Grain microseconds land together.
func (p *Plan) Grain() int { return p.grain }

// Aligned reports whether a tier follows the wall clock, so that Moment.Wall matters.
func (p *Plan) Aligned() bool { return p.aligned }

// Concurrent reports whether a tier limits what is open at once, so that every
// admission must be released.
func (p *Plan) Concurrent() bool { return p.concurrent }

// Estimates reports whether a unit is estimated, so that every admission must be
// settled or released.
func (p *Plan) Estimates() bool { return p.estimates }

// Estimated reports whether amounts of a unit are estimates until they are settled.
func (p *Plan) Estimated(unit int) bool { return p.estimated[unit] }

// Most is for each unit the largest amount that every tier can admit; any amount of a
// unit that a budget counts, of which more than the budget is refused.
func (p *Plan) Most() []int64 {
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
