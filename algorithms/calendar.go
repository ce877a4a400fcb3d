package algorithms

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

// A Period is what a [Calendar] tier counts over.
type Period uint8

// The periods. Each begins at the first instant of a date in the tier's Zone.
const (
	NoPeriod Period = iota
	Day
	Week // begins on Monday
	Month
	periodCount
)

var periodNames = [periodCount]string{"", "day", "week", "month"}

// String returns the name of the period in the text of a tier, such as "day".
func (p Period) String() string {
	if p < periodCount {
		return periodNames[p]
	}
	return fmt.Sprintf("period(%d)", uint8(p))
}

// parsePeriod returns the period with that name, if there is one.
func parsePeriod(name string) (p Period, ok bool) {
	for p = Day; p < periodCount; p++ {
		if name == periodNames[p] {
			return p, true
		}
	}
	return NoPeriod, false
}

// Budget returns a Tier of so many units in every calendar period of UTC. It refuses requests that
// exceed what is left, instead of making them wait.
//
// Amounts are whole numbers, so count dollars in [Nanodollars]: $100.00 a month is
// Budget(100_000_000_000, Nanodollars, Month), and a request of $0.37 costs 370_000_000 of them.
func Budget(limit int64, unit string, p Period) Tier {
	return Tier{Limit: limit, Unit: unit, Algorithm: Calendar, Period: p, Budget: true}
}

// location returns the time zone with that name.
func location(zone string) (*time.Location, error) {
	if zone == "Local" || strings.ContainsAny(zone, reserved) {
		return nil, fmt.Errorf("it must be the name of a place, such as Europe/Berlin, or empty for UTC")
	}
	loc, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("%w: use a name of the IANA database, such as Europe/Berlin, and import time/tzdata if the machine has no time zones", err)
	}
	return loc, nil
}

// calendar admits at most limit units in every day, week or month of a time zone. A period begins
// at the first instant of its date: a day may have 23 or 25 hours, and begins at 01:00 if it has
// no midnight. Otherwise it counts as fixedWindow does.
//
// Source: the daily limits of the Gemini API, which "reset at midnight Pacific time", and of
// HubSpot, at midnight in the account's time zone.
//
// Memory: four words, those of fixedWindow.
var calendarCounter = counter{name: "calendar", newRule: newFixedWindow, period: true, aligned: true, reopens: true}

// shortestDay is less than any day in microseconds, also of a day on which clocks are set forward.
const shortestDay = 22 * 60 * 60 * 1_000_000

// Longest returns a bound of the period's length. It is a day longer than the calendar's period,
// because a time zone may have a date twice.
func (p Period) Longest() time.Duration {
	return [periodCount]time.Duration{Day: 2, Week: 8, Month: 32}[p] * 24 * time.Hour
}

// periodStart returns the start of the n-th period after that of an instant, as Unix time.
func (a *aligned) periodStart(wall int64, n int) int64 {
	year, month, day := time.UnixMicro(wall).In(a.zone).Date()
	for ; ; n++ { // again if the zone has this date twice, or skipped one
		if at := a.period.start(year, month, day, n, a.zone).UnixMicro(); at > wall || n <= 0 {
			return at
		}
	}
}

// start returns the first instant of the n-th period after that of a date.
func (p Period) start(year int, month time.Month, day, n int, zone *time.Location) time.Time {
	switch p {
	case Day:
		day += n
	case Week:
		weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
		day += 7*n - int(weekday+6)%7
	case Month:
		month, day = month+time.Month(n), 1
	}
	return firstInstant(time.Date(year, month, day, 0, 0, 0, 0, time.UTC), zone)
}

// firstInstant returns the first instant at which a zone has the date of a UTC midnight, or a
// later date. A date may have no midnight or two, because clocks are also set at midnight.
func firstInstant(midnight time.Time, zone *time.Location) time.Time {
	const around = 36 * time.Hour // of the UTC midnight, in every zone
	offset := func(t time.Time) time.Duration {
		_, east := t.In(zone).Zone()
		return time.Duration(east) * time.Second
	}
	from := midnight.Add(-around)
	before := offset(from)
	first := midnight.Add(-before)
	if offset(midnight.Add(around)) == before {
		return first
	}
	set := from.Add(time.Second * time.Duration(sort.Search(int(2*around/time.Second), func(s int) bool {
		return offset(from.Add(time.Duration(s)*time.Second)) != before
	})))
	if first.Before(set) {
		return first
	}
	if first = midnight.Add(-offset(set)); first.Before(set) {
		return set
	}
	return first
}

// A Crossing reports that a [Calendar] tier has come from one percent of its Limit to another.
type Crossing struct {
	// Tier is the index of the tier in the plan.
	Tier int

	// From and To are percents of the Limit, rounded down and at most 100.
	From, To int

	// Used is the number of units that have landed or are in flight, without estimates.
	Used int64

	// Until is the end of the period.
	Until time.Time
}

// cross returns the crossing since the last call, if there is one.
func (r *fixedWindow) cross(s *state, now Moment) (c Crossing, ok bool) {
	r.open(s, now)
	w := r.state(s)
	used := w[1] + s.inFlight(r.unit) - s.estimatesInFlight(r.unit)
	from, to := w[2], min(100, used*100/r.limit)
	w[2] = max(from, to)
	return Crossing{r.tier, int(from), int(to), used, time.UnixMicro(w[0])}, to > from
}
