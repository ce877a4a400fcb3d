package distributed

import (
	"fmt"
	"testing"
	"time"

	miniredis "github.com/alicebob/miniredis/v2/server"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/internal/soak"
)

// TestReleasesLeaveRecords checks that releases side by side send Redis no more commands with each
// call than one release, whatever units they have, and that no place is lost. Each process holds
// one place.
func TestReleasesLeaveRecords(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	const processes, at = 2000, 1_700_000_000_000_000
	const places, tokens = "100000;algo=concurrency", "1000000/s;unit=tokens;algo=gcra"
	for name, specs := range map[string][][]string{
		"one release":    {{places, tokens}},
		"a unit first":   {{places, tokens}, {"1000000/h;unit=bytes;algo=gcra", places, tokens}},
		"a unit renamed": {{places, tokens}, {places, "1000000/s;unit=words;algo=gcra"}},
		"a unit removed": {{places, tokens}, {places}},
		"another order":  {{places, tokens}, {tokens, places}},
		"three releases": {{places, tokens}, {tokens, places, "1000000/h;unit=bytes;algo=gcra"}, {"9/s;unit=words", places}},
	} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 3)
			m := redismem.New()
			defer m.Close()
			commands, bytes := 0, 0
			redismem.Hook(m, func(_ *miniredis.Peer, _ string, args ...string) bool {
				commands++
				for _, arg := range args {
					bytes += len(arg)
				}
				return false
			})
			rdb := redismem.Dial(m, nil)
			defer rdb.Close()
			s := newSubject(t, rdb, scriptSource(), m.SetTime)
			var plans []*algorithms.Plan
			for _, spec := range specs {
				plans = append(plans, planOf(t, 50*time.Millisecond, spec...))
			}
			s.begin(plans[0])
			held := make(map[int64]int64)
			call := func(plan *algorithms.Plan, owner, seq int64) {
				t.Helper()
				s.change(plan)
				lease := append([]int64{owner, seq, 3600e6, 0, 0}, heldBy(plan, held[owner])...)
				args := append([]int64{0, 0, 0, 0, 0, 0, 0, 1, -1}, heldBy(plan, 1)...)
				if got, err := s.answer(at+1000*seq, step{op: opReserve, lease: lease, args: args}); err != nil || got[6] > -2 {
					t.Fatalf("process %d: got %v, %v, want a place", owner, got, err)
				}
				held[owner]++
			}
			for i := range int64(processes) {
				call(plans[0], i, 1)
			}
			seq := int64(1)
			round := func() { // each release calls
				for i, plan := range plans {
					seq++
					call(plan, int64(i), seq)
				}
			}
			round()
			round()
			commands, bytes = 0, 0
			round()
			if most := 20 * len(plans); commands > most {
				t.Errorf("got %d commands with %d calls, want %d at most", commands, len(plans), most)
			}
			if most := 2000 * len(plans); bytes > most {
				t.Errorf("got %d bytes in commands of %d calls, want %d at most", bytes, len(plans), most)
			}
			got, err := s.answer(at+1000*seq, step{op: opStatus, lease: append([]int64{0, seq + 1, 3600e6, 0, 0}, heldBy(s.plan, held[0])...)})
			index := 6 + 3*tierOf(s.plan, algorithms.Concurrency)
			if want := int64(processes + 3*len(plans)); err != nil || got[index] != want {
				t.Errorf("got %v, %v places in use, want %d", got[index:], err, want)
			}
		})
	}
}

// heldBy returns the amounts of a lease that holds requests.
func heldBy(plan *algorithms.Plan, requests int64) (list []int64) {
	for _, unit := range plan.Units() {
		n := int64(0)
		if unit == algorithms.Requests {
			n = requests
		}
		list = append(list, n)
	}
	return list
}

func tierOf(plan *algorithms.Plan, a algorithms.Algorithm) int {
	for i, tier := range plan.Tiers() {
		if tier.Algorithm == a {
			return i
		}
	}
	return -1
}

// TestReleasesKeepHeldPlaces checks that a release with other units, more than the state keeps tiers
// for, loses no place of another release.
func TestReleasesKeepHeldPlaces(t *testing.T) {
	const at = 1_700_000_000_000_000
	var specs []string
	for i := range 12 {
		specs = append(specs, fmt.Sprintf("100/h;unit=unit%d", i))
	}
	old := planOf(t, 0, append(specs, "5;algo=concurrency")...)
	for name, other := range map[string]*algorithms.Plan{
		"without leases": planOf(t, 0, "5/s;unit=bytes"),
		"with leases":    planOf(t, 0, "5/s;unit=bytes", "5;algo=concurrency;unit=files"),
	} {
		s := miniSubject(t)
		s.begin(old)
		ask := func(st step) []int64 {
			t.Helper()
			got, err := s.answer(at, st)
			if err != nil {
				t.Fatalf("%s, %v: %v", name, st, err)
			}
			return got[6:]
		}
		ask(step{op: opReserve, lease: append([]int64{7, 1, 1e6, 0, 0}, heldBy(old, 0)...), args: append([]int64{0, 0, 0, 0, 0, 0, 0, 3, -1}, heldBy(old, 1)...)})
		s.change(other)
		for seq := range int64(2) {
			st := step{op: opStatus}
			if other.Concurrent() {
				st.lease = []int64{8, 1 + seq, 1e6, 0, 0, 0, 0}
			}
			ask(st)
		}
		s.change(old)
		got := ask(step{op: opStatus, lease: append([]int64{9, 1, 1e6, 0, 0}, heldBy(old, 0)...)})
		if used := got[3*tierOf(old, algorithms.Concurrency)]; used != 3 {
			t.Errorf("%s: got %d places in use, want 3", name, used)
		}
	}
}

// TestManyReleasesKeepStateSmall checks that the state does not grow while releases call by turns, of
// which each has another window and all together have more than the state keeps tiers for.
func TestManyReleasesKeepStateSmall(t *testing.T) {
	soak.Long(t, "many releases work side by side, and TestReleasesByTurns plays some")
	const releases = 10
	s := miniSubject(t)
	var plans []*algorithms.Plan
	for i := range releases {
		plans = append(plans, planOf(t, 50*time.Millisecond, fmt.Sprintf("%d/%dms", 90+9*i, 1000+100*i)))
	}
	s.begin(plans[0])
	before := 0
	for i := range 600 {
		s.change(plans[i%releases])
		at := 1_700_000_000_000_000 + 12_000*int64(i)
		if _, err := s.answer(at, step{op: opReserve, args: []int64{0, 0, 0, 0, 0, 0, 0, 1, -1, 1}}); err != nil {
			t.Fatal(err)
		}
		state, err := s.rdb.Get(t.Context(), s.key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if i == 299 {
			before = len(state)
		}
		if i > 300 && len(state) > before+before/4 {
			t.Fatalf("the state has %d bytes after %d calls, and had %d after 300", len(state), i+1, before)
		}
	}
}
