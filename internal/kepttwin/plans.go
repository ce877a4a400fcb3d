package kepttwin

import (
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

var windowed = []algorithms.Algorithm{
	algorithms.SlidingLog, algorithms.SlidingWindow, algorithms.FixedWindow, algorithms.AnchoredWindow, algorithms.WeightedWindow,
	algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA, algorithms.Calendar,
}

// A planner makes the random plans of a trace. They have the same units that requests hold.
type planner struct {
	*rand.Rand
	window time.Duration
	// places and estimates are whether the plans have a Concurrency tier, and a unit that is estimated.
	places, estimates bool
	// learns is whether the plans have one tier only, which learns.
	learns bool
	guard  time.Duration
}

func newPlanner(r *rand.Rand, window time.Duration) *planner {
	p := &planner{Rand: r, window: window, places: r.IntN(4) == 0, estimates: r.IntN(4) == 0}
	if r.IntN(3) > 0 {
		p.guard = window / time.Duration(1<<(1+r.IntN(6)))
	}
	p.learns = r.IntN(6) == 0
	return p
}

// plan returns a plan with one to four tiers.
func (p *planner) plan() *algorithms.Plan {
	tiers := []algorithms.Tier{p.tier("")}
	for p.learns && !tiers[0].Learns() {
		tiers[0] = p.tier("")
	}
	if p.learns {
		return p.build(tiers)
	}
	if p.IntN(2) == 0 {
		tiers = append(tiers, p.tier(""))
	}
	if p.IntN(3) == 0 {
		tiers = append(tiers, p.tier("points"))
	}
	if p.estimates {
		t := p.tier("tokens")
		t.Estimated = true
		tiers = append(tiers, t)
	}
	if p.places {
		tiers = append(tiers, algorithms.Tier{Limit: 1 + p.Int64N(6), Algorithm: algorithms.Concurrency, Unit: "places"})
	}
	return p.build(tiers)
}

func (p *planner) build(tiers []algorithms.Tier) *algorithms.Plan {
	plan, err := algorithms.NewPlan(tiers, p.guard)
	if err != nil {
		panic(err)
	}
	return plan
}

func (p *planner) tier(unit string) algorithms.Tier {
	t := algorithms.Tier{Limit: 1 + p.Int64N(12), Unit: unit, Algorithm: windowed[p.IntN(len(windowed))], Budget: p.IntN(8) == 0}
	t.Window = p.window * time.Duration(1+p.IntN(4))
	switch t.Algorithm {
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
		t.Burst = p.Int64N(t.Limit + 1)
	case algorithms.FixedWindow, algorithms.WeightedWindow:
		t.Phase = time.Duration(p.Int64N(t.Window.Microseconds())) * time.Microsecond
		if t.Algorithm == algorithms.FixedWindow && p.IntN(3) == 0 {
			t.Phase = algorithms.UnknownPhase
		}
	case algorithms.Calendar:
		t.Window, t.Period = 0, algorithms.Day
		t.Limit *= 10
		t.Zone = []string{"", "Europe/Berlin", "America/Havana"}[p.IntN(3)]
	}
	switch {
	case t.Burst > 0 && !t.Budget && unit != "tokens" && p.IntN(2) == 0:
		t.Learn = algorithms.Learn{Least: p.Int64N(2), Most: t.Limit * (1 + p.Int64N(20))}
	case t.Window > 0 && p.IntN(6) == 0:
		t.PaceBurst = 1 + p.Int64N(t.Limit)
	}
	return t
}

// cost returns a cost that the plan can admit: often the usual one.
func (p *planner) cost(of *algorithms.Plan) []int64 {
	cost, most := make([]int64, len(of.Units())), of.MaxCost()
	usual := p.IntN(2) == 0
	for u := range cost {
		cost[u] = 1
		if !usual {
			cost[u] = p.Int64N(min(most[u], 6) + 1)
		}
	}
	if cost[0] == 0 && !usual {
		cost[0] = 1
	}
	return cost
}
