package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// StartWithClock starts a server whose wall clock can be stepped, by any number of
// steps forwards or back. Its monotonic clock goes on as ever, as on a machine whose
// clock is set. It takes libfaketime, as in Debian's package faketime: without it
// the test is skipped, or fails if THROTTLE_REQUIRE_FAKETIME is 1.
func StartWithClock(t testing.TB, args ...string) (s *Server, step func(time.Duration)) {
	t.Helper()
	binary(t)
	offset := filepath.Join(t.TempDir(), "offset")
	set := func(d time.Duration) {
		t.Helper()
		// The server reads it all the time, and must not see half of it.
		if err := os.WriteFile(offset+".new", fmt.Appendf(nil, "%+f\n", d.Seconds()), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(offset+".new", offset); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	s = start(t, []string{
		// Debian's server allocates with jemalloc, which asks for the time as it
		// starts, when libfaketime can't answer before it has allocated. The
		// malloc of libc comes first here and asks nothing.
		"LD_PRELOAD=" + libfaketime(t) + ":libc.so.6",
		"FAKETIME_TIMESTAMP_FILE=" + offset,
		"FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", // the same, as later versions call it
	}, dataArgs(args)...)
	var total time.Duration
	return s, func(d time.Duration) {
		t.Helper()
		total += d
		set(total)
	}
}

func libfaketime(t testing.TB) string {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime", "/usr/lib*/faketime", "/usr/local/lib/faketime"} {
		if found, _ := filepath.Glob(pattern + "/libfaketime.so.1"); len(found) > 0 {
			return found[0]
		}
	}
	absent(t, "THROTTLE_REQUIRE_FAKETIME", "no libfaketime to step a server's clock with")
	return ""
}
