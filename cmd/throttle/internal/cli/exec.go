package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
)

// The exit codes of a shell for a command that it cannot run.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

func (c *command) exec() *cobra.Command {
	var f turnFlags
	cmd := &cobra.Command{
		Use:   "exec --policy LIMITS --name NAME [FLAG...] -- COMMAND [ARG...]",
		Short: "Run a command when its turn has come",
		Long: `Wait for a turn in a quota, charge the turn, and run a command in place of throttle.

` + turnHelp + `

The command gets the standard input, output and error as they are. After a second
throttle reports on the standard error that it waits.

A policy that counts until the end of a request, such as '20;algo=concurrency',
makes throttle stay, pass signals on, and report the end of the command. If
throttle itself is killed, its place is free after ten seconds.

With --json a refusal is JSON, on the standard error.

` + exitHelp + ` 126 the
command cannot be run, 127 there is no such command. Any other code is that of the
command.`,
		Example: `  throttle exec --policy '5/s + 10000/h' --name coinbase -- curl -fsS https://…
  seq 60 | xargs -P8 -I{} throttle exec --policy 5/s --name coinbase -- ./send {}
  throttle exec --store postgres://app@db/app --policy 5/s --name coinbase -- ./send
  throttle exec --redis redis://ci-redis:6379 --policy '4;algo=concurrency' --name deploys -- make deploy`,
		SuggestFor: []string{"run"},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("exec needs a command: throttle exec --policy 5/s --name coinbase -- curl …")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return c.waitAndRun(cmd, &f, args) },
	}
	cmd.Flags().SetInterspersed(false)
	f.register(cmd)
	return cmd
}

// waitAndRun runs a command when its turn has come.
func (c *command) waitAndRun(cmd *cobra.Command, f *turnFlags, args []string) error {
	path, err := c.find(args[0])
	if err != nil {
		return err
	}
	t, err := c.turn(cmd, f)
	if err != nil {
		return err
	}
	began := time.Now()
	permit, err := t.wait(cmd.Context())
	if err != nil {
		t.close()
		return t.refusedOn(c.Stderr, err, began)
	}
	if canReplace && !t.holds() {
		permit.Release()
		t.close()
		return c.cannotRun(args[0], replace(path, args))
	}
	defer t.close()
	code, err := c.run(path, args)
	if err != nil {
		permit.Cancel(context.Background())
		return c.cannotRun(args[0], err)
	}
	permit.Arrived()
	permit.Release()
	return &exitError{code}
}

// find returns the path of a command.
func (c *command) find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", c.cannotRun(name, err)
	}
	return path, nil
}

// cannotRun says why a command cannot be run, and returns the exit code for it.
func (c *command) cannotRun(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner // without the name of the command, which is said already
	}
	fmt.Fprintf(c.Stderr, "throttle: %s: %v\n", name, err)
	return &exitError{code}
}

// run runs a command beside this process until it ends, and passes signals on. It returns the exit
// code, 128 + n if signal n ended the command.
func (c *command) run(path string, args []string) (code int, err error) {
	child := &exec.Cmd{Path: path, Args: args, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedSignals()...)
	defer signal.Stop(signals)
	if err := child.Start(); err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if !fromTerminal(s) {
					_ = child.Process.Signal(s)
				}
			case <-ended:
				return
			}
		}
	}()
	_ = child.Wait()
	close(ended)
	return codeOf(child.ProcessState), nil
}
