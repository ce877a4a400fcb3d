package algorithms_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// TestCredit tests that a ledger which admits on credit decides as one that asks all tiers for each
// request, and that their states are the same to the bit.
func TestCredit(t *testing.T) {
	var quick, onCredit int
	for seed := range uint64(400) {
		g := rand.New(rand.NewPCG(seed, 14))
		plan := creditPlan(t, g)
		if plan.Quick() {
			quick++
		}
		a, b := plan.NewLedger(), plan.NewLedger()
		usual := make([]int64, len(plan.Units()))
		for i, unit := range plan.Units() {
			if unit == algorithms.Requests {
				usual[i] = 1
			}
		}
		type admitted struct {
			flight algorithms.Flight
			cost   []int64
			held   bool
		}
		var open []admitted
		clock := int64(1e15)
		for range 600 {
			switch g.IntN(60) {
			case 0:
				clock += g.Int64N(3_000_000)
			case 1, 2, 3, 4:
				clock += g.Int64N(50_000)
			default:
				clock += g.Int64N(1_000)
			}
			now := clock - g.Int64N(2)*g.Int64N(5_000) // several goroutines have read the clock
			m := algorithms.Moment{At: now, Wall: now}
			switch n := g.IntN(20); {
			case n < 11:
				held := g.IntN(2) == 0
				f, ok := a.TakeOne(now, held)
				if ok {
					onCredit++
				}
				r := algorithms.Request{Cost: usual, Held: held}
				if !ok {
					var tier int
					f, _, tier = a.Take(m, r)
					if ok = tier < 0; ok {
						a.GiveCredit(m)
					}
				}
				other, _, tier := b.Take(m, r)
				if ok != (tier < 0) || ok && f != other {
					t.Fatalf("seed %d: on credit %v, flight %d; else tier %d, flight %d\n%v", seed, ok, f, tier, other, plan.Tiers())
				}
				if ok {
					open = append(open, admitted{f, usual, held})
				}
			case n < 13: // another cost
				cost := make([]int64, len(usual))
				for i := range cost {
					cost[i] = g.Int64N(4)
				}
				r := algorithms.Request{Cost: cost, Held: true, Guard: g.Int64N(2) * 700_000}
				f, _, tier := a.Take(m, r)
				if other, _, same := b.Take(m, r); tier != same || f != other {
					t.Fatalf("seed %d: tier %d and %d", seed, tier, same)
				}
				if tier < 0 {
					open = append(open, admitted{f, cost, true})
				}
			case n < 18 && len(open) > 0:
				i := g.IntN(len(open))
				one := open[i]
				open = append(open[:i], open[i+1:]...)
				switch {
				case !one.held:
				case g.IntN(5) == 0:
					a.Cancel(m, one.flight, one.cost)
					b.Cancel(m, one.flight, one.cost)
				default:
					if &one.cost[0] != &usual[0] || !a.ArriveOne(now, one.flight) {
						a.Arrived(m, one.flight, one.cost)
					}
					b.Arrived(m, one.flight, one.cost)
				}
			case n == 18:
				o := algorithms.Observation{Tier: g.IntN(len(plan.Tiers())), Used: g.Int64N(20), Since: now - g.Int64N(1e6), Exact: g.IntN(2) == 0}
				if seed%4 == 0 && g.IntN(10) == 0 { // from then on there is no credit
					a.Observe(m, o)
					b.Observe(m, o)
				}
			default:
				if x, y := state(t, &a, m), state(t, &b, m); !bytes.Equal(x, y) {
					t.Fatalf("seed %d: the states differ:\n%v\n%v\n%v", seed, x, y, plan.Tiers())
				}
			}
		}
	}
	if quick < 100 || onCredit < 5_000 {
		t.Errorf("%d plans give credit, %d requests were admitted on it: too few to tell", quick, onCredit)
	}
}

// state returns the state of a ledger in which all that has landed by a moment is landed.
func state(t *testing.T, l *algorithms.Ledger, m algorithms.Moment) []byte {
	t.Helper()
	l.Earliest(m, algorithms.Request{Cost: make([]int64, len(l.Plan().Units()))})
	data, err := l.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// creditPlan returns a plan of one to three tiers. Most of the plans give credit.
func creditPlan(t *testing.T, g *rand.Rand) *algorithms.Plan {
	t.Helper()
	steady := []algorithms.Algorithm{algorithms.SlidingLog, algorithms.SlidingWindow, algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA}
	var tiers []algorithms.Tier
	for range 1 + g.IntN(3) {
		tier := algorithms.Tier{Limit: 1 + g.Int64N(10) + g.Int64N(2)*g.Int64N(1_000), Window: time.Duration(1+g.IntN(3)) * time.Second, Algorithm: steady[g.IntN(len(steady))]}
		switch g.IntN(10) {
		case 0:
			tier.Algorithm = algorithms.FixedWindow
		case 1:
			tier.PaceBurst = 1 + g.Int64N(tier.Limit)
		case 2:
			tier.Unit = "points"
		}
		tiers = append(tiers, tier)
	}
	plan, err := algorithms.NewPlan(tiers, []time.Duration{0, 50 * time.Millisecond, time.Second}[g.IntN(3)])
	if err != nil {
		t.Fatal(err)
	}
	return plan
}
