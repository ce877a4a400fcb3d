package providers

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Auto is a client for a program that talks to many APIs. It recognizes an API by the host of a
// request, and applies its preset:
//
//	client, err := providers.Auto{}.Client(nil)
//
// The presets are those whose constructors have no parameters. Limits that depend on the account
// must be told, and any preset may be replaced:
//
//	openai, stripe := providers.OpenAI(5_000, 200_000), providers.Stripe()
//	stripe.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerSecond(500)}
//	client, err := providers.Auto{Providers: []providers.Provider{openai, stripe}}.Client(store)
//
// Where APIs share a host, a request belongs to the first one in which it counts: Providers come
// before presets, and hosts before "*.example.com".
//
// A request to any other host, and to an API whose limits are not told, has no limit. A refusal
// pauses all requests to its host, and so does a response that says that nothing is left, until the
// reset that it names.
type Auto struct {
	// Providers are APIs with the caller's limits. They replace presets with the same Name.
	Providers []Provider

	// Profile describes the responses of hosts that belong to no API. If nil, a 429, and a 503 with
	// Retry-After, are refusals, and nothing else is read.
	Profile *answers.Profile
}

// Client returns a client for all APIs. See Provider.Client.
func (a Auto) Client(s throttle.Store) (*http.Client, error) {
	t, err := a.Transport(s)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

// Transport returns a transport for all APIs. With a nil store the transport has quotas of its own.
// To replace http.DefaultTransport, set its Base. The error names every scope with an invalid
// policy, and a Name that two Providers share.
func (a Auto) Transport(s throttle.Store) (*throttle.Transport, error) {
	var d directory
	names := make(map[string]bool)
	for _, p := range a.Providers {
		if names[p.Name] {
			return nil, fmt.Errorf("providers: two Providers have the name %q: give each account and API a Name of its own", p.Name)
		}
		names[p.Name] = true
		if err := d.add(p, s); err != nil {
			return nil, err
		}
	}
	for _, preset := range presets() {
		p := preset.example()
		if names[p.Name] {
			continue
		}
		if preset.New == nil {
			p = unlimited(p.Name, p.Profile, p.Hosts...)
		}
		if err := d.add(p, s); err != nil {
			return nil, err
		}
	}
	other := answers.Profile{}
	if a.Profile != nil {
		other = *a.Profile
	}
	var err error
	if d.other, err = newAPI(unlimited("auto", other), s); err != nil {
		return nil, err
	}
	return &throttle.Transport{Route: d.route, Cost: d.cost, Settle: d.settle, SendBy: d.sendBy, ProfileFor: d.profile}, nil
}

// unlimited returns a provider without limits, whose responses pause the requests to a host.
func unlimited(name string, profile answers.Profile, hosts ...string) Provider {
	host := some("host", "", func(req *http.Request) (string, bool) { return strings.ToLower(req.URL.Host), true }, noLimit)
	return Provider{Name: name, Hosts: hosts, Profile: profile, Scopes: []Scope{host}, Cost: costsNothing}
}

// A directory finds the API of a request.
type directory struct {
	apis  map[string][]*api // by host, by what follows the * of a host, such as ".example.com", and by "" for every host
	other *api              // of hosts that are in no Provider
}

// An api is a provider with its quotas.
type api struct {
	*throttle.Transport
	scopes []Scope
	serves func(host string) bool
}

func newAPI(p Provider, s throttle.Store) (*api, error) {
	t, err := p.Transport(s)
	return &api{t, p.Scopes, (&router{hosts: p.Hosts}).serves}, err
}

func (d *directory) add(p Provider, s throttle.Store) error {
	a, err := newAPI(p, s)
	if err != nil {
		return err
	}
	if d.apis == nil {
		d.apis = make(map[string][]*api)
	}
	hosts := p.Hosts
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, host := range hosts {
		if _, after, wild := strings.Cut(host, "*"); wild {
			host = after
		}
		d.apis[host] = append(d.apis[host], a)
	}
	return nil
}

// find returns the API of a request: the first one in which the request counts. If it counts in
// none, the first one of its host.
func (d *directory) find(req *http.Request) *api {
	host := strings.ToLower(req.URL.Hostname())
	found := d.apis[host]
	for rest := host; rest != ""; {
		if _, below, ok := strings.Cut(rest, "."); ok {
			rest = rest[len(rest)-len(below)-1:]
			found = join(found, d.apis[rest])
			rest = below
		} else {
			rest = ""
		}
	}
	found = join(found, d.apis[""])
	if other := func(a *api) bool { return !a.serves(host) }; slices.ContainsFunc(found, other) {
		found = slices.DeleteFunc(slices.Clone(found), other)
	}
	switch len(found) {
	case 0:
		return d.other
	case 1:
		return found[0]
	}
	for _, a := range found {
		if a.counts(req) {
			return a
		}
	}
	return found[0]
}

// join returns the APIs of both lists, and shares memory only if one of them is empty.
func join(a, b []*api) []*api {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	return append(a[:len(a):len(a)], b...)
}

// counts reports whether a request counts in any scope. Outer scopes come first, because the keys
// of inner ones may be in the body.
func (a *api) counts(req *http.Request) bool {
	for i := len(a.scopes) - 1; i >= 0; i-- {
		if a.scopes[i].Key == nil {
			return true
		}
		if _, counts := a.scopes[i].Key(req); counts {
			return true
		}
	}
	return false
}

func (d *directory) route(req *http.Request) *throttle.Limiter { return d.find(req).Route(req) }

func (d *directory) profile(req *http.Request) *answers.Profile { return d.find(req).Profile }

func (d *directory) cost(req *http.Request) throttle.Cost {
	if cost := d.find(req).Cost; cost != nil {
		return cost(req)
	}
	return nil
}

func (d *directory) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	if settle := d.find(req).Settle; settle != nil {
		return settle(req)
	}
	return nil
}

func (d *directory) sendBy(req *http.Request) (by time.Time) {
	if of := d.find(req).SendBy; of != nil {
		by = of(req)
	}
	return by
}
