package throttle

import (
	"context"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/store"
)

// observe tells the quotas what the provider says it counts.
func (a *attempt) observe(answer *answers.Answer) {
	if answer == nil || len(answer.Readings) == 0 {
		return
	}
	others, refused := answer.Readings, answer.Kind == answers.Limited || answer.Kind == answers.Banned
	a.each(func(c *charge) { others = c.observe(others, refused) })
	for _, r := range others {
		a.pauseUntilReset(r)
	}
}

// observe takes the readings that are of the scope's own tiers, and returns the others.
func (c *charge) observe(readings []answers.Reading, refused bool) (others []answers.Reading) {
	t := c.terms
	var seen []store.Observation
	for _, r := range readings {
		tier := t.tierOf(r)
		if tier < 0 {
			others = append(others, r)
			continue
		}
		if t.plan.Tiers()[tier].Phase == UnknownPhase && r.Has&answers.HasReset != 0 && !r.Full {
			t.align(r)
		}
		if used, ok := usedOf(r, t.plan.Tiers()[tier]); ok {
			o := store.Observation{Tier: tier, Used: used, Exact: r.Authoritative, Full: r.Full, Refused: refused}
			o.Reset, o.Slack = resetOf(r)
			seen = append(seen, o)
		}
	}
	if o, ok := t.quota.(store.Observer); ok && len(seen) > 0 {
		o.Observe(c.decision, c.cost, seen)
	}
	return others
}

// pauseUntilReset pauses the quota where the provider says that something is used up which is no
// tier of the policy, until it says there will be more.
func (a *admitted) pauseUntilReset(r answers.Reading) {
	if r.Has&answers.HasRemaining == 0 || r.Remaining > 0 || r.Has&answers.HasReset == 0 || r.Reset <= 0 || r.Full {
		return
	}
	// What a shared store did not take the next response tells again.
	_, _ = a.terms.quota.Pause(context.Background(), store.Pause{For: r.Reset, Close: r.Reset > a.terms.policy.maxPause()})
}

// tierOf is the tier that a reading is of: of its unit and its window or its limit,
// where it tells those, or the only one of its unit; -1 if there is none.
func (t *terms) tierOf(r answers.Reading) int {
	found, tiers := -1, t.plan.Tiers()
	for i, tier := range tiers {
		switch {
		case tier.Unit != r.Unit || tier.Algorithm == Concurrency || i > 0 && t.plan.Declared(i) == t.plan.Declared(i-1):
		case r.Window != 0 && tier.Window != r.Window:
		case r.Limit == tier.Capacity():
			return i
		case found < 0:
			found = i
		default:
			found = len(tiers) // which of them?
		}
	}
	if found == len(tiers) {
		return -1
	}
	return found
}

// usedOf is how much of a tier its provider says to count.
func usedOf(r answers.Reading, t algorithms.Tier) (used int64, ok bool) {
	switch {
	case r.Has&answers.HasReset != 0 && r.Reset <= 0: // it speaks of a window that has ended
		return 0, false
	case r.Has&answers.HasRemaining != 0:
		return max(0, t.Capacity()-r.Remaining), true
	case r.Has&answers.HasUsed != 0:
		return r.Used, true
	}
	return 0, false
}

// resetOf is when the count of a reading ends at the latest, and by how much sooner it may: what
// tells it may have been cut to the second.
func resetOf(r answers.Reading) (reset, slack time.Duration) {
	if r.Has&answers.HasReset == 0 {
		return 0, 0
	}
	return r.Reset + time.Second, r.Slack + time.Second
}

// align tells the quota of the end of a window, of which both clocks may be cut to the
// second.
func (t *terms) align(r answers.Reading) {
	if q, ok := t.quota.(store.Aligner); ok {
		ends := time.Now().Add(r.Reset)
		q.Align(ends.Add(-r.Slack-time.Second), ends.Add(time.Second))
	}
}
