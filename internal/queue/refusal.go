package queue

import (
	"fmt"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// A Reason is why a request is refused.
type Reason uint8

// The reasons.
const (
	Late        Reason = iota // it would wait past the deadline
	Full                      // MaxQueue callers wait
	Banned                    // the provider closed the quota for Wait
	Exhausted                 // a budget has no room for Wait
	Unavailable               // the store did not answer: Cause says why
	Closed                    // the queue is closed
	Moved                     // the quota has a successor: see Queue.Replace
	Stale                     // the request was made for another configuration: see Ticket.Version
)

var reasons = [...]string{"late", "queue is full", "banned", "exhausted", "unavailable", "closed", "moved", "stale"}

// A Refusal reports that a request was not admitted and nothing was charged.
type Refusal struct {
	Reason Reason
	Tier   int           // of the plan, that decides; -1 for none
	Wait   time.Duration // how long the wait would have been, if known
	Ahead  int           // callers ahead in this queue
	Cause  error         // of Unavailable
	Place  Place         // of a caller that has Moved

	Crossed []algorithms.Crossing // what the decision tells besides
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("queue: %s: wait %v, tier %d, %d ahead", reasons[r.Reason], r.Wait, r.Tier, r.Ahead)
}

// Final is an error of Ticket.Ask that ends the wait, though asking again might not fail.
type Final struct{ Err error }

func (f *Final) Error() string { return f.Err.Error() }

// Unwrap returns the error.
func (f *Final) Unwrap() error { return f.Err }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }
