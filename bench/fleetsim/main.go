// Fleetsim plays fleets with the real client code: in virtual time with a model of Redis, or in real
// time on a redis-server. It measures throughput when answers are late: when thousands of processes
// ask at once, the server is far away, the network is slow for some seconds, or something breaks.
//
//	go run ./fleetsim                          the table of all virtual scenarios but the large ones
//	go run ./fleetsim -run '^crowd/' -seed 2 -v
//	go run ./fleetsim -real -list              the scenarios that a redis-server can play
//	go run ./fleetsim -real -run '^far/80ms/'
//	go test ./fleetsim                         all bounds hold, except in the scenarios listed as failing
//	go test ./fleetsim -args -seeds 10 -large
//
// # Virtual time
//
// All processes of a fleet, the server and the provider are goroutines of one bubble of
// testing/synctest. 10,000 processes are 45,000 goroutines. A call of the script takes about 0.1 ms
// of real processor time, nearly all of it in the Lua interpreter. One simulated second of a
// saturated server takes 4 s of processor time, and one of an idle fleet a hundredth of a second.
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
// stays lost, except on the connection for messages. The clients' own processors are not simulated,
// so goroutines are never late.
//
// There are two clocks: one of all processes and of the provider, and one of the server, which may
// step and gain. Differences between the clocks of processes are not simulated. They would matter
// to Calendar tiers only.
//
// A seed sets all drawn values. The Go runtime orders goroutines that run at the same instant, so
// figures differ a little between runs with one seed.
//
// # Real time
//
// With -real the same scenarios run on a redis-server, except those that take more than two minutes or
// whose faults a real server does not have. The scenarios named overload need no server. Each scenario
// starts its own server on the loopback interface. A proxy in this program delays each direction by the
// mean of the scenario's delay. A process of the fleet is a store with its own client.
//
// # The table
//
// A provider is a [throttletest.Counter], which decides from the definition of a tier and shares no
// code with the limiter. Requests reach it after a drawn time below the guard. Every refusal is
// therefore a mistake of the limiter, except for those that the bounds of a scenario allow and
// explain.
//
//	goodput          requests that the provider accepted in a second after the warm-up; in real time, admissions
//	ratio            goodput divided by what the fleet could send if nothing went wrong
//	refused          requests that the provider refused
//	calls, returns   calls of the script for each admission after the warm-up, and those that return times
//	load             share of the time in which the server, or its processor, was busy
//	least/most/mean  admissions of a process
//	longest          the longest wait, including callers that still wait
//	recovery         from the end of the last fault to the full rate
//	CPU/s            real processor time of the clients for each second of the run
package main

import (
	"flag"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/bench/rig"
)

func main() {
	debug.SetGCPercent(400)
	rig.Run("fleetsim", command)
}

// command runs the program and returns its exit code.
func command(t *testing.T, args []string, out, errs io.Writer) (code int) {
	redis.SetLogger(silent{})
	flags := flag.NewFlagSet("fleetsim", flag.ContinueOnError)
	flags.SetOutput(errs)
	var names regexp.Regexp
	flags.TextVar(&names, "run", regexp.MustCompile(""), "`pattern` of the scenarios' names. If empty, all but the large scenarios")
	seed := flags.Uint64("seed", 1, "the seed of all random values")
	real := flags.Bool("real", false, "play on a redis-server, in real time. It needs -run")
	list := flags.Bool("list", false, "print the names of the scenarios")
	verbose := flags.Bool("v", false, "print each second's rate, the calls and the errors too")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	var row func(...string)
	chosen := 0
	for _, s := range scenarios() {
		skipped := (s.large || *real) && names.String() == "" && !*list
		if s.real != *real || skipped || !names.MatchString(s.name) {
			continue
		}
		chosen++
		if *list {
			fmt.Fprintln(out, strings.TrimSpace(fmt.Sprintf("%-34s %s", s.name, s.about)))
			continue
		}
		if row == nil {
			row = rig.Table(out, headings...)
		}
		code = max(code, s.report(t, *seed, row, out, errs, *verbose))
	}
	if chosen == 0 {
		fmt.Fprintln(errs, "fleetsim: no scenario matches the pattern of -run: see -list for the names")
		return 2
	}
	return code
}

// report plays a scenario and prints its row. It returns 1 if a bound does not hold.
func (s scenario) report(t *testing.T, seed uint64, row func(...string), out, errs io.Writer, verbose bool) (code int) {
	ok := t.Run(s.name, func(t *testing.T) { // a server ends with its scenario
		r, err := s.play(t, seed)
		if err != nil {
			fmt.Fprintln(errs, "fleetsim:", err)
			code = 1
			return
		}
		wrong := s.check(r)
		row(r.row(wrong)...)
		if verbose {
			fmt.Fprintln(out, r.details())
		}
		if len(wrong) > 0 {
			code = 1
		}
	})
	if !ok {
		return 1
	}
	return code
}

// headings are those of the table. Spaces make columns wider.
var headings = []string{fmt.Sprintf("%-34s", "scenario"), "goodput/s", " ratio", "refused", "  calls", "returns", "  load",
	"least/most/mean", " longest", "recovery", "  CPU/s", "violated bounds, notes"}

func (r result) row(wrong []string) []string {
	recovery := "never"
	if r.Recovery >= 0 {
		recovery = r.Recovery.String()
	}
	number := func(decimals int, f float64) string { return fmt.Sprintf("%.*f", decimals, f) }
	return []string{r.scenario, number(1, r.Goodput), number(3, r.Ratio), fmt.Sprint(r.Refused), number(2, r.CallsEach()), number(2, r.ReturnsEach()),
		number(2, r.Load), fmt.Sprintf("%d/%d/%.1f", r.Least, r.Most, r.Mean), r.Longest.Round(time.Millisecond).String(), recovery,
		number(2, r.CPU.Seconds()/r.Length.Seconds()), strings.Join(append(wrong, r.notes...), "; ")}
}

func (r result) details() string {
	t := r.Tally
	text := fmt.Sprintf("\tadmitted by the distance of the processes: %v\n\taccepted in each of the first 100 seconds: %v\n\tcalls: %d reserve, %d return, %d others; %d connections, %d other commands, %d messages; longest queue %v; %d goroutines; %v CPU, %v real",
		r.Ways, r.Seconds[:min(100, len(r.Seconds))], t.Reserves, t.Returns, t.Others, t.Connections, t.Commands, t.Published, t.Longest.Round(time.Microsecond), r.Goroutines, r.CPU.Round(10*time.Millisecond), r.Real.Round(10*time.Millisecond))
	if r.Charged > 0 {
		text += fmt.Sprintf("\n\tcharged %d, admitted %d, %d replies lost", r.Charged, r.Sent, t.Lost)
	}
	if r.Errors > 0 {
		text += fmt.Sprintf("\n\t%d errors, the first: %v", r.Errors, r.Err)
	}
	return text
}
