package algorithms

import "slices"

// Follow makes a tier take over the limit that responses name for its unit and window.
type Follow struct {
	// Least and Most bound what the tier takes over, in units: its Limit or, of a bucket, its Burst if
	// that is not smaller. If Most is zero, the tier follows nothing. If Least is zero, a tenth of that of
	// the policy, so that one wrong response does not stop a fleet.
	Least, Most int64
}

// String returns the bounds as ParseTier reads them, such as "500..15000".
func (f Follow) String() string { return formatBounds(f.Least, f.Most) }

// check reports the problems of the Follow of a tier.
func (f Follow) check(t Tier, bad func(format string, args ...any)) {
	limit := namedLimit(t)
	switch {
	case f == Follow{}:
	case t.counter().released:
		bad("Follow is %v: no response names a limit of %v, leave it zero", f, t.Algorithm)
	case t.Learns():
		bad("Follow is %v: the rate of the tier is learned, set either Follow or Learn", f)
	case t.Budget:
		bad("Follow is %v: a budget is yours and not the provider's, leave it zero", f)
	case f.Most < limit || f.Most > MaxLimit:
		bad("Follow.Most is %d: it must be from %d, the limit of the tier, to %d", f.Most, limit, int64(MaxLimit))
	case f.Least < 0 || f.Least > limit:
		bad("Follow.Least is %d: it must be from 1 to %d, the limit of the tier, or zero for a tenth of it", f.Least, limit)
	}
}

// namedLimit returns the number that a response names as the limit of the tier: what the bucket of the
// provider holds. A smaller Burst is the caller's own, who sends less at once.
func namedLimit(t Tier) int64 { return max(t.Limit, t.Burst) }

// following returns the tier with a limit that a response has named, as far as Follow allows. A bucket
// that is larger refills faster: in the same time. A pace and a Burst of the caller's own stay, as far as
// the limit allows.
func following(t Tier, limit int64) Tier {
	own := namedLimit(t)
	limit = max(1, t.Follow.Least, min(limit, t.Follow.Most))
	if t.Follow.Least == 0 {
		limit = max(limit, (own+9)/10)
	}
	if t.Burst >= t.Limit {
		rate, _ := mulDiv(t.Limit, limit, t.Burst)
		t.Limit, t.Burst = max(1, rate), limit
	} else {
		t.Limit, t.Burst = limit, min(t.Burst, limit)
	}
	t.PaceBurst = min(t.PaceBurst, t.Limit)
	return t
}

// A Followed is what a plan has taken over from responses.
type Followed struct {
	// At numbers the last response that changed something: it is when its request was admitted, by the
	// quota's clock, or a little later. Of two, the later one holds.
	At int64

	// Limits are the named limits of the given tiers. Zero stands for the tier's own.
	Limits []int64
}

// Follows reports whether any tier follows what responses name.
func (p *Plan) Follows() bool { return slices.ContainsFunc(p.given, Tier.Follows) }

// Base returns the plan without what it has taken over: p itself if that is nothing.
func (p *Plan) Base() *Plan {
	if p.unfollowed == nil {
		return p
	}
	return p.unfollowed
}

// Followed returns what the plan has taken over.
func (p *Plan) Followed() Followed { return p.followed }

// Following returns the plan with limits that responses have named, as far as the Follow of each tier
// allows, instead of those that it has taken over before. If there is no such plan, because a bucket
// would refill too slowly, the tiers stay as they are.
func (p *Plan) Following(f Followed) *Plan {
	base := p.Base()
	tiers := slices.Clone(base.given)
	for i, limit := range f.Limits {
		if i < len(tiers) && limit > 0 && tiers[i].Follows() {
			tiers[i] = following(tiers[i], limit)
		}
	}
	next, err := NewPlan(tiers, base.Guard())
	if err != nil {
		kept := *p
		next = &kept
	}
	next.unfollowed, next.followed, next.start = base, f, base.start
	return next
}

// Continues reports whether the plan differs from another one at most by the limits that responses have
// named. What was charged under one can then be settled under the other, tier by tier.
func (p *Plan) Continues(o *Plan) bool {
	a, b := p.Base(), o.Base()
	return a == b || a.Equal(b) && slices.Equal(a.given, b.given)
}

// Replaces reports whether a quota under an old plan has to take the plan over: one that contains what
// responses have named comes too late if the tiers have changed since, or if a later response has named
// limits.
func (p *Plan) Replaces(old *Plan) bool {
	return p.unfollowed == nil || p.Continues(old) && p.followed.At > old.followed.At
}

// Allows reports whether a tier follows and may take over a limit as it is.
func (p *Plan) Allows(tier int, limit int64) bool {
	own := p.Base().given[p.declared[tier]]
	return own.Follows() && namedLimit(following(own, limit)) == limit
}

// Named returns the limit that a given tier has when a response names a limit for it, and the limit that
// it has now.
func (p *Plan) Named(given int, limit int64) (then, now int64) {
	now = namedLimit(p.given[given])
	if base := p.Base().given[given]; base.Follows() {
		return namedLimit(following(base, limit)), now
	}
	return now, now
}
