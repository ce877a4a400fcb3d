// Package local keeps quotas in the memory of one process: one lock and one
// clock read per decision. Rolling windows, logs and buckets follow the monotonic
// clock; windows aligned to the clock follow wall time and are never reopened.
//
// On Linux the monotonic clock stands still while the machine is suspended, so
// that a suspended program resumes with the quota that it had.
package local

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A Store shares quotas by key within one process. The zero Store is ready. Its
// methods do not block and are safe for concurrent use.
type Store struct {
	mu     sync.Mutex // guards all below
	quotas map[string]*shared
}

var _ store.Store = (*Store)(nil)

// New returns an empty Store.
func New() *Store { return new(Store) }

// Open returns the quota of a key, the same for all who open it. An empty key is
// shared with nobody. A key that is open with other tiers or another guard is an
// error.
func (s *Store) Open(key string, plan *algorithms.Plan) (store.Quota, error) {
	if key == "" {
		return newQuota(plan), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q, ok := s.quotas[key]
	if !ok || q.openers == 0 && q.Idle() {
		if s.quotas == nil {
			s.quotas = make(map[string]*shared)
		}
		q = &shared{quota: newQuota(plan), store: s, key: key}
		s.quotas[key] = q
	}
	if open := q.ledger.Plan(); !open.Equal(plan) {
		return nil, fmt.Errorf("quota %q is open as %v: a store keeps one set of tiers and one guard per name, so use another name for %v",
			key, open.Tiers(), plan.Tiers())
	}
	q.openers++
	return q, nil
}

// A shared quota is kept by its store until nobody has it open and it is idle.
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

// newest needs store.mu.
func (q *shared) newest() *shared {
	for q.next != nil {
		q = q.next
	}
	return q
}

func (q *shared) Change(_ context.Context, plan *algorithms.Plan) error {
	q.store.mu.Lock()
	old := q.newest()
	old.mu.Lock()
	old.next = &shared{quota: old.convert(plan), store: q.store, key: q.key, openers: old.openers}
	q.store.quotas[q.key] = old.next
	q.store.mu.Unlock()
	old.unlockAndTell(store.Replanned, 0)
	return nil
}

func (q *shared) Successor() (store.Quota, *algorithms.Plan) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	newest := q.newest()
	return newest, newest.ledger.Plan()
}

// origin is the Unix epoch on the process's monotonic clock. It lies before the
// year 2000, in which the clock of a testing/synctest bubble begins, so that no
// instant is negative there.
var origin = epoch(time.Now())

func epoch(now time.Time) time.Time { return now.Add(-time.Duration(now.UnixNano())) }

type quota struct {
	mu       sync.Mutex // guards all below but ledger.Plan
	ledger   algorithms.Ledger
	until    int64  // instant at which the longest pause ends
	banned   int64  // instant at which the longest ban ends, which is a pause too
	probe    bool   // one request is to go first when it ends
	probing  bool   // it has gone, and the pause is for its answer
	exact    int64  // when the request was admitted whose response last told the truth
	epoch    uint32 // pauses and bans so far
	level    uint8  // back-offs in a row
	watchers *watchers
	next     *quota // under the plan that replaced the ledger's, nil if none did
}

// watchers are those who wait: nil while nobody does.
type watchers map[*func(store.Change, time.Duration)]struct{}

var (
	_ store.Quota      = (*quota)(nil)
	_ store.Forecaster = (*quota)(nil)
	_ store.Idler      = (*quota)(nil)
	_ store.Learner    = (*quota)(nil)
	_ store.Aligner    = (*quota)(nil)
	_ store.Observer   = (*quota)(nil)
	_ store.Changer    = (*quota)(nil)
	_ store.Changer    = (*shared)(nil)
)

func newQuota(plan *algorithms.Plan) *quota {
	q := &quota{ledger: plan.NewLedger()}
	if start := plan.Start(); !start.IsZero() {
		q.ledger.Spend(moment(start))
		if q.ledger.Fresh(q.now()) {
			q.ledger = plan.NewLedger() // in less memory
		}
	}
	return q
}

// now reads the clock, once and without the lock: the ledger puts the readings of
// several goroutines in order.
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
	b := store.Decision{Tier: -1, Epoch: int64(q.epoch), Level: q.level}
	if q.next != nil {
		b.Verdict = store.Moved
		return b, nil
	}
	if q.until > now.At {
		q.hold(&b, now, r)
		return b, nil
	}
	if r.IsDryRun() {
		q.tell(&b, now, r)
		return b, nil
	}
	var at int64
	if b.Flight, at, b.Tier = q.ledger.Take(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves(), Guard: algorithms.Micros(r.Guard), Held: r.Held}); b.Tier < 0 {
		b.Verdict, b.At, b.Crossed = store.Admitted, now.At, q.ledger.Crossings(now)
		if q.ledger.Tried() || q.probe {
			q.startProbe(&b, now, r)
		}
		return b, nil
	}
	b.Wait = now.Until(at)
	q.exhaust(&b)
	return b, nil
}

// startProbe has the others wait for the response to the request. A held one that gets
// none within its time is followed by another probe.
func (q *quota) startProbe(b *store.Decision, now algorithms.Moment, r store.Request) {
	b.Probe, q.probing, q.probe = true, true, r.Held
	alone := store.ProbeTime
	if r.Held {
		alone = store.ProbeTimeout + max(r.Guard, q.ledger.Plan().Guard())
	}
	q.until = now.At + algorithms.Micros(alone)
}

// tell tells when the request would be admitted.
func (q *quota) tell(b *store.Decision, now algorithms.Moment, r store.Request) {
	var at int64
	if at, b.Tier = q.ledger.Earliest(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()}); b.Tier < 0 {
		b.Verdict = store.Ready
	}
	b.Wait = now.Until(at)
	q.exhaust(b)
}

// hold refuses while there is a pause or a ban.
func (q *quota) hold(b *store.Decision, now algorithms.Moment, r store.Request) {
	if q.banned > now.At {
		b.Verdict, b.Wait = store.Closed, now.Until(q.banned)
		return
	}
	at, tier := q.ledger.Earliest(now, algorithms.Request{Cost: r.Cost, Headroom: r.Leaves()})
	if q.probing && q.ledger.Trying(tier) {
		at = now.At
	}
	switch b.Wait = now.Until(max(at, q.until)); {
	case at > q.until:
		b.Tier = tier
		q.exhaust(b)
	case q.probing:
		b.Tier = store.Probing
	}
}

// exhaust refuses what a budget has no room for.
func (q *quota) exhaust(b *store.Decision) {
	if q.ledger.Plan().Exhausted(b.Tier) {
		b.Verdict = store.Exhausted
	}
}

// endProbe ends the wait for the response to the probe, if that is what the decision
// admitted.
func (q *quota) endProbe(b store.Decision) (ended bool) {
	if ended = b.Probe && q.probing && b.Epoch == int64(q.epoch); ended {
		q.until, q.probing, q.probe = 0, false, false
	}
	return ended
}

// lock locks the quota, or the one under the newest plan, for what was admitted under
// this one's: there only the amounts of units that still exist count, and what is in
// flight lands with its guard.
func (q *quota) lock(b store.Decision, costs ...*[]int64) (*quota, store.Decision) {
	q.mu.Lock()
	for q.next != nil {
		next := q.next
		q.mu.Unlock()
		for _, c := range costs {
			*c = next.ledger.Plan().Translate(q.ledger.Plan(), *c)
		}
		b.Flight = algorithms.Landed
		q = next
		q.mu.Lock()
	}
	return q, b
}

func (q *quota) Arrived(b store.Decision, cost []int64) {
	q, b = q.lock(b, &cost)
	q.ledger.Land(q.now(), b.Flight, cost)
	q.endProbe(b)
	q.unlockAndTell(store.Freed, 0)
}

func (q *quota) Unanswered(b store.Decision, cost []int64) {
	q, b = q.lock(b, &cost)
	q.ledger.Unanswered(q.now(), b.Flight, cost)
	q.probe = q.endProbe(b) || q.probe
	q.unlockAndTell(store.Freed, 0)
}

func (q *quota) Release(b store.Decision, cost []int64) {
	q, _ = q.lock(b, &cost)
	q.ledger.Release(cost)
	q.unlockAndTell(store.Freed, 0)
}

func (q *quota) Settle(b store.Decision, cost, actual []int64, crossed func([]algorithms.Crossing)) {
	q, _ = q.lock(b, &cost, &actual)
	now := q.now()
	q.ledger.Settle(now, cost, actual)
	told := q.ledger.Crossings(now)
	q.unlockAndTell(store.Freed, 0)
	if told != nil && crossed != nil {
		crossed(told)
	}
}

func (q *quota) Return(_ context.Context, b store.Decision, cost []int64) error {
	q, b = q.lock(b, &cost)
	q.ledger.Cancel(q.now(), b.Flight, cost)
	if q.endProbe(b) {
		q.ledger.TryAgain()
		q.probe = true
	}
	q.unlockAndTell(store.Eased, 0)
	return nil
}

func (q *quota) Pause(_ context.Context, p store.Pause) (store.Paused, error) {
	q, _ = q.lock(store.Decision{})
	now := q.now()
	p.For = p.Length(q.level)
	end := min(now.At+algorithms.Micros(p.For), algorithms.Latest)
	until := q.until
	if q.probing {
		until = 0
	}
	longer := end > max(now.At, until) || p.Probe && p.For == 0 && until <= now.At
	if p.Once && p.Epoch != int64(q.epoch) || !longer {
		defer q.mu.Unlock()
		return store.Paused{Epoch: int64(q.epoch)}, nil
	}
	q.probe = q.probe || p.Probe || q.probing && q.until > now.At
	q.until, q.probing = max(end, until), false
	q.epoch++
	q.level = p.Next(q.level)
	done := store.Paused{Applied: true, Epoch: int64(q.epoch)}
	if p.Close {
		q.banned = max(q.banned, end)
		q.unlockAndTell(store.Shut, now.Until(q.banned))
	} else {
		q.unlockAndTell(store.Slowed, now.Until(end))
	}
	return done, nil
}

func (q *quota) Passed(b store.Decision) {
	q, _ = q.lock(b)
	defer q.mu.Unlock()
	if b.Epoch == int64(q.epoch) {
		q.level = 0
	}
}

func (q *quota) Resume(context.Context) error {
	q, _ = q.lock(store.Decision{})
	q.until, q.banned, q.probe, q.probing, q.level = 0, 0, false, false, 0
	q.unlockAndTell(store.Eased, 0)
	return nil
}

func (q *quota) Change(_ context.Context, plan *algorithms.Plan) error {
	q, _ = q.lock(store.Decision{})
	q.convert(plan)
	q.unlockAndTell(store.Replanned, 0)
	return nil
}

// convert makes the successor, which goes on with all that the quota remembers. It needs
// q.mu.
func (q *quota) convert(plan *algorithms.Plan) *quota {
	q.next = &quota{
		ledger: plan.Convert(q.ledger, q.now()),
		until:  q.until, banned: q.banned, probe: q.probe, probing: q.probing, exact: q.exact, epoch: q.epoch, level: q.level,
	}
	return q.next
}

func (q *quota) Successor() (store.Quota, *algorithms.Plan) {
	q, _ = q.lock(store.Decision{})
	defer q.mu.Unlock()
	return q, q.ledger.Plan()
}

func (q *quota) Align(from, to time.Time) {
	q.mu.Lock()
	q.ledger.Boundary(q.now(), int64(from.Sub(origin)/time.Microsecond), algorithms.Micros(to.Sub(origin)))
	q.unlockAndTell(store.Eased, 0)
}

func (q *quota) Observe(b store.Decision, cost []int64, seen []store.Observation) {
	q.mu.Lock()
	if q.next != nil { // the readings are of other tiers
		q.mu.Unlock()
		return
	}
	q.exact = store.Observe(&q.ledger, q.now(), b.At, cost, q.exact, seen)
	q.unlockAndTell(store.Eased, 0) // or taken, which who asks again learns
}

func (q *quota) Status(context.Context) (store.Status, error) {
	q, _ = q.lock(store.Decision{})
	defer q.mu.Unlock()
	now := q.now()
	var s store.Status
	if s.Closed = max(0, now.Until(q.banned)); s.Closed == 0 && q.until > now.At {
		s.Paused = now.Until(q.until)
	}
	s.Tiers = store.Tiers(&q.ledger, now)
	return s, nil
}

func (q *quota) Watch(changed func(store.Change, time.Duration)) (stop func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.watchers == nil {
		q.watchers = &watchers{}
	}
	(*q.watchers)[&changed] = struct{}{}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if delete(*q.watchers, &changed); len(*q.watchers) == 0 {
			q.watchers = nil
		}
	}
}

// unlockAndTell unlocks before it calls out.
func (q *quota) unlockAndTell(c store.Change, left time.Duration) {
	if q.watchers == nil {
		q.mu.Unlock()
		return
	}
	tell := make([]func(store.Change, time.Duration), 0, len(*q.watchers))
	for w := range *q.watchers {
		tell = append(tell, *w)
	}
	q.mu.Unlock()
	for _, changed := range tell {
		changed(c, left)
	}
}

func (q *quota) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	return q.until <= now.At && !q.probe && q.ledger.Fresh(now)
}

func (q *quota) Learned() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.level > 0 || q.ledger.Learned(q.now())
}

func (q *quota) Close() {}

func (q *quota) Forecast() store.Forecast {
	q.mu.Lock()
	defer q.mu.Unlock()
	from := q.until
	if q.banned > q.now().At || q.probing { // nobody will wait: they are refused, or it is not known for how long
		from = 0
	}
	return store.Foretell(&q.ledger, q.now, from)
}
