//go:build !linux && !darwin && !freebsd

package main

import "os"

// windowColumns returns a width that fits a terminal's window, and whether f is a terminal.
func windowColumns(f *os.File) (int, bool) {
	info, err := f.Stat()
	return 80, err == nil && info.Mode()&os.ModeCharDevice != 0
}
