package admit

import (
	"cmp"
	"context"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A NamedLimit is the limit that a response names for a tier.
type NamedLimit struct {
	Tier  int
	Limit int64
}

// Follow takes over the limits that the response to a charged request names for tiers of its revision,
// as far as these follow: a lower limit at once, and a higher one when a second response agrees. A response
// to a request that was admitted before the one that was followed last changes nothing. The change is
// that of SetPolicy, and does not wait for a store.
func (c *Charge) Follow(ctx context.Context, named []NamedLimit) {
	plan := c.Revision.Plan
	named = slices.DeleteFunc(named, func(n NamedLimit) bool { return !plan.Tiers()[n.Tier].Follows() })
	if len(named) == 0 {
		return
	}
	rev := c.Scope.adoptSuccessor()
	order, was := cmp.Or(c.Decision.Order, c.Decision.At), rev.Plan.Followed()
	if order < was.At || !rev.Plan.Base().Equal(plan.Base()) {
		return
	}
	if limits := c.Scope.followed(rev.Plan, plan, named); limits != nil {
		f := algorithms.Followed{At: max(order, was.At+1), Limits: limits}
		// If the store cannot change the plan, the tiers stay as they are.
		_ = c.Scope.setPolicy(ctx, rev.withPlan(rev.Plan.Following(f)))
	}
}

// followed records the limits that a response names for tiers of a plan. It returns the limits of the
// given tiers that the plan in force is to take over, or nil if it has them.
func (s *Scope) followed(inForce, plan *algorithms.Plan, named []NamedLimit) (limits []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := &s.rareState().named
	if *last == nil {
		*last = make(map[int]int64)
	}
	for _, n := range named {
		given := plan.Declared(n.Tier)
		then, now := inForce.Named(given, n.Limit)
		if then < now || then > now && (*last)[given] == then {
			if limits == nil {
				limits = make([]int64, len(inForce.Given()))
				copy(limits, inForce.Followed().Limits)
			}
			limits[given] = then
		}
		(*last)[given] = then
	}
	return limits
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
