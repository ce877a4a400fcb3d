package providers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Stripe is Stripe's API: in live mode 100 requests a second for an account, in a sandbox
// 25; 25 for an endpoint, which is a method and a path whose ids may be any; 20 for
// searching, 20 each for reading and writing files. The client is taken to use one account;
// sandboxes are known by their keys. Seconds are taken as rolling, for their kind is not
// said. Stripe raises limits on request.
//
// Not limited here are how many requests are open at once, which is not published, and
// what may be done to one object, such as 1,000 updates of a payment intent in an hour.
//
// A refusal names its limit, but no time to wait. One that is of an object alone, or a 429
// because an object is locked, pauses nothing. In a path whatever has a digit or a capital
// letter is taken for an id.
func Stripe() Provider {
	const page = "https://docs.stripe.com/rate-limits"
	return Provider{
		Name: "stripe",
		Scopes: []Scope{
			some("endpoint", page, func(req *http.Request) (string, bool) { return stripeEndpoint(req), true }, throttle.PerSecond(25)),
			some("search", page, when(func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/search") }), throttle.PerSecond(20)),
			some("files", page, stripeFiles, throttle.PerSecond(20)),
			some("sandbox", page, when(stripeSandbox), throttle.PerSecond(25)),
			some("account", page, when(func(req *http.Request) bool { return !stripeSandbox(req) }), throttle.PerSecond(100)),
		},
		Profile: answers.Profile{
			Reasons: []string{"Stripe-Rate-Limited-Reason"},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Value: "global-*", Kind: answers.Limited, Wide: true},
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Value: "resource-specific", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Header: "Stripe-Rate-Limited-Reason", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "error.code", Text: "lock_timeout", Kind: answers.Other},
			},
		},
		Hosts: []string{"api.stripe.com", "files.stripe.com"},
	}
}

// stripeSandbox reports whether the request's key is of a sandbox.
func stripeSandbox(req *http.Request) bool {
	key, _, basic := req.BasicAuth()
	if !basic {
		key = strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
	}
	kind, rest, _ := strings.Cut(key, "_")
	return (kind == "sk" || kind == "rk" || kind == "pk") && strings.HasPrefix(rest, "test_")
}

// stripeEndpoint is the request's method and path, with * for ids.
func stripeEndpoint(req *http.Request) string {
	parts := strings.Split(req.URL.Path, "/")
	for i, part := range parts {
		if strings.ContainsAny(part, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") && part != "v1" && part != "v2" {
			parts[i] = "*"
		}
	}
	return req.Method + " " + strings.Join(parts, "/")
}

func stripeFiles(req *http.Request) (key string, counts bool) {
	if !strings.HasPrefix(req.URL.Path+"/", "/v1/files/") {
		return "", false
	}
	if req.Method == http.MethodGet {
		return "read", true
	}
	return "write", true
}
