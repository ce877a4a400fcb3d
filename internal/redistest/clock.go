package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/servertest"
)

// StartWithClock starts a server whose wall clock the test can step forward and back. Its monotonic
// clock is not affected, as on a machine whose clock is set. It requires Linux and a C compiler.
// Without them the test is skipped, or fails if THROTTLE_REQUIRE_REDIS is 1.
func StartWithClock(t testing.TB, args ...string) (s *Server, step func(time.Duration)) {
	t.Helper()
	serverPath(t)
	clock := servertest.NewClock(t, require, t.TempDir())
	s = start(t, clock.Env, dataArgs(args)...)
	var total time.Duration
	return s, func(d time.Duration) {
		t.Helper()
		total += d
		clock.Set(total)
		until(t, "the server has read the new time", func() bool { // Valkey 9 caches the time
			now, err := s.admin.Time(context.Background()).Result()
			return err == nil && (time.Until(now)-total).Abs() < 500*time.Millisecond
		})
	}
}
