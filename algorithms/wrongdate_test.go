package algorithms_test

import (
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/throttletest"
)

// TestWrongDate lets the wall clock be wrong for a while, by any time, and then right again. A
// provider with the right clock refuses nothing in a window if the clock was right throughout the
// window and, of a WeightedWindow, the window before. From one longest window after the last landing
// under the wrong date, the ledger counts exactly as with a clock that was never wrong.
func TestWrongDate(t *testing.T) {
	const day = 24 * time.Hour
	for _, tc := range []struct {
		tier    Tier
		longest time.Duration // for which a unit counts, if the clock steps back by less than a window
	}{
		{Tier{Limit: 20, Window: time.Minute, Algorithm: FixedWindow, Phase: 7 * time.Second}, 2 * time.Minute},
		{Tier{Limit: 20, Window: time.Hour, Algorithm: WeightedWindow}, 3 * time.Hour},
		{Tier{Limit: 20, Algorithm: Calendar, Period: Day, Zone: "Europe/Berlin"}, Day.Longest()},
		{Tier{Limit: 20, Algorithm: Calendar, Period: Week}, Week.Longest()},
		{Tier{Limit: 20, Algorithm: Calendar, Period: Month}, Month.Longest()},
	} {
		for seed := range uint64(400) {
			r := rand.New(rand.NewPCG(seed, 6))
			between := func(least, most time.Duration) time.Duration {
				return least + time.Duration(r.Int64N(int64(most-least)+1))
			}
			l, right, one := ledger(t, 0, tc.tier), ledger(t, 0, tc.tier), []int64{1}
			provider, err := throttletest.NewCounter(tc.tier)
			if err != nil {
				t.Fatal(err)
			}
			from := between(0, tc.longest) * time.Duration(r.IntN(2)) // the first request, or a later one
			wrong := wrongClock{from, from + between(0, tc.longest*pick[time.Duration](r, 1, 3)/pick[time.Duration](r, 1, 50)), between(-tc.longest, tc.longest)}
			switch r.IntN(4) {
			case 0:
				wrong.by = between(-10*365*day, 10*365*day)
			case 1:
				wrong.by /= 1000
			}
			last := from // the last landing under the wrong date
			pace := tc.longest / pick[time.Duration](r, 4, 8, 30)
			for now := time.Duration(0); now < wrong.to+5*tc.longest; now += between(0, pace) {
				m := wrong.moment(now)
				if wrong.isWrong(now) {
					last = now
				}
				if _, _, tier := l.Take(m, Request{Cost: one}); tier < 0 {
					right.Charge(at(now), Request{Cost: one})
					if !provider.Arrive(at(now).At, nil) && !touchesWrong(tc.tier, wrong, now) {
						t.Fatalf("%v, seed %d: the clock is wrong by %v from %v to %v: the provider refuses the request at %v", tc.tier, seed, wrong.by, wrong.from, wrong.to, now)
					}
				}
				got, want := l.Usage(m)[0].Used, right.Usage(at(now))[0].Used
				if now >= max(last+tc.longest, wrong.to) && got != want {
					t.Fatalf("%v, seed %d: the clock is wrong by %v from %v to %v: %d used at %v, want %d", tc.tier, seed, wrong.by, wrong.from, wrong.to, got, now, want)
				}
			}
		}
	}
}

// A wrongClock is wrong for a while.
type wrongClock struct{ from, to, by time.Duration }

func (c wrongClock) isWrong(now time.Duration) bool { return now >= c.from && now < c.to }

func (c wrongClock) moment(now time.Duration) Moment {
	m := at(now)
	if c.isWrong(now) {
		m.Wall += c.by.Microseconds()
	}
	return m
}

// touchesWrong reports whether the clock was wrong in the window of an instant or, of a
// WeightedWindow, in the window before.
func touchesWrong(t Tier, c wrongClock, now time.Duration) bool {
	start := windowStart(t, now)
	if t.Algorithm == WeightedWindow {
		start -= t.Window
	}
	return now >= c.from && start < c.to
}

// windowStart returns when the window of an instant began.
func windowStart(t Tier, now time.Duration) time.Duration {
	if t.Algorithm == Calendar {
		p, err := NewPlan([]Tier{t}, 0)
		if err != nil {
			panic(err)
		}
		return time.Duration(p.PeriodStarts(at(now).Wall)[1]-at(0).Wall) * time.Microsecond
	}
	since := time.Duration(at(now).Wall-t.Phase.Microseconds()) * time.Microsecond % t.Window
	return now - since
}
