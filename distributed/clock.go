package distributed

import (
	"sync"
	"time"
)

// skew is the largest drift between two clocks, as a fraction of the time that passes. It is the
// rate at which a kernel slews a clock at most.
const skew = 500e-6

// A clock converts the time of a quota, as in the script's replies, to the time of this process.
// Each reply contains a reading of the quota's clock that was taken between two instants of the
// process's clock. The bounds of the difference are the tightest of all replies, and widen as
// clocks drift. So a slow reply locates a future time as precisely as a quick one.
type clock struct {
	// server is the clock of TIME, shared by the quotas of a server. A new quota begins with its
	// bounds. If nil, quotas may be on several servers.
	server *clock

	mu         sync.Mutex // guards all below
	asOf       time.Time  // when the last reply came; zero before the first
	ahead      int64      // of the quota's clock before the server's, in µs; it changes when the server's clock is set back
	generation int64      // of the state
	bound      bounds     // at asOf
}

// Bounds limit the difference between the process's clock and the quota's, after a reply.
type bounds struct{ least, most time.Duration }

// update records what the clocks of the quota and of the server showed between two instants. It
// returns the new bounds, and by how much one of the clocks was certainly set since the last reply,
// forward or back.
func (c *clock) update(h header, sent, got time.Time) (b bounds, step time.Duration) {
	b = bounds{sent.Sub(beginning) - microseconds(h.now), got.Sub(beginning) - microseconds(h.now)}
	ahead := h.now - h.wall
	begin := b
	if c.server != nil {
		begin, _ = c.server.update(header{now: h.wall, wall: h.wall}, sent, got)
		begin.least -= microseconds(ahead)
		begin.most -= microseconds(ahead)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() || c.generation != h.generation {
		b = begin
	} else {
		parted := c.parted(got)
		least, most := max(b.least, c.bound.least-parted), min(b.most, c.bound.most+parted)
		step = max(0, least-most)
		if c.ahead != ahead {
			step = max(step, microseconds(ahead-c.ahead).Abs())
			c.server.forget()
		} else if step == 0 {
			b = bounds{least, most}
		}
	}
	c.asOf, c.generation, c.ahead, c.bound = got, h.generation, ahead, b
	return b, step
}

// forget drops the bounds.
func (c *clock) forget() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asOf = time.Time{}
	}
}

// parted returns the largest possible drift since the last reply. It needs mu.
func (c *clock) parted(now time.Time) time.Duration {
	return time.Duration(float64(max(0, now.Sub(c.asOf))) * skew)
}

// when returns the bounds of the instant at which the quota's clock shows at, in µs, after a reply
// that came at got. They include the drift until then, up to a quarter of wakeUp, which leaves a
// caller time to wake up.
func (b bounds) when(at int64, got time.Time) (from, to time.Time) {
	left := microseconds(at) - got.Sub(beginning)
	parted := min(wakeUp/4, time.Duration(float64(max(0, left+b.most))*skew))
	return got.Add(left + b.least - parted), got.Add(left + b.most + parted)
}

// shows returns the earliest time that the quota's clock may show at an instant, zero if there was
// no reply yet.
func (c *clock) shows(at time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() {
		return 0
	}
	return micros(at.Sub(beginning) - c.bound.most - c.parted(at))
}

// width returns the uncertainty about the quota's clock after a trip of some duration.
func (c *clock) width(trip time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.asOf.IsZero():
	case c.server != nil:
		return c.server.width(trip)
	default:
		return trip
	}
	return min(trip, c.bound.most-c.bound.least+2*c.parted(time.Now()))
}

// A delay estimates how long an action usually takes, and the longest recent duration.
type delay struct {
	mu    sync.Mutex // guards all below
	usual time.Duration
	worst time.Duration // recent; shorter samples lower it
	last  time.Time     // of the last sample
}

// memory is how long the worst sample counts without another sample.
const memory = 2 * time.Second

// add adds a sample. A shorter sample lowers usual quickly, because the first trip includes the
// time to connect.
func (d *delay) add(took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.usual == 0:
		d.usual = took
	case took < d.usual:
		d.usual = (d.usual + took) / 2
	default:
		d.usual = (7*d.usual + took) / 8
	}
	d.worst, d.last = max(took, (d.recent()+took)/2), time.Now()
}

// recent returns the longest recent sample. It needs mu.
func (d *delay) recent() time.Duration {
	if time.Since(d.last) > memory {
		return 0
	}
	return d.worst
}

// get returns the usual duration, zero before the first sample, and the longest recent one.
func (d *delay) get() (usual, worst time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usual, d.recent()
}
