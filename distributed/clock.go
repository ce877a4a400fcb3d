package distributed

import (
	"sync"
	"time"
)

// skew is how far clocks part at most, as a fraction of the time that passes: that is how fast
// a kernel lets one gain on another.
const skew = 500e-6

// A clock maps the time of a quota, as the script tells it, to that of this process. Each
// reply says what the quota's clock showed between two instants of the process's; the bounds
// of the difference are the closest of all replies, and widen as clocks part. So an answer that
// took long tells a time to come as closely as a quick one.
type clock struct {
	server *clock // what is known of TIME by other quotas: so a new one begins; nil if they may be on other servers

	mu         sync.Mutex // guards all below
	asOf       time.Time  // when the last reply came; zero while there was none
	ahead      int64      // of the server's clock, in µs: changes where that was set back
	generation int64      // of the state
	bound      bounds     // as of then
}

// Bounds are those of the process's clock less the quota's, after a reply.
type bounds struct{ least, most time.Duration }

// set takes note of what the clocks of the quota and of the server showed between two
// instants. It returns what is known then, and by how much one of the clocks has surely been
// set since, forwards or back.
func (c *clock) set(h header, sent, got time.Time) (b bounds, step time.Duration) {
	b = bounds{sent.Sub(beginning) - microseconds(h.now), got.Sub(beginning) - microseconds(h.now)}
	ahead := h.now - h.wall
	begin := b
	if c.server != nil {
		begin, _ = c.server.set(header{now: h.wall, wall: h.wall}, sent, got)
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

// forget forgets what is known.
func (c *clock) forget() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asOf = time.Time{}
	}
}

// parted is how far the clocks may have parted since the last reply. It needs mu.
func (c *clock) parted(now time.Time) time.Duration {
	return time.Duration(float64(max(0, now.Sub(c.asOf))) * skew)
}

// when returns the bounds of the instant at which the quota's clock shows so many µs, after a
// reply that came at an instant. They allow for what the clocks part until then, but for no
// more than leaves a caller time to wake up.
func (b bounds) when(at int64, got time.Time) (from, to time.Time) {
	left := microseconds(at) - got.Sub(beginning)
	parted := min(wakeUp/4, time.Duration(float64(max(0, left+b.most))*skew))
	return got.Add(left + b.least - parted), got.Add(left + b.most + parted)
}

// shows returns what the quota's clock shows at an instant at the earliest, zero if that is not
// known.
func (c *clock) shows(at time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() {
		return 0
	}
	return micros(at.Sub(beginning) - c.bound.most - c.parted(at))
}

// width returns how well the quota's clock is known after a trip that takes so long.
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

// A delay is how long something takes: usually, and at worst.
type delay struct {
	mu    sync.Mutex // guards all below
	usual time.Duration
	worst time.Duration // of late: what is shorter makes it less
	last  time.Time     // when there was one
}

// memory is for how long the worst counts when nothing follows.
const memory = 2 * time.Second

// add takes note of one more. It is quick to believe a shorter one: the first trip also
// made the connection.
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

// recent returns the worst of late. It needs mu.
func (d *delay) recent() time.Duration {
	if time.Since(d.last) > memory {
		return 0
	}
	return d.worst
}

// get returns how long it takes, zero if that is not known, and the longest that it has
// taken of late.
func (d *delay) get() (usual, worst time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usual, d.recent()
}
