// Package local keeps quotas in the memory of one process. A decision takes one lock and one clock
// read. Rolling windows, logs and buckets follow the monotonic clock. Windows aligned to the clock
// follow wall time and are never reopened.
//
// On Linux the monotonic clock stops while the machine is suspended. A suspended program resumes
// with the quota that it had.
package local

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/order"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/store"
)

// A Store shares quotas by key within one process. The zero Store is ready for use. Its methods do
// not block and are safe for concurrent use.
type Store struct {
	// Replan makes Open change the tiers and the guard of a key that is open with others, for all
	// of its openers. What is charged stays charged where a tier of the same unit remains. Set it
	// before the first Open. If false, such an Open fails.
	Replan bool

	mu     sync.Mutex // guards all below
	quotas map[string]*shared
}

var _ store.Store = (*Store)(nil)

// New returns an empty Store.
func New() *Store { return new(Store) }

// Open returns the quota of a key. All openers of a key share its quota. An empty key has a new
// quota for each opener. Open fails if the key is open with other tiers or another guard, unless
// Replan is set. It makes no calls to report.
func (s *Store) Open(key string, plan *algorithms.Plan, _ func(store.Call)) (store.Quota, error) {
	if key == "" {
		return newQuota(plan), nil
	}
	s.mu.Lock()
	q, ok := s.quotas[key]
	if !ok || q.openers == 0 && q.Idle() {
		if s.quotas == nil {
			s.quotas = make(map[string]*shared)
		}
		q = &shared{quota: newQuota(plan), store: s, key: key}
		s.quotas[key] = q
	}
	var replaced *shared
	if open := q.ledger.Plan(); !open.Base().Equal(plan.Base()) {
		if !s.Replan {
			s.mu.Unlock()
			return nil, fmt.Errorf("local: quota %q is open as %v: a store keeps one set of tiers and one guard per name: use another name for %v",
				key, open.Tiers(), plan.Tiers())
		}
		replaced, q = q, q.replace(plan)
	}
	q.openers++
	s.mu.Unlock()
	if replaced != nil {
		replaced.unlockAndNotify(store.Replanned, 0)
	}
	return q, nil
}

// A shared quota stays in its store while it has openers or is not idle.
type shared struct {
	*quota
	store   *Store
	key     string
	openers int     // guarded by store.mu
	next    *shared // guarded by store.mu: under the plan that replaced its own, nil if none did
}

func (q *shared) Close() {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	q = q.newest()
	if q.openers--; q.openers == 0 && q.Idle() {
		delete(q.store.quotas, q.key)
	}
}

// newest returns the last successor. The caller holds store.mu.
func (q *shared) newest() *shared {
	for q.next != nil {
		q = q.next
	}
	return q
}

func (q *shared) Change(_ context.Context, plan *algorithms.Plan) error {
	q.store.mu.Lock()
	old := q.newest()
	old.replace(plan)
	q.store.mu.Unlock()
	old.unlockAndNotify(store.Replanned, 0)
	return nil
}

// replace makes a quota under another plan the successor of q, which is the newest. The caller holds
// store.mu, and unlocks q.mu.
func (q *shared) replace(plan *algorithms.Plan) *shared {
	q.mu.Lock()
	q.next = &shared{quota: q.convert(plan), store: q.store, key: q.key, openers: q.openers}
	q.store.quotas[q.key] = q.next
	return q.next
}

func (q *shared) Successor() (store.Quota, *algorithms.Plan) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	newest := q.newest()
	return newest, newest.ledger.Plan()
}

// origin is the Unix epoch on the process's monotonic clock. The clock of a testing/synctest bubble
// begins in the year 2000, after origin. Instants are therefore never negative there.
var origin = epoch(time.Now())

func epoch(now time.Time) time.Time { return now.Add(-time.Duration(now.UnixNano())) }

type quota struct {
	mu sync.Mutex // guards all below but ledger.Plan
	// level is the number of consecutive back-offs.
	level uint8
	// credit is false if the ledger has no credit. It may be read without the lock.
	credit atomic.Bool
	ledger algorithms.Ledger
	*rare  // read-only until own is called
}

// rare is the state that few quotas have.
type rare struct {
	pause pause.State
	// exact is when the last request with an authoritative reading was admitted.
	exact int64
	// watchers are the functions to call on a change. If nil, there are none.
	watchers map[*func(store.Change, time.Duration)]struct{}
	// next is the quota under the plan that replaced the ledger's. If nil, none did.
	next *quota
	// order is the order of the queues of the quota. If nil, none have been made.
	order *order.Order
}

// common is what quotas without a rare state share.
var common rare

// own returns the rare state of this quota alone, to be changed. The caller holds q.mu.
func (q *quota) own() *rare {
	if q.rare == &common {
		q.rare = new(rare)
	}
	return q.rare
}

var (
	_ store.Quota     = (*quota)(nil)
	_ store.FastQuota = (*quota)(nil)
	_ store.Lifecycle = (*quota)(nil)
	_ store.Lifecycle = (*shared)(nil)
	_ store.Feedback  = (*quota)(nil)
	_ order.Ordered   = (*quota)(nil)
)

func newQuota(plan *algorithms.Plan) *quota {
	q := &quota{ledger: plan.NewLedger(), rare: &common}
	if start := plan.Start(); !start.IsZero() {
		q.ledger.AssumeUsed(moment(start))
		if q.ledger.Fresh(q.now()) {
			q.ledger = plan.NewLedger() // in less memory
		}
	}
	return q
}

// now reads the clock once, without the lock. The ledger puts the readings of several goroutines in
// order.
func (q *quota) now() algorithms.Moment {
	if !q.ledger.Plan().Aligned() {
		return algorithms.Moment{At: int64(time.Since(origin) / time.Microsecond)}
	}
	return moment(time.Now())
}

func moment(t time.Time) algorithms.Moment {
	return algorithms.Moment{At: int64(t.Sub(origin) / time.Microsecond), Wall: t.UnixMicro()}
}

func (q *quota) TryAcquire(_ context.Context, r store.Request) (store.Decision, error) {
	now := q.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	d := store.Decision{Tier: -1, Epoch: q.pause.Epoch, Level: q.level}
	switch {
	case q.next != nil:
		d.Verdict = store.Moved
	case q.pause.Until > now.At:
		q.pause.Refuse(&d, now, &q.ledger, r)
	case q.order.IsBehind(r):
		d.Wait = store.Forever
	case r.IsDryRun():
		pause.DryRun(&d, now, &q.ledger, r)
	case !pause.Take(&d, now, &q.ledger, r): // it waits
	case q.ledger.Probed() || q.pause.Probe:
		q.own().pause.StartProbe(&d, now, &q.ledger, r)
	case q.level == 0 && q.watchers == nil && q.ledger.GiveCredit(now) && !q.credit.Load(): // callers that wait use none
		q.credit.Store(true)
	}
	return d, nil
}

// TryOne admits one request on the ledger's credit. There is none during a pause and a back-off.
func (q *quota) TryOne(held bool) (f algorithms.Flight, at, epoch int64, ok bool) {
	if !q.credit.Load() {
		return algorithms.Landed, 0, 0, false
	}
	at = int64(time.Since(origin) / time.Microsecond)
	q.mu.Lock()
	if f, ok = q.ledger.TakeOne(at, held); !ok {
		q.credit.Store(false)
	}
	epoch = q.pause.Epoch
	q.mu.Unlock()
	return f, at, epoch, ok
}

// OneArrived reports that a request which TryOne has admitted has arrived.
func (q *quota) OneArrived(f algorithms.Flight) bool {
	at := int64(time.Since(origin) / time.Microsecond)
	q.mu.Lock()
	ok := q.next == nil && q.watchers == nil && q.ledger.ArriveOne(at, f)
	q.mu.Unlock()
	return ok
}

func (q *quota) Order() *order.Order {
	q, _ = q.lock(store.Decision{})
	defer q.mu.Unlock()
	r := q.own()
	if r.order == nil {
		r.order = new(order.Order)
	}
	return r.order
}

// endProbe ends the wait for the response to a probe, if the decision admitted that probe.
func (q *quota) endProbe(d store.Decision, answered bool) (ended bool) {
	return d.Probe && q.own().pause.EndProbe(d, answered)
}

// lock locks the quota or its newest successor, for a request that was admitted under the old plan.
// For a successor it keeps only the amounts that both plans hold in the same way, and the rest of a
// request in flight lands with its guard.
func (q *quota) lock(d store.Decision, costs ...*[]int64) (*quota, store.Decision) {
	q.mu.Lock()
	for q.next != nil {
		next := q.next
		q.mu.Unlock()
		for _, c := range costs {
			*c = next.ledger.Plan().TranslateHeld(q.ledger.Plan(), *c)
		}
		d.Flight = algorithms.Landed
		q = next
		q.mu.Lock()
	}
	return q, d
}

func (q *quota) Arrived(d store.Decision, cost []int64) {
	q, d = q.lock(d, &cost)
	q.ledger.Arrived(q.now(), d.Flight, cost)
	q.endProbe(d, true)
	q.unlockAndNotify(store.Freed, 0)
}

func (q *quota) Unanswered(d store.Decision, cost []int64) {
	q, d = q.lock(d, &cost)
	q.ledger.Unanswered(q.now(), d.Flight, cost)
	q.endProbe(d, false)
	q.unlockAndNotify(store.Freed, 0)
}

func (q *quota) Release(d store.Decision, cost []int64) {
	q, _ = q.lock(d, &cost)
	q.ledger.Release(cost)
	q.unlockAndNotify(store.Freed, 0)
}

func (q *quota) Settle(d store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	q, _ = q.lock(d, &cost, &actual)
	now := q.now()
	q.ledger.Settle(now, cost, actual)
	crossings := q.ledger.Crossings(now)
	q.unlockAndNotify(store.Freed, 0)
	if crossings != nil && crossed != nil {
		crossed(crossings)
	}
}

func (q *quota) Return(_ context.Context, d store.Decision, cost []int64) error {
	q, d = q.lock(d, &cost)
	q.ledger.Cancel(q.now(), d.Flight, cost)
	if q.endProbe(d, false) {
		q.ledger.ProbeAgain()
	}
	q.unlockAndNotify(store.Eased, 0)
	return nil
}

func (q *quota) Pause(_ context.Context, p store.Pause) (store.Paused, error) {
	q, _ = q.lock(store.Decision{})
	now := q.now()
	tolerated := pause.Teach(&q.ledger, now, p, q.level)
	p.For = p.Length(q.level)
	if tolerated || !q.own().pause.Apply(p, now) {
		defer q.mu.Unlock()
		return store.Paused{Epoch: q.pause.Epoch}, nil
	}
	q.ledger.DropCredit()
	q.level = p.Next(q.level)
	done := store.Paused{Applied: true, For: now.Until(q.pause.Until), Epoch: q.pause.Epoch}
	q.unlockAndNotify(q.pause.Change(now))
	return done, nil
}

func (q *quota) Passed(d store.Decision) {
	q, _ = q.lock(d)
	defer q.mu.Unlock()
	if d.Epoch == q.pause.Epoch {
		q.level = 0
	}
}

func (q *quota) Resume(context.Context) error {
	q, _ = q.lock(store.Decision{})
	q.own().pause, q.level = pause.State{Epoch: q.pause.Epoch}, 0
	q.unlockAndNotify(store.Eased, 0)
	return nil
}

func (q *quota) Change(_ context.Context, plan *algorithms.Plan) error {
	q, _ = q.lock(store.Decision{})
	if plan.IsStale(q.ledger.Plan()) {
		q.mu.Unlock()
		return nil
	}
	q.convert(plan)
	q.unlockAndNotify(store.Replanned, 0)
	return nil
}

// convert returns the successor, with all state of the quota. The caller holds q.mu.
func (q *quota) convert(plan *algorithms.Plan) *quota {
	q.ledger.DropCredit()
	next := &quota{ledger: plan.Convert(q.ledger, q.now()), level: q.level, rare: &common}
	if q.rare != &common {
		*next.own() = rare{pause: q.pause, exact: q.exact, order: q.order}
	}
	q.own().next = next
	return next
}

func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q, _ = q.lock(store.Decision{})
	defer q.mu.Unlock()
	return q, q.ledger.Plan()
}

func (q *quota) Align(tier int, from, to time.Time) {
	q.mu.Lock()
	q.ledger.Boundary(q.now(), tier, int64(from.Sub(origin)/time.Microsecond), algorithms.Micros(to.Sub(origin)))
	q.unlockAndNotify(store.Eased, 0)
}

func (q *quota) Observe(d store.Decision, cost []int64, seen []store.Observation) {
	was := q
	if q, _ = q.lock(store.Decision{}); q != was && !q.ledger.Plan().Base().Equal(was.ledger.Plan().Base()) {
		q.mu.Unlock() // the readings are about other tiers
		return
	}
	q.own().exact = store.Observe(&q.ledger, q.now(), d.At, cost, q.exact, seen)
	q.unlockAndNotify(store.Eased, 0) // or charges became more, which waiting requests see when they ask again
}

func (q *quota) Status(context.Context) (store.Status, error) {
	q, _ = q.lock(store.Decision{})
	defer q.mu.Unlock()
	now := q.now()
	closed, paused := q.pause.Status(now)
	return store.Status{Closed: closed, Paused: paused, Tiers: store.Tiers(&q.ledger, now), At: now.At}, nil
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.own()
	if r.watchers == nil {
		r.watchers = make(map[*func(store.Change, time.Duration)]struct{})
	}
	r.watchers[&changed] = struct{}{}
	q.credit.Store(false) // or requests on credit would overtake callers that wait
	q.ledger.DropCredit()
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if delete(r.watchers, &changed); len(r.watchers) == 0 {
			r.watchers = nil
		}
	}
}

// unlockAndNotify unlocks the quota before it calls the watchers.
func (q *quota) unlockAndNotify(c store.Change, left time.Duration) {
	if q.watchers == nil {
		q.mu.Unlock()
		return
	}
	funcs := make([]func(store.Change, time.Duration), 0, len(q.watchers))
	for w := range q.watchers {
		funcs = append(funcs, *w)
	}
	q.mu.Unlock()
	for _, changed := range funcs {
		changed(c, left)
	}
}

func (q *quota) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	return q.pause.Until <= now.At && !q.pause.Probe && q.ledger.Fresh(now)
}

func (q *quota) Learned() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.level > 0 || q.ledger.Learned(q.now())
}

func (q *quota) Forget(context.Context) error {
	q, _ = q.lock(store.Decision{})
	q.ledger.Forget()
	q.unlockAndNotify(store.Eased, 0)
	return nil
}

// Park returns the state of a quota without callers and permits, from which Unpark makes a quota that
// decides alike. It returns false if the quota pauses or has learned something.
func (q *quota) Park() (state []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if q.level > 0 || q.pause.Probe || q.pause.Probing || q.pause.Until > now.At || q.watchers != nil || q.next != nil || q.ledger.Learned(now) {
		return nil, false
	}
	state, _ = q.ledger.AppendBinary(nil)
	l := q.ledger.Plan().NewLedger()
	return state, l.UnmarshalBinary(state) == nil
}

// Unpark gives a new quota a state that Park returned.
func (q *quota) Unpark(state []byte) error { return q.ledger.UnmarshalBinary(state) }

// IsIdleAs reports whether the quota would be idle with a state that Park returned.
func (q *quota) IsIdleAs(state []byte) bool {
	l := q.ledger.Plan().NewLedger()
	return l.UnmarshalBinary(state) == nil && l.Fresh(q.now())
}

func (q *quota) Close() {}

func (q *quota) Forecast() store.Forecast {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next != nil {
		return nil
	}
	return store.Foretell(&q.ledger, q.now, q.pause.Opens(q.now()))
}

func (q *quota) Soonest(cost []int64, headroom int64) (wait time.Duration, tier int) {
	now := q.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next != nil {
		return 0, -1
	}
	return store.Soonest(&q.ledger, now, q.pause.Opens(now), cost, headroom)
}
