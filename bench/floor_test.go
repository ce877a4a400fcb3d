package bench

import (
	"sync"
	"testing"
	"time"
)

// A floor is the smallest amount of code that decides about one or two tiers at once: GCRA
// under one mutex, with one reading of the clock. It has no queue, units, pauses or errors.
// It counts in picoseconds because the interval of 1e12 per hour is 3.6 ns. An int64 of
// picoseconds lasts for 106 days.
type floor struct {
	start time.Time
	n     int // how many of tiers are in use

	mu    sync.Mutex // guards the tat of each tier
	tiers [2]floorTier
}

type floorTier struct {
	tat       int64 // theoretical arrival time, after start
	interval  int64 // added to tat by each request
	tolerance int64 // by which tat may be ahead of the clock
}

// newFloor returns a floor of n tiers, with the same limits as the libraries.
func newFloor(n int) *floor {
	second, hour := picoseconds(time.Second), picoseconds(time.Hour)
	return &floor{start: time.Now(), n: n, tiers: [2]floorTier{
		{interval: second / perSecond, tolerance: second},
		{interval: hour / perHour, tolerance: hour},
	}}
}

// allow admits one request in all tiers or in none.
func (f *floor) allow() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := picoseconds(time.Since(f.start))
	var next [2]int64
	for i := range f.n {
		t := &f.tiers[i]
		next[i] = max(t.tat, now) + t.interval
		if next[i]-now > t.tolerance {
			return false
		}
	}
	for i := range f.n {
		f.tiers[i].tat = next[i]
	}
	return true
}

func picoseconds(d time.Duration) int64 { return int64(d) * 1000 }

func TestFloor(t *testing.T) {
	hour := picoseconds(time.Hour)
	f := newFloor(2)
	f.tiers[0] = floorTier{interval: hour, tolerance: 3 * hour}
	f.tiers[1] = floorTier{interval: hour, tolerance: 2 * hour}
	for i, want := range []bool{true, true, false, false} {
		if got := f.allow(); got != want {
			t.Fatalf("step %d: allow() = %v, want %v", i, got, want)
		}
	}
	if ahead := f.tiers[0].tat; ahead >= 3*hour {
		t.Errorf("the first tier was charged for requests that the second refused: it is %d hours ahead", ahead/hour)
	}
}
