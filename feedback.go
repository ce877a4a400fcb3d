package throttle

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/store"
)

// observe passes the counts that the provider reports to the quotas.
func (a *attempt) observe(answer *answers.Answer) {
	if answer == nil || len(answer.Readings) == 0 {
		return
	}
	others, refused := answer.Readings, answer.Kind == answers.Limited || answer.Kind == answers.Banned
	a.eachCharge(func(c *charge) { others = c.observe(others, refused) })
	for _, r := range others {
		a.pauseUntilReset(r)
	}
}

// observe passes the readings of the scope's own tiers to its quota, and returns the others.
func (c *charge) observe(readings []answers.Reading, refused bool) (others []answers.Reading) {
	rev := c.revision
	var seen []store.Observation
	for _, r := range readings {
		tier := rev.tierFor(r)
		if tier < 0 {
			others = append(others, r)
			continue
		}
		if rev.plan.Tiers()[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			rev.align(r)
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
	return others
}

// pauseUntilReset pauses the quota until a reading's reset, if the reading is of no tier of the
// policy and nothing is left of it.
func (a *admission) pauseUntilReset(r answers.Reading) {
	if r.Has&answers.HasRemaining == 0 || r.Remaining > 0 || r.Has&answers.HasReset == 0 || r.Reset <= 0 || r.Full {
		return
	}
	// If a shared store is not available, the next response pauses the quota.
	_, _ = a.revision.quota.Pause(context.Background(), store.Pause{For: r.Reset, Close: r.Reset > a.revision.policy.maxPause()})
}

// tierFor returns the tier of a reading: the tier of its unit with its window or its limit, as far
// as it reports those, or the only tier of its unit. It returns -1 if there is none.
func (rev *revision) tierFor(r answers.Reading) int {
	found, tiers := -1, rev.plan.Tiers()
	for i, tier := range tiers {
		switch {
		case tier.Unit != r.Unit || tier.Algorithm == Concurrency || i > 0 && rev.plan.Declared(i) == rev.plan.Declared(i-1):
		case r.Window != 0 && r.Window != tier.Window && r.Window != tier.FillTime():
		case r.Limit == tier.Capacity():
			return i
		case found < 0:
			found = i
		default:
			found = len(tiers) // ambiguous
		}
	}
	if found == len(tiers) {
		return -1
	}
	return found
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

// align passes the end of a window to the quota. The range includes a second on either side,
// because both clocks may be cut to whole seconds.
func (rev *revision) align(r answers.Reading) {
	if q, ok := rev.quota.(store.Aligner); ok {
		ends := time.Now().Add(r.Reset)
		q.Align(ends.Add(-r.Slack-time.Second), ends.Add(time.Second))
	}
}
