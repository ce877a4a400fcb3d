//go:build unix && !aix && !solaris

package host

import (
	"os"
	"syscall"
)

// release unlocks and closes a file. A file that is still mapped keeps its lock when it
// is closed.
func release(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close()
}
