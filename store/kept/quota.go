package kept

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/internal/reporter"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// A quota is one limiter's quota of a key. It reserves nothing ahead.
type quota struct {
	*entry
	calls reporter.Calls
	// given is the plan of the limiter, and plan the one that decides.
	given, plan *algorithms.Plan
	// text is the plan as text, and base that of its base.
	text, base string
	// replaces is the text of the plan that this one has replaced in this process, or empty.
	replaces string

	line *lineage.Line
	// version is the plan's version in the line.
	version int64

	// fastest is the plan with the highest rates that its tiers may learn: the plan itself if it learns none.
	fastest *algorithms.Plan

	mu sync.Mutex // guards all below
	// seen is the ledger and the pause of the last transaction, if the quota reserves nothing ahead or learns.
	seen seen
	// next is the quota under a plan that replaced its own. If nil, it has not been needed.
	next *quota

	// ahead is the quota if it reserves ahead.
	ahead *reserving
}

// Seen is what a transaction has found.
type seen struct {
	ledger algorithms.Ledger
	pause  pause.State
	now    algorithms.Moment
	// at is when it ended.
	at time.Time
}

var (
	_ store.Quota     = (*quota)(nil)
	_ store.Lifecycle = (*quota)(nil)
	_ store.Feedback  = (*quota)(nil)
	_ order.Ordered   = (*quota)(nil)
)

func newQuota(e *entry, given *algorithms.Plan, line *lineage.Line, version int64, calls reporter.Calls) *quota {
	plan := given.WithShortLogs(e.store.options.MostStamps)
	q := &quota{entry: e, calls: calls, given: given, plan: plan, line: line, version: version}
	q.fastest = fastest(plan)
	q.text, q.base = textsOf(given, e.store.options.MostStamps)
	q.seen.ledger = fresh(plan)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == nil && (e.store.options.Ahead || plan.Concurrent() || plan.Estimates()) {
		e.lease = newLease(plan)
	}
	if e.store.options.Ahead {
		q.ahead = &reserving{q, timing.New(&e.store.link, e.clock, plan)}
	}
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
	if q.next != nil { // those in between are not needed any more
		q.next = q.next.newest()
		return q.next
	}
	plan, version := q.line.Newest()
	q.next = newQuota(q.entry, plan, q.line, version, q.calls)
	q.next.replaces, q.next.seen = q.text, q.seen
	q.next.seen.ledger = q.next.plan.Convert(q.seen.ledger, q.seen.now)
	return q.next
}

// Change converts the value with the next transaction, if the keeper is not available now. A plan that differs only in what
// it has taken over from responses applies at once, and Change makes no transaction. If it is older than the present
// one, Change ignores it.
func (q *quota) Change(ctx context.Context, plan *algorithms.Plan) error {
	if q.follow(plan) {
		return nil
	}
	// Apply all pending changes under the old plan. If that fails, requests in flight land with their guard.
	_ = q.transact(ctx, nil)
	q.line.Change(plan)
	q.notify(store.Replanned, 0) // before the transaction, or callers ask a quota that has a successor again and again
	_ = q.transact(ctx, func(p *part) { p.changed = true })
	return nil
}

func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q = q.newest()
	return q, q.given
}

// Idle reports whether this process has nothing that the keeper does not have.
func (q *quota) Idle() bool { return q.isIdle() }

// transact runs a transaction of the newest quota. decide may be nil.
func (q *quota) transact(ctx context.Context, decide func(p *part)) error {
	for {
		q = q.newest()
		if err := q.limit(ctx, q.transaction(decide)); !errors.Is(err, errMoved) {
			return err
		}
	}
}

// transaction returns a transaction of the quota alone. decide may be nil.
func (q *quota) transaction(decide func(p *part)) *transaction {
	x := &transaction{quotas: []*quota{q}}
	if decide != nil {
		x.decide = func(parts []*part) { decide(parts[0]) }
	}
	return x
}

// limit runs a transaction within the time that one may take.
func (q *quota) limit(ctx context.Context, x *transaction) error {
	limited, cancel := context.WithTimeout(ctx, q.store.options.Timeout)
	defer cancel()
	return q.store.run(limited, x)
}

// TryAcquire runs one transaction.
func (q *quota) TryAcquire(ctx context.Context, r store.Request) (d store.Decision, err error) {
	if !q.line.IsNewest(q.version) {
		return moved, nil
	}
	if q.Order().IsBehind(r) {
		return store.Decision{Tier: -1, Wait: store.Forever, Recheck: true}, nil
	}
	x := q.transaction(func(p *part) { d = p.take(r) })
	x.requests = 1
	x.granted = func() {
		if d.Verdict == store.Admitted && q.lease != nil {
			q.lease.add(begins{cost: r.Cost}, x.parts[0].now.At)
		}
	}
	if err := q.limit(ctx, x); errors.Is(err, errMoved) {
		return moved, nil
	} else if err != nil {
		return store.Decision{}, err
	}
	d.Recheck = d.Verdict == store.Later // another process may refund a request
	return d, nil
}

// moved is the decision of a quota that has a successor.
var moved = store.Decision{Verdict: store.Moved, Tier: -1}

func (q *quota) Order() *order.Order { return q.line.Order() }

// enqueueOwn adds a change that the next transaction applies to the ledger, if it is still that of the plan or of one with
// the same base. Otherwise requests land with their guard.
func (q *quota) enqueueOwn(apply func(t *txn)) {
	q.enqueue(func(t *txn) {
		if t.base == q.base {
			apply(t)
			t.changed, t.whole = true, nil
		}
	})
}

// Arrived is recorded with the next transaction, which waiting callers of this process
// run at once. Until then the request counts as in flight, at most for its guard interval.
func (q *quota) Arrived(d store.Decision, cost []int64) {
	if d.Flight == algorithms.Landed && !d.Probe {
		return
	}
	wall := q.store.options.Wall()
	q.enqueueOwn(func(t *txn) { t.ledger().Arrived(t.at(wall), d.Flight, cost) })
	q.endProbe(d, true)
	q.notify(store.Freed, 0)
}

// Release is recorded with the next transaction, or soon.
func (q *quota) Release(d store.Decision, cost []int64) {
	if q.lease != nil && q.given.Concurrent() {
		q.lease.end(q.plan, d, cost, nil, false)
		q.freed()
	}
}

// Settle is recorded with the next transaction, or soon.
func (q *quota) Settle(d store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	if q.lease == nil || !q.given.Estimates() {
		return
	}
	if crossed != nil {
		q.lease.mu.Lock()
		q.lease.crossed = crossed
		q.lease.mu.Unlock()
	}
	q.lease.end(q.plan, d, cost, actual, true)
	q.freed()
}

// reportDelay is how long what this process reports waits for a transaction of its callers.
const reportDelay = 5 * time.Millisecond

// reportAgain is how long it waits after a failed transaction, at most.
const reportAgain = time.Second

// freed wakes the callers of this process, and reports to the others soon.
func (q *quota) freed() {
	q.notify(store.Freed, 0)
	q.reportSoon()
}

// reportSoon runs a transaction soon, unless another has reported by then what is to be reported now.
func (q *quota) reportSoon() { q.reportAfter(reportDelay) }

// reportAfter is reportSoon with another delay. While the keeper is not available, it tries again and again.
func (q *quota) reportAfter(delay time.Duration) {
	q.entry.mu.Lock()
	defer q.entry.mu.Unlock()
	if q.reporting || !q.mustReport() {
		return
	}
	q.reporting = true
	q.store.reports.Later(delay, func() (err error) {
		q.entry.mu.Lock()
		q.reporting = false
		must := q.mustReport()
		q.entry.mu.Unlock()
		if must {
			err = q.transact(context.Background(), nil)
		}
		if errors.Is(err, store.ErrUnavailable) {
			q.reportAfter(reportAgain/2 + rand.N(reportAgain/2))
		}
		q.store.forget(q.entry)
		return err
	})
}

// Observe is recorded with the next transaction.
func (q *quota) Observe(d store.Decision, cost []int64, seen []store.Observation) {
	q.enqueueOwn(func(t *txn) {
		t.exact = store.Observe(t.ledger(), t.now, d.At, cost, t.exact, seen)
	})
}

// Unanswered leaves the request in flight.
func (q *quota) Unanswered(d store.Decision, cost []int64) {
	if q.lease != nil && q.given.Estimates() {
		guard := q.plan.Guard()
		if d.Reservation != nil {
			guard = time.Until(d.Reservation.Start.Add(d.Reservation.Guard))
		}
		q.store.reports.Later(guard, func() error {
			q.Settle(d, cost, cost, nil)
			return nil
		})
	}
	if d.Probe {
		q.endProbe(d, false)
		q.notify(store.Freed, 0)
	}
}

// Passed ends the sequence of back-offs with the next transaction.
func (q *quota) Passed(d store.Decision) {
	q.enqueue(func(t *txn) {
		if d.Epoch == t.pause.Epoch && t.level > 0 {
			t.level, t.changed = 0, true
		}
	})
}

// Learned is false: the keeper has what the responses have reported.
func (q *quota) Learned() bool { return false }

// Forget voids reservations in other processes when they learn of it.
func (q *quota) Forget(ctx context.Context) error {
	err := q.transact(ctx, func(p *part) {
		p.land()
		for i := range p.ledgers {
			p.ledgers[i].ledger.Forget()
		}
		p.voidReserved()
		p.changed, p.urgent, p.whole = true, true, nil
	})
	if err == nil {
		q.notify(store.Eased, 0)
	}
	return err
}

// Resume takes effect in other processes when they learn of it, or when they ask.
func (q *quota) Resume(ctx context.Context) error {
	err := q.transact(ctx, func(p *part) {
		p.pause = pause.State{Epoch: p.pause.Epoch}
		p.level, p.changed, p.urgent = 0, true, true
	})
	if err == nil {
		q.notify(store.Eased, 0)
	}
	return err
}

func (q *quota) Return(ctx context.Context, d store.Decision, cost []int64) error {
	if q.lease != nil {
		q.lease.giveBack(q.plan, d, cost)
	} else if d.Flight == algorithms.Landed && !d.Probe {
		return nil
	}
	wall := q.store.options.Wall()
	q.enqueueOwn(func(t *txn) { t.cancel(wall, d, cost) })
	q.endProbe(d, false)
	err := q.transact(ctx, nil)
	q.notify(store.Eased, 0)
	return err
}

// Align is recorded with the next transaction.
func (q *quota) Align(tier int, from, to time.Time) {
	wall, later := q.store.options.Wall(), to.Add(time.Microsecond-1).UnixMicro()
	q.enqueueOwn(func(t *txn) {
		t.ledger().Boundary(t.at(wall), tier, from.UnixMicro()+t.offset, later+t.offset)
	})
	q.notify(store.Freed, 0)
}

// Pause is recorded with the next transaction, if this one fails.
func (q *quota) Pause(ctx context.Context, p store.Pause) (done store.Paused, err error) {
	began := time.Now()
	err = q.transact(ctx, func(t *part) { done = t.pauseFor(p, q.plan) })
	if err != nil {
		p.For = p.Length(q.remembers().level)
		done = store.Paused{For: p.For}
		q.pauseAlone(p, began)
	}
	return done, err
}

// pauseAlone pauses this process until the next transaction, which pauses the others.
func (q *quota) pauseAlone(p store.Pause, began time.Time) {
	end := began.Add(p.For)
	apply := func(t *txn) {
		p := p
		p.For = time.Until(end)
		t.begins(p, q.plan)
	}
	q.entry.mu.Lock()
	q.pending = append(q.pending, pending{apply, true})
	q.voided = time.Now()
	q.alone = later(q.alone, end)
	q.paused = later(q.paused, end)
	q.entry.mu.Unlock()
	q.store.news.want(q)
	change := store.Slowed
	if p.Close {
		change = store.Shut
	}
	q.notify(change, p.For)
}

func (q *quota) Status(ctx context.Context) (s store.Status, err error) {
	err = q.transact(ctx, func(p *part) {
		s.Closed, s.Paused = p.pause.Status(p.now)
		s.Tiers, s.At = p.tiers(), p.now.At
	})
	s.Shared = q.store.options.Shared
	return s, err
}

// Watch calls changed after a change that this process makes or learns of.
func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	stop = q.watch(changed)
	q.store.news.want(q)
	return stop
}

// Close leaves the quota in the keeper until it decides as none would.
func (q *quota) Close() {
	if q.line.Close() && !q.store.options.Ahead { // requests in flight land with their guard
		q.entry.mu.Lock()
		q.pending = nil
		q.entry.mu.Unlock()
	}
	q.close()
	q.reportSoon()
}

// Forecast works on the result of the last transaction.
func (q *quota) Forecast() store.Forecast {
	if !q.line.IsNewest(q.version) {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	seen, offset := q.foresees(), q.remembers().offset
	clock := func() algorithms.Moment { return seen.current(q.store.options.Wall(), offset) }
	return store.Foretell(&seen.ledger, clock, seen.pause.Opens(clock()))
}

// Soonest works on the result of the last transaction.
func (q *quota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	if !q.line.IsNewest(q.version) {
		return 0, -1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.foresees()
	now := seen.current(q.store.options.Wall(), q.remembers().offset)
	return store.Soonest(&seen.ledger, now, seen.pause.Opens(now), cost, headroom)
}

// foresees returns what forecasts rely on: what the last transaction has found. Other processes may have taught the
// tiers since. If it ended long ago, the rates are therefore the highest that they may be. The caller holds q.mu.
func (q *quota) foresees() *seen {
	if q.knowsRates() {
		return &q.seen
	}
	s := q.seen
	s.ledger = q.fastest.Convert(s.ledger, s.now)
	return &s
}

// knowsRates reports whether the last transaction has found the present rates of the tiers. The caller holds q.mu.
func (q *quota) knowsRates() bool {
	return q.fastest == q.plan || time.Since(q.seen.at) <= store.RecheckInterval
}

// fastest returns a plan with the highest rates that the tiers of a plan may learn: the plan itself if it learns none.
func fastest(p *algorithms.Plan) *algorithms.Plan {
	if !p.Learns() {
		return p
	}
	tiers := slices.Clone(p.Given())
	for i := range tiers {
		if t := &tiers[i]; t.Learns() {
			t.Burst = cmp.Or(t.Burst, t.Limit)
			t.Limit, t.Learn = t.Learn.Most, algorithms.Learn{}
		}
	}
	f, err := algorithms.NewPlan(tiers, p.Guard())
	if err != nil {
		return p
	}
	return f.AssumeUsedAt(p.Start())
}

// current returns the present moment by the clock of the transaction.
func (s *seen) current(wall, offset int64) algorithms.Moment {
	known := state{last: s.now.At, offset: offset}
	now, _ := known.now(wall, s.now.At)
	return now
}
