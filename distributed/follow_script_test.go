package distributed

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/soak"
)

// earlierScript returns the script of the last release that could follow nothing.
func earlierScript(t *testing.T) string {
	t.Helper()
	f, err := os.Open("testdata/scripts/thr5.lua.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	source, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(source)
}

// A sharing is subjects that share a server: one for each release.
func sharing(t *testing.T) (present, earlier *subject) {
	present = miniSubject(t)
	earlier = newSubject(t, present.rdb, earlierScript(t), present.set)
	return present, earlier
}

const followedAt int64 = 1_700_000_000_000_000

func (s *subject) value() string { return s.rdb.Get(context.Background(), s.key).Val() }

// ask reserves requests of one unit, and returns how many are admitted at once.
func (s *subject) admitted(at, requests int64) (n int64, err error) {
	got, err := s.answer(at, step{op: opReserve, args: []int64{0, 0, 0, 0, 0, 0, 0, requests, 0, 1}})
	for i := 6; i < len(got); i += 2 {
		if got[i] <= -2 {
			n++
		}
	}
	return n, err
}

// A release that can follow nothing refuses the state of a policy that follows, names the fix and leaves
// the state alone.
func TestEarlierReleaseRefusesFollowed(t *testing.T) {
	present, earlier := sharing(t)
	follows := planOf(t, 50*time.Millisecond, "50/h;algo=fixed_window;follow=5..100")
	present.begin(follows)
	if _, err := present.admitted(followedAt, 3); err != nil {
		t.Fatal(err)
	}
	before := present.value()
	for _, spec := range []string{"50/h;algo=fixed_window", "70/h;algo=gcra"} {
		earlier.key = present.key
		earlier.change(planOf(t, 50*time.Millisecond, spec))
		for _, st := range []step{reserveStep(1), {op: opStatus}, {op: opPause, args: []int64{1000, 0, 0, 0, 0}}} {
			if _, err := earlier.answer(followedAt+1000, st); err == nil || !strings.HasPrefix(err.Error(), "THROTTLE version 6") {
				t.Errorf("%s, %s: got %v, want THROTTLE version 6", spec, st.op, err)
			}
		}
	}
	if now := present.value(); now != before {
		t.Errorf("got the state %q, want %q", now, before)
	}
}

// The state of a policy that follows nothing is the same in both releases, byte for byte.
func TestFollowKeepsFormatOfOthers(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	present, earlier := sharing(t)
	for i, specs := range [][]string{{"50/h;algo=fixed_window"}, {"9/s", "100/m;algo=token_bucket"}, {"5/s;algo=anchored_window", "9/m;algo=sliding_window"}} {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		plan, other := planOf(t, 50*time.Millisecond, specs...), planOf(t, 50*time.Millisecond, "60/h;algo=fixed_window")
		present.begin(plan)
		earlier.begin(plan)
		at := followedAt
		for range 200 {
			at += random.Int64N(100_000)
			st := reserveStep(1 + random.Int64N(3))
			if random.IntN(10) == 0 {
				for _, s := range []*subject{present, earlier} {
					s.change(map[bool]*algorithms.Plan{true: other, false: plan}[s.plan == plan])
				}
			}
			got, err := present.answer(at, st)
			want, failed := earlier.answer(at, st)
			if err != nil || failed != nil || fmt.Sprint(got) != fmt.Sprint(want) || present.value() != earlier.value() {
				t.Fatalf("%v: got %v, %v and %q, want %v, %v and %q", specs, got, err, present.value(), want, failed, earlier.value())
			}
		}
	}
}

// named returns a plan with a limit that was named at an instant after followedAt.
func named(p *algorithms.Plan, after, limit int64) *algorithms.Plan {
	return p.Following(algorithms.Followed{At: followedAt + after, Limits: []int64{limit}})
}

// A call with earlier limits changes nothing. A call with later ones keeps what is charged, and no tiers of
// the earlier limits. Neither counts as another release.
func TestLaterLimitsHold(t *testing.T) {
	for _, spec := range []string{
		"50/h;algo=fixed_window;follow=5..100", "50/h;algo=token_bucket;follow=5..100", "50/h;algo=gcra;burst=50;follow=5..100",
		"50/h;follow=5..100", "50/h;algo=sliding_window;follow=5..100", "50/h;algo=anchored_window;follow=5..100", "50/h;algo=weighted_window;follow=5..100",
	} {
		s := miniSubject(t)
		base := planOf(t, 0, spec)
		s.begin(base)
		admits := func(p *algorithms.Plan, want int64) {
			t.Helper()
			s.change(p)
			if n, err := s.admitted(followedAt+10_000, 200); err != nil || n != want {
				t.Errorf("%s: %v admits %d, %v, want %d", spec, p.Tiers(), n, err, want)
			}
			if v, _, _ := strings.Cut(s.value(), "\n"); strings.Contains(v, "+") || !strings.HasPrefix(v, "thr6 ") {
				t.Errorf("%s: got a state %s, want one without guest tiers", spec, v)
			}
			if got, err := s.answer(followedAt+10_000, step{op: opStatus}); err != nil || got[5]&4 != 0 {
				t.Errorf("%s: got %v, %v, want no other release", spec, got, err)
			}
		}
		refuses := func(p *algorithms.Plan, want string) {
			t.Helper()
			before := s.value()
			s.change(p)
			for _, st := range []step{reserveStep(1), {op: opStatus}, {op: opCancel, args: []int64{followedAt, 0, 0, 10_000, 1}}} {
				if _, err := s.answer(followedAt+10_000, st); err == nil || !strings.HasPrefix(err.Error(), "THROTTLE follow "+want) || !strings.HasSuffix(err.Error(), " "+s.key) {
					t.Errorf("%s: %v is answered %v, want %q", spec, p.Tiers(), err, want)
				}
			}
			if s.value() != before {
				t.Errorf("%s: a call with earlier limits has changed the state", spec)
			}
		}
		admits(base, 50)
		admits(named(base, 7, 80), 30)
		refuses(base, fmt.Sprintf("%d %d 80", followedAt+7, policyHash(base)))
		admits(named(base, 9, 20), 0)
		refuses(named(base, 8, 90), fmt.Sprintf("%d %d 20", followedAt+9, policyHash(base)))
		admits(named(base, 10, 100), 20)
		admits(named(base, 11, 0), 0) // as Forget does
		refuses(base, fmt.Sprintf("%d %d 0", followedAt+11, policyHash(base)))
	}
}

// Of limits that are named at one instant, any hold, and the same for all.
func TestLimitsOfOneInstant(t *testing.T) {
	s := miniSubject(t)
	base := planOf(t, 0, "50/h;algo=fixed_window;follow=5..100")
	s.begin(base)
	one, other := named(base, 7, 60), named(base, 7, 90)
	var told [2]bool
	for i, p := range []*algorithms.Plan{one, other, one, other} {
		s.change(p)
		if _, err := s.admitted(followedAt+1000, 1); err != nil {
			told[i%2] = true
		}
	}
	if told[0] == told[1] {
		t.Errorf("got both or neither told of other limits: %v, want one", told)
	}
}

// Beside a release without Follow, and one with other tiers, each admits no more than the larger limit in a
// window, whatever is followed meanwhile, and what the others have followed holds again.
func TestFollowBesideOtherReleases(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		s := miniSubject(t)
		base := planOf(t, 0, "50/h;algo=fixed_window;follow=5..100")
		plans := []*algorithms.Plan{base, planOf(t, 0, "50/h;algo=fixed_window"), planOf(t, 0, "70/h;algo=fixed_window;follow=5..100")}
		s.begin(base)
		const hour = int64(3_600_000_000)
		at, most, used := followedAt, map[int64]int64{}, map[int64]int64{}
		for i := range 150 {
			at += random.Int64N(hour / 20)
			if random.IntN(5) == 0 {
				j := 2 * random.IntN(2)
				plans[j] = plans[j].Following(algorithms.Followed{At: at, Limits: []int64{5 + random.Int64N(96)}})
			}
			s.change(plans[random.IntN(3)])
			n, err := s.admitted(at, 1+random.Int64N(30))
			if err != nil {
				t.Fatalf("seed %d, call %d: %v", seed, i, err)
			}
			window := at / hour
			for _, p := range plans {
				most[window] = max(most[window], p.Tiers()[0].Limit)
			}
			if used[window] += n; used[window] > most[window] {
				t.Fatalf("seed %d, call %d: %d are used of %d", seed, i, used[window], most[window])
			}
		}
	}
}
