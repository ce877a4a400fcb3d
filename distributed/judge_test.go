package distributed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

// A judge counts as the provider of one tier does, in a plain list of all arrivals, including those
// beyond the limit.
type judge struct {
	algorithms.Tier
	all []arrival
}

// between returns how many units arrived in [from, to).
func (j *judge) between(from, to int64) (sum int64) {
	for i := len(j.all) - 1; i >= 0 && j.all[i].at >= from; i-- {
		if j.all[i].at < to {
			sum += j.all[i].n
		}
	}
	return sum
}

// fits reports whether the provider accepts n more units.
func (j *judge) fits(at, n int64) bool {
	window := j.Window.Microseconds()
	start := at - (at-j.Phase.Microseconds())%max(1, window)
	switch j.Algorithm {
	case algorithms.SlidingLog, algorithms.SlidingWindow:
		return j.between(at-window+1, at+1)+n <= j.Limit
	case algorithms.FixedWindow:
		return j.between(start, at+1)+n <= j.Limit
	case algorithms.WeightedWindow:
		return j.between(start-window, start)*(start+window-at) <= (j.Limit-n-j.between(start, at+1))*window
	case algorithms.AnchoredWindow:
		opened := int64(0)
		for _, a := range append(j.all[:len(j.all):len(j.all)], arrival{at, n}) {
			if a.at >= opened+window {
				opened = a.at
			}
		}
		return j.between(opened, at+1)+n <= j.Limit
	case algorithms.Calendar:
		day := 24 * time.Hour.Microseconds()
		return j.between(at-at%day, at+1)+n <= j.Limit
	}
	level, last := int64(0), int64(0) // in units of 1/window
	for _, a := range j.all {
		level, last = max(0, level-min(level, j.Limit*(a.at-last)))+a.n*window, a.at
	}
	return level-min(level, j.Limit*(at-last))+n*window <= j.Burst*window
}

// isExact reports whether the script counts a tier as its judge does. For the other tiers it counts
// more.
func isExact(t algorithms.Tier) bool {
	return t.Algorithm != algorithms.SlidingWindow && t.Algorithm != algorithms.AnchoredWindow && t.Algorithm != algorithms.Calendar
}

// randomReleases returns random plans of two or three releases of a program.
func randomReleases(t *testing.T, g *rand.Rand) (plans []*algorithms.Plan) {
	t.Helper()
	for range 2 + g.IntN(5)/4 {
		var tiers []algorithms.Tier
		for range 1 + g.IntN(3) {
			tier := algorithms.Tier{
				Limit:     1 + g.Int64N(20),
				Window:    pickFrom(g, time.Second, 20*time.Second, time.Minute, 7*time.Minute),
				Algorithm: windowed[g.IntN(len(windowed))],
				Unit:      pickFrom(g, "", "", "tokens"),
			}
			switch {
			case g.IntN(12) == 0:
				tier.Algorithm, tier.Window, tier.Period, tier.Limit = algorithms.Calendar, 0, algorithms.Day, 10*tier.Limit
			case tier.Algorithm == algorithms.FixedWindow || tier.Algorithm == algorithms.WeightedWindow:
				tier.Phase = pickFrom(g, 0, tier.Window/3).Truncate(time.Microsecond)
			case tier.Algorithm == algorithms.TokenBucket, tier.Algorithm == algorithms.LeakyBucket, tier.Algorithm == algorithms.GCRA:
				tier.Burst = pickFrom(g, 0, 2*tier.Limit)
			}
			tiers = append(tiers, tier)
		}
		p, err := algorithms.NewPlan(tiers, 0)
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, p)
	}
	return plans
}

func pickFrom[T any](g *rand.Rand, list ...T) T { return list[g.IntN(len(list))] }

// However often releases take turns, each admits exactly what its own tiers have room for beside
// everything that all releases have admitted.
func TestReleasesSideBySide(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	t.Parallel()
	s := realSubject(t)
	for seed := range uint64(soak.Times(100)) {
		g := rand.New(rand.NewPCG(seed, 1))
		plans := randomReleases(t, g)
		judges := make([][]*judge, len(plans))
		describe := fmt.Sprintf("seed %d, releases", seed)
		r := &releases{T: t, subject: s, plans: plans, at: 1_700_000_000_000_000}
		s.begin(plans[0])
		for i, p := range plans {
			describe += fmt.Sprint(" ", p.Tiers())
			for _, tier := range p.Tiers() {
				judges[i] = append(judges[i], &judge{Tier: tier})
			}
			r.reserve(i, 1, map[string]int64{})
		}
		for turn := range 80 {
			r.at += g.Int64N(pickFrom[int64](g, 1000, 1_000_000, 20_000_000, 120_000_000))
			i := g.IntN(len(plans))
			cost := map[string]int64{algorithms.Requests: 1, "tokens": g.Int64N(3)}
			asked := 1 + g.Int64N(25)
			admits := func() bool {
				for _, j := range judges[i] {
					if !j.fits(r.at, cost[j.Unit]) && cost[j.Unit] > 0 {
						return false
					}
				}
				return true
			}
			got, exact := r.reserve(i, asked, cost), true
			for range got {
				if !admits() {
					t.Fatalf("%s: turn %d: release %d admitted %d, want fewer: its tiers are full", describe, turn, i, got)
				}
				for _, list := range judges {
					for _, j := range list {
						if n := cost[j.Unit]; n > 0 && slices.Contains(plans[i].Units(), j.Unit) {
							j.all = append(j.all, arrival{r.at, n})
						}
					}
				}
			}
			for _, j := range judges[i] {
				exact = exact && isExact(j.Tier)
			}
			if exact && got < asked && admits() {
				t.Fatalf("%s: turn %d: release %d admitted %d of %d, want more: its tiers have room", describe, turn, i, got, asked)
			}
		}
	}
}

// keptTiers returns how many tiers the state keeps for releases other than the last caller's.
func keptTiers(t *testing.T, s *subject) int64 {
	t.Helper()
	head, _, _ := strings.Cut(s.rdb.Get(context.Background(), s.key).Val(), "\n")
	_, kept, ok := strings.Cut(head, "+")
	if !ok {
		return 0
	}
	return integers(t, kept)[1]
}

// The tiers of a release that no longer calls are kept for an hour at least, and for windows of up
// to an hour for two hours at most. For longer windows they are kept for two days at most.
func TestReleaseThatEnds(t *testing.T) {
	soak.Long(t, "hours of a fleet, a minute a step")
	soak.NoRace(t, "many fleets in virtual time, whose code other tests run")
	t.Parallel()
	for _, tc := range []struct {
		gone         string
		least, until time.Duration
	}{
		{"5/s", time.Hour, 2 * time.Hour},
		{"50/3h;algo=fixed_window", 3 * time.Hour, 6 * time.Hour},
		{"500/720h;algo=gcra", 24 * time.Hour, 48 * time.Hour},
		{"500/month", 24 * time.Hour, 48 * time.Hour},
	} {
		r := newReleases(t, 0, tc.gone, "20/m;algo=weighted_window")
		began := r.at
		for kept := int64(1); kept > 0; {
			r.at += time.Minute.Microseconds()
			r.reserveUnits(1, 20, 1)
			since := time.Duration(r.at-began) * time.Microsecond
			if kept = keptTiers(t, r.subject); kept > 0 && since > tc.until || kept == 0 && since < tc.least {
				t.Fatalf("%s: got %d tiers kept after %v, want them kept for %v to %v", tc.gone, kept, since, tc.least, tc.until)
			}
		}
		r.reserveUnits(0, 1, 1)
		if kept := keptTiers(t, r.subject); kept != 1 {
			t.Fatalf("%s: got %d tiers kept after the release called again, want 1", tc.gone, kept)
		}
	}
}

// However many releases call, the state keeps eight tiers for them at most.
func TestReleasesAreBounded(t *testing.T) {
	t.Parallel()
	r := newReleases(t, 0, "5/s")
	for i := range 40 {
		r.plans = append(r.plans, planOf(t, 0, fmt.Sprintf("%d/m;algo=gcra", 10+i), fmt.Sprintf("%d/%dh", 10+i, 1+i)))
		r.at += 1000
		r.reserveUnits(len(r.plans)-1, 1, 1)
		if kept := keptTiers(t, r.subject); kept > 8 {
			t.Fatalf("got %d tiers kept, want 8 at most", kept)
		}
	}
}

// The script that only reads a state finds a pause in a state that is kept for several releases.
func TestPeekBesideReleases(t *testing.T) {
	t.Parallel()
	for _, specs := range [][]string{{"5/s", "7/m;algo=gcra"}, {"7/m;algo=gcra", "5/s"}, {"5/s", "60/m", "700/month"}} {
		r := newReleases(t, 0, specs...)
		if keptTiers(t, r.subject) == 0 {
			t.Fatal("got no kept tiers, want some")
		}
		r.at = time.Now().UnixMicro()
		want, err := r.subject.answer(r.at, step{op: opPause, args: []int64{time.Hour.Microseconds(), 1, 0, 0, 0}})
		if err != nil {
			t.Fatal(err)
		}
		peeked, err := r.subject.rdb.Eval(t.Context(), peekSource, []string{r.subject.key}).Int64Slice()
		if err != nil || peeked[1] != want[1] || peeked[3] != want[3] || peeked[4] != want[4] || peeked[5] != want[5] {
			t.Errorf("%v: got %v, %v, want %v", specs, peeked, err, want)
		}
	}
}
