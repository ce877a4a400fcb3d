package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/host"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
	"github.com/redis/go-redis/v9"
)

// OpenStore opens the store of the file: Redis, a file, or without either the memory of this
// process. Close the closer after the last request. It returns unused reservations to Redis, for at
// most five seconds. OpenStore does not connect to Redis: without a server, requests wait.
//
// A store outlives a Config: pass it to the Transport of the next one, and what is charged stays
// charged. See [Changes.Store].
func (c *Config) OpenStore() (throttle.Store, io.Closer, error) {
	switch {
	case !c.Store.Redis.IsZero():
		o, err := redis.ParseURL(c.Store.Redis.Reveal())
		if err != nil { // the error has the URL, and so the password
			return nil, nil, errors.New("config: store.redis is not the URL of a Redis server")
		}
		rdb := redis.NewClient(o)
		s := distributed.New(rdb, distributed.Options{Prefix: c.Store.Prefix})
		return s, closer(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			return errors.Join(s.Flush(ctx), rdb.Close())
		}), nil
	case c.Store.File != "":
		s, err := host.Open(c.Store.File)
		if err != nil {
			return nil, nil, fmt.Errorf("config: store.file: %w", err)
		}
		return s, s, nil
	}
	return &local.Store{Replan: true}, closer(func() error { return nil }), nil
}

type closer func() error

func (c closer) Close() error { return c() }

// Transport returns a transport that keeps to the limits of a route: those of its preset or policy,
// its budget, and the budget of the client of a request. The route is named by its prefix, such as
// "/openai". The transport takes requests to the API itself. It neither sets headers nor removes
// them: do so before, because some presets read the account of a request from its headers. Its Base
// is nil, which Base may fill, and its AttemptTimeout is the route's Timeout.
//
// With a nil store, the transport has quotas of its own. Then a budget of a client counts the
// requests of this transport alone.
func (c *Config) Transport(prefix string, s throttle.Store) (*throttle.Transport, error) {
	r := c.Routes[prefix]
	if r == nil {
		return nil, fmt.Errorf("config: no route has the prefix %q: the routes are %s", prefix, list(slices.Sorted(maps.Keys(c.Routes)), "and"))
	}
	t, err := c.transport(r, s)
	if err != nil {
		return nil, fmt.Errorf("config: routes.%s: %w", prefix, err)
	}
	return t, nil
}

func (c *Config) transport(r *Route, s throttle.Store) (*throttle.Transport, error) {
	if s == nil {
		s = local.New()
	}
	budget := c.hooked(r.budget, r.estimated())
	t := &throttle.Transport{}
	counts := func(*http.Request) bool { return true }
	if p, ok := r.limits.Provider(); ok {
		p.Observer = c.Observer
		counts = countsIn(p)
		if len(budget.Tiers) > 0 {
			p.Scopes = append(p.Scopes, providers.Scope{Name: "budget", Policy: budget})
		}
		var err error
		if t, err = p.Transport(s); err != nil {
			return nil, err
		}
	} else {
		l, err := throttle.New(c.hooked(r.limits.Policies()[0], nil), s)
		if err != nil {
			return nil, err
		}
		if len(budget.Tiers) > 0 {
			outer, err := throttle.New(budget, s)
			if err != nil {
				return nil, err
			}
			l = l.Within(outer)
		}
		t.Route = func(*http.Request) *throttle.Limiter { return l }
	}
	t.AttemptTimeout = r.Timeout
	estimated := make(map[string]bool) // by any route, because all routes share the budgets of clients
	for _, r := range c.Routes {
		maps.Copy(estimated, r.estimated())
	}
	budgets := make(map[string]*throttle.Group)
	clientUnits := make(map[string]map[string]bool)
	for name, client := range c.Clients {
		if len(client.budget.Tiers) == 0 || !r.Allows(name) {
			continue
		}
		g, err := throttle.NewGroup(c.hooked(client.budget, estimated), s)
		if err != nil {
			return nil, err
		}
		g.Shared = true
		budgets[name], clientUnits[name] = g, units(client.budget.Tiers)
	}
	if len(budgets) > 0 {
		route := t.Route
		t.Route = func(req *http.Request) *throttle.Limiter {
			l, name := route(req), ClientOf(req.Context())
			switch g := budgets[name]; {
			case g == nil:
				return l
			case l == nil:
				return g.For(name)
			default:
				return g.Within(name, l)
			}
		}
	}
	t.Cost = r.costs(t.Cost, counts, clientUnits)
	return t, nil
}

// estimated returns the units that the limits of the route estimate.
func (r *Route) estimated() map[string]bool {
	all := make(map[string]bool)
	for _, p := range r.limits.Policies() {
		for _, t := range p.Tiers {
			if t.Estimated {
				all[t.Unit] = true
			}
		}
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

// Base returns a new http.Transport with the Timeouts, for the Base of transports.
func (c *Config) Base() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{Timeout: c.Timeouts.Connect, KeepAlive: 30 * time.Second}
	t.DialContext = dialer.DialContext
	t.TLSHandshakeTimeout = c.Timeouts.Connect
	t.ResponseHeaderTimeout = c.Timeouts.ResponseHeader
	return t
}

type clientKey struct{}

// WithClient returns a context whose requests are of a client of the file, by its name. A Transport
// then counts them in the budget of the client. The class is the caller's to set; see
// throttle.WithClass.
func WithClient(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, name)
}

// ClientOf returns the name that WithClient has set, or "".
func ClientOf(ctx context.Context) string {
	name, _ := ctx.Value(clientKey{}).(string)
	return name
}
