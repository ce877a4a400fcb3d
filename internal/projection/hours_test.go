package projection_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/internal/projection"
)

// november is a month of 720 hours, which begins on a Sunday.
var november = Period{
	Start: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC), Zone: time.UTC,
}

func TestNothingIsKnownInTheFirstHour(t *testing.T) {
	var h Hours
	if e, ok := h.Estimate(november.Start.Add(59*time.Minute), november, 100); ok {
		t.Errorf("estimate %+v, want none", e)
	}
	if e, ok := h.Estimate(november.Start.Add(time.Hour), november, 100); !ok || e.Total != 72_000 || !e.Rough {
		t.Errorf("estimate %+v, %v; want that each hour is like the first, and rough", e, ok)
	}
}

func TestRestartLeavesTheMeanOfThePeriod(t *testing.T) {
	var h Hours
	now := november.Start.AddDate(0, 0, 20)
	if e, ok := h.Estimate(now, november, 48_000); !ok || e.Total != 72_000 || !e.Rough {
		t.Errorf("estimate %+v, %v; want 72000, at 100 an hour, and rough", e, ok)
	}
}

// TestRestartLearnsTheLevel tests that what the hours before a restart had on average counts less and less.
func TestRestartLearnsTheLevel(t *testing.T) {
	var h Hours
	start := november.Start.AddDate(0, 0, 10)
	for hour := range int64(72) {
		h.Add(HourOf(start)+hour, 200)
	}
	used := int64(24_000 + 72*200)
	e, ok := h.Estimate(start.AddDate(0, 0, 3), november, used)
	if want := used + 17*24*200; !ok || e.Total != want {
		t.Errorf("estimate %+v, %v; want %d, at 200 an hour as in the last three days", e, ok, want)
	}
}

// TestUnknownHoursAreNotZero tests a process that sees two of three hours, of which each has the same use.
func TestUnknownHoursAreNotZero(t *testing.T) {
	var h Hours
	now := november.Start.AddDate(0, 0, 14)
	for hour := HourOf(november.Start); hour < HourOf(now); hour++ {
		if hour%3 > 0 {
			h.Add(hour, 100)
		}
	}
	e, ok := h.Estimate(now, november, 14*24*100)
	if !ok || math.Abs(float64(e.Total)-72_000) > 1 || e.Rough {
		t.Errorf("estimate %+v, %v; want 72000", e, ok)
	}
}

// TestHourThatHappensTwiceCountsTwice tests the day on which summer time ends, with 25 hours.
func TestHourThatHappensTwiceCountsTwice(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	p := Period{time.Date(2026, 11, 1, 0, 0, 0, 0, zone), time.Date(2026, 11, 2, 0, 0, 0, 0, zone), zone}
	var h Hours
	for hour := HourOf(p.Start); hour < HourOf(p.Start)+5; hour++ {
		h.Add(hour, 100)
	}
	if e, ok := h.Estimate(p.Start.Add(5*time.Hour), p, 500); !ok || e.Total != 2500 {
		t.Errorf("estimate %+v, %v; want 2500, for 25 hours", e, ok)
	}
}

// TestIdleBudgetStaysIdle tests that an estimate of nothing is nothing.
func TestIdleBudgetStaysIdle(t *testing.T) {
	var h Hours
	now := november.Start.AddDate(0, 0, 9)
	for hour := HourOf(november.Start); hour < HourOf(now); hour++ {
		h.Add(hour, 0)
	}
	if e, ok := h.Estimate(now, november, 0); !ok || e.Total != 0 {
		t.Errorf("estimate %+v, %v; want 0", e, ok)
	}
}

// TestAnyHoursHaveAnEstimate tests that estimates are no less than what is used, whatever that is, and that Hours
// forget what is too old.
func TestAnyHoursHaveAnEstimate(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var h Hours
		first := HourOf(november.Start) - 2*Kept
		for range rng.IntN(3000) {
			h.Add(first+rng.Int64N(3*Kept), int64(math.Exp(rng.Float64()*30)*(rng.Float64()-0.3)))
		}
		now, used := november.Start.Add(time.Duration(rng.Int64N(int64(720*time.Hour)))), rng.Int64N(1<<50)
		e, ok := h.Estimate(now, november, used)
		if ok && e.Total < used {
			t.Errorf("seed %d: estimate %+v, less than the %d that are used", seed, e, used)
		}
		if n := h.Len(); n > Kept {
			t.Errorf("seed %d: %d hours are kept, want at most %d", seed, n, Kept)
		}
	}
}
