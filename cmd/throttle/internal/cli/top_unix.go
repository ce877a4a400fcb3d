//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// resizes returns a channel that receives a signal when the terminal's size changes.
func resizes() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
