package algorithms_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestExtremes plays games with the longest guards and pauses, the largest amounts and the latest
// instants, and checks that nothing overflows.
func TestExtremes(t *testing.T) {
	for seed := range uint64(soak.Times(500)) {
		extremes(t, seed, uint8(seed))
	}
}

// FuzzExtremes is TestExtremes with seeds from the fuzzer.
func FuzzExtremes(f *testing.F) {
	for _, a := range all {
		f.Add(uint64(a), uint8(a))
	}
	f.Fuzz(extremes)
}

func extremes(t *testing.T, seed uint64, a uint8) {
	r := rand.New(rand.NewPCG(11, seed))
	g := newGame(t, r, all[int(a)%len(all)])
	durations := []time.Duration{0, 1, time.Second, MaxWindow, math.MaxInt64 - 999, math.MaxInt64}
	amounts := []int64{0, 1, 1000, MaxLimit}
	cost := make([]int64, len(g.plan.Units()))
	units := func() []int64 {
		for u := range cost {
			cost[u] = pick(r, amounts...)
		}
		return cost
	}
	var flights []Flight
	for step := range 60 {
		guard := Micros(pick(r, durations...))
		if guard < 0 {
			t.Fatalf("a guard of %d µs, want at least 0", guard)
		}
		if r.IntN(20) == 0 { // a pause ends
			g.now = g.now.Later(min(g.now.At+Micros(pick(r, durations...)), Latest))
		}
		switch r.IntN(6) {
		case 0, 1:
			flights = append(flights, g.l.Charge(g.now, Request{Cost: units(), Guard: guard, Held: true}))
		case 2:
			g.l.Count(g.now, units())
		case 3:
			if len(flights) > 0 {
				g.l.Arrived(g.now, pick(r, flights...), units())
			}
		case 4:
			tier := r.IntN(len(g.plan.Tiers()))
			g.l.Observe(g.now, Observation{Tier: tier, Used: pick(r, amounts...), Since: max(0, g.now.At-Micros(pick(r, durations...))), Cost: pick(r, amounts...), Exact: r.IntN(2) == 0})
		case 5:
			g.to(g.now.At + r.Int64N(1e9))
		}
		one := make([]int64, len(cost))
		for u := range one {
			one[u] = 1
		}
		if at, _ := g.l.Earliest(g.now, Request{Cost: one}); at < g.now.At {
			t.Fatalf("seed %d, step %d, %v: one more may go at %d, which is before now, %d", seed, step, g.tiers, at, g.now.At)
		}
		for i, u := range g.l.Usage(g.now) {
			if u.Used < 0 || u.Next < g.now.At || u.Fresh < g.now.At {
				t.Fatalf("seed %d, step %d, %v: usage %+v is negative or before now, %d", seed, step, g.plan.Tiers()[i], u, g.now.At)
			}
		}
		encode(t, &g.l)
	}
}
