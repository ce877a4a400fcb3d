package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var oktaPreset = Preset{Name: "okta", Constructor: "Okta()", kind: "Clouds and office", New: Okta}

// Okta is the API of Okta, with the limits of each organization and endpoint for one token or app.
// An organization, which is a host, has 75 requests at once (35 in a free one), and each endpoint
// has a number of requests a minute: 600, or 1,200 for /oauth2/v1/authorize and 120 for the log.
// Okta shows the numbers of other endpoints only in its console. Here they begin with 600. Each endpoint
// takes over the number that its responses name, which also depends on the token's share, usually half.
// Endpoints may share a quota, but each uses only its own responses. Signing in with a password has
// 4 attempts a second for each username, and 600 a minute. Keys and metadata are not limited.
//
// When a minute is used up, requests wait for its end. A refusal for too many requests at once,
// which reports a limit of 0, pauses the organization for seconds. A refusal to sign in, and a
// response that reports no attempt left, pause the username, because they don't report whose limit
// it is.
//
// For a domain of your own, append it to Hosts. Path segments that have a digit, or capital letters
// alone, are assumed to be ids.
func Okta() Provider {
	const page = "https://developer.okta.com/docs/reference/rl2-limits/"
	const all, limit = "https://developer.okta.com/docs/reference/rl2-concurrency/", "X-Rate-Limit-Limit"
	endpoints := func(limit int64) func(*http.Request) (string, bool) {
		return func(req *http.Request) (string, bool) {
			_, signsIn := oktaUser(req)
			return endpoint(req.Method, req.URL.EscapedPath(), oktaID), oktaLimit(req) == limit && !signsIn
		}
	}
	reset := answers.Field{Header: "X-Rate-Limit-Reset", Format: answers.EpochSeconds}
	return Provider{
		Name: "okta",
		Scopes: []Scope{
			some("username", page, oktaUser, throttle.Tier{Limit: 4, Window: time.Second, Unit: "attempts"}),
			some("sign-in", page, when(func(req *http.Request) bool { _, signsIn := oktaUser(req); return signsIn }), fixed(600, time.Minute, "attempts")),
			some("log", page, endpoints(120), follows(1, 1_200, fixed(120, time.Minute, ""))),
			some("authorize", page, endpoints(1_200), follows(1, 1_200*oktaMost, fixed(1_200, time.Minute, ""))),
			some("endpoint", page, endpoints(600), follows(1, 600*oktaMost, fixed(600, time.Minute, ""))),
			some("organization", all, func(req *http.Request) (string, bool) { return hostOf(req), oktaLimit(req) > 0 },
				throttle.Tier{Limit: 75, Algorithm: throttle.Concurrency}),
		},
		Cost: costsOne("attempts", oktaUser),
		Profile: answers.Profile{
			Quotas: []answers.Quota{inHeaders("", limit, "X-Rate-Limit-Remaining", reset)},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: limit, Value: "0", Kind: answers.Limited, Wide: true, Reason: "concurrency"},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Delay: []answers.Field{reset}},
			},
		},
		Hosts: []string{"*.okta.com", "*.oktapreview.com", "*.okta-emea.com"},
	}
}

// oktaMost is the highest multiplier of Okta's limits that can be bought:
// https://developer.okta.com/docs/reference/rl2-increase, read on 2026-11-28.
const oktaMost = 1_000

// oktaID reports whether a segment of a path is an id or a login.
func oktaID(segment string) bool {
	return segment != "oauth2" && (isNumbered(segment) || strings.Contains(segment, "@") || strings.Contains(segment, "%40"))
}

// oktaLimit returns the number of requests a minute of an endpoint, or 0 if it has no limit.
func oktaLimit(req *http.Request) int64 {
	path := req.URL.Path
	switch {
	case strings.HasPrefix(path, "/.well-known/"), strings.HasSuffix(path, "/v1/keys") && strings.HasPrefix(path, "/oauth2/"):
		return 0
	case strings.HasPrefix(path, "/api/v1/logs"):
		return 120
	case path == "/oauth2/v1/authorize":
		return 1_200
	}
	return 600
}

// oktaUser returns a name for the user who signs in with a request.
func oktaUser(req *http.Request) (user string, counts bool) {
	if path := req.URL.Path; req.Method == http.MethodPost && (path == "/api/v1/authn" || strings.HasPrefix(path, "/oauth2/") && strings.HasSuffix(path, "/v1/token")) {
		user = param(req, "username")
	}
	return anonymous(user), user != ""
}
