// Table runs the benchmarks of the current directory and prints their results as tables in
// Markdown. Some compare libraries case by case. The last one has all other measurements.
//
// Each round is a separate run of go test. A run with -count would take all samples of a benchmark
// in a row, and a slow moment of the machine would affect all of them.
//
// It also prints and draws the queue's benchmark of many waiting callers, from a file:
//
//	go test -run - -bench Scaling -benchtime 10000x ../internal/queue > out
//	go run ./cmd/table -from out -svg ../docs/scaling.svg
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

// groups are the benchmarks that compare libraries.
var groups = []string{"Local", "Redis"}

// run runs the benchmarks, copies their output to stderr, and writes the tables to stdout.
func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("table", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bench := flags.String("bench", ".", "run the benchmarks that match this `pattern`")
	count := flags.Int("count", 5, "take the median of this many `rounds`")
	benchtime := flags.String("benchtime", "500ms", "run each benchmark for this `duration` in each round")
	short := flags.Bool("short", false, "shorten the benchmarks that take a minute")
	from := flags.String("from", "", "read the output of go test -bench from this `file` instead of running it")
	svg := flags.String("svg", "", "draw the benchmark Scaling into this `file`")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0 || *count < 1:
		return errors.New("usage: table [-bench pattern] [-count rounds] [-benchtime duration] [-short] [-from file] [-svg file]")
	}
	var r results
	for range *count {
		out, err := os.ReadFile(*from)
		if *from == "" {
			out, err = measure(stderr, "-bench="+*bench, "-benchtime="+*benchtime, fmt.Sprint("-short=", *short))
		}
		if err == nil {
			err = r.parse(bytes.NewReader(out))
		}
		if err != nil {
			return err
		}
		if *from != "" {
			break
		}
	}
	if *svg != "" {
		if err := os.WriteFile(*svg, []byte(r.scaling().SVG()), 0o644); err != nil {
			return err
		}
	}
	return r.write(stdout, groups...)
}

func measure(stderr io.Writer, args ...string) ([]byte, error) {
	var out bytes.Buffer
	cmd := exec.Command("go", append([]string{"test", "-run=^$", "-count=1"}, args...)...)
	cmd.Stdout = io.MultiWriter(&out, stderr)
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%v: %w", cmd, err)
	}
	return out.Bytes(), nil
}
