package algorithms_test

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
)

func ledger(t *testing.T, guard time.Duration, tiers ...Tier) *Ledger {
	t.Helper()
	p, err := NewPlan(tiers, guard)
	if err != nil {
		t.Fatal(err)
	}
	l := p.NewLedger()
	return &l
}

// byCalendar returns the tier with a day for its window if it is a Calendar.
func byCalendar(t Tier) Tier {
	if t.Algorithm == Calendar {
		t.Window, t.Period = 0, Day
	}
	return t
}

// at returns a moment at which both clocks show the same time.
func at(d time.Duration) Moment {
	us := int64(1.7e15) + d.Microseconds() // 2023-11-14T22:13:20Z, 20 s after a full minute
	return Moment{At: us, Wall: us}
}

// earliest returns when the ledger admits a cost, as the duration that at takes, or -1 for Never.
func earliest(l *Ledger, now time.Duration, cost ...int64) time.Duration {
	e, _ := l.Earliest(at(now), Request{Cost: cost})
	if e == Never {
		return -1
	}
	return time.Duration(e-at(0).At) * time.Microsecond
}

// TestBucketsAreOneArithmetic checks that the three bucket algorithms decide alike, and as the
// definition of the token bucket does.
func TestBucketsAreOneArithmetic(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(1, seed))
		tier := Tier{Limit: 1 + r.Int64N(50), Window: time.Duration(1+r.Int64N(1e6)) * time.Microsecond, Burst: 1 + r.Int64N(50)}
		var ls []*Ledger
		for _, a := range []Algorithm{TokenBucket, LeakyBucket, GCRA} {
			tier.Algorithm = a
			ls = append(ls, ledger(t, 0, tier))
		}
		tokens := newTokens(tier)
		now := at(0)
		for step := range 500 {
			now = now.Later(now.At + r.Int64N(tier.Window.Microseconds()/tier.Limit*2+2))
			cost := []int64{1 + r.Int64N(tier.Burst)}
			admitted := tokens.take(now.At, cost[0])
			for i, l := range ls {
				e, _ := l.Earliest(now, Request{Cost: cost})
				if (e == now.At) != admitted {
					t.Fatalf("seed %d step %d: %v: admitted %v, want %v", seed, step, l.Plan().Tiers(), e == now.At, admitted)
				}
				if e0, _ := ls[0].Earliest(now, Request{Cost: cost}); e != e0 {
					t.Fatalf("seed %d step %d: ledger %d returns %d, want %d as ledger 0", seed, step, i, e, e0)
				}
			}
			if admitted {
				for _, l := range ls {
					l.Charge(now, Request{Cost: cost})
				}
			}
		}
	}
}

// tokens is the token bucket by its definition, in exact fractions.
type tokens struct {
	full, level, rate *big.Rat
	last              int64
}

func newTokens(t Tier) *tokens {
	full := new(big.Rat).SetInt64(t.Burst)
	return &tokens{full, full, big.NewRat(t.Limit, t.Window.Microseconds()), at(0).At}
}

func (b *tokens) take(now, n int64) bool {
	gain := new(big.Rat).Mul(b.rate, new(big.Rat).SetInt64(now-b.last))
	level := gain.Add(gain, b.level)
	if level.Cmp(b.full) > 0 {
		level = b.full
	}
	b.level, b.last = level, now
	left := new(big.Rat).Sub(level, new(big.Rat).SetInt64(n))
	if left.Sign() < 0 {
		return false
	}
	b.level = left
	return true
}

// TestRatesAreExact checks that in the long run a rate is exactly its Limit per Window. With an
// interval rounded to 333 ns, 3,000,000 a second would be 3,003,003.
func TestRatesAreExact(t *testing.T) {
	for _, tier := range []Tier{
		{Limit: 3_000_000, Window: time.Second, Burst: 4, Algorithm: GCRA},
		{Limit: 3, Window: time.Second, Burst: 2, Algorithm: TokenBucket},
		{Limit: 1, Window: 30 * 24 * time.Hour, Algorithm: LeakyBucket},
		{Limit: 1_000_000, Window: 30 * 24 * time.Hour, Burst: 7, Algorithm: GCRA},
		{Limit: 999_999_999_989, Window: MaxWindow, Burst: 999, Algorithm: GCRA},
	} {
		l := ledger(t, 0, tier)
		now, one := at(0), []int64{1}
		const units = 100_000
		for range tier.Capacity() + units {
			e, _ := l.Earliest(now, Request{Cost: one})
			now = now.Later(e)
			l.Charge(now, Request{Cost: one})
		}
		// The burst goes at once, and the last of the other units at its exact time, rounded up.
		due := new(big.Int).Mul(big.NewInt(units), big.NewInt(tier.Window.Microseconds()))
		due.Add(due, big.NewInt(tier.Limit-1)).Div(due, big.NewInt(tier.Limit))
		if got := now.At - at(0).At; due.Cmp(big.NewInt(got)) != 0 {
			t.Errorf("%v: %d units took %d µs, want %v", tier, units, got, due)
		}
	}
}

// TestWallClockSteps checks that windows of the clock follow wall time, are not reopened, and end at
// most one window after the last landing. A larger step back corrects a wrong date: the units then
// count in the window that the clock shows for them. Other tiers ignore the wall clock.
func TestWallClockSteps(t *testing.T) {
	minute := Tier{Limit: 2, Window: time.Minute}
	two := []int64{2}
	for _, tc := range []struct {
		algorithm Algorithm
		step      time.Duration
		elapsed   time.Duration // since two units were admitted, 20 s into a minute
		want      time.Duration // from then until two more are admitted
	}{
		{FixedWindow, 0, time.Second, 39 * time.Second},
		{FixedWindow, -8 * time.Second, time.Second, 47 * time.Second},
		{FixedWindow, -40 * time.Second, time.Second, 59 * time.Second},
		{FixedWindow, -time.Hour, time.Second, 39 * time.Second},
		{WeightedWindow, -time.Hour, time.Second, 99 * time.Second},
		{FixedWindow, 30 * time.Second, time.Second, 9 * time.Second},
		{FixedWindow, time.Hour, time.Second, 0},
		{WeightedWindow, -8 * time.Second, time.Second, 107 * time.Second},
		{WeightedWindow, time.Hour, time.Second, 0},
		{SlidingLog, -time.Hour, time.Second, 59 * time.Second},
		{SlidingLog, time.Hour, time.Second, 59 * time.Second},
		{AnchoredWindow, -time.Hour, time.Second, 59 * time.Second},
		{Calendar, 0, time.Second, 106*time.Minute + 39*time.Second},
		{Calendar, -8 * time.Second, time.Second, 106*time.Minute + 47*time.Second},
		{Calendar, -24 * time.Hour, time.Second, 25*time.Hour + 46*time.Minute + 39*time.Second},
		{Calendar, -31 * 24 * time.Hour, time.Second, 106*time.Minute + 39*time.Second},
		{Calendar, 2 * time.Hour, time.Second, 0},
		{GCRA, time.Hour, time.Second, 59 * time.Second},
	} {
		minute.Algorithm = tc.algorithm
		l := ledger(t, 0, byCalendar(minute))
		l.Charge(at(0), Request{Cost: two})
		now := at(tc.elapsed)
		now.Wall += tc.step.Microseconds()
		e, _ := l.Earliest(now, Request{Cost: two})
		if got := now.Until(e); got != tc.want {
			t.Errorf("%v, wall clock stepped by %v: two more may go after %v, want %v", tc.algorithm, tc.step, got, tc.want)
		}
	}
}

// TestSteppedClocksNeverStall checks that a request counts for at most the longest window in which
// it may have arrived, however the wall clock steps.
func TestSteppedClocksNeverStall(t *testing.T) {
	for _, tc := range []struct {
		tier  Tier
		bound time.Duration
	}{
		{Tier{Limit: 5, Window: time.Minute, Algorithm: FixedWindow, Phase: 7 * time.Second}, time.Minute},
		{Tier{Limit: 5, Window: time.Minute, Algorithm: WeightedWindow}, 2 * time.Minute},
		{Tier{Limit: 5, Algorithm: Calendar, Period: Day, Zone: "Europe/Berlin"}, 48 * time.Hour},
		{Tier{Limit: 5, Algorithm: Calendar, Period: Month}, 32 * 24 * time.Hour},
	} {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(3, seed))
			guard := time.Duration(r.IntN(2)*r.IntN(20)) * time.Second
			l := ledger(t, guard, tc.tier)
			now, last := at(0), at(0).At
			for range 100 {
				now = now.Later(now.At + r.Int64N(tc.bound.Microseconds()/10))
				if r.IntN(8) == 0 {
					now.Wall += r.Int64N(20*tc.bound.Microseconds()) - 10*tc.bound.Microseconds()
				}
				if e, _ := l.Earliest(now, Request{Cost: []int64{5}}); e > max(now.At, last+(guard+tc.bound).Microseconds()) {
					t.Fatalf("%v, seed %d: %v after the last request, all units are free only after %v more", tc.tier, seed, -now.Until(last), now.Until(e))
				}
				if e, _ := l.Earliest(now, Request{Cost: []int64{1}}); e == now.At {
					l.Charge(now, Request{Cost: []int64{1}})
					last = now.At
				}
			}
		}
	}
}

// TestInFlight checks that a request in flight counts in full, and that its window starts when it
// lands.
func TestInFlight(t *testing.T) {
	const guard = 400 * time.Millisecond
	second := func(a Algorithm) Tier { return Tier{Limit: 2, Window: time.Second, Algorithm: a} }
	for _, tc := range []struct {
		name   string
		tier   Tier
		landed time.Duration // when both requests land, which were sent at 0. If zero, with the guard
		want   time.Duration // the answer at 500 ms for two more
	}{
		{"log, landed at once", second(SlidingLog), time.Microsecond, time.Second + time.Microsecond},
		{"log, landed after 100 ms", second(SlidingLog), 100 * time.Millisecond, 1100 * time.Millisecond},
		{"log, no response", second(SlidingLog), 0, 1400 * time.Millisecond},
		{"buckets", second(GCRA), 100 * time.Millisecond, 1100 * time.Millisecond},
		{"buckets, no response", second(TokenBucket), 0, 1400 * time.Millisecond},
		{"anchored", second(AnchoredWindow), 100 * time.Millisecond, 1100 * time.Millisecond},
		{"fixed: the clock opens the next", second(FixedWindow), 100 * time.Millisecond, time.Second},
		{"groups", second(SlidingWindow), 100 * time.Millisecond, 1100 * time.Millisecond},
	} {
		l := ledger(t, guard, tc.tier)
		cost := []int64{2}
		f := l.Charge(at(0), Request{Cost: cost, Held: true})
		if e := earliest(l, 0, 1); e <= 0 {
			t.Errorf("%s: a third request may go at %v, want later", tc.name, e)
		}
		if tc.landed > 0 {
			l.Arrived(at(tc.landed), f, cost)
			l.Arrived(at(tc.landed+time.Millisecond), f, make([]int64, 1)) // a cost of zero changes nothing
		}
		if got := earliest(l, 500*time.Millisecond, 2); got != tc.want {
			t.Errorf("%s: two more may go at %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestFixedWindowAcrossTheBoundary checks that a fixed window counts requests in flight across the
// boundary in both windows.
func TestFixedWindowAcrossTheBoundary(t *testing.T) {
	l := ledger(t, 400*time.Millisecond, Tier{Limit: 2, Window: time.Second, Algorithm: FixedWindow})
	l.Charge(at(900*time.Millisecond), Request{Cost: []int64{2}})
	for _, tc := range []struct{ now, want time.Duration }{
		{950 * time.Millisecond, 2 * time.Second},
		{1299 * time.Millisecond, 2 * time.Second},
		{1300 * time.Millisecond, 2 * time.Second}, // landed in the second window
		{2 * time.Second, 2 * time.Second},
	} {
		if got := earliest(l, tc.now, 1); got != tc.want {
			t.Errorf("at %v: one more may go at %v, want %v", tc.now, got, tc.want)
		}
	}
}

// TestCancel checks that canceled requests leave no trace in the ledger.
func TestCancel(t *testing.T) {
	const guard = 50 * time.Millisecond
	for _, a := range all {
		tier := byCalendar(Tier{Limit: 100, Window: time.Second, Algorithm: a})
		if a == Concurrency {
			tier.Window = 0
		}
		for _, newestFirst := range []bool{false, true} {
			l := ledger(t, guard, tier)
			one := []int64{1}
			var flights []Flight
			for i := range 99 {
				flights = append(flights, l.Charge(at(time.Duration(i)*10*time.Microsecond), Request{Cost: one, Held: true}))
			}
			for i := range flights {
				if newestFirst {
					i = len(flights) - 1 - i
				}
				l.Cancel(at(time.Millisecond), flights[i], one)
			}
			if got := earliest(l, time.Millisecond, 100); got != time.Millisecond {
				t.Errorf("%v, newest first %v: all 100 may go at %v, want at once", a, newestFirst, got)
			}
			if !l.Fresh(at(time.Millisecond)) {
				t.Errorf("%v, newest first %v: the ledger is not fresh", a, newestFirst)
			}
		}
	}
}

// TestAnchoredWindowOpensWithTheFirstThatArrives checks that an anchored window opens with the
// first request that arrives, and that only a response proves an arrival.
func TestAnchoredWindowOpensWithTheFirstThatArrives(t *testing.T) {
	const guard, ms = 50 * time.Millisecond, time.Millisecond
	sent := []time.Duration{0, 20 * ms, 600 * ms}
	for _, tc := range []struct {
		name     string
		answered map[int]time.Duration // the time of the response, by request
		canceled map[int]time.Duration
		whole    time.Duration // the answer at 900 ms for the whole limit
	}{
		{"no response: the last may have opened it", nil, nil, 1650 * ms},
		{"the first arrived", map[int]time.Duration{0: 10 * ms}, nil, 1010 * ms},
		{"the first was not sent", map[int]time.Duration{1: 30 * ms}, map[int]time.Duration{0: 25 * ms}, 1030 * ms},
		{"the first may not have been sent", map[int]time.Duration{1: 30 * ms}, nil, 1030 * ms},
		{"the first was not sent, which is reported too late", map[int]time.Duration{1: 30 * ms}, map[int]time.Duration{0: 500 * ms}, 1030 * ms},
		{"the last alone arrived", map[int]time.Duration{2: 610 * ms}, nil, 1610 * ms},
		{"a slow response: it arrived within the guard", map[int]time.Duration{0: 800 * ms}, nil, 1050 * ms},
		{"slow responses in any order", map[int]time.Duration{1: 700 * ms, 0: 800 * ms}, nil, 1050 * ms},
	} {
		l := ledger(t, guard, Tier{Limit: 3, Window: time.Second, Algorithm: AnchoredWindow})
		one, flights := []int64{1}, make([]Flight, 3)
		for now := time.Duration(0); now < 900*ms; now += 10 * ms {
			if i := slices.Index(sent, now); i >= 0 {
				flights[i] = l.Charge(at(now), Request{Cost: one, Held: true})
			}
			for i, f := range flights {
				if tc.answered[i] == now && now > 0 {
					l.Arrived(at(now), f, one)
				}
				if tc.canceled[i] == now && now > 0 {
					l.Cancel(at(now), f, one)
				}
			}
		}
		if got := earliest(l, 900*ms, 3); got != tc.whole {
			t.Errorf("%s: the whole limit may go at %v, want %v", tc.name, got, tc.whole)
		}
	}
}

// TestAnchoredWindowLateResponse checks that a late response to a request of one window does not
// affect the next window.
func TestAnchoredWindowLateResponse(t *testing.T) {
	const sec, ms = time.Second, time.Millisecond
	l := ledger(t, 50*ms, Tier{Limit: 2, Window: sec, Algorithm: AnchoredWindow})
	one := []int64{1}
	old := l.Charge(at(0), Request{Cost: one, Held: true})
	l.Charge(at(sec+50*ms), Request{Cost: one, Held: true})
	l.Charge(at(sec+500*ms), Request{Cost: one, Held: true})
	l.Arrived(at(sec+600*ms), old, one)
	if got := earliest(l, sec+600*ms, 2); got != 2550*ms {
		t.Errorf("the whole limit may go at %v, want 2.55s", got)
	}
}

// TestAnchoredWindowUnsentOpener checks that a request without a guard that was not sent opens no
// window: the window lasts until one after the next request that was sent.
func TestAnchoredWindowUnsentOpener(t *testing.T) {
	const sec = time.Second
	l := ledger(t, 0, Tier{Limit: 3, Window: 10 * sec, Algorithm: AnchoredWindow})
	f := l.Charge(at(0), Request{Cost: []int64{1}})
	l.Cancel(at(0), f, []int64{1})
	l.Charge(at(9*sec), Request{Cost: []int64{2}})
	if got := earliest(l, 10*sec, 3); got != 19*sec {
		t.Errorf("a window that opened at 9s: 3 more are admitted at %v, want 19s", got)
	}
}

// TestUsage checks the usage of each tier.
func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		tier  Tier
		used  int64
		next  time.Duration // until one more is admitted, 500 ms after three units landed
		fresh time.Duration
	}{
		{Tier{Limit: 4, Window: time.Second}, 3, 0, 500 * time.Millisecond},
		{Tier{Limit: 3, Window: time.Second}, 3, 500 * time.Millisecond, 500 * time.Millisecond},
		{Tier{Limit: 4, Window: time.Second, Algorithm: SlidingWindow}, 3, 0, 500 * time.Millisecond},
		{Tier{Limit: 4, Window: time.Second, Algorithm: FixedWindow}, 3, 0, 500 * time.Millisecond},
		{Tier{Limit: 4, Window: time.Second, Algorithm: WeightedWindow}, 3, 0, 1500 * time.Millisecond},
		{Tier{Limit: 4, Window: time.Second, Algorithm: AnchoredWindow}, 3, 0, 500 * time.Millisecond},
		{Tier{Limit: 4, Window: time.Second, Algorithm: GCRA}, 1, 0, 250 * time.Millisecond},
		{Tier{Limit: 1, Window: time.Second, Burst: 3, Algorithm: TokenBucket}, 3, 500 * time.Millisecond, 2500 * time.Millisecond},
		{Tier{Limit: 3, Algorithm: Concurrency}, 3, -1, -1},
		{Tier{Limit: 4, Algorithm: Calendar, Period: Day}, 3, 0, 106*time.Minute + 39500*time.Millisecond},
		{Tier{Limit: 3, Algorithm: Calendar, Period: Day}, 3, 106*time.Minute + 39500*time.Millisecond, 106*time.Minute + 39500*time.Millisecond},
	} {
		l := ledger(t, 0, tc.tier)
		l.Charge(at(0), Request{Cost: []int64{3}, Held: true})
		now := at(500 * time.Millisecond)
		u := l.Usage(now)[0]
		until := func(at int64) time.Duration {
			if at == Never {
				return -1
			}
			return now.Until(at)
		}
		if u.Used != tc.used || until(u.Next) != tc.next || until(u.Fresh) != tc.fresh {
			t.Errorf("%v: used %d, next in %v, fresh in %v; want %d, %v, %v",
				tc.tier, u.Used, until(u.Next), until(u.Fresh), tc.used, tc.next, tc.fresh)
		}
	}
}

// TestFreshAgreesWithUsage checks that a ledger is fresh from the instant that Usage returns.
func TestFreshAgreesWithUsage(t *testing.T) {
	for _, a := range all {
		if a == Concurrency {
			continue
		}
		l := ledger(t, 50*time.Millisecond, byCalendar(Tier{Limit: 5, Window: time.Second, Algorithm: a}))
		l.Charge(at(0), Request{Cost: []int64{2}})
		l.Charge(at(300*time.Millisecond), Request{Cost: []int64{1}})
		now := at(310 * time.Millisecond)
		fresh := l.Usage(now)[0].Fresh
		if l.Fresh(now.Later(fresh - 1)) {
			t.Errorf("%v: fresh a microsecond before %d", a, fresh)
		}
		if !l.Fresh(now.Later(fresh)) {
			t.Errorf("%v: not fresh at %d", a, fresh)
		}
	}
}

// TestLogAbove10000IsKeptInGroups checks that a log of more than MaxLog stamps becomes a sliding
// window.
func TestLogAbove10000IsKeptInGroups(t *testing.T) {
	for limit, want := range map[int64]Algorithm{MaxLog: SlidingLog, MaxLog + 1: SlidingWindow} {
		p, err := NewPlan([]Tier{PerHour(limit)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Tiers()[0].Algorithm; got != want {
			t.Errorf("%d an hour becomes %v, want %v", limit, got, want)
		}
	}
}

// TestFlightsAreUnique checks that a request with a short guard gets another Flight than
// one that has landed.
func TestFlightsAreUnique(t *testing.T) {
	const ms = time.Millisecond
	for start := range 10 * time.Duration(1000) {
		l := ledger(t, 200*ms, Tier{Limit: 10, Window: time.Second})
		sent := start * time.Microsecond
		first := l.Charge(at(sent), Request{Cost: []int64{3}, Held: true})
		if second := l.Charge(at(sent+200*ms), Request{Cost: []int64{2}, Guard: 1, Held: true}); first == second {
			t.Fatalf("a request sent at %v and one sent when it had landed both have the Flight %v", sent, first)
		}
	}
}

// TestUnknownPhase checks that a window of UnknownPhase counts as a rolling one, and ends at a
// boundary that has been reported.
func TestUnknownPhase(t *testing.T) {
	const sec = time.Second
	for _, limit := range []int64{10, 20_000} { // a log, and sub-buckets
		l := ledger(t, 0, Tier{Limit: limit, Window: 10 * sec, Algorithm: FixedWindow, Phase: UnknownPhase})
		l.Charge(at(3*sec), Request{Cost: []int64{limit}})
		boundary := func(from, to time.Duration) { l.Boundary(at(3*sec), 0, at(from).At, at(to).At) }
		steps := []struct {
			what     string
			from, to time.Duration
			want     time.Duration
		}{
			{"too vague", 0, 10 * sec, 13 * sec},
			{"a window ends", 6 * sec, 8 * sec, 8 * sec},
			{"some windows later", 106*sec + sec/2, 107*sec + sec/2, 7*sec + sec/2},
			{"this one or the next", 7*sec + sec*4/10, 16*sec + sec*7/10, 7*sec + sec/2},
			{"some before, less exactly", -14 * sec, -11 * sec, 7*sec + sec/2},
			{"a contradiction", 24 * sec, 25 * sec, 13 * sec},
			{"a report after it", 24 * sec, 25 * sec, 5 * sec},
			{"no contradiction", 5 * sec, 25*sec - 1, 5 * sec},
		}
		for _, s := range steps {
			boundary(s.from, s.to)
			if got := earliest(l, 3*sec, 1); got != s.want {
				t.Errorf("limit %d, %s: one more may go at %v, want %v", limit, s.what, got, s.want)
			}
		}
		// A day later the clocks may have diverged by 5 s, and the window is a rolling one again.
		day := 24 * time.Hour
		l.Charge(at(day), Request{Cost: []int64{limit}})
		if got := earliest(l, day, 1); got != day+10*sec {
			t.Errorf("limit %d: a day later one more may go at %v, want %v", limit, got, day+10*sec)
		}
	}
}

// TestPaceBurst checks that a tier with a PaceBurst admits so many at once, and the others evenly.
func TestPaceBurst(t *testing.T) {
	l := ledger(t, 0, Tier{Limit: 3600, Window: time.Hour, PaceBurst: 3}, Tier{Limit: 10, Window: time.Minute})
	want := []time.Duration{0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 60, 60, 60, 61}
	for i, s := range want {
		now := earliest(l, 0, 1)
		if now != s*time.Second {
			t.Fatalf("request %d may go at %v, want %v", i, now, s*time.Second)
		}
		l.Charge(at(now), Request{Cost: []int64{1}})
	}
	for i, declared := range []int{0, 0, 1} {
		if got := l.Plan().Declared(i); got != declared {
			t.Errorf("Declared(%d) = %d, want %d", i, got, declared)
		}
	}
	if tier := l.Plan().TooLarge([]int64{4}); tier != 1 {
		t.Errorf("TooLarge returns tier %d for 4 at once, want the pace, 1", tier)
	}
}

// TestAssumeUsed checks that units assumed to be used become free as if they had landed a guard
// later.
func TestAssumeUsed(t *testing.T) {
	const ms, sec = time.Millisecond, time.Second
	for _, tt := range []struct {
		tier Tier
		want time.Duration // until one more is admitted
	}{
		{Tier{Limit: 5, Window: sec}, 1050 * ms},
		{Tier{Limit: 50_000, Window: sec, Precision: 100 * ms, Algorithm: SlidingWindow}, 1050 * ms},
		{Tier{Limit: 5, Window: time.Minute, Algorithm: FixedWindow}, 40 * sec}, // at(0) is 20 s after a full minute
		{Tier{Limit: 5, Window: time.Minute, Algorithm: FixedWindow, Phase: UnknownPhase}, 60*sec + 50*ms},
		{Tier{Limit: 5, Window: time.Minute, Algorithm: WeightedWindow}, 40*sec + 12*sec},
		{Tier{Limit: 5, Window: sec, Algorithm: AnchoredWindow}, 1050 * ms},
		{Tier{Limit: 5, Window: sec, Algorithm: TokenBucket}, 250 * ms},
		{Tier{Limit: 5, Window: sec, Burst: 1, Algorithm: GCRA}, 250 * ms},
		{Tier{Limit: 5, Algorithm: Concurrency}, 50 * ms},
		{Tier{Limit: 3600, Window: time.Hour, PaceBurst: 5}, time.Hour + 50*ms},
	} {
		l := ledger(t, 50*ms, tt.tier)
		l.Charge(at(0), Request{Cost: []int64{1}, Held: true}) // an earlier request changes nothing
		l.Release([]int64{1})
		l.AssumeUsed(at(0))
		if got := earliest(l, 0, 1); got != tt.want {
			t.Errorf("%v: one more may go after %v, want %v", tt.tier, got, tt.want)
		}
	}
}

// TestCancelOfFullLog checks that a refund does not make room in a log from which a counted unit has pushed
// another one out.
func TestCancelOfFullLog(t *testing.T) {
	l := ledger(t, time.Second, Tier{Limit: 2, Window: 10 * time.Second, Algorithm: SlidingLog})
	one := Request{Cost: []int64{1}}
	l.Charge(at(0), one) // sent
	one.Held = true
	f := l.Charge(at(0), one) // not sent
	l.Count(at(2*time.Second), []int64{1})
	l.Cancel(at(500*time.Millisecond), f, one.Cost)
	if got := earliest(l, 2*time.Second, 1); got < 11*time.Second {
		t.Errorf("got %v, want 11s: two units count", got)
	}
}

// Settling more than there are estimates takes nothing off other requests in flight, and leaves a ledger that can be decoded.
func TestSettleLeavesOthersInFlight(t *testing.T) {
	p, err := NewPlan([]Tier{{Limit: 100, Window: time.Second, Unit: "tokens", Estimated: true}}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	l := p.NewLedger()
	now := Moment{At: 1_000_000, Wall: 1_000_000}
	l.Charge(now, Request{Cost: []int64{7}})
	l.Charge(now, Request{Cost: []int64{3}, Held: true})
	l.Settle(now, []int64{5}, []int64{0})
	if n := l.Usage(now)[0].Used; n != 7 {
		t.Errorf("%d used, want 7", n)
	}
	data, _ := l.AppendBinary(nil)
	if err := l.UnmarshalBinary(data); err != nil {
		t.Error(err)
	}
}
