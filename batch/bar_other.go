//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package batch

import "os"

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func widthOf(*os.File) int { return columns() }
