package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

// Limits are what an API allows: a policy, or a preset with its arguments. [ParseLimits] and
// [Route.Limits] return them.
type Limits struct {
	policy   throttle.Policy // without tiers for a preset
	preset   providers.Preset
	args     map[string]string            // of the preset
	models   map[string]map[string]string // arguments for single models, by pattern
	name     string                       // of the provider; if empty, the provider's own
	maxWait  time.Duration
	maxQueue int
	host     string // the only host of the provider; if empty, the provider's own hosts
}

// ParseLimits reads a policy as throttle.ParsePolicy does, or the name of a preset and its
// parameters:
//
//	5/s + 10000/h | guard=auto
//	github
//	openai:requests=500,tokens=30000
//
// A policy begins with a digit, and a name with a letter. The name names the quota of a policy. If
// it is empty, a policy has none, and a preset has its own. The error reports all problems with the
// text, and suggests names that are alike.
func ParseLimits(name, text string) (Limits, error) {
	text = strings.TrimSpace(text)
	if !isName(text) {
		p, err := throttle.ParsePolicy(name, text)
		if err != nil {
			return Limits{}, fmt.Errorf("%q: %s", text, policyProblem(name, text, err))
		}
		return Limits{policy: p}, nil
	}
	presetName, rest, hasArguments := strings.Cut(text, ":")
	p, err := FindPreset(presetName)
	if err != nil {
		if strings.ContainsAny(text, "/;|") {
			err = fmt.Errorf("%q is neither a policy, which begins with a number as 5/s does, nor a preset such as openai:requests=500,tokens=30000", text)
		}
		return Limits{}, err
	}
	given, err := parseArguments(p, rest, hasArguments)
	if err != nil {
		return Limits{}, err
	}
	args, bad := presetArguments(p, given)
	var errs []error
	for _, b := range bad {
		errs = append(errs, fmt.Errorf("preset %s: %s %s", p.Name, b.name, b.message))
	}
	if len(errs) > 0 {
		return Limits{}, errors.Join(errs...)
	}
	return Limits{preset: p, args: args, name: name}, nil
}

// isName reports whether a text begins as the name of a preset does.
func isName(text string) bool {
	if text == "" {
		return false
	}
	first := text[0] | 0x20
	return 'a' <= first && first <= 'z'
}

func parseArguments(p providers.Preset, text string, any bool) (map[string]string, error) {
	given := map[string]string{}
	if !any {
		return given, nil
	}
	for _, part := range strings.Split(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("preset %s: %q is not a parameter with a value: write %s", p.Name, strings.TrimSpace(part), PresetText(p, p.Example()))
		}
		if _, twice := given[key]; twice {
			return nil, fmt.Errorf("preset %s: %s is there twice: remove one", p.Name, key)
		}
		given[key] = value
	}
	return given, nil
}

// String returns the limits as ParseLimits reads them: in normal form, without the name.
func (l Limits) String() string {
	if l.IsPreset() {
		return PresetText(l.preset, l.args)
	}
	return l.policy.String()
}

// IsPreset reports whether the limits are those of a preset.
func (l Limits) IsPreset() bool { return l.preset.Name != "" }

// Preset returns the preset, or a Preset without a Name for a policy.
func (l Limits) Preset() providers.Preset { return l.preset }

// Provider returns a new Provider of the preset, which the caller may change. Its Name is the name
// of the quota. A policy has none.
func (l Limits) Provider() (p providers.Provider, ok bool) {
	if !l.IsPreset() {
		return p, false
	}
	p = l.preset.Provider(l.args)
	if l.name != "" {
		p.Name = l.name
	}
	if l.host != "" {
		p.Hosts = []string{l.host}
	}
	for i := range p.Scopes {
		l.apply(&p.Scopes[i].Policy)
	}
	if len(l.models) > 0 {
		p.Scope(l.preset.Models).Models = providers.NewModels(l.ofModels())
	}
	return p, true
}

// ofModels returns the limits of single models.
func (l Limits) ofModels() map[string][]throttle.Tier {
	limits := make(map[string][]throttle.Tier)
	for pattern, args := range l.models {
		limits[pattern] = l.preset.Provider(args).Scope(l.preset.Models).Policy.Tiers
	}
	return limits
}

// apply sets how long callers wait.
func (l Limits) apply(p *throttle.Policy) {
	if l.maxWait != 0 {
		p.MaxWait = l.maxWait
	}
	if l.maxQueue != 0 {
		p.MaxQueue = l.maxQueue
	}
}

// Policies returns the policy, or those of the preset's scopes, inner ones first. The name of a
// preset's is that of the Provider and the scope, such as "openai/model". A request to a preset may
// count in some of them only.
func (l Limits) Policies() []throttle.Policy {
	p, ok := l.Provider()
	if !ok {
		policy := l.policy
		l.apply(&policy)
		return []throttle.Policy{policy}
	}
	var all []throttle.Policy
	for _, s := range p.Scopes {
		if s.Policy.Name == "" {
			s.Policy.Name = p.Name + "/" + s.Name
		}
		all = append(all, s.Policy)
	}
	return all
}
