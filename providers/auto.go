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
// The presets are those whose constructors have no parameters. An API whose limits depend on the
// account needs the caller's numbers, and any preset may be replaced:
//
//	openai, stripe := providers.OpenAI(5_000, 200_000), providers.Stripe()
//	stripe.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerSecond(500)}
//	client, err := providers.Auto{Providers: []providers.Provider{openai, stripe}}.Client(store)
//
// Where APIs share a host, a request belongs to the first one in which it counts: hosts come before
// "*.example.com", and Providers before presets. A Provider without Hosts comes last.
//
// A request to any other host has no limit, nor has a request to an API for which the caller has
// given no numbers. With Unknown() among the Providers, these hosts learn their limits. A refusal pauses all requests to its host. So does a response that reports a
// quota with nothing left and its reset, if the profile reads quotas.
type Auto struct {
	// Providers are APIs with the caller's limits. They replace presets with the same Name.
	Providers []Provider

	// Profile describes the responses of hosts that belong to no API. If nil, answers.Common.
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
	d := directory{limited: make(apis), untold: make(apis)}
	names := make(map[string]bool)
	for _, p := range a.Providers {
		if names[p.Name] {
			return nil, fmt.Errorf("providers: two Providers have the name %q: give each account and API a Name of its own", p.Name)
		}
		names[p.Name] = true
		if err := d.limited.add(p, s); err != nil {
			return nil, err
		}
	}
	for _, preset := range Presets() {
		for _, p := range preset.apis() {
			to := d.limited
			if names[p.Name] {
				continue
			}
			if preset.New == nil {
				p, to = unlimited(p.Name, p.Profile, p.Hosts...), d.untold
			}
			if err := to.add(p, s); err != nil {
				return nil, err
			}
		}
	}
	profile := answers.Common()
	if a.Profile != nil {
		profile = *a.Profile
	}
	aws := unlimited("aws", AWSProfile(), "*.amazonaws.com")
	aws.SendBy = AWSSendBy
	for _, p := range []Provider{aws, unlimited("auto", profile)} {
		if err := d.untold.add(p, s); err != nil {
			return nil, err
		}
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
	limited apis // with limits
	untold  apis // without; the last one is for every host
}

// An api is a provider with its quotas.
type api struct {
	*throttle.Transport
	scopes []Scope
	hosts  []string
}

// apis are APIs by host, and by what follows the last * of a host, from its first point on, such as
// ".example.com". If nothing does, that is "".
type apis map[string][]*api

func (m apis) add(p Provider, s throttle.Store) error {
	t, err := p.Transport(s)
	if err != nil {
		return err
	}
	hosts := p.Hosts
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, host := range hosts {
		host = strings.ToLower(host)
		if wild := strings.LastIndexByte(host, '*'); wild >= 0 {
			_, after, found := strings.Cut(host[wild+1:], ".")
			if host = ""; found {
				host = "." + after
			}
		}
		m[host] = append(m[host], &api{t, p.Scopes, p.Hosts})
	}
	return nil
}

// of returns the APIs at a host, the nearest ones first, without those below "".
func (m apis) of(host string) []*api {
	found := m[host]
	for rest := host; ; {
		dot := strings.IndexByte(rest, '.')
		if dot < 0 {
			break
		}
		if more := m[rest[dot:]]; len(found) == 0 {
			found = more
		} else if len(more) > 0 {
			found = slices.Concat(found, more)
		}
		rest = rest[dot+1:]
	}
	return serving(found, host)
}

// serving returns the APIs at a host.
func serving(found []*api, host string) []*api {
	if others := func(a *api) bool { return !serves(a.hosts, host) }; slices.ContainsFunc(found, others) {
		found = slices.DeleteFunc(slices.Clone(found), others)
	}
	return found
}

// find returns the API of a request: the first one in which the request counts. If it counts in
// none, it is the first one of the host.
func (d *directory) find(req *http.Request) *api {
	host := hostOf(req)
	found, every := d.limited.of(host), serving(d.limited[""], host)
	if len(found) == 1 && len(every) == 0 {
		return found[0]
	}
	for _, list := range [][]*api{found, every} {
		for _, a := range list {
			if a.counts(req) {
				return a
			}
		}
	}
	if len(found) == 0 {
		found = d.untold.of(host)
	}
	if len(found) == 0 {
		found = d.untold[""]
	}
	return found[0]
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
