package distributed

import (
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

const (
	leastCalls   = 4                      // how many calls may always share a round trip
	mostCalls    = 64                     // how many may if a trip takes long
	firstTrip    = 50 * time.Millisecond  // the assumed duration of the first trip
	leastTries   = 3                      // late answers in a row before Redis is too far away
	takesTurn    = 50 * time.Microsecond  // the server's time for a call, while others wait behind it
	unguarded    = 50 * time.Millisecond  // the shortest validity of a reservation with NoGuard
	wakeUp       = 10 * time.Millisecond  // the shortest assumed delay of a process that wakes up at its time
	leastWake    = time.Millisecond       // the same with a returned reservation that is valid for a shorter time
	mostSpare    = 250 * time.Millisecond // see spareOf
	latestWake   = time.Second            // a longer delay means that the process was stopped
	yieldAhead   = 10 * time.Millisecond  // how far ahead a request that yields is reserved, beyond two round trips
	askBeforeEnd = 125 * time.Millisecond // how long before the end of a pause callers ask again at most; less than the script's SOON
	mostApart    = 90 * time.Second       // how far behind all others a request is reserved at least; the script's MOST_APART
)

// Timing is what a quota knows of the delays between it, its server and its callers. From these follow
// how long reservations are valid and how early callers ask for them.
type timing struct {
	node  *node         // measures round trips, and how late callers wake up
	clock *clock        // shared with the successor
	spare time.Duration // the validity that a reservation may have at no noticeable cost
	bound time.Duration // the longest validity: a second, or half of the shortest window if that is more
	least time.Duration // the shortest time for which a guarded request counts
}

func newTiming(n *node, c *clock, p *algorithms.Plan) timing {
	shortest := shortestWindow(p)
	return timing{node: n, clock: c, spare: spareOf(shortest), bound: max(time.Second, shortest/2), least: microseconds(1 << p.Resolution())}
}

// shortestWindow returns the shortest window of a plan's tiers, zero if no tier has a window.
func shortestWindow(p *algorithms.Plan) (shortest time.Duration) {
	for _, t := range p.Tiers() {
		if t.Window > 0 && (shortest == 0 || t.Window < shortest) {
			shortest = t.Window
		}
	}
	return shortest
}

// spareOf returns how long a reservation may be valid at no noticeable cost: 1/500 of the shortest
// window up to a quarter of a second, and 1/14400 of it up to two seconds.
func spareOf(shortest time.Duration) time.Duration {
	return max(min(shortest/500, mostSpare), min(shortest/14400, 8*mostSpare))
}

// Terms are how long the reservations of a trip are valid and count.
type terms struct {
	// good is how long a reservation is valid after its start.
	good time.Duration
	// reply is how long the reply takes at most, and hold beyond it. A reservation for now is valid for
	// that much longer.
	reply time.Duration
	// guard is good plus the time in flight to the provider. It is zero with NoGuard.
	guard time.Duration
}

// terms returns the terms of a trip that is about to be sent, with a number of calls in flight. way is
// the time in flight to the provider, and hold how long after the reply the requests are sent. A
// request is sent at the latest when its start time has certainly come, given the uncertainty about
// the clock, or when the reply is in, given recent replies, and the caller has woken up. It counts
// until then and for its time in flight. The trip takes over returned reservations that are valid for
// less by slack.
func (t *timing) terms(way, hold time.Duration, calls int) (of terms, slack time.Duration) {
	usual, worst := t.node.trip.get()
	_, late := t.node.wake.get()
	takes := cmp.Or(max(usual, worst), firstTrip) + time.Duration(calls)*takesTurn
	width := t.clock.width(takes)
	of.good = min(t.bound, roundUp(width+max(wakeUp, late, t.spare)))
	of.reply = min(t.bound-of.good, roundUp(takes-width+hold))
	if way == 0 {
		of.good = max(of.good, unguarded)
		return of, 0
	}
	of.guard = max(way+of.good, t.least)
	return of, max(0, of.good-width-max(leastWake, late))
}

// roundUp rounds up to one of few durations, so that returned reservations land with others.
func roundUp(d time.Duration) time.Duration {
	step := time.Duration(1) << max(22, bits.Len64(uint64(d))-4) // 4 ms at least
	return (d + step - 1) / step * step
}

// usualTrip returns the usual duration of a round trip to Redis.
func (t *timing) usualTrip() time.Duration {
	usual, _ := t.node.trip.get()
	return usual
}

// callsATrip returns how many calls may share a round trip without making it much longer.
func (t *timing) callsATrip() int {
	return int(min(mostCalls, max(leastCalls, t.usualTrip()/time.Millisecond)))
}

// soon returns how far ahead a request that yields is reserved. It is short enough not to delay
// others, and long enough to ask for the next one in time.
func (t *timing) soon() time.Duration { return 2*t.usualTrip() + yieldAhead }

// lead returns how long before its start time a process asks for the next reservations. It leaves
// time for the answer. Because the first process to ask gets the earliest times, processes ask in
// the order of their own times: a longer wait asks earlier, and so does a lower place nth among the
// waits for one instant.
func (t *timing) lead(waited time.Duration, nth int64) time.Duration {
	answer := max(2*t.usualTrip()+time.Millisecond, min(waited/16, 10*time.Millisecond))
	turn := min(waited/64, time.Second)
	return answer + turn + turn/8*time.Duration(max(0, 8-nth))
}

// beforeEnd returns after which part of the wait until the end of a pause a caller asks again.
func (t *timing) beforeEnd(wait time.Duration) time.Duration {
	return wait - min(t.lead(wait, 8), askBeforeEnd, wait/2)
}

// untilReserved returns after which part of a wait a request is near enough to be reserved. It is random,
// so that processes do not ask at once.
func untilReserved(wait time.Duration) time.Duration {
	if wait > mostApart {
		wait -= mostApart/2 + rand.N(mostApart/2)
	}
	return wait
}

// isLate reports whether a wait is too long for a request. A request that soon yields no more asks
// again then.
func isLate(r store.Request, wait time.Duration) bool {
	return wait > r.MaxWait && (r.YieldFor == 0 || r.YieldFor > r.MaxWait)
}

// retryAfter returns a random delay before the next try after an answer that came too late. Its mean
// grows with the tries. After several tries it returns an error if answers usually take too long to be
// usable.
func (t *timing) retryAfter(key string, late *trip, tries int) (time.Duration, error) {
	took := t.usualTrip()
	t.node.journal.report(redisLate, "key", key, "took", took.Round(time.Millisecond))
	if tries >= leastTries && took+wakeUp > t.bound {
		return 0, fmt.Errorf("distributed: key %q: Redis usually answers after %v, and a reservation under this policy is valid for %v at most: use a Redis that is nearer, or longer windows",
			key, took.Round(time.Millisecond), t.bound)
	}
	return rand.N(min(t.bound, t.node.timeout, late.got.Sub(late.sent)<<min(tries, 10))), nil
}
