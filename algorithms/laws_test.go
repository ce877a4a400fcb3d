package algorithms_test

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

var laws = flag.Int("laws", 0, "admissions to check in TestLaws, over all algorithms. If 0, 150,000, fewer or more as in package soak")

var all = Algorithms()

// TestLaws plays random policies, costs, arrivals and cancellations. The counters of the strict
// provider, which share no code with the ledger, judge every admission.
func TestLaws(t *testing.T) {
	admissions := cmp.Or(*laws, soak.Times(150_000))
	for _, a := range all {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			done, waited := 0, 0
			for seed := uint64(1); done < admissions/len(all); seed++ {
				g := newGame(t, rand.New(rand.NewPCG(uint64(a), seed)), a)
				g.name = fmt.Sprintf("%v, seed %d", a, seed)
				g.play(100 + g.rand.IntN(200))
				done += g.admitted
				waited += g.waited
			}
			t.Logf("%d admissions, %d of which had to wait", done, waited)
			if waited < done/10 {
				t.Errorf("%d of %d admissions had to wait, want at least a tenth", waited, done)
			}
		})
	}
}

// FuzzLaws is TestLaws with seeds from the fuzzer.
func FuzzLaws(f *testing.F) {
	for _, a := range all {
		f.Add(uint64(a), uint64(1), uint8(a))
	}
	f.Fuzz(func(t *testing.T, s1, s2 uint64, a uint8) {
		g := newGame(t, rand.New(rand.NewPCG(s1, s2)), all[int(a)%len(all)])
		g.name = fmt.Sprintf("seed %d %d %d", s1, s2, a)
		g.play(150)
	})
}

// A game is one random policy under random load.
type game struct {
	t     testing.TB
	name  string
	rand  *rand.Rand
	tiers []Tier
	plan  *Plan
	l     Ledger
	guard int64

	strict  *throttletest.Counter // receives requests at their admission if there is no guard
	now     Moment
	clocks  []clock // the readings of the wall clock before its steps, the oldest first
	steps   bool    // whether the wall clock steps
	pace    float64 // mean microseconds between requests
	open    []*sent
	history []*sent

	admitted, waited int
}

// A clock is how far the wall clock was ahead of the clock that never steps, until it stepped.
type clock struct{ until, ahead int64 }

// A sent request may reach the provider at any instant from its admission, t, to its landing. It
// may also get lost, unless it has been answered or there is no guard.
type sent struct {
	t, landed int64
	settled   int64 // the latest instant at which an estimate may have been counted
	back      int   // how often the wall clock had stepped back before the admission
	cost      []int64
	actual    []int64 // the cost, with estimates replaced by what they settled at
	flight    Flight
	canceled  bool
	answered  bool
	held      bool
}

func newGame(t testing.TB, r *rand.Rand, first Algorithm) *game {
	g := &game{t: t, rand: r}
	window := math.Exp(r.Float64()*math.Log(2.6e12/1e3)) * 1e3 // microseconds, from 1 ms to 30 days
	if first == Calendar {
		window = float64(pick[int64](r, 24, 7*24, 30*24) * time.Hour.Microseconds())
	}
	limit := int64(math.Exp(r.Float64() * math.Log(200)))
	if r.IntN(10) == 0 {
		limit *= 30_000 // large limits with large costs
	}
	g.pace = window / float64(limit) / 2
	g.addTier(first, window, limit)
	for range r.IntN(3) {
		k := 1 + r.Float64()*5
		g.addTier(all[r.IntN(len(all))], window*k, max(1, int64(float64(limit)*(1+(k-1)*r.Float64()))))
	}
	limitsOpen := func(t Tier) bool { return t.Algorithm == Concurrency && t.Unit == "tokens" }
	for i := range g.tiers {
		g.tiers[i].Estimated = g.tiers[i].Estimated && !slices.ContainsFunc(g.tiers, limitsOpen)
	}
	if r.IntN(2) == 0 {
		g.guard = int64(math.Exp(r.Float64()*math.Log(window))) + 1
	}
	var err error
	g.plan, err = NewPlan(g.tiers, time.Duration(g.guard)*time.Microsecond)
	if err != nil {
		t.Fatalf("%v: %v", g.tiers, err)
	}
	g.l = g.plan.NewLedger()
	g.strict, err = throttletest.NewCounter(g.judges(nil)...)
	if err != nil {
		t.Fatal(err)
	}
	g.steps = g.plan.Aligned() && r.IntN(3) == 0
	start := int64(1.6e15) + r.Int64N(1e14) // some day after 2020
	g.now = Moment{At: start, Wall: start}
	return g
}

func (g *game) addTier(a Algorithm, window float64, limit int64) {
	t := Tier{Limit: limit, Window: time.Duration(window) * time.Microsecond, Algorithm: a}
	if g.rand.IntN(4) == 0 {
		t.Unit = "tokens"
		t.Estimated = a != Concurrency && g.rand.IntN(2) == 0
	}
	switch a {
	case TokenBucket, LeakyBucket, GCRA:
		t.Burst = g.rand.Int64N(limit + 1)
	case FixedWindow, WeightedWindow:
		t.Phase = time.Duration(g.rand.Float64()*float64(t.Window/time.Microsecond)) * time.Microsecond
		if a == FixedWindow && g.rand.IntN(3) == 0 {
			t.Phase = UnknownPhase
		}
	case SlidingWindow:
		if g.rand.IntN(2) == 0 {
			t.Precision = max(t.Window/time.Duration(1+g.rand.IntN(100)), time.Microsecond).Truncate(time.Microsecond)
		}
	case Concurrency:
		t.Window = 0
	case Calendar:
		t.Period, t.Window = pick(g.rand, Day, Week, Month), 0
		t.Zone = pick(g.rand, "", "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut")
		t.Budget = g.rand.IntN(2) == 0
	}
	if t.Window > 0 && g.rand.IntN(6) == 0 {
		t.PaceBurst = 1 + g.rand.Int64N(limit)
	}
	g.tiers = append(g.tiers, t)
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (g *game) play(steps int) {
	for range steps {
		g.step()
	}
	g.land(len(g.open))
	g.judge()
}

func (g *game) step() {
	g.to(g.now.At + int64(g.rand.ExpFloat64()*g.pace))
	if g.rand.IntN(8) == 0 {
		g.reportBoundary()
	}
	if g.steps && g.rand.IntN(40) == 0 {
		g.stepClock()
	}
	cost := g.cost()
	asked := g.now.At
	for {
		at := g.earliest(cost)
		if at == g.now.At {
			break
		}
		// Another event may come first and change that instant.
		if len(g.open) > 0 && (at == Never || g.rand.IntN(4) == 0) {
			if at != Never {
				g.to(g.now.At + g.rand.Int64N(at-g.now.At))
			}
			g.endOne()
			continue
		}
		g.checkPromise(at, cost)
		g.to(at)
	}
	g.admit(cost, asked)
	if g.rand.IntN(3) == 0 && len(g.open) > 0 {
		g.endOne()
	}
}

// stepClock sets the wall clock by a few windows at most.
func (g *game) stepClock() {
	step := g.rand.Int64N(int64(8*g.pace*float64(g.tiers[0].Limit)) + 1)
	if g.rand.IntN(2) == 0 {
		step = -step
	}
	g.to(g.now.At + 1) // a request is never sent at the instant of a step
	g.clocks = append(g.clocks, clock{g.now.At, g.now.Wall - g.now.At})
	g.now.Wall += step
}

// back returns how often the wall clock has stepped back.
func (g *game) back() (n int) {
	clocks := append(g.clocks, clock{ahead: g.now.Wall - g.now.At})
	for i := range g.clocks {
		if clocks[i+1].ahead < clocks[i].ahead {
			n++
		}
	}
	return n
}

// wall returns what the wall clock showed at an instant, if it had not stepped back again after it
// had stepped back that often.
func (g *game) wall(at int64, back int) int64 {
	ahead := g.now.Wall - g.now.At
	clocks := append(g.clocks, clock{math.MaxInt64, ahead})
	for i, c := range clocks {
		if at < c.until || i+1 == len(clocks) || back == 0 && clocks[i+1].ahead < c.ahead {
			return at + c.ahead
		}
		if clocks[i+1].ahead < c.ahead {
			back--
		}
	}
	return at + ahead
}

// reportBoundary reports the end of a window of each tier of UnknownPhase, more or less exactly. The
// provider's windows begin with the epoch.
func (g *game) reportBoundary() {
	for i, t := range g.plan.Tiers() {
		if t.Phase == UnknownPhase {
			window := t.Window.Microseconds()
			at := g.now.At/window*window + g.rand.Int64N(5)*window
			vague := int64(math.Exp(g.rand.Float64() * math.Log(float64(window))))
			from := g.rand.Int64N(vague + 1)
			g.l.Boundary(g.now, i, at-from, at+vague-from)
		}
	}
}

// earliest calls Earliest, and checks that the ledger does not change.
func (g *game) earliest(cost []int64) int64 {
	before := g.l.Clone()
	before.Advance(g.now)
	at, tier := g.l.Earliest(g.now, Request{Cost: cost})
	if !g.l.SameAs(&before) {
		g.fatalf("L3: Earliest for %v changed the ledger", cost)
	}
	if (tier < 0) != (at == g.now.At) || at < g.now.At {
		g.fatalf("at %d: Earliest returns %d and tier %d", g.now.At, at, tier)
	}
	return at
}

func (g *game) admit(cost []int64, asked int64) {
	held := g.rand.IntN(2) == 0 || g.plan.Concurrent() || g.plan.Estimates()
	guard := g.guard
	if guard > 0 && g.rand.IntN(2) == 0 {
		guard = 1 + g.rand.Int64N(guard)
	}
	s := &sent{t: g.now.At, landed: g.now.At + guard, settled: g.now.At, cost: cost, actual: cost, held: held, back: g.back()}
	if g.guard == 0 && !g.steps && !g.plan.Concurrent() && !g.plan.Estimates() {
		g.checkEarliest(s, asked)
	}
	s.flight = g.l.Charge(g.now, Request{Cost: cost, Guard: guard, Held: held})
	g.history = append(g.history, s)
	if held {
		g.open = append(g.open, s)
	}
	g.judgeConcurrency()
	g.admitted++
	if s.t > asked {
		g.waited++
	}
	if n := g.l.Slots(); n > 66 {
		g.fatalf("%d slots are in flight, want at most 66", n)
	}
}

// checkEarliest checks that the provider admits the request now and not sooner (L2).
func (g *game) checkEarliest(s *sent, asked int64) {
	late := int64(1)
	for _, t := range g.plan.Tiers() {
		if t.Algorithm == SlidingWindow {
			late = max(late, 1+t.Precision.Microseconds())
		}
		if t.Phase == UnknownPhase {
			late = 1 + s.t - asked // a rolling window, which may admit later than the provider
		}
	}
	if sooner := s.t - late; sooner >= asked && g.strict.Admits(sooner, g.named(s.cost)) == -1 {
		g.fatalf("L2: the ledger admits %v at %d, but the provider does at %d", s.cost, s.t, sooner)
	}
	if !g.strict.Arrive(s.t, g.named(s.cost)) {
		g.fatalf("L1: the ledger admits %v at %d, but the provider refuses it", s.cost, s.t)
	}
}

// checkPromise checks that the ledger admits a cost at the instant that Earliest returned, and not
// before, if nothing but time passes. Groups of stamps are left out: they may grow while requests
// land, and then leave later than forecast.
func (g *game) checkPromise(at int64, cost []int64) {
	for _, t := range g.plan.Tiers() {
		if t.Algorithm == SlidingWindow || t.Algorithm == AnchoredWindow {
			return
		}
	}
	l := g.l.Clone()
	if e, _ := l.Earliest(g.now.Later(at-1), Request{Cost: cost}); e != at {
		g.fatalf("at %d: %v may go at %d; at %d: at %d", g.now.At, cost, at, at-1, e)
	}
	if e, _ := l.Earliest(g.now.Later(at), Request{Cost: cost}); e != at {
		g.fatalf("at %d: %v may go at %d; at that instant: at %d", g.now.At, cost, at, e)
	}
}

// to moves both clocks forward.
func (g *game) to(at int64) {
	d := max(0, at-g.now.At)
	g.now.At += d
	g.now.Wall += d
}

// endOne ends a random open request. Its response comes, or it was never sent, or its outcome
// stays unknown.
func (g *game) endOne() {
	i := g.rand.IntN(len(g.open))
	switch g.rand.IntN(6) {
	case 0:
		g.cancel(i)
	case 1:
		g.lose(i)
	default:
		g.end(i)
	}
}

// take removes a request from the open ones.
func (g *game) take(i int) *sent {
	s := g.open[i]
	g.open = slices.Delete(g.open, i, i+1)
	return s
}

// cancel cancels a request, in time or not. Without a guard the request has arrived, and ends.
func (g *game) cancel(i int) {
	if g.guard == 0 {
		g.end(i)
		return
	}
	s := g.take(i)
	s.canceled = true
	g.l.Cancel(g.now, s.flight, s.cost)
}

func (g *game) lose(i int) {
	s := g.take(i)
	g.l.Unanswered(g.now, s.flight, s.cost)
	g.l.Release(s.cost)
	s.settled = max(s.landed, g.now.At)
}

func (g *game) end(i int) {
	s := g.take(i)
	s.answered = true
	g.l.Arrived(g.now, s.flight, s.cost)
	s.actual = slices.Clone(s.cost)
	for u, n := range s.cost {
		if g.plan.Estimated(u) {
			s.actual[u] = g.rand.Int64N(n + 1)
		}
	}
	g.l.Settle(g.now, s.cost, s.actual)
	g.l.Release(s.cost)
	s.landed, s.settled = min(s.landed, g.now.At), g.now.At
}

// parts returns the two parts of a request, which may arrive at different instants: the known cost
// and the estimated cost.
func (g *game) parts(s *sent) (known, estimated []int64) {
	known, estimated = slices.Clone(s.actual), make([]int64, len(s.actual))
	for u, n := range s.actual {
		if g.plan.Estimated(u) {
			known[u], estimated[u] = 0, n
		}
	}
	return known, estimated
}

// arrives draws the instant at which a request reaches the provider.
func (g *game) arrives(mode int, first, last int64) int64 {
	switch {
	case mode == 1, mode > 1 && g.rand.IntN(3) == 0:
		return last
	case mode > 1:
		return first + g.rand.Int64N(last-first+1)
	}
	return first
}

func (g *game) land(n int) {
	for range n {
		g.end(0)
	}
}

// judge draws for each request when it reached the provider, which must accept all of them (L1). A
// provider that counts by the wall clock has the caller's clock until that is set back. Then
// another provider judges the requests that are sent from then on (L9).
func (g *game) judge() {
	byWall := func(t Tier) bool {
		return t.Algorithm == Calendar || t.Algorithm == WeightedWindow || t.Algorithm == FixedWindow && t.Phase != UnknownPhase
	}
	for mode := range 8 {
		arrivals := g.arrivals(mode%4, mode >= 4)
		if !g.steps {
			g.accept(arrivals, g.rateTiers(), mode)
			continue
		}
		g.accept(arrivals, slices.DeleteFunc(g.rateTiers(), byWall), mode)
		for back := range g.back() + 1 {
			var since []arrival
			for _, a := range arrivals {
				if a.back == back {
					a.at = g.wall(a.at, back)
					since = append(since, a)
				}
			}
			g.accept(since, slices.DeleteFunc(g.rateTiers(), func(t Tier) bool { return !byWall(t) }), mode)
		}
	}
}

type arrival struct {
	at   int64
	cost []int64
	back int // how often the wall clock had stepped back before it was sent
}

// arrivals draws when each request reached the provider. With losses, some got lost.
func (g *game) arrivals(mode int, losses bool) (arrivals []arrival) {
	for _, s := range g.history {
		lost := losses && g.guard > 0 && !s.answered && g.rand.IntN(3) > 0
		if s.canceled || lost {
			continue
		}
		known, estimated := g.parts(s)
		arrivals = append(arrivals, arrival{g.arrives(mode, s.t, s.landed), known, s.back})
		if g.plan.Estimates() {
			arrivals = append(arrivals, arrival{g.arrives(mode, s.t, s.settled), estimated, s.back})
		}
	}
	slices.SortStableFunc(arrivals, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	return arrivals
}

// accept checks that a provider with the tiers accepts all arrivals.
func (g *game) accept(arrivals []arrival, tiers []Tier, mode int) {
	provider, err := throttletest.NewCounter(tiers...)
	if err != nil {
		g.t.Fatal(err)
	}
	for i, a := range arrivals {
		if tier := provider.Admits(a.at, g.named(a.cost)); tier >= 0 {
			g.fatalf("L1: %v refuses arrival %d of %v at %d (mode %d)", tiers[tier], i, a.cost, a.at, mode)
		}
		provider.Arrive(a.at, g.named(a.cost))
	}
}

// judges returns the tiers of a strict provider, each with its pace, without those that but
// selects.
func (g *game) judges(but func(Tier) bool) (tiers []Tier) {
	for _, t := range g.tiers {
		tiers = append(tiers, t)
		if t.PaceBurst > 0 {
			tiers = append(tiers, Tier{Limit: t.Limit, Window: t.Window, Algorithm: GCRA, Burst: t.PaceBurst, Unit: t.Unit})
		}
	}
	if but != nil {
		tiers = slices.DeleteFunc(tiers, but)
	}
	return tiers
}

// rateTiers returns the tiers that count arrivals, not open requests.
func (g *game) rateTiers() []Tier {
	return g.judges(func(t Tier) bool { return t.Algorithm == Concurrency })
}

// judgeConcurrency checks that the open requests keep the concurrency limits (L1).
func (g *game) judgeConcurrency() {
	for _, t := range g.plan.Tiers() {
		if t.Algorithm != Concurrency {
			continue
		}
		var open int64
		for _, s := range g.open {
			open += g.named(s.cost)[t.Unit]
		}
		if open > t.Limit {
			g.fatalf("L1: %d %s are open, want at most %d", open, t.Unit, t.Limit)
		}
	}
}

func (g *game) named(cost []int64) map[string]int64 {
	m := map[string]int64{Requests: 0}
	for i, u := range g.plan.Units() {
		m[u] = cost[i]
	}
	return m
}

// cost draws a cost that every tier can admit.
func (g *game) cost() []int64 {
	cost := make([]int64, len(g.plan.Units()))
	for i, u := range g.plan.Units() {
		most := int64(math.MaxInt64)
		for _, t := range g.plan.Tiers() {
			if t.Unit == u {
				most = min(most, t.Capacity())
			}
		}
		cost[i] = 1
		if g.rand.IntN(3) == 0 || most > 1000 {
			cost[i] = g.rand.Int64N(most + 1)
		}
	}
	if g.plan.TooLarge(cost) >= 0 {
		g.fatalf("TooLarge reports %v, which is at most each capacity of %v", cost, g.tiers)
	}
	return cost
}

func (g *game) fatalf(format string, args ...any) {
	g.t.Helper()
	g.t.Fatalf("%s: tiers %v, guard %d µs: %s", g.name, g.tiers, g.guard, fmt.Sprintf(format, args...))
}
