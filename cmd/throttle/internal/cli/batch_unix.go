//go:build unix

package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// ownGroup puts a command into a process group of its own, which a terminal's Ctrl-C does not reach.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// terminate asks a command and its processes to end.
func terminate(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }

// kill ends a command and its processes.
func kill(c *exec.Cmd) { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }

// isTooLong reports whether an item is too long for an argument.
func isTooLong(err error) bool { return errors.Is(err, syscall.E2BIG) }

// catchPipe makes writes to a pipe without a reader return errors. Commands do not inherit that.
func catchPipe() (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}
