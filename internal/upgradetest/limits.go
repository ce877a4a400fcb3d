package upgradetest

import "github.com/apithrottle/throttle"

func learns(tier throttle.TierStatus) bool { return tier.Learned != nil }

// limitOf returns the limit of a tier, or a thousand times the rate that it has learned.
func limitOf(tier throttle.TierStatus) int64 {
	if learns(tier) {
		return int64(1000 * tier.Learned.Rate)
	}
	return tier.Limit
}
