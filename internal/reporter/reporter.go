// Package reporter holds what receives the calls that a quota makes of a shared store.
package reporter

import (
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// Calls reports the calls of a quota. It is embedded in the quota, and makes that a store.Reporter. The
// zero value reports nothing, and reads no clock. It is safe for concurrent use.
type Calls struct {
	to atomic.Pointer[func(store.Call)] // nil if nobody receives the calls
}

// Report sets what receives the calls from now on. If nil, nobody does.
func (c *Calls) Report(to func(store.Call)) {
	if to == nil {
		c.to.Store(nil)
		return
	}
	c.to.Store(&to)
}

// Adopt reports to what receives the calls of another quota.
func (c *Calls) Adopt(from *Calls) { c.to.Store(from.to.Load()) }

// Made reports a call.
func (c *Calls) Made(call store.Call) {
	if to := c.to.Load(); to != nil {
		(*to)(call)
	}
}

// Begin returns when a call begins, or the zero time if nobody receives it.
func (c *Calls) Begin() (began time.Time) {
	if c.to.Load() != nil {
		began = time.Now()
	}
	return began
}

// End reports a call that has begun. requests is the number of requests that it decides if it does not
// fail.
func (c *Calls) End(began time.Time, requests int, err error) {
	if began.IsZero() {
		return
	}
	if err != nil {
		requests = 0
	}
	c.Made(store.Call{Duration: time.Since(began), Requests: requests, Err: err})
}
