// Package cli is the command throttle. Each verb has a file of its own.
//
// Results go to Stdout, everything else to Stderr. With --json each verb writes JSON. Each flag can be
// set by an environment variable: --max-wait by THROTTLE_MAX_WAIT.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// The exit codes, those of sysexits.h.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 64 // a bad flag or argument
	exitUnavailable = 69 // the store is away
	exitRefused     = 75 // refused for now: a later call may succeed
	exitConfig      = 78 // a bad policy or configuration
)

// A System is what the command uses of the process that it runs in.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// OS returns the System of this process.
func OS() System { return System{os.Stdin, os.Stdout, os.Stderr, os.Getenv} }

// isTerminal reports whether a writer is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colors reports whether output to a writer may have colors.
func (s System) colors(w io.Writer) bool {
	return isTerminal(w) && s.Getenv("NO_COLOR") == "" && s.Getenv("TERM") != "dumb"
}

// A command is one run of the command.
type command struct {
	System
	json bool
}

// Main runs the command and returns its exit code.
func Main(ctx context.Context, s System, args []string) int {
	c := &command{System: s}
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := exitCode(err)
	var exited *exitError
	if err != nil && !errors.As(err, &exited) {
		fmt.Fprintln(s.Stderr, "throttle:", strings.TrimPrefix(err.Error(), "throttle: "))
	}
	return code
}

// root returns the command with all of its verbs.
func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "throttle",
		Short:         "Keep to the limits of APIs",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown verb %q: see throttle --help", args[0])
			}
			return nil
		},
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.readEnvironment(cmd.Flags()) },
	}
	root.SetIn(c.Stdin)
	root.SetOut(c.Stdout)
	root.SetErr(c.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.PersistentFlags().BoolVar(&c.json, "json", false, "write JSON")
	root.AddCommand(c.exec(), c.inspect(), c.plan(), c.providers(), c.proxy(), c.replay(), c.status(), c.top(), c.validate(), c.version(), c.wait())
	return root
}

// readEnvironment sets the flags that the command line does not set from the environment.
func (c *command) readEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		name := "THROTTLE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := c.Getenv(name)
		if f.Changed || value == "" || err != nil {
			return
		}
		if e := flags.Set(f.Name, value); e != nil {
			err = usagef("%s is %q: %w", name, value, e)
		}
	})
	return err
}

// print writes a result: v as JSON with --json, or else what text writes.
func (c *command) print(v any, text func(io.Writer) error) error {
	if !c.json {
		return text(c.Stdout)
	}
	e := json.NewEncoder(c.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// A usageError is the error of a bad flag or argument.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// A configError is the error of a bad policy or configuration.
type configError struct{ error }

func (e *configError) Unwrap() error { return e.error }

// An exitError ends the command with a code and without a message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// exitCode returns the exit code for an error.
func exitCode(err error) int {
	var usage *usageError
	var config *configError
	var exited *exitError
	var refused *throttle.WaitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exited):
		return exited.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &config):
		return exitConfig
	case errors.Is(err, throttle.ErrUnavailable):
		return exitUnavailable
	case errors.As(err, &refused):
		return exitRefused
	}
	return exitFailure
}
