package throttle

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math"
	"sync"
)

// GroupOptions are the options of a Group. The zero value is ready to use.
type GroupOptions struct {
	// MaxKeys is how many quotas the group keeps. Beyond it a new key takes the place of one whose
	// quota is unused. If none is found, For returns a Limiter that refuses every call with
	// ErrTooManyKeys. The search looks at 64 quotas for each refused key on average. If zero, there is no
	// bound.
	MaxKeys int

	// Shared reports that a quota lies inside several others, as a limit of all writes lies inside
	// the limits of two APIs. A caller that waits for one of the outer quotas then does not hold up
	// callers inside another. A refusal that is not wide, and whose unit the shared quota does not
	// count, pauses the quota around the shared one. If false, all calls for a key should pass the same outer Limiter
	// to Within.
	Shared bool
}

// A Group keeps one quota per key under one policy: for example per host, API key or account. Call
// its For in the Route of a Transport.
//
// A Group drops a quota when it needs room or when new keys come, without a goroutine. It drops
// only quotas that are unused: no call and no Permit uses them, and they decide as new ones would.
// Therefore dropping changes nothing; a Limiter of a dropped key opens its quota again.
//
// In this process a quota that still counts something, and that nothing has used while many new
// keys came, is kept as a few bytes until its next use. SetPolicy, and calls in a loop over All,
// leave it so. A million idle quotas of two GCRA tiers take less than 250 bytes each, with their
// keys. A Group is safe for concurrent use.
type Group struct {
	options GroupOptions
	nesting nesting // of the Limiters of the keys

	mu       sync.Mutex // guards all below
	compiled *compiledPolicy
	parking  *scope // of the Limiters whose quotas are parked under the policy; it counts as dropped
	entries  map[string]*entry
	recent   entry // the ring of entries, the least recently used one first
	credit   int   // how many entries a full group may look at to find one to drop
}

// An entry is the quota of a key, and its place in the ring.
type entry struct {
	limiter    Limiter
	parked     *string // the state of the quota while it is parked; nil while it is open
	nested     *nested // nil before the first Within
	prev, next *entry
}

// A nested has the Limiters of a key inside others.
type nested struct {
	last *Limiter
	all  map[*Limiter]*Limiter // by the outer Limiter; nil before the second of a shared quota
}

// How many entries a group looks at to find one to drop: a few whenever a new key comes, more when
// the group is full.
const (
	sweepOne  = 3
	sweepFull = 64
)

// dropped is added to the number of calls that use a scope when the scope is dropped.
const dropped = math.MinInt32 / 2

// NewGroup returns a Group of the policy. If s is nil, the group keeps its quotas in this process,
// for itself. A shared store keeps them under the policy's name and the key, so the policy must
// have a Name. NewGroup returns an error if the policy or an option is not valid.
func NewGroup(p Policy, s Store, o GroupOptions) (*Group, error) {
	c, err := compile(p, s)
	if err != nil {
		return nil, err
	}
	if o.MaxKeys < 0 {
		return nil, c.errorf("MaxKeys is %d: it must be at least 0", o.MaxKeys)
	}
	g := &Group{options: o, entries: make(map[string]*entry)}
	g.nesting.group = g
	g.setCompiled(c)
	g.recent.prev, g.recent.next = &g.recent, &g.recent
	return g, nil
}

// For returns the Limiter of a key, never nil. It does not block. If it cannot open a quota, every
// call of the returned Limiter fails with the reason, such as ErrTooManyKeys.
func (g *Group) For(key string) *Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(key)
	if err != nil {
		return refusing(g.compiled, err)
	}
	g.touch(e)
	return &e.limiter
}

// Peek returns the Limiter of a key if the group keeps its quota, and else nil. Unlike For, it opens no
// quota and does not count as a use of the key. It does not block.
func (g *Group) Peek(key string) *Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.entries[key]; e != nil {
		return &e.limiter
	}
	return nil
}

// Within returns a Limiter of the key inside outer; see Limiter.Within and GroupOptions.Shared. It does not block.
func (g *Group) Within(key string, outer *Limiter) *Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(key)
	if err == nil {
		_, err = g.open(e)
	}
	if err != nil {
		return refusing(g.compiled, err)
	}
	g.touch(e)
	if e.nested == nil {
		e.nested = new(nested)
	}
	n := e.nested
	if n.last != nil && n.last.outer == outer {
		return n.last
	}
	l := n.all[outer]
	if l == nil {
		if l = e.limiter.Within(outer); l.err != nil {
			return l
		}
		if g.options.Shared && n.last != nil {
			n.keep(l)
		}
	}
	n.last = l
	return l
}

// idleHandles is how many Limiters without waiting callers the key of a shared quota may keep.
const idleHandles = 16

// keep keeps a second or further Limiter of the key inside another. It forgets those that nobody
// waits for when their number reaches a power of two.
func (n *nested) keep(l *Limiter) {
	if n.all == nil {
		n.all = map[*Limiter]*Limiter{n.last.outer: n.last}
	}
	if kept := len(n.all); kept >= idleHandles && kept&(kept-1) == 0 {
		maps.DeleteFunc(n.all, func(_, l *Limiter) bool { return l.waiting() == 0 })
	}
	n.all[l.outer] = l
}

// All returns an iterator over the keys that the group keeps and their Limiters, in no particular
// order. It iterates over a copy, so the group may be used meanwhile.
func (g *Group) All() iter.Seq2[string, *Limiter] {
	return func(yield func(string, *Limiter) bool) {
		for key, l := range g.limiters() {
			parked := l.scope.Load().uses.Load() < 0
			more := yield(key, l)
			if parked { // the caller may have opened the quota, to read its Status for instance
				g.parkAgain(l)
			}
			if !more {
				return
			}
		}
	}
}

func (g *Group) limiters() map[string]*Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]*Limiter, len(g.entries))
	for key, e := range g.entries {
		all[key] = &e.limiter
	}
	return all
}

// Delete closes the Limiters of a key: their waiting callers get ErrClosed. The next For of the key
// opens a new quota, which in this process is unused. Delete of an unknown key does nothing.
func (g *Group) Delete(key string) {
	g.mu.Lock()
	var s *scope
	if e := g.entries[key]; e != nil {
		s, _ = g.open(e)
		g.remove(e)
	}
	g.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// SetPolicy replaces the policy of all keys, as Limiter.SetPolicy does. If the store does not
// support the change for some keys, those keep their policy, and the error contains the reasons.
func (g *Group) SetPolicy(ctx context.Context, p Policy) error {
	g.mu.Lock()
	c, err := g.compiled.replacement(p)
	if err == nil {
		c = c.keeping(g.compiled.plan)
		g.setCompiled(c)
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range g.All() {
		if s, err := l.enter(); err == nil {
			errs = append(errs, s.setPolicy(ctx, c.forStore(s.current.Load().reserves)))
			s.leave()
		}
	}
	return errors.Join(errs...)
}

// Len returns how many quotas the group keeps.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}

// entry returns the entry of a key. It makes the entry if there is none.
func (g *Group) entry(key string) (*entry, error) {
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
			return nil, g.compiled.refuse(ErrTooManyKeys, -1, 0)
		}
	}
	s, err := g.openScope(g.compiled, key)
	if err != nil {
		return nil, err
	}
	e := &entry{limiter: Limiter{nesting: &g.nesting, key: key}}
	e.limiter.scope.Store(s)
	g.entries[key] = e
	g.link(e)
	return e, nil
}

// enter returns the scope of a Limiter's key. The scope is not dropped until leave is called.
func (g *Group) enter(l *Limiter) (*scope, error) {
	s := l.scope.Load()
	if s.uses.Add(1) > 0 {
		return s, nil
	}
	s.uses.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	e, err := g.entry(l.key)
	if err != nil {
		return nil, err
	}
	if s, err = g.open(e); err != nil {
		return nil, err
	}
	if l != &e.limiter {
		s.handOut(l)
	}
	s.uses.Add(1)
	return s, nil
}

// leave ends the use of a scope that enter has returned.
func (s *scope) leave() {
	if s.grouped {
		s.uses.Add(-1)
	}
}

// sweep looks at up to n entries, beginning with the least recently used one, and drops
// the unused ones. With force it drops one entry at most, even if that has learned something. It
// parks the others if it can, and moves them to the end of the ring. It returns how many entries it
// looked at.
func (g *Group) sweep(n int, force bool) (seen int) {
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

func (g *Group) touch(e *entry) {
	g.unlink(e)
	g.link(e)
}

func (g *Group) link(e *entry) {
	e.prev, e.next = g.recent.prev, &g.recent
	e.prev.next, e.next.prev = e, e
}

func (g *Group) unlink(e *entry) { e.prev.next, e.next.prev = e.next, e.prev }

func (g *Group) remove(e *entry) {
	g.unlink(e)
	delete(g.entries, e.limiter.key)
}

func (g *Group) setCompiled(c *compiledPolicy) {
	g.compiled = c
	if c.store == nil {
		g.parking, _ = g.openScope(c, "")
		g.parking.uses.Store(dropped)
	}
}

func (g *Group) openScope(c *compiledPolicy, key string) (*scope, error) {
	s, err := openScope(c, c.policy.Name+"\x00"+key)
	if err == nil {
		s.grouped, s.shared = true, g.options.Shared
	}
	return s, err
}

// open returns the scope of an entry. If the quota is parked, open opens it again.
func (g *Group) open(e *entry) (*scope, error) {
	s := e.limiter.scope.Load()
	if e.parked == nil {
		return s, nil
	}
	s, err := g.openScope(s.current.Load().compiledPolicy, e.limiter.key)
	if err == nil {
		err = parkerOf(s.current.Load().quota).Unpark([]byte(*e.parked))
	}
	if err == nil {
		e.parked = nil
		e.limiter.scope.Store(s)
	}
	return s, err
}

// parkAgain parks the quota of a Limiter's key if it can and no call uses the quota.
func (g *Group) parkAgain(l *Limiter) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, s := g.entries[l.key], l.scope.Load()
	if e == nil || l != &e.limiter || !s.uses.CompareAndSwap(0, dropped) {
		return
	}
	if !g.park(e, s, s.current.Load()) {
		s.uses.Add(-dropped)
	}
}

// park replaces the quota of an entry, which no call uses, with the bytes of its state. It reports
// whether it did. A quota that has learned something stays, and so does one with a policy of its
// own or with Limiters besides the entry's, which refer to the scope.
func (g *Group) park(e *entry, s *scope, rev *revision) bool {
	s.mu.Lock()
	handled := s.handled
	s.mu.Unlock()
	if handled || g.compiled.store != nil || rev.compiledPolicy != g.compiled || s.learned.Load() != nil {
		return false
	}
	state, ok := parkerOf(rev.quota).Park()
	if ok {
		parked := string(state)
		e.parked = &parked
		e.limiter.scope.Store(g.parking)
	}
	return ok
}

// drop closes the quota of an entry if no call uses it and it decides as a new one would. It reports
// whether it did. If not, it parks the quota if it can.
func (g *Group) drop(e *entry, force bool) bool {
	if e.parked != nil {
		return parkerOf(e.limiter.revision().quota).IsIdleAs([]byte(*e.parked))
	}
	s := e.limiter.scope.Load()
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

// hasLearned reports whether the scope has learned from responses what a new scope would have to
// learn again: the end of the provider's windows, a guard, a back-off.
func (s *scope) hasLearned() bool {
	if e := s.learned.Load(); e != nil && e.Fresh() {
		return true
	}
	return feedbackOf(s.current.Load().quota).Learned()
}
