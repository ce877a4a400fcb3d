package otelthrottle

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// The attributes of measurements.
const (
	policyKey = attribute.Key("throttle.policy")
	classKey  = attribute.Key("throttle.class")
	resultKey = attribute.Key("throttle.result")
	tierKey   = attribute.Key("throttle.tier")
	unitKey   = attribute.Key("throttle.unit")
	kindKey   = attribute.Key("throttle.kind")
	causeKey  = attribute.Key("throttle.cause")

	outcomeKey = attribute.Key("throttle.outcome")
	memberKey  = attribute.Key("throttle.member")
)

// How many names of policies, of tiers and units, and of the members of a Pool have series of their own. The
// rest are otherName.
const (
	maxPolicies = 200
	maxTiers    = 1000
	maxMembers  = 200 // a Pool has at most 64 at a time
	otherName   = "_OTHER"
)

// names are the names that attributes may have.
type names struct {
	max   int
	known map[string]struct{}
}

func newNames(max int) names { return names{max: max, known: make(map[string]struct{})} }

// bounded returns the name, or otherName if max others are known.
func (n names) bounded(name string) string {
	if _, ok := n.known[name]; !ok {
		if len(n.known) >= n.max {
			return otherName
		}
		n.known[name] = struct{}{}
	}
	return name
}

// labels are the attributes of a measurement besides the policy. An empty one is left out.
type labels struct {
	class, result, member string

	key   attribute.Key // of the value
	value string
}

// A series is what a measurement with the same attributes is made with.
type series struct {
	add        []metric.AddOption
	record     []metric.RecordOption
	attributes []attribute.KeyValue
}

func newSeries(policy string, l labels) *series {
	s := new(series)
	for _, a := range []attribute.KeyValue{
		policyKey.String(policy), memberKey.String(l.member), classKey.String(l.class), resultKey.String(l.result), l.key.String(l.value),
	} {
		if a.Key == policyKey || a.Value.AsString() != "" {
			s.attributes = append(s.attributes, a)
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(s.attributes...))
	s.add, s.record = []metric.AddOption{set}, []metric.RecordOption{set}
	return s
}

// A seriesTable has the series of all policies. Each is made once. The zero table is empty.
type seriesTable struct {
	policies atomic.Pointer[map[string]*policySeries] // replaced to add a policy

	mu       sync.Mutex // guards the replacement of maps, and all below
	policy   names
	tierUnit names
}

// A policySeries has the series of a policy.
type policySeries struct {
	policy string // "_OTHER" for those beyond maxPolicies
	member names  // guarded by seriesTable.mu
	series atomic.Pointer[map[labels]*series]
}

// of returns the series of a policy with labels.
func (t *seriesTable) of(policy string, l labels) *series {
	if policies := t.policies.Load(); policies != nil {
		if p := (*policies)[policy]; p != nil {
			if s := (*p.series.Load())[l]; s != nil {
				return s
			}
		}
	}
	return t.make(policy, l)
}

// make adds a series, or returns that of all others.
func (t *seriesTable) make(policy string, l labels) *series {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.policies.Load() == nil {
		t.policies.Store(new(map[string]*policySeries))
		t.policy, t.tierUnit = newNames(maxPolicies), newNames(maxTiers)
	}
	policy = t.policy.bounded(policy)
	p := (*t.policies.Load())[policy]
	if p == nil {
		p = &policySeries{policy: policy, member: newNames(maxMembers)}
		p.series.Store(new(map[labels]*series))
		t.policies.Store(with(t.policies.Load(), policy, p))
	}
	if l.value != "" && (l.key == tierKey || l.key == unitKey) {
		l.value = t.tierUnit.bounded(l.value)
	}
	if l.member != "" {
		l.member = p.member.bounded(l.member)
	}
	s := (*p.series.Load())[l]
	if s == nil {
		s = newSeries(policy, l)
		p.series.Store(with(p.series.Load(), l, s))
	}
	return s
}

// with returns a copy of a map with one more entry.
func with[K comparable, V any](m *map[K]V, key K, value V) *map[K]V {
	next := maps.Clone(*m)
	if next == nil {
		next = make(map[K]V)
	}
	next[key] = value
	return &next
}
