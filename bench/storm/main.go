// Storm measures fleets on a real redis-server, in real time: many keys, many processes, a
// server far away, spikes of its latency, replies that are lost.
//
//	go run ./storm -list
//	go run ./storm -run '^far/80ms/'
//	go run ./storm -run '^processes/300x8/5000$'
//
// Each scenario starts a server of its own on the loopback interface, and ends within a minute.
// Where the server is far, a proxy in this program delays what is sent, each way by half of the
// round trip. The fleets of the scenarios called processes are this program run again, with one
// processor each; in all others a process of the fleet is a store with a client of its own.
//
// # The table
//
// Admitted and all that follows is of the time after the warm-up. Of limit is the rate ÷ the
// limit. Of full is the rate ÷ what a fleet can send at best: a request counts for the guard and
// the round trip, and then for the window. Refused is what a strict provider would have refused:
// a [throttletest.Counter] that each request reaches at a random time within the guard. Calls
// are those of the script for each admission, as the server counts them. Longest is the longest
// wait, of those too who still wait. Full again is the time from the end of the disturbance until
// a second begins that has 85 % of the full rate. CPU is in processors: of all clients with the
// proxy, and of the server.
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
	if os.Getenv(asWorker) != "" {
		os.Exit(work(os.Stdin, os.Stdout))
	}
	// Package redistest starts servers for tests. So this program is one. It has flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	anything := func(string, string) (bool, error) { return true, nil }
	testing.Main(anything, []testing.InternalTest{{Name: "storm", F: func(t *testing.T) {
		os.Exit(command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}

// command is main, and returns what to exit with.
func command(t *testing.T, args []string, out, errs io.Writer) (code int) {
	redis.SetLogger(silent{})
	flags := flag.NewFlagSet("storm", flag.ContinueOnError)
	flags.SetOutput(errs)
	run := flags.String("run", "", "`pattern` of the names")
	list := flags.Bool("list", false, "print the names of the scenarios")
	verbose := flags.Bool("v", false, "print each second's admissions too")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	names, err := regexp.Compile(*run)
	if err != nil || *run == "" && !*list {
		fmt.Fprintln(errs, "storm: which scenarios? See -list:", err)
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
				if len(r.wrong()) > 0 {
					code = 1
				}
			})
			if t.Failed() {
				code = 1
			}
		}
	}
	if code == 2 {
		fmt.Fprintln(errs, "storm: no scenario has such a name")
	}
	return code
}

// silent keeps quiet about the connections that a scenario breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var heading = fmt.Sprintf("%-26s %8s %8s %8s %7s %7s %7s %8s %8s %10s %6s %6s  %s",
	"scenario", "admitted", "/s", "of limit", "of full", "refused", "calls", "calls/s", "longest", "full again", "CPU", "server", "besides; what does not hold")

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
	if wrong := r.wrong(); len(wrong) > 0 {
		notes = append(notes, "WRONG: "+strings.Join(wrong, "; "))
	}
	if r.errors > 0 {
		notes = append(notes, fmt.Sprintf("%d errors: %v", r.errors, r.err))
	}
	return fmt.Sprintf("%-26s %8d %8.1f %8.3f %7.3f %7d %7.2f %8.1f %8s %10s %6.2f %6.2f  %s",
		r.name, r.admitted, r.rate, r.rate/float64(r.limit), r.rate/r.full, r.refused, r.callsEach(), float64(r.calls)/r.took.Seconds(),
		r.longest.Round(time.Millisecond), again, r.client.Seconds()/r.took.Seconds(), r.server.Seconds()/r.took.Seconds(), strings.Join(notes, "; "))
}
