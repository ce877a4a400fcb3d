package observe

import (
	"slices"
	"time"
)

// ringSeconds is how many seconds a ring remembers.
const ringSeconds = 300

// A ring counts what happened in each of the last 300 seconds.
type ring struct {
	last    int64 // the second of the newest bucket; zero if there is none
	buckets [ringSeconds]bucket
}

// A bucket counts what happened in one second.
type bucket struct {
	second    int64 // in Unix time; zero if nothing happened
	requests  [results]uint32
	responses [kinds]uint32
	waits     histogram
	calls     [outcomes]uint32
	// callTime is the time of the calls that were made, in seconds, and callMax the longest of them.
	callTime, callMax float64
}

// at returns the bucket of a second. A second that the ring no longer has counts as its oldest.
func (r *ring) at(second int64) *bucket {
	r.last = max(r.last, second)
	second = max(second, r.last-ringSeconds+1)
	b := &r.buckets[second%ringSeconds]
	if b.second != second {
		*b = bucket{second: second}
	}
	return b
}

// since returns the buckets in which something happened, the oldest first, without those that are too
// old at a time.
func (r *ring) since(now int64) (buckets []*bucket) {
	for second := max(1, now-ringSeconds+1); second <= max(now, r.last); second++ {
		if b := &r.buckets[second%ringSeconds]; b.second == second {
			buckets = append(buckets, b)
		}
	}
	return buckets
}

// A recent counts the requests of each of the last 300 seconds.
type recent [ringSeconds]struct {
	second int64
	n      uint32
}

func (r *recent) add(second int64) {
	b := &r[second%ringSeconds]
	if b.second < second {
		b.second, b.n = second, 0
	}
	b.n++
}

// since returns how many requests are not too old at a time.
func (r *recent) since(now int64) (n uint64) {
	for _, b := range r {
		if b.second > now-ringSeconds {
			n += uint64(b.n)
		}
	}
	return n
}

// waited counts the wait of a request in the bucket and in a histogram.
func (b *bucket) waited(h *histogram, wait time.Duration) {
	seconds := max(0, wait).Seconds()
	h.add(waitBounds, seconds)
	b.waits.add(waitBounds, seconds)
}

// The upper bounds of the buckets of histograms. Waits and calls are in seconds. An estimate is compared with the
// actual cost, as actual / estimate.
var (
	waitBounds     = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600}
	callBounds     = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}
	estimateBounds = []float64{0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10}
)

// A histogram counts values by upper bounds. The count after those of all bounds is of greater values.
type histogram struct {
	counts   [18]uint64
	sum, max float64
}

func (h *histogram) add(bounds []float64, value float64) {
	i, _ := slices.BinarySearch(bounds, value)
	h.counts[i]++
	h.sum += value
	h.max = max(h.max, value)
}

// merge adds the values of another histogram.
func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.sum += o.sum
	h.max = max(h.max, o.max)
}
