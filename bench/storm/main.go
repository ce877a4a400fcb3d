// Storm measures fleets on a real redis-server, in real time: many keys, many processes, a
// distant server, latency spikes, lost replies.
//
//	go run ./storm -list
//	go run ./storm -run '^far/80ms/'
//	go run ./storm -run '^processes/300x8/5000$'
//
// Each scenario starts its own server on the loopback interface, and ends within a minute. If
// the server is distant, a proxy in this program delays each direction by half of the round
// trip. In the scenarios named processes, each process of the fleet runs this program again,
// with one processor. In all others a process of the fleet is a store with its own client.
//
// # The table
//
// Admissions, rates, calls and processor times are measured after the warm-up. The columns
// "refused" and "longest" begin at the start.
//
//   - "of limit" is the rate divided by the limit.
//   - "of full" is the rate divided by the highest rate of a fleet. A request counts for the
//     guard and the round trip, and then for the window.
//   - "refused" counts the requests that a strict provider would have refused. Each request
//     reaches the provider, a [throttletest.Counter], at a random time within the guard.
//   - "calls" is the number of calls of the script for each admission, as the server counts
//     them.
//   - "longest" is the longest wait, including waits without an admission so far.
//   - "full again" is the time from the end of the disturbance to the beginning of the first
//     second that has 85 % of the full rate.
//   - "CPU" is in processors, for all clients and the proxy; "server" is the same for the
//     server.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		os.Exit(runJob(os.Stdin, os.Stdout))
	}
	// Package redistest requires a testing.TB. This program therefore runs as a test, with
	// flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	matchAll := func(string, string) (bool, error) { return true, nil }
	testing.Main(matchAll, []testing.InternalTest{{Name: "storm", F: func(t *testing.T) {
		os.Exit(command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}

// command is main without the exit. It returns the exit code.
func command(t *testing.T, args []string, out, errs io.Writer) (code int) {
	redis.SetLogger(silent{})
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.SetOutput(errs)
	run := flags.String("run", "", "run the scenarios whose names match this `pattern`")
	list := flags.Bool("list", false, "print the names of the scenarios")
	verbose := flags.Bool("v", false, "print the admissions in each second too")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	names, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(errs, "storm: -run:", err)
		return 2
	}
	if *run == "" && !*list {
		fmt.Fprintln(errs, "storm: -run is empty: give it a pattern of the names that -list prints")
		return 2
	}
	code = 2
	for _, s := range scenarios() {
		switch {
		case !names.MatchString(s.name):
		case *list:
			fmt.Fprintln(out, strings.TrimSpace(fmt.Sprintf("%-26s %s", s.name, s.about)))
			code = 0
		default:
			if code == 2 {
				fmt.Fprintln(out, heading)
				code = 0
			}
			// The server and the proxies end with the scenario.
			t.Run(s.name, func(t *testing.T) {
				r, err := s.run(t)
				if err != nil {
					fmt.Fprintln(errs, "storm:", err)
					code = 1
					return
				}
				fmt.Fprintln(out, r)
				if *verbose {
					fmt.Fprintln(out, "\tadmitted in each second:", r.seconds)
				}
				if len(r.violations()) > 0 {
					code = 1
				}
			})
			if t.Failed() {
				code = 1
			}
		}
	}
	if code == 2 {
		fmt.Fprintf(errs, "storm: -run %q matches no scenario: see -list for the names\n", *run)
	}
	return code
}

// silent drops the log messages about connections that a scenario breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var heading = fmt.Sprintf("%-26s %8s %8s %8s %7s %7s %7s %8s %8s %10s %6s %6s  %s",
	"scenario", "admitted", "/s", "of limit", "of full", "refused", "calls", "calls/s", "longest", "full again", "CPU", "server", "notes")

func (r result) String() string {
	again := "-"
	switch {
	case r.disturbance == none:
	case r.recovery < 0:
		again = "never"
	default:
		again = r.recovery.String()
	}
	notes := r.notes
	if violations := r.violations(); len(violations) > 0 {
		notes = append(notes, "VIOLATED: "+strings.Join(violations, "; "))
	}
	if r.errors > 0 {
		notes = append(notes, fmt.Sprintf("%d errors: %v", r.errors, r.err))
	}
	return fmt.Sprintf("%-26s %8d %8.1f %8.3f %7.3f %7d %7.2f %8.1f %8s %10s %6.2f %6.2f  %s",
		r.name, r.admitted, r.rate, r.rate/float64(r.limit), r.rate/r.full, r.refused, r.callsPerAdmission(), float64(r.calls)/r.took.Seconds(),
		r.longest.Round(time.Millisecond), again, r.client.Seconds()/r.took.Seconds(), r.server.Seconds()/r.took.Seconds(), strings.Join(notes, "; "))
}
