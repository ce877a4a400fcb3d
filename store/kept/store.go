package kept

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
	"github.com/apithrottle/throttle/internal/pause"
	"github.com/apithrottle/throttle/internal/reports"
	"github.com/apithrottle/throttle/internal/timing"
	"github.com/apithrottle/throttle/store"
)

// Options are the settings of a Store.
type Options struct {
	// Name begins the errors of the store, as the name of its package.
	Name string
	// Shared is where the quotas are, for store.Status.
	Shared string

	// Ahead makes the quotas reserve times to come, as the processes of a fleet need, and not only those of a
	// machine. If false, a quota is asked for each admission when its time has come.
	Ahead bool
	// Horizon is the length of a process's turn, if Ahead is set. If zero, 500 ms.
	Horizon time.Duration
	// Lease is how long a process holds places of Concurrency tiers, and estimates, after its last
	// transaction. It should be the same in all processes. If zero, 10 s.
	Lease time.Duration
	// Timeout is how long a transaction may take. If zero, 1 s.
	Timeout time.Duration
	// MostStamps is the largest limit of a SlidingLog. A tier of more is kept as a SlidingWindow. If zero,
	// algorithms.MaxLog.
	MostStamps int64

	// OnLost is called with the name of a value that was lost, or is older than the one that this process
	// has seen. It must not block. If nil, losses are only logged.
	OnLost func(name []byte)
	// Log receives warnings for an operator. If nil, nothing is logged.
	Log *slog.Logger
	// Wall returns Unix time in µs by the keeper's clock, as nearly as this process knows it. If nil, the
	// clock of this process.
	Wall func() int64
}

const (
	defaultHorizon = 500 * time.Millisecond
	defaultLease   = 10 * time.Second
	defaultTimeout = time.Second
)

// A Store keeps quotas in a Keeper. It is safe for concurrent use.
type Store struct {
	keeper  Keeper
	options Options
	lines   lineage.Lines
	link    timing.Link
	clock   timing.Clock // the keeper's
	news    news
	reports reports.Reports

	mu sync.Mutex // guards all below
	// entries contains what the openers of a key share, by name.
	entries map[string]*entry
}

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

// New returns a Store on a keeper. It makes no transaction.
func New(k Keeper, o Options) *Store {
	o.Horizon, o.Lease, o.Timeout = cmp.Or(o.Horizon, defaultHorizon), cmp.Or(o.Lease, defaultLease), cmp.Or(o.Timeout, defaultTimeout)
	o.MostStamps = cmp.Or(o.MostStamps, algorithms.MaxLog)
	if o.Wall == nil {
		o.Wall = func() int64 { return time.Now().UnixMicro() }
	}
	s := &Store{keeper: k, options: o, entries: make(map[string]*entry)}
	s.news.store = s
	return s
}

// Open returns the quota of a key. It makes no transaction and does not block.
func (s *Store) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	if key == "" {
		return nil, fmt.Errorf("%s: key is empty: set the Name of the policy, by which the quota is kept", s.options.Name)
	}
	line, version := s.lines.Open(key)
	q := newQuota(s.entry(Name(key)), plan, line, version, report)
	if q.ahead != nil {
		return q.ahead, nil
	}
	return q, nil
}

// Name returns the name of a key, a hash that hides it.
func Name(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:16]
}

// entry returns the entry of a name, for one more opener.
func (s *Store) entry(name []byte) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[string(name)]
	if e == nil {
		e = &entry{
			name: name, store: s, clock: &timing.Clock{Server: &s.clock}, turn: make(chan struct{}, 1),
			watchers: make(map[*func(store.Change, time.Duration)]struct{}), probes: make(map[int64]struct{}),
		}
		s.entries[string(name)] = e
	}
	e.openers++
	return e
}

// close closes the entry for one opener.
func (e *entry) close() {
	e.store.mu.Lock()
	e.openers--
	e.store.mu.Unlock()
	e.store.forget(e)
}

// forget forgets an entry without openers that has nothing to report, when it knows of no pause any more.
func (s *Store) forget(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch left := e.pausedFor(); {
	case e.openers > 0 || s.entries[string(e.name)] != e:
	case left > 0:
		if e.forgets == nil {
			e.forgets = time.AfterFunc(left, func() { s.forget(e) })
		} else {
			e.forgets.Reset(left)
		}
	case e.isIdle():
		delete(s.entries, string(e.name))
	}
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

// A transaction is one of some quotas at once.
type transaction struct {
	quotas []*quota
	// requests is the number of requests that it decides.
	requests int
	// prepare is called before the transaction is sent, and may be nil.
	prepare func(parts []*part)
	// decide decides, or does nothing if it is nil.
	decide func(parts []*part)
	// granted is called after the transaction, before another one of these quotas begins, and may be nil. It keeps
	// what the process holds now, because the next transaction reports that.
	granted func()

	parts []*part
	sent  time.Time
	view  View
	// applied are by quota how many pending changes were applied, reported what was reported of the leases,
	// and crossed the percentages that calendar tiers have reached.
	applied  []int
	reported []report
	crossed  [][]algorithms.Crossing
	// bounds are by quota those of its clock, and got is when the transaction ended.
	bounds []timing.Bounds
	got    time.Time
}

// run runs the transaction. The quotas differ in their names.
func (s *Store) run(ctx context.Context, x *transaction) (err error) {
	order := slices.SortedFunc(slices.Values(x.quotas), func(a, b *quota) int { return bytes.Compare(a.name, b.name) })
	leave, err := s.takeTurns(ctx, order)
	if err != nil {
		return err
	}
	began := x.quotas[0].calls.Begin()
	defer func() {
		for _, q := range x.quotas {
			q.renewLater(err)
		}
		leave()
		x.quotas[0].calls.End(began, x.requests, err)
		for _, q := range x.quotas {
			q.tellCrossed()
		}
	}()
	names, index := x.names(order)
	x.sent = time.Now()
	if x.prepare != nil {
		x.parts = make([]*part, len(x.quotas))
		for i := range x.parts {
			x.parts[i] = new(part)
		}
		x.prepare(x.parts)
	}
	err = s.keeper.Update(ctx, names, func(v View) ([]Write, error) { return x.change(v, index) })
	x.got = time.Now()
	for i, q := range x.quotas {
		q.dropPending(x.appliedTo(i), err != nil)
	}
	if err == nil {
		s.link.Trip.Add(x.got.Sub(x.sent)) // of no call that failed: a hanging keeper says nothing about the next one
		x.keep()
		return nil
	}
	for _, q := range x.quotas {
		q.lease.doubt()
	}
	if prefix := s.options.Name + ": "; !strings.HasPrefix(err.Error(), prefix) {
		err = fmt.Errorf("%s%w", prefix, err)
	}
	return err
}

// names returns the names of quotas in an order, and for each quota of the transaction the index of its name.
func (x *transaction) names(order []*quota) (names [][]byte, index []int) {
	index = make([]int, len(order))
	for i, q := range order {
		names = append(names, q.name)
		index[slices.Index(x.quotas, q)] = i
	}
	return names, index
}

// keep keeps the results, before another transaction of these quotas begins.
func (x *transaction) keep() {
	for i, q := range x.quotas {
		q.record(x.parts[i], x, i)
	}
	if x.granted != nil {
		x.granted()
	}
}

// takeTurns waits for the turns of quotas: a process makes one transaction of a quota at a time, and knows its result
// before the next one. Otherwise two would report the same.
func (s *Store) takeTurns(ctx context.Context, order []*quota) (leave func(), err error) {
	taken := 0
	leave = func() {
		for _, q := range order[:taken] {
			<-q.turn
		}
	}
	for ; taken < len(order); taken++ {
		select {
		case order[taken].turn <- struct{}{}:
		case <-ctx.Done():
			leave()
			return nil, fmt.Errorf("%s: %w: %w", s.options.Name, store.ErrUnavailable, ctx.Err())
		}
	}
	return leave, nil
}

func (x *transaction) appliedTo(i int) int {
	if i < len(x.applied) {
		return x.applied[i]
	}
	return 0
}

// change is the body of the transaction.
func (x *transaction) change(v View, index []int) ([]Write, error) {
	x.view, x.applied, x.reported, x.crossed = v, nil, nil, nil
	parts := make([]*part, len(x.quotas))
	for i, q := range x.quotas {
		t, err := begin(v.Values[index[i]], v, q)
		if err != nil {
			return nil, err
		}
		p := &part{txn: t, lease: q.lease, leaseEnds: t.now.At + t.lease, waits: q.isWatched()}
		if x.parts != nil && x.parts[i] != nil {
			p.terms, p.slack, p.headroom = x.parts[i].terms, x.parts[i].slack, x.parts[i].headroom
		}
		if t.lost && t.grantsFrom+t.lease < t.now.At {
			t.grantsFrom = t.now.At + t.lease/3
		}
		// What the responses say comes first, because it is about the time before the requests ended.
		x.applied = append(x.applied, q.applyPending(t))
		x.reported = append(x.reported, t.apply(q.lease, p.leaseEnds, p.waits))
		parts[i] = p
	}
	x.parts = parts
	if x.decide != nil {
		x.decide(parts)
	}
	writes := make([]Write, len(index))
	for i, p := range parts {
		x.crossed = append(x.crossed, p.crossings())
		writes[index[i]] = p.finish()
		if err := p.checkSize(writes[index[i]].Value, x.quotas[i].store.options.Ahead); err != nil {
			return nil, err
		}
	}
	return writes, nil
}

// MostBytes is the size of the largest value of a quota that reserves ahead. Three quarters of it may be the processes that
// hold or wait for places or estimates, of 17 bytes each, and 4 more for each unit: some 700 if there is one unit, and 400
// if there are four.
const MostBytes = 1 << 14

// checkSize returns an error if a value is too large, or has no room for one more process.
func (t *txn) checkSize(value []byte, ahead bool) error {
	switch {
	case !ahead:
	case len(t.owners) > t.known && len(appendOwners(nil, t.owners, t.last)) > MostBytes*3/4:
		return fmt.Errorf("%d processes hold or wait for places or estimates of the quota, and its value has no room for more: let fewer processes share it, or use package distributed", t.known)
	case len(value) > MostBytes:
		return fmt.Errorf("the value of the quota has %d bytes, and %d at most: use shorter windows, or package distributed", len(value), MostBytes)
	}
	return nil
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
