package cli

import (
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// shortTier returns the text of a tier without its options, such as 5000/h or 30000/m tokens, or all of
// it if the policy has another tier with that text. Any other text stays as it is.
func shortTier(text string, tiers []string) string {
	short := withoutOptions(text)
	if slices.ContainsFunc(tiers, func(other string) bool { return other != text && withoutOptions(other) == short }) {
		return text
	}
	return short
}

func withoutOptions(text string) string {
	t, err := algorithms.ParseTier(text)
	if err != nil {
		return text
	}
	short, _, _ := strings.Cut(text, ";")
	if t.Unit != "" && t.Unit != algorithms.Requests && t.Unit != algorithms.Nanodollars {
		short += " " + t.Unit
	}
	switch {
	case t.Algorithm == algorithms.Concurrency:
		short += " at once"
	case t.Budget:
		short += " budget"
	}
	return short
}

// fixedTier returns the text of a tier that has the rate in force of another one, and neither follows nor learns.
// It is empty if the policy declares that rate. A learned rate is at least a tenth below the rate that was
// refused, and rounded down to two digits or more.
func fixedTier(s throttle.TierStatus) string {
	t := s.Tier
	t.Follow, t.Learn = algorithms.Follow{}, algorithms.Learn{}
	switch l := s.Learned; {
	case s.Followed > 0:
		t.Limit = s.Followed
		if t.Burst > 0 {
			t.Burst = s.Limit
		}
	case l != nil && (l.Refused > 0 || l.Rate != float64(t.Limit)):
		rate := l.Rate
		if l.Refused > 0 {
			rate = min(rate, 0.9*l.Refused)
		}
		t.Burst = s.Limit
		for t.Window > 0 && t.Window < algorithms.MaxWindow/10 && rate < 10 {
			t.Window, rate = 10*t.Window, 10*rate
		}
		t.Limit = int64(rate)
	default:
		return ""
	}
	return t.String()
}

// withFixes returns the sentences about tiers, and behind them how to fix what is learned or followed.
func withFixes(text string, tiers []tierResult) string {
	var fixes []string
	for _, t := range tiers {
		if t.Fixed != "" {
			fixes = append(fixes, t.Tier+" by "+t.Fixed)
		}
	}
	if fixes == nil {
		return text
	}
	return text + " To fix what is in force, replace " + strings.Join(fixes, ", and ") + "."
}
