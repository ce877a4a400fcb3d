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

// StartWithClock starts a server whose wall clock the test can step forward and back. Its monotonic
// clock is not affected, as on a machine whose clock is set. It requires Linux and a C compiler.
// Without them the test is skipped, or fails if THROTTLE_REQUIRE_REDIS is 1.
func StartWithClock(t testing.TB, args ...string) (s *Server, step func(time.Duration)) {
	t.Helper()
	serverPath(t)
	library, offset := clockLibrary(t), filepath.Join(t.TempDir(), "offset")
	set := func(d time.Duration) {
		t.Helper()
		// The server reads the file all the time, and must not read a part of it.
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
		until(t, "the server has read the new time", func() bool { // Valkey 9 caches the time
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
		skipOrFail(t, "THROTTLE_REQUIRE_REDIS", "a server with a stepped clock needs Linux and a C compiler")
	}
	source := filepath.Join(t.TempDir(), "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(filepath.Dir(source), "clock.so")
	if output, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("can't compile the clock: %v\n%s", err, output)
	}
	return library
}
