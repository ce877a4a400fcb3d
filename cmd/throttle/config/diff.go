package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
)

// Changes are what differs between two Configs, for a program that reads its file again.
type Changes struct {
	// Added and Removed are the prefixes of routes that only one of the two has.
	Added, Removed []string

	// Limits are the prefixes of routes in both, whose transports differ: by their limits, their
	// budget, their timeout, or the limits of clients. Replace their transports by those of the new
	// Config, on the store of the old one: what is charged stays charged. [Transports.Reload] does so.
	Limits []string

	// Settings are the prefixes of the other routes that differ: by their address, their headers or
	// another setting.
	Settings []string

	// Clients reports that the clients differ.
	Clients bool

	// Listen reports that Listen or AllowPublic differs.
	Listen bool

	// PublicURL reports that PublicURL differs.
	PublicURL bool

	// Store reports that the store differs. Quotas do not move to the other store: end the program
	// and start it again.
	Store bool

	// Timeouts and Observability report that these differ.
	Timeouts, Observability bool
}

// None reports whether nothing differs.
func (c Changes) None() bool { return reflect.DeepEqual(c, Changes{}) }

// String lists what differs, for a log.
func (c Changes) String() string {
	var parts []string
	add := func(name string, prefixes []string) {
		if len(prefixes) > 0 {
			parts = append(parts, name+" "+strings.Join(prefixes, ", "))
		}
	}
	add("added", c.Added)
	add("removed", c.Removed)
	add("other limits for", c.Limits)
	add("other settings for", c.Settings)
	for _, f := range []struct {
		name    string
		differs bool
	}{{"clients", c.Clients}, {"listen", c.Listen}, {"public_url", c.PublicURL}, {"store", c.Store}, {"timeouts", c.Timeouts}, {"observability", c.Observability}} {
		if f.differs {
			parts = append(parts, "other "+f.name)
		}
	}
	if len(parts) == 0 {
		return "nothing changed"
	}
	return strings.Join(parts, "; ")
}

// Since returns what differs between an earlier Config and this one.
func (c *Config) Since(old *Config) Changes {
	ch := Changes{
		Clients:       !reflect.DeepEqual(c.Clients, old.Clients),
		Listen:        c.Listen != old.Listen || c.AllowPublic != old.AllowPublic,
		PublicURL:     c.PublicURL != old.PublicURL,
		Store:         !reflect.DeepEqual(c.Store, old.Store),
		Timeouts:      c.Timeouts != old.Timeouts,
		Observability: !reflect.DeepEqual(c.Observability, old.Observability),
	}
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r, was := c.Routes[prefix], old.Routes[prefix]
		switch {
		case was == nil:
			ch.Added = append(ch.Added, prefix)
		case !reflect.DeepEqual(c.quotas(r), old.quotas(was)):
			ch.Limits = append(ch.Limits, prefix)
		case !reflect.DeepEqual(r.settings(), was.settings()):
			ch.Settings = append(ch.Settings, prefix)
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(old.Routes)) {
		if c.Routes[prefix] == nil {
			ch.Removed = append(ch.Removed, prefix)
		}
	}
	return ch
}

// quotas returns what the transport of a route is made of.
func (c *Config) quotas(r *Route) []any {
	all := []any{r.Name, r.limits.String(), r.limits.models, r.limits.host, r.MaxWait, r.MaxQueue, r.Key, r.budget.String(), r.priced(), r.Cost, r.Timeout, r.Spill}
	for _, m := range r.Pool {
		own := m.route.limits
		all = append(all, m.Name, m.Rank, m.Weight, m.Quota, own.String(), own.models, own.host)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		if own := c.Clients[name].own; len(own.Tiers) > 0 && r.Allows(name) {
			all = append(all, name, own.String())
		}
	}
	return all
}

// settings returns what the file says about a route, and the values of its references.
func (r *Route) settings() Route {
	s := *r
	s.limits, s.budget, s.spending, s.Pool = Limits{}, throttle.Policy{}, nil, nil
	for _, m := range r.Pool {
		own := *m
		settings := m.route.settings()
		own.route = &settings
		s.Pool = append(s.Pool, &own)
	}
	return s
}
