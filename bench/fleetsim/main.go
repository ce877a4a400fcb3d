package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

func main() {
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
	code := 0
	fmt.Fprintln(out, heading)
	for _, s := range scenarios() {
		if !names.MatchString(s.name) || s.large && *run == "" {
			continue
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
		r.scenario, r.Goodput, r.Ratio, r.Refused, r.CallsEach(), float64(r.Tally.Returns)/float64(max(1, r.Admitted)), r.Load,
		fmt.Sprintf("%d/%d/%.1f", r.Least, r.Most, r.Mean), r.Longest.Round(time.Millisecond), recovery,
		r.CPU.Seconds()/r.Length.Seconds(), strings.Join(wrong, "; "))
}

func (r result) details() string {
	t := r.Tally
	text := fmt.Sprintf("\taccepted in each second: %v\n\tcalls: %d reserve, %d return, %d others; %d connections, %d other commands, %d messages; longest queue %v; %d goroutines; %v CPU, %v real",
		r.Seconds, t.Reserves, t.Returns, t.Others, t.Connections, t.Commands, t.Published, t.Longest.Round(time.Microsecond), r.Goroutines, r.CPU.Round(10*time.Millisecond), r.Real.Round(10*time.Millisecond))
	if r.Charged > 0 {
		text += fmt.Sprintf("\n\tcharged %d, admitted %d", r.Charged, r.Sent)
	}
	if r.Errors > 0 {
		text += fmt.Sprintf("\n\t%d errors, the first: %v", r.Errors, r.Err)
	}
	return text
}
