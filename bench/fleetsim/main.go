// Fleetsim simulates fleets in virtual time: the client code as it is, and a model of Redis.
// It finds what becomes of throughput where answers are late: when thousands of processes ask
// at once, the server is far away, the network is slow for some seconds, or something breaks.
//
//	go run ./fleetsim                          the table of all scenarios but the large ones
//	go run ./fleetsim -run '^crowd/' -seed 2 -v
//	go test ./fleetsim                         what must hold does, but for the list of what does not
//	go test ./fleetsim -args -seeds 10 -large
//
// All processes of a fleet, the server and the provider are goroutines of one bubble of
// testing/synctest. 10,000 processes are 45,000 goroutines, and a call of the script takes some
// 0.1 ms of a real processor, nearly all of it in the interpreter of Lua: one simulated second of
// a saturated server takes 4 s of a processor, one of a fleet at rest a hundredth of a second.
//
// # The model
//
// The server has one thread. Commands wait in the order of arrival, each call of the script
// takes 60 µs and 2 µs for each request that it decides, a new connection 50 µs, and the first
// SCRIPT LOAD 2 ms; that is about what one core of a server takes. As in Redis, replies wait until
// all commands are served that came meanwhile. The script is the real one, run by gopher-lua on
// the few commands that it uses. Anything else is an unknown command.
//
// Clients are real *redis.Client values whose hooks hand commands to the model. A process has
// 20 connections, which cost two round trips to open, and waits for one as go-redis does; a
// command that is not answered in 3 s closes its connection. What go-redis does on sockets is
// not simulated, nor is TCP: messages take the drawn time, whatever their size, and what is lost
// in a partition stays lost, except on the connection for messages. That connection opens at
// once: go-redis holds a lock meanwhile, and virtual time stands still where a goroutine waits
// for a lock. The clients' own processors are not simulated: a crowd of goroutines is never late.
//
// There are two clocks: that of all processes and of the provider, and the server's, which may
// step and gain. Differences between the clocks of processes are not simulated. They would
// matter to Calendar tiers only.
//
// A provider is a [throttletest.Counter], which decides from the definition of a tier and shares
// no code with the limiter. Requests reach it after a drawn time below the guard, so that every
// refusal is the limiter's mistake, but for those that the bounds of a scenario allow and explain.
//
// A seed sets what is drawn. The order of goroutines that run at the same instant is the
// runtime's, so figures differ a little between runs of one seed.
//
// # The table
//
// Goodput is what the provider accepted in each second after the warm-up, ratio is that of what
// the fleet could send where nothing goes wrong. Calls and returns are calls of the script then for
// each admission, and those of them that give times back. Load is how much of the time the
// server is busy; least, most and mean are admissions of a process; longest is the longest wait,
// of those too who still wait; recovery is from the end of the last fault to the full rate; CPU/s
// is real processor time for each simulated second.
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
	// Virtual time comes from testing/synctest, which needs a test. So this program is one. It
	// has flags of its own.
	testing.Init()
	_ = flag.CommandLine.Parse(nil)
	anything := func(string, string) (bool, error) { return true, nil }
	testing.Main(anything, []testing.InternalTest{{Name: "fleetsim", F: func(t *testing.T) {
		os.Exit(command(t, os.Args[1:], os.Stdout, os.Stderr))
	}}}, nil, nil)
}

// command is main, and returns what to exit with.
func command(t *testing.T, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("fleetsim", flag.ContinueOnError)
	flags.SetOutput(errs)
	run := flags.String("run", "", "`pattern` of the names. If empty, all but the large ones")
	seed := flags.Uint64("seed", 1, "of what is drawn")
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
		r := s.virtually(t, *seed)
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
		fmt.Fprintln(errs, "no scenario has such a name")
		return 2
	}
	return code
}

var heading = fmt.Sprintf("%-34s %9s %6s %7s %7s %7s %6s %15s %8s %8s %7s %s",
	"scenario", "goodput/s", "ratio", "refused", "calls", "returns", "load", "least/most/mean", "longest", "recovery", "CPU/s", "what does not hold")

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
	text := fmt.Sprintf("\tadmitted by the ways of the processes: %v\n\taccepted in each of the first 100 seconds: %v\n\tcalls: %d reserve, %d return, %d others; %d connections, %d other commands, %d messages; longest queue %v; %d goroutines; %v CPU, %v real",
		r.Ways, r.Seconds[:min(100, len(r.Seconds))], t.Reserves, t.Returns, t.Others, t.Connections, t.Commands, t.Published, t.Longest.Round(time.Microsecond), r.Goroutines, r.CPU.Round(10*time.Millisecond), r.Real.Round(10*time.Millisecond))
	if r.Charged > 0 {
		text += fmt.Sprintf("\n\tcharged %d, admitted %d", r.Charged, r.Sent)
	}
	if r.Errors > 0 {
		text += fmt.Sprintf("\n\t%d errors, the first: %v", r.Errors, r.Err)
	}
	return text
}
