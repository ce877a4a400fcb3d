package providers_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const googleAds = "https://googleads.googleapis.com/v21/customers"

func TestGoogleAdsOperations(t *testing.T) {
	long := strings.Repeat(`{"update":{"name":"a campaign with a long name"}},`, 9_999) + `{}`
	for _, test := range []struct {
		call, body string
		want       int64
	}{
		{"/1/googleAds:search", `{"query":"SELECT campaign.id FROM campaign"}`, 1},
		{"/1/googleAds:search", `{"query":"SELECT campaign.id FROM campaign","pageToken":"abc"}`, 0},
		{"/1/googleAds:search", `{"query":"SELECT campaign.id FROM campaign","pageToken":""}`, 1},
		{"/1/googleAds:searchStream", `{"query":"SELECT campaign.id FROM campaign"}`, 1},
		{"/1/adGroups:mutate", `{"operations":[{"create":{}},{"remove":"a"}],"partialFailure":true}`, 2},
		{"/1/googleAds:mutate", `{"mutateOperations":[{"campaignOperation":{"create":{}}},{},{}]}`, 3},
		{"/1/campaigns:mutate", `{"operations":[` + long + `]}`, 10_000},
		{"/1:mutate", `{"operation":{"update":{}}}`, 1},
		{"/1/campaigns:mutate", `{"operations":[`, 1},
		{"/1/offlineUserDataJobs/2:addOperations", `{"operations":[{},{}]}`, 1},
		{"/1:uploadClickConversions", `{"conversions":[{},{}]}`, 1},
	} {
		if got := providers.GoogleAds(0).Cost(postJSON(t, googleAds+test.call, test.body)); got["operations"] != test.want || len(got) != 1 {
			t.Errorf("%s %.60s: %v, want %d operations", test.call, test.body, got, test.want)
		}
	}
	req := postJSON(t, googleAds+"/1/campaigns:mutate", "{}")
	if req.GetBody = nil; providers.GoogleAds(0).Cost(req)["operations"] != 1 {
		t.Error("a body that can't be read doesn't count one")
	}
}

func TestGoogleAdsLimits(t *testing.T) {
	call := func(customer, action string) func() *http.Request {
		return to(t, "POST", googleAds+"/"+customer+action, "{}")
	}
	limited := func(perDay int64) func() providers.Provider {
		return func() providers.Provider {
			p := providers.GoogleAds(perDay)
			p.Scope("customer").Policy.Tiers = []throttle.Tier{throttle.PerSecond(10_000)} // of which a test below is
			return p
		}
	}
	search, accounts := call("1", "/googleAds:search"), to(t, "GET", googleAds+":listAccessibleCustomers")
	byToken := func(token string) func() *http.Request {
		return func() *http.Request {
			req := search()
			req.Header.Set("developer-token", token)
			return req
		}
	}
	checkAtOnce(t, limited(7), []atOnceTest{
		{"searches", 7, []func() *http.Request{search}},
		{"of all customers", 7, []func() *http.Request{search, call("2", "/googleAds:searchStream"), accounts}},
		{"operations", 3, []func() *http.Request{to(t, "POST", googleAds+"/1/campaigns:mutate", `{"operations":[{},{}]}`)}},
		{"two developer tokens", 14, []func() *http.Request{byToken("a"), byToken("b")}},
	})
	checkUnlimited(t, limited(0), "standard access", search)
	checkAtOnce(t, limited(0), []atOnceTest{
		{"plans", 1, []func() *http.Request{call("1", ":generateKeywordIdeas"), call("1", ":generateKeywordHistoricalMetrics"), call("1", ":generateKeywordForecastMetrics")}},
		{"plans of two customers", 2, []func() *http.Request{call("1", ":generateReachForecast"), call("2", ":generateConversionRates")}},
		{"themes", 1, []func() *http.Request{call("1", ":generateAdGroupThemes")}},
		{"insights", 200, []func() *http.Request{call("1", ":generateAudienceCompositionInsights"), call("1", ":generateSuggestedTargetingInsights")}},
		{"targeting of all customers", 1, []func() *http.Request{call("1", ":generateTargetingSuggestionMetrics"), call("2", ":generateTargetingSuggestionMetrics")}},
	})
	learns := func() providers.Provider { return providers.GoogleAds(0) }
	checkAtOnce(t, learns, []atOnceTest{
		{"a customer", 1, []func() *http.Request{search}},
		{"each customer", 2, []func() *http.Request{search, call("2", "/campaigns:mutate")}},
	})
	checkUnlimited(t, learns, "no customer", accounts)
	p := providers.GoogleAds(2_880)
	if got, want := p.Scope("customer").Policy.Tiers[0], (throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1_000}}); got != want {
		t.Errorf("customer: %v, want %v", got, want)
	}
	if got := p.Scope("project").Policy.Tiers[0]; got.Limit != 2_880 || got.Window != 24*time.Hour {
		t.Errorf("project: %v", got)
	}
	for scope, limit := range map[string]int64{"plans": 60, "themes": 120, "targeting": 120} {
		if got, want := p.Scope(scope).Policy.Tiers[0], (throttle.Tier{Limit: limit, Window: time.Minute, PaceBurst: 1}); got != want {
			t.Errorf("%s: %v, want %v", scope, got, want)
		}
	}
	if got := p.Scope("insights").Policy.Tiers[0]; got != throttle.PerDay(200) {
		t.Errorf("insights: %v", got)
	}
}

func TestGoogleAdsRefusals(t *testing.T) {
	failure := func(code, message, details string) string {
		return `{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.ads.googleads.v21.errors.GoogleAdsFailure",` +
			`"errors":[{"errorCode":{"quotaError":"` + code + `"},"message":"` + message + `"` + details + `}],"requestId":"a"}]}}`
	}
	quota := func(scope, name, delay string) string {
		return `,"details":{"quotaErrorDetails":{"rateScope":"` + scope + `","rateName":"` + name + `","retryDelay":"` + delay + `"}}`
	}
	limited := func(body string) fakeapi.Reply { return fakeapi.Reply{Status: 429, Body: body} }
	account := failure("RESOURCE_TEMPORARILY_EXHAUSTED", "Too many requests. Retry in 30 seconds.", quota("ACCOUNT", "Requests per account", "30s"))
	developer := failure("RESOURCE_TEMPORARILY_EXHAUSTED", "Too many requests. Retry in 20 seconds.", quota("DEVELOPER", "Requests per developer token", "20s"))
	day := failure("RESOURCE_EXHAUSTED", "Too many requests. Retry in 40591 seconds.", quota("DEVELOPER", "Number of operations for basic access", "40591s"))
	search, other := to(t, "POST", googleAds+"/1/googleAds:search", "{}"), to(t, "POST", googleAds+"/2/googleAds:search", "{}")
	ideas := to(t, "POST", googleAds+"/1:generateKeywordIdeas", "{}")
	for _, perDay := range []int64{0, 15_000} {
		checkRefusals(t, func() providers.Provider { return providers.GoogleAds(perDay) }, []refusalTest{
			{name: "the customer", first: search, reply: limited(account), want: 30 * time.Second},
			{name: "in a stream", reply: limited("[" + account + "]"), want: 30 * time.Second},
			{name: "other customers go on", next: other, reply: limited(account)},
			{name: "the developer", next: other, reply: limited(developer), want: 20 * time.Second},
			{name: "the developer in a stream", next: other, reply: limited("[" + developer + "]"), want: 20 * time.Second},
			{name: "the day", next: other, reply: limited(day), want: closed},
			{name: "the exact wait", reply: limited(failure("RESOURCE_TEMPORARILY_EXHAUSTED", "a", quota("ACCOUNT", "a", "8.5s"))), want: 8_500 * time.Millisecond},
			{name: "the message alone", reply: limited(failure("RESOURCE_EXHAUSTED", "Too many requests. Retry in 12 seconds.", "")), want: 12 * time.Second},
			{name: "a payments profile", next: other, reply: limited(failure("PAYMENTS_PROFILE_ACTIVATION_RATE_LIMIT_EXCEEDED", "Wait.", quota("DEVELOPER", "a", "20s")))},
			{name: "a plan", first: ideas, reply: limited(failure("RESOURCE_EXHAUSTED", "Too many requests. Retry in 5 seconds.", quota("ACCOUNT", "a", "5s"))), want: 5 * time.Second},
			{name: "after a plan others go on", next: search, reply: limited(failure("RESOURCE_EXHAUSTED", "a", quota("ACCOUNT", "a", "5s")))},
		})
	}
	r := answers.Response{Method: "POST", Status: 429, Body: []byte(day), Got: time.Now()}
	want := answers.Refusal{Kind: answers.Limited, Delay: 40_591 * time.Second, Known: true, FromBody: true, Unit: "operations", Reason: "Number of operations for basic access"}
	if got := providers.GoogleAds(0).Profile.Read(r).Refusal; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
