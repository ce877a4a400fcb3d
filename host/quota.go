package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/internal/reporter"
	"github.com/apithrottle/throttle/store"
)

// A quota is one limiter's quota of a key.
type quota struct {
	calls reporter.Calls
	store *Store
	name  []byte
	plan  *algorithms.Plan
	// text is the plan as text.
	text string

	line *lineage.Line
	// version is the plan's version in the line.
	version int64

	mu sync.Mutex // guards all below
	// seen is the result of the last transaction.
	seen txn
	// level is the number of consecutive back-offs of this process.
	level uint8
	// next is the quota under a plan that replaced its own. If nil, it has not been needed.
	next *quota
}

// A txn is the quota that a transaction reads from the file, and changes.
type txn struct {
	state
	// text is the text of the quota's plan. The file's record may have another plan.
	text   string
	now    algorithms.Moment
	ledger algorithms.Ledger
}

var (
	_ store.Quota     = (*quota)(nil)
	_ store.Lifecycle = (*quota)(nil)
	_ store.Feedback  = (*quota)(nil)
	_ order.Ordered   = (*quota)(nil)
)

func newQuota(s *Store, name []byte, plan *algorithms.Plan, line *lineage.Line, version int64, calls reporter.Calls) *quota {
	q := &quota{calls: calls, store: s, name: name, plan: plan, text: planText(plan), line: line, version: version}
	q.seen = txn{state: state{plan: q.text}, ledger: fresh(plan)}
	return q
}

// newest returns the quota or its successor under the newest plan.
func (q *quota) newest() *quota {
	for !q.line.IsNewest(q.version) {
		q = q.successor()
	}
	return q
}

func (q *quota) successor() *quota {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		plan, version := q.line.Newest()
		q.next = newQuota(q.store, q.name, plan, q.line, version, q.calls)
		q.next.seen, q.next.level = q.seen, q.level
		q.next.seen.ledger = plan.Convert(q.seen.ledger, q.seen.now)
	}
	return q.next
}

func (q *quota) Change(ctx context.Context, plan *algorithms.Plan) error {
	if err := validate(plan); err != nil {
		return err
	}
	// Apply all pending changes under the old plan. The next transaction converts the quota. If the
	// file is not available now, requests in flight land with their guard, and the next admission
	// converts the quota.
	_ = q.newest().transact(ctx, func(*txn) bool { return false })
	q.line.Change(plan)
	_ = q.newest().transact(ctx, func(*txn) bool { return true })
	q.store.notify(q.name, store.Replanned, 0)
	return nil
}

func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q = q.newest()
	return q, q.plan
}

// Idle is true: the file has the state.
func (q *quota) Idle() bool { return true }

// fresh returns the ledger of a quota that is not in the file. Nothing is used, except for what is
// unknown.
func fresh(p *algorithms.Plan) algorithms.Ledger {
	l := p.NewLedger()
	if start := p.Start(); !start.IsZero() {
		l.AssumeUsed(algorithms.Moment{At: start.UnixMicro(), Wall: start.UnixMicro()})
	}
	return l
}

// transact runs a transaction. decide receives the file's quota, and reports whether it has changed
// it.
func (q *quota) transact(ctx context.Context, decide func(t *txn) (changed bool)) error {
	return q.call(ctx, 0, decide)
}

// call runs and reports a transaction that decides a number of requests.
func (q *quota) call(ctx context.Context, requests int, decide func(t *txn) (changed bool)) (err error) {
	began := q.calls.Begin()
	defer func() { q.calls.End(began, requests, err) }()
	limited, leave, err := q.store.enter(ctx)
	if err != nil {
		return err
	}
	var t txn
	applied := 0
	err = q.store.update(limited, q.name, func(value []byte) (write []byte, err error) {
		var corrected bool
		if t, corrected, err = q.read(value); err != nil {
			return nil, err
		}
		applied = q.store.applyPending(q.name, &t)
		if decide(&t) || applied > 0 || corrected {
			write = q.write(&t)
		}
		t.state.ledger = nil // the file owns its memory
		return write, nil
	})
	q.store.dropPending(q.name, applied)
	paused := q.record(t, err)
	leave()
	if c, left := t.pause.Change(t.now); paused && left > 0 {
		q.store.notify(q.name, c, left)
	}
	return err
}

// record keeps the result of a transaction, and reports whether there was a pause since the last
// one.
func (q *quota) record(t txn, err error) (paused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		return false
	}
	paused = t.pause.Epoch != q.seen.pause.Epoch
	q.seen = t
	return paused
}

// read decodes the file's value.
func (q *quota) read(value []byte) (t txn, corrected bool, err error) {
	t.state = state{plan: q.text}
	if value != nil {
		if t.state, err = parse(value); err != nil {
			return t, false, err
		}
	}
	q.mu.Lock()
	known := q.seen.now.At
	q.mu.Unlock()
	t.text = q.text
	t.now, corrected = t.state.now(q.store.wall(), known)
	switch {
	case value == nil:
		t.ledger = fresh(q.plan)
	case t.plan == q.text:
		t.ledger, err = t.decode(q.plan)
	default:
		t.ledger, err = t.decodeAny()
		if err == nil {
			t.ledger = q.plan.Convert(t.ledger, t.now)
		}
	}
	return t, corrected, err
}

// write encodes the file's value.
func (q *quota) write(t *txn) []byte {
	t.last = t.now.At
	t.plan = q.text
	t.state.ledger, _ = t.ledger.AppendBinary(nil)
	return t.encode()
}

// enqueue adds a change that the next transaction of any quota of the key applies, whatever its
// plan.
func (q *quota) enqueue(apply func(t *txn)) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	q.store.pending[string(q.name)] = append(q.store.pending[string(q.name)], apply)
}

// applyPending applies the pending changes of a key, and returns their number.
func (s *Store) applyPending(name []byte, t *txn) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, apply := range s.pending[string(name)] {
		apply(t)
	}
	return len(s.pending[string(name)])
}

// dropPending forgets the changes that were applied. It does so after a failed transaction too,
// because the outcome of a failed transaction is unknown.
func (s *Store) dropPending(name []byte, applied int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pending := s.pending[string(name)]; len(pending) > applied {
		s.pending[string(name)] = pending[applied:]
	} else {
		delete(s.pending, string(name))
	}
}

// at returns the moment at which the wall clock showed a time, but no later than now. The clock may
// have stepped back since.
func (t *txn) at(wall int64) algorithms.Moment {
	wall = min(wall, t.now.Wall)
	return algorithms.Moment{At: wall + t.offset, Wall: wall}
}

func (q *quota) TryAcquire(ctx context.Context, r store.Request) (d store.Decision, err error) {
	if !q.line.IsNewest(q.version) {
		return store.Decision{Verdict: store.Moved, Tier: -1}, nil
	}
	if q.Order().IsBehind(r) {
		return store.Decision{Tier: -1, Wait: store.Forever, Recheck: true}, nil
	}
	err = q.call(ctx, 1, func(t *txn) bool {
		d = t.tryAcquire(r)
		return d.Verdict == store.Admitted
	})
	if err != nil {
		return store.Decision{}, err
	}
	d.Recheck = d.Verdict == store.Later // another process may refund a request
	q.mu.Lock()
	d.Level = q.level
	q.mu.Unlock()
	return d, nil
}

func (q *quota) Order() *order.Order { return q.line.Order() }

func (t *txn) tryAcquire(r store.Request) store.Decision {
	d := store.Decision{Tier: -1, Epoch: t.pause.Epoch}
	switch {
	case t.pause.Until > t.now.At:
		t.pause.Refuse(&d, t.now, &t.ledger, r)
	case r.IsDryRun():
		pause.DryRun(&d, t.now, &t.ledger, r)
	case pause.Take(&d, t.now, &t.ledger, r) && t.pause.Probe:
		t.pause.StartProbe(&d, t.now, &t.ledger, r)
	}
	return d
}

// Arrived is recorded in the file with the next transaction, which waiting callers of this process
// run at once. Until then the request counts as in flight, at most for its guard interval.
func (q *quota) Arrived(d store.Decision, cost []int64) {
	if d.Flight == algorithms.Landed && !d.Probe {
		return
	}
	wall := q.store.wall()
	q.enqueue(func(t *txn) {
		if t.text == q.text { // otherwise it lands with its guard
			t.ledger.Arrived(t.at(wall), d.Flight, cost)
		}
		t.pause.EndProbe(d, true)
	})
	q.store.notify(q.name, store.Freed, 0)
}

// Release does nothing, because the file keeps no concurrency tiers.
func (q *quota) Release(store.Decision, []int64) {}

// Settle does nothing, because the file keeps no estimates.
func (q *quota) Settle(store.Decision, []int64, []int64, func([]algorithms.Crossing)) {}

// Observe is recorded in the file with the next transaction.
func (q *quota) Observe(d store.Decision, cost []int64, seen []store.Observation) {
	q.enqueue(func(t *txn) {
		if t.text == q.text { // otherwise the readings are about other tiers
			t.exact = store.Observe(&t.ledger, t.now, d.At, cost, t.exact, seen)
		}
	})
}

// Unanswered leaves the request in flight. For a probe, it is recorded in the file with the next
// transaction.
func (q *quota) Unanswered(d store.Decision, _ []int64) {
	if d.Probe {
		q.enqueue(func(t *txn) { t.pause.EndProbe(d, false) })
		q.store.notify(q.name, store.Freed, 0)
	}
}

// setLevel sets the number of consecutive back-offs.
func (q *quota) setLevel(level uint8) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.level = level
}

// Passed ends the sequence of back-offs of this process. Each process counts its own.
func (q *quota) Passed(d store.Decision) {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.Epoch == q.seen.pause.Epoch {
		q.level = 0
	}
}

// Learned reports whether there are consecutive back-offs. The file does not contain them.
func (q *quota) Learned() bool {
	q = q.newest()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.level > 0
}

// Resume takes effect in other processes when they ask.
func (q *quota) Resume(ctx context.Context) error {
	q.newest().setLevel(0)
	err := q.newest().transact(ctx, func(t *txn) bool {
		t.pause = pause.State{Epoch: t.pause.Epoch}
		return true
	})
	if err == nil {
		q.store.notify(q.name, store.Eased, 0)
	}
	return err
}

func (q *quota) Return(ctx context.Context, d store.Decision, cost []int64) error {
	if d.Flight == algorithms.Landed && !d.Probe {
		return nil
	}
	wall := q.store.wall()
	q.enqueue(func(t *txn) {
		if t.text == q.text { // otherwise it lands with its guard
			t.ledger.Cancel(t.at(wall), d.Flight, cost)
		}
		t.pause.EndProbe(d, false)
	})
	err := q.newest().transact(ctx, func(*txn) bool { return false })
	q.store.notify(q.name, store.Eased, 0)
	return err
}

// Align is recorded in the file with the next transaction.
func (q *quota) Align(tier int, from, to time.Time) {
	wall, later := q.store.wall(), to.Add(time.Microsecond-1).UnixMicro()
	q.enqueue(func(t *txn) {
		if t.text == q.text { // otherwise it is about other tiers
			t.ledger.Boundary(t.at(wall), tier, from.UnixMicro()+t.offset, later+t.offset)
		}
	})
	q.store.notify(q.name, store.Freed, 0)
}

// Pause is recorded in the file with the next transaction, if other processes hold the file now.
func (q *quota) Pause(ctx context.Context, p store.Pause) (done store.Paused, err error) {
	q = q.newest()
	q.mu.Lock()
	level := q.level
	q.mu.Unlock()
	p.For = p.Length(level)
	end := time.Now().Add(p.For)
	done.For = p.For // if the file is not available
	err = q.transact(ctx, func(t *txn) bool {
		if done.Applied, done.For, done.Epoch = t.pause.Apply(p, t.now), 0, t.pause.Epoch; done.Applied {
			done.For = max(0, t.now.Until(t.pause.Until))
		}
		return done.Applied
	})
	switch {
	case errors.Is(err, store.ErrUnavailable):
		q.enqueue(func(t *txn) {
			if p.For = time.Until(end); p.For > 0 {
				t.pause.Apply(p, t.now)
			}
		})
	case done.Applied && err == nil:
		q.setLevel(p.Next(level))
	}
	return done, err
}

func (q *quota) Status(ctx context.Context) (s store.Status, err error) {
	err = q.newest().transact(ctx, func(t *txn) bool {
		s.Closed, s.Paused = t.pause.Status(t.now)
		s.Tiers, s.At = store.Tiers(&t.ledger, t.now), t.now.At
		return false
	})
	s.Shared = "a file of this host"
	return s, err
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	w := watcher(changed)
	return q.store.watch(q.name, &w)
}

// Close leaves the quota in the file until it equals a fresh one.
func (q *quota) Close() {
	if q.line.Close() { // requests in flight land with their guard
		q.store.mu.Lock()
		defer q.store.mu.Unlock()
		delete(q.store.pending, string(q.name))
	}
}

// Forecast works on the result of the last transaction.
func (q *quota) Forecast() store.Forecast {
	if !q.line.IsNewest(q.version) {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.seen
	return store.Foretell(&seen.ledger, func() algorithms.Moment { return seen.current(q.store) }, seen.pause.Opens(seen.current(q.store)))
}

// Soonest works on the result of the last transaction.
func (q *quota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	if !q.line.IsNewest(q.version) {
		return 0, -1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.seen.current(q.store)
	return store.Soonest(&q.seen.ledger, now, q.seen.pause.Opens(now), cost, headroom)
}

// current returns the present moment by the clock of the transaction.
func (t *txn) current(s *Store) algorithms.Moment {
	known := t.state
	now, _ := known.now(s.wall(), t.now.At)
	return now
}
