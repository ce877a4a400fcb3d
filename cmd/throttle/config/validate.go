package config

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/redis/go-redis/v9"
)

// validate reports every problem of a file's values, and fills in the defaults.
func (d *decoder) validate(c *Config) {
	if c.Version != 0 && c.Version != Version {
		d.bad("version", "is %d: this release reads version %d", c.Version, Version)
	}
	c.Version = Version
	d.listen(c)
	d.store(&c.Store)
	if d.clients(c); len(c.Clients) == 0 && d.filled("clients") {
		d.bad("clients", "is empty: name a client, or remove the field")
	}
	if len(c.Routes) == 0 && !d.failed["routes"] {
		d.bad("routes", `is missing: add a route such as /github: {to: "https://api.github.com", preset: github}`)
	}
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r := c.Routes[prefix]
		r.prefix = prefix
		if !d.failed["routes."+prefix] {
			d.route(c, r, "routes."+prefix)
		}
	}
	d.names(c)
	d.counted(c)
	d.kept(c)
	setDefault(&c.Timeouts.Connect, DefaultConnect)
	setDefault(&c.Timeouts.Shutdown, DefaultShutdown)
	setDefault(&c.MaxBody, DefaultMaxBody)
	d.body("max_body", c.MaxBody)
	on := true
	setDefault(&c.Observability.Metrics, &on)
	setDefault(&c.Observability.Page, &on)
	setDefault(&c.Observability.Log, DefaultLog)
	if levels := []string{"debug", "info", "warn", "error", "off"}; !slices.Contains(levels, c.Observability.Log) {
		d.bad("observability.log", "is %q: it must be %s", c.Observability.Log, list(levels, "or"))
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// mostBody is how much of a body the presets read.
const mostBody = 16 << 20

func (d *decoder) body(field string, n Size) {
	if n < 0 || n > mostBody {
		d.bad(field, "is %v: it must be at most %v", n, Size(mostBody))
	}
}

// listen checks the address of the proxy.
func (d *decoder) listen(c *Config) {
	setDefault(&c.Listen, DefaultListen)
	if socket, ok := strings.CutPrefix(c.Listen, "unix:"); ok {
		if !path.IsAbs(socket) {
			d.bad("listen", "is %q: the path of a socket must begin with /, such as unix:/run/throttle.sock", c.Listen)
		}
		return
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if number, e := parseNumber(port); err != nil || e != nil || number < 0 || number > 65535 {
		d.bad("listen", "is %q: it must be HOST:PORT such as %s, or unix:/PATH", c.Listen, DefaultListen)
		return
	}
	if !isLoopback(host) && !c.AllowPublic {
		d.bad("listen", "is %q, which other machines can reach: use 127.0.0.1:%s, or set allow_public: true", c.Listen, port)
	}
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// store checks where quotas are kept.
func (d *decoder) store(s *Store) {
	if !s.Redis.IsZero() && s.File != "" {
		d.bad("store", "has both redis and file: remove one")
	}
	if s.Prefix != "" && s.Redis.IsZero() {
		d.bad("store.prefix", "is %q, but only redis has a prefix: remove it, or add redis", s.Prefix)
	}
	if d.filled("store.file") && s.File == "" {
		d.bad("store.file", "is empty: name a file, or remove the field")
	}
	if s.Redis.IsZero() || d.loader.WithoutSecrets && strings.Contains(s.Redis.Reveal(), "${") || d.hasProblem("store.redis") {
		return
	}
	if _, err := redis.ParseURL(s.Redis.Reveal()); err != nil { // the error has the URL, and so the password
		d.bad("store.redis", "is not the URL of a Redis server: use redis://HOST:PORT/DB, rediss:// with TLS, or unix:///PATH")
	}
}

// filled reports whether a field is in the file, with a value of its type.
func (d *decoder) filled(field string) bool { return d.places[field] != nil && !d.failed[field] }

// hasProblem reports whether a problem of a field has been reported.
func (d *decoder) hasProblem(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Field == field })
}

var classes = map[string]throttle.Class{"": throttle.Normal, "interactive": throttle.Interactive, "normal": throttle.Normal, "batch": throttle.Batch}

func (d *decoder) class(field, name string) throttle.Class {
	class, ok := classes[name]
	if !ok {
		d.bad(field, "is %q: it must be interactive, normal or batch", name)
	}
	return class
}

// shortestToken is how many bytes a client's token has at least.
const shortestToken = 16

func (d *decoder) clients(c *Config) {
	owners := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		client, field := c.Clients[name], "clients."+name
		client.class = d.class(field+".class", client.Class)
		client.budget = d.budget(field+".budget", client.Budget)
		client.budget.Name = "clients"
		token := client.Token.Reveal()
		other, taken := owners[token]
		switch {
		case d.hasProblem(field + ".token"):
			continue
		case d.failed[field]:
			continue
		case client.Token.IsZero():
			d.bad(field, `lacks its token: add token: "${env:NAME}"`)
			continue
		case d.loader.WithoutSecrets && strings.Contains(token, "${"):
			continue
		case len(token) < shortestToken:
			d.bad(field+".token", "has fewer than %d bytes: use a longer one, such as the output of: openssl rand -hex 16", shortestToken)
		case !isHeaderValue(token) || strings.Contains(token, " "):
			d.bad(field+".token", "has a space, or a character that no header may have: remove it")
		case taken:
			d.bad(field+".token", "is the token of client %s, too: give each client its own", other)
		}
		owners[token] = name
	}
}

// budgetSuffix ends the name of a route's budget.
const budgetSuffix = ":budget"

// route checks a route and prepares what its methods return.
func (d *decoder) route(c *Config, r *Route, field string) {
	d.prefix(field, r.prefix)
	d.upstream(field+".to", r)
	setDefault(&r.Name, strings.TrimPrefix(r.prefix, "/"))
	if r.Name == "" {
		d.bad(field, "lacks a name: the route of / needs name: NAME, the name of its quota")
	} else if strings.ContainsFunc(r.Name, func(c rune) bool { return c < ' ' }) || len(r.Name) > 200 || strings.HasSuffix(r.Name, budgetSuffix) {
		d.bad(field+".name", "is %q: it must have at most 200 characters, no control characters, and no %s at its end", r.Name, budgetSuffix)
	}
	d.limits(field, r)
	r.budget = d.budget(field+".budget", r.Budget)
	r.budget.Name = r.Name + budgetSuffix
	r.class = d.class(field+".class", r.Class)
	for i, name := range r.Clients {
		if c.Clients[name] == nil {
			fix := "add it to clients"
			if near := nearest(name, slices.Sorted(maps.Keys(c.Clients))); near != "" {
				fix = "did you mean " + near + "?"
			}
			d.bad(fmt.Sprintf("%s.clients[%d]", field, i), "is %q: no client has this name: %s", name, fix)
		}
	}
	for unit, n := range r.Cost {
		if n < 0 || n > algorithms.MaxLimit {
			d.bad(join(field+".cost", unit), "is %d: it must be from 0 to %d", n, int64(algorithms.MaxLimit))
		}
	}
	d.headers(field, r)
	d.body(field+".max_body", r.MaxBody)
	setDefault(&r.MaxBody, c.MaxBody)
	setDefault(&r.MaxBody, DefaultMaxBody)
}

// prefix checks a route's prefix.
func (d *decoder) prefix(field, prefix string) {
	wrong := ""
	switch {
	case !strings.HasPrefix(prefix, "/"):
		wrong = "must begin with /: write /" + prefix
	case prefix == "/":
	case prefix != path.Clean(prefix):
		wrong = "must have no empty parts, no dots alone and no / at its end: write " + path.Clean(prefix)
	case prefix == ReservedPrefix || strings.HasPrefix(prefix, ReservedPrefix+"/"):
		wrong = "is where the proxy has its own pages: use another prefix"
	}
	if wrong != "" {
		d.bad(field, "%s", wrong)
	}
}

// upstream checks the address of an API. A bad one may contain a password or a key, so it is shown
// only without these.
func (d *decoder) upstream(field string, r *Route) {
	if r.To == "" {
		if d.filled(field) {
			d.bad(field, "is empty: write https://HOST")
		} else if !d.failed[field] {
			d.bad(strings.TrimSuffix(field, ".to"), "lacks its address: add to: https://HOST")
		}
		return
	}
	u, err := url.Parse(r.To)
	if err != nil || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || strings.Contains(r.To, "@") {
		if at := d.places[field]; at != nil {
			delete(d.public, placeOf(at))
		}
		switch {
		case err == nil && (u.User != nil || strings.Contains(r.To, "@")):
			d.bad(field, `has a user or a password: remove it and set a header instead, such as set: {Authorization: "Basic ${env:NAME}"}`)
		case err == nil && (u.RawQuery != "" || u.ForceQuery || u.Fragment != ""):
			d.bad(field, "has a query or a fragment: remove it, the client's request brings its own")
		default:
			d.bad(field, "is not a URL: write https://HOST or https://HOST/PATH")
		}
		return
	}
	port := u.Port()
	number, err := parseNumber(port)
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		d.bad(field, "is %q: it must begin with https:// or http://", r.To)
	case u.Hostname() == "":
		d.bad(field, "is %q: it lacks a host: write https://HOST", r.To)
	case port != "" && (err != nil || number < 1 || number > 65535), strings.HasSuffix(u.Host, ":"):
		d.bad(field, "is %q: its port must be from 1 to 65535", r.To)
	case !isClean(u.Path):
		d.bad(field, "is %q: its path must have no empty parts and no dots alone", r.To)
	default:
		u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
		u.Host = strings.ToLower(u.Host)
		r.upstream, r.To = u, u.String()
	}
}

// isClean reports whether a path is empty, or has no empty parts and no dots alone, but for a / at
// its end.
func isClean(p string) bool {
	p = strings.TrimSuffix(p, "/")
	return p == "" || p == path.Clean(p) && p != "/"
}

// limits checks a route's preset or policy.
func (d *decoder) limits(field string, r *Route) {
	switch {
	case d.failed[field+".preset"], d.failed[field+".policy"]:
	case r.Preset == "" && r.Policy == "":
		d.bad(field, `lacks its limits: add preset: NAME, or a policy such as policy: "5/s + 10000/h"`)
	case r.Preset != "" && r.Policy != "":
		d.bad(field+".policy", "is there beside preset: remove one")
	case r.Preset != "":
		d.preset(field, r)
	default:
		for name, there := range map[string]bool{"with": len(r.With) > 0, "any_host": r.AnyHost} {
			if there {
				d.bad(field+"."+name, "belongs to a preset: remove it, or use preset instead of policy")
			}
		}
		p, err := throttle.ParsePolicy(r.Name, r.Policy)
		if err != nil {
			d.bad(field+".policy", "is %q: %s", r.Policy, policyProblem(r.Name, err))
		}
		for name, both := range map[string]bool{"max_wait": p.MaxWait != 0 && r.MaxWait != 0, "max_queue": p.MaxQueue != 0 && r.MaxQueue != 0} {
			if both {
				d.bad(field+"."+name, "is in the policy, too: remove one")
			}
		}
		r.limits = Limits{policy: p}
	}
	if r.MaxQueue < 0 {
		d.bad(field+".max_queue", "is %d: it must be at least 1", r.MaxQueue)
	}
	r.limits.maxWait, r.limits.maxQueue = r.MaxWait, r.MaxQueue
}

// policyProblem returns the problem of a policy without the beginning that the field has said.
func policyProblem(name string, err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), fmt.Sprintf("throttle: policy %q: ", name)), "\n", "; ")
}

// preset checks a route's preset, its parameters and its host.
func (d *decoder) preset(field string, r *Route) {
	p, fix := findPreset(r.Preset)
	if fix != "" {
		d.bad(field+".preset", "is %q: no preset has this name: %s", r.Preset, fix)
		return
	}
	r.Preset = p.Name
	args, bad := p.arguments(r.With)
	for _, b := range bad {
		if to := join(field+".with", b.name); !d.failed[to] {
			d.bad(to, "%s", b.message)
		}
	}
	if len(bad) > 0 {
		return
	}
	r.limits = Limits{preset: p, args: args, name: r.Name}
	if r.upstream == nil {
		return
	}
	provider := p.build(args)
	if len(provider.Hosts) > 0 && !slices.ContainsFunc(provider.Hosts, func(pattern string) bool {
		is, err := path.Match(strings.ToLower(pattern), r.upstream.Hostname())
		return is && err == nil
	}) {
		if !r.AnyHost {
			hosts := provider.Hosts
			if len(hosts) > 4 {
				hosts = append(slices.Clone(hosts[:4]), "others")
			}
			d.bad(field+".to", "is %q: preset %s is for %s: use such a host, or set any_host: true to apply it to this one", r.To, p.Name, list(hosts, "and"))
		}
		r.limits.host = r.upstream.Hostname()
	}
	for _, policy := range r.limits.Policies() {
		if err := policy.Validate(); err != nil {
			d.bad(field+".with", "is not possible: %s", policyProblem(policy.Name, err))
		}
	}
}

// budget checks a policy of budgets.
func (d *decoder) budget(field, text string) (p throttle.Policy) {
	if text == "" {
		if d.filled(field) {
			d.bad(field, "is empty: write a budget such as 1000/day;budget=true, or remove the field")
		}
		return p
	}
	p, err := throttle.ParsePolicy("budget", text)
	if err != nil {
		d.bad(field, "is %q: %s", text, policyProblem("budget", err))
		return throttle.Policy{}
	}
	for _, t := range p.Tiers {
		if !t.Budget {
			d.bad(field, "is %q: tier %s is not a budget: add ;budget=true to it, as in 1000/day;budget=true", text, t)
		}
	}
	return p
}

// headers checks the headers that a route sets and removes.
func (d *decoder) headers(field string, r *Route) {
	names := make(map[string]string)
	check := func(field, name string) {
		canonical := http.CanonicalHeaderKey(name)
		switch other, twice := names[canonical]; {
		case !isHeaderName(name):
			d.bad(field, "is not the name of a header: use letters, digits and hyphens")
		case slices.Contains(hopByHop, canonical):
			d.bad(field, "is a header of the connection, which the proxy writes itself: remove it")
		case twice:
			d.bad(field, "is the same header as %s: remove one", other)
		}
		names[canonical] = name
	}
	for _, name := range slices.Sorted(maps.Keys(r.Set)) {
		to := join(field+".set", name)
		check(to, name)
		if value := r.Set[name]; !d.hasProblem(to) && !isHeaderValue(value.Reveal()) {
			d.bad(to, "has a character that no header may have, such as a line end: remove it")
		}
	}
	for i, name := range r.Remove {
		check(fmt.Sprintf("%s.remove[%d]", field, i), name)
	}
}

var hopByHop = []string{"Connection", "Content-Length", "Host", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// isHeaderName reports whether a text is a token of RFC 9110.
func isHeaderName(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		letter := 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// isHeaderValue reports whether a text has no control characters.
func isHeaderValue(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// names checks that prefixes differ not by case alone, and that routes with the same name have the
// same limits.
func (d *decoder) names(c *Config) {
	first, folded := make(map[string]*Route), make(map[string]string)
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r := c.Routes[prefix]
		if other, taken := folded[strings.ToLower(prefix)]; taken {
			d.bad("routes."+prefix, "differs from %s by case alone: use another prefix", other)
		}
		folded[strings.ToLower(prefix)] = prefix
		other := first[r.Name]
		if other == nil {
			first[r.Name] = r
			continue
		}
		if r.limits.String() != other.limits.String() || r.limits.host != other.limits.host || r.budget.String() != other.budget.String() {
			d.bad("routes."+prefix+".name", "is %q, the quota of routes.%s, which has other limits: give each its own name, or both the same limits and the same budget", r.Name, other.prefix)
		}
	}
}

// counted checks that every unit is both limited and charged.
func (d *decoder) counted(c *Config) {
	charged := make(map[string]bool) // by any route
	whole := true
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r, field := c.Routes[prefix], "routes."+prefix
		if !r.limits.IsPreset() && len(r.limits.policy.Tiers) == 0 || r.limits.IsPreset() && d.hasProblemWithin(field+".with") {
			whole = false
			continue // its problems are reported
		}
		costs := r.charges()
		for unit := range costs {
			charged[unit] = true
		}
		limited := units(r.budget.Tiers)
		if !r.limits.IsPreset() {
			own := units(r.limits.policy.Tiers)
			d.uncharged(field+".policy", r.Policy, own, costs)
			maps.Copy(limited, own)
		}
		d.uncharged(field+".budget", r.Budget, units(r.budget.Tiers), costs)
		for _, client := range c.Clients {
			maps.Copy(limited, units(client.budget.Tiers))
		}
		for _, p := range r.limits.Policies() {
			maps.Copy(limited, units(p.Tiers))
		}
		for _, unit := range slices.Sorted(maps.Keys(r.Cost)) {
			if !limited[unit] {
				d.bad(join(field+".cost", unit), "is a unit that nothing limits: add a budget, or a tier with unit=%s", unit)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clients)) {
		client := c.Clients[name]
		if !whole {
			break
		}
		d.uncharged("clients."+name+".budget", client.Budget, units(client.budget.Tiers), charged)
	}
}

// kept checks that a file keeps the tiers of all routes.
func (d *decoder) kept(c *Config) {
	if c.Store.File == "" {
		return
	}
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r := c.Routes[prefix]
		for _, p := range r.limits.Policies() {
			i := slices.IndexFunc(p.Tiers, func(t throttle.Tier) bool { return t.Estimated || t.Algorithm == throttle.Concurrency })
			if i >= 0 {
				d.bad("routes."+prefix, "has the tier %s, which a file does not keep: use store: {redis: URL}, or no store", p.Tiers[i])
				break
			}
		}
	}
}

func (d *decoder) hasProblemWithin(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Field == field || strings.HasPrefix(p.Field, field+".") })
}

// uncharged reports the units that no request costs.
func (d *decoder) uncharged(field, text string, limited, charged map[string]bool) {
	for _, unit := range slices.Sorted(maps.Keys(limited)) {
		if !charged[unit] {
			d.bad(field, "is %q: no request costs %s, so this would never be used up: use %s, or add cost: {%s: N} to the route", text, unit,
				list(slices.Sorted(maps.Keys(charged)), "or"), unit)
		}
	}
}

// charges returns the units that a request of the route may cost.
func (r *Route) charges() map[string]bool {
	costs := map[string]bool{algorithms.Requests: true}
	if r.limits.IsPreset() {
		for _, p := range r.limits.Policies() {
			maps.Copy(costs, units(p.Tiers))
		}
	}
	for unit := range r.Cost {
		costs[unit] = true
	}
	return costs
}

// units returns the units of tiers.
func units(tiers []throttle.Tier) map[string]bool {
	all := make(map[string]bool)
	for _, t := range tiers {
		unit := t.Unit
		if unit == "" {
			unit = algorithms.Requests
		}
		all[unit] = true
	}
	return all
}
