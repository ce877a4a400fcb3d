package cli

import (
	"slices"
	"strings"

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
	if t.Unit != "" && t.Unit != algorithms.Requests {
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
