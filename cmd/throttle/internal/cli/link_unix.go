//go:build unix

package cli

import (
	"fmt"
	"os"
	"syscall"
)

// checkLink returns an error for a file that is a symbolic link of somebody else than this user or
// root. In a directory that others may write, they could make it lead to any file of this user.
func checkLink(path string) error {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		return nil // if it cannot be opened, that is found later
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return &configError{fmt.Errorf("%s is a symbolic link of another user: name the file that it leads to, or use another path", path)}
	}
	return nil
}
