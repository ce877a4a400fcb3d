//go:build unix

// Package cpu measures processor time.
package cpu

import (
	"syscall"
	"time"
)

// Used returns the processor time that this process has used so far.
func Used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
