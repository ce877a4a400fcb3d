package prompt

import (
	"hash/maphash"
	"math"
	"sync"

	"github.com/apithrottle/throttle/algorithms"
)

// A Learner estimates what a request costs from what earlier requests of its kind were charged. A
// kind is a hash of what decides about the cost, such as the model and the system prompt. It is safe
// for concurrent use.
type Learner struct {
	// First is the estimate while no answer is known.
	First int64

	mu    sync.Mutex // guards kinds
	kinds recent[*charged]
}

// A charged is the average of the latest charges of a kind, and their average distance from it. Both
// are moved by an eighth of each new difference, as TCP moves its estimate of round trips (RFC 6298):
// a lasting change is known after some tens of charges.
//
// Of requests that were sent together, those with short answers end first. So the estimate falls only
// as those in flight end: it is at least a second average, of the estimates after the latest charges.
// With k requests in flight, a charge moves the second average by 2/(k+2) of the difference: as far
// as the estimate if the request was alone, and by six sevenths while all of them end.
type charged struct {
	inFlight         int // requests that were sent and have not ended
	n                int // charges so far
	mean, difference float64
	estimates        float64 // the second average
}

const smoothing = 8

// add adds a charge. Before the first one the estimate was the given one.
func (c *charged) add(n, before int64) {
	x := float64(n)
	if c.n++; c.n == 1 {
		c.mean, c.difference, c.estimates = x, x/2, float64(before)
	} else {
		weight := 1 / float64(min(c.n, smoothing))
		c.difference += weight * (math.Abs(x-c.mean) - c.difference)
		c.mean += weight * (x - c.mean)
	}
	c.estimates += 2 / float64(c.inFlight+2) * (c.latest() - c.estimates)
}

// latest returns the average and one and a half average distances. That is as much as seven in eight
// charges if they are exponentially distributed, and twice the average. The sum of many estimates is
// then far above the sum of the charges.
func (c *charged) latest() float64 { return c.mean + 1.5*c.difference }

// estimate returns at most the largest cost of a request: a response may report any number.
func (c *charged) estimate() int64 {
	return int64(math.Ceil(min(max(c.latest(), c.estimates), algorithms.MaxLimit)))
}

// Estimate returns the estimate for a request of these kinds, each narrower than the one before. An
// estimate of few charges is at least the wider estimate, halved with each charge. While requests of
// a kind are sent and none is answered, they may take longer than those of the wider kind, so the
// estimate is at least the first one.
func (l *Learner) Estimate(kinds ...uint64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	estimate := l.First
	for _, kind := range kinds {
		switch c, sent := l.kinds.get(kind); {
		case !sent:
		case c.n == 0:
			estimate = max(estimate, l.First)
		default:
			estimate = max(c.estimate(), estimate>>min(c.n, 62))
		}
	}
	return estimate
}

// Begin notes that a request of these kinds is sent. The function that it returns notes that the request
// has ended and, if that is known, what it was charged.
func (l *Learner) Begin(kinds ...uint64) (end func(n int64, known bool)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, kind := range kinds {
		l.charged(kind).inFlight++
	}
	return func(n int64, known bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		before := l.First
		for _, kind := range kinds {
			c := l.charged(kind)
			c.inFlight = max(0, c.inFlight-1)
			if known {
				c.add(n, max(l.First, before))
				before = c.estimate()
			}
		}
	}
}

// charged returns what is known of a kind.
func (l *Learner) charged(kind uint64) *charged {
	c, ok := l.kinds.get(kind)
	if !ok {
		c = new(charged)
		l.kinds.put(kind, c)
	}
	return c
}

// A recent is a map of the values that were used last: at least maxRecent, and at most twice as many.
// Keys come from requests, so anyone may make up any number of them.
type recent[V any] struct{ young, old map[uint64]V }

const maxRecent = 1_000

// get returns a value.
func (r *recent[V]) get(key uint64) (v V, ok bool) {
	if v, ok = r.young[key]; ok {
		return v, true
	}
	if v, ok = r.old[key]; ok {
		r.put(key, v)
	}
	return v, ok
}

// put sets a value. It forgets the older values if there are too many.
func (r *recent[V]) put(key uint64, v V) {
	if _, known := r.young[key]; !known && (r.young == nil || len(r.young) == maxRecent) {
		r.young, r.old = make(map[uint64]V), r.young
	}
	r.young[key] = v
}

var seed = maphash.MakeSeed() // of the hashes of kinds and prompts, which nobody outside can predict

// Kind returns the hash of a list of texts.
func Kind(texts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, text := range texts {
		h.WriteString(text)
		h.WriteByte(0)
	}
	return h.Sum64()
}
