package throttle

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/retryafter"
	"github.com/apithrottle/throttle/store"
)

// observe passes the counts that the provider reports to the quotas.
func (a *admission) observe(answer *answers.Answer, status int, after *admit.Callbacks) {
	if !a.Charged() || answer == nil || len(answer.Readings) == 0 {
		return
	}
	refused := answer.Kind == answers.Limited || answer.Kind == answers.Banned
	a.EachCharge(func(c *admit.Charge) { a.observeScope(c, answer.Readings, refused, after) })
	for _, r := range answer.Readings {
		if rev, _ := a.tierFor(r); rev == nil {
			a.pauseUntilReset(r, status, after)
		}
	}
}

// observeScope passes the readings of a scope's tiers to its quota.
func (a *admission) observeScope(c *admit.Charge, readings []answers.Reading, refused bool, after *admit.Callbacks) {
	rev := c.Revision
	if rev.Plan.Follows() {
		a.follow(c, readings, after)
	}
	tiers := c.Tiers()
	var seen []store.Observation
	for _, r := range readings {
		of, tier := a.tierFor(r)
		if of != rev {
			continue
		}
		if tiers[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			align(c, tier, r)
		}
		if used, ok := usedOf(r, tiers[tier]); ok {
			o := store.Observation{Tier: tier, Used: used, Exact: r.Authoritative, Full: r.Full, Refused: refused}
			o.Reset, o.Slack = resetOf(r)
			seen = append(seen, o)
		}
	}
	if len(seen) > 0 {
		c.Feedback().Observe(c.Decision, c.Cost, seen)
	}
}

// follow passes the limits that the readings name to the tiers of a scope.
func (a *admission) follow(c *admit.Charge, readings []answers.Reading, after *admit.Callbacks) {
	var limits []int64
	for _, r := range readings {
		if of, tier := a.tierFor(r); of == c.Revision {
			limits = c.Name(limits, tier, r.Limit)
		}
	}
	c.Follow(context.Background(), limits, after)
}

// pauseUntilReset pauses the quota until a reading's reset, if the reading is of no tier of the
// policy and nothing is left of it.
func (a *admission) pauseUntilReset(r answers.Reading, status int, after *admit.Callbacks) {
	if r.Has&answers.HasRemaining == 0 || r.Remaining > 0 || r.Has&answers.HasReset == 0 || r.Reset <= 0 || r.Reset > retryafter.Longest || r.Full {
		return
	}
	// If a shared store is not available, the next response pauses the quota.
	c := a.Own()
	_ = c.Scope.Pause(context.Background(), c.Revision, toldPause(c.Revision, r.Reset, r.FromBody), admit.PausedBy{Cause: string(PausedByResponse), Status: status}, after)
}

// tierFor returns the tier of a reading, and the policy of its scope: the first tier with the
// reported limit, in any scope, or else the tier of the innermost scope that has one for the reading.
// It returns nil if there is none. Policies with IgnoreReports have none.
func (a *admission) tierFor(r answers.Reading) (of *admit.Revision, tier int) {
	matched := false
	a.EachRevision(func(rev *admit.Revision) {
		if rev.IgnoreReports {
			return
		}
		if i, exact := tierFor(rev, r); i >= 0 && (of == nil || exact && !matched) {
			of, tier, matched = rev, i, exact
		}
	})
	return of, tier
}

// tierFor returns the tier of a reading in the scope: the tier of its unit with its window or its
// limit, as far as it reports those, or the only one that can take over that limit, or the only tier of its
// unit. It returns -1 if there is none.
// A provider knows nothing of budgets. exact reports that the tier has the reported limit.
func tierFor(rev *admit.Revision, r answers.Reading) (tier int, exact bool) {
	found, takes, tiers := -1, false, rev.Plan.Tiers() // takes: found is the first that can follow the limit
	for i, tier := range tiers {
		then, _ := rev.Plan.Named(rev.Plan.Declared(i), r.Limit)
		switch {
		case tier.Unit != r.Unit || tier.Algorithm == Concurrency || tier.Budget || tier.Learns() || rev.Plan.IsPace(i):
		case r.Window != 0 && r.Window != tier.Window && r.Window != tier.FillTime():
		case r.Limit == tier.Capacity():
			return i, true
		case found < 0, then == r.Limit && !takes:
			found, takes = i, then == r.Limit
		case takes && then != r.Limit:
		default:
			found = len(tiers) // ambiguous
		}
	}
	if found == len(tiers) {
		return -1, false
	}
	return found, false
}

// usedOf returns how many units of a tier its provider counts.
func usedOf(r answers.Reading, t algorithms.Tier) (used int64, ok bool) {
	switch {
	case r.Has&answers.HasReset != 0 && r.Reset <= 0: // a reading of a window that has ended
		return 0, false
	case r.Has&answers.HasRemaining != 0:
		return max(0, t.Capacity()-r.Remaining), true
	case r.Has&answers.HasUsed != 0:
		return r.Used, true
	}
	return 0, false
}

// resetOf returns the latest time until the count of a reading ends, and by how much sooner it may
// end. They include a second on either side, because the response may have rounded the time to whole
// seconds.
func resetOf(r answers.Reading) (reset, slack time.Duration) {
	if r.Has&answers.HasReset == 0 {
		return 0, 0
	}
	return r.Reset + time.Second, r.Slack + 2*time.Second
}

// align passes the end of a tier's window to the quota. The range includes a second on either side,
// because both clocks may be cut to whole seconds.
func align(c *admit.Charge, tier int, r answers.Reading) {
	ends := time.Now().Add(r.Reset)
	c.Feedback().Align(tier, ends.Add(-r.Slack-time.Second), ends.Add(time.Second))
}
