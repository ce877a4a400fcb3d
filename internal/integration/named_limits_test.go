package integration

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	"github.com/apithrottle/throttle/answers/profiles"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// A naming is a kind of header that names limits, as an API was captured or documents it: the responses of
// two plans. "Changed" marks a response whose numbers are not those of the source, of which no source shows
// a second plan.
type naming struct {
	kind    string
	source  string // of the responses; all were read on 2026-11-28
	profile answers.Profile
	tiers   string   // the tiers before the first response, below the first plan
	high    []string // headers of the first plan, "name: value"; one without a name is a body
	limits  []int64  // of the tiers under the first plan
	low     []string // of the second plan
	fewer   []int64
}

func profileOf(name string) answers.Profile {
	e, err := profiles.Named(name)
	if err != nil {
		panic(err)
	}
	return e.Profile
}

var namings = []naming{
	{
		kind: "limit, remaining and resource", source: "github.com/github/docs rate-limits-for-the-rest-api.md; google/go-github github_test.go (60 without a token)",
		profile: providers.GitHub().Profile, tiers: "1000/h;unit=core;algo=fixed_window;phase=unknown;follow=60..15000",
		high: []string{"X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 4999", "X-RateLimit-Used: 1", "X-RateLimit-Resource: core"}, limits: []int64{5_000},
		low: []string{"X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 59", "X-RateLimit-Used: 1", "X-RateLimit-Resource: core"}, fewer: []int64{60},
	},
	{
		kind: "limits by unit, minutes by their reset", source: "answers of OpenAI recorded on 2025-05-03 and 2025-08-12, in testdata/fixtures/openai.json",
		profile: providers.OpenAI(500, 30_000).Profile, tiers: "100/m;follow=10000 + 20000/m;unit=tokens;follow=10000000",
		high:   []string{"x-ratelimit-limit-requests: 10000", "x-ratelimit-remaining-requests: 9999", "x-ratelimit-reset-requests: 6ms", "x-ratelimit-limit-tokens: 10000000", "x-ratelimit-remaining-tokens: 9999737", "x-ratelimit-reset-tokens: 1ms"},
		limits: []int64{10_000, 10_000_000},
		low:    []string{"x-ratelimit-limit-requests: 500", "x-ratelimit-remaining-requests: 499", "x-ratelimit-reset-requests: 120ms", "x-ratelimit-limit-tokens: 30000", "x-ratelimit-remaining-tokens: 29993", "x-ratelimit-reset-tokens: 14ms"},
		fewer:  []int64{500, 30_000},
	},
	{
		kind: "limits by unit, with dates", source: "github.com/whoz-oss/coday/issues/110; platform.claude.com/docs/en/api/rate-limits",
		profile: providers.Anthropic(50, 30_000, 8_000).Profile,
		tiers:   "50/m;follow=4000 + 30000/m;unit=input-tokens;algo=token_bucket;follow=4000000 + 8000/m;unit=output-tokens;algo=token_bucket;follow=800000",
		high:    []string{"anthropic-ratelimit-requests-limit: 4000", "anthropic-ratelimit-requests-remaining: 4000", "anthropic-ratelimit-input-tokens-limit: 200000", "anthropic-ratelimit-output-tokens-limit: 80000", "anthropic-ratelimit-tokens-limit: 280000"},
		limits:  []int64{4_000, 200_000, 80_000},
		low:     []string{"anthropic-ratelimit-requests-limit: 1000", "anthropic-ratelimit-requests-remaining: 998", "anthropic-ratelimit-input-tokens-limit: 40000", "anthropic-ratelimit-output-tokens-limit: 8000", "anthropic-ratelimit-tokens-limit: 30000"},
		fewer:   []int64{1_000, 40_000, 8_000},
	},
	{
		kind: "limit with its window in a header", source: "answers of Azure, in testdata/fixtures/azureopenai.json",
		profile: providers.AzureOpenAI(600, 100_000).Profile, tiers: "600/m + 100/10s + 100000/m;unit=tokens;follow=1000..5000000",
		high:   []string{"x-ratelimit-limit-requests: 20000", "x-ratelimit-remaining-requests: 19999", "x-ratelimit-renewalperiod-requests: 60", "x-ratelimit-limit-tokens: 2000000", "x-ratelimit-remaining-tokens: 1999992", "x-ratelimit-renewalperiod-tokens: 60"},
		limits: []int64{600, 100, 2_000_000},
		low:    []string{"x-ratelimit-limit-tokens: 5000", "x-ratelimit-remaining-tokens: 0", "x-ratelimit-renewalperiod-tokens: 60", "x-ratelimit-reset-tokens: 0"}, fewer: []int64{600, 100, 5_000},
	},
	{
		kind: "limit with its window in milliseconds, and of a day", source: "developers.hubspot.com/changelog/increasing-our-api-limits; usage-details, in testdata/fixtures/hubspot.json. The higher limits are changed",
		profile: providers.HubSpot("UTC").Profile, tiers: "100/10s;unit=burst;follow=250 + 250000/day;follow=3000000",
		high:   []string{"X-HubSpot-RateLimit-Max: 190", "X-HubSpot-RateLimit-Remaining: 187", "X-HubSpot-RateLimit-Interval-Milliseconds: 10000", "X-HubSpot-RateLimit-Daily: 1000000", "X-HubSpot-RateLimit-Daily-Remaining: 999990"},
		limits: []int64{190, 1_000_000},
		low:    []string{"X-HubSpot-RateLimit-Max: 100", "X-HubSpot-RateLimit-Remaining: 97", "X-HubSpot-RateLimit-Interval-Milliseconds: 10000", "X-HubSpot-RateLimit-Daily: 250000", "X-HubSpot-RateLimit-Daily-Remaining: 249990"},
		fewer:  []int64{100, 250_000},
	},
	{
		kind: "used/limit of a bucket", source: "Shopify, in testdata/fixtures/shopify.json; shopify.dev/docs/api/admin-rest/usage/rate-limits",
		profile: providers.ShopifyREST().Profile, tiers: "2/s;algo=leaky_bucket;burst=40;follow=800",
		high: []string{"X-Shopify-Shop-Api-Call-Limit: 1/80"}, limits: []int64{80},
		low: []string{"X-Shopify-Shop-Api-Call-Limit: 32/40"}, fewer: []int64{40},
	},
	{
		kind: "bucket in a body", source: "Shopify, in testdata/fixtures/shopify.json",
		profile: providers.ShopifyGraphQL().Profile, tiers: "100/s;algo=leaky_bucket;burst=2000;unit=points;follow=40000",
		high:   []string{`{"data": {"shop": {"name": "REDACTED"}}, "extensions": {"cost": {"requestedQueryCost": 2, "actualQueryCost": 2, "throttleStatus": {"maximumAvailable": 4000.0, "currentlyAvailable": 3998, "restoreRate": 200.0}}}}`},
		limits: []int64{4_000},
		low:    []string{`{"data": {"customers": {"nodes": []}}, "extensions": {"cost": {"requestedQueryCost": 12, "actualQueryCost": 3, "throttleStatus": {"maximumAvailable": 1000, "currentlyAvailable": 985, "restoreRate": 50}}}}`},
		fewer:  []int64{1_000},
	},
	{
		kind: "named uses", source: "developer.salesforce.com headers_api_usage.htm; answers of Salesforce, in testdata/fixtures/salesforce.json",
		profile: providers.Salesforce(15_000).Profile, tiers: "15000/d;follow=500..150000 + 15000/d;algo=token_bucket;burst=15000;unit=org;follow=500..150000",
		high: []string{"Sforce-Limit-Info: api-usage=10018/100000; api-bursts=1/750"}, limits: []int64{100_000, 100_000},
		low: []string{"Sforce-Limit-Info: api-usage=25/5000; per-app-api-usage=17/250(appName=sample-connected-app)"}, fewer: []int64{5_000, 5_000},
	},
	{
		kind: "limit beside those of endpoints", source: "developer.zendesk.com/api-reference/introduction/rate-limits; an account with 400 a minute, in testdata/fixtures/zendesk.json",
		profile: providers.Zendesk(200).Profile, tiers: "200/m;unit=account;algo=fixed_window;follow=2500",
		high: []string{"x-rate-limit: 700", "ratelimit-limit: 700", "x-rate-limit-remaining: 699", "ratelimit-remaining: 699", "ratelimit-reset: 41", "zendesk-ratelimit-tickets-index: total=100; remaining=99; resets=41"}, limits: []int64{700},
		low: []string{"x-rate-limit: 400", "ratelimit-remaining: 384", "ratelimit-reset: 50", "zendesk-ratelimit-incremental-exports: total=10; remaining=9; resets=2"}, fewer: []int64{400},
	},
	{
		kind: "limit of an endpoint", source: "developer.okta.com rl-best-practices; Okta, in testdata/fixtures/okta.json",
		profile: providers.Okta().Profile, tiers: "600/m;algo=fixed_window;follow=1..600000",
		high: []string{"X-Rate-Limit-Limit: 1200", "X-Rate-Limit-Remaining: 1199"}, limits: []int64{1_200},
		low: []string{"X-Rate-Limit-Limit: 50", "X-Rate-Limit-Remaining: 0"}, fewer: []int64{50},
	},
	{
		kind: "limit of a minute, with the name of the quota", source: "GitLab, in testdata/fixtures/gitlab.json",
		profile: providers.GitLab().Profile, tiers: "200/m;unit=throttle_authenticated_api;algo=fixed_window;follow=2000",
		high: []string{"RateLimit-Name: throttle_authenticated_api", "RateLimit-Limit: 2000", "RateLimit-Observed: 1", "RateLimit-Remaining: 1999"}, limits: []int64{2_000},
		low: []string{"RateLimit-Name: throttle_authenticated_api", "RateLimit-Limit: 60", "RateLimit-Observed: 67", "RateLimit-Remaining: 0"}, fewer: []int64{60},
	},
	{
		kind: "limit and remaining of a window in the headers' names", source: "answers of Mistral of 2026-08-18, in testdata/fixtures/mistral.json",
		profile: providers.OpenAICompatible("api.mistral.ai", 60, 60_000).Profile, tiers: "60/m;follow=1000 + 60000/m;unit=tokens;follow=1000000",
		high: []string{"x-ratelimit-limit-req-minute: 188", "x-ratelimit-remaining-req-minute: 187", "x-ratelimit-limit-tokens-minute: 625000", "x-ratelimit-remaining-tokens-minute: 624982"}, limits: []int64{188, 625_000},
		low: []string{"x-ratelimit-limit-req-minute: 50", "x-ratelimit-remaining-req-minute: 48", "x-ratelimit-limit-tokens-minute: 50000", "x-ratelimit-remaining-tokens-minute: 49962"}, fewer: []int64{50, 50_000},
	},
	{
		kind: "a day and a minute in two headers of one form", source: "console.groq.com/docs/rate-limits; Groq, in testdata/fixtures/groq.json",
		profile: providers.OpenAICompatible("api.groq.com", 30, 8_000).Profile, tiers: "30/m;follow=300 + 10000/m;unit=tokens;follow=80000",
		high: []string{"x-ratelimit-limit-requests: 14400", "x-ratelimit-remaining-requests: 14370", "x-ratelimit-reset-requests: 2m59.56s", "x-ratelimit-limit-tokens: 18000", "x-ratelimit-remaining-tokens: 17997", "x-ratelimit-reset-tokens: 7.66s"}, limits: []int64{30, 18_000},
		low: []string{"x-ratelimit-limit-requests: 1000", "x-ratelimit-remaining-requests: 955", "x-ratelimit-limit-tokens: 8000", "x-ratelimit-remaining-tokens: 7927"}, fewer: []int64{30, 8_000},
	},
	{
		kind: "three windows at once", source: "docs.x.com/fundamentals/rate-limits; PLhery/node-twitter-api-v2 test/rate-limit.test.ts",
		profile: providers.X().Profile, tiers: "100/15m;algo=anchored_window;follow=1..1000000",
		high: []string{"x-rate-limit-limit: 900", "x-rate-limit-remaining: 847"}, limits: []int64{900},
		low: []string{"x-rate-limit-limit: 15", "x-rate-limit-remaining: 14", "x-app-limit-24hour-limit: 5000", "x-app-limit-24hour-remaining: 4999", "x-user-limit-24hour-limit: 1000", "x-user-limit-24hour-remaining: 999"}, fewer: []int64{15},
	},
	{
		kind: "limit and what is left, of an endpoint", source: "bybit-exchange/docs guideline.mdx and rate-limit.mdx",
		profile: providers.Bybit().Profile, tiers: "20/s;unit=calls;follow=1..600",
		high: []string{"X-Bapi-Limit: 150", "X-Bapi-Limit-Status: 147"}, limits: []int64{150},
		low: []string{"X-Bapi-Limit: 10", "X-Bapi-Limit-Status: 9"}, fewer: []int64{10},
	},
	{
		kind: "RateLimit-Policy, read by fields", source: "measured at api.cloudflare.com, in testdata/fixtures/cloudflare.json. The lower limit is changed",
		profile: providers.Cloudflare().Profile, tiers: "600/5m;follow=12000",
		high: []string{`ratelimit-policy: "default";q=1200;w=300`, `ratelimit: "default";r=1199;t=1`}, limits: []int64{1_200},
		low: []string{`ratelimit-policy: "default";q=300;w=300`, `ratelimit: "default";r=299;t=1`}, fewer: []int64{300},
	},
	{
		kind: "limit of a minute near its end", source: "learn.microsoft.com how-to-avoid-getting-throttled-or-blocked-in-sharepoint-online. The lower limit is changed",
		profile: providers.MicrosoftGraph().Profile, tiers: "1000/m;unit=files;follow=6000 + 1200000/d;unit=files",
		high: []string{"RateLimit-Limit: 1200", "RateLimit-Remaining: 120", "RateLimit-Reset: 5"}, limits: []int64{1_200, 1_200_000},
		low: []string{"RateLimit-Limit: 600", "RateLimit-Remaining: 120", "RateLimit-Reset: 5"}, fewer: []int64{600, 1_200_000},
	},
	{
		kind: "IETF draft -03: policies behind the limit", source: "github.com/ietf-wg-httpapi/ratelimit-headers, tag draft-03. The lower limits are changed",
		profile: ietf.Profile(), tiers: "5/s;follow=100 + 500/h;follow=10000",
		high: []string{"RateLimit-Limit: 10, 10;w=1;burst=1000, 1000;w=3600", "RateLimit-Remaining: 9"}, limits: []int64{10, 1_000},
		low: []string{"RateLimit-Limit: 2, 2;w=1;burst=1000, 100;w=3600", "RateLimit-Remaining: 1"}, fewer: []int64{2, 100},
	},
	{
		kind: "IETF draft -03: window on the limit", source: "docs.docker.com/docker-hub/usage/pulls, which says 200 with an account",
		profile: ietf.Profile(), tiers: "150/6h;follow=1000",
		high: []string{"ratelimit-limit: 200;w=21600", "ratelimit-remaining: 176;w=21600"}, limits: []int64{200},
		low: []string{"ratelimit-limit: 100;w=21600", "ratelimit-remaining: 76;w=21600"}, fewer: []int64{100},
	},
	{
		kind: "IETF draft -06: four policies", source: "github.com/ietf-wg-httpapi/ratelimit-headers, tag draft-06; resend.com/docs/api-reference/rate-limit. The lower limits are changed",
		profile: ietf.Profile(), tiers: "5/s;follow=100 + 25/m;follow=100 + 500/h;follow=5000 + 2500/d;follow=10000",
		high: []string{"RateLimit-Limit: 10", "RateLimit-Remaining: 9", "RateLimit-Reset: 1", "RateLimit-Policy: 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400"}, limits: []int64{10, 50, 1_000, 5_000},
		low: []string{"RateLimit-Limit: 2", "RateLimit-Remaining: 1", "RateLimit-Reset: 1", "RateLimit-Policy: 2;w=1, 20;w=60, 500;w=3600, 1000;w=86400"}, fewer: []int64{2, 20, 500, 1_000},
	},
	{
		kind: "IETF draft -07: dictionary", source: "github.com/ietf-wg-httpapi/ratelimit-headers, tag draft-07. The lower limit is the other example's",
		profile: ietf.Profile(), tiers: "50/10s;follow=1000",
		high: []string{"RateLimit: limit=100, remaining=50, reset=5", "RateLimit-Policy: 100;w=10"}, limits: []int64{100},
		low: []string{"RateLimit: limit=10, remaining=9, reset=1", "RateLimit-Policy: 10;w=10"}, fewer: []int64{10},
	},
	{
		kind: "IETF draft -10: named policies", source: "github.com/ietf-wg-httpapi/ratelimit-headers, draft-10. The lower limits are changed",
		profile: ietf.Profile(), tiers: "50/m;follow=1000 + 500/d;follow=10000",
		high: []string{`RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400`, `RateLimit: "burst";r=50;t=30`}, limits: []int64{100, 1_000},
		low: []string{`RateLimit-Policy: "burst";q=20;w=60,"daily";q=100;w=86400`, `RateLimit: "burst";r=15;t=30`}, fewer: []int64{20, 100},
	},
	{
		kind: "size and rate of a bucket", source: "developers.qomon.com/rights-limiting. The lower limits are changed",
		profile: profileOf("Qomon"), tiers: "5/s;algo=token_bucket;burst=50;follow=1000",
		high: []string{"X-Ratelimit-Limit: burst:100;rate:10", "X-Ratelimit-ResetTime: 9"}, limits: []int64{100},
		low: []string{"X-Ratelimit-Limit: burst:10;rate:1", "X-Ratelimit-ResetTime: 1"}, fewer: []int64{10},
	},
	{
		kind: "windows with names", source: "auth0.com/docs, Auth0-Client-Quota-Limit, in answers/corpus/testdata/headers.json. The lower limits are those of its other example",
		profile: profileOf("Auth0"), tiers: "5/h;follow=100 + 50/d;follow=1000",
		high: []string{"Auth0-Client-Quota-Limit: b=per_hour;q=10;r=9;t=774,b=per_day;q=100;r=99;t=22374"}, limits: []int64{10, 100},
		low: []string{"Auth0-Client-Quota-Limit: b=per_hour;q=2;r=1;t=924"}, fewer: []int64{2, 100},
	},
	{
		kind: "limit and used", source: "docs.coinglass.com/reference/responses-error-codes.md. The numbers of the lower plan are changed",
		profile: profileOf("CoinGlass"), tiers: "300/m;follow=1200",
		high: []string{"API-KEY-MAX-LIMIT: 600", "API-KEY-USE-LIMIT: 12"}, limits: []int64{600},
		low: []string{"API-KEY-MAX-LIMIT: 30", "API-KEY-USE-LIMIT: 12"}, fewer: []int64{30},
	},
	{
		kind: "limits by unit in milliseconds since 1970", source: "linear.app/developers/rate-limiting.md, which says 1,500 requests with OAuth. Its complexity is changed",
		profile: profileOf("Linear"), tiers: "500/h;follow=5000 + 1000000/h;unit=complexity;follow=10000000",
		high: []string{"X-RateLimit-Requests-Limit: 2500", "X-RateLimit-Requests-Remaining: 2499", "X-RateLimit-Complexity-Limit: 3000000", "X-RateLimit-Complexity-Remaining: 2999998"}, limits: []int64{2_500, 3_000_000},
		low: []string{"X-RateLimit-Requests-Limit: 1500", "X-RateLimit-Requests-Remaining: 1499", "X-RateLimit-Complexity-Limit: 2000000", "X-RateLimit-Complexity-Remaining: 1999998"}, fewer: []int64{1_500, 2_000_000},
	},
	{
		kind: "list of limits with their windows", source: "the list that users write for X-RateLimit-Limit, with a profile for it; no page of an API",
		profile: answers.Profile{Quotas: []answers.Quota{
			{Window: time.Second, Limit: answers.Field{Header: "X-RateLimit-Limit", Item: 1}},
			{Limit: answers.Field{Header: "X-RateLimit-Limit", Item: 2}, Length: answers.Field{Header: "X-RateLimit-Limit", After: "window=", Format: answers.Seconds}},
		}},
		tiers: "4/s;follow=50 + 50/m;follow=500",
		high:  []string{"X-RateLimit-Limit: 5, 100;window=60"}, limits: []int64{5, 100},
		low: []string{"X-RateLimit-Limit: 3, 20;window=60"}, fewer: []int64{3, 20},
	},
}

// A plan answers every request at once, with the headers or the body of a plan of an API.
type plan struct{ headers []string }

func (p *plan) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(time.Millisecond)
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: req}
	for _, line := range p.headers {
		if strings.HasPrefix(line, "{") {
			resp.Body = io.NopCloser(strings.NewReader(line))
			resp.Header.Set("Content-Type", "application/json")
			continue
		}
		name, value, _ := strings.Cut(line, ": ")
		resp.Header.Set(name, value)
	}
	return resp, nil
}

// open returns a limiter with the tiers of a naming, and a client over an API.
func (n *naming) open(t *testing.T, api http.RoundTripper) (*throttle.Limiter, *http.Client) {
	t.Helper()
	policy, cost := throttle.Policy{Name: "api", Guard: throttle.NoGuard}, throttle.Cost{}
	for spec := range strings.SplitSeq(n.tiers, " + ") {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		policy.Tiers = append(policy.Tiers, tier)
		if tier.Unit != "" {
			cost[tier.Unit] = 1
		}
		if policy.Tiers[0].Unit != "" {
			cost["requests"] = 0
		}
	}
	l, err := throttle.New(policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l, &http.Client{Transport: &throttle.Transport{Limiter: l, Base: api, Profile: &n.profile, Cost: func(*http.Request) throttle.Cost { return cost }}}
}

// limitsOf returns the limits of a limiter's tiers.
func limitsOf(t *testing.T, l *throttle.Limiter) (limits []int64) {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range s.Tiers {
		limits = append(limits, tier.Limit)
	}
	return limits
}

// A tier has the limit that two responses name, and a lower one after one response. Without responses it
// has its own.
func TestNamedLimitIsFollowed(t *testing.T) {
	for _, n := range namings {
		t.Run(n.kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &plan{n.high}
				l, client := n.open(t, api)
				own := limitsOf(t, l)
				for i, want := range [][]int64{own, n.limits, n.limits} {
					if resp, err := client.Get("http://api.test/"); err != nil {
						t.Fatal(err)
					} else {
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					if got := limitsOf(t, l); !slices.Equal(got, want) {
						t.Errorf("%d responses with %q: the limits are %d, want %d", i+1, n.high, got, want)
					}
				}
				api.headers = n.low
				time.Sleep(24 * time.Hour) // nothing is used up
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if got := limitsOf(t, l); !slices.Equal(got, n.fewer) {
					t.Errorf("a response with %q: the limits are %d, want %d", n.low, got, n.fewer)
				}
			})
		})
	}
}

// lies are what a header may have instead of a number.
func lies() (all []string) {
	all = strings.Split(`0|-1|1|2|-9223372036854775808|9223372036854775807|9223372036854775808|18446744073709551616|999999999999999|1000000000000000|1000000000000|1e18|1e308|NaN|nan|Inf|-Inf|null|true|0x7fffffff|1_000_000|1,000,000|5, 100;window=60|,|,,,|;|;;w=60|"default"|"default";q=999999999999999;w=60|"burst";q=0;w=60|100;w=0|100;w=-1|100;w=1|100;w=999999999|limit=999999999999, remaining=1|burst:999999999999;rate:1|b=per_hour;q=999999999999|total=999999999999; remaining=1|0/0|1/0|0/999999999999999|-5/-5|/|api-usage=1/999999999999|api-usage=1/1|+5|5.5|.5|5.|-0|007|1 000|10 000/h|unlimited|∞|٣|９９９|ten|1m|1h30m|Tue, 05 Jan 2021 11:00:00 GMT|[1,2]|{"limit":9}|"5"|'5'|%35|5%|\|`, "|")
	all = append(all, "", " ", "\t7\t", strings.Repeat("9", 1_000), strings.Repeat("9,", 1_000), strings.Repeat("0", 500)+"1")
	random := rand.New(rand.NewPCG(1, 2))
	for len(all) < 100 {
		all = append(all, fmt.Sprint(random.Uint64()>>random.IntN(64)))
	}
	return all
}

var numbers = regexp.MustCompile(`\d+(\.\d+)?`)

// Whatever a header says, the limit of a tier stays between the bounds of its Follow, and a tier that follows
// nothing keeps its own.
func TestLyingHeadersKeepToBounds(t *testing.T) {
	all := lies()
	for _, n := range namings {
		t.Run(n.kind, func(t *testing.T) {
			soak.Sample(t, 6)
			synctest.Test(t, func(t *testing.T) {
				for _, lie := range all {
					whole, parts := slices.Clone(n.high), slices.Clone(n.high)
					for i, line := range n.high {
						name, value, found := strings.Cut(line, ": ")
						if strings.HasPrefix(line, "{") {
							name, value, found = "", line, false
						}
						if found {
							name += ": "
							whole[i] = name + lie
						}
						parts[i] = name + numbers.ReplaceAllLiteralString(value, lie)
					}
					n.checkBounds(t, whole)
					n.checkBounds(t, parts)
				}
			})
		})
	}
}

// checkBounds checks the limits after three responses.
func (n *naming) checkBounds(t *testing.T, headers []string) {
	l, client := n.open(t, &plan{headers})
	own := limitsOf(t, l)
	var wg sync.WaitGroup
	for range 3 { // at once, so that none waits for what another's response says
		wg.Go(func() {
			if resp, err := client.Get("http://api.test/"); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, spec := range strings.Split(n.tiers, " + ") {
		tier, err := algorithms.ParseTier(spec)
		if err != nil {
			t.Fatal(err)
		}
		least, most := own[i], own[i]
		if tier.Follows() {
			most = tier.Follow.Most
			if least = tier.Follow.Least; least == 0 {
				least = (own[i] + 9) / 10
			}
		}
		if got := s.Tiers[i].Limit; got < least || got > most {
			t.Errorf("%q: the limit of %s is %d, want %d to %d", headers, spec, got, least, most)
		}
	}
}
