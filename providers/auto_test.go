package providers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// auto returns a transport for all APIs over a fake API.
func auto(t *testing.T, a providers.Auto, s throttle.Store, api http.RoundTripper) *throttle.Transport {
	t.Helper()
	transport, err := a.Transport(s)
	if err != nil {
		t.Fatal(err)
	}
	transport.Base = api
	return transport
}

// Lookup finds every preset by each of its hosts, and calls those that need nothing. TestPage compares
// Presets with the source.
func TestLookup(t *testing.T) {
	found := make(map[string]bool)
	for _, preset := range presets {
		p := preset()
		for _, host := range p.Hosts {
			for _, l := range providers.Lookup(strings.ToUpper(strings.Replace(host, "*", "some", 1))) {
				found[l.String()] = true
				if needs := !strings.HasSuffix(l.Constructor, "()"); (l.New == nil) != needs {
					t.Errorf("%s: New is nil: %v", l, l.New == nil)
				}
				if l.New == nil {
					continue
				}
				if one, other := l.New(), l.New(); len(one.Scopes) == 0 || &one.Hosts[0] == &other.Hosts[0] {
					t.Errorf("%s: two calls of New share memory, or have no scopes", l)
				}
			}
		}
	}
	for _, p := range providers.Presets() {
		if !found[p.String()] && p.Name != "unknown" { // which has no known host
			t.Errorf("%s is not found by its hosts", p)
		}
	}
	if l := providers.Lookup("example.com"); l != nil {
		t.Errorf("example.com: %v", l)
	}
	if l := providers.Lookup("shop.myshopify.com"); len(l) != 2 {
		t.Errorf("a shop: %v, want two", l)
	}
}

func shopify(path string) string { return "https://shop.myshopify.com/admin/api/2026-10/" + path }

// One transport sends as many requests at once to each host as its API allows, whatever it has sent
// to the others.
func TestAuto(t *testing.T) {
	loads := []struct {
		request string
		want    int // at once
	}{
		{"GET https://api.github.com/search/issues", 30},
		{"GET https://api.etherscan.io/v2/api?chainid=1", 3},
		{"GET https://api.notion.com/v1/users", 180},
		{"POST https://api.binance.com/api/v3/order", 100},
		{"POST https://fapi.binance.com/fapi/v1/order", 300},
		{"GET https://api.coinbase.com/v2/accounts", 400}, // 10,000 an hour
		{"GET https://api.coinbase.com/api/v3/brokerage/accounts", 30},
		{"GET https://api.exchange.coinbase.com/products", 15},
		{"POST https://slack.com/api/reactions.add", 50},
		{"GET " + shopify("products.json"), 40},
		{"POST " + shopify("graphql.json"), 2},
		{"GET https://api.stripe.com/v1/customers", 25},
		{"GET https://www.okx.com/api/v5/account/balance", 10},
		{"POST https://api.kraken.com/0/private/Balance", 15},
		{"POST https://api.openai.com/v1/responses", 400}, // its limits are not told
		{"GET https://example.com/", 400},
	}
	for name, store := range map[string]throttle.Store{"in this process": nil, "on a store": new(local.Store)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := auto(t, providers.Auto{}, store, accepting{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // no time passes
				defer cancel()
				n := make([]int, len(loads))
				for range 400 { // to each in turn
					for i, load := range loads {
						if resp, err := rt.RoundTrip(request(t, load.request).WithContext(ctx)); err == nil {
							resp.Body.Close()
							n[i]++
						}
					}
				}
				for i, load := range loads {
					if n[i] != load.want {
						t.Errorf("%s: %d at once, want %d", load.request, n[i], load.want)
					}
				}
			})
		})
	}
}

// A refusal is read as the API's preset reads it, and pauses no other host.
func TestAutoRefusals(t *testing.T) {
	const other = "https://example.com:8443/"
	common := &answers.Profile{
		Quotas: []answers.Quota{{
			Limit: answers.Field{Header: "X-Ratelimit-Limit"}, Remaining: answers.Field{Header: "X-Ratelimit-Remaining"},
			Reset: answers.Field{Header: "X-Ratelimit-Reset", Format: answers.Seconds},
		}},
		Rules: []answers.Rule{{Status: 200, Path: "error", Text: "slow down", Kind: answers.Limited, Wait: time.Minute}},
	}
	for _, test := range []struct {
		name, request string
		refusal       fixture
		profile       *answers.Profile
		want          time.Duration // below zero, a back-off
	}{
		{"Etherscan", "GET https://api.etherscan.io/v2/api", fixture{Status: 200, Body: `{"status":"0","result":"Max calls per sec rate limit reached (3/sec)"}`}, nil, time.Second},
		{"a shop's queries", "POST " + shopify("graphql.json"), fixture{Status: 200, Body: `{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":1000,"throttleStatus":{"maximumAvailable":2000,"currentlyAvailable":0,"restoreRate":100}}}}`}, nil, 10 * time.Second},
		{"another API's words", "GET " + other, fixture{Status: 200, Body: `{"status":"0","result":"Max calls per sec rate limit reached (3/sec)"}`}, nil, 0},
		{"an unknown host", "GET " + other, fixture{Status: 429, Headers: map[string]any{"Retry-After": "7"}}, nil, 7 * time.Second},
		{"an unknown host, a profile", "GET " + other, fixture{Status: 200, Body: `{"error":"slow down"}`}, common, time.Minute},
		{"an unknown host, nothing left", "GET " + other, fixture{Status: 200, Headers: map[string]any{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "30"}}, common, 30 * time.Second},
		{"an unknown host, something left", "GET " + other, fixture{Status: 200, Headers: map[string]any{"X-RateLimit-Limit": "100", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "30"}}, common, 0},
		{"an unknown host, Google's words", "GET " + other, fixture{Status: 403, Body: `{"error":{"errors":[{"reason":"rateLimitExceeded"}],"code":403,"status":"PERMISSION_DENIED"}}`}, nil, -1},
		{"AWS", "POST https://dynamodb.eu-west-1.amazonaws.com/", fixture{Status: 400, Body: `{"__type":"com.amazon.coral.availability#ThrottlingException"}`}, nil, -1},
		{"OpenAI, untold", "POST https://api.openai.com/v1/responses", fixture{Status: 429, Headers: map[string]any{"Retry-After": "7"}}, nil, 7 * time.Second},
		{"OpenAI, untold, no credit", "POST https://api.openai.com/v1/responses", fixture{Status: 429, Body: `{"error":{"type":"insufficient_quota"}}`}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &scripted{next: []fixture{test.refusal}}
				rt := auto(t, providers.Auto{Profile: test.profile}, nil, api)
				send(t, rt, request(t, test.request))
				for _, url := range []string{"https://api.notion.com/v1/users", "https://example.com/", shopify("products.json"), "https://other.myshopify.com/admin/api/graphql.json", "https://api.stripe.com/v1/charges"} {
					if _, _, took := send(t, rt, get(t, url)); took != 0 {
						t.Errorf("%s waited %v", url, took)
					}
				}
				_, _, took := send(t, rt, request(t, test.request))
				if test.want < 0 && took >= time.Second && took <= 2*time.Second {
					return // a back-off
				}
				if took != test.want {
					t.Errorf("waited %v, want %v", took, test.want)
				}
			})
		})
	}
}

// The caller's Providers come before presets, replace those with their names, and share hosts.
func TestAutoProviders(t *testing.T) {
	scope := func(name, path string, n int64) providers.Scope {
		return providers.Scope{
			Name: name, Policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(n)}},
			Key: func(req *http.Request) (string, bool) { return "", strings.HasPrefix(req.URL.Path, path) },
		}
	}
	stripe := providers.Stripe()
	stripe.Scope("endpoint").Policy.Tiers[0].Limit = 7
	a := providers.Auto{Providers: []providers.Provider{
		stripe,
		providers.OpenAI(240, 1_000_000),
		{Name: "s3", Hosts: []string{"*.amazonaws.com"}, Scopes: []providers.Scope{scope("bucket", "/bucket/", 3)}},
		{Name: "queues", Hosts: []string{"*.amazonaws.com"}, Scopes: []providers.Scope{scope("queue", "/queue/", 5)}},
		{Name: "models", Hosts: []string{"models.eu.amazonaws.com"}, Scopes: []providers.Scope{scope("model", "/", 2)}},
		{Name: "jobs", Hosts: []string{"jobs.*.example.net"}, Scopes: []providers.Scope{scope("jobs", "/", 8)}},
		{Name: "own Notion", Hosts: []string{"api.notion.com"}, Scopes: []providers.Scope{scope("pages", "/v1/pages", 1)}},
		{Name: "rest", Scopes: []providers.Scope{scope("rest", "/rest/", 6)}},
	}}
	synctest.Test(t, func(t *testing.T) {
		rt := auto(t, a, nil, accepting{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		for _, load := range []struct {
			request string
			want    int // at once
		}{
			{"GET https://api.stripe.com/v1/customers", 7},
			{"POST https://api.openai.com/v1/responses", 4},
			{"GET https://eu.amazonaws.com/bucket/1", 3},
			{"GET https://eu.amazonaws.com/queue/1", 5},
			{"GET https://models.eu.amazonaws.com/bucket/1", 2},
			{"GET https://jobs.eu.example.net/", 8},
			{"GET https://files.eu.example.net/", 20},
			{"GET https://api.notion.com/v1/pages", 1},
			{"GET https://api.notion.com/v1/users", 20},
			{"GET https://example.com/rest/1", 6},
			{"GET https://example.com/", 20},
			{"GET https://shop.myshopify.com/rest/1", 0}, // of the same quota
			{"GET https://shop.myshopify.com/admin/oauth/access_token", 20},
		} {
			n := 0
			for range 20 {
				if resp, err := rt.RoundTrip(request(t, load.request).WithContext(ctx)); err == nil {
					resp.Body.Close()
					n++
				} else if !errors.Is(err, throttle.ErrDeadline) {
					t.Error(err)
				}
			}
			if n != load.want {
				t.Errorf("%s: %d at once, want %d", load.request, n, load.want)
			}
		}
	})
	if by := auto(t, a, nil, accepting{}).SendBy(get(t, "https://api.binance.com/api/v3/order?timestamp=1700000000000")); !by.Equal(time.UnixMilli(1_700_000_005_000)) {
		t.Errorf("an order is worth sending until %v", by)
	}
}

// A Provider for every host leaves those requests that don't count in it to others.
func TestAutoEveryHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		every := providers.Provider{Name: "every", Scopes: []providers.Scope{{
			Name: "writes", Policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerMinute(1)}, Guard: throttle.NoGuard},
			Key: func(req *http.Request) (string, bool) { return "", req.Method == http.MethodPost },
		}}}
		rt := auto(t, providers.Auto{Providers: []providers.Provider{every}}, nil, api)
		for _, step := range []struct {
			request string
			wait    time.Duration
		}{
			{"POST https://example.com/", 0}, {"POST https://example.org/", time.Minute}, {"GET https://example.com/", 0},
			{"POST https://api.notion.com/v1/pages", 0}, {"POST https://api.openai.com/v1/responses", time.Minute},
		} {
			if _, _, took := send(t, rt, request(t, step.request)); took != step.wait {
				t.Errorf("%s waited %v, want %v", step.request, took, step.wait)
			}
		}
		for _, url := range []string{"https://example.com/", "https://api.openai.com/v1/models"} {
			api.next = []fixture{{Status: 429, Headers: map[string]any{"Retry-After": "7"}}}
			send(t, rt, get(t, url))
			if _, _, took := send(t, rt, get(t, url)); took != 7*time.Second {
				t.Errorf("%s waited %v after a refusal, want 7 s", url, took)
			}
		}
	})
}

func TestAutoErrors(t *testing.T) {
	invalid := providers.Stripe()
	invalid.Scope("account").Policy.Tiers[0].Limit = 0
	for _, test := range []struct {
		providers []providers.Provider
		want      string
	}{
		{[]providers.Provider{invalid}, `stripe: scope "account"`},
		{[]providers.Provider{providers.Stripe(), providers.Stripe()}, `two Providers have the name "stripe"`},
	} {
		_, err := providers.Auto{Providers: test.providers}.Client(nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
}

func ExampleLookup() {
	for _, host := range []string{"api.github.com", "api.openai.com", "shop.myshopify.com", "example.com"} {
		fmt.Println(host, providers.Lookup(host))
	}
	// Output:
	// api.github.com [GitHub()]
	// api.openai.com [OpenAI(requests, tokens int64)]
	// shop.myshopify.com [ShopifyGraphQL() ShopifyREST()]
	// example.com []
}

func ExamplePresets() {
	for _, p := range providers.Presets() {
		if p.Name != "bedrock" {
			continue
		}
		for _, param := range p.Parameters {
			fmt.Printf("%s: %s, such as %s\n", param.Name, param.About, param.Example)
		}
		limits := p.Provider(map[string]string{"requests": "0", "tokens": "200000"})
		fmt.Println(limits.Scope("x1").Policy.Tiers)
	}
	// Output:
	// requests: requests a minute of a model; 0: not limited, such as 50
	// tokens: tokens a minute of a model, such as 200000
	// [200000/m;unit=tokens-x1;estimated=true]
}

func ExampleAuto() {
	stripe := providers.Stripe()
	stripe.Scope("account").Policy.Tiers = []throttle.Tier{throttle.PerSecond(500)}
	client, err := providers.Auto{Providers: []providers.Provider{stripe, providers.OpenAI(5_000, 200_000)}}.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("notion")) // instead of the network

	resp, err := client.Get("https://api.notion.com/v1/users")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
