//go:build !unix

// Package cpu measures processor time.
package cpu

import "time"

// Used returns 0 on systems that are not Unix.
func Used() time.Duration { return 0 }
