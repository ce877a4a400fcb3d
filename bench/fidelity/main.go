// Fidelity shows how well this library and its peers keep a provider's limit, and how
// much of it they use.
//
//	go run ./fidelity -quick              # tables, in less than 3 minutes
//	go run ./fidelity -json -svg charts   # every run in full length
//	go run ./fidelity -run 'virtual/(throttle|xtime-1)/rolling/'
//
// Package gauntlet tells what is measured and how the clients are set up.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/apithrottle/throttle/bench/fidelity/gauntlet"
)

func main() {
	if gauntlet.IsMember() {
		if err := gauntlet.Member(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Virtual time comes from testing/synctest, which wants a test to be in: so this
	// program is one. It has flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	anything := func(string, string) (bool, error) { return true, nil }
	testing.Main(anything, []testing.InternalTest{{Name: "fidelity", F: func(t *testing.T) {
		os.Exit(gauntlet.Command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}
