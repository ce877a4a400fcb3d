//go:build linux || darwin || freebsd

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// windowColumns returns the width of a terminal's window, and whether f is a terminal.
func windowColumns(f *os.File) (int, bool) {
	var size struct{ rows, columns, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if size.columns == 0 {
		size.columns = 80 // a terminal that doesn't know
	}
	return int(size.columns), errno == 0
}
