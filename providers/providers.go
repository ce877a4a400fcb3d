// Package providers contains the limits of well-known APIs: how each API counts, what a request
// costs, which quota it counts in, and what responses report.
//
//	client, err := providers.GitHub().Client(nil)
//
// is an http.Client that keeps to GitHub's limits, with or without GitHub's SDK.
//
// Limits depend on the account and change with time, so a [Provider] is a value that you may change
// before you use it. Each [Scope] names the page of its limits and the day when the page was read.
//
//	p := providers.Stripe()
//	p.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerSecond(500)}
//	client, err := p.Client(store)
//
// A program that talks to many APIs uses [Auto], which recognizes an API by the host of a request.
// [Lookup] returns the presets of a host, and [Presets] all of them.
//
// [Provider.Tokens] may be a tokenizer, for exact counts where a language model's API limits tokens.
//
// [Prices] lists what models cost, each with the page of its provider and the day when it was read.
// [PriceList.Find] returns the price of a model, [Price.Nanodollars] what the tokens of a response cost,
// and [ReadPrices] reads prices of your own.
//
// With a nil store each client has quotas of its own, in this process. On a shared store all clients
// of a provider share its quotas. With [Provider.Account] each account has quotas of its own, and
// what the API limits for an IP address stays common to all accounts. So five accounts behind one
// address, with a client for each, need one store:
//
//	store := local.New() // or distributed.New, for a fleet
//	for _, account := range accounts {
//		p := providers.Binance()
//		p.Account = func(*http.Request) string { return account }
//		if clients[account], err = p.Client(store); err != nil {
//			return err
//		}
//	}
//
// Providers with different values of Provider.Name share nothing, not even the limits of an address.
//
// Some providers read a cost or a key from the request's body. They use Request.GetBody, which
// net/http sets for bodies from bytes and strings, and read at most 64 KB, unless their
// documentation names another limit. Each provider documents its assumption for other bodies.
package providers

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
)

// A Provider is an API with limits. Change its fields before you call Transport or Client. Each
// call of a constructor returns a new Provider, which shares nothing with others.
type Provider struct {
	Name string

	// Scopes are the quotas, inner ones first. A request is admitted by every scope in which it
	// counts, or charged in none.
	Scopes []Scope

	// Cost returns the cost of a request. Each unit must be counted by a scope in which the
	// request counts. If nil, one request.
	Cost func(*http.Request) throttle.Cost

	// Settle returns a function that receives the cost which the response of a request reports, and
	// returns the actual cost. See throttle.Transport. The presets whose Cost learns from responses
	// learn there. If nil, the reported cost counts.
	Settle func(*http.Request) func(reported throttle.Cost) (actual throttle.Cost)

	// Tokens returns the number of tokens of a text. The Cost of a language model's API calls it for
	// each string in the body of a request, without the escapes of JSON, but not for keys, encoded
	// data and addresses of images. Set it to a tokenizer with the model's vocabulary for exact
	// counts. A Transport calls it concurrently. If nil, [TokensOf] the model that the request names.
	Tokens func(text string) int64

	// Profile describes the responses.
	Profile answers.Profile

	// Hosts are the hosts of the provider; requests to others are not limited. A * stands for any
	// text: "*.example.com" for every host below example.com. If empty, every host.
	Hosts []string

	// Sockets are limits of WebSocket connections and of the messages that a client sends over them,
	// which no Transport sees. Open a Limiter with the Policy of each, and wait before each message. A
	// Limiter of PerConnection is that of one connection. Nothing reports when a message arrives, so the
	// Guard of a Policy is a quarter of its window, and at most a second.
	Sockets []Scope

	// Account returns a name for the account whose quotas count a request, such as the id of a
	// workspace or of an app's installation. Every scope that counts accounts has separate quotas for
	// each; see Scope.Per. Don't use a credential as it is: use a name of your own, or a hash. If nil,
	// all requests are of one account.
	Account func(*http.Request) string

	// Address returns a name for the IP address that a request comes from, as the provider sees it. Set
	// it if clients on one store have different addresses: the hosts of a fleet, or one process behind
	// several proxies. Scopes that count addresses then have separate quotas for each, and all others
	// are still shared. The name of a host will do, unless several hosts are behind one address. If
	// nil, all clients on a store are taken to have one address.
	Address func(*http.Request) string

	// MaxKeys is how many quotas each scope keeps; see throttle.Group. Requests name keys, so that
	// there is always a bound. If zero, 100,000.
	MaxKeys int

	// Observer receives the events of requests, for every scope whose Policy has no Observer. If nil,
	// there are none.
	Observer *throttle.Observer

	// SendBy returns the latest instant at which a request is worth sending, by the clock of
	// this machine: the end of its signature. A zero time means no limit. If nil, no limit.
	SendBy func(*http.Request) time.Time
}

// A Scope is one quota, or one quota for each key. Scopes nest: a key has a separate quota inside
// each quota of the outer scopes. The channel "general" of one team is not "general" of another.
// If neither of two limits contains the other, such as a limit of all writes and the limit of one of
// two APIs, the inner Scope is Shared.
type Scope struct {
	// Name names the quota, after the provider's name.
	Name string

	// Policy is the limits. If its Name is empty, it is named after the provider and the scope. A tier of
	// a preset may have a Follow, by which responses change its limit. If you set another Limit, Window
	// or Burst, the tier keeps it, unless you set another Follow, too.
	Policy throttle.Policy

	// Key reports whether a request counts in this scope, and the key of its quota, such as a
	// shop, a channel or a model. Don't use a credential as it is. If nil, every request counts,
	// in one quota.
	Key func(*http.Request) (key string, counts bool)

	// Per says whose requests the scope counts together. If zero, PerAccount.
	Per Per

	// Models are the limits of single models, or of other keys, instead of those of the Policy. If nil,
	// all keys have the limits of the Policy.
	Models *Models

	// Shared reports that a key has one quota inside all quotas of the outer scopes: one limit of
	// all writes over two APIs, for example. A request that waits for one outer quota does not delay
	// requests of another. A refusal that is not wide pauses the scope around. If false, a key has a
	// separate quota inside each outer quota.
	Shared bool

	// Page is the address of the provider's documentation.
	Page string

	// Read is the day when Page was read, as 2006-01-02.
	Read string

	model  func(*http.Request) string // returns the name that Models match; if nil, the key
	preset []throttle.Tier            // the tiers of the preset, before the caller changed some
}

// A Per says whose requests a Scope counts together.
type Per int

const (
	PerAccount    Per = iota // those of an account; see Provider.Account
	PerAddress               // those of an IP address, of all accounts; see Provider.Address
	PerToken                 // those of the credentials in the header Authorization, of which only a hash is kept
	PerConnection            // those of a WebSocket connection; only in Provider.Sockets
)

const pers = int(PerConnection) // the number of those that count HTTP requests

// String returns "account", "address", "token" or "connection".
func (p Per) String() string {
	switch p {
	case PerAccount:
		return "account"
	case PerAddress:
		return "address"
	case PerToken:
		return "token"
	case PerConnection:
		return "connection"
	}
	return fmt.Sprintf("Per(%d)", int(p))
}

// Scope returns the scope with this name, which the caller may change, or nil if there is none.
func (p Provider) Scope(name string) *Scope { return scopeNamed(p.Scopes, name) }

// Socket returns the scope with this name of the Sockets, or nil if there is none.
func (p Provider) Socket(name string) *Scope { return scopeNamed(p.Sockets, name) }

func scopeNamed(scopes []Scope, name string) *Scope {
	for i := range scopes {
		if scopes[i].Name == name {
			return &scopes[i]
		}
	}
	return nil
}

// Client returns a client that keeps to the provider's limits. Its requests block like those of a
// [throttle.Transport]. With a nil store, the quotas are the client's own.
func (p Provider) Client(s throttle.Store) (*http.Client, error) {
	t, err := p.Transport(s)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

// Transport returns a transport that keeps to the provider's limits. To replace
// http.DefaultTransport, set its Base. The error names every scope with an invalid policy.
func (p Provider) Transport(s throttle.Store) (*throttle.Transport, error) {
	r := p.router()
	var errs []error
	for i, scope := range p.Scopes {
		routed, err := p.open(i, s)
		if err != nil {
			errs = append(errs, fmt.Errorf("providers: %s: scope %q: %w", p.Name, scope.Name, err))
		}
		r.scopes = append(r.scopes, routed)
		r.counts[routed.per] = true
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	t := &throttle.Transport{Route: r.route, Cost: p.Cost, Settle: p.Settle, Profile: &p.Profile}
	if p.Cost != nil && p.Tokens != nil {
		t.Cost = func(req *http.Request) throttle.Cost { return p.Cost(prompt.WithTokens(req, p.Tokens)) }
	}
	if p.Settle != nil && p.Tokens != nil {
		t.Settle = func(req *http.Request) func(throttle.Cost) throttle.Cost {
			return p.Settle(prompt.WithTokens(req, p.Tokens))
		}
	}
	if p.SendBy != nil {
		t.SendBy = func(req *http.Request) (by time.Time) {
			if serves(r.hosts, hostOf(req)) {
				by = p.SendBy(req)
			}
			return by
		}
	}
	return t, nil
}

// Tokens estimates the number of tokens of a text in o200k, the vocabulary of OpenAI's models since
// GPT-4o. It is TokensOf("gpt-4o").
func Tokens(text string) int64 { return prompt.O200k.Tokens(text) }

// TokensOf returns a function that estimates the number of tokens of a text for a model, by the
// model's name: "gpt-4", "text-embedding-3-small", "claude-sonnet-4-5" or "meta-llama/Llama-3.3-70B",
// for example. It knows the vocabularies of OpenAI, Anthropic, Mistral and Llama. Other names count as
// GPT-4 does, which takes more tokens than newer models for scripts other than Latin.
//
// The estimates, divided by the tokens of texts to which they are not fitted:
//
//	                       English  code,      other      Chinese,   Cyrillic,  Arabic,
//	                                data, ids  Latin      Japanese,  Greek,     Hindi,
//	                                                      Korean     Hebrew     Thai
//	OpenAI since GPT-4o    1.13     1.01-1.22  1.17-1.28  0.99-1.17  1.07-1.29  0.92-1.46
//	OpenAI before          1.28     1.00-1.24  1.09-1.24  0.95-1.17  1.04-1.48  1.04-1.36
//	Claude since Opus 4.7  1.23     0.93-1.26  1.11-1.32  1.08-1.25  1.00-1.35  1.13-1.36
//	Claude 3 to 4.6        1.27     0.97-1.30  1.06-1.39  1.12-1.23  1.10-1.39  1.14-1.36
//	Mistral since 2025     1.21     0.99-1.22  1.19-1.36  1.05-1.33  1.00-1.46  1.09-1.40
//	Mistral before         1.33     1.01-1.20  1.04-1.29  1.05-1.20  1.01-1.50  1.01-1.20
//	Llama 3                1.27     1.01-1.28  1.11-1.34  0.99-1.15  1.05-1.45  1.10-1.21
//
// The medians are 1.10 to 1.16. bench/tokens_test.go asserts 0.9 to 1.6 for each text. Claude's
// tokens are those of a reconstruction of its vocabularies. Languages of which a vocabulary has few
// words, such as Welsh or Esperanto, count 0.5 to 0.9 of Claude's tokens, and rare scripts 0.3 to 2
// times.
//
// The function reads the text once and allocates nothing. It is safe for concurrent use. The text need
// not be valid UTF-8.
func TokensOf(model string) func(text string) int64 {
	return prompt.VocabularyOf(model, prompt.Cl100k).Tokens
}

// serves reports whether host, as hostOf returns it, is one of a provider's Hosts.
func serves(hosts []string, host string) bool {
	return len(hosts) == 0 || slices.ContainsFunc(hosts, func(pattern string) bool {
		is, err := path.Match(strings.ToLower(pattern), host)
		return is && err == nil
	})
}
