package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/cmd/throttle/internal/alike"
	"github.com/apithrottle/throttle/cmd/throttle/internal/pgurl"
	"github.com/apithrottle/throttle/postgres"
	"github.com/apithrottle/throttle/providers"
	"github.com/redis/go-redis/v9"
)

// validate reports every problem of a file's values, and fills in the defaults.
func (d *decoder) validate(c *Config) {
	if c.Version != 0 && c.Version != Version {
		d.bad("version", "is %d: this release reads version %d", c.Version, Version)
	}
	c.Version = Version
	setDefault(&c.Listen, DefaultListen)
	if wrong := c.wrongListen(c.Listen); wrong != "" {
		d.bad("listen", "%s", wrong)
	}
	d.publicURL(c)
	d.store(&c.Store)
	d.clients(c)
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
	setDefault(&c.Timeouts.Connect, DefaultConnect)
	setDefault(&c.Timeouts.Shutdown, DefaultShutdown)
	setDefault(&c.MaxBody, DefaultMaxBody)
	d.body("max_body", c.MaxBody)
	d.observability(c)
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

// wrongListen returns what is wrong with an address to listen on, or "".
func (c *Config) wrongListen(address string) string {
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		if !path.IsAbs(socket) {
			return fmt.Sprintf("is %q: the path of a socket must begin with /, such as unix:/run/throttle.sock", address)
		}
		return ""
	}
	switch host, port, ok := splitAddress(address); {
	case !ok:
		return fmt.Sprintf("is %q: it must be HOST:PORT such as %s, or unix:/PATH", address, DefaultListen)
	case !isLoopback(host) && !c.AllowPublic:
		return fmt.Sprintf("is %q, which other machines can reach: use 127.0.0.1:%s, or set allow_public: true", address, port)
	}
	return ""
}

// splitAddress returns the host and the port of an address to listen on, and whether it has both.
func splitAddress(address string) (host, port string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	number, e := parseNumber(port)
	return host, port, err == nil && e == nil && number >= 0 && number <= 65535
}

// SetListen replaces Listen, as the flag --listen of the proxy does. After an error, which begins with
// "listen is", nothing has changed: the address must be one that the file may have.
func (c *Config) SetListen(address string) error {
	if wrong := c.wrongListen(address); wrong != "" {
		return errors.New("listen " + wrong)
	}
	c.Listen = address
	return nil
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// store checks where quotas are kept.
func (d *decoder) store(s *Store) {
	var has []string // of the places
	for _, place := range []string{"redis", "postgres", "file"} {
		if d.places["store."+place] != nil {
			has = append(has, place)
		}
	}
	if len(has) > 1 {
		d.bad("store", "has %s: keep one of them", list(has, "and"))
	}
	for field, owners := range storeOwners {
		owned := slices.ContainsFunc(owners, func(owner string) bool { return d.filled("store." + owner) })
		if d.filled("store."+field) && !owned {
			d.bad("store."+field, "is there, but only %s has one: remove it, or add %s", list(owners, "or"), list(owners, "or"))
		}
	}
	if d.filled("store.fallback") && !d.filled("store.fallback.workers") && !d.failed["store.fallback.workers"] {
		d.bad("store.fallback", "lacks workers: add workers: N, the largest number of processes that share the quotas")
	}
	if n := s.Fallback.Workers; d.filled("store.fallback.workers") && n < 1 {
		d.bad("store.fallback.workers", "is %d: it must be at least 1, the largest number of processes that share the quotas", n)
	}
	d.postgres(s)
	if s.Redis.IsZero() || d.unread(s.Redis) || d.hasProblem("store.redis") {
		return
	}
	if _, err := redis.ParseURL(s.Redis.Reveal()); err != nil { // the error has the URL, and so the password
		d.bad("store.redis", "is not the URL of a Redis server: use redis://HOST:PORT/DB, rediss:// with TLS, or unix:///PATH")
	}
}

// storeOwners are the places whose fields they are.
var storeOwners = map[string][]string{
	"prefix": {"redis"}, "fallback": {"redis"}, "timeout": {"redis", "postgres"},
	"table": {"postgres"}, "horizon": {"postgres"}, "lease": {"postgres"}, "poll_only": {"postgres"}, "sync": {"postgres"},
}

// postgres checks the URL of PostgreSQL, and the fields that may be its parameters.
func (d *decoder) postgres(s *Store) {
	if s.Postgres.IsZero() || d.hasProblem("store.postgres") {
		return
	}
	if _, err := postgres.Schema(postgres.Options{Table: s.Table}); err != nil {
		d.bad("store.table", "is %q: it must be the name of a table, or schema.table", s.Table)
	}
	for field, length := range map[string]time.Duration{"timeout": s.Timeout, "horizon": s.Horizon, "lease": s.Lease} {
		if length > 0 && length < time.Millisecond {
			d.bad("store."+field, "is %v: it must be at least 1ms", length)
		}
	}
	if d.unread(s.Postgres) {
		return
	}
	_, o, err := pgurl.Parse(s.Postgres.Reveal())
	if err != nil {
		d.bad("store.postgres", "%v", err)
	}
	for field, both := range map[string]bool{
		"table": s.Table != "" && o.Table != "", "timeout": s.Timeout != 0 && o.Timeout != 0, "horizon": s.Horizon != 0 && o.Horizon != 0,
		"lease": s.Lease != 0 && o.Lease != 0,
	} {
		if both {
			d.bad("store."+field, "is a parameter of the URL, too: remove one")
		}
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
		d.ownLimits(field, name, client)
		token := client.Token.Reveal()
		switch {
		case d.failed[field]:
		case client.Token.IsZero() && !d.hasProblem(field+".token"):
			d.bad(field, `lacks its token: add token: "${env:NAME}"`)
		case !d.token(field+".token", client.Token):
		case owners[token] != "":
			d.bad(field+".token", "is the token of client %s, too: give each client its own", owners[token])
		default:
			owners[token] = name
		}
	}
}

// token checks a token. It returns false if there is none, or a bad one.
func (d *decoder) token(field string, s Secret) bool {
	token := s.Reveal()
	switch {
	case s.IsZero(), d.unread(s), d.hasProblem(field):
		return false
	case len(token) < shortestToken:
		d.bad(field, "has fewer than %d bytes: use a longer one, such as the output of: openssl rand -hex 16", shortestToken)
	case !isHeaderValue(token) || strings.Contains(token, " "):
		d.bad(field, "has a space, or a character that no header may have: remove it")
	}
	return !d.hasProblem(field)
}

// unread reports whether a Secret keeps its references, because the file is checked without them.
func (d *decoder) unread(s Secret) bool {
	return d.loader.WithoutSecrets && strings.Contains(s.Reveal(), "${")
}

// ownLimits checks the limits of a client, and makes one policy of them.
func (d *decoder) ownLimits(field, name string, client *Client) {
	budget := d.budget(field+".budget", client.Budget)
	p := throttle.Policy{}
	if client.Policy != "" {
		p = d.policy(field+".policy", clientPrefix+name, client.Policy)
	}
	if len(p.Tiers) == 0 {
		p = budget
	}
	d.once(field, p, client.MaxWait, client.MaxQueue)
	if client.Policy != "" && len(budget.Tiers) > 0 {
		alone := budget
		alone.Name, alone.Tiers, alone.AlertAt = "", nil, nil
		switch {
		case alone.String() != "":
			d.bad(field+".budget", "is %q: of the options only alert_at belongs to a budget beside a policy: write the others behind the policy", client.Budget)
		case len(p.AlertAt) > 0 && len(budget.AlertAt) > 0:
			d.bad(field+".budget", "is %q: alert_at is in the policy, too: remove one", client.Budget)
		case len(p.AlertAt) == 0:
			p.AlertAt = budget.AlertAt
		}
		p.Tiers = slices.Concat(p.Tiers, budget.Tiers)
		if err := p.Validate(); err != nil {
			d.bad(field+".budget", "is not possible beside the policy: %s", policyProblem(p.Name, "", err))
		}
	}
	for name, there := range map[string]bool{"max_wait": client.MaxWait != 0, "max_queue": client.MaxQueue != 0} {
		if there && client.Policy == "" && client.Budget == "" {
			d.bad(field+"."+name, "needs limits of the client: add a policy such as 5/s or a budget, or set it for the routes")
		}
	}
	if p.Name = clientPrefix + name; client.MaxWait != 0 {
		p.MaxWait = client.MaxWait
	}
	if d.maxQueue(field, client.MaxQueue); client.MaxQueue != 0 {
		p.MaxQueue = client.MaxQueue
	}
	client.own = p
}

// policy reads a policy.
func (d *decoder) policy(field, name, text string) throttle.Policy {
	p, err := throttle.ParsePolicy(name, text)
	switch {
	case err != nil:
		d.bad(field, "is %q: %s", text, policyProblem(name, text, err))
	case p.Shadow:
		d.bad(field, "is %q: shadow is for a Limiter in a program, not for a file: remove shadow=true", text)
		p.Shadow = false
	}
	return p
}

// once reports what is both in a policy and beside it.
func (d *decoder) once(field string, p throttle.Policy, maxWait time.Duration, maxQueue int) {
	for name, both := range map[string]bool{"max_wait": p.MaxWait != 0 && maxWait != 0, "max_queue": p.MaxQueue != 0 && maxQueue != 0} {
		if both {
			d.bad(field+"."+name, "is in the policy, too: remove one")
		}
	}
}

// maxQueue checks a max_queue.
func (d *decoder) maxQueue(field string, n int) {
	if n < 0 || n == 0 && d.filled(field+".max_queue") {
		d.bad(field+".max_queue", "is %d: it must be at least 1", n)
	}
}

// budgetSuffix ends the name of a route's budget.
const budgetSuffix = ":budget"

// route checks a route and prepares what its methods return.
func (d *decoder) route(c *Config, r *Route, field string) {
	r.field = field
	d.prefix(field, r.prefix)
	setDefault(&r.Name, strings.TrimPrefix(r.prefix, "/"))
	if r.Name == "" {
		d.bad(field, "lacks a name: the route of / needs name: NAME, the name of its quota")
	} else {
		d.quotaName(field+".name", r.Name)
	}
	if d.places[field+".pool"] != nil {
		d.pool(field, r)
	} else {
		d.upstream(field+".to", r)
		d.limits(field, r)
		d.key(field+".key", r)
		d.withoutPool(field)
	}
	r.budget = d.budget(field+".budget", r.Budget)
	r.budget.Name = r.Name + budgetSuffix
	r.class = d.class(field+".class", r.Class)
	for i, name := range r.Clients {
		if c.Clients[name] == nil {
			d.bad(fmt.Sprintf("%s.clients[%d]", field, i), "is %q: no client has this name: %s", name,
				alike.Suggest(name, slices.Sorted(maps.Keys(c.Clients)), "add it to clients"))
		}
	}
	for unit, n := range r.Cost {
		if n < 0 || n > algorithms.MaxLimit {
			d.bad(join(field+".cost", unit), "is %d: it must be from 0 to %d", n, int64(algorithms.MaxLimit))
		}
	}
	d.prices(field, r)
	d.headers(field, r)
	r.hideQuery()
	d.body(field+".max_body", r.MaxBody)
	setDefault(&r.MaxBody, c.MaxBody)
	setDefault(&r.MaxBody, DefaultMaxBody)
}

// quotaName checks the name of a quota.
func (d *decoder) quotaName(field, name string) {
	if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' }) || len(name) > 200 ||
		strings.HasSuffix(name, budgetSuffix) || strings.HasPrefix(name, clientPrefix) {
		d.bad(field, "is %q: it must have at most 200 characters, no control characters, no %s at its end, and no %s at its beginning",
			name, budgetSuffix, clientPrefix)
	}
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
	to, secrets := d.expanded(field, r.To)
	if to == "" {
		return
	}
	u := d.address(field, r.To, to)
	if u == nil {
		return
	}
	r.upstream, r.secrets = u, secrets
	if r.To = strings.TrimSuffix(r.To, "/"); !strings.Contains(r.To, "${") {
		r.To = u.String()
	}
}

// publicURL checks the address at which clients reach the proxy.
func (d *decoder) publicURL(c *Config) {
	if c.PublicURL == "" {
		return
	}
	if u := d.address(publicField, c.PublicURL, c.PublicURL); u != nil {
		c.public, c.PublicURL = u, u.String()
	}
}

const publicField = "public_url"

// address returns the address of a field, without a slash at its end, nil if it is bad. The field has the
// text as it was written, and to is the text with the values of its references.
func (d *decoder) address(field, text, to string) *url.URL {
	u, err := url.Parse(to)
	if err != nil || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || strings.Contains(text, "@") {
		if at := d.places[field]; at != nil {
			delete(d.public, placeOf(at))
		}
		insteadOfUser := ` and set a header instead, such as set: {Authorization: "Basic ${env:NAME}"}`
		insteadOfQuery := ": the client's request brings its own, and query: {NAME: VALUE} sets parameters"
		if field == publicField {
			insteadOfUser, insteadOfQuery = "", ""
		}
		switch {
		case err == nil && (u.User != nil || strings.Contains(text, "@")):
			d.bad(field, "has a user or a password: remove it%s", insteadOfUser)
		case err == nil && (u.RawQuery != "" || u.ForceQuery || u.Fragment != ""):
			d.bad(field, "has a query or a fragment: remove it%s", insteadOfQuery)
		default:
			d.bad(field, "is not a URL: write https://HOST or https://HOST/PATH")
		}
		return nil
	}
	if wrong := wrongAddress(u); wrong != "" {
		d.bad(field, "is %q: %s", text, wrong)
		return nil
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
	u.Host = strings.ToLower(u.Host)
	return u
}

// wrongAddress returns what is wrong with the parts of an address, or "".
func wrongAddress(u *url.URL) string {
	port := u.Port()
	number, err := parseNumber(port)
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return "it must begin with https:// or http://"
	case u.Hostname() == "":
		return "it lacks a host: write https://HOST"
	case port != "" && (err != nil || number < 1 || number > 65535), strings.HasSuffix(u.Host, ":"):
		return "its port must be from 1 to 65535"
	case !isClean(u.Path):
		return "its path must have no empty parts and no dots alone"
	}
	return ""
}

// expanded returns an address with the values of its references, which are escaped, and these values. It
// returns "" after a problem.
func (d *decoder) expanded(field, text string) (to string, secrets []Secret) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	_, rest, _ := strings.Cut(text, "://")
	if host, _, _ := strings.Cut(rest, "/"); strings.Contains(host, "${") {
		d.bad(field, "has a ${ in its host: only the path may refer to a variable or a file")
		return "", nil
	}
	l := d.loader
	l.each = func(value string) string {
		escaped := url.PathEscape(value)
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			d.bad(field, "has a value with a control character, such as a line end: remove it")
		}
		secrets = append(secrets, NewSecret(value), NewSecret(escaped), NewSecret(url.QueryEscape(value)))
		return escaped
	}
	expanded := d.expand(l, field, text)
	if d.hasProblem(field) {
		return "", nil
	}
	return expanded.Reveal(), longEnough(secrets)
}

// shortestHidden is how many bytes a secret has at least that is looked for in responses. Shorter ones
// may be any words.
const shortestHidden = 8

// longEnough returns the secrets that may be looked for in texts, the longest first.
func longEnough(secrets []Secret) []Secret {
	secrets = slices.DeleteFunc(secrets, func(s Secret) bool { return len(s.Reveal()) < shortestHidden })
	slices.SortFunc(secrets, func(a, b Secret) int {
		return cmp.Or(cmp.Compare(len(b.Reveal()), len(a.Reveal())), cmp.Compare(a.Reveal(), b.Reveal()))
	})
	return slices.CompactFunc(secrets, Secret.Equal)
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
		for name, there := range map[string]bool{"with": len(r.With) > 0, "models": len(r.Models) > 0, "any_host": r.AnyHost} {
			if there {
				d.bad(field+"."+name, "belongs to a preset: remove it, or use preset instead of policy")
			}
		}
		p := d.policy(field+".policy", r.Name, r.Policy)
		d.once(field, p, r.MaxWait, r.MaxQueue)
		r.limits = Limits{policy: p}
	}
	d.maxQueue(field, r.MaxQueue)
	r.limits.maxWait, r.limits.maxQueue = r.MaxWait, r.MaxQueue
}

// policyProblem returns the problem of a policy without the beginning that the field has said: the name
// and, of a policy with one tier, the text.
func policyProblem(name, text string, err error) string {
	problem := strings.TrimPrefix(err.Error(), fmt.Sprintf("throttle: policy %q: ", name))
	problem = strings.TrimPrefix(problem, fmt.Sprintf("tier %q: ", text))
	return strings.ReplaceAll(problem, "\n", "; ")
}

// preset checks a route's preset, its parameters and its host.
func (d *decoder) preset(field string, r *Route) {
	p, fix := findPreset(r.Preset)
	if fix != "" {
		d.bad(field+".preset", "is %q: no preset has this name: %s", r.Preset, fix)
		return
	}
	r.Preset = p.Name
	args, bad := presetArguments(p, r.With)
	for _, b := range bad {
		if to := join(field+".with", b.name); !d.failed[to] {
			d.bad(to, "%s", b.message)
		}
	}
	if len(bad) > 0 {
		return
	}
	r.limits = Limits{preset: p, args: args, name: r.Name, models: d.models(field+".models", p, r)}
	if r.upstream == nil {
		return
	}
	provider := p.Provider(args)
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
			d.bad(field+".with", "is not possible: %s", policyProblem(policy.Name, "", err))
		}
	}
	d.modelsAsOne(field+".models", r)
}

// modelsAsOne checks the patterns of models together.
func (d *decoder) modelsAsOne(field string, r *Route) {
	if len(r.limits.models) == 0 {
		return
	}
	provider, _ := r.limits.Provider()
	if _, err := provider.Transport(nil); err != nil {
		_, problem, _ := strings.Cut(err.Error(), "Models: ")
		d.bad(field, "is not possible: %s", problem)
	}
}

// models returns the arguments of a preset for single models.
func (d *decoder) models(field string, p providers.Preset, r *Route) map[string]map[string]string {
	if len(r.Models) > 0 && p.Models == "" {
		d.bad(field, "is for presets of language models, and %s has no limits of models: remove it", p.Name)
		return nil
	}
	all := make(map[string]map[string]string)
	for pattern, own := range r.Models {
		given := maps.Clone(r.With)
		if given == nil {
			given = make(map[string]string)
		}
		maps.Copy(given, own)
		args, bad := presetArguments(p, given)
		for _, b := range bad {
			if to := join(join(field, pattern), b.name); !d.failed[to] {
				d.bad(to, "%s", b.message)
			}
		}
		if len(bad) == 0 {
			all[pattern] = args
		}
	}
	return all
}

// budget checks a policy of budgets.
func (d *decoder) budget(field, text string) (p throttle.Policy) {
	if text == "" {
		return p
	}
	p = d.policy(field, "budget", text)
	for _, t := range p.Tiers {
		if !t.Budget {
			d.bad(field, "is %q: tier %s is not a budget: add ;budget=true to it, as in 1000/day;budget=true", text, t)
		}
	}
	return p
}

// key checks the header whose values are accounts.
func (d *decoder) key(field string, r *Route) {
	header := http.CanonicalHeaderKey(r.Key.Header)
	if !d.filled(field) {
		return
	}
	same := func(name string) bool { return http.CanonicalHeaderKey(name) == header }
	switch at := field + ".header"; {
	case d.failed[at]:
	case header == "":
		d.bad(field, "lacks its header: add header: NAME, such as Authorization")
	case !isHeaderName(header):
		d.bad(at, "is %q, which is not the name of a header: use letters, digits and hyphens", r.Key.Header)
	case slices.Contains(hopByHop, header) || strings.HasPrefix(header, "X-Throttle-") || strings.HasPrefix(header, "X-Forwarded-") || header == "Forwarded":
		d.bad(at, "is %q, which does not reach the API: name the header that tells the API's accounts apart", r.Key.Header)
	case slices.ContainsFunc(slices.Collect(maps.Keys(r.Set)), same):
		d.bad(at, "is %q, which set gives one value, so that there is one account: remove key, or the header from set", r.Key.Header)
	case slices.ContainsFunc(r.Remove, same):
		d.bad(at, "is %q, which remove removes: remove key, or the header from remove", r.Key.Header)
	}
	if n := r.Key.MaxKeys; n < 0 || n > mostKeys || n == 0 && d.filled(field+".max_keys") {
		d.bad(field+".max_keys", "is %d: it must be from 1 to %d", n, mostKeys)
	}
	if r.limits.IsPreset() && r.limits.preset.Provider(r.limits.args).Account != nil {
		d.bad(field, "is there beside preset %s, which reads the account of a request itself: remove key", r.Preset)
	}
	r.Key.Header = header
	setDefault(&r.Key.MaxKeys, DefaultMaxKeys)
}

// mostKeys is the largest max_keys.
const mostKeys = 1_000_000

// hideQuery adds the parameters that a route sets to its secrets.
func (r *Route) hideQuery() {
	for _, value := range r.Query {
		r.secrets = append(r.secrets, value, NewSecret(url.QueryEscape(value.Reveal())))
	}
	r.secrets = longEnough(r.secrets)
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

// names checks that prefixes differ not by case alone, and that routes and members with the same name have
// the same limits.
func (d *decoder) names(c *Config) {
	first, folded := make(map[string]*Route), make(map[string]string)
	same := func(r *Route, field string) {
		other := first[r.Name]
		if other == nil {
			first[r.Name] = r
			return
		}
		if r.limits.String() != other.limits.String() || r.limits.host != other.limits.host || r.budget.String() != other.budget.String() || r.Key != other.Key {
			d.bad(field, "is %q, the quota of %s, which has other limits: give each its own name, or both the same limits, key and budget", r.Name, other.field)
		}
	}
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r := c.Routes[prefix]
		if other, taken := folded[strings.ToLower(prefix)]; taken {
			d.bad("routes."+prefix, "differs from %s by case alone: use another prefix", other)
		}
		folded[strings.ToLower(prefix)] = prefix
		same(r, "routes."+prefix+".name")
		for _, m := range r.members() {
			same(m, m.field+".quota")
		}
	}
}

// counted checks that every unit is both limited and charged.
func (d *decoder) counted(c *Config) {
	charged := make(map[string]bool) // by any route
	whole := true
	for _, prefix := range slices.Sorted(maps.Keys(c.Routes)) {
		r, field := c.Routes[prefix], "routes."+prefix
		costs, limited := r.ofEach(), units(r.budget.Tiers)
		for _, client := range c.Clients {
			maps.Copy(limited, units(client.own.Tiers))
		}
		known := len(r.parts()) > 0
		for _, part := range r.parts() {
			if !part.limits.IsPreset() && len(part.limits.policy.Tiers) == 0 || part.limits.IsPreset() && d.hasProblemWithin(part.field+".with") {
				known = false // its problems are reported
				continue
			}
			own := part.charges()
			maps.Copy(costs, own)
			if !part.limits.IsPreset() {
				d.uncharged(part.field+".policy", part.Policy, units(part.limits.policy.Tiers), own)
			}
			for _, p := range part.limits.Policies() {
				maps.Copy(limited, units(p.Tiers))
			}
		}
		if whole = whole && known; !known {
			continue
		}
		maps.Copy(charged, costs)
		d.uncharged(field+".budget", r.Budget, units(r.budget.Tiers), costs)
		for _, unit := range slices.Sorted(maps.Keys(r.Cost)) {
			if !limited[unit] {
				d.bad(join(field+".cost", unit), "is a unit that nothing limits: add a budget, or a tier with unit=%s", unit)
			}
		}
	}
	for name, client := range c.Clients {
		for field, text := range map[string]string{"budget": client.Budget, "policy": client.Policy} {
			if p, err := throttle.ParsePolicy("", text); whole && err == nil {
				d.uncharged("clients."+name+"."+field, text, units(p.Tiers), charged)
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
		all[cmp.Or(t.Unit, algorithms.Requests)] = true
	}
	return all
}
