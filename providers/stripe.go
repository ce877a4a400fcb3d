package providers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var stripePreset = Preset{Name: "stripe", Constructor: "Stripe()", kind: "Payments and shops", New: Stripe}

// Stripe is the API of Stripe, with the limits of one account. An account has 100 requests a second
// in live mode and 25 in a sandbox. An endpoint, which is a method and a path without its ids, has
// 25 a second. Searching, reading files and writing files have 20 each, creating payouts has 15 and
// 30 at once, and creating accounts in a sandbox has 5. In live mode meter events have 1,000 a
// second, apart from the account's limit, unless they are for a connected account; the stream of
// meter events has 10,000. A request counts in the sandbox if its key is a test key. Stripe doesn't
// document the kind of window, so windows roll. Stripe raises limits on request.
//
// These are not limited here: the unpublished number of concurrent requests; the limits of one
// object, such as 1,000 updates of a payment intent in an hour; the meter events of one customer
// and meter, which must not be concurrent; and the 500 reads for each transaction that Stripe
// allows on average over 30 days.
//
// A refusal names its limit, but no wait. A refusal for one object, or a 429 for a locked object,
// pauses nothing. Path segments with a digit or a capital letter are assumed to be ids.
func Stripe() Provider {
	const page = "https://docs.stripe.com/rate-limits"
	return Provider{
		Name: "stripe",
		Scopes: []Scope{
			some("meter_stream", "https://docs.stripe.com/api/v2/billing/meter-event-stream/create", when(stripeStream), throttle.PerSecond(10_000)),
			some("meter_events", page, when(stripeMeter), throttle.PerSecond(1_000)),
			some("accounts", page, when(func(req *http.Request) bool {
				return stripeSandbox(req) && req.Method == http.MethodPost && req.URL.Path == "/v1/accounts"
			}), throttle.PerSecond(5)),
			some("payouts", page, when(func(req *http.Request) bool { return req.Method == http.MethodPost && req.URL.Path == "/v1/payouts" }),
				throttle.PerSecond(15), throttle.Tier{Limit: 30, Algorithm: throttle.Concurrency}),
			some("endpoint", page, func(req *http.Request) (string, bool) {
				return endpoint(req.Method, req.URL.Path, stripeID), !stripeMeter(req) && !stripeStream(req)
			}, throttle.PerSecond(25)),
			some("search", page, when(func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/search") }), throttle.PerSecond(20)),
			some("files", page, stripeFiles, throttle.PerSecond(20)),
			some("sandbox", page, when(func(req *http.Request) bool { return stripeSandbox(req) && !stripeStream(req) }), throttle.PerSecond(25)),
			some("account", page, when(func(req *http.Request) bool { return !stripeSandbox(req) && !stripeMeter(req) && !stripeStream(req) }), throttle.PerSecond(100)),
		},
		Profile: answers.Profile{
			Reasons: []answers.Field{{Header: "Stripe-Rate-Limited-Reason"}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Value: "global-*", Kind: answers.Limited, Wide: true},
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Value: "resource-specific", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "error.code", Text: "lock_timeout", Kind: answers.Other},
				{Status: http.StatusBadRequest, Path: "error.code", Text: "rate_limit", Kind: answers.Limited},
				{Status: http.StatusBadRequest, Path: "error.message", Text: "*too quickly*", Kind: answers.Limited, Reason: "accounts"},
			},
		},
		Hosts: []string{"api.stripe.com", "files.stripe.com", "meter-events.stripe.com"},
	}
}

// stripeSandbox reports whether the request has a test key.
func stripeSandbox(req *http.Request) bool {
	key, _, basic := req.BasicAuth()
	if !basic {
		key = strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	}
	kind, rest, _ := strings.Cut(key, "_")
	return (kind == "sk" || kind == "rk" || kind == "pk") && strings.HasPrefix(rest, "test_")
}

// stripeMeter reports whether the request is a meter event in live mode, of no connected account.
func stripeMeter(req *http.Request) bool {
	return req.Method == http.MethodPost && req.URL.Path == "/v1/billing/meter_events" && !stripeSandbox(req) &&
		req.Header.Get("Stripe-Account") == ""
}

// stripeStream reports whether the request is for the stream of meter events.
func stripeStream(req *http.Request) bool {
	return hostOf(req) == "meter-events.stripe.com"
}

// stripeID reports whether a segment of a path is an id.
func stripeID(segment string) bool {
	return strings.ContainsAny(segment, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") && segment != "v1" && segment != "v2"
}

// stripeFiles returns the quota of a request for files.
func stripeFiles(req *http.Request) (key string, counts bool) {
	if !strings.HasPrefix(req.URL.Path+"/", "/v1/files/") {
		return "", false
	}
	if req.Method == http.MethodGet {
		return "read", true
	}
	return "write", true
}
