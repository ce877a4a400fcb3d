//go:build unix

package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// canReplace reports whether a command can take the place of this process.
const canReplace = true

// replace runs a command in place of this process. It returns only if that fails. As for a shell, a
// file without a format is a script.
func replace(path string, args []string) error {
	signal.Reset() // what was ignored at the start stays ignored
	err := syscall.Exec(path, args, os.Environ())
	if errors.Is(err, syscall.ENOEXEC) {
		return syscall.Exec("/bin/sh", append([]string{"/bin/sh", path}, args[1:]...), os.Environ())
	}
	return err
}

// passedSignals returns the signals that are passed on to a command. All processes that a terminal
// runs receive its own signals, so the command has those already. They must not end this process.
func passedSignals() []os.Signal {
	return []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
}

// fromTerminal reports whether a signal comes from a terminal, which sends it to the command too.
func fromTerminal(s os.Signal) bool {
	if s != syscall.SIGINT && s != syscall.SIGQUIT {
		return false
	}
	tty, err := os.Open("/dev/tty")
	if err == nil {
		tty.Close()
	}
	return err == nil
}

// codeOf returns the exit code of a process as a shell has it.
func codeOf(p *os.ProcessState) int {
	if s, ok := p.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.ExitCode()
}
