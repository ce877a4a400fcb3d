package distributed

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/algorithms"
)

// A recordedState is a state that an earlier release wrote, and what that release said about it.
type recordedState struct {
	Name string `json:"name"`
	// Policy is the tiers. The guard is 50 ms.
	Policy []string `json:"policy"`
	// Calls describes the calls before. Their times count from the first of them.
	Calls []string `json:"calls"`
	// At is when the last call was made, in Unix µs.
	At int64 `json:"at"`
	// Value is the string under the quota's key, Leases the hash of leases, and Line the sorted set
	// of their order.
	Value  []byte            `json:"value"`
	Leases map[string][]byte `json:"leases"`
	Line   []struct {
		Name  []byte  `json:"name"`
		Score float64 `json:"score"`
	} `json:"line"`
	Looks []look `json:"looks"`
}

// A look is what the release replied to a process that read the state. Each look began with the
// recorded state.
type look struct {
	// After is the time since the last call.
	After string `json:"after"`
	// Used is the used amount of each tier.
	Used []int64 `json:"used"`
	// Until is the end of a ban or a pause. If zero, there was none.
	Until int64 `json:"until"`
	// Admits is how many requests of one of each unit it admitted at once.
	Admits int64 `json:"admits"`
}

// load puts the state into the keys of a subject, and switches to a plan.
func (r *recordedState) load(t *testing.T, s *subject, plan *algorithms.Plan) {
	t.Helper()
	ctx := context.Background()
	s.begin(plan)
	s.rdb.Set(ctx, s.key, r.Value, 0)
	for owner, bytes := range r.Leases {
		s.rdb.HSet(ctx, s.key+":leases", owner, bytes)
	}
	for _, m := range r.Line {
		s.rdb.ZAdd(ctx, s.key+":line", redis.Z{Member: m.Name, Score: m.Score})
	}
}

// TestStatesOfEarlierReleases checks that a state of an earlier release stays charged, that the
// present release admits as many requests in it as the earlier one did, and that it writes its own
// format.
//
// testdata/states/thr4.json is of a release that wrote thr4, the last one before thr5. Its script ran
// on a server in memory with a fixed clock, under a policy for each algorithm and others for two
// tiers, a pace, leases, estimates, readings, a ban, reservations, turns and a second release. The
// file contains the values of the keys that it left, in base64, and what it replied about them later.
func TestStatesOfEarlierReleases(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/states/*.json")
	if len(files) == 0 {
		t.Fatal("got no recorded states, want some")
	}
	for _, file := range files {
		bytes, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var states []recordedState
		if err := json.Unmarshal(bytes, &states); err != nil {
			t.Fatal(err)
		}
		format := strings.TrimSuffix(filepath.Base(file), ".json")
		for _, r := range states {
			t.Run(format+"/"+r.Name, func(t *testing.T) { r.check(t, format) })
		}
	}
}

func (r *recordedState) check(t *testing.T, format string) {
	s := miniSubject(t)
	same := planOf(t, 50*time.Millisecond, r.Policy...)
	// A policy with one more tier makes the script count the charges anew.
	more := planOf(t, 50*time.Millisecond, append(slices.Clone(r.Policy), "100000/3h;unit="+same.Units()[0])...)
	present, _, _ := strings.Cut(newState(t, s, planOf(t, 0, "5/s")), " ")
	if !strings.HasPrefix(string(r.Value), format+" ") || format >= present {
		t.Fatalf("got a state %.5q, want one of %s, and that earlier than %s", r.Value, format, present)
	}
	for _, plan := range []*algorithms.Plan{same, more} {
		r.load(t, s, plan)
		kept := *s // is not loaded again
		for i, l := range r.Looks {
			after, err := time.ParseDuration(l.After)
			if err != nil {
				t.Fatal(err)
			}
			at := r.At + after.Microseconds()
			if r.Leases == nil || i == 0 { // with calls in between, leases end at another time
				r.checkStatus(t, &kept, at, l)
			}
			if value := s.rdb.Get(t.Context(), kept.key).Val(); !strings.HasPrefix(value, present+" ") {
				t.Errorf("%s later: got a state %.5q, want one of %s", l.After, value, present)
			}
			s.key = ""
			r.load(t, s, plan)
			r.checkStatus(t, s, at, l)
			r.load(t, s, plan)
			if got := r.admits(t, s, at); got != l.Admits {
				t.Errorf("%v, %s later: got %d admitted, want %d, as the earlier release admits", plan.Tiers(), l.After, got, l.Admits)
			}
		}
	}
}

// checkStatus compares what is used with what the earlier release reported. Nothing is rounded,
// because each tier takes over from a tier of its kind.
func (r *recordedState) checkStatus(t *testing.T, s *subject, at int64, want look) {
	t.Helper()
	got, err := s.answer(at, step{op: opStatus, lease: observer(s.plan)})
	if err != nil {
		t.Fatalf("%s later: %v", want.After, err)
	}
	if got[4] != want.Until {
		t.Errorf("%s later: got a pause until %d, want %d", want.After, got[4], want.Until)
	}
	for i, n := range want.Used {
		if used := got[6+3*i]; used != n {
			t.Errorf("%v, %s later: got %d used of %v, want %d, as the earlier release reported", s.plan.Tiers(), want.After, used, s.plan.Tiers()[i], n)
		}
	}
}

// observer returns the lease of a process that holds nothing.
func observer(p *algorithms.Plan) []int64 {
	if !p.Concurrent() && !p.Estimates() {
		return nil
	}
	lease := append([]int64{99, 1, 10e6, 0, 0}, make([]int64, len(p.Units()))...)
	if p.Estimates() {
		lease = append(lease, 0)
	}
	return lease
}

// admits returns how many requests of one of each unit are admitted at once.
func (r *recordedState) admits(t *testing.T, s *subject, at int64) (n int64) {
	t.Helper()
	st := step{op: opReserve, lease: observer(s.plan)}
	for i := range s.plan.Tiers() {
		if s.plan.Exhausted(i) {
			st.op, st.args = opBudget, append(st.args, int64(1+i))
		}
	}
	if st.op == opBudget {
		st.args = slices.Insert(st.args, 0, int64(len(st.args)))
	}
	st.args = append(st.args, 0, 0, 0, 0, 0, 0, 0, 300, 0)
	st.args = append(st.args, slices.Repeat([]int64{1}, len(s.plan.Units()))...)
	got, err := s.answer(at, st)
	if err != nil {
		t.Fatal(err)
	}
	for i := 6; i < len(got)-4*len(s.plan.PeriodStarts(0))/5; i += 2 {
		if got[i] <= -2 {
			n++
		}
	}
	return n
}
