package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var cloudflarePreset = Preset{Name: "cloudflare", Constructor: "Cloudflare()", kind: "Clouds and office", New: Cloudflare}

// Cloudflare is the API of Cloudflare, with the limits of one user or one account token. A user's
// keys, tokens and dashboard share 1,200 requests in 5 minutes, and an account token has as many.
// An IP address has 200 a second, and GraphQL has 300 queries in 5 minutes. Cloudflare's page of all
// limits says up to 320, by the queries' cost, and the newer page of GraphQL says 300 by default: change
// the scope "graphql" if your account has more. Cloudflare doesn't document the kind of window, so
// windows roll.
//
// Responses report how much is left. Where they name another limit of 5 minutes, such as that of an
// Enterprise account, it holds, up to 12,000. A refusal pauses the user's requests, or GraphQL alone, for 5
// minutes if it names no wait, because Cloudflare blocks calls for that time. Cloudflare also limits
// GraphQL by the cost of queries and by account and zone. A refusal of one account or of too large
// a query pauses nothing. After too many failed logins the address is closed with throttle.ErrBanned
// for the Policy.MaxPause of the scope "address".
func Cloudflare() Provider {
	const page, graphql = "https://developers.cloudflare.com/fundamentals/api/reference/limits", "https://developers.cloudflare.com/analytics/graphql-api/limits"
	const block, text = 5 * time.Minute, "errors.*.message"
	return Provider{
		Name: "cloudflare",
		Scopes: []Scope{
			some("graphql", graphql, when(cloudflareGraphQL), throttle.Tier{Limit: 300, Window: block, Unit: "queries"}),
			every("user", page, tenfold(0, throttle.Tier{Limit: 1_200, Window: block})),
			byAddress(every("address", page, throttle.PerSecond(200))),
		},
		Cost: costsOne("queries", when(cloudflareGraphQL)),
		Profile: answers.Profile{
			Quotas: []answers.Quota{{ // other policies, such as "burst", have other windows
				Limit:  answers.Field{Header: "Ratelimit-Policy", After: `"default";q=`},
				Length: answers.Field{Header: "Ratelimit-Policy", After: ";w=", Format: answers.Seconds},
			}, {
				Window:    block,
				Remaining: answers.Field{Header: "Ratelimit", After: `"default";r=`},
				Reset:     answers.Field{Header: "Ratelimit", After: ";t=", Format: answers.Seconds},
			}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "errors.*.code", Text: "10502", Kind: answers.Banned, Wide: true, Reason: "authentication failures"},
				{Status: http.StatusTooManyRequests, Path: text, Text: "query consumed excessive resources*", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Path: text, Text: "*has exceeded its rate limit*", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Path: text, Text: "rate limiter budget depleted*", Kind: answers.Limited, Wait: block},
				{Method: http.MethodPost, Status: http.StatusOK, Path: text, Text: "rate limiter budget depleted*", Kind: answers.Limited, Wait: block},
				{Status: http.StatusServiceUnavailable, Path: text, Text: "too many queries in progress*", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: block},
			},
		},
		Hosts: []string{"api.cloudflare.com"},
	}
}

// cloudflareGraphQL reports whether a request is a GraphQL query.
func cloudflareGraphQL(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/graphql") }
