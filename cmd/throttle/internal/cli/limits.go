package cli

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/config"
	"github.com/apithrottle/throttle/providers"
)

// A played is a policy to play, and the cost of a request under it.
type played struct {
	text   string // as the user wrote it
	policy throttle.Policy
	cost   throttle.Cost
}

// parsePlayed reads a policy or a preset. A preset has several quotas: a request counts in those that
// the preset names for it, as GET https://api.github.com/repos/o/r, and has the cost that the preset
// gives it. All of them admit it, as one policy. A rate that is learned is that of the policy, because the
// played requests are not refused.
func parsePlayed(text, request string, cost throttle.Cost) (played, error) {
	l, err := config.ParseLimits("", text)
	if err != nil {
		return played{}, &configError{err}
	}
	p := played{text: strings.TrimSpace(text), cost: cost}
	if !l.IsPreset() {
		p.policy, p.text = l.Policies()[0], l.String()
	} else if err := p.readPreset(l, request); err != nil {
		return p, err
	}
	p.policy.Tiers = slices.Clone(p.policy.Tiers)
	for i := range p.policy.Tiers {
		p.policy.Tiers[i].Learn = throttle.Learn{}
	}
	return p, nil
}

func (p *played) readPreset(l config.Limits, request string) error {
	provider, _ := l.Provider()
	var r *http.Request
	if request != "" {
		method, url, ok := strings.Cut(request, " ")
		if !ok {
			method, url = http.MethodGet, request
		}
		var err error
		if r, err = http.NewRequest(method, url, nil); err != nil || r.URL.Host == "" {
			return usagef("--request is %q: write a method and an address, such as 'GET https://api.github.com/repos/o/r'", request)
		}
		if provider.Cost != nil {
			cost := maps.Clone(provider.Cost(r))
			if cost == nil {
				cost = throttle.Cost{}
			}
			maps.Copy(cost, p.cost)
			p.cost = cost
		}
	}
	var names []string
	scopes := provider.Scopes
	if r == nil && p.cost[algorithms.Nanodollars] > 0 {
		scopes = ofTokens(scopes)
	}
	for _, s := range scopes {
		names = append(names, s.Name)
		if s.Key != nil && r != nil {
			if _, counts := s.Key(r); !counts {
				continue
			}
		}
		p.policy.Tiers = append(p.policy.Tiers, s.Policy.Tiers...)
		p.policy.Guard = s.Policy.Guard
		p.policy.MaxWait = cmp.Or(p.policy.MaxWait, s.Policy.MaxWait)
	}
	keyed := func(s providers.Scope) bool { return s.Key != nil }
	switch {
	case r == nil && len(scopes) > 1 && slices.ContainsFunc(scopes, keyed):
		return usagef("%s has several quotas, %s: name a request with --request, such as 'GET https://%s/', for those that count it",
			p.text, strings.Join(names, ", "), strings.ReplaceAll(provider.Hosts[0], "*", "example"))
	case len(p.policy.Tiers) == 0:
		return usagef("no quota of %s counts the request %s: it has %s", p.text, request, strings.Join(names, ", "))
	}
	return nil
}

// ofTokens returns the quotas that count tokens, which a request with a price has, or all if none does.
func ofTokens(scopes []providers.Scope) (some []providers.Scope) {
	for _, s := range scopes {
		if slices.ContainsFunc(s.Policy.Tiers, func(t throttle.Tier) bool { return strings.HasSuffix(t.Unit, "tokens") }) {
			some = append(some, s)
		}
	}
	if some == nil {
		return scopes
	}
	return some
}
