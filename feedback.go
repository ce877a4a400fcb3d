package throttle

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/retryafter"
	"github.com/apithrottle/throttle/store"
)

// observe passes the counts that the provider reports to the quotas.
func (a *attempt) observe(answer *answers.Answer, status int, after *callbacks) {
	if answer == nil || len(answer.Readings) == 0 {
		return
	}
	refused := answer.Kind == answers.Limited || answer.Kind == answers.Banned
	a.eachCharge(func(c *charge) { a.observeScope(c, answer.Readings, refused) })
	for _, r := range answer.Readings {
		if c, _ := a.tierFor(r); c == nil {
			a.pauseUntilReset(r, status, after)
		}
	}
}

// observeScope passes the readings of a scope's tiers to its quota.
func (a *admission) observeScope(c *charge, readings []answers.Reading, refused bool) {
	rev := c.revision
	var seen []store.Observation
	for _, r := range readings {
		of, tier := a.tierFor(r)
		if of != c {
			continue
		}
		if rev.plan.Tiers()[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			rev.align(tier, r)
		}
		if used, ok := usedOf(r, rev.plan.Tiers()[tier]); ok {
			o := store.Observation{Tier: tier, Used: used, Exact: r.Authoritative, Full: r.Full, Refused: refused}
			o.Reset, o.Slack = resetOf(r)
			seen = append(seen, o)
		}
	}
	if o, ok := rev.quota.(store.Observer); ok && len(seen) > 0 {
		o.Observe(c.decision, c.cost, seen)
	}
}

// pauseUntilReset pauses the quota until a reading's reset, if the reading is of no tier of the
// policy and nothing is left of it.
func (a *admission) pauseUntilReset(r answers.Reading, status int, after *callbacks) {
	if r.Has&answers.HasRemaining == 0 || r.Remaining > 0 || r.Has&answers.HasReset == 0 || r.Reset <= 0 || r.Reset > retryafter.Longest || r.Full {
		return
	}
	// If a shared store is not available, the next response pauses the quota.
	c := a.own()
	_ = c.scope.pause(context.Background(), c.revision, c.revision.toldPause(r.Reset, r.FromBody), pauseCause{cause: "response", status: status}, after)
}

// tierFor returns the tier of a reading, and the charge of its scope: the first tier with the
// reported limit, in any scope, or else the tier of the innermost scope that has one for the reading.
// It returns nil if there is none.
func (a *admission) tierFor(r answers.Reading) (of *charge, tier int) {
	matched := false
	a.eachCharge(func(c *charge) {
		if i, exact := c.revision.tierFor(r); i >= 0 && (of == nil || exact && !matched) {
			of, tier, matched = c, i, exact
		}
	})
	return of, tier
}

// tierFor returns the tier of a reading in the scope: the tier of its unit with its window or its
// limit, as far as it reports those, or the only tier of its unit. It returns -1 if there is none.
// exact reports that the tier has the reported limit.
func (rev *revision) tierFor(r answers.Reading) (tier int, exact bool) {
	found, tiers := -1, rev.plan.Tiers()
	for i, tier := range tiers {
		switch {
		case tier.Unit != r.Unit || tier.Algorithm == Concurrency || rev.plan.IsPace(i):
		case r.Window != 0 && r.Window != tier.Window && r.Window != tier.FillTime():
		case r.Limit == tier.Capacity():
			return i, true
		case found < 0:
			found = i
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
func (rev *revision) align(tier int, r answers.Reading) {
	if q, ok := rev.quota.(store.Aligner); ok {
		ends := time.Now().Add(r.Reset)
		q.Align(tier, ends.Add(-r.Slack-time.Second), ends.Add(time.Second))
	}
}
