// Fleetsim simulates fleets in virtual time, with the real client code and a model of Redis. It
// measures throughput when answers are late: when thousands of processes ask at once, the server is
// far away, the network is slow for some seconds, or something breaks.
//
//	go run ./fleetsim                          the table of all scenarios but the large ones
//	go run ./fleetsim -run '^crowd/' -seed 2 -v
//	go test ./fleetsim                         all bounds hold, except in the scenarios listed as failing
//	go test ./fleetsim -args -seeds 10 -large
//
// All processes of a fleet, the server and the provider are goroutines of one bubble of
// testing/synctest. 10,000 processes are 45,000 goroutines. A call of the script takes about 0.1 ms
// of real processor time, nearly all of it in the Lua interpreter. One simulated second of a
// saturated server takes 4 s of processor time, and one of an idle fleet a hundredth of a second.
//
// # The model
//
// The server has one thread. Commands wait in order of arrival. A call of the script takes 60 µs,
// and 2 µs for each request that it decides; a new connection takes 50 µs, and the first SCRIPT LOAD
// 2 ms. These are about the times of one core of a server. As in Redis, replies wait until all
// commands that arrived meanwhile are served. The script is the real one. It runs in gopher-lua on
// the few commands that it uses. Any other command is unknown.
//
// Clients are real *redis.Client values whose hooks hand commands to the model. A process has 20
// connections, which cost two round trips to open, and waits for one as go-redis does. A command
// that is not answered in 3 s closes its connection. The work of go-redis on sockets and TCP are
// not simulated. Messages take a drawn time, whatever their size. Data that is lost in a partition
// stays lost, except on the connection for messages. That connection opens at once: go-redis holds
// a lock while it connects, and virtual time stands still while a goroutine waits for a lock. The
// clients' own processors are not simulated, so goroutines are never late.
//
// There are two clocks: one of all processes and of the provider, and one of the server, which may
// step and gain. Differences between the clocks of processes are not simulated. They would matter
// to Calendar tiers only.
//
// A provider is a [throttletest.Counter], which decides from the definition of a tier and shares no
// code with the limiter. Requests reach it after a drawn time below the guard. Every refusal is
// therefore a mistake of the limiter, except for those that the bounds of a scenario allow and
// explain.
//
// A seed sets all drawn values. The Go runtime orders goroutines that run at the same instant, so
// figures differ a little between runs with one seed.
//
// # The table
//
//	goodput          requests that the provider accepted in a second after the warm-up
//	ratio            goodput divided by what the fleet could send if nothing went wrong
//	refused          requests that the provider refused
//	calls, returns   calls of the script for each admission after the warm-up, and those that return times
//	load             share of the time in which the server was busy
//	least/most/mean  admissions of a process
//	longest          the longest wait, including callers that still wait
//	recovery         from the end of the last fault to the full rate
//	CPU/s            real processor time for each simulated second
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func main() {
	debug.SetGCPercent(400)
	// Virtual time comes from testing/synctest, which needs a test, so this program is a test. It
	// has flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	anything := func(string, string) (bool, error) { return true, nil }
	testing.Main(anything, []testing.InternalTest{{Name: "fleetsim", F: func(t *testing.T) {
		os.Exit(command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}

// command runs the program and returns its exit code.
func command(t *testing.T, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("fleetsim", flag.ContinueOnError)
	flags.SetOutput(errs)
	run := flags.String("run", "", "`pattern` of the scenarios' names. If empty, all but the large scenarios")
	seed := flags.Uint64("seed", 1, "the seed of all random values")
	verbose := flags.Bool("v", false, "print each second's rate, the calls and the errors too")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	names, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintln(errs, err)
		return 2
	}
	code, none := 0, true
	for _, s := range scenarios() {
		if !names.MatchString(s.name) || s.large && *run == "" {
			continue
		}
		if none {
			fmt.Fprintln(out, heading)
			none = false
		}
		r := s.runVirtually(t, *seed)
		wrong := s.check(r)
		fmt.Fprintln(out, r.row(wrong))
		if *verbose {
			fmt.Fprintln(out, r.details())
		}
		if len(wrong) > 0 {
			code = 1
		}
	}
	if none {
		fmt.Fprintln(errs, "no scenario matches the pattern of -run")
		return 2
	}
	return code
}

var heading = fmt.Sprintf("%-34s %9s %6s %7s %7s %7s %6s %15s %8s %8s %7s %s",
	"scenario", "goodput/s", "ratio", "refused", "calls", "returns", "load", "least/most/mean", "longest", "recovery", "CPU/s", "violated bounds")

func (r result) row(wrong []string) string {
	recovery := "never"
	if r.Recovery >= 0 {
		recovery = r.Recovery.String()
	}
	return fmt.Sprintf("%-34s %9.1f %6.3f %7d %7.2f %7.2f %6.2f %15s %8s %8s %7.2f %s",
		r.scenario, r.Goodput, r.Ratio, r.Refused, r.CallsEach(), r.ReturnsEach(), r.Load,
		fmt.Sprintf("%d/%d/%.1f", r.Least, r.Most, r.Mean), r.Longest.Round(time.Millisecond), recovery,
		r.CPU.Seconds()/r.Length.Seconds(), strings.Join(wrong, "; "))
}

func (r result) details() string {
	t := r.Tally
	text := fmt.Sprintf("\tadmitted by the distance of the processes: %v\n\taccepted in each of the first 100 seconds: %v\n\tcalls: %d reserve, %d return, %d others; %d connections, %d other commands, %d messages; longest queue %v; %d goroutines; %v CPU, %v real",
		r.Ways, r.Seconds[:min(100, len(r.Seconds))], t.Reserves, t.Returns, t.Others, t.Connections, t.Commands, t.Published, t.Longest.Round(time.Microsecond), r.Goroutines, r.CPU.Round(10*time.Millisecond), r.Real.Round(10*time.Millisecond))
	if r.Charged > 0 {
		text += fmt.Sprintf("\n\tcharged %d, admitted %d", r.Charged, r.Sent)
	}
	if r.Errors > 0 {
		text += fmt.Sprintf("\n\t%d errors, the first: %v", r.Errors, r.Err)
	}
	return text
}
