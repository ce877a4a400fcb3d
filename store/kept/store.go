package kept

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/lineage"
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
	// Busy returns the error of a caller whose context ended while another transaction of this process had the
	// name. If nil, the error names no reason.
	Busy func(context.Context) error
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
	if newest, _ := line.Newest(); newest != nil && newest.Base().Equal(plan.Base()) && isNewer(newest.Followed(), plan.Followed()) {
		plan = newest
	}
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
