package pgtest

import (
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/servertest"
)

// StartWithClock starts a server whose wall clock the test can step forward and back, for all of its
// connections at once. Its monotonic clock is not affected, as on a machine whose clock is set. It
// requires a C compiler. Without one, the test is skipped, or fails if THROTTLE_REQUIRE_POSTGRES is 1.
func StartWithClock(t testing.TB, settings ...string) (s *Server, step func(time.Duration)) {
	t.Helper()
	binaries(t)
	dir, err := theHomeOf(t).mkdir(true) // programs may not be run from memory
	if err != nil {
		t.Fatal(err)
	}
	clock := servertest.NewClock(t, require, dir)
	s = start(t, clock.Env, settings)
	var total time.Duration
	return s, func(d time.Duration) {
		t.Helper()
		total += d
		clock.Set(total)
	}
}
