// Package lineage keeps the newest plan of each key, for stores whose quotas can change their
// plans.
package lineage

import (
	"sync"
	"sync/atomic"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/order"
)

// Lines contains the lines of a store, by key. The zero value is ready for use. Its methods and the
// methods of its lines are safe for concurrent use.
type Lines struct {
	mu    sync.Mutex // guards all below, and the fields of lines that refer to it
	byKey map[string]*Line
}

// A Line is shared by the quotas of one key. It contains the plan that replaced theirs.
type Line struct {
	lines   *Lines
	key     string
	openers int // guarded by lines.mu
	version atomic.Int64
	order   order.Order
	// plan is the plan of the version. If nil, the first plan has not been replaced. It is guarded
	// by lines.mu.
	plan     *algorithms.Plan
	watchers map[*func()]struct{}
}

// Open returns the line of a key, and its version, which is the version of the opened quota.
func (l *Lines) Open(key string) (*Line, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.byKey[key]
	if !ok {
		if l.byKey == nil {
			l.byKey = make(map[string]*Line)
		}
		n = &Line{lines: l, key: key, watchers: make(map[*func()]struct{})}
		l.byKey[key] = n
	}
	n.openers++
	return n, n.version.Load()
}

// Close closes the line for one opener, and reports whether it was the last.
func (n *Line) Close() (last bool) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	if n.openers--; n.openers == 0 {
		delete(n.lines.byKey, n.key)
	}
	return n.openers == 0
}

// Change sets the newest plan and calls the watchers.
func (n *Line) Change(plan *algorithms.Plan) {
	n.lines.mu.Lock()
	n.set(plan)
}

// Replace is Change if the plan of a version has not been replaced. It reports whether it has set the plan.
func (n *Line) Replace(version int64, plan *algorithms.Plan) bool {
	n.lines.mu.Lock()
	if !n.IsNewest(version) {
		n.lines.mu.Unlock()
		return false
	}
	n.set(plan)
	return true
}

// set is Change for a caller that holds the lock, which set unlocks.
func (n *Line) set(plan *algorithms.Plan) {
	n.plan = plan
	n.version.Add(1)
	var watchers []func()
	for f := range n.watchers {
		watchers = append(watchers, *f)
	}
	n.lines.mu.Unlock()
	for _, f := range watchers {
		f()
	}
}

// Order returns the order of the queues of the key.
func (n *Line) Order() *order.Order { return &n.order }

// IsNewest reports whether the plan of a version has not been replaced.
func (n *Line) IsNewest(version int64) bool { return n.version.Load() == version }

// Newest returns the newest plan and its version.
func (n *Line) Newest() (*algorithms.Plan, int64) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	return n.plan, n.version.Load()
}

// Watch calls changed after each Change, until stop is called.
func (n *Line) Watch(changed func()) (stop func()) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	n.watchers[&changed] = struct{}{}
	return func() {
		n.lines.mu.Lock()
		defer n.lines.mu.Unlock()
		delete(n.watchers, &changed)
	}
}
