package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// The reasons for which a request is refused. Every refusal is a [*WaitError] that unwraps
// to one of these.
var (
	// ErrDeadline: the wait would outlast the context's deadline or Policy.MaxWait. The
	// error also matches context.DeadlineExceeded.
	ErrDeadline = errors.New("throttle: the wait would outlast the deadline")

	// ErrExceedsCapacity: the cost exceeds the capacity of a tier, so that no wait helps.
	ErrExceedsCapacity = errors.New("throttle: cost exceeds the capacity of a tier")

	// ErrExhausted: a budget has too little left. The refusal comes at once, and its Until is
	// when the budget has enough, if nothing is returned before.
	ErrExhausted = errors.New("throttle: budget is used up")

	// ErrQueueFull: Policy.MaxQueue callers already wait.
	ErrQueueFull = errors.New("throttle: queue is full")

	// ErrBanned: the provider has banned the caller, or asked for a longer pause than
	// Policy.MaxPause.
	ErrBanned = errors.New("throttle: the provider closed the quota")

	// ErrNeedsPermit: the policy limits concurrency, so every admission must be released.
	ErrNeedsPermit = errors.New("throttle: concurrency is limited: use Acquire and release the permit")

	// ErrClosed: the Limiter, or its key in a Group, was closed.
	ErrClosed = errors.New("throttle: limiter is closed")

	// ErrTooManyKeys: the Group already keeps GroupOptions.MaxKeys quotas.
	ErrTooManyKeys = errors.New("throttle: group has as many quotas as MaxKeys allows")

	// ErrUnavailable: the shared store did not answer before the context ended. The error
	// also matches the context's own error and the cause.
	ErrUnavailable = store.ErrUnavailable
)

// A Bound is what a wait must not outlast.
type Bound string

// The bounds of a wait.
const (
	BoundContext Bound = "context" // the deadline of the context
	BoundMaxWait Bound = "MaxWait" // Policy.MaxWait
	BoundSendBy  Bound = "SendBy"  // Transport.SendBy
)

// A WaitError is a refusal: the request was not admitted and nothing was charged.
type WaitError struct {
	// Policy is the name of the policy.
	Policy string

	// Tier is the tier that decided, as ParsePolicy reads it. If empty, no tier did.
	Tier string

	// Wait is how long the request would have waited. If zero, no wait helps, or none is known.
	Wait time.Duration

	// Ahead is how many callers of this process were ahead.
	Ahead int

	// Bound is what the wait would outlast, for ErrDeadline. If empty, the call does not wait, as
	// TryAcquire.
	Bound Bound

	// Until is when the quota opens again, for ErrBanned, or the budget has enough, for
	// ErrExhausted. If zero, the time is not known.
	Until time.Time

	// Err is the reason, one of the errors above.
	Err error

	// Cause is why the store is unavailable, for ErrUnavailable.
	Cause error

	cost  string // for ErrExceedsCapacity, such as "101 requests"
	named int64  // the capacity that responses name, if the policy has another one
}

// Error returns a text such as
//
//	throttle: policy "mail": the wait would outlast MaxWait: 12s for tier 5/s, 60 callers ahead
func (e *WaitError) Error() string {
	prefix, reason := "throttle: ", strings.TrimPrefix(e.Err.Error(), "throttle: ")
	if e.Policy != "" {
		prefix += fmt.Sprintf("policy %q: ", e.Policy)
	}
	if e.cost != "" {
		text := prefix + "cost of " + e.cost + " exceeds the capacity of tier " + e.Tier
		if e.named > 0 {
			text += fmt.Sprintf(", of which responses name %d", e.named)
		}
		return text
	}
	if e.Err == ErrDeadline && e.Bound != "" {
		reason = strings.Replace(reason, "the deadline", strings.Replace(string(e.Bound), string(BoundContext), "the context's deadline", 1), 1)
	}
	if !e.Until.IsZero() {
		reason += " until " + e.Until.UTC().Format(time.RFC3339)
	}
	var details []string
	switch wait := e.Wait.Round(time.Microsecond).String(); {
	case e.Wait > 0 && e.Until.IsZero() && e.Tier != "":
		details = append(details, wait+" for tier "+e.Tier)
	case e.Wait > 0 && e.Until.IsZero():
		details = append(details, wait)
	case e.Tier != "":
		details = append(details, "tier "+e.Tier)
	}
	if e.Ahead > 0 {
		details = append(details, plural(e.Ahead, "caller")+" ahead")
	}
	if len(details) > 0 {
		reason += ": " + strings.Join(details, ", ")
	}
	if e.Cause != nil {
		reason += ": " + e.Cause.Error()
	}
	return prefix + reason
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
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

// reasons are the errors for the reasons of a refusal.
var reasons = [...]error{
	queue.Late:            ErrDeadline,
	queue.Full:            ErrQueueFull,
	queue.Banned:          ErrBanned,
	queue.Exhausted:       ErrExhausted,
	queue.Unavailable:     ErrUnavailable,
	queue.Closed:          ErrClosed,
	admit.ExceedsCapacity: ErrExceedsCapacity,
	admit.NeedsPermit:     ErrNeedsPermit,
	admit.TooManyKeys:     ErrTooManyKeys,
}

// waitError returns the error of a call: a *WaitError for a refusal, and any other error as it is.
func waitError(err error) error {
	r, ok := err.(*admit.Refusal)
	if !ok {
		return err
	}
	e := &WaitError{
		Policy: r.Policy.Name, Tier: r.Policy.TierName(r.Tier), Wait: r.Wait, Ahead: r.Ahead,
		Bound: Bound(r.Bound), Until: r.Until, Err: reasons[r.Reason], Cause: r.Cause,
	}
	if r.Unit != "" {
		e.cost = r.Policy.Plan.Tiers()[r.Tier].FormatCost(r.Cost)
		if of := r.Policy.Plan; of.Tiers()[r.Tier].Capacity() != of.Base().Tiers()[r.Tier].Capacity() {
			e.named = of.Tiers()[r.Tier].Capacity()
		}
	}
	return e
}
