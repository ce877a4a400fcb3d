package pgtest

import (
	"os"
	"syscall"
)

const (
	suspend   = syscall.SIGSTOP
	resume    = syscall.SIGCONT
	fast      = syscall.SIGINT
	immediate = syscall.SIGQUIT
)

// attributes returns those of a process of the user, which no signal of the terminal reaches.
func attributes(uid, gid int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}
