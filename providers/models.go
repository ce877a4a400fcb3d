package providers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
)

// Models are the limits of single models: the tiers of each pattern of names. Set them as the Models
// of a Scope whose Key is a model, a deployment, or anything else. Names are those of Key, but for the
// families of [Anthropic] those of the models, with "-fast" behind them for fast mode:
//
//	p := providers.OpenAI(500, 30_000) // the other models
//	large := providers.OpenAI(5_000, 800_000).Scope("model").Policy.Tiers
//	small := providers.OpenAI(10_000, 10_000_000).Scope("model").Policy.Tiers
//	p.Scope("model").Models = providers.NewModels(map[string][]throttle.Tier{"gpt-4o": large, "gpt-4o-mini": small})
//
// Take the tiers from the preset, as here: they must count the units of the Policy.
//
// In a pattern, * stands for any text and ? for one character, as for path.Match. Several patterns
// that share one limit are joined by a |: "claude-opus-4-5|claude-opus-4-6". Of the patterns that match
// a name, the one with the most other characters wins: gpt-4o-mini is not of gpt-4o*, if it has a
// pattern of its own. All names of a pattern share one quota, and all names that no pattern matches
// share one with the limits of the Policy, even if there are no patterns. So there is never more than
// one quota beside those of the patterns, whatever names requests contain. Without Models each name has
// a quota of its own.
//
// Models are safe for concurrent use, as long as the field Most is not changed. Scopes that have the
// same Models change together.
type Models struct {
	// Most is a ceiling of the tiers, by pattern: of the first ones, as of those of each Set. A tier is
	// lowered to that of Most with the same Unit and Window, or Period, with its Burst and PaceBurst, and
	// so is what it may follow. A tier that only Most has is added. If nil, there is no ceiling.
	Most map[string][]throttle.Tier

	mu     sync.Mutex // guards all below, and is held during Set
	limits map[string][]throttle.Tier
	users  []weak.Pointer[byModel] // of Transports, as long as these are in use
}

// NewModels returns the limits of models. Provider.Transport reports tiers that are not valid.
func NewModels(limits map[string][]throttle.Tier) *Models { return &Models{limits: clone(limits)} }

// Limits returns the limits in force.
func (m *Models) Limits() map[string][]throttle.Tier {
	m.mu.Lock()
	defer m.mu.Unlock()
	return clone(m.limits)
}

// Set replaces the limits, also of requests that wait. What has been used still counts, as with
// throttle.Limiter.SetPolicy. Requests that wait for the quota of a pattern that is gone keep its
// limits; later requests have the limits of another pattern or of the Policy.
//
// If a tier or a pattern is not valid, Set changes nothing and the error names it. With a shared store
// Set blocks for one call for each pattern. If the store can't change some quotas, these keep their
// limits, and the error contains the reasons.
func (m *Models) Set(ctx context.Context, limits map[string][]throttle.Tier) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	limits, err := m.bounded(limits)
	if err != nil {
		return fmt.Errorf("providers: %w", err)
	}
	users := m.inUse()
	next := make([]*modelTable, len(users))
	for i, u := range users {
		if next[i], err = u.table(limits); err != nil {
			return fmt.Errorf("providers: %w", err)
		}
	}
	m.limits = limits
	var errs []error
	for i, u := range users {
		if err := u.set(ctx, next[i], limits); err != nil {
			errs = append(errs, fmt.Errorf("providers: %w", err))
		}
	}
	return errors.Join(errs...)
}

// inUse returns the quotas of Transports that are still in use, and forgets the others.
func (m *Models) inUse() (users []*byModel) {
	m.users = slices.DeleteFunc(m.users, func(p weak.Pointer[byModel]) bool {
		u := p.Value()
		if u != nil {
			users = append(users, u)
		}
		return u == nil
	})
	return users
}

// bounded returns a copy of limits that keeps to Most.
func (m *Models) bounded(limits map[string][]throttle.Tier) (map[string][]throttle.Tier, error) {
	limits = clone(limits)
	most, err := patternsOf(m.Most)
	if err != nil {
		return nil, fmt.Errorf("Most: %w", err)
	}
	if _, err := patternsOf(limits); err != nil {
		return nil, err
	}
	for key, tiers := range limits {
		own, err := patternsOf(map[string][]throttle.Tier{key: nil})
		if err != nil {
			return nil, err
		}
		for ceiling, bounds := range m.Most {
			for name := range strings.SplitSeq(ceiling, "|") {
				if own.match(name) != "" { // the pattern takes names that Most has
					tiers = lowered(tiers, bounds)
				}
			}
		}
		for name := range strings.SplitSeq(key, "|") {
			tiers = lowered(tiers, m.Most[most.match(name)])
		}
		limits[key] = tiers
	}
	return limits, nil
}

// lowered returns tiers that are not above most.
func lowered(tiers, most []throttle.Tier) []throttle.Tier {
	for _, bound := range most {
		found := false
		for i := range tiers {
			t := &tiers[i]
			if t.Unit != bound.Unit || t.Window != bound.Window || t.Period != bound.Period {
				continue
			}
			found = true
			burst := min(cmp.Or(t.Burst, t.Limit), cmp.Or(bound.Burst, bound.Limit))
			if t.Burst+bound.Burst > 0 {
				t.Burst = burst
			}
			t.Limit = min(t.Limit, bound.Limit)
			t.Follow.Most = min(t.Follow.Most, cmp.Or(bound.Burst, bound.Limit))
			t.Follow.Least = min(t.Follow.Least, t.Follow.Most)
			if pace := cmp.Or(bound.PaceBurst, t.PaceBurst); pace > 0 {
				t.PaceBurst = min(cmp.Or(t.PaceBurst, pace), pace, t.Limit)
			}
		}
		if !found {
			tiers = append(tiers, bound)
		}
	}
	return tiers
}

func clone(limits map[string][]throttle.Tier) map[string][]throttle.Tier {
	limits = maps.Clone(limits)
	for name, tiers := range limits {
		limits[name] = slices.Clone(tiers)
	}
	return limits
}

// patterns find the pattern of a name.
type patterns struct {
	exact map[string]string // the key of the limits by the name
	wild  []wildcard        // the most specific one first
}

// A wildcard is a pattern that several names may match, and the key of its limits.
type wildcard struct{ pattern, of string }

// patternsOf returns the patterns of limits, or an error that names a malformed one.
func patternsOf(limits map[string][]throttle.Tier) (patterns, error) {
	p, seen := patterns{exact: make(map[string]string)}, make(map[string]string)
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		for one := range strings.SplitSeq(key, "|") {
			switch {
			case !isPattern(one):
				return p, fmt.Errorf("Models: %q is not a pattern of names: write it as for path.Match", key)
			case seen[one] != "" && seen[one] != key:
				return p, fmt.Errorf("Models: %q is in %q and in %q: remove it from one of them", one, seen[one], key)
			case isWild(one):
				p.wild = append(p.wild, wildcard{noSlash.Replace(one), key})
			default:
				p.exact[one] = key
			}
			seen[one] = key
		}
	}
	slices.SortStableFunc(p.wild, func(a, b wildcard) int { return cmp.Compare(literals(b.pattern), literals(a.pattern)) })
	return p, nil
}

// isPattern reports whether path.Match understands a pattern of names.
func isPattern(one string) bool {
	_, err := path.Match(one, "")
	return err == nil && one != ""
}

// isWild reports whether several names may match a pattern.
func isWild(pattern string) bool { return strings.ContainsAny(pattern, "*?[\\") }

// fit returns how closely a name matches one pattern: -1 if not at all, and math.MaxInt if it is the pattern.
func fit(pattern, name string) int {
	if !isWild(pattern) {
		if pattern == name && name != "" {
			return math.MaxInt
		}
		return -1
	}
	if ok, _ := path.Match(noSlash.Replace(pattern), noSlash.Replace(name)); !ok {
		return -1
	}
	return literals(pattern)
}

// noSlash replaces slashes, which path.Match sets apart and names of models don't.
var noSlash = strings.NewReplacer("/", "\x00")

// literals returns the number of characters of a pattern that are not wildcards.
func literals(pattern string) int {
	return len(pattern) - strings.Count(pattern, "*") - strings.Count(pattern, "?")
}

// match returns the key of the limits of a name, or "" if no pattern matches it.
func (p patterns) match(name string) string {
	if of, ok := p.exact[name]; ok {
		return of
	}
	name = noSlash.Replace(name)
	for _, w := range p.wild {
		if ok, _ := path.Match(w.pattern, name); ok {
			return w.of
		}
	}
	return ""
}

// byModel are the quotas of a scope with Models.
type byModel struct {
	policy  throttle.Policy
	store   throttle.Store
	options throttle.GroupOptions
	rest    *throttle.Group // of the names that no pattern matches
	current atomic.Pointer[modelTable]
	groups  map[string]*throttle.Group // of all patterns so far; guarded by Models.mu
}

// A modelTable is what byModel has for the limits in force.
type modelTable struct {
	patterns
	groups map[string]*throttle.Group
	keys   map[string]string // stateKey of each
}

// open returns the quotas of a scope with this policy.
func (m *Models) open(policy throttle.Policy, store throttle.Store, o throttle.GroupOptions) (*byModel, error) {
	rest, err := throttle.NewGroup(policy, store, o)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	limits, err := m.bounded(m.limits)
	if err != nil {
		return nil, err
	}
	u := &byModel{policy: policy, store: store, options: o, rest: rest, groups: make(map[string]*throttle.Group)}
	next, err := u.table(limits)
	if err != nil {
		return nil, err
	}
	m.limits = limits
	m.users = append(m.users, weak.Make(u))
	return u, u.set(context.Background(), next, limits)
}

func (u *byModel) of(name string) (*throttle.Group, string) {
	t := u.current.Load()
	if key := t.match(name); key != "" {
		return t.groups[key], t.keys[key]
	}
	return u.rest, "" // which is no pattern
}

// stateKey returns the key of the quota of joined patterns: the first one in alphabetical order. So the
// quota stays the same if they come in another order, or if another one joins them later.
func stateKey(key string) string { return slices.Min(strings.Split(key, "|")) }

// table returns the table of limits, with new groups.
func (u *byModel) table(limits map[string][]throttle.Tier) (*modelTable, error) {
	p, err := patternsOf(limits)
	if err != nil {
		return nil, err
	}
	t := &modelTable{p, make(map[string]*throttle.Group), make(map[string]string)}
	for key, tiers := range limits {
		t.keys[key] = stateKey(key)
		if err := sameUnits(key, tiers, u.policy.Tiers); err != nil {
			return nil, err
		}
		if t.groups[key], err = throttle.NewGroup(u.policyOf(tiers), u.store, u.options); err != nil {
			return nil, fmt.Errorf("Models: %q: %w", key, err)
		}
	}
	return t, nil
}

// sameUnits returns an error if tiers count other units than those of the Policy, which a request costs.
func sameUnits(key string, tiers, policy []throttle.Tier) error {
	units := func(tiers []throttle.Tier) (all []string) {
		for _, t := range tiers {
			all = append(all, cmp.Or(t.Unit, algorithms.Requests))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	if got, want := units(tiers), units(policy); len(tiers) > 0 && !slices.Equal(got, want) {
		return fmt.Errorf("Models: %q has tiers of %s, and the Policy of %s: give both tiers of the same units", key, strings.Join(got, ", "), strings.Join(want, ", "))
	}
	return nil
}

// set puts a table in force. Patterns that had quotas before keep them, with new limits.
func (u *byModel) set(ctx context.Context, next *modelTable, limits map[string][]throttle.Tier) error {
	var errs []error
	for key, tiers := range limits {
		if g := u.groups[next.keys[key]]; g != nil {
			next.groups[key] = g
			if err := g.SetPolicy(ctx, u.policyOf(tiers)); err != nil {
				errs = append(errs, fmt.Errorf("Models: %q: %w", key, err))
			}
		}
		u.groups[next.keys[key]] = next.groups[key]
	}
	u.current.Store(next)
	return errors.Join(errs...)
}

func (u *byModel) policyOf(tiers []throttle.Tier) throttle.Policy {
	p := u.policy
	p.Tiers = tiers
	return p
}
