package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var zendeskPreset = Preset{
	Name: "zendesk", Constructor: "Zendesk(requests int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "requests", About: "requests a minute of the account", Min: 1, Default: "200", Example: "700"}},
	call:       func(a arguments) Provider { return Zendesk(a.number("requests")) },
}

// Zendesk is the API of Zendesk Support and Help Center, with the limits of each account. An
// account, which is a host, has a number of requests a minute, by its plan: 200 (Team), 400 (Growth
// and Professional), 700 (Enterprise) or 2,500 (Enterprise Plus, or the High Volume add-on). Where
// responses name another number, it holds. Its
// Help Center has as many of its own, and its attachments have 2,500. Some endpoints also have
// smaller limits, such as 100 updates of tickets a minute and 10 incremental exports. A ticket has
// 30 updates in 10 minutes, and a user, an organization and a view have 5 a minute. With the High
// Volume add-on, updates of tickets have 300 and exports 30: change the scopes "tickets" and
// "exports".
//
// Responses report how much is left, of the account and of endpoints, and when the minute ends. A
// refusal pauses the endpoint or the object, or the account if it has nothing left. If a refusal
// names no wait, the pause is a minute, an hour if it is for the requests of an hour, or seconds if
// there are too many jobs. An account has 30
// jobs at once, which are not limited here. Path segments with a digit are assumed to be ids.
func Zendesk(requests int64) Provider {
	const left = "Ratelimit-Remaining"
	account := follows(0, max(2_500, requests), fixed(requests, time.Minute, "account"))
	p := Provider{
		Name: "zendesk",
		Cost: costsOne("account", zendeskPath),
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				{Unit: "account", Limit: answers.Field{Header: "X-Rate-Limit"}, Remaining: answers.Field{Header: "X-Rate-Limit-Remaining"},
					Reset: answers.Field{Header: "Ratelimit-Reset", Format: answers.Seconds}},
				{Unit: "account", Remaining: answers.Field{Header: left}, Reset: answers.Field{Header: "Ratelimit-Reset", Format: answers.Seconds}},
				{Combined: answers.Field{Header: "Zendesk-Ratelimit-*", Format: answers.Pairs}},
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: left, Value: "0", Kind: answers.Limited, Wait: time.Minute, Wide: true},
				{Status: http.StatusTooManyRequests, Header: "X-Rate-Limit-Remaining", Value: "0", Kind: answers.Limited, Wait: time.Minute, Wide: true},
				// As in https://github.com/zendesk/zendesk_api_client_php/issues/422, read on 2026-11-28.
				{Status: http.StatusTooManyRequests, Text: "*requests per hour exceeded*", Kind: answers.Limited, Wait: time.Hour},
				{Status: http.StatusTooManyRequests, Path: "error", Text: "TooManyJobs", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: time.Minute},
				{Status: http.StatusServiceUnavailable, Text: "*allowed API requests per minute*", Kind: answers.Limited, Wait: time.Minute, Wide: true},
			},
		},
		Hosts: []string{"*.zendesk.com"},
	}
	begins := func(path string) func(*http.Request) (string, bool) {
		return func(req *http.Request) (account string, counts bool) {
			return hostOf(req), strings.HasPrefix(req.URL.Path, path)
		}
	}
	p.Scopes = append(zendeskLimits.scopes(),
		some("chat", zendeskPage, begins("/api/v2/chat/"), throttle.PerMinute(200)),
		some("attachments", zendeskPage, begins("/attachments/token/"), throttle.PerMinute(2_500)),
		some("endpoint", zendeskPage, zendeskEndpoint, fixed(requests, time.Minute, "")), // the account's, until responses report less
		some("account", zendeskPage, zendeskAccount, account))
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p
}

const zendeskPage = "https://developer.zendesk.com/api-reference/introduction/rate-limits/"

// zendeskLimits are limits of the account and, before them, those of its objects. A job for many objects,
// such as PUT tickets/update_many, is none of their updates.
var zendeskLimits = endpointLimits{path: zendeskPath, of: []endpointLimit{
	{"ticket", zendeskPage, 2, throttle.Tier{Limit: 30, Window: 10 * time.Minute}, []string{"PUT tickets/#"}},
	{"view", zendeskPage, 2, throttle.PerMinute(5), []string{"GET views/#/execute"}},
	{"target", zendeskPage, 2, throttle.PerMinute(5), []string{"PUT users/#", "PUT organizations/#"}},
	{"tickets", zendeskPage, together, throttle.PerMinute(100), []string{"PUT tickets/#"}},
	{"deep pages", zendeskPage, together, throttle.PerMinute(50), []string{"GET tickets/deep"}},
	{"users", zendeskPage, together, throttle.PerSecond(1), []string{"PUT users/#", "POST users/create_or_update"}},
	{"exports", zendeskPage, together, throttle.PerMinute(10), []string{"GET incremental", "GET incremental/*", "GET incremental/*/*"}},
	{"search", zendeskPage, together, throttle.PerMinute(100), []string{"GET search/export"}},
	{"side conversations", zendeskPage, together, throttle.Tier{Limit: 300, Window: 10 * time.Minute}, []string{"POST tickets/#/side_conversations", "POST tickets/#/side_conversations/*"}},
	{"events", zendeskPage, together, throttle.Tier{Limit: 600, Window: 10 * time.Minute}, []string{"GET tickets/side_conversations/events"}},
}}

// zendeskPath returns the path of a request below /api/v2/. The tickets beyond page 500 are
// "tickets/deep".
func zendeskPath(req *http.Request) (path string, api bool) {
	path, api = strings.CutPrefix(req.URL.Path, "/api/v2/")
	path = strings.TrimSuffix(strings.TrimSuffix(path, "/"), ".json")
	if path == "tickets" && strings.Contains(req.URL.RawQuery, "page") {
		if page, err := strconv.Atoi(req.URL.Query().Get("page")); err == nil && page > 500 {
			path = "tickets/deep"
		}
	}
	return path, api
}

// zendeskEndpoint is the Key of endpoints without a documented limit.
func zendeskEndpoint(req *http.Request) (key string, counts bool) {
	path, api := zendeskPath(req)
	return endpoint(req.Method, path, isNumbered), api && !zendeskLimits.match(req.Method, path)
}

// zendeskAccount returns the account of a request, with a name for its Help Center.
func zendeskAccount(req *http.Request) (account string, counts bool) {
	path, api := zendeskPath(req)
	account = hostOf(req)
	if strings.HasPrefix(path, "help_center/") {
		account += " help center"
	}
	return account, api
}
