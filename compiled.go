package throttle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A compiledPolicy is a policy with its plan and what decisions need of both. It is immutable, so
// scopes can share it.
type compiledPolicy struct {
	policy     Policy
	plan       *algorithms.Plan
	store      Store           // of the quotas; nil if each is in this process and has one scope
	oneRequest []int64         // the cost of one request
	batchSpec  *store.WaitSpec // of a new Batch request; nil if the policy has no Headroom
	// maxEstimate is the highest estimate that is charged, for each unit; nil if none is estimated.
	maxEstimate []int64
	called      func(store.Call) // reports to Observer.Called; nil if that is

	reserves       bool // the store's quotas reserve ahead
	countsRequests bool // some tier counts requests
	estimates      bool // some unit is estimated
	concurrent     bool // some tier limits concurrency
	autoGuard      bool // the guard is learned
	fastPath       bool // one request may ask the quota directly; see Limiter.fastPath
}

// compile compiles a policy of quotas in a store, or in this process if s is nil. It returns an error
// if the policy is not valid or the store cannot keep it.
func compile(p Policy, s Store) (*compiledPolicy, error) {
	plan, err := p.plan()
	if err != nil {
		return nil, err
	}
	if err := checkStore(p, s); err != nil {
		return nil, err
	}
	if p.Shadow {
		p = p.inShadow()
	}
	p.Tiers, p.AlertAt = slices.Clone(p.Tiers), slices.Clone(p.AlertAt)
	c := &compiledPolicy{
		policy: p, plan: plan, store: s, countsRequests: slices.Contains(plan.Units(), algorithms.Requests),
		estimates: plan.Estimates(), concurrent: plan.Concurrent(), autoGuard: p.Guard == AutoGuard,
	}
	if c.estimates {
		c.maxEstimate = plan.MaxCost()
	}
	c.called = p.Observer.reportCalls(p.Name)
	c.oneRequest = c.requestCost(1)
	c.fastPath = c.countsRequests && !c.concurrent && !c.autoGuard && p.Alert == nil && !p.Shadow
	if p.Headroom > 0 {
		c.batchSpec = &store.WaitSpec{YieldFor: p.aging(), Headroom: int64(p.Headroom)}
	}
	return c, nil
}

// replacement compiles a policy that replaces c for the same quota.
func (c *compiledPolicy) replacement(p Policy) (*compiledPolicy, error) {
	if p.Shadow != c.policy.Shadow {
		return nil, c.errorf("SetPolicy: Shadow is %v: it must stay %v, or make another Limiter", p.Shadow, c.policy.Shadow)
	}
	p.AssumeUsed = false
	next, err := compile(p, c.store)
	if err != nil {
		return nil, err
	}
	if next.policy.Name != c.policy.Name {
		return nil, c.errorf("SetPolicy: Name is %q: it must stay %q, or make another Limiter", p.Name, c.policy.Name)
	}
	next.reserves, next.fastPath = c.reserves, next.fastPath && !c.reserves
	return next, nil
}

// withPlan returns the policy with the tiers of a plan that another handle has set.
func (c *compiledPolicy) withPlan(plan *algorithms.Plan) *compiledPolicy {
	p := c.policy
	p.Tiers, p.AssumeUsed = plan.Given(), false
	if p.Guard != AutoGuard {
		if p.Guard = plan.Guard(); p.Guard == 0 {
			p.Guard = NoGuard
		}
	}
	if !slices.ContainsFunc(p.Tiers, hasAlerts) {
		p.AlertAt = nil
	}
	next, err := compile(p, c.store)
	if err != nil {
		return c // cannot happen: the plan is valid
	}
	next.plan, next.reserves, next.fastPath = plan, c.reserves, next.fastPath && !c.reserves
	return next
}

// keeping returns the policy with a plan in force if that is equal to its own, so that nothing has to be
// converted: requests in flight then stay so.
func (c *compiledPolicy) keeping(plan *algorithms.Plan) *compiledPolicy {
	if c.plan == plan || !c.plan.Equal(plan) || !slices.Equal(c.plan.Given(), plan.Given()) {
		return c
	}
	own := *c
	own.plan = plan
	return &own
}

// forStore returns the policy for a store whose quotas reserve ahead, or do not.
func (c *compiledPolicy) forStore(reserves bool) *compiledPolicy {
	if reserves == c.reserves {
		return c
	}
	own := *c
	own.reserves, own.fastPath = reserves, c.fastPath && !reserves
	return &own
}

// countsUnit reports whether a tier counts the unit.
func (c *compiledPolicy) countsUnit(unit string) bool { return slices.Contains(c.plan.Units(), unit) }

// requestCost returns the cost of n requests.
func (c *compiledPolicy) requestCost(n int64) []int64 {
	cost := make([]int64, len(c.plan.Units()))
	if i := slices.Index(c.plan.Units(), algorithms.Requests); i >= 0 {
		cost[i] = n
	}
	return cost
}

// costOf returns the cost of a demand in the order of the plan's units. It leaves out units that
// only other scopes count. It returns ErrExceedsCapacity if no wait would admit the cost.
func (c *compiledPolicy) costOf(d *demand) ([]int64, error) {
	if d.cost == nil && d.n == 1 {
		return c.oneRequest, nil // every tier admits one
	}
	cost := c.requestCost(1)
	if d.cost == nil {
		cost = c.requestCost(d.n)
	}
	for unit, n := range d.cost {
		if i := slices.Index(c.plan.Units(), unit); i >= 0 {
			cost[i] = n
		}
	}
	for u, most := range c.maxEstimate {
		// An estimate above the capacity of the tiers waits until they are unused, and the
		// actual cost is charged in full by the settlement.
		if c.plan.Estimated(u) {
			cost[u] = min(cost[u], most)
		}
	}
	if tier := c.plan.TooLarge(cost); tier >= 0 {
		e := c.refuse(ErrExceedsCapacity, tier, 0)
		unit := cmp.Or(c.plan.Tiers()[tier].Unit, algorithms.Requests)
		e.cost = fmt.Sprint(cost[slices.Index(c.plan.Units(), unit)], " ", unit)
		return nil, e
	}
	return cost, nil
}

// isOneRequest reports whether a cost is c.oneRequest, by identity.
func (c *compiledPolicy) isOneRequest(cost []int64) bool { return &cost[0] == &c.oneRequest[0] }

// hasBudget reports whether any tier is a budget, which refuses requests instead of making them
// wait.
func (c *compiledPolicy) hasBudget() bool {
	return slices.ContainsFunc(c.plan.Tiers(), func(t Tier) bool { return t.Budget })
}

// isFree reports whether a cost charges nothing, neither now nor when it is settled.
func (c *compiledPolicy) isFree(cost []int64) bool {
	return !c.estimates && !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// maxActual is the highest actual cost of a request that is charged.
const maxActual = algorithms.MaxLimit

func (c *compiledPolicy) errorf(format string, args ...any) error {
	return fmt.Errorf("throttle: policy %q: "+format, append([]any{c.policy.Name}, args...)...)
}
