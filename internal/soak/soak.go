// Package soak scales the random tests, which are short in "make test" and long in "make soak".
package soak

import (
	"os"
	"strconv"
)

// Times returns n times the factor in $THROTTLE_SOAK, or n if that is not a number above 1.
func Times(n int) int {
	factor, err := strconv.Atoi(os.Getenv("THROTTLE_SOAK"))
	if err != nil || factor < 1 {
		return n
	}
	return n * factor
}
