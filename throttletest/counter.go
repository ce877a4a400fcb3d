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

// A Counter decides as a provider does, tier by tier, directly from the definition of each
// [algorithms.Algorithm]: it lists accepted requests and adds them up. It shares no arithmetic with
// the limiter. Tests against a Counter therefore find mistakes in the limiter's arithmetic.
//
// Instants are whole microseconds since the Unix epoch and never run backward: an instant before
// the last arrival counts as the instant of the last arrival. Costs are units by name. A nil cost
// is one request. A cost without "requests" counts one request, and any other unit that it does not
// name is 0. An amount of 0 does not change a tier and opens no window. An amount below 0 counts as
// 0.
//
// Create a Counter with [NewCounter]. Its methods do not block. It is not safe for concurrent use.
// It remembers each accepted request for WorstRolling, in 16 bytes.
type Counter struct {
	tiers   []tier
	last    int64 // instant of the last arrival, in microseconds
	history log   // all accepted requests
}

type tier struct {
	unit string
	count
}

// A count is the count of one tier. Costs are never negative, and instants never run backward.
type count interface {
	fits(t, c int64) bool // reports whether c units may arrive at t
	take(t, c int64)      // counts c > 0 units that arrive at t
}

// NewCounter returns a Counter that accepts a cost if every tier accepts it. Without tiers it
// accepts everything. The error names every invalid tier by its index.
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
	panic(fmt.Sprintf("throttletest: no definition of algorithm %v", t.Algorithm))
}

// Admits returns the index of the first tier that refuses cost at instant t, or -1 if all tiers
// admit it. It changes nothing.
func (c *Counter) Admits(t int64, cost map[string]int64) (tier int) {
	t = max(t, c.last)
	for i, tier := range c.tiers {
		if !tier.fits(t, amount(cost, tier.unit)) {
			return i
		}
	}
	return -1
}

// Arrive counts cost at instant t and reports whether it was accepted. A refused cost is charged to
// no tier.
func (c *Counter) Arrive(t int64, cost map[string]int64) bool {
	return c.arrive(t, cost) < 0
}

// arrive is like Arrive, but returns the result of Admits.
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

// Release ends an accepted cost in the Concurrency tiers. It does not change other tiers, which
// count arrivals.
func (c *Counter) Release(cost map[string]int64) {
	for _, tier := range c.tiers {
		if f, ok := tier.count.(*inFlight); ok {
			f.n = max(0, f.n-amount(cost, tier.unit))
		}
	}
}

// Earliest returns the first instant from t on at which every tier admits cost, if no cost arrives
// and none is released until then. ok is false if no instant helps: cost exceeds a capacity, or too
// many units are in flight.
func (c *Counter) Earliest(t int64, cost map[string]int64) (at int64, ok bool) {
	// Tiers forget everything after two windows or one refill, at most 200 years, and a cost that
	// fits at one instant fits at every later one. So use binary search.
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

// WorstRolling returns the most units of "requests" accepted in any half-open interval of length
// window, regardless of the tiers.
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
	// at are the instants of arrivals, and before the units that arrived before each.
	at, before []int64
	// sum is the number of all units. If it overflows, differences remain correct.
	sum int64
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

// forget drops the arrivals up to t if they are more than half of the list.
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
			continue // an interval of length 0 contains nothing
		}
		through := l.sum
		if i+1 < len(l.at) {
			through = l.before[i+1]
		}
		most = max(most, through-l.before[first])
	}
	return most
}

// rolling accepts at most limit in every half-open interval of length window. An arrival at s
// leaves at exactly s + window.
type rolling struct {
	limit, window int64
	log           log
}

func (r *rolling) fits(t, c int64) bool { return c <= r.limit-r.log.since(t-r.window) }

func (r *rolling) take(t, c int64) {
	r.log.forget(t - r.window)
	r.log.add(t, c)
}

// aligned counts in the windows [k·window + phase, (k+1)·window + phase) since the Unix epoch. Each
// window accepts at most limit. If weighted, limit also bounds the sum of the current count and a
// part of the previous one: the part that a window ending now still covers.
type aligned struct {
	limit, window, phase int64
	weighted             bool
	// counts are the units by k, of the current and the previous window.
	counts map[int64]int64
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
	free := a.limit - a.counts[k]
	if c > free || !a.weighted {
		return c <= free
	}
	return productAtMost(a.counts[k-1], a.window-elapsed, free-c, a.window)
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

// anchored opens a window [s, s + window) with the first arrival at s. It accepts at most limit.
// The first arrival after it opens the next window.
type anchored struct {
	limit, window int64
	end           int64 // end of the last window
	n             int64 // units in the last window
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

// bucket accepts, from every earlier arrival s on, at most burst + (t-s)·limit/window units up to
// t, and at most burst at once.
//
// Which start s is the tightest bound does not depend on t. A later start s' is tighter than s if
// the units from s up to s' do not exceed the refill of that time. So it suffices to keep the
// tightest start.
type bucket struct {
	limit, window, burst int64
	start                int64 // the tightest start
	n                    int64 // units since start; 0 before the first arrival
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

// calendar accepts at most limit in every day, week or month by the date in a time zone.
type calendar struct {
	limit  int64
	period algorithms.Period
	zone   *time.Location
	now    [3]int // the date that identifies the current period
	n      int64  // units in the current period
}

// locate returns the date that identifies the period of t.
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

// inFlight accepts at most limit units that have arrived and have not been released.
type inFlight struct{ limit, n int64 }

func (f *inFlight) fits(_, c int64) bool { return c <= f.limit-f.n }
func (f *inFlight) take(_, c int64)      { f.n += c }

// productAtMost reports whether a·b ≤ c·d, exactly. None may be negative.
func productAtMost(a, b, c, d int64) bool {
	abHigh, abLow := bits.Mul64(uint64(a), uint64(b))
	cdHigh, cdLow := bits.Mul64(uint64(c), uint64(d))
	return abHigh < cdHigh || abHigh == cdHigh && abLow <= cdLow
}
