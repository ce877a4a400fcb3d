package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var pipedrivePreset = Preset{
	Name: "pipedrive", Constructor: "Pipedrive(tokens int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "tokens", About: "tokens a day of the company", Min: 1, Default: "30000", Example: "150000"}},
	call:       func(a arguments) Provider { return Pipedrive(a.number("tokens")) },
}

// Pipedrive is the API of Pipedrive, in versions 1 and 2, with the limits of each company and of
// its tokens. A company, which is a host, has the argument's number of tokens a day, for all of its
// users and apps: 30,000 for each seat, times 1 (Lite), 2 (Growth), 5 (Premium) or 7 (Ultimate),
// and what it has bought. A request costs what Pipedrive's OpenAPI documents say: in version 1, 2
// for one object, 20 for a list, 10 for a change, 6 for a deletion and 40 for a search; in version
// 2 half of that. Some endpoints cost more or less, such as 80 for a summary of archived deals. An
// endpoint that the documents lack costs as much as others of its kind. A failed request is assumed
// to cost as much.
//
// A user's API token also has 20 requests in any 2 seconds, and the access token of an app 80.
// These are the numbers of Lite. Growth has 40 and 160, Premium 100 and 400, and Ultimate 120 and
// 480. A token has 10 searches in 2 seconds, whatever the plan. Searches are assumed to count as
// its requests, too, because Pipedrive doesn't document it. Responses name the limit of 2 seconds
// and, though no page says so, the limit of the day. The tiers take both over. Responses also
// report how many POST and PUT requests an API token has left in the day, which ends at midnight in
// UTC.
//
// The API token or access token of a request is in the header x-api-token, in the parameter
// api_token, or in the header Authorization. Requests to api.pipedrive.com are taken to be of one
// company: for several, set Account.
//
// The company's day ends at midnight in the time zone of Pipedrive's servers, which it doesn't
// name. So the company has its tokens in any 24 hours, until a response reports that more are left.
// After a refusal that reports no tokens left, because others have used them, one request tries
// each hour. A refusal that reports requests left in the 2 seconds is assumed to be about the day,
// too, and pauses the company for a minute. Any other refusal pauses the token, or its searches,
// for as long as it asks, usually 10 seconds. A client that goes on after refusals gets a page by
// Cloudflare with status 403, for a time that isn't documented. The token is then closed with
// throttle.ErrBanned, and one request tries after each Policy.MaxPause. Other 403s pause nothing.
func Pipedrive(tokens int64) Provider {
	const page = "https://pipedrive.readme.io/docs/core-api-concepts-rate-limiting"
	const left = "X-Ratelimit-Remaining"
	const refused, penalty = http.StatusTooManyRequests, 10 * time.Second
	reset := []answers.Field{{Header: "X-Ratelimit-Reset", Format: answers.Seconds}}
	calls := func(ofApp bool) func(*http.Request) (string, bool) {
		return func(req *http.Request) (string, bool) {
			token, app := pipedriveToken(req)
			_, _, api := pipedrivePath(req)
			return anonymous(token), api && app == ofApp
		}
	}
	company := func(req *http.Request) (host string, counts bool) {
		_, _, counts = pipedrivePath(req)
		return hostOf(req), counts
	}
	burst := func(n int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: n, Window: 2 * time.Second, Unit: unit}
	}
	budget := throttle.PerDay(tokens)
	budget.Unit = "tokens"
	// Each write costs tokens, so that only responses limit the writes.
	writes := throttle.Tier{Limit: tokens, Unit: "writes", Algorithm: throttle.Calendar, Period: throttle.Day}
	const seats = 1_000 // of a large company
	p := Provider{
		Name: "pipedrive",
		Scopes: []Scope{
			some("search", page, when(pipedriveSearches), burst(10, "search")),
			some("writes", page, when(pipedriveWrites), writes),
			some("token", page, calls(false), follows(0, 120, burst(20, "burst"))),
			some("app", page, calls(true), follows(0, 480, burst(80, "burst"))),
			some("company", page, company, tenfold(30_000*7*seats, budget)),
		},
		Cost: pipedriveCost,
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				{Window: 2 * time.Second, Read: pipedriveBurst},
				{Name: "daily", Unit: "tokens", Authoritative: true, Read: pipedriveDay},
				{Name: "writes", Unit: "writes", Remaining: answers.Field{Header: "X-Daily-Requests-Left"}},
			},
			Rules: []answers.Rule{
				{Status: refused, Header: pipedriveLeft, Value: "0", Kind: answers.Limited, Wait: time.Hour, Wide: true, Reason: "daily"},
				{Status: refused, Header: "X-Ratelimit-Limit", Value: pipedriveMost, Kind: answers.Limited, Delay: reset, Wait: penalty, Unit: "search", Reason: "search"},
				{Status: refused, Header: left, Value: "0", Kind: answers.Limited, Delay: reset, Wait: penalty, Unit: "burst", Reason: "burst"},
				{Status: refused, Header: left, Kind: answers.Limited, Wait: time.Minute, Wide: true, Reason: "daily"},
				{Status: refused, Kind: answers.Limited, Wait: penalty, Unit: "burst"},
				{Status: http.StatusForbidden, Header: "Content-Type", Value: "text/html*", Kind: answers.Banned, Unit: "burst", Reason: "Cloudflare"},
			},
		},
		Hosts: []string{"*.pipedrive.com"},
	}
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p.readOn("2026-11-29")
}

// pipedriveMost is the limit that the responses to searches name, which is less than that of any token.
const pipedriveMost = "10"

// pipedriveBurst reads the limit of 2 seconds.
func pipedriveBurst(r answers.Response) []answers.Reading {
	limit, err := strconv.ParseInt(r.Header.Get("X-Ratelimit-Limit"), 10, 64)
	if err != nil || limit <= 0 {
		return nil
	}
	reading := answers.Reading{Name: "burst", Unit: "burst", Limit: limit}
	if r.Header.Get("X-Ratelimit-Limit") == pipedriveMost {
		reading.Name, reading.Unit = "search", "search"
	}
	if left, err := strconv.ParseInt(r.Header.Get("X-Ratelimit-Remaining"), 10, 64); err == nil {
		reading.Remaining, reading.Has = left, answers.HasRemaining
	}
	return []answers.Reading{reading}
}

// pipedriveLeft is the header of the tokens that are left in the day.
const pipedriveLeft = "X-Daily-Ratelimit-Token-Remaining"

// pipedriveDay reads the tokens of the day. If a refusal reports none, others have used them, and the day may
// end at any time: the reading then counts for an hour.
func pipedriveDay(r answers.Response) []answers.Reading {
	var reading answers.Reading
	reading.Limit, _ = strconv.ParseInt(r.Header.Get("X-Daily-Ratelimit-Token-Limit"), 10, 64)
	if left, err := strconv.ParseInt(r.Header.Get(pipedriveLeft), 10, 64); err == nil && left >= 0 {
		reading.Remaining, reading.Has = left, answers.HasRemaining
		if left == 0 && r.Status == http.StatusTooManyRequests {
			reading.Reset, reading.Has = time.Hour, answers.HasRemaining|answers.HasReset
		}
	}
	return []answers.Reading{reading}
}

// pipedriveToken returns the token of a request, and whether it is the access token of an app.
func pipedriveToken(req *http.Request) (token string, app bool) {
	if token = req.Header.Get("X-Api-Token"); token != "" {
		return token, false
	}
	if token = req.Header.Get("Authorization"); token != "" {
		return token, true
	}
	return req.URL.Query().Get("api_token"), false
}

// pipedrivePath returns the version of the API, and the path of a request below it. The code of a field is
// a number there.
func pipedrivePath(req *http.Request) (version, path string, api bool) {
	path = strings.TrimPrefix(strings.Trim(req.URL.Path, "/"), "api/")
	version, path, _ = strings.Cut(path, "/")
	if fields, code, ok := strings.Cut(path, "Fields/"); ok {
		_, rest, more := strings.Cut(code, "/")
		path = fields + "Fields/0"
		if more {
			path += "/" + rest
		}
	}
	return version, path, version == "v1" || version == "v2"
}

// pipedriveSearches reports whether a request is a search.
func pipedriveSearches(req *http.Request) bool {
	_, path, api := pipedrivePath(req)
	return api && (path == "itemSearch" || path == "itemSearch/field" || strings.HasSuffix(path, "/search"))
}

// pipedriveWrites reports whether a request is one of those that an API token has so many of in a day.
func pipedriveWrites(req *http.Request) bool {
	_, app := pipedriveToken(req)
	_, _, api := pipedrivePath(req)
	return api && !app && (req.Method == http.MethodPost || req.Method == http.MethodPut)
}

// pipedriveCost returns what a request costs in each of the limits.
func pipedriveCost(req *http.Request) throttle.Cost {
	version, path, api := pipedrivePath(req)
	if !api {
		return nil
	}
	key := strings.Replace(endpoint(req.Method, path, isNumbered), " ", ":", 1)
	n, known := pipedriveCosts[version][key]
	if !known {
		n = pipedriveKind(req, version, strings.HasSuffix(key, "/*"))
	}
	c := throttle.Cost{"tokens": int64(n), "burst": 1}
	if pipedriveSearches(req) {
		c["search"] = 1
	}
	if pipedriveWrites(req) {
		c["writes"] = 1
	}
	return c
}

// pipedriveKind returns what a request costs by its kind. The path of a request for a single object ends in
// an id.
func pipedriveKind(req *http.Request, version string, single bool) (cost int) {
	switch {
	case pipedriveSearches(req):
		cost = 40
	case req.Method == http.MethodGet && single:
		cost = 2
	case req.Method == http.MethodGet:
		cost = 20
	case req.Method == http.MethodDelete && (single || version == "v2"):
		cost = 6
	default:
		cost = 10
	}
	if version == "v2" {
		cost /= 2
	}
	return cost
}

// pipedriveCosts are the costs of the endpoints that don't cost as much as others of their kind, by version,
// method and path, from https://developers.pipedrive.com/docs/api/v1/openapi.yaml and
// https://developers.pipedrive.com/docs/api/v1/openapi-v2.yaml, as in
// https://github.com/juhokoskela/pipedrive-go/tree/cc37803/openapi/upstream, read on 2026-11-29.
var pipedriveCosts = map[string]map[string]int{
	"v1": table(map[int]string{
		2: "GET:leadSources GET:userSettings GET:users/me",
		6: "DELETE:persons/*/picture DELETE:roles/*/assignments",
		10: `GET:deals/*/participantsChangelog GET:deals/*/participants GET:deals/*/permittedUsers
			GET:leads/*/permittedUsers GET:organizations/*/permittedUsers GET:persons/*/permittedUsers
			GET:products/*/permittedUsers GET:leadLabels GET:roles/*/assignments GET:users/*/permissions
			GET:users/*/roleAssignments GET:users/*/roleSettings GET:webhooks`,
		20: "GET:mailbox/mailThreads/* GET:legacyTeams/user/*",
		40: `GET:deals/archived GET:deals/summary GET:deals/timeline/archived GET:deals/*/flow
			GET:organizations/*/flow GET:persons/*/flow GET:leads/archived GET:pipelines/*/conversion_statistics
			GET:pipelines/*/movement_statistics GET:users/find PUT:deals/*/merge PUT:organizations/*/merge
			PUT:persons/*/merge`,
		80: "GET:deals/summary/archived",
	}),
	"v2": table(map[int]string{
		1:  "GET:persons/*/picture",
		3:  "POST:projects/*/archive",
		5:  "GET:stages GET:pipelines GET:projects/*/permittedUsers",
		6:  "DELETE:products/*/images",
		10: "GET:boards/* GET:phases/*",
		15: "DELETE:deals/*/products",
		20: "GET:deals/archived POST:products/*/images PUT:products/*/images",
		25: "POST:deals/*/products/bulk",
		40: "POST:deals/*/convert/lead POST:leads/*/convert/deal",
	}),
}
