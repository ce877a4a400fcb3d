package throttle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/store"
)

// A compiled is a policy with its plan and what decisions need of both. It is immutable, so scopes
// can share it.
type compiled struct {
	policy Policy
	plan   *algorithms.Plan
	one    []int64         // the cost of one request
	yields *store.WaitSpec // of a new Batch request; nil if the policy has no Headroom
	most   []int64         // the highest estimate that is charged, for each unit; nil if no unit is estimated

	reserves   bool // the store's quotas reserve ahead
	counts     bool // some tier counts requests
	estimates  bool // some unit is estimated
	concurrent bool // some tier limits concurrency
	auto       bool // the guard is learned
	plain      bool // one request may ask the quota directly; see Limiter.plain
}

func compile(p Policy) (*compiled, error) {
	plan, err := p.plan()
	if err != nil {
		return nil, err
	}
	p.Tiers, p.AlertAt = slices.Clone(p.Tiers), slices.Clone(p.AlertAt)
	c := &compiled{
		policy: p, plan: plan, counts: slices.Contains(plan.Units(), algorithms.Requests),
		estimates: plan.Estimates(), concurrent: plan.Concurrent(), auto: p.Guard == AutoGuard,
	}
	if c.estimates {
		c.most = plan.Most()
	}
	c.one = c.requests(1)
	c.plain = c.counts && !c.concurrent && !c.auto && p.Alert == nil
	if p.Headroom > 0 {
		c.yields = &store.WaitSpec{YieldFor: p.aging(), Headroom: int64(p.Headroom)}
	}
	return c, nil
}

// replacement compiles a policy that replaces c for the same quota.
func (c *compiled) replacement(p Policy) (*compiled, error) {
	if p.Name != c.policy.Name {
		return nil, c.errorf("SetPolicy: Name is %q: it must stay %q, or make another Limiter", p.Name, c.policy.Name)
	}
	p.AssumeUsed = false
	next, err := compile(p)
	if err != nil {
		return nil, err
	}
	next.reserves, next.plain = c.reserves, next.plain && !c.reserves
	return next, nil
}

// under returns the policy with the tiers of a plan that another handle has set.
func (c *compiled) under(plan *algorithms.Plan) *compiled {
	p := c.policy
	p.Tiers, p.AssumeUsed = plan.Given(), false
	if p.Guard != AutoGuard {
		if p.Guard = plan.Guard(); p.Guard == 0 {
			p.Guard = NoGuard
		}
	}
	if !slices.ContainsFunc(p.Tiers, alerts) {
		p.AlertAt = nil
	}
	next, err := compile(p)
	if err != nil {
		return c // cannot happen: the plan is valid
	}
	next.plan, next.reserves, next.plain = plan, c.reserves, next.plain && !c.reserves
	return next
}

// has reports whether a tier counts the unit.
func (c *compiled) has(unit string) bool { return slices.Contains(c.plan.Units(), unit) }

// requests returns the cost of n requests.
func (c *compiled) requests(n int64) []int64 {
	cost := make([]int64, len(c.plan.Units()))
	if i := slices.Index(c.plan.Units(), algorithms.Requests); i >= 0 {
		cost[i] = n
	}
	return cost
}

// compile returns the cost of a demand in the order of the plan's units. It leaves out units that
// only other scopes count. It returns ErrExceedsCapacity if no wait would admit the cost.
func (c *compiled) compile(d *demand) ([]int64, error) {
	if d.cost == nil && d.n == 1 {
		return c.one, nil // every tier admits one
	}
	cost := c.requests(1)
	if d.cost == nil {
		cost = c.requests(d.n)
	}
	for unit, n := range d.cost {
		if i := slices.Index(c.plan.Units(), cmp.Or(unit, algorithms.Requests)); i >= 0 {
			cost[i] = n
		}
	}
	for u, most := range c.most {
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

// isOne reports whether a cost is c.one, by identity.
func (c *compiled) isOne(cost []int64) bool { return &cost[0] == &c.one[0] }

// hasBudget reports whether any tier is a budget, which refuses requests instead of making them
// wait.
func (c *compiled) hasBudget() bool {
	return slices.ContainsFunc(c.plan.Tiers(), func(t Tier) bool { return t.Budget })
}

// isFree reports whether a cost charges nothing, neither now nor when it is settled.
func (c *compiled) isFree(cost []int64) bool {
	return !c.estimates && !slices.ContainsFunc(cost, func(n int64) bool { return n != 0 })
}

// mostActual is the highest actual cost of a request that is charged.
const mostActual = algorithms.MaxLimit

func (c *compiled) errorf(format string, args ...any) error {
	return fmt.Errorf("throttle: policy %q: "+format, append([]any{c.policy.Name}, args...)...)
}
