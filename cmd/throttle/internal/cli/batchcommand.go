package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/batch"
)

const (
	// mostOutput is how many bytes a command may write to its standard output.
	mostOutput = 16 << 20
	// keptErrors is how many of the last bytes of a command's standard error are kept.
	keptErrors = 64 << 10
	// mostReason is how many bytes of the last line of these are in a reason.
	mostReason = 200
	// killAfter is how long a command may run on after SIGTERM, and its output stay open after its end.
	killAfter = 2 * time.Second
	// leastStart is how long a command may take to start, however short the guard is.
	leastStart = 20 * time.Millisecond
)

// A commandError is the error of a command that has failed.
type commandError struct {
	code   *int   // nil if it was not started
	how    string // such as "exit code 1"
	stdout []byte
	stderr []byte // its end
	call   int    // of the item, from 1
}

// Error returns how the command has failed, with the last line of its standard error.
func (e *commandError) Error() string {
	lines := bytes.FieldsFunc(e.stderr, func(c rune) bool { return c == '\n' || c == '\r' })
	for _, line := range slices.Backward(lines) {
		if last := bytes.TrimSpace(line); len(last) > 0 {
			return e.how + ": " + plain(strings.ToValidUTF8(string(last[:min(len(last), mostReason)]), "?"))
		}
	}
	return e.how
}

// commands runs a command for each record.
type commands struct {
	turn     *turn
	template template
	path     string // of the command, if that is the same for all
	byStdin  bool

	// ending ends when no command may start, and killing when commands must end at once.
	ending, killing context.Context

	starting sync.Mutex // held while a command is started: the system starts one at a time
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
		return nil, &commandError{how: err.Error(), call: r.calls}
	}
	return c.run(ctx, child, r)
}

// start starts a command. Where many start at once, the last ones would arrive later than the guard of the limits
// allows. They take a new turn, of which they get the permit. It is nil if the turn was that of ctx.
func (c *commands) start(ctx context.Context, child *exec.Cmd) (renewed *throttle.Permit, err error) {
	mayTake := max(leastStart, c.turn.policy.Guard/2) // the other half is for the command
	for began := time.Now(); ; began = time.Now() {
		c.starting.Lock()
		if time.Since(began) <= mayTake {
			err := child.Start()
			c.starting.Unlock()
			if err != nil {
				c.cancel(ctx, renewed)
			}
			return renewed, err
		}
		c.starting.Unlock()
		c.cancel(ctx, renewed)
		if renewed, err = c.acquireAgain(); err != nil {
			return nil, err
		}
	}
}

// acquireAgain waits for a new turn, also while the policy refuses requests that would wait too long.
func (c *commands) acquireAgain() (*throttle.Permit, error) {
	for {
		permit, err := c.turn.limiter.Acquire(c.ending, c.turn.cost)
		var refused *throttle.WaitError
		if !errors.As(err, &refused) || !errors.Is(err, throttle.ErrDeadline) && !errors.Is(err, throttle.ErrQueueFull) {
			return permit, err
		}
		select {
		case <-time.After(max(refused.Wait, 10*time.Millisecond)):
		case <-c.ending.Done():
			return nil, context.Canceled
		}
	}
}

// cancel gives a turn back: a new one, or else that of ctx.
func (c *commands) cancel(ctx context.Context, renewed *throttle.Permit) {
	if renewed == nil {
		renewed = batch.Permit(ctx)
	}
	_ = renewed.Cancel(context.WithoutCancel(ctx)) // else the turn is lost
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
	child.Env = append(c.turn.Environ(),
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
	renewed, err := c.start(ctx, child)
	var refused *throttle.WaitError
	switch {
	case c.ending.Err() != nil && errors.Is(err, context.Canceled), errors.As(err, &refused):
		return nil, err
	case err != nil:
		return nil, &commandError{how: startReason(err), call: r.calls}
	}
	defer renewed.Release()
	ended := make(chan struct{})
	go c.watch(ctx, child, ended)
	_ = child.Wait() // the exit code tells
	close(ended)
	if ctx.Err() != nil || c.killing.Err() != nil {
		kill(child) // what is left of its group
		return nil, context.Canceled
	}
	output, err := outcomeOf(child, out, talk, r.calls)
	switch {
	case err == nil:
		renewed.Passed()
	case codeOf(child.ProcessState) == exitRefused:
		_ = renewed.Refused(ctx, 0) // after an error the pause holds for this process
	}
	return output, err
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
	failed := &commandError{&code, fmt.Sprintf("exit code %d", code), out.bytes, talk.bytes, call}
	switch {
	case code == exitRefused:
		failed.how = "refused with exit code 75"
		return nil, &batch.RefusedError{Err: failed}
	case out.over:
		failed.how = fmt.Sprintf("it wrote more than %d MB to its standard output: let it write a file", mostOutput>>20)
	case code > 128 && !child.ProcessState.Exited():
		failed.how = fmt.Sprintf("ended by signal %d", code-128)
	case code == 0:
		return out.bytes, nil
	}
	return nil, failed
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
		return failed.Error()
	}
	return plain(strings.TrimPrefix(err.Error(), "throttle: "))
}
