package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var redditPreset = Preset{Name: "reddit", Constructor: "Reddit()", kind: "Social and data", New: Reddit}

// Reddit is the API of Reddit, with the limits of one OAuth client. A client has 100 requests a
// minute, averaged over 10 minutes: 1,000 in each window, whose end responses report. Some accounts
// have more. Requests for tokens have 300 in 5 minutes of their own. Without OAuth, www.reddit.com
// accepts about one request in 2 seconds. The method morechildren has one request at a time.
//
// New accounts may post less, and Reddit doesn't publish how much less. A refusal for this reason
// has status 200. It pauses only writes to its path, for a minute if it names no exact wait.
func Reddit() Provider {
	const page, code = "https://support.reddithelp.com/hc/en-us/articles/16160319875092-Reddit-Data-API-Wiki", "https://github.com/praw-dev/prawcore/blob/06e4730/prawcore/rate_limit.py"
	const more, wiki = "https://github.com/praw-dev/prawcore/pull/112", "https://github.com/reddit-archive/reddit/wiki/API"
	const left, failed = "X-Ratelimit-Remaining", "json.errors.*.*"
	reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.Seconds}
	exact := answers.Field{Path: "json.ratelimit", Format: answers.Seconds}
	return Provider{
		Name: "reddit",
		Scopes: []Scope{
			some("morechildren", more, when(func(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/api/morechildren") }),
				throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}),
			some("write", page, redditWrite, fixed(1_000, 10*time.Minute, "writes")),
			some("oauth", page, when(redditOAuth), fixed(1_000, 10*time.Minute, "")),
			some("token", code, when(redditToken), fixed(300, 5*time.Minute, "")),
			byAddress(some("web", wiki, when(func(req *http.Request) bool { return !redditOAuth(req) && !redditToken(req) }), throttle.Tier{Limit: 1, Window: 2 * time.Second})),
		},
		Cost: costsOne("writes", redditWrite),
		Profile: answers.Profile{
			Quotas: []answers.Quota{{Remaining: answers.Field{Header: left}, Used: answers.Field{Header: "X-Ratelimit-Used"}, Reset: reset}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: left, Value: "0*", Kind: answers.Limited, Delay: []answers.Field{reset}, Wait: time.Second, Wide: true},
				{Status: http.StatusOK, Path: failed, Text: "* milliseconds*", Kind: answers.Limited, Wait: time.Second, Reason: "RATELIMIT"},
				{Status: http.StatusOK, Path: failed, Text: "RATELIMIT", Kind: answers.Limited, Delay: []answers.Field{exact}, Wait: time.Minute},
			},
		},
		Hosts: []string{"oauth.reddit.com", "www.reddit.com", "ssl.reddit.com"},
	}
}

func redditOAuth(req *http.Request) bool {
	return hostOf(req) == "oauth.reddit.com"
}

// redditToken reports whether a request is for a token.
func redditToken(req *http.Request) bool {
	return strings.HasPrefix(req.URL.Path, "/api/v1/access_token") || strings.HasPrefix(req.URL.Path, "/api/v1/revoke_token")
}

// redditWrite returns the path of a request that writes.
func redditWrite(req *http.Request) (path string, counts bool) {
	return strings.TrimSuffix(req.URL.Path, "/"), redditOAuth(req) && req.Method == http.MethodPost && strings.HasPrefix(req.URL.Path, "/api/")
}
