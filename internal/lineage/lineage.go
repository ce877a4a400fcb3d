// Package lineage keeps the newest plan of each key, for stores whose quotas change theirs.
package lineage

import (
	"sync"
	"sync/atomic"

	"github.com/apithrottle/throttle/algorithms"
)

// Lines are the lines of a store, by key. The zero value is ready. Its methods and those of
// its lines are safe for concurrent use.
type Lines struct {
	mu    sync.Mutex // guards all below, and what is said so of lines
	byKey map[string]*Line
}

// A Line is what the quotas of one key have in common: the plans that replaced theirs.
type Line struct {
	lines   *Lines
	key     string
	openers int // guarded by lines.mu
	version atomic.Int64
	plan    *algorithms.Plan // guarded by lines.mu: of the version; nil for the first
	told    map[*func()]struct{}
}

// Open returns the line of a key, and its version, which the opened quota has.
func (l *Lines) Open(key string) (*Line, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.byKey[key]
	if !ok {
		if l.byKey == nil {
			l.byKey = make(map[string]*Line)
		}
		n = &Line{lines: l, key: key, told: make(map[*func()]struct{})}
		l.byKey[key] = n
	}
	n.openers++
	return n, n.version.Load()
}

// Close ends what one Open began, and reports whether it was the last.
func (n *Line) Close() (last bool) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	if n.openers--; n.openers == 0 {
		delete(n.lines.byKey, n.key)
	}
	return n.openers == 0
}

// Change makes a plan the newest, and calls those who watch.
func (n *Line) Change(plan *algorithms.Plan) {
	n.lines.mu.Lock()
	n.plan = plan
	n.version.Add(1)
	var told []func()
	for f := range n.told {
		told = append(told, *f)
	}
	n.lines.mu.Unlock()
	for _, f := range told {
		f()
	}
}

// IsNewest reports whether no plan has replaced that of a version.
func (n *Line) IsNewest(version int64) bool { return n.version.Load() == version }

// Newest returns the plan that replaced all others, and its version.
func (n *Line) Newest() (*algorithms.Plan, int64) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	return n.plan, n.version.Load()
}

// Watch has a function called after each Change, until stop is called.
func (n *Line) Watch(changed func()) (stop func()) {
	n.lines.mu.Lock()
	defer n.lines.mu.Unlock()
	n.told[&changed] = struct{}{}
	return func() {
		n.lines.mu.Lock()
		defer n.lines.mu.Unlock()
		delete(n.told, &changed)
	}
}
