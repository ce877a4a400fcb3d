package algorithms

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Requests is the Unit of a Tier that sets none.
const Requests = "requests"

// A Tier is one limit of a provider: how many units it admits in how much time, and how it counts
// them. "10,000 requests an hour" is Tier{Limit: 10000, Window: time.Hour}.
type Tier struct {
	// Limit is how many units the provider admits per Window, from 1 to MaxLimit, or to MaxDollars in a
	// Calendar of Nanodollars.
	Limit int64

	// Window is the time in which the provider admits Limit units, in whole microseconds and at
	// most MaxWindow. It must be zero for Concurrency and Calendar, and must not be for others.
	Window time.Duration

	// Algorithm is how the provider counts. If zero, SlidingLog.
	Algorithm Algorithm

	// Burst is the capacity of TokenBucket, LeakyBucket and GCRA, in units. If zero, Limit.
	Burst int64

	// Precision is the length of the sub-buckets of SlidingWindow, in whole microseconds. If zero,
	// Window/60.
	Precision time.Duration

	// Phase is the offset of the window boundaries from the Unix epoch, for FixedWindow and
	// WeightedWindow. For FixedWindow it may be UnknownPhase. If zero, a window begins with the
	// epoch.
	Phase time.Duration

	// Unit is the name of the counted unit. If empty, "requests".
	Unit string

	// PaceBurst is how many units may go at once. The others go evenly over the Window. If zero,
	// all may go at once.
	PaceBurst int64

	// Period is what Calendar counts over: Day, Week or Month. It must be zero for others.
	Period Period

	// Zone is the time zone in which a Period begins, such as Europe/Berlin. A program imports
	// time/tzdata for machines that have no time zones. If empty, UTC.
	Zone string

	// Budget is true if a used-up tier refuses requests at once with ErrExhausted, instead of
	// making them wait.
	Budget bool

	// Estimated is true if costs in Unit are estimates until Settle replaces them. If one tier of
	// a Unit sets it, it holds for all tiers of that Unit.
	Estimated bool

	// Follow makes responses that name another limit change the tier. If zero, the tier stays as it is.
	Follow Follow

	// Learn makes the tier find the rate that the provider admits by its refusals, for TokenBucket,
	// LeakyBucket and GCRA. It starts at Limit. If zero, the rate is Limit per Window.
	Learn Learn
}

// UnknownPhase is the Phase of a FixedWindow whose boundaries are undocumented. Until responses
// reveal a boundary, its windows count as rolling ones, as in SlidingLog, which is safe wherever
// they begin. From then on, a window ends when it surely has ended.
const UnknownPhase time.Duration = -1

// PerSecond returns a Tier of n requests in any second.
func PerSecond(n int64) Tier { return Tier{Limit: n, Window: time.Second} }

// PerMinute returns a Tier of n requests in any minute.
func PerMinute(n int64) Tier { return Tier{Limit: n, Window: time.Minute} }

// PerHour returns a Tier of n requests in any hour.
func PerHour(n int64) Tier { return Tier{Limit: n, Window: time.Hour} }

// PerDay returns a Tier of n requests in any 24 hours.
func PerDay(n int64) Tier { return Tier{Limit: n, Window: 24 * time.Hour} }

func (t Tier) counter() *counter {
	if t.Algorithm.isKnown() {
		return &counters[t.Algorithm]
	}
	return new(counter)
}

// Learns reports whether the rate of the tier is learned.
func (t Tier) Learns() bool { return t.Learn.Most > 0 }

// Follows reports whether the tier takes over the limits that responses name.
func (t Tier) Follows() bool { return t.Follow.Most > 0 }

// Capacity returns the largest cost that the tier can ever admit at once: Burst for the buckets
// and Limit for all others, but no more than PaceBurst.
func (t Tier) Capacity() int64 {
	capacity := t.Limit
	if t.counter().burst && t.Burst > 0 {
		capacity = t.Burst
	}
	if t.PaceBurst > 0 {
		capacity = min(capacity, t.PaceBurst)
	}
	return capacity
}

// FillTime returns how long a bucket that is used up takes to be unused: the time for Burst units,
// in whole microseconds. Of another algorithm it is the Window.
func (t Tier) FillTime() time.Duration {
	if !t.counter().burst || t.Burst == 0 {
		return t.Window
	}
	return time.Duration(ceilMulDiv(t.Burst, Micros(t.Window), t.Limit)) * time.Microsecond
}

// pace returns the tier that spreads the units of t over its window.
func (t Tier) pace() Tier {
	return Tier{Limit: t.Limit, Window: t.Window, Algorithm: GCRA, Burst: t.PaceBurst, Unit: t.Unit}
}

// continues reports whether a tier continues another tier of the same unit.
func (t Tier) continues(o Tier) bool {
	if t.Learns() || o.Learns() { // of any of the buckets, which decide alike
		return t.Learns() && o.Learns() && t.Window == o.Window
	}
	return t.Algorithm == o.Algorithm && t.Window == o.Window && t.Phase == o.Phase && t.Period == o.Period && t.Zone == o.Zone
}

// The bounds of a tier. They keep every instant a whole number of microseconds below 2^53, which
// Go and Lua represent exactly.
const (
	MaxLimit      = 1_000_000_000_000          // units
	MaxWindow     = 100 * 365 * 24 * time.Hour // a hundred years
	MaxLog        = 10_000                     // stamps of a SlidingLog; a tier of more is a SlidingWindow
	maxSubBuckets = 10_000                     // of a SlidingWindow
	subBuckets    = 60                         // of a SlidingWindow without a Precision
	maxWindowUS   = int64(MaxWindow / time.Microsecond)
)

// reserved are the characters with a meaning in the text of a tier.
const reserved = "+;|=\" \t\r\n"

// Validate reports every problem of the tier. Each names its field, the value, and what is
// allowed.
func (t Tier) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c := t.counter()

	if most := t.mostLimit(); t.Limit <= 0 || t.Limit > most {
		bad("Limit is %s: it must be from %s to %s", t.formatLimit(t.Limit), t.formatLimit(1), t.formatLimit(most))
	}
	if !t.Algorithm.isKnown() {
		bad("Algorithm is %d: it must be one of %s", uint8(t.Algorithm), namesOf(func(counter) bool { return true }))
	}
	if strings.ContainsAny(t.Unit, reserved) {
		bad("Unit is %q: it must have no space and none of + ; | = \"", t.Unit)
	}
	switch {
	case c.released && t.Window != 0:
		bad("Window is %v: %v has none, leave it zero", t.Window, t.Algorithm)
	case !c.released && !c.period:
		errs = append(errs, checkLength("Window", t.Window, time.Microsecond, MaxWindow))
	}
	switch {
	case t.Burst == 0:
	case !c.burst:
		bad("Burst is %d: %v has none, leave it zero or use one of %s", t.Burst, t.Algorithm, namesOf(func(c counter) bool { return c.burst }))
	case t.Burst < 0 || t.Burst > MaxLimit:
		bad("Burst is %d: it must be from 1 to %d, or zero for Limit", t.Burst, int64(MaxLimit))
	case t.Limit > 0 && t.Window > 0 && ceilMulDiv(t.Burst, Micros(t.Window), t.Limit) > maxWindowUS:
		bad("Burst is %d: refilling it at %d per %v takes longer than %v", t.Burst, t.Limit, t.Window, MaxWindow)
	}
	switch {
	case t.Precision == 0:
	case !c.precision:
		bad("Precision is %v: %v has none, leave it zero or use %s", t.Precision, t.Algorithm, namesOf(func(c counter) bool { return c.precision }))
	default:
		errs = append(errs, checkLength("Precision", t.Precision, max(time.Microsecond, t.Window/maxSubBuckets), t.Window))
	}
	switch {
	case t.Phase == 0, t.Phase == UnknownPhase && t.Algorithm == FixedWindow:
	case !c.phase:
		bad("Phase is %v: %v has none, leave it zero or use one of %s", t.Phase, t.Algorithm, namesOf(func(c counter) bool { return c.phase }))
	default:
		errs = append(errs, checkLength("Phase", t.Phase, 0, t.Window-time.Microsecond))
	}
	t.checkCalendar(bad)
	t.Learn.check(t, bad)
	t.Follow.check(t, bad)
	switch {
	case t.PaceBurst == 0:
	case c.released:
		bad("PaceBurst is %d: %v has no window to pace, leave it zero", t.PaceBurst, t.Algorithm)
	case t.PaceBurst < 0 || t.PaceBurst > t.Limit:
		bad("PaceBurst is %d: it must be from 1 to Limit, %d, or zero for none", t.PaceBurst, t.Limit)
	}
	switch {
	case !t.Estimated:
	case c.released:
		bad("Estimated is true: units of %v are released, not settled, leave it false", t.Algorithm)
	case t.normal().Unit == Requests:
		bad("Estimated is true: requests are counted, not estimated, so name another Unit")
	}
	return errors.Join(errs...)
}

// checkCalendar reports the problems of the fields that belong to a calendar.
func (t Tier) checkCalendar(bad func(format string, args ...any)) {
	c := t.counter()
	if t.Budget && c.released {
		bad("Budget is true: requests that exceed %v wait for a release, leave it false", t.Algorithm)
	}
	if !c.period {
		if t.Period != NoPeriod {
			bad("Period is %v: %v has none, leave it zero or use calendar", t.Period, t.Algorithm)
		}
		if t.Zone != "" {
			bad("Zone is %q: %v has none, leave it empty or use calendar", t.Zone, t.Algorithm)
		}
		return
	}
	if t.Window != 0 {
		bad("Window is %v: %v has a Period instead, leave it zero", t.Window, t.Algorithm)
	}
	if t.Period == NoPeriod || t.Period >= periodCount {
		bad("Period is %d: it must be Day, Week or Month", uint8(t.Period))
	}
	if t.PaceBurst != 0 {
		bad("PaceBurst is %d: the periods of %v differ in length, leave it zero", t.PaceBurst, t.Algorithm)
	}
	if _, err := location(t.Zone); err != nil {
		bad("Zone is %q: %w", t.Zone, err)
	}
}

func checkLength(field string, d, least, most time.Duration) error {
	switch {
	case d < least || d > most:
		return fmt.Errorf("%s is %v: it must be from %v to %v", field, d, least, most)
	case d%time.Microsecond != 0:
		return fmt.Errorf("%s is %v: it must be whole microseconds", field, d)
	}
	return nil
}

// normal returns the tier with its defaults set and without its pace.
func (t Tier) normal() Tier {
	if t.Unit == "" {
		t.Unit = Requests
	}
	if t.counter().burst && t.Burst == 0 {
		t.Burst = t.Limit
	}
	if t.Phase == UnknownPhase {
		t.Algorithm = SlidingLog
	}
	if t.counter().period && t.Zone == "" {
		t.Zone = "UTC"
	}
	t.PaceBurst = 0
	if t.Algorithm == SlidingLog && t.Limit > MaxLog {
		t.Algorithm = SlidingWindow
	}
	if t.Algorithm == SlidingWindow && t.Precision == 0 {
		t.Precision = usualPrecision(t.Window)
	}
	return t
}

// usualPrecision returns the Precision of a SlidingWindow that sets none.
func usualPrecision(window time.Duration) time.Duration {
	return max(time.Microsecond, (window / subBuckets).Truncate(time.Microsecond))
}

// Micros returns d in whole microseconds, rounded up.
func Micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}
