package throttle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apithrottle/throttle/store"
)

// What a caller may decide on. Every refusal is a [*WaitError] that unwraps to one
// of these.
var (
	// ErrDeadline says that the wait would outlast the context's deadline or
	// MaxWait. The error also matches context.DeadlineExceeded.
	ErrDeadline = errors.New("would wait past the deadline")

	// ErrNever says that the cost is above a tier's capacity: no wait helps.
	ErrNever = errors.New("costs more than the tier ever admits at once")

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

// Timeout tells whether it was for lack of time, as net.Error has it.
func (e *WaitError) Timeout() bool { return e.Err == ErrDeadline }
