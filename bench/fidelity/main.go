// Fidelity measures how well a rate limiter keeps the limits of a provider, and how much of them it
// uses. This library and others run in the same scenarios, in virtual time.
//
//	go run ./fidelity -quick              # tables, in less than 3 minutes
//	go run ./fidelity -json -svg charts   # every run in full length
//	go run ./fidelity -run '/(throttle|xtime-1)/rolling/'
//
// A scenario is a provider, a policy and a delay, and a [Run] is one client in one scenario.
// docs/fidelity.md describes them. The client is saturated: each of its workers waits for admission,
// sends a request, reads the response to its end, and starts again. A refused request is not
// repeated. This library's transport waits for the time in Retry-After. The other libraries leave
// Retry-After to their users, and here they ignore it.
//
// Utilization is what the provider accepted, divided by the upper bound ([Run.UpperBound]), over
// whole windows after the run has settled. Before that it depends on whether the client has the
// phase and the earlier requests, which the restart clients measure. Clients with tokens send the
// same sequence of requests, except that the order depends on the workers and that each process of a
// fleet has its own. The next request may not fit into what is left of a window, so utilization can
// be a percent too high by chance.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"github.com/apithrottle/throttle/bench/rig"
)

func main() { rig.Run("fidelity", command) }

// A config has the flags.
type config struct {
	quick, json bool
	svg         string
	seed        uint64
	match       regexp.Regexp
	stderr      io.Writer
}

// command makes the runs that its arguments select, and writes the results. It returns the exit
// code.
func command(t *testing.T, args []string, stdout, stderr io.Writer) int {
	c := config{stderr: stderr}
	f := flag.NewFlagSet("fidelity", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.BoolVar(&c.quick, "quick", false, "shorter runs: less than 3 minutes in all")
	f.BoolVar(&c.json, "json", false, "write an array of rows in JSON instead of tables")
	f.StringVar(&c.svg, "svg", "", "write charts into this `directory`")
	f.Uint64Var(&c.seed, "seed", 1, "seed of all random numbers")
	f.TextVar(&c.match, "run", regexp.MustCompile(""), "make only runs whose /client/provider/delay/policy matches this `regexp`")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program immediately
	rows, err := c.run(ctx, t)
	if err = cmp.Or(ctx.Err(), err); ctx.Err() == nil {
		err = errors.Join(err, c.write(stdout, rows))
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// run makes the runs that match -run.
func (c *config) run(ctx context.Context, t *testing.T) ([]Row, error) {
	runs := slices.DeleteFunc(Runs(c.quick, c.seed), func(r Run) bool { return !c.match.MatchString("/" + r.String()) })
	fmt.Fprintf(c.stderr, "%d runs in virtual time\n", len(runs))
	return inParallel(ctx, t, runs)
}

// inParallel makes runs, one on each processor at a time.
func inParallel(ctx context.Context, t *testing.T, runs []Run) ([]Row, error) {
	rows, errs := make([]Row, len(runs)), make([]error, len(runs))
	t.Run("virtual", func(t *testing.T) {
		for i, r := range runs {
			t.Run(r.String(), func(t *testing.T) {
				t.Parallel()
				if errs[i] = context.Cause(ctx); errs[i] == nil {
					rows[i], errs[i] = r.Virtual(t)
				}
			})
		}
	})
	return rows, errors.Join(errs...)
}

func (c *config) write(w io.Writer, rows []Row) error {
	if c.svg != "" {
		paths, err := writeCharts(c.svg, rows)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.stderr, paths)
	}
	if !c.json {
		writeTables(w, rows)
		return nil
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(rows)
}
