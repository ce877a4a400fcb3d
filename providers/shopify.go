package providers

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
)

var shopifyRESTPreset = Preset{Name: "shopify-rest", Constructor: "ShopifyREST()", kind: "Payments and shops", New: ShopifyREST}

// ShopifyREST is the REST Admin API of Shopify, with the limits of one app in each shop on the
// standard plan. An app has a bucket in each shop that holds 40 requests and leaks 2 a second
// (Advanced Shopify has 80 and 4; Shopify Plus has 400 and 20; Commerce Components has 800 and 40). The
// preset takes over the size that responses name, and with it the rate. Each host is a shop.
//
// Shopify refuses requests that come before the Retry-After of a refusal is over. A locked shop
// (423) closes the shop's quota, and a security rejection (430) pauses nothing.
func ShopifyREST() Provider {
	return Provider{
		Name: "shopify-rest",
		Scopes: []Scope{some("shop", "https://shopify.dev/docs/api/admin-rest/usage/rate-limits", shop(false),
			follows(0, 800, throttle.Tier{Limit: 2, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 40}))},
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				{Combined: answers.Field{Header: "X-Shopify-Shop-Api-Call-Limit", Format: answers.UsedOfLimit}},
			},
			Rules: shopifyRules(),
		},
		Hosts: []string{"*.myshopify.com"},
	}
}

var shopifyGraphQLPreset = Preset{Name: "shopify-graphql", Constructor: "ShopifyGraphQL()", kind: "Payments and shops", New: ShopifyGraphQL}

// ShopifyGraphQL is the GraphQL Admin API of Shopify, with the limits of one app in each shop on
// the standard plan. An app has a bucket in each shop that gains 100 points a second (Advanced
// Shopify 200, Shopify Plus 1,000). The bucket holds the points of 20 seconds: 2,000 (4,000 and
// 20,000). The preset takes over the size that responses name, up to that of Commerce Components, 40,000,
// and with it the rate. One query costs at most 1,000. Each host is a shop. The Partner API is limited to 4
// requests a second for each organization. The APIs of storefronts, which have no limits for
// buyers, and those of customer accounts and payments apps are not limited here.
//
// Shopify reserves the requested cost of a query before it runs, and refunds what the query did not
// use. So the charge comes from what similar queries have requested, which have the same text, and
// the same variables except for strings. It is their average plus one and a half times their
// average deviation. A query whose text is new is charged 1,000 points, and so is every query
// without GetBody. When the response reports the actual cost, the difference is refunded. If you
// know the costs of your queries, which responses report as requestedQueryCost, you can set Cost.
//
// A refusal has status 200. The wait follows from the state of the bucket in the refusal. A locked
// shop (423) closes the shop's quota, and a security rejection (430) pauses nothing.
func ShopifyGraphQL() Provider {
	const status = shopifyCost + "throttleStatus."
	requested := &prompt.Learner{First: maxQuery}
	return Provider{
		Name: "shopify-graphql",
		Scopes: []Scope{
			some("shop", "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits", shop(true),
				follows(0, 40_000, throttle.Tier{Limit: 100, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 2_000, Unit: "points", Estimated: true})),
			some("partner", "https://shopify.dev/docs/api/partner", partner, throttle.PerSecond(4)),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if _, counts := partner(req); counts {
				return nil
			}
			return throttle.Cost{"points": min(requested.Estimate(queryKinds(req)...), maxQuery)}
		},
		Settle: func(req *http.Request) func(throttle.Cost) throttle.Cost {
			end := requested.Begin(queryKinds(req)...)
			return func(reported throttle.Cost) throttle.Cost {
				n, known := reported["requested"]
				end(n, known)
				return reported
			}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				Unit:      "points",
				Limit:     answers.Field{Path: status + "maximumAvailable"},
				Remaining: answers.Field{Path: status + "currentlyAvailable"},
				Rate:      answers.Field{Path: status + "restoreRate"},
			}},
			Charges: []answers.Charge{
				{Unit: "points", Field: answers.Field{Path: shopifyCost + "actualQueryCost"}},
				{Unit: "requested", Field: answers.Field{Path: shopifyCost + "requestedQueryCost"}},
			},
			Rules: append(shopifyRules(), throttled("errors.*.extensions.code", "THROTTLED"), throttled("errors.*.message", "Throttled")),
		},
		Hosts: []string{"*.myshopify.com", "partners.shopify.com"},
	}
}

// throttled returns the rule of a refused query. The message stood alone before it had a code.
func throttled(path, text string) answers.Rule {
	return answers.Rule{Status: http.StatusOK, Path: path, Text: text, Kind: answers.Limited, Asked: answers.Field{Path: shopifyCost + "requestedQueryCost"}}
}

const shopifyCost = "extensions.cost."

const maxQuery = 1_000 // points that one query may request

// shopifyRules are the refusals of the Admin APIs that have nothing to do with a bucket.
func shopifyRules() []answers.Rule {
	return []answers.Rule{
		{Status: http.StatusLocked, Kind: answers.Banned, Reason: "the shop is locked"},
		{Status: 430, Kind: answers.Other, Reason: "security rejection"},
	}
}

// shop returns the Key of one of the two Admin APIs: the shop of a request.
func shop(graphql bool) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		path := req.URL.Path
		return hostOf(req),
			strings.HasPrefix(path, "/admin/") && !strings.HasPrefix(path, "/admin/oauth/") &&
				strings.HasSuffix(path, "/graphql.json") == graphql
	}
}

// partner returns the organization of a request to the Partner API.
func partner(req *http.Request) (organization string, counts bool) {
	organization, _, counts = strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	return organization, counts && hostOf(req) == "partners.shopify.com"
}

// queryKinds returns the kinds of queries that request about as much: those with the same text, and
// those with variables of the same shape, too. It returns none for an unknown query.
func queryKinds(req *http.Request) []uint64 {
	text := body(req)
	if len(text) == 0 {
		return nil
	}
	var query struct {
		Query, OperationName string
		Variables            any
	}
	if json.Unmarshal(text, &query) != nil || query.Query == "" {
		return []uint64{prompt.Kind(req.URL.Path, string(text))}
	}
	variables, _ := json.Marshal(withoutStrings(query.Variables))
	return []uint64{
		prompt.Kind(req.URL.Path, query.Query, query.OperationName),
		prompt.Kind(req.URL.Path, query.Query, query.OperationName, string(variables)),
	}
}

// withoutStrings returns a value of JSON with its strings removed: what a query requests depends on
// numbers, and on how long lists are.
func withoutStrings(v any) any {
	switch v := v.(type) {
	case string:
		return nil
	case []any:
		for i := range v {
			v[i] = withoutStrings(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = withoutStrings(v[key])
		}
	}
	return v
}
