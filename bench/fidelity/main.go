// Fidelity measures how well this library and others keep a provider's limit, and how
// much of the limit they use.
//
//	go run ./fidelity -quick              # tables, in less than 3 minutes
//	go run ./fidelity -json -svg charts   # every run in full length
//	go run ./fidelity -run 'virtual/(throttle|xtime-1)/rolling/'
//
// Package scenario describes what is measured and how the clients are configured.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/apithrottle/throttle/bench/fidelity/scenario"
)

func main() {
	if scenario.IsChild() {
		if err := scenario.RunChild(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Virtual time comes from testing/synctest, which requires a *testing.T. This program
	// therefore runs as a test, with flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	matchAll := func(string, string) (bool, error) { return true, nil }
	testing.Main(matchAll, []testing.InternalTest{{Name: "fidelity", F: func(t *testing.T) {
		os.Exit(scenario.Command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}
