package redistest

import (
	"os"
	"syscall"
)

// dieWithParent ends the servers of a test that was killed and can't do so itself.
var dieWithParent = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

var suspend, resume os.Signal = syscall.SIGSTOP, syscall.SIGCONT
