package throttle

import (
	"context"
	"iter"

	"github.com/apithrottle/throttle/internal/admit"
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
	// callers inside another. If false, all calls for a key should pass the same outer Limiter to
	// Within.
	Shared bool

	// Blamed reports that a refusal which is not wide pauses a Shared quota, as it does one that is not
	// Shared: the quota of an account that sends from several addresses, for example. If false, a
	// refusal that is not wide, and whose unit the shared quota does not count, pauses the quota around
	// the shared one.
	Blamed bool
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
	keys *admit.Group[Limiter]
}

// NewGroup returns a Group of the policy. If s is nil, the group keeps its quotas in this process,
// for itself. A shared store keeps them under the policy's name and the key, so the policy must
// have a Name. NewGroup returns an error if the policy or an option is not valid.
func NewGroup(p Policy, s Store, o GroupOptions) (*Group, error) {
	c, err := compile(p, s)
	if err != nil {
		return nil, err
	}
	if o.MaxKeys < 0 {
		return nil, c.Errorf("MaxKeys is %d: it must be at least 0", o.MaxKeys)
	}
	return &Group{admit.NewGroup(c, admit.GroupOptions(o), pathOf)}, nil
}

// For returns the Limiter of a key, never nil. It does not block. If it cannot open a quota, every
// call of the returned Limiter fails with the reason, such as ErrTooManyKeys.
func (g *Group) For(key string) *Limiter { return g.keys.For(key) }

// Peek returns the Limiter of a key if the group keeps its quota, and else nil. Unlike For, it opens no
// quota and does not count as a use of the key. It does not block.
func (g *Group) Peek(key string) *Limiter { return g.keys.Peek(key) }

// Within returns a Limiter of the key inside outer; see Limiter.Within and GroupOptions.Shared. It does not block.
func (g *Group) Within(key string, outer *Limiter) *Limiter {
	return g.keys.Within(key, &outer.path)
}

// All returns an iterator over the keys that the group keeps and their Limiters, in no particular
// order. It iterates over a copy, so the group may be used meanwhile.
func (g *Group) All() iter.Seq2[string, *Limiter] { return g.keys.All() }

// Delete closes the Limiters of a key: their waiting callers get ErrClosed. The next For of the key
// opens a new quota, which in this process is unused. Delete of an unknown key does nothing.
func (g *Group) Delete(key string) { g.keys.Delete(key) }

// SetPolicy replaces the policy of all keys, as Limiter.SetPolicy does. If the store does not
// support the change for some keys, those keep their policy, and the error contains the reasons.
func (g *Group) SetPolicy(ctx context.Context, p Policy) error {
	return g.keys.SetPolicy(ctx, p.replacement)
}

// Len returns how many quotas the group keeps.
func (g *Group) Len() int { return g.keys.Len() }
