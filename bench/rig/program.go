// Package rig has what the programs of this module share: how they run, and how they print and draw
// their results.
package rig

import (
	"flag"
	"io"
	"os"
	"testing"
)

// Run runs a program as a test, because testing/synctest and package redistest require one. The
// program parses its own flags and returns its exit code.
func Run(name string, command func(t *testing.T, args []string, out, errs io.Writer) (code int)) {
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	matchAll := func(string, string) (bool, error) { return true, nil }
	testing.Main(matchAll, []testing.InternalTest{{Name: name, F: func(t *testing.T) {
		os.Exit(command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}
