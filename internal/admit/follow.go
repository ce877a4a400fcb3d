package admit

import (
	"context"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// Follow takes over the limit that the response to a charged request names for a tier of its revision
// that follows: a lower limit at once, and a higher one when a second response agrees. A response to a
// request that was admitted before the one that was followed last changes nothing, and neither does a
// limit of zero. The change is that of SetPolicy. Follow returns the limit that the tier then has, and whether
// it has become lower. What the tier has counted under a higher limit may then exceed what the response
// reports, which holds.
func (c *Charge) Follow(ctx context.Context, tier int, limit int64) (now int64, lower bool) {
	plan, s := c.Revision.Plan, c.Scope
	given := plan.Declared(tier)
	s.mu.Lock()
	rev, named := s.current.Load(), &s.rareState().named
	if rev.Plan.Base() != plan.Base() {
		s.mu.Unlock()
		return plan.Tiers()[tier].Capacity(), false
	}
	then, now := rev.Plan.Named(given, limit)
	if limit <= 0 || c.Decision.At < rev.Plan.Followed().At {
		s.mu.Unlock()
		return now, false
	}
	follows := then < now || then > now && (*named)[given] == then
	if *named == nil {
		*named = make(map[int]int64)
	}
	(*named)[given] = then
	s.mu.Unlock()
	if !follows {
		return now, false
	}
	f := algorithms.Followed{At: c.Decision.At, Limits: slices.Clone(rev.Plan.Followed().Limits)}
	if f.Limits == nil {
		f.Limits = make([]int64, len(plan.Base().Given()))
	}
	f.Limits[given] = then
	if err := s.setPolicy(ctx, rev.withPlan(rev.Plan.Following(f))); err != nil {
		return now, false // the store cannot change the plan
	}
	return then, then < now
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
