package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// ShopifyREST is Shopify's REST Admin API, with the limits of its standard plan: for an app in a
// shop, a bucket of 40 that leaks 2 requests a second (Advanced Shopify leaks 4; Shopify Plus has
// 400 and 20). The client is assumed to be one app. Each host is a shop.
//
// Shopify refuses requests that come before the Retry-After of a refusal is over.
func ShopifyREST() Provider {
	return Provider{
		Name: "shopify-rest",
		Scopes: []Scope{some("shop", "https://shopify.dev/docs/api/admin-rest/usage/rate-limits", shop(false),
			throttle.Tier{Limit: 2, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 40})},
		Profile: answers.Profile{Quotas: []answers.Quota{
			{Combined: answers.Field{Header: "X-Shopify-Shop-Api-Call-Limit", Format: answers.UsedOfLimit}},
		}},
		Hosts: []string{"*.myshopify.com"},
	}
}

// ShopifyGraphQL is Shopify's GraphQL Admin API, with the limits of its standard plan: for an app
// in a shop, a bucket that gains 100 points a second (Advanced Shopify 200, Shopify Plus 1,000).
// The bucket holds 20 seconds' worth: 2,000 points (4,000 and 20,000). One query costs at most
// 1,000. The client is assumed to be one app. Each host is a shop.
//
// The cost of a query is known only after it has run. Until then the query is charged 1,000 points.
// When the response reports the actual cost, the difference is refunded. If you know the costs of
// your queries, which responses report as requestedQueryCost, set Cost, and more queries can run at
// once.
//
// A refusal has status 200. The wait follows from the state of the bucket in the refusal.
func ShopifyGraphQL() Provider {
	const status = "extensions.cost.throttleStatus."
	return Provider{
		Name: "shopify-graphql",
		Scopes: []Scope{some("shop", "https://shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits", shop(true),
			throttle.Tier{Limit: 100, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 2_000, Unit: "points", Estimated: true})},
		Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"points": 1_000} },
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				Unit:      "points",
				Limit:     answers.Field{Path: status + "maximumAvailable"},
				Remaining: answers.Field{Path: status + "currentlyAvailable"},
				Rate:      answers.Field{Path: status + "restoreRate"},
			}},
			Charges: []answers.Charge{{Unit: "points", Field: answers.Field{Path: "extensions.cost.actualQueryCost"}}},
			Rules: []answers.Rule{{
				Status: http.StatusOK, Path: "errors.*.extensions.code", Text: "THROTTLED", Kind: answers.Limited,
				Asked: answers.Field{Path: "extensions.cost.requestedQueryCost"},
			}},
		},
		Hosts: []string{"*.myshopify.com"},
	}
}

// shop returns the Key of one of the two Admin APIs: the shop of a request.
func shop(graphql bool) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		path := req.URL.Path
		return strings.ToLower(req.URL.Hostname()),
			strings.HasPrefix(path, "/admin/") && !strings.HasPrefix(path, "/admin/oauth/") &&
				strings.HasSuffix(path, "/graphql.json") == graphql
	}
}
