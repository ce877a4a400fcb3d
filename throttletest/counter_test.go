package throttletest

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

func n(units int64) map[string]int64 { return map[string]int64{algorithms.Requests: units} }

const (
	ms  = int64(1_000) // microseconds
	sec = 1_000 * ms
	day = 86_400 * sec
)

func TestCounter(t *testing.T) {
	type step struct {
		at      int64 // microseconds
		units   int64
		want    bool
		release int64 // units released before the step's arrival
	}
	burst := func(a algorithms.Algorithm, limit, burst int64) []algorithms.Tier {
		return []algorithms.Tier{{Limit: limit, Window: time.Second, Algorithm: a, Burst: burst}}
	}
	spaced := []step{ // 3/s with burst 1: one each 333,333.3 µs
		{at: 0, units: 1, want: true},
		{at: 333_333, units: 1, want: false},
		{at: 333_334, units: 1, want: true},
		{at: 666_667, units: 1, want: false}, // it fits since the start, but not since 333,334
		{at: 666_668, units: 1, want: true},
		{at: 9 * sec, units: 2, want: false}, // exceeds the burst after any pause
		{at: 9 * sec, units: 1, want: true},
		{at: 9 * sec, units: 1, want: false},
	}
	full := []step{ // 5/s, burst 5 by default: 10 within the first second and its last instant
		{at: 7, units: 5, want: true},
		{at: 7 + 200*ms - 1, units: 1, want: false},
		{at: 7 + 200*ms, units: 1, want: true},
		{at: 7 + sec - 1, units: 4, want: false},
		{at: 7 + sec - 1, units: 3, want: true},
		{at: 7 + sec, units: 1, want: true},
		{at: 7 + sec, units: 1, want: false},
		{at: 7 + 2*sec - 1, units: 5, want: false}, // empty at 1 s, full a second later
		{at: 7 + 2*sec, units: 5, want: true},
	}
	rolling := []step{
		{at: 10 * sec, units: 2, want: true},
		{at: 10*sec + 400*ms, units: 3, want: true},
		{at: 10*sec + 400*ms, units: 1, want: false},
		{at: 11*sec - 1, units: 1, want: false},
		{at: 11 * sec, units: 3, want: false},
		{at: 11 * sec, units: 2, want: true}, // the arrival at 10 s leaves at exactly 11 s
		{at: 11*sec + 400*ms - 1, units: 1, want: false},
		{at: 11*sec + 400*ms, units: 3, want: true},
		{at: 20 * sec, units: 6, want: false},
		{at: 20 * sec, units: 5, want: true},
		{at: 19 * sec, units: 1, want: false}, // counts as 20 s
		{at: 0, units: 0, want: true},
	}
	const month = 30 * day
	const k = 600 * month // the start of window 600 since the epoch

	tests := []struct {
		name  string
		tiers []algorithms.Tier
		steps []step
	}{
		{"SlidingLog", []algorithms.Tier{algorithms.PerSecond(5)}, rolling},
		{"SlidingWindow", []algorithms.Tier{{Limit: 5, Window: time.Second, Algorithm: algorithms.SlidingWindow, Precision: time.Second}}, rolling},
		{"FixedWindow", []algorithms.Tier{{Limit: 2, Window: time.Second, Algorithm: algorithms.FixedWindow}}, []step{
			{at: -1, units: 2, want: true}, // windows extend to before the epoch
			{at: -1, units: 1, want: false},
			{at: 0, units: 2, want: true},
			{at: sec - 1, units: 1, want: false},
			{at: sec, units: 3, want: false},
			{at: sec, units: 2, want: true},
			{at: -5 * sec, units: 1, want: false}, // counts as 1 s: no window is reopened
		}},
		{"FixedWindow with Phase", []algorithms.Tier{{Limit: 2, Window: time.Second, Algorithm: algorithms.FixedWindow, Phase: 250 * time.Millisecond}}, []step{
			{at: 250*ms - 1, units: 2, want: true},
			{at: 250 * ms, units: 2, want: true},
			{at: 1250*ms - 1, units: 1, want: false},
			{at: 1250 * ms, units: 2, want: true},
		}},
		{"WeightedWindow", []algorithms.Tier{{Limit: 10_000, Window: 30 * 24 * time.Hour, Algorithm: algorithms.WeightedWindow}}, []step{
			{at: k - day, units: 10_000, want: true},
			{at: k, units: 1, want: false}, // the previous window weighs all of its 10,000
			// Its weight falls by one unit each 259.2 s.
			{at: k + 259_200*ms - 1, units: 1, want: false},
			{at: k + 259_200*ms, units: 1, want: true},
			{at: k + 259_200*ms, units: 1, want: false},
			// 743,700 s are left: 10,000 × 743,700 ÷ 2,592,000 = 2,869.21.
			// With 1 unit counted, 7,129 fit.
			{at: k + month - 743_700*sec, units: 7_130, want: false},
			{at: k + month - 743_700*sec, units: 7_129, want: true},
			// One more fits when it weighs 2,869: 2,869 × 259.2 s = 743,644.8 s are left.
			{at: k + month - 743_644_800*ms - 1, units: 1, want: false},
			{at: k + month - 743_644_800*ms, units: 1, want: true},
			// In the next window the previous count is 7,131.
			{at: k + month, units: 2_870, want: false},
			{at: k + month, units: 2_869, want: true},
			// After two windows both are forgotten.
			{at: k + 3*month, units: 10_000, want: true},
		}},
		{"WeightedWindow with Phase", []algorithms.Tier{{Limit: 10, Window: 10 * time.Second, Algorithm: algorithms.WeightedWindow, Phase: 3 * time.Second}}, []step{
			{at: 3*sec - 1, units: 10, want: true},
			{at: 4*sec - 1, units: 1, want: false},
			{at: 4 * sec, units: 1, want: true}, // 10 × 9/10 + 1
		}},
		{"AnchoredWindow", []algorithms.Tier{{Limit: 2, Window: time.Second, Algorithm: algorithms.AnchoredWindow}}, []step{
			{at: 100 * ms, units: 0, want: true}, // opens no window
			{at: 300 * ms, units: 3, want: false},
			{at: 300 * ms, units: 1, want: true},
			{at: 1300*ms - 1, units: 1, want: true},
			{at: 1300*ms - 1, units: 1, want: false},
			{at: 1300 * ms, units: 2, want: true}, // four within a second and a microsecond
			{at: 2300*ms - 1, units: 1, want: false},
			{at: 5 * sec, units: 2, want: true}, // windows are not contiguous: this one opens now
			{at: 6*sec - 1, units: 1, want: false},
			{at: 6 * sec, units: 1, want: true},
		}},
		{"TokenBucket spaced", burst(algorithms.TokenBucket, 3, 1), spaced},
		{"LeakyBucket spaced", burst(algorithms.LeakyBucket, 3, 1), spaced},
		{"GCRA spaced", burst(algorithms.GCRA, 3, 1), spaced},
		{"TokenBucket full", burst(algorithms.TokenBucket, 5, 0), full},
		{"LeakyBucket full", burst(algorithms.LeakyBucket, 5, 0), full},
		{"GCRA full", burst(algorithms.GCRA, 5, 0), full},
		{"GCRA beyond 64 bits", []algorithms.Tier{{Limit: 1_000_000, Window: 30 * 24 * time.Hour, Algorithm: algorithms.GCRA}}, []step{
			{at: 0, units: 1_000_000, want: true},
			{at: 2_592*ms - 1, units: 1, want: false}, // one each 2.592 s
			{at: 2_592 * ms, units: 1, want: true},
			{at: 15*day + 2_592*ms - 1, units: 500_000, want: false},
			{at: 15*day + 2_592*ms, units: 500_000, want: true},
		}},
		{"Calendar", []algorithms.Tier{{Limit: 3, Algorithm: algorithms.Calendar, Period: algorithms.Week, Zone: "Europe/Berlin"}}, []step{
			{at: 0, units: 3, want: true}, // a Thursday
			{at: 4*day - 3600*sec - 1, units: 1, want: false},
			{at: 4*day - 3600*sec, units: 3, want: true},
			{at: 10 * day, units: 1, want: false},
		}},
		{"Concurrency", []algorithms.Tier{{Limit: 3, Algorithm: algorithms.Concurrency}}, []step{
			{at: 0, units: 2, want: true},
			{at: 0, units: 2, want: false},
			{at: 0, units: 1, want: true},
			{at: 100 * day, units: 1, want: false},
			{at: 100 * day, release: 2, units: 3, want: false},
			{at: 100 * day, units: 2, want: true},
			{at: 100 * day, release: 100, units: 4, want: false}, // the count is never negative
			{at: 100 * day, units: 3, want: true},
			{at: 100 * day, release: -1, units: 1, want: false}, // a negative amount is 0
			{at: 100 * day, release: 1, units: 1, want: true},
		}},
		{"all tiers or none", []algorithms.Tier{algorithms.PerSecond(5), {Limit: 7, Window: time.Hour, Algorithm: algorithms.AnchoredWindow}}, []step{
			{at: 0, units: 5, want: true},
			{at: sec, units: 3, want: false}, // the hour refuses it, and the second is not charged
			{at: sec, units: 2, want: true},
			{at: 3600*sec - 1, units: 1, want: false},
			{at: 3600 * sec, units: 5, want: true},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := NewCounter(test.tiers...)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range test.steps {
				if s.release != 0 {
					c.Release(n(s.release))
				}
				if tier := c.Admits(s.at, n(s.units)); tier < 0 != s.want {
					t.Fatalf("step %d: Admits(%d, %d) = %d, want accepted %v", i, s.at, s.units, tier, s.want)
				}
				if got := c.Arrive(s.at, n(s.units)); got != s.want {
					t.Fatalf("step %d: Arrive(%d, %d) = %v, want %v", i, s.at, s.units, got, s.want)
				}
			}
		})
	}
}

func TestCounterUnits(t *testing.T) {
	c, err := NewCounter(
		algorithms.PerSecond(2),
		algorithms.Tier{Limit: 100, Window: time.Minute, Unit: "tokens"},
	)
	if err != nil {
		t.Fatal(err)
	}
	tokens := func(n int64) map[string]int64 { return map[string]int64{"tokens": n} }
	steps := []struct {
		cost map[string]int64
		tier int
	}{
		{nil, -1},         // one request, no token
		{tokens(101), 1},  // refused by all tiers: the request is not counted either
		{tokens(60), -1},  // also one request
		{tokens(1), 0},    // a third request
		{tokens(1000), 0}, // the result is the first tier that refuses
		{map[string]int64{"tokens": 40, "requests": 0}, -1},
		{map[string]int64{"tokens": 1, "requests": 0}, 1},
		{map[string]int64{"tokens": -5, "requests": -5}, -1}, // does not refund
		{map[string]int64{"tokens": 1, "requests": 0}, 1},
	}
	for i, s := range steps {
		if got := c.Admits(0, s.cost); got != s.tier {
			t.Fatalf("step %d: Admits(%v) = %d, want %d", i, s.cost, got, s.tier)
		}
		if got := c.Arrive(0, s.cost); got != (s.tier < 0) {
			t.Fatalf("step %d: Arrive(%v) = %v", i, s.cost, got)
		}
	}
}

func TestNewCounterErrors(t *testing.T) {
	_, err := NewCounter(algorithms.PerSecond(0), algorithms.PerSecond(1), algorithms.Tier{Limit: 1})
	if err == nil {
		t.Fatal("NewCounter accepts invalid tiers")
	}
	for _, want := range []string{"tier 0: Limit is 0", "tier 2: Window is 0s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestEarliest(t *testing.T) {
	hundred := algorithms.MaxWindow.Microseconds()
	tests := []struct {
		name  string
		tiers []algorithms.Tier
		first int64 // units that arrive at 1 s
		cost  int64 // units requested from 1 s on
		at    int64
		ok    bool
	}{
		{"now", []algorithms.Tier{algorithms.PerSecond(5)}, 4, 1, sec, true},
		{"a window later", []algorithms.Tier{algorithms.PerSecond(5)}, 5, 1, 2 * sec, true},
		{"never", []algorithms.Tier{algorithms.PerSecond(5)}, 5, 6, 0, false},
		{"the slowest tier", []algorithms.Tier{algorithms.PerSecond(5), algorithms.PerHour(5)}, 5, 1, 3601 * sec, true},
		{"a third", []algorithms.Tier{{Limit: 3, Window: time.Second, Algorithm: algorithms.GCRA, Burst: 1}}, 1, 1, 1_333_334, true},
		{"two windows", []algorithms.Tier{{Limit: 1, Window: time.Minute, Algorithm: algorithms.WeightedWindow}}, 1, 1, 120 * sec, true},
		{"two centuries", []algorithms.Tier{{Limit: 1, Window: algorithms.MaxWindow, Algorithm: algorithms.WeightedWindow}}, 1, 1, 2 * hundred, true},
		{"in flight", []algorithms.Tier{{Limit: 1, Algorithm: algorithms.Concurrency}}, 1, 1, 0, false},
	}
	for _, test := range tests {
		c, err := NewCounter(test.tiers...)
		if err != nil {
			t.Fatal(err)
		}
		if !c.Arrive(sec, n(test.first)) {
			t.Fatalf("%s: the first arrival was refused", test.name)
		}
		if at, ok := c.Earliest(0, n(test.cost)); at != test.at || ok != test.ok {
			t.Errorf("%s: Earliest = %d, %v, want %d, %v", test.name, at, ok, test.at, test.ok)
		}
	}
}

func TestWorstRolling(t *testing.T) {
	c, err := NewCounter(algorithms.PerDay(9))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 600 * ms, 999 * ms, sec, 1500 * ms, 5 * sec} {
		c.Arrive(at, nil)
	}
	c.Arrive(5*sec, n(3))
	c.Arrive(5*sec, nil) // the tenth is refused
	tests := []struct {
		window time.Duration
		want   int64
	}{
		{0, 0}, {1, 4}, {time.Microsecond, 4},
		{time.Second, 4},                             // 600 ms, 999 ms, 1 s and 1.5 s
		{900 * time.Millisecond, 4},                  // 5 s: 1 + 3
		{4 * time.Second, 5},                         // (1 s, 5 s]: 1.5 s is in it, 1 s is not
		{5 * time.Second, 8}, {5*time.Second + 1, 9}, // half-open: 0 and 5 s are 5 s apart
	}
	for _, test := range tests {
		if got := c.WorstRolling(test.window); got != test.want {
			t.Errorf("WorstRolling(%v) = %d, want %d", test.window, got, test.want)
		}
	}
}

func BenchmarkCounter(b *testing.B) {
	for name, tiers := range map[string][]algorithms.Tier{
		"5_per_s_and_10000_per_h": {algorithms.PerSecond(5), algorithms.PerHour(10_000)},
		"token_bucket":            {{Limit: 5, Window: time.Second, Algorithm: algorithms.TokenBucket}},
		"weighted_window":         {{Limit: 5, Window: time.Second, Algorithm: algorithms.WeightedWindow}},
	} {
		b.Run(name, func(b *testing.B) {
			c, err := NewCounter(tiers...)
			if err != nil {
				b.Fatal(err)
			}
			r, at := rand.New(rand.NewPCG(1, 2)), int64(0)
			for b.Loop() {
				at += r.Int64N(400 * ms)
				c.Arrive(at, nil)
			}
		})
	}
}
