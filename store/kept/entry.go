package kept

import (
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// An entry is what this process knows of one value, for all openers of its key.
type entry struct {
	name  []byte
	store *Store
	clock *timing.Clock // of the quota
	lease *lease        // nil if nothing is held
	// turn contains a value during a transaction.
	turn chan struct{}

	openers int         // guarded by Store.mu
	forgets *time.Timer // forgets the entry after a pause. Guarded by Store.mu

	mu sync.Mutex // guards all below
	// watchers are those of waiting callers.
	watchers map[*func(store.Change, time.Duration)]struct{}
	// pending is what this process has to report with the next transaction.
	pending []pending
	// known is the state after the last transaction.
	known known
	// voided is when an event was seen that voids the reservations made before.
	voided time.Time
	// paused is when a pause ends that this process keeps, because the keeper may not have it.
	paused time.Time
	// seen is when the last transaction ended.
	seen time.Time
	// due are the reservations of this process that are to come.
	due []span
	// alone is when a pause ends that this process has begun while the keeper was not available.
	alone time.Time
	// crossed are the percentages of calendar tiers that no caller has received yet.
	crossed []algorithms.Crossing
	// probes are the epochs whose probes wait for a response.
	probes map[int64]struct{}
	// failed reports that the last transaction failed. It may have reserved.
	failed bool
	// reporting reports that a transaction is about to report, and renewing that one is to renew the lease.
	reporting, renewing bool
	// failing is since when transactions have failed for reasons that may not pass.
	failing time.Time
}

// A pending change is applied by the next transaction.
type pending struct {
	apply func(t *txn)
	// again reports that it may be applied twice.
	again bool
}

// Known is what a process remembers of a state.
type known struct {
	at, offset      int64
	birth, revision int64
	// expires is when the value may be forgotten, by the keeper's clock.
	expires int64
	pause   pause.State
	level   uint8
}

// close closes the entry for one opener.
func (e *entry) close() {
	e.store.mu.Lock()
	e.openers--
	e.store.mu.Unlock()
	e.store.forget(e)
}

// isIdle reports whether forgetting the entry loses nothing.
func (e *entry) isIdle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease.isIdle() && len(e.pending) == 0 && !time.Now().Before(e.paused)
}

// isAlone reports whether this process has begun a pause that the keeper does not have.
func (e *entry) isAlone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Now().Before(e.alone)
}

// isClosed reports whether nobody has the key open.
func (e *entry) isClosed() bool {
	e.store.mu.Lock()
	defer e.store.mu.Unlock()
	return e.openers == 0
}

// enqueue adds a change that the next transaction applies, whatever its plan.
func (e *entry) enqueue(apply func(t *txn)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending = append(e.pending, pending{apply: apply})
}

// watch adds a watcher.
func (e *entry) watch(changed func(store.Change, time.Duration)) (stop func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchers[&changed] = struct{}{}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.watchers, &changed)
	}
}

func (e *entry) isWatched() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.watchers) > 0
}

// notify calls the watchers.
func (e *entry) notify(c store.Change, left time.Duration) {
	e.mu.Lock()
	watchers := make([]func(store.Change, time.Duration), 0, len(e.watchers))
	for w := range e.watchers {
		watchers = append(watchers, *w)
	}
	e.mu.Unlock()
	for _, w := range watchers {
		w(c, left)
	}
}

// remembers returns what the process knows of the state.
func (e *entry) remembers() *known {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.known
	return &k
}

// applyPending applies the pending changes, and returns their number.
func (e *entry) applyPending(t *txn) int {
	e.mu.Lock()
	pending := slices.Clone(e.pending)
	e.mu.Unlock()
	for _, p := range pending {
		p.apply(t)
	}
	return len(pending)
}

// dropPending forgets the changes that were applied. The outcome of a failed transaction is unknown, so it keeps only
// those that may be applied twice.
func (e *entry) dropPending(applied int, failed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = failed
	n := min(applied, len(e.pending))
	done := slices.DeleteFunc(slices.Clone(e.pending[:n]), func(p pending) bool { return !failed || !p.again })
	e.pending = append(done, e.pending[n:]...)
}

// endProbe ends the wait for the response to a probe with the next transaction.
func (e *entry) endProbe(d store.Decision, answered bool) {
	if !d.Probe {
		return
	}
	e.mu.Lock()
	delete(e.probes, d.Epoch)
	e.mu.Unlock()
	e.enqueue(func(t *txn) {
		if t.pause.EndProbe(d, answered) {
			t.changed, t.urgent = true, true
		}
	})
}

// mustReport reports whether the keeper lacks something that this process knows. It needs mu.
func (e *entry) mustReport() bool { return len(e.pending) > 0 || e.lease.differs() }

// hasFailed reports whether the last transaction failed.
func (e *entry) hasFailed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}
