package redistest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

//go:embed preload/clock.c
var clockSource []byte

// StartWithClock starts a server whose wall clock can be stepped, by any number of
// steps forwards or back. Its monotonic clock goes on as ever, as on a machine whose
// clock is set. It takes Linux and a C compiler: without them the test is skipped, or
// fails if THROTTLE_REQUIRE_REDIS is 1.
func StartWithClock(t testing.TB, args ...string) (s *Server, step func(time.Duration)) {
	t.Helper()
	serverPath(t)
	library, offset := clockLibrary(t), filepath.Join(t.TempDir(), "offset")
	set := func(d time.Duration) {
		t.Helper()
		// The server reads it all the time, and must not see half of it.
		if err := os.WriteFile(offset+".new", binary.NativeEndian.AppendUint64(nil, uint64(d.Microseconds())), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(offset+".new", offset); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	s = start(t, []string{"LD_PRELOAD=" + library, "THROTTLE_CLOCK=" + offset}, dataArgs(args)...)
	var total time.Duration
	return s, func(d time.Duration) {
		t.Helper()
		total += d
		set(total)
		until(t, "the server has read its clock anew", func() bool { // Valkey 9 does not each time
			now, err := s.admin.Time(context.Background()).Result()
			return err == nil && (time.Until(now)-total).Abs() < 500*time.Millisecond
		})
	}
}

// clockLibrary compiles the library that steps the clock of a program.
func clockLibrary(t testing.TB) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		absent(t, "THROTTLE_REQUIRE_REDIS", "no C compiler on Linux to make a clock with that can be stepped")
	}
	source := filepath.Join(t.TempDir(), "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(filepath.Dir(source), "clock.so")
	if output, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("the clock can't be compiled: %v\n%s", err, output)
	}
	return library
}
