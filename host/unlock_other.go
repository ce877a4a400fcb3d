//go:build !unix || aix || solaris

package host

import "os"

// release closes a file, which unlocks it.
func release(f *os.File) { _ = f.Close() }
