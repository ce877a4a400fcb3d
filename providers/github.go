package providers

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var githubPreset = Preset{Name: "github", Constructor: "GitHub()", kind: "Code and work", New: GitHub}

// GitHub is the API of GitHub, in REST and GraphQL, with the limits of one authenticated user. The
// primary limits are 5,000 REST requests and 5,000 GraphQL points an hour, 30 searches a minute and
// 9 code searches a minute. GitHub counts for a user, whatever the token, so all programs of a user
// share these limits, and responses report how much is left. They also name the limit of the hour, which
// the preset takes over, from 60 requests (without a token) to 15,000 (of Enterprise Cloud; 12,500 points).
// An app has at least 5,000 for each of its installations: set Account to a function that returns the
// installation.
//
// For an Enterprise Server, append its host to Hosts. It has no rate limits unless its administrator
// has set some. If it has none, leave only the limit of concurrent requests, which is a courtesy then:
//
//	p := providers.GitHub()
//	p.Hosts = []string{"github.example.com"}
//	p.Scopes, p.Cost = []providers.Scope{*p.Scope("user")}, nil
//
// Secondary limits also apply, and responses don't report their use: 100 concurrent requests; 900
// REST points and 2,000 GraphQL points a minute, where a write is 5 points and another request 1;
// and 80 requests a minute and 500 an hour that create content. GitHub has more secondary limits,
// for CPU time and undisclosed ones. It doesn't document which requests create content. Every mutation
// is assumed to, and in REST the writes that notify people: of issues, pull requests, their comments
// and reviews, comments on commits, releases, invitations, collaborators and discussions of teams.
// Those that wait for that limit don't delay other requests.
//
// The primary limits are counted in units with the names of GitHub's resources: "core", "search",
// "code_search" and "graphql". Other resources, such as the audit log, have quotas of their own
// with limits that are not published. A quota that is used up pauses only its own requests. A 304
// doesn't count in the hour.
//
// A GraphQL query is charged one primary point. If it asks for rateLimit { cost }, it is then
// charged its real cost. Cost may also return the cost, in the unit "graphql". Mutations are
// recognized in a JSON body.
//
// When the hour is used up, requests wait for the next hour. A refusal by a secondary limit pauses
// all requests for as long as the response asks, or for a minute. The package go-github refuses
// requests beyond the limits itself, unless its Client's DisableRateLimitCheck is set.
func GitHub() Provider {
	const rest = "https://github.com/github/docs/blob/21143d5/content/rest/using-the-rest-api/rate-limits-for-the-rest-api.md"
	const graphql = "https://github.com/github/docs/blob/5ce330d/content/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api.md"
	const search = "https://github.com/github/docs/blob/49d9837/content/rest/search/search.md"
	const secondary = "https://github.com/github/docs/blob/058fa63/data/reusables/rest-api/secondary-rate-limit-rest-graphql.md"
	p := Provider{
		Name: "github",
		Scopes: []Scope{
			some("content", secondary, when(githubCreates), throttle.PerMinute(80), throttle.PerHour(500)),
			some("resource", rest, githubOther, throttle.PerMinute(900)),
			some("core", rest, githubCounts("core"), follows(60, 15_000, githubHour("core"))),
			some("search", search, githubCounts("search"), follows(10, 30, fixed(30, time.Minute, "search"))),
			some("code_search", search, githubCounts("code_search"), fixed(9, time.Minute, "code_search")),
			some("rest", secondary, when(func(req *http.Request) bool { return !githubGraphQL(req) }), minute(900, "points")),
			some("graphql", graphql, when(githubGraphQL), follows(0, 12_500, githubHour("graphql")), minute(2_000, "points")),
			every("user", secondary, throttle.Tier{Limit: 100, Algorithm: throttle.Concurrency}),
		},
		Cost:    githubCost,
		Profile: githubProfile(),
		Hosts:   []string{"api.github.com", "uploads.github.com", "*.ghe.com"},
	}
	p.Scope("content").Shared = true // by REST and GraphQL
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute // until the window ends
	}
	return p
}

// githubHour returns the limit of an hour. The response decides what the request cost.
func githubHour(resource string) throttle.Tier {
	t := fixed(5_000, time.Hour, resource)
	t.Estimated = true
	return t
}

// githubProfile returns a profile that distinguishes primary from secondary limits. The headers
// report the primary limit of the request's resource, which is the unit.
func githubProfile() answers.Profile {
	const left, resource, second = "X-Ratelimit-Remaining", "X-Ratelimit-Resource", "You have exceeded a secondary rate limit*"
	primary := inHeaders("", "X-Ratelimit-Limit", left, answers.Field{Header: "X-Ratelimit-Reset", Format: answers.EpochSeconds})
	primary.UnitIn = resource // a resource has one primary limit, so that no window need be known
	reset := []answers.Field{primary.Reset}
	return answers.Profile{
		Quotas: []answers.Quota{primary},
		Charges: []answers.Charge{
			{Unit: "core", ByStatus: map[int]int64{http.StatusNotModified: 0, 0: 1}},
			{Unit: "graphql", Field: answers.Field{Path: "data.rateLimit.cost"}},
		},
		Rules: []answers.Rule{
			{Status: 403, Header: "Retry-After", Kind: answers.Limited, Wide: true, Reason: "secondary"},
			{Status: 429, Header: "Retry-After", Kind: answers.Limited, Wide: true, Reason: "secondary"},
			{Status: 403, Header: left, Value: "0", Kind: answers.Limited, Delay: reset, Reason: "primary"},
			{Status: 429, Header: left, Value: "0", Kind: answers.Limited, Delay: reset, Reason: "primary"},
			{Status: 403, Path: "message", Text: "You have triggered an abuse detection mechanism*", Kind: answers.Limited, Wait: time.Minute, Wide: true, Reason: "secondary"},
			{Status: 403, Path: "message", Text: "API rate limit exceeded for *", Kind: answers.Limited, Delay: reset, Wait: time.Minute, Reason: "primary"}, // by a gateway that keeps no headers
			{Status: 403, Path: "message", Text: second, Kind: answers.Limited, Wait: time.Minute, Wide: true, Reason: "secondary"},                          // other 403s are missing permissions
			{Status: 429, Kind: answers.Limited, Wait: time.Minute, Wide: true, Reason: "secondary"},
			// A REST response with status 200 may be anyone's file.
			{Status: 200, Header: resource, Value: "graphql", Path: "errors.*.type", Text: "RATE_LIMIT*", Kind: answers.Limited, Delay: reset, Reason: "primary"},
			{Status: 200, Header: resource, Value: "graphql", Path: "errors.*.message", Text: second, Kind: answers.Limited, Wait: time.Minute, Wide: true, Reason: "secondary"},
		},
	}
}

func githubGraphQL(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/graphql") }

// githubResource returns the resource whose primary limit counts a request, as GitHub names it.
// GET /rate_limit is free.
func githubResource(req *http.Request) string {
	path := strings.TrimPrefix(req.URL.Path, "/api/v3") // of an Enterprise Server
	switch {
	case githubGraphQL(req):
		return "graphql"
	case path == "/rate_limit":
		return ""
	case path == "/search/code" && req.Method == http.MethodGet:
		return "code_search"
	case strings.HasPrefix(path, "/search/"):
		return "search"
	case strings.HasPrefix(path, "/scim/"):
		return "scim"
	}
	for _, r := range githubResources {
		if (r.method == "" || r.method == req.Method) && strings.HasPrefix(path, r.begin) && strings.HasSuffix(path, r.end) && strings.Count(path, "/") >= r.depth {
			return r.name
		}
	}
	return "core"
}

// githubResources are the paths with a primary limit of their own, as in GetRateLimitCategory of
// go-github, and the fewest segments of each, because a repository may be named "import".
var githubResources = []struct {
	method, begin, end string
	depth              int
	name               string
}{
	{"POST", "/app-manifests/", "/conversions", 3, "integration_manifest"},
	{"PUT", "/repos/", "/import", 4, "source_import"},
	{"", "", "/code-scanning/sarifs", 4, "code_scanning_upload"},
	{"POST", "/repos/", "/dependency-graph/snapshots", 5, "dependency_snapshots"},
	{"", "", "/audit-log", 3, "audit_log"},
	{"", "/repos/", "/dependency-graph/sbom", 5, "dependency_sbom"},
	{"POST", "/actions/runner-registration", "", 2, "actions_runner_registration"}, // https://github.com/actions/runner/issues/1339
}

// githubCounts returns the Key of the primary limit of a resource.
func githubCounts(resource string) func(*http.Request) (string, bool) {
	return when(func(req *http.Request) bool { return githubResource(req) == resource })
}

// githubOther is the Key of resources whose limits are not published.
func githubOther(req *http.Request) (resource string, counts bool) {
	switch resource = githubResource(req); resource {
	case "", "core", "search", "code_search", "graphql":
		return "", false
	}
	return resource, true
}

// githubContent are the paths whose writes create content: those that trigger notifications, which
// GitHub's own SDK slows down. See
// https://github.com/octokit/plugin-throttling.js/blob/2a9bd81/src/generated/triggers-notification-paths.ts,
// read on 2026-11-28.
var githubContent = strings.Fields(`
	orgs/*/invitations orgs/*/teams/*/discussions orgs/*/teams/*/discussions/*/comments
	repos/*/*/collaborators/* repos/*/*/commits/*/comments repos/*/*/issues repos/*/*/issues/*/comments
	repos/*/*/pulls repos/*/*/pulls/*/comments repos/*/*/pulls/*/comments/*/replies repos/*/*/pulls/*/merge
	repos/*/*/pulls/*/requested_reviewers repos/*/*/pulls/*/reviews repos/*/*/releases
	teams/*/discussions teams/*/discussions/*/comments`)

// githubCreates reports whether a request is assumed to create content. A repository has a path with
// its owner and name, and one with its id.
func githubCreates(req *http.Request) bool {
	if !githubGraphQL(req) {
		path := strings.TrimPrefix(strings.TrimPrefix(req.URL.Path, "/api/v3"), "/")
		if id, is := strings.CutPrefix(path, "repositories/"); is {
			path = "repos/-/" + id
		}
		return !githubReads(req) && slices.ContainsFunc(githubContent, func(pattern string) bool { return matches(pattern, path) })
	}
	var query struct{ Query string }
	return decode(req, &query) && strings.HasPrefix(strings.TrimSpace(query.Query), "mutation")
}

// githubCost returns the cost of a request in secondary limits and, for GraphQL, in primary points.
func githubCost(req *http.Request) throttle.Cost {
	c := throttle.Cost{"points": 1}
	switch resource := githubResource(req); resource {
	case "core", "search", "code_search", "graphql":
		c[resource] = 1
	}
	if githubGraphQL(req) && githubCreates(req) || !githubGraphQL(req) && !githubReads(req) {
		c["points"] = 5
	}
	return c
}

// githubReads reports whether a request of REST only reads.
func githubReads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodOptions
}
