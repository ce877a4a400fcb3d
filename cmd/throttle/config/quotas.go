package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// Transports are the transports of all routes of a Config on one store. [Config.Transports] makes
// them, and Reload makes those of the next Config. They are safe for concurrent use.
type Transports struct {
	config *Config
	store  throttle.Store
	routes map[string]*quotas // by prefix
}

// Transports returns the transports of all routes; see [Config.Transport]. With a nil store, the
// quotas are those of the Transports.
func (c *Config) Transports(s throttle.Store) (*Transports, error) {
	if s == nil {
		s = &local.Store{Replan: true}
	}
	return (&opening{config: c, store: s}).all()
}

// Reload returns the transports of the next Config on the same store. What is charged stays charged.
// Requests that wait keep their places where the limits are the same, or those of a policy, a budget or
// a client have changed. Where a preset has changed, later requests have a queue of their own. Requests that
// wait for a pool may go to members that were added, and go to none that was removed, unless all were.
// A quota whose limits are the same keeps its Observer and its Alert.
//
// After an error nothing has changed. A shared store that does not answer until ctx ends gets the new
// limits with the next requests.
func (t *Transports) Reload(ctx context.Context, next *Config) (*Transports, error) {
	if next.Since(t.config).Store {
		return nil, errors.New("config: store differs: another store needs a new start, because quotas do not move")
	}
	if _, err := next.Transports(nil); err != nil { // on another store, so that nothing changes
		return nil, err
	}
	o := &opening{ctx: ctx, config: next, store: t.store, before: t}
	all, err := o.all()
	if err != nil {
		for _, undo := range slices.Backward(o.undo) {
			undo()
		}
		return nil, err
	}
	for _, finish := range o.finish {
		finish()
	}
	return all, nil
}

// Of returns the transport of a route, by its prefix, nil if no route has the prefix.
func (t *Transports) Of(prefix string) *throttle.Transport {
	if q := t.routes[prefix]; q != nil {
		return q.transport
	}
	return nil
}

// Clients returns the limiters of the clients' own limits, by the names of their policies, such as
// "client:web". Clients without a policy, a budget and a route have none.
func (t *Transports) Clients() map[string]*throttle.Limiter {
	all := make(map[string]*throttle.Limiter)
	for _, prefix := range slices.Sorted(maps.Keys(t.routes)) {
		for name, own := range t.routes[prefix].clients {
			if all[own.policy.Name] == nil {
				all[own.policy.Name] = own.group.For(name)
			}
		}
	}
	return all
}

// Known returns a limiter of the quotas in which every request of a route counts, to read their state
// before the first request and to pause them: those of its policy, its budget, and the outer scopes of
// its preset that have no key except the host. It is nil if there are none. Whole reports that the
// requests of the route count in no other quotas, except those of clients.
func (t *Transports) Known(prefix string) (l *throttle.Limiter, whole bool) {
	return t.routes[prefix].knownLimiter()
}

// PoolOf returns the pool in which all requests of a route wait, nil if the route has none, or has one for each
// model or another key.
func (t *Transports) PoolOf(prefix string) *throttle.Pool {
	if q := t.routes[prefix]; q != nil && q.pool != nil {
		return q.pool.whole()
	}
	return nil
}

// KnownOf is Known for the members of a route's pool.
func (t *Transports) KnownOf(prefix, member string) (l *throttle.Limiter, whole bool) {
	if q := t.routes[prefix]; q != nil {
		return q.members[member].knownLimiter()
	}
	return nil, false
}

func (q *quotas) knownLimiter() (l *throttle.Limiter, whole bool) {
	switch {
	case q == nil:
		return nil, false
	case q.pool != nil:
		return q.budget.limiter, true
	case q.preset != nil:
		return q.preset.known, q.preset.whole
	case q.limits.group != nil:
		return q.budget.limiter, false
	case q.nested != nil:
		return q.nested, true
	default:
		return q.limits.limiter, true
	}
}

// A quotas has what the requests of a route are charged in.
type quotas struct {
	transport *throttle.Transport

	limits  quota             // of a policy
	budget  quota             // around the policy
	nested  *throttle.Limiter // of the policy in the budget; nil if there is no budget, or there are keys
	preset  *presetQuotas     // with its budget; nil for a policy
	clients map[string]quota  // by client

	pool    *table             // nil without a pool
	members map[string]*quotas // of a pool, by name
}

// A presetQuotas has the quotas of a preset.
type presetQuotas struct {
	transport *throttle.Transport
	counts    func(*http.Request) bool // reports whether a request counts in any of them
	known     *throttle.Limiter        // see Transports.Known
	whole     bool
	madeOf    []any
}

// A quota is a Limiter or a Group, under a policy. The zero quota is none.
type quota struct {
	policy  throttle.Policy
	limiter *throttle.Limiter
	group   *throttle.Group
	maxKeys int // of the group
}

func (q quota) isZero() bool { return q.limiter == nil && q.group == nil }

// A grouping is how a Group keeps the quotas of its keys.
type grouping struct {
	maxKeys int
	shared  bool
}

func (q quota) setPolicy(ctx context.Context, p throttle.Policy) error {
	if q.group != nil {
		return q.group.SetPolicy(ctx, p)
	}
	return q.limiter.SetPolicy(ctx, p)
}

// undoTimeout bounds the time in which a change of a policy is taken back.
const undoTimeout = 5 * time.Second

// An opening opens the quotas of a Config, or continues those of the Config before.
type opening struct {
	ctx    context.Context // of changes
	config *Config
	store  throttle.Store
	before *Transports // nil if nothing was open
	undo   []func()    // what takes back the changes so far, the last one first
	finish []func()    // changes that cannot fail, after all others
}

// open opens the quotas of one route.
func (c *Config) open(r *Route, s throttle.Store) (*quotas, error) {
	return (&opening{config: c, store: s}).route(r)
}

// all opens the quotas of all routes.
func (o *opening) all() (*Transports, error) {
	t := &Transports{config: o.config, store: o.store, routes: make(map[string]*quotas)}
	for _, prefix := range slices.Sorted(maps.Keys(o.config.Routes)) {
		q, err := o.route(o.config.Routes[prefix])
		if err != nil {
			return nil, fmt.Errorf("config: routes.%s: %w", prefix, err)
		}
		t.routes[prefix] = q
	}
	return t, nil
}

// route opens the quotas of a route.
func (o *opening) route(r *Route) (q *quotas, err error) {
	was, before := new(quotas), (*Route)(nil)
	if o.before != nil && o.before.routes[r.prefix] != nil {
		was, before = o.before.routes[r.prefix], o.before.config.Routes[r.prefix]
	}
	q = &quotas{clients: make(map[string]quota)}
	if len(r.Pool) > 0 {
		err = o.pool(r, was, q)
	} else {
		err = o.limits(r, was, q)
	}
	if err != nil {
		return nil, err
	}
	estimated := make(map[string]bool) // by any route, because all routes share the limits of clients
	for _, r := range o.config.Routes {
		maps.Copy(estimated, r.estimated())
	}
	for name, client := range o.config.Clients {
		if len(client.own.Tiers) == 0 || !r.Allows(name) {
			continue
		}
		p := r.bound(o.config.hooked(client.own, estimated))
		p.IgnoreReports = true // the API knows nothing of clients
		if q.clients[name], err = o.quota(was.clients[name], p, &grouping{shared: true}); err != nil {
			return nil, err
		}
	}
	q.transport = q.assemble(r)
	return q, q.spend(r, before)
}

// limits opens the quotas of a route's preset or policy, and of its budget.
func (o *opening) limits(r *Route, was, q *quotas) (err error) {
	if r.limits.IsPreset() {
		q.preset, err = o.preset(r, was.preset)
		return err
	}
	return o.policy(r, was, q)
}

// pool opens the quotas of the members of a route, and of its budget.
func (o *opening) pool(r *Route, was, q *quotas) (err error) {
	q.members = make(map[string]*quotas)
	for _, m := range r.Pool {
		own, before := new(quotas), was.members[m.Name]
		if before == nil {
			before = new(quotas)
		}
		if err := o.limits(m.route, before, own); err != nil {
			return fmt.Errorf("member %s: %w", m.Name, err)
		}
		own.transport = own.assemble(m.route)
		q.members[m.Name] = own
	}
	if len(r.budget.Tiers) > 0 {
		p := o.config.budgetOf(r)
		p.IgnoreReports = true // they are about one member
		if q.budget, err = o.quota(was.budget, p, nil); err != nil {
			return err
		}
	}
	var change func()
	if q.pool, change, err = newTable(r, q.members, o.config.Observer, was.pool); err != nil {
		return err
	}
	o.finish = append(o.finish, change)
	return nil
}

// policy opens the quotas of a route's policy and of its budget.
func (o *opening) policy(r *Route, was, q *quotas) (err error) {
	var keys *grouping
	if r.Key.Header != "" {
		keys = &grouping{maxKeys: r.Key.MaxKeys}
	}
	if q.limits, err = o.quota(was.limits, o.config.hooked(r.limits.Policies()[0], nil), keys); err != nil || len(r.budget.Tiers) == 0 {
		return err
	}
	if q.budget, err = o.quota(was.budget, o.config.budgetOf(r), nil); err != nil || keys != nil {
		return err
	}
	if q.nested = was.nested; q.nested == nil || q.limits.limiter != was.limits.limiter || q.budget.limiter != was.budget.limiter {
		q.nested = q.limits.limiter.Within(q.budget.limiter)
	}
	return nil
}

// budgetOf returns the policy of a route's budget.
func (c *Config) budgetOf(r *Route) throttle.Policy {
	return r.bound(c.hooked(r.budget, r.estimated()))
}

// bound adds the bounds of the route to a policy of a budget or a client, which its requests wait for, too.
func (r *Route) bound(p throttle.Policy) throttle.Policy {
	own := throttle.Policy{MaxWait: r.MaxWait, MaxQueue: r.MaxQueue}
	if !r.limits.IsPreset() {
		own = r.limits.Policies()[0]
	}
	p.MaxWait, p.MaxQueue = tighter(p.MaxWait, own.MaxWait), tighter(p.MaxQueue, own.MaxQueue)
	if p.Aging == 0 {
		p.Aging = own.Aging
	}
	return p
}

// tighter returns the smaller one of two bounds, of which zero is none.
func tighter[T ~int | ~int64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// preset opens the quotas of a route's preset and of its budget, or continues those of before.
func (o *opening) preset(r *Route, was *presetQuotas) (*presetQuotas, error) {
	p, _ := r.limits.Provider()
	p.Observer = o.config.Observer
	q := &presetQuotas{counts: countsIn(p)}
	q.madeOf = []any{r.Name, r.limits.String(), r.limits.models, r.limits.host, r.MaxWait, r.MaxQueue, r.Key, r.budget.String()}
	if was != nil && reflect.DeepEqual(was.madeOf, q.madeOf) {
		return was, nil
	}
	if r.Key.Header != "" {
		p.Account, p.MaxKeys = r.Key.of, r.Key.MaxKeys
	}
	if len(r.budget.Tiers) > 0 && p.Account == nil {
		p.Scopes = append(p.Scopes, providers.Scope{Name: "budget", Policy: o.config.budgetOf(r)})
	}
	var err error
	if q.transport, err = p.Transport(o.store); err != nil {
		return nil, err
	}
	if len(r.budget.Tiers) > 0 && p.Account != nil {
		return q, o.budgetOfAccounts(r, q)
	}
	return q, o.know(r, p, q)
}

// budgetOfAccounts adds the budget of a route whose preset has quotas for each account. A scope of the
// preset would be a budget for each, too.
func (o *opening) budgetOfAccounts(r *Route, q *presetQuotas) error {
	g, err := throttle.NewGroup(o.config.budgetOf(r), o.store, throttle.GroupOptions{Shared: true})
	if err != nil {
		return err
	}
	const key = "budget"
	route := q.transport.Route
	q.transport.Route = func(req *http.Request) *throttle.Limiter {
		if l := route(req); l != nil {
			return g.Within(key, l)
		}
		return g.For(key)
	}
	q.known = g.For(key)
	return nil
}

// know finds the quotas of a preset in which every request of the route counts.
func (o *opening) know(r *Route, p providers.Provider, q *presetQuotas) error {
	req := &http.Request{Method: http.MethodGet, URL: r.Upstream(), Host: r.upstream.Host, Header: make(http.Header)}
	byHost := r.limits.preset.Name == "unknown" // and a route has one host
	keyed := func(scope providers.Scope) bool { return scope.Key != nil && !byHost }
	switch {
	case p.Account != nil:
		return nil
	case !slices.ContainsFunc(p.Scopes, keyed):
		q.known, q.whole = q.transport.Route(req), true
		return nil
	}
	for len(p.Scopes) > 0 && slices.ContainsFunc(p.Scopes, keyed) {
		p.Scopes = p.Scopes[1:]
	}
	if len(p.Scopes) == 0 {
		return nil
	}
	outer, err := p.Transport(o.store)
	if err == nil {
		q.known = outer.Route(req)
	}
	return err
}

// quota returns the quota of a policy: the one of before, under the policy, or if it is another one or
// its store does not answer, a new one. Without keys, it is a Limiter.
func (o *opening) quota(was quota, p throttle.Policy, keys *grouping) (quota, error) {
	q := was
	q.policy = p
	if !was.isZero() && was.policy.Name == p.Name && (keys == nil) == (was.group == nil) && (keys == nil || keys.maxKeys == was.maxKeys) {
		if was.policy.String() == p.String() {
			return was, nil
		}
		if err := was.setPolicy(o.ctx, p); err == nil {
			o.undo = append(o.undo, func() {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), undoTimeout)
				defer cancel()
				_ = was.setPolicy(ctx, was.policy)
			})
			return q, nil
		}
	}
	var err error
	if q.limiter, q.group = nil, nil; keys == nil {
		q.limiter, err = throttle.New(p, o.store)
		o.undoOpening(p.Name)
		return q, err
	}
	q.maxKeys = keys.maxKeys
	if q.group, err = throttle.NewGroup(p, o.store, throttle.GroupOptions{MaxKeys: keys.maxKeys, Shared: keys.shared}); err != nil {
		return quota{}, err
	}
	return q, nil
}

// undoOpening records how to undo the opening of a quota, which in this process gives an open quota of
// the name other limits.
func (o *opening) undoOpening(name string) {
	if o.before == nil {
		return
	}
	for _, q := range o.before.routes {
		open := []quota{q.limits, q.budget}
		for _, m := range q.members {
			open = append(open, m.limits)
		}
		for _, was := range open {
			if was.limiter != nil && was.policy.Name == name {
				o.undo = append(o.undo, func() { _, _ = throttle.New(was.policy, o.store) })
				return
			}
		}
	}
}

// assemble returns the transport of a route with its quotas.
func (q *quotas) assemble(r *Route) *throttle.Transport {
	t := new(throttle.Transport)
	counts := func(*http.Request) bool { return true }
	switch {
	case q.pool != nil:
		t = q.pool.around(q.budget.limiter)
	case q.preset != nil:
		*t, counts = *q.preset.transport, q.preset.counts
		t.AttemptTimeout = r.Timeout
	default:
		t.Route = q.routeOfPolicy(r.Key)
		t.AttemptTimeout = r.Timeout
		t.Profile = namedLimits(r.limits)
	}
	clientUnits := make(map[string]map[string]bool)
	for name, client := range q.clients {
		clientUnits[name] = units(client.policy.Tiers)
	}
	if route := t.Route; len(q.clients) > 0 {
		t.Route = func(req *http.Request) *throttle.Limiter {
			l, name := route(req), ClientOf(req.Context())
			switch g := q.clients[name].group; {
			case g == nil:
				return l
			case l == nil:
				return g.For(name)
			default:
				return g.Within(name, l)
			}
		}
	}
	if t.Cost = r.costs(t.Cost, counts, clientUnits); q.pool != nil {
		t.Cost = counted(t.Cost, units(r.budget.Tiers), clientUnits)
	}
	return t
}

// namedLimits returns the profile of a policy that follows what responses name, and nil for others. It reads
// fields that have one meaning at every API: those of the IETF drafts, and limits. A limit without a window
// is of the tier that can follow it.
func namedLimits(l Limits) *answers.Profile {
	follows := func(t throttle.Tier) bool { return t.Follows() }
	if !slices.ContainsFunc(l.Policies(), func(p throttle.Policy) bool { return slices.ContainsFunc(p.Tiers, follows) }) {
		return nil
	}
	profile := answers.Common()
	profile.Quotas = ietf.Profile().Quotas
	for _, header := range []string{"X-RateLimit-Limit", "X-Rate-Limit-Limit"} {
		profile.Quotas = append(profile.Quotas, answers.Quota{Limit: answers.Field{Header: header}})
	}
	return &profile
}

// routeOfPolicy returns the function that returns the limiter of a request under a policy.
func (q *quotas) routeOfPolicy(key Key) func(*http.Request) *throttle.Limiter {
	l, keys, budget := q.limits.limiter, q.limits.group, q.budget.limiter
	if q.nested != nil {
		l = q.nested
	}
	return func(req *http.Request) *throttle.Limiter {
		switch {
		case keys == nil:
			return l
		case budget == nil:
			return keys.For(key.of(req))
		default:
			return keys.Within(key.of(req), budget)
		}
	}
}

// estimated returns the units that the limits of the route estimate.
func (r *Route) estimated() map[string]bool {
	all := make(map[string]bool)
	for _, part := range r.parts() {
		for _, p := range part.limits.Policies() {
			for _, t := range p.Tiers {
				if t.Estimated {
					all[t.Unit] = true
				}
			}
		}
	}
	if r.spending != nil {
		all[throttle.Nanodollars] = true
	}
	return all
}

// hooked returns a policy with the Alert and the Observer of the Config. Units that a preset
// estimates are estimates in a budget, too.
func (c *Config) hooked(p throttle.Policy, estimated map[string]bool) throttle.Policy {
	p.Alert, p.Observer = c.Alert, c.Observer
	p.Tiers = slices.Clone(p.Tiers)
	for i, t := range p.Tiers {
		p.Tiers[i].Estimated = t.Estimated || estimated[t.Unit]
	}
	return p
}

// countsIn returns a function that reports whether a request counts in any scope of a provider.
func countsIn(p providers.Provider) func(*http.Request) bool {
	scopes := slices.Clone(p.Scopes)
	return func(req *http.Request) bool {
		return slices.ContainsFunc(scopes, func(s providers.Scope) bool {
			if s.Key == nil {
				return true
			}
			_, counts := s.Key(req)
			return counts
		})
	}
}

// costs returns the Cost of the route's transport: what the preset charges, and r.Cost, in the units
// that a quota of the request counts.
func (r *Route) costs(preset func(*http.Request) throttle.Cost, counts func(*http.Request) bool, clients map[string]map[string]bool) func(*http.Request) throttle.Cost {
	outside := units(r.budget.Tiers) // count every request
	if !r.limits.IsPreset() {
		maps.Copy(outside, units(r.limits.policy.Tiers))
	}
	if len(r.Cost) == 0 && len(r.budget.Tiers) == 0 && len(clients) == 0 {
		return preset
	}
	inside := maps.Clone(outside)
	for _, p := range r.limits.Policies() {
		maps.Copy(inside, units(p.Tiers))
	}
	return func(req *http.Request) throttle.Cost {
		cost, counted := throttle.Cost{}, outside
		if preset != nil && counts(req) {
			counted = inside
			maps.Copy(cost, preset(req))
		}
		client := clients[ClientOf(req.Context())]
		for unit, n := range r.Cost {
			if _, named := cost[unit]; unit == algorithms.Requests && !named {
				cost[unit] = 1
			}
			if counted[unit] || client[unit] {
				cost[unit] += n
			}
		}
		return cost
	}
}

// counted returns a cost without the units that neither all requests nor those of their client count.
func counted(cost func(*http.Request) throttle.Cost, all map[string]bool, clients map[string]map[string]bool) func(*http.Request) throttle.Cost {
	if cost == nil {
		return nil
	}
	return func(req *http.Request) throttle.Cost {
		c, client := cost(req), clients[ClientOf(req.Context())]
		maps.DeleteFunc(c, func(unit string, _ int64) bool { return unit != algorithms.Requests && !all[unit] && !client[unit] })
		return c
	}
}
