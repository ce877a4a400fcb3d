package queue

import (
	"slices"
	"time"

	"github.com/apithrottle/throttle/store"
)

const (
	retryStore = 250 * time.Millisecond // interval between calls to a store that does not answer
	minBatch   = 256                    // smallest limit of waiters in one call of Reserve
	maxBatch   = 4096                   // largest limit, if the store admits all of them at once
)

// calls are the call to the quota that is under way, and the reply to the last one.
type calls struct {
	// generation numbers the requests to the quota. Replies to requests of an earlier generation
	// are void.
	generation int
	// asking are the waiters for which the queue is asking the quota. The quota may already have
	// charged them.
	asking []*waiter
	// stale are waiters whose requests are under way but not in asking, because the queue was replaced
	// or they have stepped back. A quota that reserves has none.
	stale []*waiter
	// batchSize is the largest number of waiters in one call of Reserve.
	batchSize int
	// cancel cancels the call to the quota, if that may block. Otherwise it is nil.
	cancel func()
	// again is when to ask for more reservations behind the last one that a caller was admitted with.
	again time.Time
	// changed reports that the quota has changed since the queue last asked.
	changed bool
	// askedAt is when the call that is under way began, and repliedAt when the quota last replied.
	askedAt, repliedAt time.Time

	// err is why the last call had no reply. If nil, it had one.
	err error
	// retry is the waiter that must ask again, by the last reply.
	retry *waiter
	// retryAt is when to ask again if retry is the first waiter without a time, and readyAt when the
	// quota admits it at the soonest.
	retryAt, readyAt time.Time
	// decider is the tier for which a waiter has last had to wait, plus one.
	decider int
}

// includes reports whether the queue is asking for a waiter.
func (c *calls) includes(w *waiter) bool { return slices.Contains(c.asking, w) }

// abort cancels the call that is under way, if that may block. The queue then asks again.
func (c *calls) abort() {
	if c.cancel != nil {
		c.cancel()
	}
}

// end ends the call that is under way, and returns for which waiters it asked.
func (c *calls) end(now time.Time) (asked []*waiter) {
	asked = c.asking
	c.asking, c.cancel, c.repliedAt, c.retryAt, c.err = nil, nil, now, time.Time{}, nil
	return asked
}

// fail notes that a call had no reply.
func (c *calls) fail(err error, now time.Time) {
	c.err, c.retryAt, c.repliedAt = err, now.Add(retryStore), now
}

// wait notes that a waiter has to wait, by the reply to its request. Of several in one reply the first
// that has not left asks again, and the others are behind it.
func (c *calls) wait(w *waiter, d store.Decision, now time.Time) {
	if !c.retryAt.IsZero() && c.retry != nil && (!c.retry.out.Load() || w.out.Load()) {
		return
	}
	c.retry, c.retryAt, c.readyAt, c.decider = w, now.Add(d.Wait), now.Add(d.Ready), max(0, d.Tier+1)
}

// hasRefused reports whether the last reply of a quota that reserves holds for a waiter: also for one of a pool that has waited by then with
// a request equal to that of a caller ahead, which has been admitted elsewhere since, or will be. To ask at once
// would take another process's turn. That of a pause holds for all of them.
func (c *calls) hasRefused(w *waiter) bool {
	r := c.retry
	if w == r || r == nil || !r.Option.isChoice() || !w.Option.isChoice() {
		return w == r
	}
	return c.decider == 0 || w.Class == r.Class && w.Since.Before(c.repliedAt) && slices.Equal(w.Request.Cost, r.Request.Cost)
}

// changedNow notes that the quota has changed. The first waiter may ask at once.
func (c *calls) changedNow() { c.changed, c.retryAt = true, time.Time{} }

// mayHaveRoom notes that a waiter that was away may have left room. The first waiter may ask at once
// if the store answers.
func (c *calls) mayHaveRoom() {
	if c.changed = true; c.err == nil {
		c.retryAt = time.Time{}
	}
}

func (c *calls) dropStale(w *waiter) {
	c.stale = slices.DeleteFunc(c.stale, func(asked *waiter) bool { return asked == w })
}
