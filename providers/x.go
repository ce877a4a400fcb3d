package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var xPreset = Preset{Name: "x", Constructor: "X()", kind: "Social and data", New: X}

// X is the API of X, formerly Twitter, with the limits of each endpoint for one token, as responses
// report them. Each endpoint, which is a method and a path without its ids, has a quota for each
// user, or for the app if the request has the app's token. A window of 15 minutes opens with a
// request. X publishes no limit that holds for every plan: until its first response an endpoint is
// not limited. Then it has the limit that responses name, and requests wait for the reset when nothing is
// left.
//
// Posting has limits of 24 hours, too. When one is used up, the endpoint is closed with
// throttle.ErrBanned until the reset, unless the MaxPause of the scope "endpoint" allows such a
// wait. When the posts of a month or the credits are used up, a refusal pauses nothing. Path
// segments with a digit, and names after "username", are assumed to be ids.
func X() Provider {
	const page = "https://docs.x.com/fundamentals/rate-limits"
	reset := answers.Field{Header: "X-Rate-Limit-Reset", Format: answers.EpochSeconds}
	userReset := answers.Field{Header: "X-User-Limit-24hour-Reset", Format: answers.EpochSeconds}
	appReset := answers.Field{Header: "X-App-Limit-24hour-Reset", Format: answers.EpochSeconds}
	const day = 24 * time.Hour
	p := Provider{
		Name: "x",
		Scopes: []Scope{some("endpoint", page, xEndpoint,
			follows(1, 1_000_000, throttle.Tier{Limit: 1_000_000, Window: 15 * time.Minute, Algorithm: throttle.AnchoredWindow}))},
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				{Window: 15 * time.Minute, Limit: answers.Field{Header: "X-Rate-Limit-Limit"}, Remaining: answers.Field{Header: "X-Rate-Limit-Remaining"}, Reset: reset},
				{Name: "user", Window: day, Limit: answers.Field{Header: "X-User-Limit-24hour-Limit"}, Remaining: answers.Field{Header: "X-User-Limit-24hour-Remaining"}, Reset: userReset},
				{Name: "app", Window: day, Limit: answers.Field{Header: "X-App-Limit-24hour-Limit"}, Remaining: answers.Field{Header: "X-App-Limit-24hour-Remaining"}, Reset: appReset},
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "title", Text: "UsageCapExceeded", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Header: "X-User-Limit-24hour-Remaining", Value: "0", Kind: answers.Limited, Delay: []answers.Field{userReset}, Reason: "user"},
				{Status: http.StatusTooManyRequests, Header: "X-App-Limit-24hour-Remaining", Value: "0", Kind: answers.Limited, Delay: []answers.Field{appReset}, Reason: "app"},
				{Status: http.StatusTooManyRequests, Header: "X-Rate-Limit-Remaining", Value: "0", Kind: answers.Limited, Delay: []answers.Field{reset}},
			},
		},
		Hosts: []string{"api.x.com", "api.twitter.com", "upload.x.com", "upload.twitter.com"},
	}
	p.Scopes[0].Policy.MaxPause = 16 * time.Minute // until the window ends
	return p
}

// xEndpoint returns the method and path of a request, with * for ids.
func xEndpoint(req *http.Request) (endpoint string, counts bool) {
	parts := strings.Split(req.URL.Path, "/")
	for i := range parts {
		if i > 1 && (strings.ContainsAny(parts[i], "0123456789") || parts[i-1] == "username") {
			parts[i] = "*"
		}
	}
	return req.Method + " " + strings.Join(parts, "/"), true
}
