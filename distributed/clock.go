package distributed

import (
	"sync"
	"time"
)

// skew is how far clocks part at most, as a fraction of the time that passes.
const skew = 61e-6

// A clock maps the time of a server to that of this process. Each reply says what the
// server's clock showed between two instants of the process's; the bounds of the difference
// are the closest of all replies, and widen as clocks part. So an answer that took long tells
// a time to come as closely as a quick one.
type clock struct {
	mu             sync.Mutex    // guards all below
	asOf           time.Time     // of the bounds; zero while nothing is known
	least, longest time.Duration // of the process's clock less the server's
}

// set takes note that the server's clock showed so many µs between two instants. It returns
// by how much one of the clocks has surely been set since, forwards or back.
func (c *clock) set(wall int64, sent, got time.Time) (step time.Duration) {
	least, longest := sent.Sub(beginning)-microseconds(wall), got.Sub(beginning)-microseconds(wall)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asOf.IsZero() {
		parted := time.Duration(float64(got.Sub(c.asOf)) * skew)
		a, b := max(least, c.least-parted), min(longest, c.longest+parted)
		if step = max(0, a-b); step == 0 {
			least, longest = a, b
		}
	}
	c.asOf, c.least, c.longest = got, least, longest
	return step
}

// when returns the bounds of the instant at which the server's clock shows so many µs, after
// a reply at an instant.
func (c *clock) when(wall int64, got time.Time) (from, to time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := microseconds(wall) - got.Sub(beginning)
	return got.Add(at + c.least), got.Add(at + c.longest)
}

// width returns how well the server's clock is known now; zero if it is not at all.
func (c *clock) width() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asOf.IsZero() {
		return 0
	}
	return c.longest - c.least + time.Duration(2*float64(time.Since(c.asOf))*skew)
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
