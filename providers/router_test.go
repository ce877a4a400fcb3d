package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/store"
)

// header returns a function that returns a header of a request.
func header(name string) func(*http.Request) string {
	return func(req *http.Request) string { return req.Header.Get(name) }
}

// from returns a request with an account, an address and credentials.
func from(t *testing.T, account, address, token string) *http.Request {
	req := get(t, "https://example.com/")
	req.Header.Set("Account", account)
	req.Header.Set("Address", address)
	req.Header.Set("Authorization", token)
	return req
}

// counting returns a scope of n requests an hour.
func counting(name string, per providers.Per, n int64) providers.Scope {
	return providers.Scope{Name: name, Per: per, Policy: throttle.Policy{Tiers: limited(n), Guard: throttle.NoGuard, MaxWait: time.Nanosecond}}
}

// A scope counts the requests of an account, of an address or of credentials together, whichever way
// they nest.
func TestPer(t *testing.T) {
	const account, address, token = providers.PerAccount, providers.PerAddress, providers.PerToken
	type step struct {
		account, address, token string
		sent                    bool
	}
	for _, test := range []struct {
		name                string
		scopes              []providers.Scope
		accounts, addresses bool
		steps               []step
	}{
		{"one address of several accounts", []providers.Scope{counting("in", account, 2), counting("out", address, 3)}, true, false, []step{
			{"a", "", "", true}, {"a", "", "", true}, {"a", "", "", false}, {"b", "", "", true}, {"b", "", "", false},
		}},
		{"several addresses of an account", []providers.Scope{counting("in", account, 3), counting("out", address, 2)}, true, true, []step{
			{"a", "1", "", true}, {"a", "1", "", true}, {"a", "1", "", false}, {"a", "2", "", true}, {"a", "2", "", false}, {"b", "2", "", true}, {"b", "2", "", false},
		}},
		{"several addresses without accounts", []providers.Scope{counting("in", account, 3), counting("out", address, 2)}, false, true, []step{
			{"", "1", "", true}, {"", "1", "", true}, {"", "1", "", false}, {"", "2", "", true}, {"", "2", "", false},
		}},
		{"an address inside accounts", []providers.Scope{counting("in", address, 3), counting("out", account, 2)}, true, true, []step{
			{"a", "1", "", true}, {"a", "1", "", true}, {"a", "2", "", false}, {"b", "1", "", true}, {"b", "1", "", false}, {"b", "2", "", true}, {"b", "2", "", false},
		}},
		{"credentials", []providers.Scope{counting("in", token, 2), counting("out", address, 3)}, false, false, []step{
			{"", "", "x", true}, {"", "", "x", true}, {"", "", "x", false}, {"", "", "y", true}, {"", "", "y", false},
		}},
		{"credentials of accounts", []providers.Scope{counting("in", token, 1), counting("out", account, 2)}, true, false, []step{
			{"a", "", "x", true}, {"a", "", "x", false}, {"b", "", "x", true}, {"a", "", "y", true}, {"a", "", "z", false},
		}},
		{"nobody tells apart", []providers.Scope{counting("in", account, 3), counting("out", address, 2)}, false, false, []step{
			{"a", "1", "x", true}, {"b", "2", "y", true}, {"c", "3", "z", false},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := providers.Provider{Name: "api", Scopes: test.scopes}
				if test.accounts {
					p.Account = header("Account")
				}
				if test.addresses {
					p.Address = header("Address")
				}
				rt := over(t, p, accepting{})
				for i, s := range test.steps {
					resp, err := rt.RoundTrip(from(t, s.account, s.address, s.token))
					if err == nil {
						resp.Body.Close()
					}
					if (err == nil) != s.sent || err != nil && !errors.Is(err, throttle.ErrDeadline) {
						t.Errorf("step %d: %+v: %v", i, s, err)
					}
				}
			})
		})
	}
}

// A refusal pauses the account that it concerns on all of its addresses, and no other account. A ban of
// an address closes it for all accounts, and no other address.
func TestPerRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		p := providers.Provider{
			Name: "api", Account: header("Account"), Address: header("Address"),
			Scopes: []providers.Scope{counting("account", providers.PerAccount, 100), counting("address", providers.PerAddress, 100)},
			Profile: answers.Profile{Rules: []answers.Rule{
				{Status: http.StatusTeapot, Kind: answers.Banned, Wide: true, Wait: time.Minute},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: time.Minute},
			}},
		}
		rt := over(t, p, api)
		paused := func(want ...string) {
			t.Helper()
			var got []string
			for _, account := range []string{"a", "b"} {
				for _, address := range []string{"1", "2"} {
					if resp, err := rt.RoundTrip(from(t, account, address, "")); err != nil {
						got = append(got, account+address)
					} else {
						resp.Body.Close()
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("paused are %v, want %v", got, want)
			}
		}
		refused := func(status int, account, address string) {
			api.refuse(status, "{}")
			if resp, err := rt.RoundTrip(from(t, account, address, "")); err != nil || resp.StatusCode != status {
				t.Fatal(resp, err)
			}
		}
		paused()
		refused(http.StatusTooManyRequests, "a", "1")
		paused("a1", "a2")
		time.Sleep(2 * time.Minute)
		paused()
		refused(http.StatusTeapot, "a", "1")
		paused("a1", "b1")
		time.Sleep(2 * time.Minute)
		paused()
	})
}

// keys is a store that records the keys of quotas.
type keys struct {
	store.Store
	all []string
}

func (k *keys) Open(key string, plan *algorithms.Plan, report func(store.Call)) (store.Quota, error) {
	k.all = append(k.all, key)
	return k.Store.Open(key, plan, report)
}

// Names that requests contain may be long, and are credentials only as a hash.
func TestKeysAreShort(t *testing.T) {
	k := &keys{Store: local.New()}
	p := providers.Provider{Name: "api", Account: header("Account"), Address: header("Address"), Scopes: []providers.Scope{
		counting("token", providers.PerToken, 1), counting("account", providers.PerAccount, 1), counting("address", providers.PerAddress, 1)}}
	p.Scopes[1].Key = func(req *http.Request) (string, bool) { return strings.Repeat("k", 1<<20), true }
	transport, err := p.Transport(k)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	transport.Route(from(t, long, long, "Bearer secret"+long))
	if len(k.all) != 3 {
		t.Errorf("%d quotas", len(k.all))
	}
	for _, key := range k.all {
		if len(key) > 500 || strings.Contains(key, "secret") {
			t.Errorf("%d bytes: %.1000s", len(key), key)
		}
	}
}

func TestPerIsKnown(t *testing.T) {
	p := providers.Provider{Name: "api", Scopes: []providers.Scope{counting("in", 7, 1)}}
	if _, err := p.Transport(nil); err == nil || !strings.Contains(err.Error(), `providers: api: scope "in": Per is 7: use PerAccount`) {
		t.Error(err)
	}
}
