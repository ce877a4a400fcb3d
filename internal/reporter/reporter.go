// Package reporter holds what receives the calls that a quota makes of a shared store.
package reporter

import (
	"time"

	"github.com/apithrottle/throttle/store"
)

// Calls reports the calls of a quota to a function. If nil, it reports nothing, and reads no clock.
type Calls func(store.Call)

// Made reports a call.
func (c Calls) Made(call store.Call) {
	if c != nil {
		c(call)
	}
}

// Begin returns when a call begins, or the zero time if nobody receives it.
func (c Calls) Begin() (began time.Time) {
	if c != nil {
		began = time.Now()
	}
	return began
}

// End reports a call that has begun. requests is the number of requests that it decides if it does not
// fail.
func (c Calls) End(began time.Time, requests int, err error) {
	if began.IsZero() {
		return
	}
	if err != nil {
		requests = 0
	}
	c.Made(store.Call{Duration: time.Since(began), Requests: requests, Err: err})
}
