package admit

import (
	"cmp"
	"context"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A named is what a response has named for a tier.
type named struct {
	limit int64 // as far as the tier's Follow allows. If zero, none has named any
	at    int64 // when the request of the response was admitted
}

// Name adds a limit that a response names for a tier to those that Follow receives, zero for none. Of several
// limits of one tier it keeps the lowest.
func (c *Charge) Name(limits []int64, tier int, limit int64) []int64 {
	if limit <= 0 || !c.Revision.Plan.Tiers()[tier].Follows() {
		return limits
	}
	if limits == nil {
		limits = make([]int64, len(c.Revision.Plan.Tiers()))
	}
	if was := limits[tier]; was == 0 || limit < was {
		limits[tier] = limit
	}
	return limits
}

// Follow takes over the limits that the response to a charged request names for the tiers of its
// revision: a lower limit at once, and a higher one when a second response agrees. A
// response to a request that was admitted before that of the last one changes nothing. If the store cannot
// change the plan, the tiers stay as they are. What has changed is reported after the event.
func (c *Charge) Follow(ctx context.Context, limits []int64, after *Callbacks) {
	if limits == nil {
		return
	}
	s, plan := c.Scope, c.Revision.Plan
	rev := s.adoptSuccessor()
	at, was := cmp.Or(c.Decision.Order, c.Decision.At), rev.Plan.Followed()
	if !rev.Plan.Continues(plan) || at < was.At {
		return
	}
	f, changed := algorithms.Followed{At: max(at, was.At+1), Limits: slices.Clone(was.Limits)}, false
	if f.Limits == nil {
		f.Limits = make([]int64, len(plan.Given()))
	}
	s.mu.Lock()
	for tier, limit := range limits {
		if given := plan.Declared(tier); limit > 0 && s.rareState().heed(rev.Plan, given, limit, at) {
			f.Limits[given], changed = s.rare.named[given].limit, true
		}
	}
	s.mu.Unlock()
	if changed && s.follow(ctx, rev, f) == nil && rev.Events != nil {
		reportFollowed(rev, s.current.Load().Plan, after)
	}
}

// reportFollowed reports the limits of a revision's tiers that are others in the next plan, after the event.
func reportFollowed(rev *Revision, next *algorithms.Plan, after *Callbacks) {
	if !next.Continues(rev.Plan) { // SetPolicy came between
		return
	}
	for i, was := range rev.Plan.Given() {
		if now := next.Given()[i]; now != was {
			change := Change{Tier: rev.Tiers[i].String(), From: float64(was.Limit), To: float64(now.Limit), Cause: namedLimit}
			after.Add(func() { rev.Events.Changed(change) })
		}
	}
}

// reportDecreases reports the learned rates that have decreased since the request was admitted, after the
// event and once.
func (c *Charge) reportDecreases(status store.Status, after *Callbacks) {
	s, rev := c.Scope, c.Revision
	if !rev.Plan.Learns() || rev.Events == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reported, refused := &s.rareState().decreased, &s.rareState().refused
	last, lastRefused := *reported, *refused
	for i, t := range status.Tiers {
		if t.Learned == nil || t.Learned.Refused == 0 {
			continue
		}
		if t.Learned.Ago == 0 && t.Learned.Refused == lastRefused {
			continue // a decrease is dated up to a second later
		}
		if at := status.At - algorithms.Micros(t.Learned.Ago); at >= c.Decision.At && at > last {
			*reported, *refused = max(*reported, at), t.Learned.Refused
			change := Change{Tier: rev.TierName(i), From: t.Learned.Refused, To: t.Learned.Rate, Cause: refusal}
			after.Add(func() { rev.Events.Changed(change) })
		}
	}
}

// heed records what a response names for a given tier, and reports whether the tier changes.
func (r *rareState) heed(plan *algorithms.Plan, given int, limit, at int64) bool {
	if len(r.named) != len(plan.Given()) {
		r.named = make([]named, len(plan.Given()))
	}
	last := &r.named[given]
	if at < last.at {
		return false
	}
	then, now := plan.Named(given, limit)
	agrees := last.limit == then
	*last = named{then, at}
	return then < now || then > now && agrees
}

// Tiers returns the tiers that decide now, if they differ from those of the charge only by what responses have
// named, and else those of the charge.
func (c *Charge) Tiers() []algorithms.Tier {
	if plan := c.Scope.current.Load().Plan; plan.Continues(c.Revision.Plan) {
		return plan.Tiers()
	}
	return c.Revision.Plan.Tiers()
}

// Refused returns the refusal of a charged request for the tiers that learn their rate. If it names a unit, it
// is not about others. It returns nil if no tier learns, and for a probe, because nothing was sent at the rate
// before it.
func (c *Charge) Refused(unit string) *store.Refused {
	plan := c.Revision.Plan
	if !plan.Learns() || c.Decision.Probe {
		return nil
	}
	cost := slices.Clone(c.Cost)
	for u, name := range plan.Units() {
		if unit != "" && name != unit {
			cost[u] = 0
		}
	}
	return &store.Refused{At: c.Decision.At, Cost: cost}
}
