package admit

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math"
	"sync"
)

// A Group keeps the scopes of keys under one policy. L is the type of the root's Limiters, which contain a
// Path each. A scope is dropped when no call and no Permit uses it and its quota decides as a new one
// would. A quota of this process that still counts something is parked, as a few bytes.
type Group[L any] struct {
	pathOf  func(*L) *Path
	options GroupOptions
	nesting nesting // of the Paths of the keys

	mu       sync.Mutex // guards all below
	compiled *Policy
	parking  *Scope // of the Paths whose quotas are parked under the policy; it counts as dropped
	entries  map[string]*entry[L]
	recent   entry[L] // the ring of entries, the least recently used one first
	credit   int      // how many entries a full group may look at to find one to drop
}

// An entry is the quota of a key, and its place in the ring.
type entry[L any] struct {
	limiter    L
	parked     *string    // the state of the quota while it is parked; nil while it is open
	nested     *nested[L] // nil before the first Within
	prev, next *entry[L]
}

// A nested has the Limiters of a key inside others.
type nested[L any] struct {
	last *L
	all  map[*Path]*L // by the outer Path; nil before the second of a shared quota
}

// How many entries a group looks at to find one to drop: a few whenever a new key comes, more when
// the group is full.
const (
	sweepOne  = 3
	sweepFull = 64
)

// dropped is added to the number of calls that use a scope when the scope is dropped.
const dropped = math.MinInt32 / 2

// GroupOptions are the options of a Group.
type GroupOptions struct {
	MaxKeys int  // zero if there is no bound
	Shared  bool // each key lies inside several others
	Blamed  bool // a refusal that is not wide pauses a Shared quota
}

// NewGroup returns a Group of a policy.
func NewGroup[L any](c *Policy, o GroupOptions, pathOf func(*L) *Path) *Group[L] {
	g := &Group[L]{pathOf: pathOf, options: o, entries: make(map[string]*entry[L])}
	g.nesting.group = g
	g.setCompiled(c)
	g.recent.prev, g.recent.next = &g.recent, &g.recent
	return g
}

// refusing returns a Limiter that fails every call with an error.
func (g *Group[L]) refusing(err error) *L {
	l := new(L)
	g.pathOf(l).refuse(g.compiled, err)
	return l
}

// For returns the Limiter of a key, which fails every call if the group cannot open a quota.
func (g *Group[L]) For(key string) *L {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(key)
	if err != nil {
		return g.refusing(err)
	}
	g.touch(e)
	return &e.limiter
}

// Peek returns the Limiter of a key if the group keeps its quota, and else nil.
func (g *Group[L]) Peek(key string) *L {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.entries[key]; e != nil {
		return &e.limiter
	}
	return nil
}

// Within returns a Limiter of the key inside a Path.
func (g *Group[L]) Within(key string, outer *Path) *L {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(key)
	if err == nil {
		_, err = g.open(e)
	}
	if err != nil {
		return g.refusing(err)
	}
	g.touch(e)
	if e.nested == nil {
		e.nested = new(nested[L])
	}
	n := e.nested
	if n.last != nil && g.pathOf(n.last).outer == outer {
		return n.last
	}
	l := n.all[outer]
	if l == nil {
		l = new(L)
		p := g.pathOf(l)
		if p.Nest(g.pathOf(&e.limiter), outer); p.err != nil {
			return l
		}
		if g.options.Shared && n.last != nil {
			g.keep(n, l)
		}
	}
	n.last = l
	return l
}

// idleHandles is how many Limiters without waiting callers the key of a shared quota may keep.
const idleHandles = 16

// keep keeps a second or further Limiter of a key inside another. It forgets those that nobody
// waits for when their number reaches a power of two.
func (g *Group[L]) keep(n *nested[L], l *L) {
	if n.all == nil {
		n.all = map[*Path]*L{g.pathOf(n.last).outer: n.last}
	}
	if kept := len(n.all); kept >= idleHandles && kept&(kept-1) == 0 {
		maps.DeleteFunc(n.all, func(_ *Path, l *L) bool { return g.pathOf(l).Waiting() == 0 })
	}
	n.all[g.pathOf(l).outer] = l
}

// All returns an iterator over the keys that the group keeps and their Limiters, in no particular
// order. It iterates over a copy, so the group may be used meanwhile.
func (g *Group[L]) All() iter.Seq2[string, *L] {
	return func(yield func(string, *L) bool) {
		for key, l := range g.limiters() {
			p := g.pathOf(l)
			parked := p.scope.Load().uses.Load() < 0
			more := yield(key, l)
			if parked { // the caller may have opened the quota, to read its Status for instance
				g.parkAgain(p)
			}
			if !more {
				return
			}
		}
	}
}

func (g *Group[L]) limiters() map[string]*L {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]*L, len(g.entries))
	for key, e := range g.entries {
		all[key] = &e.limiter
	}
	return all
}

// Delete closes the Limiters of a key, if the group keeps it.
func (g *Group[L]) Delete(key string) {
	g.mu.Lock()
	var s *Scope
	if e := g.entries[key]; e != nil {
		s, _ = g.open(e)
		g.remove(e)
	}
	g.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// SetPolicy replaces the policy of all keys by one that replace returns for it. The error contains the
// reasons of the keys that keep their policy.
func (g *Group[L]) SetPolicy(ctx context.Context, replace func(*Policy) (*Policy, error)) error {
	g.mu.Lock()
	c, err := replace(g.compiled)
	if err == nil {
		c = c.keeping(g.compiled.Plan)
		g.setCompiled(c)
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range g.All() {
		if s, err := g.pathOf(l).Enter(); err == nil {
			errs = append(errs, s.setPolicy(ctx, c))
			s.Leave()
		}
	}
	return errors.Join(errs...)
}

// Parked returns how many quotas are parked.
func (g *Group[L]) Parked() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.entries {
		if e.parked != nil {
			n++
		}
	}
	return n
}

// Len returns how many quotas the group keeps.
func (g *Group[L]) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}

// entry returns the entry of a key. It makes the entry if there is none.
func (g *Group[L]) entry(key string) (*entry[L], error) {
	if e := g.entries[key]; e != nil {
		return e, nil
	}
	g.sweep(sweepOne, false)
	if g.options.MaxKeys == 0 || len(g.entries) < g.options.MaxKeys {
		g.credit = len(g.entries)
	} else {
		g.credit = min(len(g.entries), g.credit+sweepFull)
		g.credit -= g.sweep(g.credit, true)
		if len(g.entries) >= g.options.MaxKeys {
			return nil, g.compiled.refuse(TooManyKeys, -1, 0)
		}
	}
	s, err := g.openScope(g.compiled, key)
	if err != nil {
		return nil, err
	}
	e := new(entry[L])
	p := g.pathOf(&e.limiter)
	p.nesting, p.key = &g.nesting, key
	p.scope.Store(s)
	g.entries[key] = e
	g.link(e)
	return e, nil
}

// reopen returns the scope of a Path's key, which has been dropped. It is not dropped until Leave is called.
func (g *Group[L]) reopen(p *Path) (*Scope, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(p.key)
	if err != nil {
		return nil, err
	}
	s, err := g.open(e)
	if err != nil {
		return nil, err
	}
	if p != g.pathOf(&e.limiter) {
		s.handOut(p)
	}
	s.uses.Add(1)
	return s, nil
}

// sweep looks at up to n entries, beginning with the least recently used one, and drops
// the unused ones. With force it drops one entry at most, even if that has learned something. It
// parks the others if it can, and moves them to the end of the ring. It returns how many entries it
// looked at.
func (g *Group[L]) sweep(n int, force bool) (seen int) {
	for ; seen < n && len(g.entries) > 0; seen++ {
		e := g.recent.next
		if !g.drop(e, force) {
			g.touch(e)
			continue
		}
		g.remove(e)
		if force {
			return seen + 1
		}
	}
	return seen
}

func (g *Group[L]) touch(e *entry[L]) {
	g.unlink(e)
	g.link(e)
}

func (g *Group[L]) link(e *entry[L]) {
	e.prev, e.next = g.recent.prev, &g.recent
	e.prev.next, e.next.prev = e, e
}

func (g *Group[L]) unlink(e *entry[L]) { e.prev.next, e.next.prev = e.next, e.prev }

func (g *Group[L]) remove(e *entry[L]) {
	g.unlink(e)
	delete(g.entries, g.pathOf(&e.limiter).key)
}

func (g *Group[L]) setCompiled(c *Policy) {
	g.compiled = c
	if c.Store == nil {
		g.parking, _ = g.openScope(c, "")
		g.parking.uses.Store(dropped)
	}
}

func (g *Group[L]) openScope(c *Policy, key string) (*Scope, error) {
	s, err := openScope(c, c.Name+"\x00"+key)
	if err == nil {
		s.grouped, s.shared, s.blameless = true, g.options.Shared, g.options.Shared && !g.options.Blamed
	}
	return s, err
}

// open returns the scope of an entry. If the quota is parked, open opens it again.
func (g *Group[L]) open(e *entry[L]) (*Scope, error) {
	s := g.pathOf(&e.limiter).scope.Load()
	if e.parked == nil {
		return s, nil
	}
	s, err := g.openScope(s.current.Load().Policy, g.pathOf(&e.limiter).key)
	if err == nil {
		err = parkerOf(s.current.Load().quota).Unpark([]byte(*e.parked))
	}
	if err == nil {
		e.parked = nil
		g.pathOf(&e.limiter).scope.Store(s)
	}
	return s, err
}

// parkAgain parks the quota of a Path's key if it can and no call uses the quota.
func (g *Group[L]) parkAgain(p *Path) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, s := g.entries[p.key], p.scope.Load()
	if e == nil || p != g.pathOf(&e.limiter) || !s.uses.CompareAndSwap(0, dropped) {
		return
	}
	if !g.park(e, s, s.current.Load()) {
		s.uses.Add(-dropped)
	}
}

// park replaces the quota of an entry, which no call uses, with the bytes of its state. It reports
// whether it did. A quota that has learned something stays, and so does one with a policy of its
// own or with Limiters besides the entry's, which refer to the scope.
func (g *Group[L]) park(e *entry[L], s *Scope, rev *Revision) bool {
	s.mu.Lock()
	handled := s.handled
	s.mu.Unlock()
	if handled || g.compiled.Store != nil || rev.Policy != g.compiled || s.learned.Load() != nil {
		return false
	}
	state, ok := parkerOf(rev.quota).Park()
	if ok {
		parked := string(state)
		e.parked = &parked
		g.pathOf(&e.limiter).scope.Store(g.parking)
	}
	return ok
}

// drop closes the quota of an entry if no call uses it and it decides as a new one would. It reports
// whether it did. If not, it parks the quota if it can.
func (g *Group[L]) drop(e *entry[L], force bool) bool {
	if e.parked != nil {
		return parkerOf(g.pathOf(&e.limiter).revision().quota).IsIdleAs([]byte(*e.parked), force)
	}
	s := g.pathOf(&e.limiter).scope.Load()
	if !s.uses.CompareAndSwap(0, dropped) {
		return false
	}
	rev := s.current.Load()
	if rev.closed { // its Limiters keep refusing, and its quota is closed
		s.uses.Add(-dropped)
		return true
	}
	if s.waiting() == 0 && lifecycleOf(rev).Idle() && (force || !s.hasLearned()) {
		rev.quota.Close()
		return true
	}
	if !g.park(e, s, rev) {
		s.uses.Add(-dropped)
	}
	return false
}
