package admit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// The reasons for which a request is refused, beside those of a queue.
const (
	ExceedsCapacity = queue.Closed + 1 + iota // the cost exceeds the capacity of a tier
	NeedsPermit                               // a policy limits concurrency
	TooManyKeys                               // the Group is full
)

// The bounds of a wait.
const (
	BoundContext = "context" // the deadline of the context
	BoundMaxWait = "MaxWait" // Policy.MaxWait
	BoundSendBy  = "SendBy"  // Demand.SendBy
)

// A Refusal reports that a request was not admitted and that nothing was charged.
type Refusal struct {
	Policy *Policy // of the scope that decided
	Tier   int     // of its plan that decided; -1 if none did
	Reason queue.Reason
	Wait   time.Duration // how long the request would have waited; zero if no wait helps, or none is known
	Ahead  int           // how many callers of this process were ahead
	Bound  string        // what the wait would outlast; empty if the call does not wait
	Until  time.Time     // when the quota opens again; zero if that is not known
	Cause  error         // why the store is unavailable

	// Cost is the cost in the Unit of the tier whose capacity it exceeds.
	Cost int64
	Unit string
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("admit: policy %q: reason %d, tier %q, wait %v", r.Policy.Name, r.Reason, r.Policy.TierName(r.Tier), r.Wait)
}

// Unwrap returns what the root's error for the refusal matches beside its own reasons.
func (r *Refusal) Unwrap() []error {
	switch r.Reason {
	case queue.Late:
		return []error{context.DeadlineExceeded}
	case queue.Unavailable:
		return []error{store.ErrUnavailable, r.Cause}
	}
	return nil
}

// refusal returns the error for a queue's refusal. It announces the thresholds of budgets that
// were crossed.
func (c *Policy) refusal(r *queue.Refusal) *Refusal {
	c.alert(r.Crossed)
	e := c.refuse(r.Reason, r.Tier, r.Wait)
	e.Ahead, e.Cause = r.Ahead, r.Cause
	if r.Reason == queue.Banned || r.Reason == queue.Exhausted && r.Wait < store.Forever {
		e.Until = time.Now().Add(r.Wait)
	}
	return e
}

// refuse returns a refusal by a tier of the plan, or by none if that is -1.
func (c *Policy) refuse(reason queue.Reason, tier int, wait time.Duration) *Refusal {
	e := &Refusal{Policy: c, Tier: tier, Reason: reason}
	if wait < store.Forever {
		e.Wait = wait
	}
	return e
}

// TooLate returns the refusal of a request whose SendBy is too near.
func (c *Policy) TooLate() *Refusal {
	e := c.refusal(&queue.Refusal{Reason: queue.Late, Tier: -1})
	e.Bound = BoundSendBy
	return e
}

// refused returns the error for what a quota has refused.
func (c *Policy) refused(d store.Decision) error {
	r := &queue.Refusal{Reason: queue.Banned, Tier: d.Tier, Wait: d.Wait, Crossed: d.Crossed}
	if d.Verdict == store.Exhausted {
		r.Reason = queue.Exhausted
	}
	return c.refusal(r)
}

// explain returns the error of a wait: a refusal, the context's own error as it is, or
// the error of a store that will not do better later.
func (c *Policy) explain(err error) error {
	var refusal *queue.Refusal
	var outer *queue.Final
	switch {
	case errors.As(err, &outer): // of another scope
		if e, ok := outer.Err.(*Refusal); ok {
			own := *e // other callers may have the same error
			return &own
		}
		return outer.Err
	case errors.As(err, &refusal):
		return c.refusal(refusal)
	case err == context.Canceled || err == context.DeadlineExceeded:
		return err
	}
	return fmt.Errorf("throttle: policy %q: %w", c.Name, err)
}

func isFinal(err error) bool { return errors.As(err, new(*queue.Final)) }

// decisionError returns the error for a quota's reply to a request that it did not admit, or nil if
// the request may wait. A caller that does not wait, or whose context has ended, gets
// store.ErrUnavailable; otherwise the queue waits for the store.
func (c *Policy) decisionError(ctx context.Context, d store.Decision, err error, noWait bool) error {
	switch {
	case errors.Is(err, store.ErrUnavailable) && !noWait && ctx.Err() == nil && !isFinal(err):
		return nil
	case err != nil:
		return c.explain(err)
	case d.Verdict == store.Closed || d.Verdict == store.Exhausted:
		return c.refused(d)
	}
	return nil
}
