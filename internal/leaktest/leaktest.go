// Package leaktest finds goroutines of this module that tests leave behind.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

const (
	module       = "apithrottle/throttle"
	timeout      = 6 * time.Second // a listener to Redis stays for five
	pollInterval = 10 * time.Millisecond
)

// Tests are the tests of a package: a *testing.M.
type Tests interface{ Run() int }

// Run runs the tests and returns the exit code, for a TestMain. It also fails if the tests pass and
// leave goroutines of this module running.
func Run(m Tests) int {
	code := m.Run()
	if code != 0 {
		return code
	}
	var left string
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(pollInterval) {
		if left = running(); left == "" {
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "goroutines of this module still run after the tests:\n%s\n", left)
	return 1
}

// running returns the stacks of the goroutines that run code of this module, except this one.
func running() string {
	buf := make([]byte, 1<<20)
	stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var ours []string
	for _, s := range stacks[1:] {
		if strings.Contains(s, module) {
			ours = append(ours, s)
		}
	}
	return strings.Join(ours, "\n\n")
}
