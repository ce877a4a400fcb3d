package queue

import (
	"context"
	"errors"
	"sync"

	"github.com/apithrottle/throttle/store"
)

// A Choice is what the tickets of a caller share that waits in several queues. The queue that takes it
// first admits the caller. The zero Choice is ready for use.
type Choice struct {
	mu sync.Mutex
	// taken is the option that was taken, plus one. If zero, none was.
	taken int
}

// Take takes the choice for an option, and reports whether that option has it now.
func (c *Choice) Take(option int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == 0 {
		c.taken = option + 1
	}
	return c.taken == option+1
}

// giveBack lets the other queues admit the caller again.
func (c *Choice) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken = 0
}

// ErrAdmitted is the cause of the end of a context whose caller another queue has admitted. In a queue that
// only keeps places the caller then counts as admitted.
var ErrAdmitted = errors.New("queue: the caller is admitted")

// errTaken ends the wait of a caller that another queue has admitted.
var errTaken error = &Final{errors.New("queue: another queue has admitted the caller")}

// take reports whether this queue may admit the waiter.
func (w *waiter) take() bool { return w.Choice == nil || w.Choice.Take(w.Option) }

// tryAcquire asks the quota for the waiter. A quota that does not block is not asked for a caller that
// another queue has admitted, and no other queue asks meanwhile. What another one admits too late, the
// caller gives back.
func (w *waiter) tryAcquire(ctx context.Context, c *Config, r store.Request) (store.Decision, error) {
	if w.Choice == nil || c.Fast == nil {
		return c.Quota.TryAcquire(ctx, r)
	}
	w.Choice.mu.Lock()
	defer w.Choice.mu.Unlock()
	if w.Choice.taken != 0 {
		return store.Decision{}, errTaken
	}
	d, err := c.Quota.TryAcquire(ctx, r)
	if err == nil && d.Verdict == store.Admitted {
		w.Choice.taken = w.Option + 1
	}
	return d, err
}
