package algorithms

import (
	"fmt"
	"strings"
)

// An Algorithm names the way a provider counts.
//
// "5 per second" does not say how: a provider that counts by the second of the clock accepts
// ten requests around a full second, and a provider that counts over any second refuses five
// of them. Name the provider's counter. If its documentation is silent, keep [SlidingLog],
// the strictest of those in common use.
type Algorithm uint8

// The counters in use among providers. The file of each has how it counts, its source and
// its cost.
const (
	SlidingLog     Algorithm = iota // at most Limit in any Window: the exact rolling window
	SlidingWindow                   // the same, counted in sub-buckets of Precision
	WeightedWindow                  // current window + previous window × its part still in view
	FixedWindow                     // windows aligned to the clock
	AnchoredWindow                  // a window opens with the first request, as a key with an expiry does
	TokenBucket                     // a bucket of Burst tokens, refilled at Limit per Window
	LeakyBucket                     // a funnel of Burst units, drained at Limit per Window
	GCRA                            // the same arithmetic, kept as a theoretical arrival time
	Concurrency                     // at most Limit at the same time
	Calendar                        // days, weeks or months of a time zone
)

// counters describe the algorithms.
var counters = [...]counter{
	SlidingLog:     slidingLogCounter,
	SlidingWindow:  slidingWindowCounter,
	WeightedWindow: weightedWindowCounter,
	FixedWindow:    fixedWindowCounter,
	AnchoredWindow: anchoredWindowCounter,
	TokenBucket:    tokenBucketCounter,
	LeakyBucket:    leakyBucketCounter,
	GCRA:           gcraCounter,
	Concurrency:    concurrencyCounter,
	Calendar:       calendarCounter,
}

// A counter describes an algorithm. Each stands in the file of its algorithm, beside the
// arithmetic.
type counter struct {
	name string

	// newRule returns the rule of a tier.
	newRule func(Tier, site) rule

	// rate returns how many units a microsecond a tier admits in the long run, if every unit is
	// in flight for the guard. The window and the guard are in microseconds. If nil, the
	// algorithm has no rate.
	rate func(limit, window, burst, guard float64) float64

	// What a tier may set. A tier has a Window unless its units are released, or it has a Period.
	burst, precision, phase, period bool

	// steady: what the tier admits only grows with time, until more is charged.
	steady bool

	// aligned: the windows follow the wall clock.
	aligned bool

	// reopens: units leave all at once, when a window ends.
	reopens bool

	// released: a unit counts until it is released, not for a window after it has landed.
	released bool
}

// String returns the name that ParseAlgorithm takes, such as "token_bucket".
func (a Algorithm) String() string {
	if a.isKnown() {
		return counters[a].name
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm with that name.
func ParseAlgorithm(name string) (Algorithm, error) {
	for i, c := range counters {
		if c.name == name {
			return Algorithm(i), nil
		}
	}
	return 0, fmt.Errorf("algorithm %q is not known: use one of %s", name, namesOf(func(counter) bool { return true }))
}

func (a Algorithm) isKnown() bool { return int(a) < len(counters) }

// namesOf lists the algorithms with a trait: "token_bucket, leaky_bucket, gcra".
func namesOf(has func(counter) bool) string {
	var names []string
	for _, c := range counters {
		if has(c) {
			names = append(names, c.name)
		}
	}
	return strings.Join(names, ", ")
}
