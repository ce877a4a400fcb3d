package batch

import (
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

const (
	failImmediately  = 1
	exclusiveLock    = 2
	errLockViolation = syscall.Errno(33)
)

// lock locks a file against other processes, and other files of this one, until it is closed. It locks the last
// byte that a file may have, because nobody else could read a byte that is locked.
func lock(f *os.File) error {
	at := &syscall.Overlapped{Offset: ^uint32(0), OffsetHigh: 1<<31 - 1}
	ok, _, err := lockFileEx.Call(f.Fd(), failImmediately|exclusiveLock, 0, 1, 0, uintptr(unsafe.Pointer(at)))
	switch {
	case ok != 0:
		return nil
	case err == errLockViolation:
		return ErrJournalInUse
	}
	return err
}
