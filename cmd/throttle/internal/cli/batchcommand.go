package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
)

const (
	// mostOutput is how many bytes a command may write to its standard output.
	mostOutput = 16 << 20
	// keptErrors is how many of the last bytes of a command's standard error are kept.
	keptErrors = 64 << 10
	// killAfter is how long a command may run on after SIGTERM, and its output stay open after its end.
	killAfter = 2 * time.Second
)

// A commandError is the error of a command that has failed.
type commandError struct {
	code   *int // nil if it was not started
	reason string
	stdout []byte
	stderr []byte
	call   int // of the item, from 1
}

func (e *commandError) Error() string { return e.reason }

// commands runs a command for each record.
type commands struct {
	command  *command
	template template
	path     string // of the command, if that is the same for all
	byStdin  bool

	// killing ends when commands must end at once.
	killing context.Context
}

// costOf returns what the command of a record costs. A record that cannot be used costs nothing.
func (t *turn) costOf(r *record) throttle.Cost {
	if r.err == nil {
		return t.cost
	}
	nothing := throttle.Cost{}
	for _, unit := range countedUnits(t.policy) {
		nothing[unit] = 0
	}
	return nothing
}

// do runs the command for a record.
func (c *commands) do(ctx context.Context, r *record) ([]byte, error) {
	r.calls++
	child, err := c.prepare(ctx, r)
	if err != nil {
		_ = batch.Permit(ctx).Cancel(context.WithoutCancel(ctx))
		return nil, &commandError{reason: err.Error(), call: r.calls}
	}
	return c.run(ctx, child, r)
}

// prepare returns the command for a record.
func (c *commands) prepare(ctx context.Context, r *record) (*exec.Cmd, error) {
	if r.err != nil {
		return nil, r.err
	}
	child := &exec.Cmd{Path: c.path, Args: r.args}
	if c.path == "" {
		var err error
		if child.Path, err = exec.LookPath(r.args[0]); err != nil && !errors.Is(err, exec.ErrDot) {
			return nil, err
		}
	}
	if c.byStdin {
		child.Stdin = strings.NewReader(r.text + "\n")
	}
	child.Env = append(c.command.Environ(),
		"THROTTLE_ITEM_KEY="+r.key,
		"THROTTLE_IDEMPOTENCY_KEY="+batch.IdempotencyKey(ctx),
		"THROTTLE_TRY="+strconv.Itoa(r.calls),
	)
	return child, nil
}

// run runs a command. If ctx ends, the command receives SIGTERM, and some time later SIGKILL; if c.killing
// ends, at once.
func (c *commands) run(ctx context.Context, child *exec.Cmd, r *record) ([]byte, error) {
	out, talk := &limited{most: mostOutput}, &tail{most: keptErrors}
	child.Stdout, child.Stderr, child.WaitDelay = out, talk, killAfter
	ownGroup(child)
	if err := child.Start(); err != nil {
		_ = batch.Permit(ctx).Cancel(context.WithoutCancel(ctx))
		return nil, &commandError{reason: startReason(err), call: r.calls}
	}
	ended := make(chan struct{})
	go c.watch(ctx, child, ended)
	_ = child.Wait() // the exit code tells
	close(ended)
	if ctx.Err() != nil || c.killing.Err() != nil {
		kill(child) // what is left of its group
		return nil, context.Canceled
	}
	return outcomeOf(child, out, talk, r.calls)
}

// watch ends a command that has not ended when it must.
func (c *commands) watch(ctx context.Context, child *exec.Cmd, ended <-chan struct{}) {
	select {
	case <-ctx.Done():
		terminate(child)
	case <-c.killing.Done():
	case <-ended:
		return
	}
	late := time.NewTimer(killAfter)
	defer late.Stop()
	select {
	case <-late.C:
	case <-c.killing.Done():
	case <-ended:
		return
	}
	kill(child)
}

// outcomeOf returns what a command has written, or why it has failed.
func outcomeOf(child *exec.Cmd, out *limited, talk *tail, call int) ([]byte, error) {
	code := codeOf(child.ProcessState)
	failed := &commandError{&code, "", out.bytes, talk.bytes, call}
	switch {
	case code == exitRefused:
		failed.reason = withLast("refused with exit code 75", talk.bytes)
		return nil, &batch.RefusedError{Err: failed}
	case out.over:
		failed.reason = fmt.Sprintf("it wrote more than %d MB to its standard output: let it write a file", mostOutput>>20)
		return nil, failed
	case code > 128 && !child.ProcessState.Exited():
		failed.reason = withLast(fmt.Sprintf("ended by signal %d", code-128), talk.bytes)
		return nil, failed
	case code != 0:
		failed.reason = withLast(fmt.Sprintf("exit code %d", code), talk.bytes)
		return nil, failed
	}
	return out.bytes, nil
}

// withLast adds the last line that a command wrote to its standard error.
func withLast(reason string, talk []byte) string {
	lines := bytes.FieldsFunc(talk, func(c rune) bool { return c == '\n' || c == '\r' })
	for i := len(lines) - 1; i >= 0; i-- {
		if last := bytes.TrimSpace(lines[i]); len(last) > 0 {
			return reason + ": " + plain(strings.ToValidUTF8(string(last[:min(len(last), 200)]), "?"))
		}
	}
	return reason
}

// startReason returns why a command cannot be run.
func startReason(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner // without the name of the command
	}
	reason := "the command cannot be run: " + err.Error()
	if isTooLong(err) {
		reason += ": use --stdin"
	}
	return reason
}

// limited keeps what is written to it. Once that is too much, a write fails, which ends the command.
type limited struct {
	bytes []byte
	most  int
	over  bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.over = l.over || len(l.bytes)+len(p) > l.most; l.over {
		return 0, io.ErrShortWrite
	}
	l.bytes = append(l.bytes, p...)
	return len(p), nil
}

// tail keeps the last bytes that are written to it.
type tail struct {
	bytes []byte
	most  int
}

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if over := len(t.bytes) - t.most; over > t.most {
		t.bytes = append(t.bytes[:0], t.bytes[over:]...)
	}
	return len(p), nil
}

// retries returns what Job.Retry is for so many more calls.
func retries(n int) func(error) bool {
	return func(err error) bool {
		var failed *commandError
		return errors.As(err, &failed) && failed.code != nil && failed.call <= n
	}
}

// exitOf returns the exit code of an error; nil if there is none.
func exitOf(err error) *int {
	var failed *commandError
	if errors.As(err, &failed) {
		return failed.code
	}
	return nil
}

// reasonOf returns why an item has failed.
func reasonOf(err error) string {
	var failed *commandError
	if errors.As(err, &failed) {
		return cmp.Or(failed.reason, "failed")
	}
	return plain(strings.TrimPrefix(err.Error(), "throttle: "))
}
