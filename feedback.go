package throttle

import (
	"context"
	"time"

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
	rev, tiers := c.Revision, c.Tiers()
	var seen []store.Observation
	for _, r := range readings {
		of, tier := a.tierFor(r)
		if of != rev {
			continue
		}
		if tiers[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			align(c, tier, r)
		}
		// What was counted under a higher limit may exceed what the provider counts under a lower one.
		lower := r.Remaining > 0 && tiers[tier].Capacity() < rev.Plan.Tiers()[tier].Capacity()
		if used, ok := usedOf(r, tiers[tier].Capacity()); ok {
			o := store.Observation{Tier: tier, Used: used, Exact: r.Authoritative || lower, Full: r.Full, Refused: refused}
			o.Reset, o.Slack = resetOf(r)
			seen = append(seen, o)
		}
	}
	if len(seen) > 0 {
		c.Feedback().Observe(c.Decision, c.Cost, seen)
	}
}

// follow passes the limits that a response names to the tiers that follow them.
func (a *admission) follow(answer *answers.Answer, after *admit.Callbacks) {
	a.EachCharge(func(c *admit.Charge) {
		if answer == nil || !c.Revision.Plan.Follows() {
			return
		}
		var limits []int64
		for _, r := range answer.Readings {
			if of, tier := a.tierFor(r); of == c.Revision {
				limits = c.Name(limits, tier, r.Limit)
			}
		}
		c.Follow(context.Background(), limits, after)
	})
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

// A match says how well a tier fits a reading of its unit and window.
type match int

const (
	unitMatch   match = iota // the only one
	followMatch              // the only one that follows the limit which the reading names
	limitMatch               // one with that limit
)

// tierFor returns the tier of a reading, and the policy of its scope: the tier that fits best, and of
// those that of the innermost scope. It returns nil if there is none. Policies with IgnoreReports have
// none.
func (a *admission) tierFor(r answers.Reading) (of *admit.Revision, tier int) {
	var best match
	a.EachRevision(func(rev *admit.Revision) {
		if rev.IgnoreReports {
			return
		}
		if i, fits := tierFor(rev, r); i >= 0 && (of == nil || fits > best) {
			of, tier, best = rev, i, fits
		}
	})
	return of, tier
}

// tierFor returns the tier of a reading in the scope. It returns a negative number if there is none, or
// if several fit as well. A provider knows nothing of budgets.
func tierFor(rev *admit.Revision, r answers.Reading) (tier int, best match) {
	const none, several = -1, -2
	tier = none
	for i, t := range rev.Plan.Tiers() {
		fits := unitMatch
		switch {
		case t.Unit != r.Unit || t.Algorithm == Concurrency || t.Budget || t.Learns() || rev.Plan.IsPace(i):
			continue
		case r.Window != 0 && r.Window != t.Window && r.Window != t.FillTime():
			continue
		case r.Limit == t.Capacity():
			return i, limitMatch
		case r.Limit > 0 && rev.Plan.Allows(i, r.Limit):
			fits = followMatch
		}
		if tier == none || fits > best {
			tier, best = i, fits
		} else if fits == best {
			tier = several
		}
	}
	return tier, best
}

// usedOf returns how many units of a tier with a limit its provider counts.
func usedOf(r answers.Reading, limit int64) (used int64, ok bool) {
	switch {
	case r.Has&answers.HasReset != 0 && r.Reset <= 0: // a reading of a window that has ended
		return 0, false
	case r.Has&answers.HasRemaining != 0:
		return max(0, limit-r.Remaining), true
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
