package algorithms_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// TestConvertHolds plays random traffic under a policy that changes again and again. Tiers often
// occur twice in a policy, or continue one tier together. The provider of each tier receives all
// requests since the first policy that the tier continues, and must refuse none that a policy with
// the tier admits.
func TestConvertHolds(t *testing.T) {
	for seed := range uint64(soak.Times(1500)) {
		g := newConversions(t, seed)
		for range 1 + g.rand.IntN(6) {
			g.play()
			g.change()
		}
		g.play()
		for len(g.open) > 0 {
			g.end(0)
		}
		g.judge()
		g.checkFresh()
	}
}

// A conversions is a quota whose policy changes.
type conversions struct {
	*testing.T
	name  string
	rand  *rand.Rand
	now   Moment
	plans []*Plan
	began []int64 // when each plan began
	since [][]int // of each plan, for each tier, the first plan with a tier that it continues
	l     Ledger
	open  []*converted
	all   []*converted
}

// A converted request was admitted under one plan, and may end under another.
type converted struct {
	plan         int
	at           int64
	lands        []int64 // the latest instant at which the provider counts each amount
	flight       Flight
	cost, actual []int64
	held         []int64   // of cost, in the units of the current plan
	carried      [][]int64 // of each plan since it was admitted, the actual cost in the plan's units
}

func newConversions(t *testing.T, seed uint64) *conversions {
	g := &conversions{T: t, name: fmt.Sprint("seed ", seed), rand: rand.New(rand.NewPCG(seed, 4)), now: at(0)}
	g.begin(g.plan(nil))
	g.l = g.plans[0].NewLedger()
	return g
}

// plan draws a plan. It takes most tiers from a plan before it, some of them twice.
func (g *conversions) plan(before *Plan) *Plan {
	for {
		var tiers []Tier
		if before != nil {
			for _, t := range before.Given() {
				for range g.rand.IntN(3) {
					tiers = append(tiers, g.vary(t))
				}
			}
		}
		for len(tiers) == 0 || g.rand.IntN(3) == 0 {
			tiers = append(tiers, g.tier())
		}
		g.rand.Shuffle(len(tiers), func(i, j int) { tiers[i], tiers[j] = tiers[j], tiers[i] })
		if p, err := NewPlan(tiers, pick[time.Duration](g.rand, 0, 50, 400)*time.Millisecond); err == nil {
			return p
		}
	}
}

// vary draws another limit of a tier.
func (g *conversions) vary(t Tier) Tier {
	if isRolling := t.Algorithm == SlidingLog || t.Algorithm == SlidingWindow; isRolling && g.rand.IntN(3) == 0 {
		t.Algorithm, t.Precision = SlidingLog+SlidingWindow-t.Algorithm, 0
	}
	if g.rand.IntN(3) == 0 {
		return t
	}
	t.Limit = 1 + g.rand.Int64N(20)
	if t.Burst > 0 {
		t.Burst = 1 + g.rand.Int64N(20)
	}
	if t.PaceBurst > 0 {
		t.PaceBurst = 1 + g.rand.Int64N(t.Limit)
	}
	return t
}

func (g *conversions) tier() Tier {
	a := all[g.rand.IntN(len(all))]
	t := Tier{Limit: 1 + g.rand.Int64N(20), Window: pick(g.rand, time.Second, 3*time.Second, time.Minute), Algorithm: a}
	if g.rand.IntN(3) == 0 {
		t.Unit = pick(g.rand, "tokens", "points")
		t.Estimated = g.rand.IntN(3) == 0
	}
	switch a {
	case TokenBucket, LeakyBucket, GCRA:
		t.Burst = 1 + g.rand.Int64N(20)
	case FixedWindow:
		t.Phase = pick(g.rand, 0, 300*time.Millisecond, UnknownPhase)
	case SlidingWindow:
		t.Precision = pick(g.rand, 0, 100*time.Millisecond)
	case Concurrency:
		t.Window = 0
	case Calendar:
		t.Window, t.Period = 0, pick(g.rand, Day, Week)
	}
	if t.Window > 0 && g.rand.IntN(6) == 0 {
		t.PaceBurst = 1 + g.rand.Int64N(t.Limit)
	}
	return t
}

// begin adds a plan, and finds which tiers of the plan before it its tiers continue.
func (g *conversions) begin(p *Plan) {
	n := len(g.plans)
	first := slices.Repeat([]int{n}, len(p.Tiers()))
	for i, t := range p.Tiers() {
		if n == 0 {
			break
		}
		for j, was := range g.plans[n-1].Tiers() {
			if sameCount(was, t) {
				first[i] = min(first[i], g.since[n-1][j])
			}
		}
	}
	g.plans, g.since, g.began = append(g.plans, p), append(g.since, first), append(g.began, g.now.At)
}

// sameCount reports whether two tiers count the same. The limit of a bucket is its rate, and a
// SlidingWindow is a SlidingLog in groups.
func sameCount(t, o Tier) bool {
	isBucket := t.Burst > 0
	isRolling := func(t Tier) bool { return t.Algorithm == SlidingLog || t.Algorithm == SlidingWindow }
	return (t.Algorithm == o.Algorithm || isRolling(t) && isRolling(o)) && t.Unit == o.Unit && t.Window == o.Window && t.Phase == o.Phase && t.Period == o.Period && t.Zone == o.Zone &&
		(!isBucket || t.Limit == o.Limit)
}

func (g *conversions) current() *Plan { return g.plans[len(g.plans)-1] }

// change converts the ledger to another plan. What the old ledger records later, such as a late
// report, changes nothing in the new one, and the other way round.
func (g *conversions) change() {
	old, before := g.l, encode(g.T, &g.l)
	from := g.current()
	g.begin(g.plan(from))
	to := g.current()
	g.l = to.Convert(old, g.now)
	if !slices.Equal(encode(g.T, &old), before) {
		g.fatalf("Convert changed the old ledger")
	}
	after := encode(g.T, &g.l)
	g.disturb(&old)
	if !slices.Equal(encode(g.T, &g.l), after) {
		g.fatalf("a charge of the old ledger changed the new one")
	}
	// Tiers of the new ledger share nothing either. It goes on as its decoded copy does.
	one, two := g.l.Clone(), to.NewLedger()
	if err := two.UnmarshalBinary(after); err != nil {
		g.fatalf("%v", err)
	}
	g.disturb(&one)
	g.disturb(&two)
	if !one.SameAs(&two) {
		g.fatalf("a converted ledger and its decoded copy differ after a charge")
	}
	for _, s := range g.all {
		last := s.carried[len(s.carried)-1]
		s.carried = append(s.carried, to.Translate(from, last))
	}
	for _, s := range g.open {
		for u, unit := range g.plans[s.plan].Units() {
			if s.lands[u] == Never && !estimates(to, unit) { // it lands with the guard
				s.lands[u] = g.now.At + to.Guard().Microseconds()
			}
		}
		s.held, s.flight = to.TranslateHeld(from, s.held), Landed
	}
}

func estimates(p *Plan, unit string) bool {
	u := slices.Index(p.Units(), unit)
	return u >= 0 && p.Estimated(u)
}

// disturb charges a ledger.
func (g *conversions) disturb(l *Ledger) {
	for i := range 3 {
		l.Count(g.now.Later(g.now.At+int64(i)), slices.Repeat([]int64{1}, len(l.Plan().Units())))
	}
}

// play sends requests at random.
func (g *conversions) play() {
	for range 5 + g.rand.IntN(40) {
		g.now = g.now.Later(g.now.At + g.rand.Int64N(pick[int64](g.rand, 1, 100_000, 2_000_000)))
		if g.rand.IntN(100) == 0 {
			g.now = g.now.Later(g.now.At + g.rand.Int64N(30*time.Hour.Microseconds()))
		}
		if len(g.open) > 0 && g.rand.IntN(2) == 0 {
			g.end(g.rand.IntN(len(g.open)))
			continue
		}
		p := g.current()
		cost := make([]int64, len(p.Units()))
		for u := range cost {
			cost[u] = g.rand.Int64N(3)
		}
		if p.TooLarge(cost) >= 0 {
			continue
		}
		f, _, tier := g.l.Take(g.now, Request{Cost: cost, Held: true})
		encode(g.T, &g.l)
		if tier >= 0 {
			continue
		}
		s := &converted{plan: len(g.plans) - 1, at: g.now.At, flight: f, cost: cost, held: cost, actual: slices.Clone(cost)}
		for u := range cost {
			s.lands = append(s.lands, g.now.At+p.Guard().Microseconds())
			if p.Estimated(u) {
				s.lands[u], s.actual[u] = Never, g.rand.Int64N(cost[u]+1)
			}
		}
		s.carried = [][]int64{s.actual}
		g.open, g.all = append(g.open, s), append(g.all, s)
		g.judgeConcurrency(s)
	}
}

// end ends a request, as a store does: a ledger of another plan receives what it holds in the same
// way.
func (g *conversions) end(i int) {
	s := g.open[i]
	g.open = slices.Delete(g.open, i, i+1)
	actual := s.actual
	for n := s.plan + 1; n < len(g.plans); n++ {
		actual = g.plans[n].TranslateHeld(g.plans[n-1], actual)
	}
	g.l.Arrived(g.now, s.flight, s.held)
	g.l.Settle(g.now, s.held, actual)
	g.l.Release(s.held)
	for u := range s.lands {
		s.lands[u] = min(s.lands[u], g.now.At)
	}
	encode(g.T, &g.l)
}

// judgeConcurrency checks that the requests that count are at most the limit of each concurrency
// tier.
func (g *conversions) judgeConcurrency(s *converted) {
	n := len(g.plans) - 1
	for i, t := range g.current().Tiers() {
		u := g.current().UnitOf(i)
		if t.Algorithm != Concurrency || s.cost[u] == 0 {
			continue
		}
		var open int64
		for _, s := range g.open {
			if s.plan >= g.since[n][i] {
				open += s.carried[len(s.carried)-1][u]
			}
		}
		if open > t.Limit {
			g.fatalf("%d %s are open, want at most %d", open, t.Unit, t.Limit)
		}
	}
}

// judge lets each request arrive at some instant while it is in flight. The provider of each tier
// of each plan must accept those that the plan has admitted.
func (g *conversions) judge() {
	for mode := range 3 {
		arrivals := g.arrivals(mode)
		for n, p := range g.plans {
			for i, t := range p.Tiers() {
				if t.Algorithm != Concurrency {
					g.judgeTier(n, i, t, arrivals)
				}
			}
		}
	}
}

// A part of a request is its amount of a unit, which arrives at once.
type part struct {
	*converted
	unit string
	at   int64
}

func (g *conversions) arrivals(mode int) (list []part) {
	for _, s := range g.all {
		for u, unit := range g.plans[s.plan].Units() {
			at := []int64{s.at, s.lands[u], s.at + g.rand.Int64N(s.lands[u]-s.at+1)}[mode]
			list = append(list, part{s, unit, at})
		}
	}
	slices.SortStableFunc(list, func(a, b part) int { return cmp.Compare(a.at, b.at) })
	return list
}

// judgeTier plays all arrivals since the first plan with a tier that this tier continues.
func (g *conversions) judgeTier(n, i int, t Tier, arrivals []part) {
	first, u := g.since[n][i], g.plans[n].UnitOf(i)
	unit := t.Unit
	t.Unit, t.Estimated = "", false
	if t.Phase == UnknownPhase {
		t.Phase = 0
	}
	var before []arrival
	for _, a := range arrivals {
		if a.plan > n || a.plan < first && a.at <= g.began[first] || a.unit != unit {
			continue
		}
		c := a.carried[n-a.plan][u]
		if c == 0 {
			continue
		}
		if a.plan == n {
			if provider := g.provider(t, before, a.at); !provider.Arrive(a.at, map[string]int64{Requests: c}) {
				g.fatalf("%v of plan %d of %d, a continuation since plan %d, refuses %d at %d", g.plans[n].Tiers()[i], n, len(g.plans), first, c, a.at-at(0).At)
			}
		}
		before = append(before, arrival{at: a.at, cost: []int64{c}})
	}
}

// provider returns a counter that has received arrivals, even more than its limit, which was larger
// once.
func (g *conversions) provider(t Tier, arrivals []arrival, now int64) *throttletest.Counter {
	counter, err := throttletest.NewCounter(t)
	if err != nil {
		g.Fatal(err)
	}
	for _, a := range arrivals {
		rolling := t.Algorithm == SlidingLog || t.Algorithm == SlidingWindow
		if rolling && a.at <= now-t.Window.Microseconds() {
			continue
		}
		for range a.cost[0] {
			counter.Arrive(a.at, map[string]int64{Requests: 1})
		}
	}
	return counter
}

// checkFresh checks that nothing counts for ever.
func (g *conversions) checkFresh() {
	g.now = g.now.Later(g.now.At + 30*24*time.Hour.Microseconds())
	if !g.l.Fresh(g.now) {
		g.fatalf("the ledger is not fresh a month after all requests have ended: %+v", g.l.Usage(g.now))
	}
}

func (g *conversions) fatalf(format string, args ...any) {
	g.Helper()
	for n, p := range g.plans {
		g.Logf("plan %d at %d: %v, guard %v", n, g.began[n]-at(0).At, p.Given(), p.Guard())
	}
	g.Fatalf("%s: %s", g.name, fmt.Sprintf(format, args...))
}
