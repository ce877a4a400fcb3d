package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A Choice is what the tickets of a caller share that waits in several queues. The queue that takes it
// first admits the caller. The zero Choice is ready for use.
type Choice struct {
	// Returned is called, without a lock, after an option has given the choice back. Queues may have dismissed the
	// caller meanwhile, which then joins them again. If nil, nothing is called.
	Returned func()

	mu sync.Mutex // guards all below, and Option.at
	// taken is the option that was taken. If nil, none was.
	taken *Option
	// options are those in whose queues the caller waits.
	options []*Option
}

// An Option is one of the tickets of a caller that waits in several queues.
type Option struct {
	// Of is the choice that the queue takes when it admits the caller. If nil, it takes none.
	Of *Choice
	// Told is called, without a lock, when a time was reserved for the caller that would fit no other
	// waiter. If nil, nothing is called.
	Told func(at time.Time)

	waiter *waiter // in the queue
	// at is the time that the queue has reserved for the caller. If zero, there is none.
	at time.Time
	// changed reports that another queue has reserved a time, or that such a time is lost.
	changed atomic.Bool
	// match is the number of the last match in which the queue had a time for the caller.
	match uint64
}

func (o *Option) isChoice() bool { return o != nil && o.Of != nil }

func (o *Option) join(w *waiter) {
	if o.isChoice() {
		o.Of.mu.Lock()
		defer o.Of.mu.Unlock()
		o.waiter, o.at = w, time.Time{}
		o.Of.options = append(o.Of.options, o)
	}
}

func (o *Option) leave() {
	if o.isChoice() {
		o.Of.mu.Lock()
		defer o.Of.mu.Unlock()
		o.set(time.Time{})
		o.Of.options = slices.DeleteFunc(o.Of.options, func(other *Option) bool { return other == o })
	}
}

// elsewhere returns the time that another queue has reserved for the caller, zero if there is none.
func (o *Option) elsewhere() (at time.Time) {
	if o.isChoice() {
		o.Of.mu.Lock()
		defer o.Of.mu.Unlock()
		at = o.earliestOther()
	}
	return at
}

func (o *Option) earliestOther() (at time.Time) {
	for _, other := range o.Of.options {
		if other != o {
			at = sooner(at, other.at)
		}
	}
	return at
}

// reserve records the time that the queue has reserved for the caller, zero for none. It reports false, and
// records none, if another queue has reserved one that is no later.
func (o *Option) reserve(at time.Time) bool {
	if !o.isChoice() {
		return true
	}
	o.Of.mu.Lock()
	defer o.Of.mu.Unlock()
	other := o.earliestOther()
	late := !other.IsZero() && !other.After(at)
	if late {
		at = time.Time{}
	}
	o.set(at)
	return !late
}

// set sets the time, and wakes the caller in the other queues that may now need their times more, or less. The
// caller holds the lock.
func (o *Option) set(at time.Time) {
	lost := !o.at.IsZero() && (at.IsZero() || at.After(o.at))
	if o.at.Equal(at) {
		return
	}
	o.at = at
	for _, other := range o.Of.options {
		if other != o && (lost || !other.at.IsZero()) {
			other.changed.Store(true)
			other.waiter.wakeUp()
		}
	}
}

// hasChanged reports whether another queue has reserved a time since it last returned true, or has lost one.
func (o *Option) hasChanged() bool { return o != nil && o.changed.Swap(false) }

// Take takes the choice for an option, and reports whether that option has it now.
func (c *Choice) Take(o *Option) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil {
		c.taken = o
	}
	return c.taken == o
}

// GiveBack lets the other queues admit the caller again, if the option has the choice.
func (o *Option) GiveBack() {
	if o != nil && o.Of != nil && o.Of.release(o) && o.Of.Returned != nil {
		o.Of.Returned()
	}
}

func (c *Choice) release(o *Option) (released bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if released = c.taken == o; released {
		c.taken = nil
	}
	return released
}

// ErrTaken ends the wait of a caller that another queue has admitted.
var ErrTaken = errors.New("queue: another queue has admitted the caller")

var errTaken error = &Final{ErrTaken}

// mayBeTaken reports whether some queue has taken the choice, or is asking its quota just now.
func (c *Choice) mayBeTaken() bool {
	if !c.mu.TryLock() {
		return true
	}
	defer c.mu.Unlock()
	return c.taken != nil
}

// IsTaken reports whether some queue has taken the choice.
func (c *Choice) IsTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken != nil
}

// take reports whether the queue may admit the caller.
func (o *Option) take() bool { return o == nil || o.Of == nil || o.Of.Take(o) }

// TryAcquire asks the quota for the caller. A quota that does not block takes the choice if it admits the caller.
// It is not asked for a caller that another queue has admitted, and no other queue asks meanwhile. What another
// quota admits too late, the caller gives back.
func (o *Option) TryAcquire(ctx context.Context, q Quota, blocks bool, r store.Request) (store.Decision, error) {
	if o == nil || o.Of == nil || blocks {
		return q.TryAcquire(ctx, r)
	}
	o.Of.mu.Lock()
	defer o.Of.mu.Unlock()
	if o.Of.taken != nil {
		return store.Decision{}, errTaken
	}
	d, err := q.TryAcquire(ctx, r)
	if err == nil && d.Verdict == store.Admitted {
		o.Of.taken = o
	}
	return d, err
}
