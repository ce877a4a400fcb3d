package redistest

import (
	"os"
	"syscall"
)

// dieWithParent ends the servers of a test that is killed.
var dieWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

var suspend, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT
