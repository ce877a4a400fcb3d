package throttletest

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

type arrival struct{ at, units int64 }

// accepts follows the definition of each algorithm literally: it checks every accepted arrival and
// every interval, with exact fractions.
func accepts(tier algorithms.Tier, past []arrival, t, c int64) bool {
	window := tier.Window.Microseconds()
	sum := func(from, to int64) (units int64) { // arrivals in [from, to)
		for _, a := range past {
			if from <= a.at && a.at < to {
				units += a.units
			}
		}
		return units
	}
	switch tier.Algorithm {
	case algorithms.SlidingLog, algorithms.SlidingWindow:
		return sum(t-window+1, t+1)+c <= tier.Limit
	case algorithms.FixedWindow, algorithms.WeightedWindow:
		start := tier.Phase.Microseconds() - 10*window
		for start+window <= t {
			start += window
		}
		used := big.NewRat(sum(start, start+window)+c, 1)
		if tier.Algorithm == algorithms.WeightedWindow {
			part := big.NewRat(start+window-t, window)
			used.Add(used, part.Mul(part, big.NewRat(sum(start-window, start), 1)))
		}
		return used.Cmp(big.NewRat(tier.Limit, 1)) <= 0
	case algorithms.AnchoredWindow:
		start := int64(-1)
		for _, a := range append(past[:len(past):len(past)], arrival{t, c}) {
			if start < 0 || a.at >= start+window {
				start = a.at
			}
		}
		return sum(start, t+1)+c <= tier.Limit
	default:
		burst := tier.Burst
		if burst == 0 {
			burst = tier.Limit
		}
		for _, s := range append(past[:len(past):len(past)], arrival{t, c}) {
			bound := big.NewRat(t-s.at, window)
			bound.Mul(bound, big.NewRat(tier.Limit, 1)).Add(bound, big.NewRat(burst, 1))
			if big.NewRat(sum(s.at, t+1)+c, 1).Cmp(bound) > 0 {
				return false
			}
		}
		return true
	}
}

func randomTier(r *rand.Rand, a algorithms.Algorithm) algorithms.Tier {
	tier := algorithms.Tier{Limit: 1 + r.Int64N(12), Window: time.Duration(1+r.Int64N(40)) * time.Microsecond, Algorithm: a}
	switch a {
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
		tier.Burst = r.Int64N(15)
	case algorithms.FixedWindow, algorithms.WeightedWindow:
		tier.Phase = time.Duration(r.Int64N(tier.Window.Microseconds())) * time.Microsecond
	}
	return tier
}

// TestDefinition compares a Counter with the definition for random arrivals, and checks Earliest
// for each of them.
func TestDefinition(t *testing.T) {
	for a := algorithms.SlidingLog; a < algorithms.Concurrency; a++ {
		t.Run(a.String(), func(t *testing.T) {
			for seed := range uint64(soak.Times(12)) {
				if problem := compare(rand.New(rand.NewPCG(seed, uint64(a))), a); problem != "" {
					t.Fatalf("seed %d: %s", seed, problem)
				}
			}
		})
	}
}

func compare(r *rand.Rand, a algorithms.Algorithm) (problem string) {
	tier := randomTier(r, a)
	c, err := NewCounter(tier)
	if err != nil {
		return err.Error()
	}
	var past []arrival
	at, pace := int64(0), 1+r.Int64N(12)
	for step := range 80 {
		at += r.Int64N(pace)
		if r.IntN(30) == 0 {
			at += r.Int64N(100)
		}
		units := 1 + r.Int64N(3)
		want := accepts(tier, past, at, units)
		if got := c.Admits(at, n(units)) < 0; got != want {
			return fmt.Sprintf("%+v, step %d: %d at %d: accepted is %v, want %v; past: %v", tier, step, units, at, got, want, past)
		}
		next, ok := c.Earliest(at, n(units))
		if ok && (!accepts(tier, past, next, units) || next > at && accepts(tier, past, next-1, units)) {
			return fmt.Sprintf("%+v, step %d: %d from %d on: Earliest is %d; past: %v", tier, step, units, at, next, past)
		}
		if !ok && units <= tier.Capacity() {
			return fmt.Sprintf("%+v, step %d: %d from %d on: never", tier, step, units, at)
		}
		if c.Arrive(at, n(units)) != want {
			return fmt.Sprintf("%+v, step %d: Arrive differs from Admits", tier, step)
		}
		if want {
			past = append(past, arrival{at, units})
		}
	}
	return ""
}

func TestProductAtMost(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	product := func(a, b int64) *big.Int { return new(big.Int).Mul(big.NewInt(a), big.NewInt(b)) }
	draw := func() int64 { return r.Int64() >> r.IntN(63) } // numbers of all bit lengths
	for range 100_000 {
		a, b, c, d := draw(), draw(), draw(), draw()
		if r.IntN(4) == 0 {
			c, d = b, a
		}
		if got, want := productAtMost(a, b, c, d), product(a, b).Cmp(product(c, d)) <= 0; got != want {
			t.Fatalf("productAtMost(%d, %d, %d, %d) = %v", a, b, c, d, got)
		}
	}
}
