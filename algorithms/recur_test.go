package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// TestRecurs plays the same calls with two ledgers, an hour or more apart. The one is then the other,
// later, until one of them is charged for one request more.
func TestRecurs(t *testing.T) {
	for _, text := range []string{
		"7/s", "7/s;phase=unknown;algo=fixed_window", "20/12s;algo=sliding_window", "20/10s;algo=weighted_window", "20/10s;algo=fixed_window;phase=3s",
		"20/12s;algo=anchored_window", "7/s;algo=token_bucket;burst=9", "7/s;algo=leaky_bucket;burst=2", "7/s;algo=gcra", "5;algo=concurrency",
		"100/10s;unit=tokens;estimated=true", "9/s;pace_burst=2",
	} {
		tier, err := algorithms.ParseTier(text)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := algorithms.NewPlan([]algorithms.Tier{tier}, 50*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(50) {
			const by = 1_024_000_000 * 60 // a multiple of the windows, their parts and the resolution
			start := int64(1_800_000_000_000_000)
			earlier, later := plan.NewLedger(), plan.NewLedger()
			run := func(l *algorithms.Ledger, at int64) (last int64, answers []int64) {
				r := rand.New(rand.NewPCG(seed, 1))
				var flights []algorithms.Flight
				cost := []int64{1}
				for range 40 {
					at += r.Int64N(700_000)
					m := algorithms.Moment{At: at, Wall: at}
					if r.IntN(2) == 0 && len(flights) > 0 {
						l.Arrived(m, flights[0], cost)
						l.Settle(m, cost, cost)
						l.Release(cost)
						flights = flights[1:]
						continue
					}
					f, next, tier := l.Take(m, algorithms.Request{Cost: cost, Held: true})
					if tier < 0 {
						flights = append(flights, f)
					}
					if next != algorithms.Never {
						next -= at
					}
					answers = append(answers, next, int64(tier))
				}
				return at, answers
			}
			end, before := run(&earlier, start)
			_, after := run(&later, start+by)
			for i := range before {
				if before[i] != after[i] {
					t.Fatalf("%s, seed %d: answer %d is %d, and %d later", text, seed, i, before[i], after[i])
				}
			}
			if !later.Recurs(&earlier, by) {
				t.Errorf("%s, seed %d: the same calls make another ledger", text, seed)
			}
			if later.Recurs(&earlier, by+1) || later.Recurs(&earlier, by+1024) || earlier.Recurs(&later, -by) {
				t.Errorf("%s, seed %d: a ledger recurs after another time", text, seed)
			}
			m := algorithms.Moment{At: end + by, Wall: end + by}
			later.Charge(m, algorithms.Request{Cost: []int64{1}})
			if later.Recurs(&earlier, by) {
				t.Errorf("%s, seed %d: a ledger recurs although it was charged for more", text, seed)
			}
		}
	}
}

// TestRecursBoundary checks that a ledger doesn't recur if it knows when a window of the provider ends:
// its stamps leave at boundaries, which are not as much later.
func TestRecursBoundary(t *testing.T) {
	for _, text := range []string{"7/s;phase=unknown;algo=fixed_window", "20000/s;phase=unknown;algo=fixed_window"} {
		tier, err := algorithms.ParseTier(text)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := algorithms.NewPlan([]algorithms.Tier{tier}, 0)
		if err != nil {
			t.Fatal(err)
		}
		const start, by = 1_000_000_000, 1_666_600 // a multiple of a group of the window
		earlier, later := plan.NewLedger(), plan.NewLedger()
		earlier.Count(algorithms.Moment{At: start}, []int64{1})
		later.Count(algorithms.Moment{At: start + by}, []int64{1})
		if !later.Recurs(&earlier, by) {
			t.Errorf("%s: the same call makes another ledger", text)
		}
		later.Boundary(algorithms.Moment{At: start + by}, 0, start, start+1000)
		if later.Recurs(&earlier, by) {
			t.Errorf("%s: a ledger recurs although it knows a boundary", text)
		}
	}
}
