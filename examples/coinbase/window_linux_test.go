package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"unsafe"
)

func TestColumnsOf(t *testing.T) {
	tty := openTerminal(t, 61)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1") // the bar has no colors
	switch columns := columnsOf(tty); {
	case columns == nil || columns() != 61:
		t.Error("a terminal of 61 columns is not recognized")
	case columnsOf(null) != nil:
		t.Errorf("%s is a terminal", os.DevNull)
	}
	t.Setenv("TERM", "dumb")
	if columnsOf(tty) != nil {
		t.Error("a dumb terminal is used like others")
	}
}

// openTerminal returns a pseudo terminal of some columns.
func openTerminal(t *testing.T, columns uint16) *os.File {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	var number, lock uint32
	for _, call := range []struct {
		request uintptr
		value   *uint32
	}{{syscall.TIOCSPTLCK, &lock}, {syscall.TIOCGPTN, &number}} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), call.request, uintptr(unsafe.Pointer(call.value))); errno != 0 {
			t.Skip(errno)
		}
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { tty.Close() })
	size := [4]uint16{24, columns}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, tty.Fd(), syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		t.Fatal(errno)
	}
	return tty
}
