//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package batch

import (
	"os"
	"syscall"
	"unsafe"
)

// windowSize asks a terminal for its columns. It reports false if the file is not a terminal.
func windowSize(f *os.File) (columns int, ok bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false
	}
	var size struct{ rows, columns, width, height uint16 }
	err = conn.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
		ok = errno == 0
	})
	return int(size.columns), ok && err == nil
}

func isTerminal(f *os.File) bool {
	_, ok := windowSize(f)
	return ok
}

func widthOf(f *os.File) int {
	if n, _ := windowSize(f); n > 0 {
		return n
	}
	return columns()
}
