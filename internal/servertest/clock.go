package servertest

import (
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

// A Clock is the wall clock of the servers that run with its Env. The monotonic clock is not affected,
// as on a machine whose clock is set.
type Clock struct {
	Env []string // for the environment of the servers

	t      testing.TB
	offset string // the file that the servers read
}

// NewClock returns a clock that shows the system's time until it is Set. It keeps its files in the
// directory, which the servers must be allowed to read. It requires Linux and a C compiler. Without them,
// the test is skipped, or fails if the environment variable is 1.
func NewClock(t testing.TB, variable, dir string) *Clock {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		SkipOrFail(t, variable, "a server with a stepped clock needs Linux and a C compiler")
	}
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("can't compile the clock: %v\n%s", err, output)
	}
	if err := os.Chmod(library, 0o755); err != nil { // with any umask
		t.Fatal(err)
	}
	c := &Clock{t: t, offset: filepath.Join(dir, "offset")}
	c.Env = []string{"LD_PRELOAD=" + library, "THROTTLE_CLOCK=" + c.offset}
	c.Set(0)
	return c
}

// Set sets the clock to the system's time and an offset.
func (c *Clock) Set(d time.Duration) {
	c.t.Helper()
	// The servers read the file all the time, and must not read a part of it.
	if err := os.WriteFile(c.offset+".new", binary.NativeEndian.AppendUint64(nil, uint64(d.Microseconds())), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Chmod(c.offset+".new", 0o644); err != nil { // with any umask
		c.t.Fatal(err)
	}
	if err := os.Rename(c.offset+".new", c.offset); err != nil {
		c.t.Fatal(err)
	}
}
