//go:build !linux

package pgtest

import "syscall"

// No server starts on other systems: see binaries.
const (
	suspend   = syscall.SIGKILL
	resume    = syscall.SIGKILL
	fast      = syscall.SIGKILL
	immediate = syscall.SIGKILL
)

func attributes(int, int) *syscall.SysProcAttr { return nil }

func inMemory() string { return "" }
