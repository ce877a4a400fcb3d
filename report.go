package throttle

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/admit"
	"github.com/apithrottle/throttle/internal/retryafter"
)

// A RefusalReport is what is known about a refusal by the provider. It helps to find out why a request
// was refused that the limiter has admitted. What is not known is zero.
type RefusalReport struct {
	// Fullest is the tier of which the greatest part was used when the response came, the request
	// included. With a shared store that reserves ahead, it is known once a second.
	Fullest *TierCount

	// Named is the limit of which the response reports that nothing is left. Its Tier is empty if no
	// tier of the policy has that limit.
	Named *TierCount

	// Foreign is by how many units the provider's count of Named exceeds what the quota has charged:
	// another program or an earlier process uses the limit, or the provider counts in another way
	// than the tier. It is zero if another limit is reported than the tier has, and if Took or
	// ClockAhead explain the difference.
	Foreign int64

	// ClockAhead is by how much the provider's clock, the Date of the response, is ahead of the clock
	// of this process, in whole seconds. It is negative if that is behind, and zero if they differ by
	// no more than a second and the round trip.
	ClockAhead time.Duration

	// Took is the time from the admission to the response if that is longer than Guard, the guard
	// interval in force. The request may then have arrived in a later window.
	Took, Guard time.Duration

	// Backoffs is the number of pauses in a row, after refusals that named no time, when the request
	// was admitted. A high number means that something sends requests again and again.
	Backoffs int
}

// A TierCount is how much of a tier is used.
type TierCount struct {
	Policy string // the name of the policy
	Tier   string // as ParsePolicy reads it
	Unit   string // what it counts

	// Used is what the provider counts of a limit that a response names, and what the quota has
	// charged of any other.
	Used, Limit int64
}

// String returns plain sentences, such as
//
//	The response names 5/s: 5 of 5 used. The provider counts 3 units that this quota has not charged.
func (r *RefusalReport) String() string {
	var all []string
	if n := r.Named; n != nil && n.Tier != "" {
		all = append(all, "The response names "+n.String())
	} else if n != nil {
		all = append(all, fmt.Sprintf("The response names a limit of %s that the policy does not have: %d of %d used", n.Unit, n.Used, n.Limit))
	}
	if r.Foreign > 0 {
		all = append(all, fmt.Sprintf("The provider counts %s that this quota has not charged: another program uses the limit, or the provider counts in another way",
			plural(int(r.Foreign), "unit")))
	}
	if r.Fullest != nil {
		all = append(all, "The fullest tier here is "+r.Fullest.String())
	}
	switch {
	case r.ClockAhead > 0:
		all = append(all, fmt.Sprintf("The provider's clock is %v ahead", r.ClockAhead))
	case r.ClockAhead < 0:
		all = append(all, fmt.Sprintf("The provider's clock is %v behind", -r.ClockAhead))
	}
	if r.Took > 0 {
		all = append(all, fmt.Sprintf("The response came %s after the admission, which is longer than the guard interval of %s: the request may have arrived in a later window",
			short(r.Took), short(r.Guard)))
	}
	if r.Backoffs > 0 {
		all = append(all, fmt.Sprintf("The quota had paused %d times in a row", r.Backoffs))
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, ". ") + "."
}

// String returns a text such as "5/s: 5 of 5 used".
func (c TierCount) String() string {
	return c.Tier + ": " + algorithms.FormatUse(c.Used, c.Limit, c.Unit)
}

// reportRefusal returns the report on a refusal with a header, or nil if nobody receives one. It is
// called before the quotas receive the readings of the answer.
func reportRefusal(ctx context.Context, a *admission, header http.Header, answer *answers.Answer, after *admit.Callbacks) *RefusalReport {
	if a.listener == nil || answer == nil || answer.Kind != answers.Limited && answer.Kind != answers.Banned {
		return nil
	}
	r := &RefusalReport{Backoffs: int(a.Own().Decision.Level)}
	var statuses []Status
	a.EachRevision(func(*admit.Revision) { statuses = append(statuses, Status{}) })
	i := 0
	a.EachCharge(func(c *admit.Charge) {
		statuses[i] = c.StatusOfReport(ctx, after)
		i++
	})
	took := a.Took(statuses[0])
	if guard := a.Guard(); guard > 0 && took > guard {
		r.Took, r.Guard = took, guard
	}
	r.ClockAhead = retryafter.ClockAhead(header, took)
	a.EachRevision(func(rev *admit.Revision) {
		r.compare(a, rev, statuses[0].Tiers, answer)
		statuses = statuses[1:]
	})
	for _, reading := range answer.Readings {
		if of, _ := a.tierFor(reading); of == nil && r.Named == nil && isUsedUp(reading) {
			r.Named = &TierCount{Unit: reading.Unit, Used: providerCount(reading), Limit: reading.Limit}
		}
	}
	return r
}

// compare compares the tiers of a policy with the readings of an answer.
func (r *RefusalReport) compare(a *admission, rev *admit.Revision, tiers []TierStatus, answer *answers.Answer) {
	count := func(tier int, used, limit int64) *TierCount {
		return &TierCount{rev.Name, rev.TierName(tier), rev.Plan.Tiers()[tier].Unit, used, limit}
	}
	for i, t := range tiers {
		f := r.Fullest
		fuller := f == nil || float64(t.Used)*float64(f.Limit) > float64(f.Used)*float64(t.Limit)
		if fuller && !rev.Plan.IsPace(i) {
			r.Fullest = count(i, t.Used, t.Limit)
		}
	}
	for _, reading := range answer.Readings {
		of, tier := a.tierFor(reading)
		if of != rev || r.Named != nil && r.Named.Tier != "" || !isUsedUp(reading) {
			continue
		}
		capacity := rev.Plan.Tiers()[tier].Capacity()
		limit := reading.Limit
		if limit == 0 {
			limit = capacity
		}
		used := max(providerCount(reading), limit)
		r.Named = count(tier, used, limit)
		if reading.Limit == capacity && tier < len(tiers) && r.Took == 0 && r.ClockAhead == 0 {
			r.Foreign = max(0, used-(tiers[tier].Used-tiers[tier].Others))
		}
	}
}

// isUsedUp reports whether a response reports that nothing is left of a quota.
func isUsedUp(r answers.Reading) bool {
	return (r.Has&answers.HasReset == 0 || r.Reset > 0) &&
		(r.Has&answers.HasRemaining != 0 && r.Remaining == 0 || r.Has&answers.HasUsed != 0 && r.Limit > 0 && r.Used >= r.Limit)
}

// providerCount returns what the provider counts.
func providerCount(r answers.Reading) int64 {
	if r.Has&answers.HasUsed != 0 {
		return r.Used
	}
	return r.Limit - r.Remaining
}
