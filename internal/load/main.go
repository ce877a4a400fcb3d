// Load runs a command while it keeps the processors busy. A test that passes alone and fails under
// load asserts more than holds under any scheduling.
//
//	go run ./internal/load -n 8 -runs 20 -- go test -race -count=1 ./distributed
//
// It runs the command -runs times, regardless of the results, and then reports how many runs
// passed. The exit status is 1 unless all passed.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

func main() {
	n := flag.Int("n", 8, "busy `goroutines`")
	runs := flag.Int("runs", 1, "`times` to run the command")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: load [-n goroutines] [-runs times] -- command [argument ...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	burn(*n)
	if passed := repeat(*runs, flag.Args()); passed < *runs {
		os.Exit(1)
	}
}

// burn starts n goroutines that never block, and allows each of them a thread.
func burn(n int) {
	runtime.GOMAXPROCS(n + 1)
	for range n {
		go func() {
			for i := 0; ; i++ { // empty and endless
			}
		}()
	}
}

// repeat runs the command runs times and returns how many runs passed.
func repeat(runs int, command []string) (passed int) {
	for run := range runs {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		began := time.Now()
		err := cmd.Run()
		result := "ok"
		if err != nil {
			result = err.Error()
		} else {
			passed++
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		fmt.Fprintf(os.Stderr, "load: run %d of %d: %s in %v, %d passed\n", run+1, runs, result, took, passed)
	}
	return passed
}
