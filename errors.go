package throttle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// What a caller may decide on. Every refusal is a [*WaitError] that unwraps to one
// of these.
var (
	// ErrDeadline says that the wait would outlast the context's deadline or
	// MaxWait. The error also matches context.DeadlineExceeded.
	ErrDeadline = errors.New("would wait past the deadline")

	// ErrExceedsCapacity says that the cost is above a tier's capacity: no wait helps.
	ErrExceedsCapacity = errors.New("costs more than the tier ever admits at once")

	// ErrExhausted says that a tier which is a budget has not enough left: it returns at
	// once, and Until is when there will be, if nothing is given back before.
	ErrExhausted = errors.New("the budget is used up until its period ends")

	// ErrQueueFull says that MaxQueue callers already wait.
	ErrQueueFull = errors.New("waiting room is full")

	// ErrBanned says that the provider closed the quota for longer than MaxPause.
	ErrBanned = errors.New("closed by the provider")

	// ErrNeedsPermit says that the policy limits concurrency, so that every
	// admission must be released: use Acquire.
	ErrNeedsPermit = errors.New("limits concurrency: use Acquire and release the permit")

	// ErrClosed says that the Limiter, or its key in a Group, was closed.
	ErrClosed = errors.New("limiter is closed")

	// ErrTooManyKeys says that a Group already keeps MaxKeys quotas.
	ErrTooManyKeys = errors.New("group keeps as many quotas as MaxKeys allows")

	// ErrUnavailable says that the shared store did not answer until the context
	// ended; the error also matches the context's own and the cause.
	ErrUnavailable = store.ErrUnavailable
)

// A WaitError is a refusal: the request was not admitted and nothing was charged.
type WaitError struct {
	Policy string        // the policy's name
	Tier   string        // the tier that refused, as ParsePolicy reads it; empty if it was none
	Wait   time.Duration // how long the wait would have been; zero where no wait helps or none is known
	Ahead  int           // callers of this process that were ahead
	Until  time.Time     // when the quota opens again, for ErrBanned, or the budget does, for ErrExhausted
	Err    error         // one of the errors above
	Cause  error         // why the store is unavailable, for ErrUnavailable
}

func (e *WaitError) Error() string {
	var b strings.Builder
	b.WriteString("throttle: ")
	if e.Policy != "" {
		fmt.Fprintf(&b, "policy %q ", e.Policy)
	}
	if e.Tier != "" {
		fmt.Fprintf(&b, "tier %s ", e.Tier)
	}
	b.WriteString(e.Err.Error())
	if e.Wait > 0 {
		fmt.Fprintf(&b, ": the wait is %v", e.Wait.Round(time.Microsecond))
	}
	if e.Ahead > 0 {
		fmt.Fprintf(&b, ", %d ahead", e.Ahead)
	}
	if !e.Until.IsZero() {
		fmt.Fprintf(&b, ", until %s", e.Until.UTC().Format(time.RFC3339))
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Unwrap returns the reason and the cause, and for lack of time
// context.DeadlineExceeded too.
func (e *WaitError) Unwrap() []error {
	switch {
	case e.Err == ErrDeadline:
		return []error{e.Err, context.DeadlineExceeded}
	case e.Cause != nil:
		return []error{e.Err, e.Cause}
	}
	return []error{e.Err}
}

// Timeout reports whether the refusal is for lack of time, as in net.Error.
func (e *WaitError) Timeout() bool { return e.Err == ErrDeadline }

// reasons are the errors for the reasons of a queue.
var reasons = map[queue.Reason]error{
	queue.Late:        ErrDeadline,
	queue.Full:        ErrQueueFull,
	queue.Banned:      ErrBanned,
	queue.Exhausted:   ErrExhausted,
	queue.Unavailable: ErrUnavailable,
	queue.Closed:      ErrClosed,
}

// refusal returns the error for a refusal under the policy: the one place where they are
// made. It announces the thresholds that come with it.
func (c *compiled) refusal(r *queue.Refusal) *WaitError {
	c.alert(r.Crossed)
	e := c.refuse(reasons[r.Reason], r.Tier, r.Wait)
	e.Ahead, e.Cause = r.Ahead, r.Cause
	if r.Reason == queue.Banned || r.Reason == queue.Exhausted && r.Wait < forever {
		e.Until = time.Now().Add(r.Wait)
	}
	return e
}

// refuse returns a refusal by a tier of the plan, or by none if that is -1.
func (c *compiled) refuse(reason error, tier int, wait time.Duration) *WaitError {
	e := &WaitError{Policy: c.policy.Name, Tier: c.tierName(tier), Err: reason}
	if wait < forever {
		e.Wait = wait
	}
	return e
}

func (c *compiled) tierName(tier int) string {
	if tier < 0 {
		return ""
	}
	return c.policy.Tiers[c.plan.Declared(tier)].String()
}

// refused returns the error for what a quota has refused.
func (c *compiled) refused(d store.Decision) error {
	r := &queue.Refusal{Reason: queue.Banned, Tier: d.Tier, Wait: d.Wait, Crossed: d.Crossed}
	if d.Verdict == store.Exhausted {
		r.Reason = queue.Exhausted
	}
	return c.refusal(r)
}

// explain returns the error of a wait: a refusal, the context's own error as it is, or
// the error of a store that will not do better later.
func (c *compiled) explain(err error) error {
	var refusal *queue.Refusal
	var outer *queue.Final
	switch {
	case errors.As(err, &outer):
		return outer.Err // of another scope
	case errors.As(err, &refusal):
		return c.refusal(refusal)
	case err == context.Canceled || err == context.DeadlineExceeded:
		return err
	}
	return fmt.Errorf("throttle: policy %q: %w", c.policy.Name, err)
}

// placeOf returns the place of a caller that has moved.
func placeOf(err error) queue.Place {
	var r *queue.Refusal
	errors.As(err, &r)
	return r.Place
}

// reasonOf returns why a queue refused, and a reason of its own for any other error.
func reasonOf(err error) queue.Reason {
	var r *queue.Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return queue.Reason(255)
}
