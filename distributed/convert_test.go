package distributed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

// An arrival is how many units were admitted at an instant.
type arrival struct{ at, n int64 }

// inWindow returns how many units were admitted in the window that ends at an instant.
func inWindow(list []arrival, at int64, window time.Duration) (sum int64) {
	for i := len(list) - 1; i >= 0 && list[i].at > at-window.Microseconds(); i-- {
		sum += list[i].n
	}
	return sum
}

// bucketLevel returns how much of a bucket is used after all arrivals.
func bucketLevel(list []arrival, t algorithms.Tier) (used float64) {
	rate := float64(t.Limit) / float64(t.Window.Microseconds())
	var last int64
	for _, a := range list {
		used, last = max(0, used-rate*float64(a.at-last))+float64(a.n), a.at
	}
	return used
}

// A releases holds the plans of a program's releases, which call by turns while a fleet is being
// deployed.
type releases struct {
	*testing.T
	subject *subject
	plans   []*algorithms.Plan
	at      int64
	all     []arrival
}

// reserveUnits asks for units in requests of cost units each, and returns how many units are
// admitted.
func (r *releases) reserveUnits(release int, units, cost int64) int64 {
	r.Helper()
	n := cost * r.reserve(release, units/cost, map[string]int64{algorithms.Requests: cost})
	r.all = append(r.all, arrival{r.at, n})
	return n
}

// reserve asks for a number of requests and returns how many are admitted.
func (r *releases) reserve(release int, requests int64, cost map[string]int64) (n int64) {
	r.Helper()
	r.subject.change(r.plans[release])
	args := []int64{0, 0, 0, 0, 0, 0, 0, requests, 0}
	for _, u := range r.plans[release].Units() {
		args = append(args, cost[u])
	}
	got, err := r.subject.answer(r.at, step{op: opReserve, args: args})
	if err != nil {
		r.Fatal(err)
	}
	for i := 6; i < len(got)-4*len(r.subject.plan.PeriodStarts(0))/5; i += 2 {
		if got[i] <= -2 {
			n++
		}
	}
	return n
}

func newReleases(t *testing.T, guard time.Duration, specs ...string) *releases {
	r := &releases{T: t, subject: realSubject(t), at: 1_700_000_000_000_000}
	for _, spec := range specs {
		r.plans = append(r.plans, planOf(t, guard, spec))
	}
	r.subject.begin(r.plans[0])
	for i := range r.plans {
		r.reserveUnits(i, 1, 1)
	}
	return r
}

// In any window of the shorter length, releases that call by turns admit no more than the larger
// limit. If both remember instants, a release admits a request exactly if it fits the release's own
// limit, beside everything that both releases have admitted.
func TestReleasesByTurns(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		specs  [2]string
		exact  bool  // both remember all instants that either of them counts
		most   int64 // units in any shorter window
		window time.Duration
	}{
		{[2]string{"50/h", "50/h;algo=gcra"}, false, 100, time.Hour}, // as the bucket alone admits
		{[2]string{"50/m", "100/2m"}, true, 100, time.Minute},
		{[2]string{"50/s", "1000/m"}, true, 1000, time.Second},
		{[2]string{"10000/h", "10001/h"}, false, 10_001, time.Hour},
		{[2]string{"50/m", "30000/h"}, true, 30_000, time.Minute},
		{[2]string{"20000/h", "11000/m"}, false, 20_000, time.Minute},
		// A full anchored window, then a fixed one that begins in it, and then the next anchored one.
		{[2]string{"50/h;algo=fixed_window", "60/h;algo=anchored_window"}, false, 170, time.Hour},
		{[2]string{"50/m;algo=weighted_window", "100/2m;algo=token_bucket"}, false, 150, time.Minute},
		{[2]string{"50/m;algo=gcra", "10/m;algo=gcra"}, false, 100, time.Minute},
		{[2]string{"1000/24h;algo=sliding_log", "10/m;algo=leaky_bucket"}, false, 1010, time.Minute}, // and what drains meanwhile
	} {
		t.Run(fmt.Sprint(tc.specs), func(t *testing.T) {
			soak.Sample(t, 3)
			t.Parallel()
			for seed := range uint64(soak.Times(4)) {
				g := rand.New(rand.NewPCG(seed, 1))
				r := newReleases(t, 0, tc.specs[:]...)
				for turn := range 60 {
					r.at += g.Int64N(tc.window.Microseconds() / pickOf(g, 2, 20))
					i := turn % 2
					tier := r.plans[i].Tiers()[0]
					cost := 1 + tier.Limit/100
					n := r.reserveUnits(i, cost+g.Int64N(tier.Limit+10), cost)
					if got := inWindow(r.all, r.at, tc.window); got > tc.most {
						t.Fatalf("seed %d, turn %d: got %d admitted in %v, want %d at most", seed, turn, got, tc.window, tc.most)
					}
					if got := inWindow(r.all, r.at, tier.Window); tc.exact && n > 0 && got > tier.Limit {
						t.Fatalf("seed %d, turn %d: %v admits, got %d units in its window, want %d at most", seed, turn, tier, got, tier.Limit)
					}
					larger := tier.Limit >= r.plans[1-i].Tiers()[0].Limit
					if tier.Algorithm >= algorithms.TokenBucket && larger && n > 0 {
						if used := bucketLevel(r.all, tier); used > float64(tier.Burst)+0.01 {
							t.Fatalf("seed %d, turn %d: %v admits, got %.2f units used, want %d at most", seed, turn, tier, used, tier.Burst)
						}
					}
				}
			}
		})
	}
}

func pickOf(g *rand.Rand, list ...int64) int64 { return list[g.IntN(len(list))] }

// With sliding logs, releases that call by turns admit all requests that fit their own limits.
func TestReleasesLoseNothing(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	t.Parallel()
	g := rand.New(rand.NewPCG(1, 1))
	for _, specs := range [][]string{{"50/m", "100/2m"}, {"5/s", "100/h", "10/m"}} {
		r := newReleases(t, 0, specs...)
		for turn := range 300 {
			r.at += g.Int64N(20_000_000)
			tier := r.plans[turn%len(specs)].Tiers()[0]
			asked := 1 + g.Int64N(100)
			want := min(asked, max(0, tier.Limit-inWindow(r.all, r.at, tier.Window)))
			if got := r.reserveUnits(turn%len(specs), asked, 1); got != want {
				t.Fatalf("%v, turn %d: %v admitted %d of %d, want %d", specs, turn, tier, got, asked, want)
			}
		}
	}
}

// The script converts a state to the same decisions as Plan.Convert converts a ledger.
func TestConvertTwins(t *testing.T) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) { checkConvertTwins(t, miniSubject(t), soak.Times(40)) })
	t.Run("redis", func(t *testing.T) { checkConvertTwins(t, serverSubject(t), soak.Times(300)) })
}

func checkConvertTwins(t *testing.T, s *subject, seeds int) {
	for seed := range uint64(seeds) {
		g := rand.New(rand.NewPCG(seed, 1))
		tier := func() algorithms.Tier {
			return algorithms.Tier{
				Limit: 1 + g.Int64N(20), Window: []time.Duration{time.Second, 20 * time.Second, time.Minute}[g.IntN(3)],
				Algorithm: windowed[g.IntN(len(windowed))],
			}
		}
		guard := time.Duration(g.IntN(2)) * 50 * time.Millisecond
		first := tier()
		again := func() algorithms.Tier { // another limit of the first tier, which occurs twice or is split or merged
			t := first
			t.Limit = 1 + g.Int64N(20)
			return t
		}
		plan := func() *algorithms.Plan {
			tiers := []algorithms.Tier{tier(), tier()}
			if g.IntN(2) == 0 {
				tiers = []algorithms.Tier{again(), again()}
			}
			p, err := algorithms.NewPlan(tiers[g.IntN(2):], guard)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		before, after := plan(), plan()
		if roundsRefills(before, after) {
			continue
		}
		m := newTwin(before)
		s.begin(before)
		at := int64(1_700_000_000_000_000)
		compare(t, s, m, at, step{op: opStatus})
		at += time.Hour.Microseconds() // the state's clock moves far from its beginning
		play := func() {
			for range 6 {
				at += g.Int64N([]int64{100_000, 2_000_000, 20_000_000}[g.IntN(3)])
				compare(t, s, m, at, step{op: opReserve, args: []int64{0, 0, 0, 0, 0, 0, 0, 1 + g.Int64N(8), 0, 1 + g.Int64N(2)}})
			}
			compare(t, s, m, at, step{op: opStatus})
		}
		play()
		if g.IntN(2) == 0 { // what is due by then lands under the plan before
			gap := g.Int64N(20_000_000)
			at, m.now, m.wall = at+gap, m.now+gap, m.wall+gap
			m.advance(m.now)
		}
		ledger := after.Convert(*m.ledger, m.moment(m.frontier))
		m.adopt(after)
		m.ledger, m.changed = &ledger, true
		s.change(after)
		compare(t, s, m, at, step{op: opStatus})
		play()
	}
}

// roundsRefills reports whether one bucket may take over from another. The twins differ then: the
// script rounds up the time that is missing, the ledger the units.
func roundsRefills(before, after *algorithms.Plan) bool {
	has := func(p *algorithms.Plan) bool {
		return slices.ContainsFunc(p.Tiers(), func(t algorithms.Tier) bool { return t.Algorithm >= algorithms.TokenBucket })
	}
	return has(before) && has(after)
}

// A bucket drains at its old rate until the change, also if nobody has called since it was used.
func TestNewRateBeginsWithChange(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"token_bucket", "leaky_bucket", "gcra"} {
		for _, guard := range []time.Duration{0, time.Second} {
			r := &releases{T: t, subject: realSubject(t), at: 1_700_000_000_000_000}
			for _, limit := range []string{"10/m", "60/m"} {
				r.plans = append(r.plans, planOf(t, guard, limit+";burst=10;algo="+algorithm))
			}
			r.subject.begin(r.plans[0])
			if got := r.reserveUnits(0, 10, 1); got != 10 {
				t.Fatalf("%s: got %d admitted, want 10", algorithm, got)
			}
			r.at += (30*time.Second + guard).Microseconds()
			if got := r.reserveUnits(1, 10, 1); got != 5 {
				t.Errorf("%s, guard %v: got %d admitted after 30 s at 10 in a minute, want 5", algorithm, guard, got)
			}
		}
	}
}
