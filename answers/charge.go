package answers

import (
	"maps"
	"slices"
)

// charged returns the charges in the status and the header. Those of the rule that matches, if it is
// not nil, come last.
func (e *event) charged(rule *Rule) (as []Amount) {
	for i := range e.profile.Charges {
		c := &e.profile.Charges[i]
		if n, ok := c.inHead(e); ok && !rule.costs(c.Unit) {
			as = addCharge(as, c, n)
		}
	}
	if rule != nil && len(rule.Cost) > 0 {
		for _, unit := range slices.Sorted(maps.Keys(rule.Cost)) {
			as = append(as, Amount{unitOrRequests(unit), min(max(rule.Cost[unit], 0), maxCount)})
		}
	}
	return as
}

// costs reports whether the rule has the cost of a unit.
func (r *Rule) costs(unit string) (has bool) {
	if r != nil && len(r.Cost) > 0 {
		for name := range r.Cost {
			has = has || unitOrRequests(name) == unitOrRequests(unit)
		}
	}
	return has
}

// inHead returns the charge in the status and the header, if there is one.
func (c *Charge) inHead(e *event) (n int64, ok bool) {
	if len(c.ByStatus) > 0 {
		if n, ok = c.ByStatus[e.Status]; !ok {
			n, ok = c.ByStatus[0]
		}
		return min(max(n, 0), maxCount), ok
	}
	if c.Field.Header != "" {
		n, ok = c.Field.count(e, up)
	}
	if c.Or.Header != "" && !ok {
		n, ok = c.Or.count(e, up)
	}
	return n, ok
}

// addCharge adds a charge of n, times its Times, to as.
func addCharge(as []Amount, c *Charge, n int64) []Amount {
	unit := unitOrRequests(c.Unit)
	if times := max(c.Times, 1); n > maxCount/times {
		n = maxCount
	} else {
		n *= times
	}
	for i := range as {
		if as[i].Unit == unit {
			as[i].N = min(as[i].N+n, maxCount)
			return as
		}
	}
	return append(as, Amount{unit, n})
}
