package admit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/queue"
	"github.com/apithrottle/throttle/store"
)

// A Policy is what a scope decides by: a policy of the root, checked, with its plan. Compile makes it
// ready. It is immutable then, so scopes can share it.
type Policy struct {
	Name  string
	Tiers []algorithms.Tier // as they were declared
	Plan  *algorithms.Plan
	Store store.Store // of the quotas; nil if each is in this process and has one scope

	MaxWait  time.Duration // zero if there is none
	MaxPause time.Duration
	Aging    time.Duration
	MaxQueue int // zero if any number may wait
	Headroom int // percent

	AutoGuard     bool // the guard is learned
	IgnoreReports bool
	Shadow        bool
	Alerts        bool // Events receives the thresholds of budgets

	Events Events // nil if nothing of the policy is observed

	oneRequest []int64         // the cost of one request
	batchSpec  *store.WaitSpec // of a new Batch request; nil if the policy has no Headroom
	// maxEstimate is the highest estimate that is charged, for each unit; nil if none is estimated.
	maxEstimate []int64

	reserves       bool // the store's quotas reserve ahead
	countsRequests bool // some tier counts requests
	estimates      bool // some unit is estimated
	concurrent     bool // some tier limits concurrency
	fastPath       bool // one request may ask the quota directly; see Path.fastPath
}

// Compile sets what decisions need of the policy and returns it.
func (c *Policy) Compile() *Policy {
	plan := c.Plan
	c.countsRequests, c.estimates, c.concurrent = slices.Contains(plan.Units(), algorithms.Requests), plan.Estimates(), plan.Concurrent()
	if c.maxEstimate = nil; c.estimates {
		c.maxEstimate = plan.MaxCost()
	}
	c.oneRequest = c.requestCost(1)
	c.fastPath = c.countsRequests && !c.concurrent && !c.AutoGuard && !c.Alerts && !c.Shadow && !c.reserves
	if c.batchSpec = nil; c.Headroom > 0 {
		c.batchSpec = &store.WaitSpec{YieldFor: c.Aging, Headroom: int64(c.Headroom)}
	}
	return c
}

// withPlan returns the policy with the tiers of a plan that another handle has set, or that has taken over
// limits. Its Tiers are without those limits: they name the tiers in errors, events and metrics.
func (c *Policy) withPlan(plan *algorithms.Plan) *Policy {
	next := *c
	next.Tiers, next.Plan = plan.Base().Given(), plan
	return next.Compile()
}

// keeping returns the policy with a plan in force if that is equal to its own but for limits that
// responses have named, so that nothing has to be converted: requests in flight then stay so.
func (c *Policy) keeping(plan *algorithms.Plan) *Policy {
	if base := plan.Base(); c.Plan == plan || !c.Plan.Equal(base) || !slices.Equal(c.Plan.Given(), base.Given()) {
		return c
	}
	return c.withPlan(plan)
}

// forStore returns the policy for a store whose quotas reserve ahead, or do not.
func (c *Policy) forStore(reserves bool) *Policy {
	if reserves == c.reserves {
		return c
	}
	own := *c
	own.reserves, own.fastPath = reserves, c.fastPath && !reserves
	return &own
}

// countsUnit reports whether a tier counts the unit.
func (c *Policy) countsUnit(unit string) bool { return slices.Contains(c.Plan.Units(), unit) }

// requestCost returns the cost of n requests.
func (c *Policy) requestCost(n int64) []int64 {
	cost := make([]int64, len(c.Plan.Units()))
	if i := slices.Index(c.Plan.Units(), algorithms.Requests); i >= 0 {
		cost[i] = n
	}
	return cost
}

// costOf returns the cost of a demand in the order of the plan's units. It leaves out units that
// only other scopes count. It returns ExceedsCapacity if no wait would admit the cost.
func (c *Policy) costOf(d *Demand) ([]int64, error) {
	if d.Cost == nil && d.N == 1 {
		return c.oneRequest, nil // every tier admits one
	}
	cost := c.requestCost(1)
	if d.Cost == nil {
		cost = c.requestCost(d.N)
	}
	for unit, n := range d.Cost {
		if i := slices.Index(c.Plan.Units(), unit); i >= 0 {
			cost[i] = n
		}
	}
	for u, most := range c.maxEstimate {
		// An estimate above the capacity of the tiers waits until they are unused, and the
		// actual cost is charged in full by the settlement.
		if c.Plan.Estimated(u) {
			cost[u] = min(cost[u], most)
		}
	}
	if tier := c.Plan.TooLarge(cost); tier >= 0 {
		e := c.refuse(ExceedsCapacity, tier, 0)
		e.Unit = cmp.Or(c.Plan.Tiers()[tier].Unit, algorithms.Requests)
		e.Cost = cost[slices.Index(c.Plan.Units(), e.Unit)]
		return nil, e
	}
	return cost, nil
}

// maxActual is the highest actual cost of a request that is charged.
const maxActual = algorithms.MaxLimit

// recost returns the cost of the demand as it is estimated now, or nil if it stays the same.
func (c *Policy) recost(d *Demand) []int64 {
	if !c.estimates {
		return nil
	}
	now := Demand{N: 1, Cost: d.Recost()}
	cost, err := c.costOf(&now)
	if err != nil || slices.Min(cost) < 0 {
		return nil
	}
	return cost
}

// actualCost returns the cost of a request: the reported amounts, or else the estimates.
func (c *Policy) actualCost(estimate []int64, reported map[string]int64) []int64 {
	actual := slices.Clone(estimate)
	for u, unit := range c.Plan.Units() {
		if n, ok := reported[unit]; ok && c.Plan.Estimated(u) {
			actual[u] = min(max(0, n), maxActual)
		}
	}
	return actual
}

// isOneRequest reports whether a cost is c.oneRequest, by identity.
func (c *Policy) isOneRequest(cost []int64) bool { return &cost[0] == &c.oneRequest[0] }

// hasBudget reports whether any tier is a budget, which refuses requests instead of making them
// wait.
func (c *Policy) hasBudget() bool {
	return slices.ContainsFunc(c.Plan.Tiers(), func(t algorithms.Tier) bool { return t.Budget })
}

// isFree reports whether a cost charges nothing, neither now nor when it is settled.
func (c *Policy) isFree(cost []int64) bool {
	return !c.estimates && !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// initialWaitSpec returns the WaitSpec of a request that has just arrived.
func (c *Policy) initialWaitSpec(ctx context.Context) *store.WaitSpec {
	if c.batchSpec != nil && ClassOf(ctx) == queue.Batch {
		return c.batchSpec
	}
	return nil
}

// requireRequestTier returns an error unless some tier counts requests. Without such a tier, a
// request without a Cost would be admitted at any rate.
func (c *Policy) requireRequestTier(counts bool) error {
	if counts {
		return nil
	}
	return c.Errorf("no tier counts requests: use Acquire with a Cost, or Transport.Cost, that names %s", strings.Join(c.Plan.Units(), ", "))
}

// alert reports the thresholds of budgets that were crossed.
func (c *Policy) alert(crossed []algorithms.Crossing) {
	if c.Alerts && crossed != nil {
		c.Events.Crossed(c, crossed)
	}
}

// mergePaces returns the state of the tiers as the policy declares them, except that a log which the store
// keeps as a sliding window is one. Limit is the limit in force, also if it follows responses. The counts are
// those of the tiers themselves. The pace of a tier, if it has one, only restricts what may go now.
func (c *Policy) mergePaces(deciding []store.TierStatus) (tiers []store.TierStatus) {
	declared := c.Plan.Base().Tiers()
	for i, s := range deciding {
		if c.Plan.IsPace(i) {
			of := &tiers[len(tiers)-1]
			of.Limited = of.Limited || s.Limited
			of.Remaining = min(of.Remaining, s.Remaining)
			of.RetryAfter = max(of.RetryAfter, s.RetryAfter)
			continue
		}
		if own := declared[i]; s.Limit != own.Capacity() || s.Tier.Limit != own.Limit {
			s.Followed = s.Tier.Limit
		}
		kept := s.Tier.Algorithm
		s.Policy, s.Tier = c.Name, c.Tiers[c.Plan.Declared(i)]
		if kept == algorithms.SlidingWindow && c.Plan.Tiers()[i].Algorithm == algorithms.SlidingLog {
			s.Tier.Algorithm = kept
		}
		tiers = append(tiers, s)
	}
	return tiers
}

// TierName returns the text of a tier of the plan, or an empty one if the tier is -1.
func (c *Policy) TierName(tier int) string {
	if tier < 0 {
		return ""
	}
	return c.Tiers[c.Plan.Declared(tier)].String()
}

// Errorf returns an error that names the policy.
func (c *Policy) Errorf(format string, args ...any) error {
	return fmt.Errorf("throttle: policy %q: "+format, append([]any{c.Name}, args...)...)
}
