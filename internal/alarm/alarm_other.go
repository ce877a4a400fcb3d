//go:build !linux

package alarm

import "time"

// An Alarm does not exist where Go's timers are exact.
type Alarm struct{}

// Get returns nil: there is no Alarm.
func Get() *Alarm { return nil }

// Put does nothing.
func (*Alarm) Put() {}

// Start does nothing.
func (*Alarm) Start() {}

// Sleep returns at once.
func (*Alarm) Sleep(time.Duration) {}

// Stop does nothing.
func (*Alarm) Stop() {}
