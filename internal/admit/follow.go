package admit

import (
	"context"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Follow takes over the limit that the response to a charged request names for a tier of its revision,
// if the tier follows: a lower limit at once, and a higher one when a second response agrees. A response
// to a request that was admitted before the one that was followed last changes nothing. The change is
// that of SetPolicy, and is reported after the event.
func (c *Charge) Follow(ctx context.Context, tier int, limit int64, after *Callbacks) {
	plan, s := c.Revision.Plan, c.Scope
	if !plan.Tiers()[tier].Follows() {
		return
	}
	given := plan.Declared(tier)
	s.mu.Lock()
	rev, named := s.current.Load(), &s.rareState().named
	if rev.Plan.Base() != plan.Base() || c.Decision.At < rev.Plan.Followed().At {
		s.mu.Unlock()
		return
	}
	then, now := rev.Plan.Named(given, limit)
	follows := then < now || then > now && (*named)[given] == then
	if *named == nil {
		*named = make(map[int]int64)
	}
	(*named)[given] = then
	s.mu.Unlock()
	if !follows {
		return
	}
	f := algorithms.Followed{At: c.Decision.At, Limits: slices.Clone(rev.Plan.Followed().Limits)}
	if f.Limits == nil {
		f.Limits = make([]int64, len(plan.Base().Given()))
	}
	f.Limits[given] = then
	next := rev.Plan.Following(f)
	if err := s.setPolicy(ctx, rev.withPlan(next)); err != nil || rev.Events == nil {
		return // if the store cannot change the plan, the tier stays as it is
	}
	change := Change{
		Tier: rev.TierName(tier), Cause: namedLimit,
		From: float64(rev.Plan.Given()[given].Limit), To: float64(next.Given()[given].Limit),
	}
	after.Add(func() { rev.Events.Changed(change) })
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
	reported := &s.rareState().decreased
	last := *reported
	for i, t := range status.Tiers {
		if t.Learned == nil || t.Learned.Refused == 0 {
			continue
		}
		if at := status.At - algorithms.Micros(t.Learned.Ago); at >= c.Decision.At && at > last {
			*reported = max(*reported, at)
			change := Change{Tier: rev.TierName(i), From: t.Learned.Refused, To: t.Learned.Rate, Cause: refusal}
			after.Add(func() { rev.Events.Changed(change) })
		}
	}
}

// Refused returns the refusal of a charged request for the tiers that learn their rate. If it names a unit, it
// is not about others. It returns nil if no tier learns.
func (c *Charge) Refused(unit string) *store.Refused {
	plan := c.Revision.Plan
	if !plan.Learns() {
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
