package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// holder describes the process that holds the file, if the system reports it.
func holder(path string) string {
	pid := locker(path)
	if pid == 0 || pid == os.Getpid() {
		return "other processes hold the file"
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // the process ID, the name in parentheses, and the state
	if end := bytes.LastIndex(stat, []byte(") ")); end > 0 && end+2 < len(stat) && strings.IndexByte("Tt", stat[end+2]) >= 0 {
		return fmt.Sprintf("process %d holds the file and is stopped: continue or end it", pid)
	}
	return fmt.Sprintf("process %d holds the file", pid)
}

// locker returns the process that holds the lock on a file. It returns 0 if this process can't see
// one, or if several files have the inode number.
func locker(path string) (pid int) {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	inode := fmt.Sprintf(":%d", info.Sys().(*syscall.Stat_t).Ino)
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return 0
	}
	defer locks.Close()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:9977909 0 EOF
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], inode) {
			continue
		}
		if pid != 0 {
			return 0
		}
		pid, _ = strconv.Atoi(f[4])
	}
	return pid
}
