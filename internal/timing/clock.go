package timing

import (
	"sync"
	"time"
)

// skew is the largest drift between two clocks, as a fraction of the time that passes. It is the
// rate at which a kernel slews a clock at most.
const skew = 500e-6

// A Reading is what a quota's clock and the server's clock showed between two instants of this process.
type Reading struct {
	// Now is what the quota's clock showed, in µs, and Wall what the server's clock showed. They differ
	// once the server's clock was set back.
	Now, Wall int64
	// Generation identifies the state of the quota. Each state may begin a clock of its own.
	Generation int64
	// Sent is when this process asked, and Got when the reply came.
	Sent, Got time.Time
}

// A Clock converts the time of a quota, as in the store's replies, to the time of this process.
// Each reply contains a reading of the quota's clock that was taken between two instants of the
// process's clock. The bounds of the difference are the tightest of all replies, and widen as
// clocks drift. So a slow reply locates a future time as precisely as a quick one. The zero Clock
// has seen no reply. A Clock is safe for concurrent use.
type Clock struct {
	// Server is the server's clock, shared by the quotas of a server. A new quota begins with its
	// bounds. If nil, quotas may be on several servers.
	Server *Clock

	mu         sync.Mutex // guards all below
	asOf       time.Time  // when the last reply came; zero before the first
	ahead      int64      // of the quota's clock before the server's, in µs; it changes when the server's clock is set back
	generation int64      // of the state
	bound      Bounds     // at asOf
}

// beginning is the Unix epoch on the process's monotonic clock, before any instant of a
// testing/synctest bubble.
var beginning = func(now time.Time) time.Time { return now.Add(-time.Duration(now.UnixNano())) }(time.Now())

// Monotonic returns an instant of this process by its monotonic clock, in µs since the Unix epoch.
func Monotonic(at time.Time) int64 { return at.Sub(beginning).Microseconds() }

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Bounds limit the difference between the process's clock and the quota's, after a reply.
type Bounds struct{ least, most time.Duration }

// Update records a reading. It returns the new bounds, and by how much one of the clocks was
// certainly set since the last reply, forward or back.
func (c *Clock) Update(r Reading) (b Bounds, step time.Duration) {
	b = Bounds{r.Sent.Sub(beginning) - microseconds(r.Now), r.Got.Sub(beginning) - microseconds(r.Now)}
	ahead := r.Now - r.Wall
	begin := b
	if c.Server != nil {
		begin, _ = c.Server.Update(Reading{Now: r.Wall, Wall: r.Wall, Sent: r.Sent, Got: r.Got})
		begin.least -= microseconds(ahead)
		begin.most -= microseconds(ahead)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() || c.generation != r.Generation {
		b = begin
	} else {
		parted := c.parted(r.Got)
		least, most := max(b.least, c.bound.least-parted), min(b.most, c.bound.most+parted)
		step = max(0, least-most)
		if c.ahead != ahead {
			step = max(step, microseconds(ahead-c.ahead).Abs())
			c.Server.forget()
		} else if step == 0 {
			b = Bounds{least, most}
		}
	}
	c.asOf, c.generation, c.ahead, c.bound = r.Got, r.Generation, ahead, b
	return b, step
}

// forget drops the bounds.
func (c *Clock) forget() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asOf = time.Time{}
	}
}

// parted returns the largest possible drift since the last reply. It needs mu.
func (c *Clock) parted(now time.Time) time.Duration {
	return time.Duration(float64(max(0, now.Sub(c.asOf))) * skew)
}

// Parting returns by how much When widens its bounds for an instant that is a wait away, at most.
func Parting(wait time.Duration) time.Duration {
	return 2 * min(wakeUp/4, time.Duration(float64(max(0, wait))*skew))
}

// When returns the bounds of the instant at which the quota's clock shows at, in µs, after a reply
// that came at got. They include the drift until then, up to a quarter of the time that a caller is given to
// wake up.
func (b Bounds) When(at int64, got time.Time) (from, to time.Time) {
	left := microseconds(at) - got.Sub(beginning)
	parted := Parting(left+b.most) / 2
	return got.Add(left + b.least - parted), got.Add(left + b.most + parted)
}

// Shows returns the earliest time, in µs, that the quota's clock may show at an instant, zero if
// there was no reply yet.
func (c *Clock) Shows(at time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() {
		return 0
	}
	return (at.Sub(beginning) - c.bound.most - c.parted(at)).Microseconds()
}

// Width returns the uncertainty about the quota's clock after a trip of some duration.
func (c *Clock) Width(trip time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.asOf.IsZero():
	case c.Server != nil:
		return c.Server.Width(trip)
	default:
		return trip
	}
	return min(trip, c.bound.most-c.bound.least+2*c.parted(time.Now()))
}
