package batch

import (
	"errors"
	"fmt"
	"time"

	"github.com/apithrottle/throttle"
)

// ErrTooManyFailed is the error of a job of which more items have failed than MaxFailed or MaxInARow allow.
var ErrTooManyFailed = errors.New("batch: too many items failed")

// A RefusedError is the error of a Do whose request the API refused for lack of quota. Run pauses the Limiter
// or the Pool, unless the job has a Transport, which pauses by itself, and calls Do again for the item.
type RefusedError struct {
	// Wait is how long the API asked to wait. If zero, the limiter chooses the time of its back-off.
	Wait time.Duration
	// Err is the error as the client of the API returned it. If nil, there is none.
	Err error
}

func (e *RefusedError) Error() string {
	if e.Err != nil {
		return "batch: refused: " + e.Err.Error()
	}
	return "batch: refused for lack of quota"
}

func (e *RefusedError) Unwrap() error { return e.Err }

// An ItemError is the error of an item that has failed.
type ItemError struct {
	Key string
	// Calls is how often Do was called.
	Calls int
	Err   error
}

func (e *ItemError) Error() string { return fmt.Sprintf("batch: item %s: %v", e.Key, e.Err) }
func (e *ItemError) Unwrap() error { return e.Err }

// A PanicError is the error of an item whose Do, Cost or Retry panicked.
type PanicError struct {
	// Value is the argument of panic.
	Value any
	// Stack is the stack of the goroutine, as debug.Stack returns it.
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("batch: panic: %v", e.Value) }

// AnyError is a Job.Retry that calls Do again after every error except a panic.
func AnyError(err error) bool {
	var p *PanicError
	return !errors.As(err, &p)
}

// endsJob reports whether an error of the limiter concerns all items: no other item would be admitted.
func endsJob(err error) bool {
	return errors.Is(err, throttle.ErrBanned) || errors.Is(err, throttle.ErrExhausted) || errors.Is(err, throttle.ErrClosed)
}

// isLater reports whether the limiter refused a request because too many wait, or too long.
func isLater(err error) bool {
	return errors.Is(err, throttle.ErrDeadline) || errors.Is(err, throttle.ErrQueueFull)
}
