// Package timing keeps what a store knows of the delays and clocks between a process and the server of a
// fleet. From these follow how long reservations are valid, how early callers ask for them, and when a
// reserved time comes by this process's clock. Package distributed uses it, and so may any store whose
// processes share a server.
package timing

import (
	"cmp"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

const (
	// Unguarded is the shortest validity of a reservation with NoGuard.
	Unguarded = 50 * time.Millisecond
	// MostApart is how far behind all others a request is reserved at least. The script of package
	// distributed has the same.
	MostApart = 90 * time.Second
)

const (
	firstTrip    = 50 * time.Millisecond  // the assumed duration of the first trip
	leastTries   = 3                      // late answers in a row before the server is too far away
	takesTurn    = 50 * time.Microsecond  // the server's time for a call, while others wait behind it
	wakeUp       = 10 * time.Millisecond  // the shortest assumed delay of a process that wakes up at its time
	leastWake    = time.Millisecond       // the same with a returned reservation that is valid for a shorter time
	latestWake   = time.Second            // a longer delay means that the process was stopped
	mostSpare    = 250 * time.Millisecond // see spareOf
	yieldAhead   = 10 * time.Millisecond  // how far ahead a request that yields is reserved, beyond two round trips
	askBeforeEnd = 125 * time.Millisecond // how long before the end of a pause callers ask again at most; less than SOON of distributed's script
)

// A Link is what the quotas of a server know of the way to it. The zero Link knows nothing.
type Link struct {
	// Trip is the delay of a round trip to the server.
	Trip Delay
	// Wake is the delay of a caller, from its start time until it runs.
	Wake Delay
}

// A Timing is what a quota knows of the delays between it, its server and its callers. It is safe for
// concurrent use while its fields don't change.
type Timing struct {
	// Link is shared by the quotas of a server.
	Link *Link
	// Clock converts the time of the quota. A quota that replaces another one under a new plan takes
	// over its Clock.
	Clock *Clock
	// Bound is the longest validity of a reservation: a second, or half of the shortest window if that
	// is more.
	Bound time.Duration

	spare time.Duration // the validity that a reservation may have at no noticeable cost
	least time.Duration // the shortest time for which a guarded request counts
}

// New returns the Timing of a quota with a plan.
func New(l *Link, c *Clock, p *algorithms.Plan) Timing {
	shortest := shortestWindow(p)
	return Timing{Link: l, Clock: c, Bound: max(time.Second, shortest/2), spare: spareOf(shortest), least: microseconds(1 << p.Resolution())}
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
type Terms struct {
	// Good is how long a reservation is valid after its start.
	Good time.Duration
	// Reply is how long the reply takes at most, and hold beyond it. A reservation for now is valid for
	// that much longer.
	Reply time.Duration
	// Guard is Good plus the time in flight to the provider. It is zero with NoGuard.
	Guard time.Duration
}

// An Answer is a reply of the server to a trip, and what it takes to convert its instants to this
// process's clock.
type Answer struct {
	Reading
	Bounds
	Terms
}

// Wait returns how long after the answer the quota's clock certainly shows at, in µs.
func (a *Answer) Wait(at int64) time.Duration {
	_, to := a.When(at, a.Got)
	return max(0, to.Sub(a.Got))
}

// Reservation returns the reservation of a request whose start time is at by the quota's clock, in µs. It
// is the nth for that instant, from 1. If it was returned by another request, it is valid for less than
// the terms by shorter. The caller sets Clock, Cost and State.
func (t *Timing) Reservation(a *Answer, at, nth int64, shorter time.Duration) store.Reservation {
	from, to := a.When(at, a.Got)
	r := store.Reservation{
		Told: a.Got, Start: to, End: from.Add(a.Good - shorter), Again: to.Add(-t.Lead(max(0, to.Sub(a.Got)), nth)),
		At: at, Guard: a.Guard - shorter,
	}
	if early := a.Now + a.Reply.Microseconds() - at; early > 0 { // it may start before the reply is in
		r.End = r.End.Add(microseconds(early))
		if r.Guard > 0 {
			r.Guard += microseconds(early)
		}
	}
	return r
}

// Terms returns the terms of a trip that is about to be sent, with a number of calls in flight. way is
// the time in flight to the provider, and hold how long after the reply the requests are sent. A
// request is sent at the latest when its start time has certainly come, given the uncertainty about
// the clock, or when the reply is in, given recent replies, and the caller has woken up. It counts
// until then and for its time in flight. The trip takes over returned reservations that are valid for
// less by slack.
func (t *Timing) Terms(way, hold time.Duration, calls int) (of Terms, slack time.Duration) {
	usual, worst := t.Link.Trip.Get()
	_, late := t.Link.Wake.Get()
	takes := cmp.Or(max(usual, worst), firstTrip) + time.Duration(calls)*takesTurn
	width := t.Clock.Width(takes)
	of.Good = min(t.Bound, roundUp(width+max(wakeUp, late, t.spare)))
	of.Reply = min(t.Bound-of.Good, roundUp(takes-width+hold))
	if way == 0 {
		of.Good = max(of.Good, Unguarded)
		return of, 0
	}
	of.Guard = max(way+of.Good, t.least)
	return of, max(0, of.Good-width-max(leastWake, late))
}

// roundUp rounds up to one of few durations, so that returned reservations land with others.
func roundUp(d time.Duration) time.Duration {
	step := time.Duration(1) << max(22, bits.Len64(uint64(d))-4) // 4 ms at least
	return (d + step - 1) / step * step
}

// UsualTrip returns the usual duration of a round trip to the server, zero before the first.
func (t *Timing) UsualTrip() time.Duration {
	usual, _ := t.Link.Trip.Get()
	return usual
}

// Soon returns how far ahead a request that yields is reserved. It is short enough not to delay
// others, and long enough to ask for the next one in time.
func (t *Timing) Soon() time.Duration { return 2*t.UsualTrip() + yieldAhead }

// Lead returns how long before its start time a process asks for the next reservations. It leaves
// time for the answer. Because the first process to ask gets the earliest times, processes ask in
// the order of their own times: a longer wait asks earlier, and so does a lower place nth among the
// waits for one instant.
func (t *Timing) Lead(waited time.Duration, nth int64) time.Duration {
	answer := max(2*t.UsualTrip()+time.Millisecond, min(waited/16, 10*time.Millisecond))
	turn := min(waited/64, time.Second)
	return answer + turn + turn/8*time.Duration(max(0, 8-nth))
}

// BeforeEnd returns after which part of the wait until the end of a pause a caller asks again.
func (t *Timing) BeforeEnd(wait time.Duration) time.Duration {
	return wait - min(t.Lead(wait, 8), askBeforeEnd, wait/2)
}

// AddWake records how late a caller woke up that returns a reservation now, if the reservation has expired
// since its answer came.
func (t *Timing) AddWake(r *store.Reservation, now time.Time) {
	if r.Expired(now) && !r.Expired(r.Told) {
		t.Link.Wake.Add(min(t.Bound, latestWake, now.Sub(r.Start), now.Sub(r.Told)))
	}
}

// RefundableUntil returns until when a request is refunded. A caller may have sent it and report otherwise: then
// it is until its guard has passed. A reservation that no caller has used may be returned later, because
// callers wake up late.
func RefundableUntil(r *store.Reservation, unused bool) time.Time {
	if unused || r.Guard == 0 {
		return r.End.Add(r.Guard + latestWake)
	}
	return r.Start.Add(r.Guard)
}

// UntilReserved returns after which part of a wait a request is near enough to be reserved. It is random,
// so that processes do not ask at once.
func UntilReserved(wait time.Duration) time.Duration {
	if wait > MostApart {
		wait -= MostApart/2 + rand.N(MostApart/2)
	}
	return wait
}

// IsLate reports whether a wait is too long for a request. A request that soon yields no more asks
// again then.
func IsLate(r store.Request, wait time.Duration) bool {
	return wait > r.MaxWait && (r.YieldFor == 0 || r.YieldFor > r.MaxWait)
}

// RetryAfter returns a random delay before the next try after an answer that came too late, with a
// trip that took some time. Its mean grows with the tries, and it is no longer than most. After several
// tries it returns false if answers usually take too long to be usable.
func (t *Timing) RetryAfter(took, most time.Duration, tries int) (delay time.Duration, ok bool) {
	if tries >= leastTries && t.UsualTrip()+wakeUp > t.Bound {
		return 0, false
	}
	return rand.N(min(t.Bound, most, took<<min(tries, 10))), true
}
