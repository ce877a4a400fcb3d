package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/apithrottle/throttle"
)

// mostLine is how many bytes a line has at most.
const mostLine = 16 << 20

func (c *command) lines() *cobra.Command {
	var f turnFlags
	cmd := &cobra.Command{
		Use:        "lines --policy LIMITS [FLAG...] < FILE",
		Short:      "Copy lines, each in its turn, for xargs and loops",
		SuggestFor: []string{"xargs", "pipe", "pv"},
		Long: `Copy each line of the standard input to the standard output when its turn has
come. Each line costs one request, or what --cost says. Empty lines cost nothing.
The limits may also be the only argument: throttle lines 5/s.

Without --name, the limits are for this command alone. With --name, it shares the
quota with exec, wait and all other programs that give that name.

The turn is that of the line, not of what reads it. If a reader falls behind, lines
collect in the pipe, and the reader then takes them as fast as it can. So give
xargs enough processes, such as -P8, and one line a process: -n1 or -I{}. Where that
is not enough, run exec in xargs instead: it waits when the command is about to run.

After the first line that may not wait any longer (--max-wait), lines ends with 75. A
signal, or a reader that has ended, ends it at once. A line that was not written costs
nothing.

` + exitHelp,
		Example: `  throttle lines 5/s < urls.txt | xargs -n1 -P8 curl -fsS -O
  throttle lines --policy '5/s + 10000/h' --name coinbase < ids.txt | while read -r id; do ./send "$id"; done
  tail -f queue.txt | throttle lines --redis redis://localhost:6379 --policy 100/min --name mail --class batch`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && f.policy != "":
				return usagef("lines has --policy %s and the argument %q: leave one out", f.policy, args[0])
			case len(args) > 0 && args[0] != "" && isFile(args[0]):
				return usagef("lines reads the standard input: write throttle lines --policy 5/s < %s", args[0])
			case len(args) > 1:
				return usagef("lines takes one argument, the limits: got %q, too", args[1])
			case len(args) == 1:
				return cmd.Flags().Set("policy", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return c.copyLines(cmd, &f) },
	}
	f.register(cmd)
	return cmd
}

// copyLines copies the lines of the standard input.
func (c *command) copyLines(cmd *cobra.Command, f *turnFlags) error {
	f.private = f.name == "" && !f.store.given()
	if f.private && f.key != "" {
		return usagef("--key is of --name: add --name, or leave --key out")
	}
	t, err := c.turn(cmd, f)
	if err != nil {
		return err
	}
	defer t.close()
	if t.holds() {
		return t.errHolds()
	}
	if f.private && slices.ContainsFunc(t.policy.Tiers, throttle.Tier.Learns) {
		return &configError{errors.New("a rate is learned from refusals, of which lines knows none: write a limit without learn, or send the requests through throttle proxy")}
	}
	signal.Ignore(syscall.SIGPIPE) // a write returns an error instead
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	read, readErr := c.readLines(ctx)
	for {
		select {
		case line, ok := <-read:
			if !ok {
				return *readErr
			}
			if err := t.copyLine(ctx, line); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// copyLine writes a line when its turn has come.
func (t *turn) copyLine(ctx context.Context, line []byte) error {
	if len(bytes.TrimRight(line, "\r\n")) == 0 {
		_, err := t.Stdout.Write(line)
		return readerGone(err)
	}
	began := time.Now()
	permit, err := t.waitIn(ctx)
	if err != nil {
		return t.refusedOn(t.Stderr, err, began)
	}
	if _, err := t.Stdout.Write(line); err != nil {
		permit.Cancel(context.WithoutCancel(ctx))
		return readerGone(err)
	}
	permit.Release()
	return nil
}

// readerGone returns the error of a write. If its reader has ended, the command ends as other commands do
// then: without a message.
func readerGone(err error) error {
	if errors.Is(err, syscall.EPIPE) {
		return &exitError{128 + int(syscall.SIGPIPE)}
	}
	return err
}

// readLines reads lines, each with its end, in a goroutine. The error is known when the channel is closed.
// A read that never returns ends with the process.
func (c *command) readLines(ctx context.Context) (<-chan []byte, *error) {
	lines := make(chan []byte)
	var failed error
	go func() {
		defer close(lines)
		in := bufio.NewScanner(c.Stdin)
		in.Buffer(nil, mostLine)
		in.Split(wholeLines)
		n := 0
		for ; in.Scan(); n++ {
			select {
			case lines <- bytes.Clone(in.Bytes()):
			case <-ctx.Done():
				return
			}
		}
		if failed = in.Err(); errors.Is(failed, bufio.ErrTooLong) {
			failed = fmt.Errorf("line %d has more than %d MB", n+1, mostLine>>20)
		}
	}()
	return lines, &failed
}

// wholeLines splits a text into lines, each with its end.
func wholeLines(data []byte, atEnd bool) (advance int, line []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEnd && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
