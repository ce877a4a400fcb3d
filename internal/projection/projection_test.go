package projection_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/internal/projection"
)

// A month is what people use in a month and the week before it: on a night hour 20 % of a day's, on weekends 30 % of a
// weekday's, with noise in each hour, and from a day on twice or half as much.
type month struct {
	Period
	first int64 // hour
	used  []int64
	jump  time.Time // zero for none
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Auckland"}

// newMonth returns a random month, whose level jumps on a day from one on, if that is not zero. Noise is the most that an
// hour differs from its mean, as a part of it.
func newMonth(t testing.TB, rng *rand.Rand, noise float64, from int) month {
	zone, err := time.LoadLocation(zones[rng.IntN(len(zones))])
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2024+rng.IntN(4), time.Month(1+rng.IntN(12)), 1, 0, 0, 0, 0, zone)
	m := month{Period: Period{Start: start, End: start.AddDate(0, 1, 0), Zone: zone}}
	after := 1.0
	if from > 0 {
		days := int(m.End.Sub(start).Hours()+1) / 24
		m.jump = start.AddDate(0, 0, from-1+rng.IntN(days+1-from))
		after = []float64{0.5, 2}[rng.IntN(2)]
	}
	night, morning := 20+rng.IntN(4), 5+rng.IntN(4)
	level := math.Exp(rng.Float64()*10) * 1e6
	m.first = HourOf(start.AddDate(0, 0, -7))
	for hour := m.first; hour*3600 < m.End.Unix(); hour++ {
		at := time.Unix(hour*3600, 0).In(zone)
		mean := level
		if from > 0 && !at.Before(m.jump) {
			mean *= after
		}
		if day := at.Weekday(); day == time.Saturday || day == time.Sunday {
			mean *= 0.3
		}
		if h := at.Hour(); h >= night || h < morning {
			mean *= 0.2
		}
		m.used = append(m.used, int64(mean*(1+noise*(2*rng.Float64()-1))))
	}
	return m
}

// between returns what is used from one time to another, with a part of the hours at its ends.
func (m month) between(from, to time.Time) (sum int64) {
	for i, n := range m.used {
		begin := (m.first + int64(i)) * 3600
		if s := min(begin+3600, to.Unix()) - max(begin, from.Unix()); s > 0 {
			sum += int64(float64(n) * float64(s) / 3600)
		}
	}
	return sum
}

// errorAt returns by which part of the total the estimate is too high, if hours are known from a time on.
func (m month) errorAt(t testing.TB, known, now time.Time) float64 {
	var h Hours
	for i, n := range m.used {
		if hour := m.first + int64(i); hour*3600 >= known.Unix() && hour < HourOf(now) {
			h.Add(hour, n)
		}
	}
	e, ok := h.Estimate(now, m.Period, m.between(m.Start, now))
	if !ok {
		t.Fatalf("no estimate at %v with hours since %v", now, known)
	}
	total := float64(m.between(m.Start, m.End))
	return (float64(e.Total) - total) / total
}

// TestMonthIsKnownWithin5Percent tests months whose week before is known, and months in which the process has
// begun. Half of them have a jump, which counts from three days later on.
func TestMonthIsKnownWithin5Percent(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		from, known := 0, -7
		if seed%4 > 1 {
			known = 0
		}
		if seed%2 == 1 {
			from = 1 // on any day
			if known == 0 {
				from = 8 // before, what is a weekend and what is a jump can't be told apart
			}
		}
		m := newMonth(t, rng, 0.2, from)
		for day := 8; ; day++ {
			now := m.Start.AddDate(0, 0, day-1).Add(time.Duration(rng.Int64N(int64(24 * time.Hour))))
			if !now.Before(m.End) {
				break
			}
			if off := m.errorAt(t, m.Start.AddDate(0, 0, known), now); math.Abs(off) > 0.05 && m.steady(now) {
				t.Errorf("seed %d: at %v, of a month with a jump at %v, the estimate is %+.1f %% off", seed, now, m.jump, 100*off)
			}
		}
	}
}

// steady reports whether an estimate can know the level: there is no jump, or three days ago.
func (m month) steady(now time.Time) bool {
	return m.jump.IsZero() || !now.Before(m.jump.AddDate(0, 0, 3))
}
