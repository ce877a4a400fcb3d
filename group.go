package throttle

import (
	"errors"
	"sync"
	"weak"

	"github.com/apithrottle/throttle/store"
)

// A Group keeps one quota per key under one policy: per host, API key or account.
// Use its For as a Transport's Route.
//
// A quota is dropped only when it decides as a fresh one would, nobody waits on it
// and nobody holds its Limiter, so that dropping it changes nothing: a Limiter that
// somebody holds stays its key's quota. Dropping happens as new keys come, without a
// goroutine. A Group is safe for concurrent use.
type Group struct {
	// MaxKeys is how many quotas the group keeps. Beyond it, For returns a Limiter
	// that refuses everything with ErrTooManyKeys. Set it before the first For. If
	// zero, no bound.
	MaxKeys int

	terms *terms
	store Store

	mu      sync.Mutex // guards entries
	entries map[string]entry
}

// An entry keeps a key's gate for as long as it is needed, and knows whether
// somebody holds it.
type entry struct {
	gate   *gate
	holder weak.Pointer[Limiter]
	nested weak.Pointer[Limiter] // the last inside another
}

// How many entries For looks at for one to drop: some whenever a key comes, more
// when the group is full.
const (
	sweepOne  = 2
	sweepFull = 1024
)

// NewGroup returns a Group of the policy. With a nil store its quotas are its own,
// in this process; on a shared store they are kept under the policy's name and the
// key.
func NewGroup(p Policy, s Store) (*Group, error) {
	t, err := newTerms(p)
	if err != nil {
		return nil, err
	}
	if s != nil && p.Name == "" {
		return nil, errors.New("throttle: policy \"\": Name is empty: a shared store keeps quotas by name, so give it one")
	}
	return &Group{terms: t, store: s, entries: make(map[string]entry)}, nil
}

// For returns the Limiter of a key, never nil. It does not block.
func (g *Group) For(key string) *Limiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	e, ok := g.entries[key]
	if ok {
		if l := e.holder.Value(); l != nil {
			return l
		}
	} else {
		gate, err := g.open(key)
		if err != nil {
			return &Limiter{err: err}
		}
		e.gate = gate
	}
	l := &Limiter{gate: e.gate}
	e.holder = weak.Make(l)
	g.entries[key] = e
	return l
}

// Within is For of a key whose quota lies inside another, see Limiter.Within. All calls
// for a key should name the same outer Limiter: callers inside different ones stand in
// different lines.
func (g *Group) Within(key string, outer *Limiter) *Limiter {
	l := g.For(key)
	if l.err != nil || outer.err != nil {
		return l.Within(outer)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[key]
	if n := e.nested.Value(); n != nil && n.parts[1].gate == outer.gate {
		return n
	}
	n := l.Within(outer)
	e.nested = weak.Make(n)
	g.entries[key] = e
	return n
}

// Len returns how many quotas the group keeps.
func (g *Group) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}

func (g *Group) open(key string) (*gate, error) {
	g.sweep(sweepOne)
	if g.MaxKeys > 0 && len(g.entries) >= g.MaxKeys {
		if g.sweep(sweepFull); len(g.entries) >= g.MaxKeys {
			return nil, g.terms.refuse(ErrTooManyKeys, -1, 0)
		}
	}
	return g.terms.open(g.store, g.terms.policy.Name+"\x00"+key)
}

// sweep drops what is not needed among n entries, which the map picks at random.
func (g *Group) sweep(n int) {
	for key, e := range g.entries {
		if n--; n < 0 {
			return
		}
		if e.holder.Value() == nil && e.gate.idle() {
			e.gate.quota.Close()
			delete(g.entries, key)
		}
	}
}

// idle tells whether nothing is lost when the gate is dropped.
func (g *gate) idle() bool {
	if g.waiting() > 0 {
		return false
	}
	q, ok := g.quota.(store.Idler)
	return !ok || q.Idle()
}
