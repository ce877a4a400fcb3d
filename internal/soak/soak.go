// Package soak scales the tests: they are short in "make test" and "make race", and long in "make
// soak", which "make check" runs.
package soak

import (
	"hash/fnv"
	"os"
	"strconv"
	"testing"
)

// fewer divides what a test plays under -short, and with the race detector, which takes six times as
// long and finds nothing in another thousand seeds.
const fewer = 5

// Times returns n times the factor in $THROTTLE_SOAK. If that is not a number above 0, it returns n, or
// a fifth of it, but 1 at least, under -short or with the race detector.
func Times(n int) int {
	factor, err := strconv.Atoi(os.Getenv("THROTTLE_SOAK"))
	switch {
	case err == nil && factor > 0:
		return n * factor
	case testing.Short() || Race:
		return max(1, n/fewer)
	}
	return n
}

// NoRace skips a test with the race detector, with the reason. It is for tests of memory and of real
// time, and for long ones whose code other tests run. "make test" and "make soak" run them.
func NoRace(t testing.TB, why string) {
	t.Helper()
	if Race {
		t.Skip("left out by the race detector: " + why)
	}
}

// Long skips a test under -short, with the reason. It is for tests that need several servers, several
// processes or many seconds, and for models that another test plays in memory. "make check" runs them.
func Long(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short: " + why)
	}
}

// Slow skips a test under -short, with the reason, but not with the race detector. It is for storms and
// for whatever else takes more than a quarter of a second. "make race" and "make soak" run them.
func Slow(t testing.TB, why string) {
	t.Helper()
	if !Race {
		Long(t, why)
	}
}

// Sample skips a case of a table under -short, but for about one of n, which it chooses by the name of
// the test. "make check" runs all.
func Sample(t testing.TB, n uint32) {
	t.Helper()
	name := fnv.New32a()
	_, _ = name.Write([]byte(t.Name()))
	if testing.Short() && name.Sum32()%n != 0 {
		t.Skip("left out by -short: other cases of the table are played")
	}
}
