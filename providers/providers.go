// Package providers has what well-known APIs allow, ready to use: their limits and how
// they count them, what a request costs, whose quota it counts in, and what their
// responses tell of all that.
//
//	client, err := providers.GitHub().Client(nil)
//
// is an http.Client that keeps to GitHub's limits, for GitHub's SDK or without one.
//
// Everything is a value to be changed before it is used, because limits depend on the
// account and change with time: each [Scope] tells the page that it was taken from and
// the day on which that was read.
//
//	p := providers.Stripe()
//	p.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerSecond(500)}
//	client, err := p.Client(store)
//
// With a nil store a quota is the client's own, in this process. On a shared store all
// that use the same provider share its quotas: two accounts on one store must differ in
// Provider.Name.
//
// Where a cost or a key stands in a request's body, that is read through
// Request.GetBody, which net/http sets for bodies of bytes and strings, and no further
// than 64 KB; each provider says what it takes where it can't be read.
package providers

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// A Provider is an API with limits. Change its fields before Transport or Client is
// called; a Provider from one of the constructors shares nothing with another.
type Provider struct {
	Name    string
	Scopes  []Scope                           // inner first: a request is admitted by all in which it counts, or charged in none
	Cost    func(*http.Request) throttle.Cost // what a request costs, in units that some scope counts in which it counts. If nil, one request
	Profile answers.Profile                   // what its responses tell
	Hosts   []string                          // requests to other hosts are not limited; "*.example.com" is all below example.com. If empty, every host is the provider's

	// SendBy returns the latest instant at which a request is worth sending, by the clock of
	// this machine: the end of its signature. A zero time means no bound. If nil, none.
	SendBy func(*http.Request) time.Time
}

// A Scope is one quota that requests count in, or one for each key. Scopes nest: a key
// has a quota of its own inside each quota of the scopes around it: "general" in one team
// is not "general" in another. A limit that lies neither inside another nor around it, as
// an object's beside an endpoint's, is no Scope.
type Scope struct {
	Name   string                                        // names the quota beside the provider's name
	Policy throttle.Policy                               // what the provider allows. If its Name is empty, the names of provider and scope
	Key    func(*http.Request) (key string, counts bool) // whether a request counts here, and in whose quota: a shop's, a channel's, a model's; never a credential as it is. If nil, every request, in one quota
	Page   string                                        // where the provider says so
	Read   string                                        // the day on which that was read, as 2006-01-02
}

// Scope returns the scope of that name, to be changed, or nil if there is none.
func (p Provider) Scope(name string) *Scope {
	for i := range p.Scopes {
		if p.Scopes[i].Name == name {
			return &p.Scopes[i]
		}
	}
	return nil
}

// Client returns a client that keeps to the provider's limits. Its requests block as
// those of a [throttle.Transport] do. With a nil store quotas are its own.
func (p Provider) Client(s throttle.Store) (*http.Client, error) {
	t, err := p.Transport(s)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

// Transport returns a transport that keeps to the provider's limits; set its Base to
// send through another than http.DefaultTransport. The error names every scope whose
// policy is not valid.
func (p Provider) Transport(s throttle.Store) (*throttle.Transport, error) {
	r := router{hosts: p.Hosts}
	var errs []error
	for _, scope := range p.Scopes {
		if scope.Policy.Name == "" {
			scope.Policy.Name = p.Name + "/" + scope.Name
		}
		g, err := throttle.NewGroup(scope.Policy, s)
		if err != nil {
			errs = append(errs, fmt.Errorf("providers: %s: scope %q: %w", p.Name, scope.Name, err))
		}
		r.scopes = append(r.scopes, routed{scope.Name, g, scope.Key})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t := &throttle.Transport{Route: r.route, Cost: p.Cost, Profile: &p.Profile}
	if p.SendBy != nil {
		t.SendBy = func(req *http.Request) (by time.Time) {
			if r.serves(req.URL.Hostname()) {
				by = p.SendBy(req)
			}
			return by
		}
	}
	return t, nil
}

// A router finds the quotas of a request.
type router struct {
	hosts  []string
	scopes []routed // inner first
}

type routed struct {
	name  string
	group *throttle.Group
	key   func(*http.Request) (string, bool)
}

// route is the limiter of the innermost scope in which the request counts, inside
// those of the others; nil if it counts in none. An inner quota lies in one outer quota
// only, so its key begins with the keys of those around it.
func (r *router) route(req *http.Request) (l *throttle.Limiter) {
	if !r.serves(req.URL.Hostname()) {
		return nil
	}
	path := ""
	for i := len(r.scopes) - 1; i >= 0; i-- {
		scope, key := &r.scopes[i], ""
		if scope.key != nil {
			var counts bool
			if key, counts = scope.key(req); !counts {
				continue
			}
		}
		path += fmt.Sprintf("%s=%q ", scope.name, key)
		if l == nil {
			l = scope.group.For(path)
		} else {
			l = scope.group.Within(path, l)
		}
	}
	return l
}

func (r *router) serves(host string) bool {
	host = strings.ToLower(host)
	for _, h := range r.hosts {
		below, wild := strings.CutPrefix(h, "*")
		if h == host || wild && strings.HasSuffix(host, below) {
			return true
		}
	}
	return len(r.hosts) == 0
}
