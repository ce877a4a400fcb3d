package providers

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/prompt"
)

// A router finds the quotas of a request.
type router struct {
	hosts            []string
	scopes           []routedScope              // inner first
	account, address func(*http.Request) string // Provider.Account and Provider.Address
	tokens           func(string) int64         // Provider.Tokens
	counts           [pers]bool                 // what scopes count
	apart            [pers][pers]bool           // Provider.liesInSeveral, of the inner and the outer Per
}

// A routedScope is a scope with its quotas.
type routedScope struct {
	name   string
	policy string
	per    Per
	shared bool // Scope.Shared
	apart  bool // a key lies inside several quotas of outer scopes
	key    func(*http.Request) (string, bool)
	quotas quotas
}

// quotas are the quotas of a scope. The limits of a key may differ from those of another.
type quotas interface {
	// of returns the group of a key, and the key there.
	of(key string) (*throttle.Group, string)
}

// A uniform is a scope whose keys all have the same limits.
type uniform struct{ *throttle.Group }

func (u uniform) of(key string) (*throttle.Group, string) { return u.Group, key }

// router returns a router without scopes.
func (p Provider) router() router {
	r := router{hosts: p.Hosts, account: p.Account, address: p.Address, tokens: p.Tokens}
	for inner := range r.apart {
		for outer := range r.apart[inner] {
			r.apart[inner][outer] = p.liesInSeveral(Per(inner), Per(outer))
		}
	}
	return r
}

const (
	defaultMaxKeys = 100_000 // of Provider.MaxKeys
	longKey        = 200     // bytes of a key or an account's name from which on only a hash is kept
)

// open returns the scope with an index with its quotas on a store.
func (p Provider) open(index int, store throttle.Store) (routedScope, error) {
	scope, outer := p.Scopes[index], p.Scopes[index+1:]
	switch {
	case scope.Shared && len(outer) == 0:
		return routedScope{}, errors.New("Shared is true, but no scope is around it: list it before those that it lies in")
	case scope.Per < 0 || int(scope.Per) >= pers:
		return routedScope{}, fmt.Errorf("Per is %d: use PerAccount, PerAddress or PerToken", scope.Per)
	}
	scope.Policy.Tiers = scope.tiers()
	if scope.Policy.Name == "" {
		scope.Policy.Name = p.Name + "/" + scope.Name
	}
	if scope.Policy.Observer == nil {
		scope.Policy.Observer = p.Observer
	}
	o := throttle.GroupOptions{MaxKeys: p.MaxKeys, Shared: scope.Shared}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	for _, around := range outer {
		if p.liesInSeveral(scope.Per, around.Per) {
			o.Shared, o.Blamed = true, !scope.Shared
		}
	}
	r := routedScope{name: scope.Name, policy: scope.Policy.Name, per: scope.Per, shared: scope.Shared, apart: o.Shared, key: scope.Key}
	if scope.Models != nil && scope.model != nil {
		r.key = func(req *http.Request) (string, bool) {
			if _, counts := scope.Key(req); !counts {
				return "", false
			}
			return scope.model(req), true
		}
	}
	var err error
	if scope.Models != nil {
		r.quotas, err = scope.Models.open(scope.Policy, store, o)
	} else {
		var g *throttle.Group
		g, err = throttle.NewGroup(scope.Policy, store, o)
		r.quotas = uniform{g}
	}
	return r, err
}

// tiers returns the tiers of the Policy. One whose limit the caller has changed follows no response, unless
// the caller has changed its Follow, too.
func (s *Scope) tiers() []throttle.Tier {
	tiers := slices.Clone(s.Policy.Tiers)
	for i := range tiers {
		t := &tiers[i]
		follows := func(p throttle.Tier) bool { return t.Follows() && p.Unit == t.Unit && p.Follow == t.Follow }
		is := func(p throttle.Tier) bool {
			return follows(p) && p.Limit == t.Limit && p.Window == t.Window && p.Burst == t.Burst
		}
		if slices.ContainsFunc(s.preset, follows) && !slices.ContainsFunc(s.preset, is) {
			t.Follow = throttle.Follow{}
		}
	}
	return tiers
}

// liesInSeveral reports whether requests that one quota counts together may count in several quotas
// around it.
func (p Provider) liesInSeveral(inner, outer Per) bool {
	switch {
	case inner == outer:
		return false
	case outer == PerAddress:
		return p.Address != nil
	case outer == PerToken:
		return true
	}
	return inner == PerAddress && p.Account != nil // a token belongs to one account
}

// route returns the limiter of the innermost scope in which the request counts. It is inside the
// limiters of the outer scopes. If the request counts in no scope, route returns nil.
//
// An inner quota belongs to one outer quota, so its key begins with the account, address or token that
// it counts and with the keys of the outer scopes. Before that it has the whole key of the outermost
// quota, by which package distributed keeps both in one slot of a Cluster. The key of a quota inside
// several others begins with what it counts and with the keys of the outer scopes that count the same.
func (r *router) route(req *http.Request) (l *throttle.Limiter) {
	if !serves(r.hosts, hostOf(req)) {
		return nil
	}
	req = prompt.WithTokens(req, r.tokens)
	owners, outermost := r.owners(req), ""
	names := owners // and the keys of outer scopes
	for i := len(r.scopes) - 1; i >= 0; i-- {
		scope, key := &r.scopes[i], ""
		if scope.key != nil {
			var counts bool
			if key, counts = scope.key(req); !counts {
				continue
			}
		}
		group, key := scope.quotas.of(key)
		name := fmt.Sprintf("%s=%q ", scope.name, short(key))
		for per := range names {
			if r.counts[per] && !r.apart[per][scope.per] {
				names[per] += name
			}
		}
		switch key = names[scope.per]; {
		case scope.shared:
			key = owners[scope.per] + name
		case !scope.apart:
			key = outermost + key
		}
		if l == nil {
			l = group.For(key)
			outermost = scope.policy + "\x00" + key + "\x01"
		} else {
			l = group.Within(key, l)
		}
	}
	return l
}

// owners returns the beginning of the keys of the quotas in which a request counts.
func (r *router) owners(req *http.Request) (names [pers]string) {
	if r.account != nil {
		account := fmt.Sprintf("account=%q ", short(r.account(req)))
		names[PerAccount], names[PerToken] = account, account
	}
	if r.address != nil {
		names[PerAddress] = fmt.Sprintf("address=%q ", short(r.address(req)))
	}
	if r.counts[PerToken] {
		names[PerToken] += fmt.Sprintf("token=%q ", anonymous(req.Header.Get("Authorization")))
	}
	return names
}

// short returns a text that a request names, or a name of limited length for it, which is no short
// text.
func short(text string) string {
	const long = "#"
	if len(text) > longKey || strings.HasPrefix(text, long) {
		return long + anonymous(text)
	}
	return text
}
