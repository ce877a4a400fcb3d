//go:build !linux

package redistest

import (
	"os"
	"syscall"
)

var dieWithParent *syscall.SysProcAttr

var suspend, resume os.Signal
