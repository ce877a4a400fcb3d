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
	Exhausted                 // a budget can't admit the request for Wait
	Unavailable               // the store did not answer: see Cause
	Closed                    // the queue is closed
)

var reasons = [...]string{"late", "queue is full", "banned", "exhausted", "unavailable", "closed"}

// A Refusal reports that a request was not admitted and nothing was charged.
type Refusal struct {
	Reason Reason
	// Tier is the index of the tier that decides, or -1 if none does.
	Tier int
	// Wait is how long the wait would have been, if known.
	Wait time.Duration
	// Ahead is the number of callers ahead in this queue.
	Ahead int
	// Cause is the cause of Unavailable.
	Cause error

	// Crossed are the crossings of the decision.
	Crossed []algorithms.Crossing
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("queue: %s: wait %v, tier %d, %d ahead", reasons[r.Reason], r.Wait, r.Tier, r.Ahead)
}

// Final is an error of Ticket.Ask that ends the wait even if asking again might succeed.
type Final struct{ Err error }

func (f *Final) Error() string { return f.Err.Error() }

// Unwrap returns the error.
func (f *Final) Unwrap() error { return f.Err }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }
