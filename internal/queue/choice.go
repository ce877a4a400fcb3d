package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle/store"
)

// A Choice is what the tickets of a caller share that waits in several queues. The queue that takes it
// first admits the caller. The zero Choice is ready for use.
type Choice struct {
	// Returned is called, without a lock, after an option has given the choice back. Queues may have dismissed the
	// caller meanwhile, which then joins them again. If nil, nothing is called.
	Returned func()

	mu sync.Mutex
	// taken is the option that was taken. If nil, none was.
	taken *Option
}

// An Option is one of the tickets of a caller that waits in several queues.
type Option struct {
	// Of is the choice that the queue takes when it admits the caller. If nil, it takes none.
	Of *Choice
	// Told is called, without a lock, when a time was reserved for the caller that would fit no other
	// waiter. If nil, nothing is called.
	Told func(at time.Time)
}

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
