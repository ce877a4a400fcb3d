package throttletest

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A Counter decides as a provider does, tier by tier, from the definition of
// each [algorithms.Algorithm] and from nothing else: it lists what it accepted
// and adds it up. It shares no arithmetic with the limiter, so a mistake made
// there shows here.
//
// Instants are whole microseconds since the Unix epoch and never run backwards:
// one before the last arrival counts as the last arrival's. Costs are units by
// name: nil is one request, a cost without "requests" counts one request, and
// any other unit it does not name is 0. An amount of 0 leaves a tier as it was
// and opens no window; one below 0 counts as 0.
//
// Use [NewCounter]. Nothing blocks. A Counter is not safe for concurrent use.
// It remembers each accepted request for WorstRolling, in 16 bytes.
type Counter struct {
	tiers   []tier
	last    int64 // the last arrival, in microseconds
	history log   // requests accepted since the beginning
}

type tier struct {
	unit string
	count
}

// A count is one tier's. Costs are never negative, instants never run backwards.
type count interface {
	fits(t, c int64) bool // whether c units may arrive at t; changes nothing
	take(t, c int64)      // c > 0 units have arrived at t
}

// NewCounter returns a Counter that accepts what every tier accepts. Without
// tiers it accepts everything. The error names every invalid tier by its index.
func NewCounter(tiers ...algorithms.Tier) (*Counter, error) {
	c := &Counter{last: math.MinInt64}
	var errs []error
	for i, t := range tiers {
		if err := t.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("throttletest: tier %d: %w", i, err))
			continue
		}
		unit := t.Unit
		if unit == "" {
			unit = algorithms.Requests
		}
		c.tiers = append(c.tiers, tier{unit, newCount(t)})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

func newCount(t algorithms.Tier) count {
	window := t.Window.Microseconds()
	switch t.Algorithm {
	case algorithms.SlidingLog, algorithms.SlidingWindow:
		return &rolling{limit: t.Limit, window: window}
	case algorithms.FixedWindow, algorithms.WeightedWindow:
		return &aligned{
			limit: t.Limit, window: window, phase: t.Phase.Microseconds(),
			weighted: t.Algorithm == algorithms.WeightedWindow, counts: map[int64]int64{},
		}
	case algorithms.AnchoredWindow:
		return &anchored{limit: t.Limit, window: window, end: math.MinInt64}
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.GCRA:
		burst := t.Burst
		if burst == 0 {
			burst = t.Limit
		}
		return &bucket{limit: t.Limit, window: window, burst: burst}
	case algorithms.Calendar:
		zone, err := time.LoadLocation(t.Zone)
		if err != nil {
			panic(err) // the tier is valid
		}
		return &calendar{limit: t.Limit, period: t.Period, zone: zone}
	case algorithms.Concurrency:
		return &inFlight{limit: t.Limit}
	}
	panic(fmt.Sprintf("throttletest: %v has no definition here", t.Algorithm))
}

// Admits returns the index of the first tier that refuses cost at instant t,
// or -1 when all admit it. It changes nothing.
func (c *Counter) Admits(t int64, cost map[string]int64) (tier int) {
	t = max(t, c.last)
	for i, tier := range c.tiers {
		if !tier.fits(t, amount(cost, tier.unit)) {
			return i
		}
	}
	return -1
}

// Arrive counts cost at instant t and reports whether it was accepted. What is
// refused is charged to no tier.
func (c *Counter) Arrive(t int64, cost map[string]int64) bool {
	return c.arrive(t, cost) < 0
}

// arrive is Arrive, with the answer of Admits.
func (c *Counter) arrive(t int64, cost map[string]int64) (refusedBy int) {
	c.last = max(t, c.last)
	if i := c.Admits(c.last, cost); i >= 0 {
		return i
	}
	for _, tier := range c.tiers {
		if n := amount(cost, tier.unit); n > 0 {
			tier.take(c.last, n)
		}
	}
	if n := amount(cost, algorithms.Requests); n > 0 {
		c.history.add(c.last, n)
	}
	return -1
}

// Release ends an accepted cost for the Concurrency tiers; the others count
// arrivals and stay as they are.
func (c *Counter) Release(cost map[string]int64) {
	for _, tier := range c.tiers {
		if f, ok := tier.count.(*inFlight); ok {
			f.n = max(0, f.n-amount(cost, tier.unit))
		}
	}
}

// Earliest returns the first instant from t on at which every tier admits cost
// if nothing arrives and nothing is released until then. It reports false when
// time alone does not help: cost is above a capacity, or too much is in flight.
func (c *Counter) Earliest(t int64, cost map[string]int64) (at int64, ok bool) {
	// All is forgotten after two windows or one refill, 200 years at most, and
	// what fits at one instant fits at every later one: search by halves.
	t = max(t, c.last)
	low, high := t, t+2*algorithms.MaxWindow.Microseconds()
	if c.Admits(high, cost) >= 0 {
		return 0, false
	}
	for low < high {
		if mid := low + (high-low)/2; c.Admits(mid, cost) < 0 {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low, true
}

// WorstRolling returns the most units of "requests" accepted in any half-open
// interval of length window, whatever the tiers say.
func (c *Counter) WorstRolling(window time.Duration) int64 {
	width := int64((window + time.Microsecond - 1) / time.Microsecond)
	return c.history.worst(width)
}

func amount(cost map[string]int64, unit string) int64 {
	n, ok := cost[unit]
	if !ok && unit == algorithms.Requests {
		return 1
	}
	return max(0, n)
}

// A log lists arrivals, oldest first.
type log struct {
	at, before []int64 // when, and the units that came before
	sum        int64   // units in all; where it wraps round, differences stay right
}

func (l *log) add(t, c int64) {
	l.at, l.before = append(l.at, t), append(l.before, l.sum)
	l.sum += c
}

// after returns the index of the first arrival later than t.
func (l *log) after(t int64) int {
	i, _ := slices.BinarySearch(l.at, t+1)
	return i
}

// since returns the units that arrived later than t.
func (l *log) since(t int64) int64 {
	if i := l.after(t); i < len(l.at) {
		return l.sum - l.before[i]
	}
	return 0
}

// forget drops what arrived up to t, once that is half of the list.
func (l *log) forget(t int64) {
	if i := l.after(t); i > len(l.at)/2 {
		l.at, l.before = slices.Delete(l.at, 0, i), slices.Delete(l.before, 0, i)
	}
}

// worst returns the most units in any (t-width, t].
func (l *log) worst(width int64) (most int64) {
	first := 0
	for i, t := range l.at {
		for first <= i && l.at[first] <= t-width {
			first++
		}
		if first > i {
			continue // an interval of no length holds nothing
		}
		through := l.sum
		if i+1 < len(l.at) {
			through = l.before[i+1]
		}
		most = max(most, through-l.before[first])
	}
	return most
}

// rolling: at most limit in every half-open interval of length window, so what
// arrived at s has left at exactly s + window.
type rolling struct {
	limit, window int64
	log           log
}

func (r *rolling) fits(t, c int64) bool { return c <= r.limit-r.log.since(t-r.window) }

func (r *rolling) take(t, c int64) {
	r.log.forget(t - r.window)
	r.log.add(t, c)
}

// aligned: the windows [k·window + phase, (k+1)·window + phase) since the Unix
// epoch. Each takes at most limit; when weighted, so do the current count and
// that part of the previous one which a window ending now still covers.
type aligned struct {
	limit, window, phase int64
	weighted             bool
	counts               map[int64]int64 // by k: the current and the previous window
}

// locate returns the window of t and the time since its start.
func (a *aligned) locate(t int64) (k, elapsed int64) {
	k, elapsed = (t-a.phase)/a.window, (t-a.phase)%a.window
	if elapsed < 0 { // before the epoch
		k, elapsed = k-1, elapsed+a.window
	}
	return k, elapsed
}

func (a *aligned) fits(t, c int64) bool {
	k, elapsed := a.locate(t)
	room := a.limit - a.counts[k]
	if c > room || !a.weighted {
		return c <= room
	}
	return productAtMost(a.counts[k-1], a.window-elapsed, room-c, a.window)
}

func (a *aligned) take(t, c int64) {
	k, _ := a.locate(t)
	a.counts[k] += c
	for old := range a.counts {
		if old < k-1 {
			delete(a.counts, old)
		}
	}
}

// anchored: the first arrival at s opens [s, s + window), which takes at most
// limit; the first arrival after it opens the next.
type anchored struct {
	limit, window int64
	end           int64 // of the window opened last
	n             int64 // units in it
}

func (a *anchored) fits(t, c int64) bool {
	if t >= a.end {
		return c <= a.limit
	}
	return c <= a.limit-a.n
}

func (a *anchored) take(t, c int64) {
	if t >= a.end {
		a.end, a.n = t+a.window, 0
	}
	a.n += c
}

// bucket: from every earlier arrival s on, at most burst + (t-s)·limit/window
// units up to t, and at most burst at once.
//
// Which start leaves the least room does not depend on t: a later start s' is
// tighter than s when the units from s up to s' are no more than was refilled
// meanwhile. So the tightest start stands for all of them.
type bucket struct {
	limit, window, burst int64
	start                int64 // the tightest
	n                    int64 // units since; 0 before the first arrival
}

func (b *bucket) fits(t, c int64) bool {
	if c > b.burst || b.n == 0 {
		return c <= b.burst
	}
	over := b.n + c - b.burst
	return over <= 0 || productAtMost(over, b.window, t-b.start, b.limit)
}

func (b *bucket) take(t, c int64) {
	if b.n == 0 || productAtMost(b.n, b.window, t-b.start, b.limit) {
		b.start, b.n = t, 0
	}
	b.n += c
}

// calendar: at most limit in every day, week or month by the date on a zone's clocks.
type calendar struct {
	limit  int64
	period algorithms.Period
	zone   *time.Location
	now    [3]int // the date that stands for the current period
	n      int64  // units in it
}

// locate returns what all dates of the period of t have in common.
func (c *calendar) locate(t int64) (date [3]int) {
	local := time.UnixMicro(t).In(c.zone)
	switch year, week := local.ISOWeek(); c.period {
	case algorithms.Day:
		date = [3]int{local.Year(), int(local.Month()), local.Day()}
	case algorithms.Week:
		date = [3]int{year, week}
	default:
		date = [3]int{local.Year(), int(local.Month())}
	}
	return date
}

func (c *calendar) fits(t, n int64) bool {
	if c.locate(t) != c.now {
		return n <= c.limit
	}
	return n <= c.limit-c.n
}

func (c *calendar) take(t, n int64) {
	if now := c.locate(t); now != c.now {
		c.now, c.n = now, 0
	}
	c.n += n
}

// inFlight: at most limit arrived and not yet released.
type inFlight struct{ limit, n int64 }

func (f *inFlight) fits(_, c int64) bool { return c <= f.limit-f.n }
func (f *inFlight) take(_, c int64)      { f.n += c }

// productAtMost reports whether a·b ≤ c·d, exactly. None may be negative.
func productAtMost(a, b, c, d int64) bool {
	abHigh, abLow := bits.Mul64(uint64(a), uint64(b))
	cdHigh, cdLow := bits.Mul64(uint64(c), uint64(d))
	return abHigh < cdHigh || abHigh == cdHigh && abLow <= cdLow
}
