package timing

import (
	"sync"
	"time"
)

// A Delay estimates how long an action usually takes, and the longest recent duration. It is safe for
// concurrent use.
type Delay struct {
	mu    sync.Mutex // guards all below
	usual time.Duration
	worst time.Duration // recent; shorter samples lower it
	last  time.Time     // of the last sample
}

// memory is how long the worst sample counts without another sample.
const memory = 2 * time.Second

// Add adds a sample. A shorter sample lowers usual quickly, because the first trip includes the
// time to connect.
func (d *Delay) Add(took time.Duration) {
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
func (d *Delay) recent() time.Duration {
	if time.Since(d.last) > memory {
		return 0
	}
	return d.worst
}

// Get returns the usual duration, zero before the first sample, and the longest recent one.
func (d *Delay) Get() (usual, worst time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usual, d.recent()
}
