package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// commandGuard is the Guard of a policy that has none. A command takes longer to start and to send
// its request than a program that is running.
const commandGuard = 100 * time.Millisecond

// turnFlags are the flags of exec and wait, which wait for their turn in a quota.
type turnFlags struct {
	quotaFlags
	cost    []string
	class   string
	maxWait time.Duration
	guard   time.Duration
	quiet   bool
}

func (f *turnFlags) register(cmd *cobra.Command) {
	f.registerCharge(cmd.Flags(), throttle.Normal)
	cmd.Flags().DurationVar(&f.maxWait, "max-wait", 0, "the longest `time` to wait; 0s does not wait (default no limit)")
}

// registerCharge registers the flags of a verb whose requests wait as long as they must.
func (f *turnFlags) registerCharge(flags *pflag.FlagSet, class throttle.Class) {
	f.quotaFlags.register(flags)
	flags.StringSliceVar(&f.cost, "cost", nil, "what a request costs, as `unit=n`, with commas between several; the unit is requests unless the policy names others")
	flags.StringVar(&f.class, "class", "", "the `class`: interactive, normal or batch; batch leaves the policy's headroom (default "+class.String()+")")
	flags.DurationVar(&f.guard, "guard", 0, "the longest `time` that the request takes to reach the API (default 100ms, or the policy's)")
	flags.BoolVar(&f.quiet, "quiet", false, "report nothing while waiting")
}

// turnHelp is what the help of exec and wait says about quotas.
const turnHelp = `Commands that give the same --name, and the same --key if they give one, share a
quota: through a file for the commands of one user on one machine, or through
Redis or PostgreSQL. A Go program with package host, distributed or postgres shares
it, too, if its policy has that name.

They should give the same policy. If they don't, tiers with the same algorithm,
window and unit keep what is charged, and each command admits what its own policy
allows beside that. A file and PostgreSQL forget a tier that a policy lacks when
that policy is used, unless a command has used the tier within the last minute.

A request counts from its turn until --guard later, when the API has received it at
the latest. Make --guard longer if the time that the command needs until its
request arrives varies by more than 100ms.

A command that is killed while it waits leaves nothing behind in a file. On a server
the time that it had reserved stays unused. $THROTTLE_STORE instead of --store keeps
a password out of the list of processes, and so do $PGPASSWORD and ~/.pgpass.`

// exitHelp lists the exit codes of exec, wait and lines.
const exitHelp = `Exit codes: 64 bad usage, 69 the file or server cannot be used, 75 refused for
now, such as by --max-wait, 78 a bad policy, 128 + n ended by signal n.`

// A turn waits in a quota.
type turn struct {
	*command
	store  place
	policy throttle.Policy
	cost   throttle.Cost
	class  throttle.Class
	quiet  bool
	atOnce bool // or not at all

	// asked reports that the quota has answered before.
	asked bool

	limiter *throttle.Limiter
	closer  io.Closer
}

// turn opens the quota that flags name. The caller closes the turn.
func (c *command) turn(cmd *cobra.Command, f *turnFlags) (*turn, error) {
	t := &turn{command: c, quiet: f.quiet}
	var err error
	if t.store, err = f.store.place(); err != nil {
		return nil, err
	}
	if t.policy, err = f.resolve(cmd.Name()); err != nil {
		return nil, err
	}
	if t.class, err = parseClass(f.class); err != nil {
		return nil, err
	}
	if err := t.setTimes(cmd.Flags(), f); err != nil {
		return nil, err
	}
	if t.cost, err = parseCosts(f.cost); err != nil {
		return nil, err
	}
	if err := t.checkCost(); err != nil {
		return nil, err
	}
	if f.private {
		t.policy.Name = cmp.Or(t.policy.Name, cmd.Name())
		t.closer = io.NopCloser(nil)
		t.limiter, err = throttle.New(t.policy, nil)
		return t, asConfigError(err)
	}
	s, closer, err := c.openStore(t.store)
	if err != nil {
		return nil, err
	}
	t.closer = closer
	if t.limiter, err = t.store.limiter(t.policy, f.key, s); err != nil {
		closer.Close()
		return nil, err
	}
	return t, nil
}

// setTimes sets how long the policy waits and its guard, as flags name them.
func (t *turn) setTimes(flags *pflag.FlagSet, f *turnFlags) error {
	switch {
	case f.maxWait < 0:
		return usagef("--max-wait is %v: it must be at least 0s", f.maxWait)
	case f.guard < 0:
		return usagef("--guard is %v: it must be at least 0s", f.guard)
	case flags.Changed("max-wait"):
		t.policy.MaxWait, t.atOnce = f.maxWait, f.maxWait == 0
	}
	switch {
	case f.guard > 0:
		t.policy.Guard = f.guard
	case flags.Changed("guard"):
		t.policy.Guard = throttle.NoGuard
	case t.policy.Guard == 0:
		t.policy.Guard = commandGuard
	}
	return nil
}

// checkCost returns an error for a cost that no wait admits.
func (t *turn) checkCost() error {
	fresh := t.policy
	fresh.MaxWait, fresh.AssumeUsed, fresh.Shadow = 0, false, false
	l, err := throttle.New(fresh, nil)
	if err != nil {
		return &configError{err}
	}
	if units := countedUnits(t.policy); t.cost == nil && !slices.Contains(units, algorithms.Requests) {
		return usagef("policy %q counts %s: name what the request costs with --cost %s=n", t.policy.Name, strings.Join(units, ", "), units[0])
	}
	if _, named := t.cost[algorithms.Nanodollars]; !named && slices.Contains(countedUnits(t.policy), algorithms.Nanodollars) {
		return usagef("policy %q has a limit in dollars: name what the request costs with --cost %s=n, in billionths of a dollar", t.policy.Name, algorithms.Nanodollars)
	}
	if _, err := l.Forecast(context.Background(), t.cost); err != nil && !errors.Is(err, throttle.ErrExhausted) {
		return &usageError{err}
	}
	return nil
}

// countedUnits returns the units that a policy counts.
func countedUnits(p throttle.Policy) (units []string) {
	for _, t := range p.Tiers {
		if unit := cmp.Or(t.Unit, algorithms.Requests); !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}
	return units
}

func parseClass(name string) (throttle.Class, error) {
	for _, class := range []throttle.Class{throttle.Normal, throttle.Interactive, throttle.Batch} {
		if name == class.String() {
			return class, nil
		}
	}
	if name == "" {
		return throttle.Normal, nil
	}
	return 0, usagef("--class is %q: it must be interactive, normal or batch", name)
}

// close ends the use of the quota.
func (t *turn) close() { report(t.limiter, t.closer) }

// wait waits for the turn. A signal ends the wait with the exit code of a process that it killed.
func (t *turn) wait(ctx context.Context) (*throttle.Permit, error) {
	ctx, stop := untilSignal(ctx)
	defer stop()
	return t.waitIn(ctx)
}

// waitIn waits for the turn in a context of untilSignal.
func (t *turn) waitIn(ctx context.Context) (*throttle.Permit, error) {
	permit, err := t.admit(throttle.WithClass(ctx, t.class))
	if err == nil {
		t.asked = true
		return permit, nil
	}
	if killed, ok := context.Cause(ctx).(*exitError); ok {
		return nil, killed
	}
	return nil, t.store.error(err)
}

func (t *turn) admit(ctx context.Context) (*throttle.Permit, error) {
	if t.atOnce || !t.asked {
		var f throttle.Forecast
		err := t.store.patiently(func() (err error) { // the store answers, and does not refuse at once
			f, err = t.limiter.Forecast(ctx, t.cost)
			return err
		})
		switch {
		case err != nil:
			return nil, err
		case t.atOnce && f.Wait > 0:
			return nil, &throttle.WaitError{Policy: t.policy.Name, Tier: f.Tier, Wait: f.Wait, Err: throttle.ErrDeadline}
		case t.atOnce:
			return t.limiter.TryAcquire(ctx, t.cost)
		}
	}
	defer t.announce(ctx)()
	return t.limiter.Acquire(ctx, t.cost)
}

// endSignals are the signals that end a command that waits.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// untilSignal returns a context that a signal ends, with an exitError as its cause. The end of ctx
// has no effect: it may come of the same signal, whose number it does not tell.
func untilSignal(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	signals := make(chan os.Signal, 1)
	for _, s := range endSignals {
		if !signal.Ignored(s) { // as nohup does
			signal.Notify(signals, s)
		}
	}
	go func() {
		select {
		case s := <-signals:
			cancel(&exitError{128 + int(s.(syscall.Signal))})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// announce says on the standard error that the command waits, once it has waited for a second: in a
// line, and of all its waits only the first, or on a terminal in a countdown. It ends when stop returns.
func (t *turn) announce(ctx context.Context) (stop func()) {
	if t.quiet {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	redraws := isTerminal(t.Stderr) && t.Getenv("TERM") != "dumb"
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for shown := false; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				if shown && redraws {
					fmt.Fprint(t.Stderr, "\r\x1b[K")
				}
				return
			}
			if shown && !redraws {
				continue
			}
			text := t.waiting(ctx)
			switch {
			case ctx.Err() != nil: // the turn has come
				continue
			case redraws:
				fmt.Fprintf(t.Stderr, "\r%s\x1b[K", text)
			default:
				fmt.Fprintln(t.Stderr, text)
				t.quiet = true
			}
			shown = true
		}
	}()
	return func() { cancel(); <-ended }
}

// waiting says what the command waits for.
func (t *turn) waiting(ctx context.Context) string {
	text := fmt.Sprintf("throttle: %s: waiting", t.policy.Name)
	status, err := t.limiter.Status(ctx)
	if err != nil {
		return text + " for " + t.store.where()
	}
	wait, tier := max(status.Paused, status.Closed), ""
	for _, s := range status.Tiers {
		if s.Limited && s.RetryAfter >= wait {
			wait, tier = s.RetryAfter, s.Tier.String()
		}
	}
	switch {
	case tier != "":
		text += " for " + tier
	case wait > 0:
		text += " for the end of a pause"
	}
	if wait > 0 && wait < math.MaxInt64 {
		text += ", at least " + (wait + time.Second - 1).Truncate(time.Second).String()
	}
	return text
}

// A waitResult is the result of wait, and of exec when it was refused.
type waitResult struct {
	Admitted bool `json:"admitted"`

	// Waited is how long the command has waited.
	Waited float64 `json:"waited_seconds"`

	// Wait is how long a request that was refused would have to wait. It is nil if that is not known.
	Wait *float64 `json:"wait_seconds,omitempty"`

	Name   string `json:"name"`
	Tier   string `json:"tier,omitempty"`   // that decides
	Reason string `json:"reason,omitempty"` // as throttle.RefusedInfo has it
	Error  string `json:"error,omitempty"`
}

// refusal returns the result of a refusal, or false for another error.
func (t *turn) refusal(err error, waited time.Duration) (r waitResult, ok bool) {
	var refused *throttle.WaitError
	if !errors.As(err, &refused) || exitCode(err) != exitRefused {
		return r, false
	}
	r = waitResult{
		Waited: waited.Seconds(), Name: t.policy.Name, Tier: refused.Tier,
		Reason: throttle.RefusedInfo{Err: err}.Outcome(), Error: err.Error(),
	}
	wait := refused.Wait
	if !refused.Until.IsZero() {
		wait = time.Until(refused.Until)
	}
	if wait > 0 && wait < math.MaxInt64 {
		s := wait.Seconds()
		r.Wait = &s
	}
	return r, true
}

// refusedOn returns the error of a wait that began at some time. With --json, a refusal is written instead.
func (t *turn) refusedOn(w io.Writer, err error, began time.Time) error {
	r, ok := t.refusal(err, time.Since(began))
	if !ok || !t.json {
		return err
	}
	if err := writeJSON(w, r); err != nil {
		return err
	}
	return &exitError{exitRefused}
}
