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

// room is what the servers of a test process may need.
const room = 2 << 30

// inMemory returns a directory whose files are in memory, or "" if it has no room.
func inMemory() string {
	const dir = "/dev/shm"
	var free syscall.Statfs_t
	if err := syscall.Statfs(dir, &free); err != nil || free.Bavail*uint64(free.Bsize) < room {
		return ""
	}
	return dir
}

// attributes returns those of a process of the user, which no signal of the terminal reaches.
func attributes(uid, gid int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attr
}
