package providers_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

const klaviyo = "https://a.klaviyo.com"

// An endpoint of each size has the requests of a second at once.
func TestKlaviyoSeconds(t *testing.T) {
	get := func(path string) func() *http.Request { return to(t, "GET", klaviyo+path) }
	post := func(path string) func() *http.Request { return to(t, "POST", klaviyo+path, "{}") }
	checkAtOnce(t, providers.Klaviyo, []atOnceTest{
		{"XS", 1, []func() *http.Request{get("/api/accounts"), get("/api/accounts/")}},
		{"S", 3, []func() *http.Request{get("/api/flows/A1/tags"), get("/api/flows/B2/tags")}},
		{"M", 10, []func() *http.Request{get("/api/campaigns")}},
		{"L", 75, []func() *http.Request{post("/api/profiles")}},
		{"XL", 350, []func() *http.Request{post("/api/events")}},
		{"two endpoints", 6, []func() *http.Request{get("/api/flows"), get("/api/tags")}},
		{"two methods", 6, []func() *http.Request{get("/api/tags"), post("/api/tags")}},
		{"reports", 1, []func() *http.Request{post("/api/flow-values-reports")}},
		{"images", 3, []func() *http.Request{post("/api/images")}},
		{"a beta endpoint", 10, []func() *http.Request{get("/api/agent-skills/1")}},
		{"an unlisted endpoint", 1, []func() *http.Request{get("/api/novelties/1"), get("/api/novelties/2")}},
		{"two companies", 20, []func() *http.Request{get("/client/reviews?company_id=A"), get("/client/reviews?company_id=B")}},
		{"counts", 1, []func() *http.Request{get("/api/lists/A?additional-fields[list]=profile_count")}},
		{"counts of segments", 1, []func() *http.Request{get("/api/segments/A?additional-fields%5Bsegment%5D=profile_count")}},
		{"a list without counts", 75, []func() *http.Request{get("/api/lists/A?additional-fields[list]=tags")}},
		{"predictions", 10, []func() *http.Request{get("/api/profiles?additional-fields[profile]=subscriptions,predictive_analytics")}},
		{"predictions of a list", 10, []func() *http.Request{get("/api/lists/A/profiles?additional-fields[profile]=predictive_analytics")}},
		{"predictions of ids", 10, []func() *http.Request{get("/api/lists/A/relationships/profiles?additional-fields[profile]=predictive_analytics")}},
		{"lists of a profile", 1, []func() *http.Request{get("/api/profiles/A?include=list"), get("/api/profiles/A?include=segment")}},
	})
	checkUnlimited(t, providers.Klaviyo, "a token", post("/oauth/token"))
}

// The numbers of requests that an endpoint takes in ten minutes and in three days.
func TestKlaviyoMinutes(t *testing.T) {
	for _, test := range []struct {
		name, path string
		of         []throttle.Tier
		workers    int
		during     time.Duration
		least      float64
	}{
		{"XS", "/api/accounts", klaviyoLimits(1, 15, 0), 8, 10 * time.Minute, 0.95 * 150},
		{"S", "/api/flows", klaviyoLimits(3, 60, 0), 8, 10 * time.Minute, 0.95 * 600},
		{"M", "/api/campaigns", klaviyoLimits(10, 150, 0), 64, 10 * time.Minute, 0.95 * 1_500},
		{"L", "/api/templates", klaviyoLimits(75, 700, 0), 64, 5 * time.Minute, 0.95 * 3_500},
		{"XL", "/api/events", klaviyoLimits(350, 3_500, 0), 64, 2 * time.Minute, 0.95 * 7_000},
		{"counts", "/api/lists/A?additional-fields[list]=profile_count", klaviyoLimits(1, 15, 0), 8, 10 * time.Minute, 0.95 * 150},
		{"predictions", "/api/profiles?additional-fields[profile]=predictive_analytics", klaviyoLimits(10, 150, 0), 64, 10 * time.Minute, 0.95 * 1_500},
		{"reports", "/api/form-series-reports", klaviyoLimits(1, 2, 225), 8, 48 * time.Hour, 450},
		{"custom metrics", "/api/custom-metrics", klaviyoLimits(1, 15, 15), 1, 48 * time.Hour, 30},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				api := throttletest.New(test.of...)
				api.Delay = func() time.Duration { return 5*time.Millisecond + rand.N(45*time.Millisecond) }
				method := to(t, "GET", klaviyo+test.path)
				if test.name == "reports" || test.name == "custom metrics" {
					method = to(t, "POST", klaviyo+test.path, "{}")
				}
				saturate(t, over(t, providers.Klaviyo(), api), test.workers, test.during-time.Second, func(int) *http.Request { return method() })
				s := api.Summary()
				if n := float64(s.Accepted); s.Refused > 0 || n < test.least {
					t.Errorf("%d refused and %v accepted, want at least %v", s.Refused, n, test.least)
				}
			})
		})
	}
}

// klaviyoLimits are fixed windows that begin at any time.
func klaviyoLimits(second, minute, day int64) []throttle.Tier {
	tiers := []throttle.Tier{
		{Limit: second, Window: time.Second, Algorithm: throttle.FixedWindow, Phase: 300 * time.Millisecond},
		{Limit: minute, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: 17 * time.Second},
	}
	if day > 0 {
		tiers = append(tiers, throttle.Tier{Limit: day, Window: 24 * time.Hour, Algorithm: throttle.FixedWindow})
	}
	return tiers
}

func TestKlaviyoRefusals(t *testing.T) {
	const body = `{"errors":[{"status":429,"code":"throttled","title":"Request was throttled.","detail":"Request was throttled. Expected available in 7 seconds.","source":{"pointer":"/data"}}]}`
	templates, flows := to(t, "GET", klaviyo+"/api/templates"), to(t, "GET", klaviyo+"/api/flows")
	predictions := to(t, "GET", klaviyo+"/api/profiles?additional-fields[profile]=predictive_analytics")
	checkRefusals(t, providers.Klaviyo, []refusalTest{
		{name: "a wait in the header", first: templates, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "20"}, Body: body}, want: 20 * time.Second},
		{name: "predictions", first: predictions, next: to(t, "GET", klaviyo+"/api/profiles"), reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "20"}, Body: body}},
		{name: "more predictions", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "20"}, Body: body}, want: 20 * time.Second},
		{name: "another endpoint", first: templates, next: flows, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "20"}, Body: body}},
		{name: "a wait in the text", reply: fakeapi.Reply{Status: 429, Body: body}, want: 7 * time.Second},
		{name: "an older text", reply: fakeapi.Reply{Status: 429, Body: `{"detail":"Request was throttled. Expected available in 56.0 seconds."}`}, want: 56 * time.Second},
		{name: "none left of the minute", reply: fakeapi.Reply{Header: map[string]string{"Ratelimit-Limit": "700", "Ratelimit-Remaining": "0", "Ratelimit-Reset": "30"}}, want: 31 * time.Second},
		{name: "none left of a draft's minute", reply: fakeapi.Reply{Header: map[string]string{"Ratelimit-Limit": "75, 75;w=1, 700;w=60", "Ratelimit-Remaining": "0", "Ratelimit-Reset": "30"}}, want: 31 * time.Second},
		{name: "fewer left than in a second", reply: fakeapi.Reply{Header: map[string]string{"Ratelimit-Limit": "75, 75;w=1, 700;w=60", "Ratelimit-Remaining": "1", "Ratelimit-Reset": "30"}}},
	})
}

// A tier of a minute takes over what responses name, and not the limit of a second.
func TestKlaviyoFollows(t *testing.T) {
	for _, test := range []struct {
		path, named string
		want        int64
	}{
		{"/api/templates", "75, 75;w=1, 750;w=60", 750},
		{"/api/templates", "75", 700},
		{"/api/templates", "75, 75;w=1, 7000;w=60", 7_000},
		{"/api/templates", "75, 75;w=1, 8000;w=60", 7_000},
		{"/api/novelties", "3, 3;w=1, 60;w=60", 60},
		{"/api/campaigns", "10", 150},
	} {
		synctest.Test(t, func(t *testing.T) {
			transport, err := providers.Klaviyo().Transport(nil)
			if err != nil {
				t.Fatal(err)
			}
			transport.Base = &plan{[]string{"RateLimit-Limit: " + test.named, "RateLimit-Remaining: 5", "RateLimit-Reset: 30"}}
			request := func() *http.Request { return get(t, klaviyo+test.path) }
			send(t, transport, request())
			send(t, transport, request())
			if got := limitsOf(t, transport.Route(request())); got[1] != test.want {
				t.Errorf("%s has the limits %d after %s was named, want %d a minute", test.path, got, test.named, test.want)
			}
		})
	}
}
