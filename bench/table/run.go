package table

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// groups are the benchmarks that compare libraries.
var groups = []string{"Local", "Redis"}

// Run is the command "table". It runs the benchmarks of the current directory, copies their
// output to stderr, and writes the tables to stdout. With -from it reads the output of
// benchmarks from a file instead.
//
// Each round is a separate run of go test. A run with -count would take all samples of a
// benchmark in a row, and a slow moment of the machine would affect all of them.
func Run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("table", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bench := flags.String("bench", ".", "run the benchmarks that match this `pattern`")
	count := flags.Int("count", 5, "take the median of this many `rounds`")
	benchtime := flags.String("benchtime", "500ms", "run each benchmark for this `duration` in each round")
	short := flags.Bool("short", false, "shorten the benchmarks that take a minute")
	from := flags.String("from", "", "read the output of go test -bench from this `file` instead of running it")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 || *count < 1 {
		return errors.New("usage: table [-bench pattern] [-count rounds] [-benchtime duration] [-short] [-from file]")
	}
	var r Results
	if *from != "" {
		if err := r.parseFile(*from); err != nil {
			return err
		}
		return r.Markdown(stdout, groups...)
	}
	for range *count {
		if err := r.measure(stderr, "-bench="+*bench, "-benchtime="+*benchtime, fmt.Sprint("-short=", *short)); err != nil {
			return err
		}
	}
	return r.Markdown(stdout, groups...)
}

func (r *Results) parseFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return r.Parse(f)
}

func (r *Results) measure(stderr io.Writer, args ...string) error {
	var out bytes.Buffer
	cmd := exec.Command("go", append([]string{"test", "-run=^$", "-count=1"}, args...)...)
	cmd.Stdout = io.MultiWriter(&out, stderr)
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w", cmd, err)
	}
	return r.Parse(&out)
}
