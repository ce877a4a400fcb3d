//go:build !unix

package cli

import (
	"errors"
	"os"
)

const canReplace = false

func replace(string, []string) error { return errors.ErrUnsupported }

func passedSignals() []os.Signal { return []os.Signal{os.Interrupt} }

// fromTerminal reports true: a console sends Ctrl-C to all of its processes.
func fromTerminal(os.Signal) bool { return true }

func codeOf(p *os.ProcessState) int { return p.ExitCode() }
