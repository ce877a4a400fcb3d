package config

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/apithrottle/throttle/internal/credentials"
)

// The bounds of a pool.
const (
	mostMembers = 64 // as many as a throttle.Pool has at most
	mostRank    = 1_000
	mostWeight  = 1_000_000
	mostSteps   = 10 // of the path of a Sticky
)

// memberName matches the names of members, which are parts of the names of quotas.
var memberName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// members returns the members of the route's pool as routes of their own.
func (r *Route) members() (all []*Route) {
	for _, m := range r.Pool {
		if m.route != nil {
			all = append(all, m.route)
		}
	}
	return all
}

// parts returns what has limits: the members of a pool, or the route itself.
func (r *Route) parts() []*Route {
	if len(r.Pool) > 0 {
		return r.members()
	}
	return []*Route{r}
}

// withoutPool reports what belongs to a pool and has none.
func (d *decoder) withoutPool(field string) {
	for _, name := range []string{"spill", "sticky"} {
		if d.places[field+"."+name] != nil {
			d.bad(field+"."+name, "belongs to a pool: remove it, or add pool")
		}
	}
}

// pool checks the members of a route.
func (d *decoder) pool(field string, r *Route) {
	for _, name := range []string{"to", "preset", "policy", "with", "models", "any_host", "key"} {
		switch {
		case d.places[field+"."+name] == nil:
		case name == "key":
			d.bad(field+".key", "is there beside pool, whose members have credentials of their own instead of those of clients: remove one")
		default:
			d.bad(field+"."+name, "is there beside pool: move it into a member, or remove pool")
		}
	}
	for at, names := range map[string][]string{".set": credentialsOf(r.Set, credentials.IsName), ".query": credentialsOf(r.Query, credentials.IsParameter)} {
		for _, name := range names {
			d.bad(join(field+at, name), "is a credential, which each member of a pool has for itself: move it into the members")
		}
	}
	if len(r.Pool) > mostMembers {
		d.bad(field+".pool", "has %d members: it must have at most %d", len(r.Pool), mostMembers)
	}
	d.maxQueue(field, r.MaxQueue)
	r.limits.maxWait, r.limits.maxQueue = r.MaxWait, r.MaxQueue
	for i, m := range r.Pool {
		at := fmt.Sprintf("%s.pool[%d]", field, i)
		m.route = m.asRoute(r, at)
		if d.failed[at] {
			continue
		}
		d.member(at, m)
		for j, other := range r.Pool[:i] {
			d.distinct(at, m, other, fmt.Sprintf("pool[%d]", j))
		}
		r.secrets = append(r.secrets, m.route.secrets...)
		if r.upstream == nil {
			r.upstream = m.route.upstream
		}
	}
	d.sticky(field+".sticky", r)
}

// asRoute returns a member of a route's pool as a route of its own.
func (m *Member) asRoute(r *Route, field string) *Route {
	own := &Route{
		To: m.To, Preset: m.Preset, With: m.With, Models: m.Models, AnyHost: m.AnyHost, Policy: m.Policy, Name: m.Quota,
		MaxWait: r.MaxWait, MaxQueue: max(0, r.MaxQueue), Cost: r.Cost, Set: m.Set, Query: m.Query, Timeout: r.Timeout, prefix: r.prefix, field: field,
	}
	setDefault(&own.Name, r.Name+"/"+m.Name)
	return own
}

// member checks a member by itself.
func (d *decoder) member(field string, m *Member) {
	r := m.route
	switch at := field + ".name"; {
	case d.failed[at]:
	case m.Name == "" && !d.filled(at):
		d.bad(field, "lacks its name: add name: NAME")
	case !memberName.MatchString(m.Name):
		d.bad(at, "is %q: it must have 1 to 100 letters, digits, hyphens, points and underscores", m.Name)
	}
	d.quotaName(field+".quota", r.Name)
	if m.Rank < 0 || m.Rank > mostRank {
		d.bad(field+".rank", "is %d: it must be from 0, the first choice, to %d", m.Rank, mostRank)
	}
	if m.Weight < 0 || m.Weight > mostWeight || m.Weight == 0 && d.filled(field+".weight") {
		d.bad(field+".weight", "is %d: it must be from 1 to %d", m.Weight, mostWeight)
	}
	d.upstream(field+".to", r)
	d.limits(field, r)
	d.headers(field, r)
	r.hideQuery()
	m.To, m.Preset, m.Quota = r.To, r.Preset, r.Name
	setDefault(&m.Weight, 1)
	d.emptyCredentials(field+".set", m.Set, credentials.IsName)
	d.emptyCredentials(field+".query", m.Query, credentials.IsParameter)
	switch has := d.hasCredentials(field, m); {
	case has && m.NoCredentials:
		d.bad(field+".no_credentials", "is true, but the member has credentials: remove one")
	case !has && !m.NoCredentials:
		d.bad(field, `lacks its credentials: those of clients reach no member: add set: {Authorization: "Bearer ${env:NAME}"}, or no_credentials: true if its API needs none`)
	}
}

// hasCredentials reports whether a member sets a header or a parameter that may be a credential: by its name,
// or because its value refers to a variable or a file, as the path of the address may.
func (d *decoder) hasCredentials(field string, m *Member) bool {
	refers := func(at string, values map[string]Secret) bool {
		for name := range values {
			if value := d.places[join(at, name)]; value != nil && strings.Contains(value.Value, "${") {
				return true
			}
		}
		return false
	}
	return len(credentialsOf(m.Set, credentials.IsName)) > 0 || len(credentialsOf(m.Query, credentials.IsParameter)) > 0 ||
		refers(field+".set", m.Set) || refers(field+".query", m.Query) || strings.Contains(m.To, "${")
}

// emptyCredentials refuses credentials without a value, with which no request would be sent.
func (d *decoder) emptyCredentials(field string, values map[string]Secret, isCredential func(name string) bool) {
	for _, name := range credentialsOf(values, isCredential) {
		if at := join(field, name); !d.hasProblemWithin(at) && strings.TrimSpace(values[name].Reveal()) == "" {
			d.bad(at, "is empty, but it is the member's credential: write its value, such as ${env:NAME}")
		}
	}
}

// credentialsOf returns the names that credentials have.
func credentialsOf(values map[string]Secret, isCredential func(name string) bool) (names []string) {
	for name := range values {
		if isCredential(name) {
			names = append(names, name)
		}
	}
	return names
}

// distinct checks that a member is not an earlier one once more.
func (d *decoder) distinct(field string, m, other *Member, name string) {
	switch {
	case m.Name == other.Name && m.Name != "":
		d.bad(field+".name", "is %q, the name of %s, too: give each member its own", m.Name, name)
	case m.route.Name == other.route.Name && m.Name != "":
		d.bad(field+".quota", "is %q, the quota of %s, too: one quota does not add up: give each member its own, or remove one", m.route.Name, name)
	case m.To != "" && m.To == other.To && maps.EqualFunc(m.Set, other.Set, Secret.Equal) && maps.EqualFunc(m.Query, other.Query, Secret.Equal):
		d.bad(field, "has the address and the credentials of %s: the limits of one account do not add up: remove one, or use the credentials of another account", name)
	}
}

// sticky checks the part of a request that chooses a member.
func (d *decoder) sticky(field string, r *Route) {
	s := &r.Sticky
	if !d.filled(field) || d.hasProblemWithin(field) {
		return
	}
	header, body := d.places[field+".header"] != nil, d.places[field+".body"] != nil
	switch {
	case header && body:
		d.bad(field, "has both header and body: remove one")
	case !header && !body:
		d.bad(field, "lacks its key: add header: NAME, or body: FIELD, such as body: prompt_cache_key")
	case header && !d.failed[field+".header"]:
		if !isHeaderName(s.Header) || slices.Contains(hopByHop, http.CanonicalHeaderKey(s.Header)) {
			d.bad(field+".header", "is %q, which is not the name of a header that clients may choose: use one such as X-Session-Id", s.Header)
		}
	case body && !d.failed[field+".body"]:
		steps := strings.Split(s.Body, ".")
		if slices.Contains(steps, "") || slices.Contains(steps, "*") || len(steps) > mostSteps {
			d.bad(field+".body", "is %q: it must be the name of a field, such as prompt_cache_key, or names with points between them, such as metadata.user_id", s.Body)
		}
	}
}
