//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package batch

import (
	"errors"
	"os"
)

// lock returns an error, because package syscall has no lock here that ends with the process.
func lock(*os.File) error { return errors.ErrUnsupported }
