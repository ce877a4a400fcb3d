//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package batch

import (
	"os"
	"syscall"
)

// lock locks a file against other processes, and other files of this one, until it is closed.
func lock(f *os.File) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err {
		case syscall.EINTR:
		case syscall.EWOULDBLOCK:
			return ErrJournalInUse
		default:
			return err
		}
	}
}
