package providers_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const datadog = "https://api.datadoghq.com"

// A datadogServer counts all requests in windows of the clock.
type datadogServer struct {
	limit, period int64
	silent        bool // it reports nothing

	mu              sync.Mutex // guards all below
	window, in      int64
	served, refused int
}

func (s *datadogServer) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(5*time.Millisecond + rand.N(20*time.Millisecond))
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().Unix()
	if window := now / s.period; window != s.window {
		s.window, s.in = window, 0
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: http.NoBody, Request: req}
	if s.in++; s.in > s.limit {
		resp.StatusCode = http.StatusTooManyRequests
		s.refused++
	} else {
		s.served++
	}
	for name, n := range map[string]int64{"Limit": s.limit, "Period": s.period, "Remaining": max(0, s.limit-s.in), "Reset": s.period - now%s.period} {
		if !s.silent {
			resp.Header.Set("X-Ratelimit-"+name, strconv.FormatInt(n, 10))
		}
	}
	return resp, nil
}

// Limits that Datadog has, or raises or lowers for an organization, are followed without a refusal.
func TestDatadogFollows(t *testing.T) {
	for _, test := range []struct {
		request       string
		limit, period int64
		silent        bool
		during        time.Duration
		least         float64
	}{
		{"POST /api/v2/logs/events/search", 300, 3600, false, 2 * time.Hour, 600},
		{"POST /api/v2/logs/events/search", 300, 3600, false, time.Minute, 300},
		{"POST /api/v2/logs/events/search", 300, 3600, true, 2 * time.Hour, 600},
		{"POST /api/v2/logs/events/search", 10, 10, false, 10 * time.Minute, 0.95 * 600},
		{"GET /api/v1/query", 600, 3600, false, 2 * time.Hour, 1_200},
		{"GET /api/v1/query", 1_600, 3600, false, 2 * time.Hour, 3_200},
		{"GET /api/v1/dashboard/abc-def-ghi", 60, 60, true, 10 * time.Minute, 0.95 * 600},
		{"GET /api/v1/monitor", 1_000, 10, false, time.Minute, 0.9 * 6_000},
		{"GET /api/v2/novelties", 100, 60, false, 10 * time.Minute, 0.95 * 1_000},
		{"GET /api/v2/novelties", 20, 10, false, 10 * time.Minute, 0.95 * 1_200},
		{"GET /api/v2/novelties", 12_000, 60, true, time.Minute, 0.9 * 12_000},
		{"GET /api/v2/novelties", 30, 3600, false, 2 * time.Hour, 60},
		{"GET /api/v2/novelties", 2, 10, false, 10 * time.Minute, 0.95 * 120},
		{"POST /api/v1/logs/config/indexes", 10, 300, false, 30 * time.Minute, 60},
		{"GET /api/v2/novelties", 5, 600, false, time.Hour, 24}, // four of each ten minutes
		{"POST /api/v2/logs/events/search", 2, 10, false, 10 * time.Minute, 0.95 * 120},
		{"GET /api/v1/query", 10, 10, false, 10 * time.Minute, 0.95 * 600},
	} {
		t.Run(fmt.Sprint(test.request, " ", test.limit, "/", test.period), func(t *testing.T) {
			soak.Sample(t, 9)
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(2345678 * time.Millisecond) // within a window
				api := &datadogServer{limit: test.limit, period: test.period, silent: test.silent}
				var method, path string
				fmt.Sscan(test.request, &method, &path)
				request := to(t, method, datadog+path)
				saturate(t, over(t, providers.Datadog(), api), 64, test.during-time.Second, func(int) *http.Request { return request() })
				if api.refused > 0 || float64(api.served) < test.least {
					t.Errorf("%d refused and %d served, want at least %.0f", api.refused, api.served, test.least)
				}
			})
		})
	}
}

func TestDatadogLimits(t *testing.T) {
	get := func(path string) func() *http.Request { return to(t, "GET", datadog+path) }
	search, spans := to(t, "POST", datadog+"/api/v2/logs/events/search", "{}"), to(t, "POST", datadog+"/api/v2/spans/events/search", "{}")
	checkAtOnce(t, providers.Datadog, []atOnceTest{
		{"searches of logs", 2, []func() *http.Request{search, get("/api/v2/logs/events"), to(t, "POST", datadog+"/api/v1/logs-queries/list", "{}")}},
		{"two sites", 4, []func() *http.Request{search, to(t, "POST", "https://api.us5.datadoghq.com/api/v2/logs/events/search", "{}")}},
		{"spans", 300, []func() *http.Request{spans}},
		{"two endpoints of spans", 600, []func() *http.Request{spans, get("/api/v2/spans/events")}},
		{"aggregates of spans", 300, []func() *http.Request{to(t, "POST", datadog+"/api/v2/spans/analytics/aggregate", "{}")}},
		{"traces", 60, []func() *http.Request{get("/api/v2/trace/1"), get("/api/v2/trace/2")}},
		{"pruned traces", 60, []func() *http.Request{get("/api/v2/pruned_trace/1")}},
		{"queries", 10, []func() *http.Request{get("/api/v1/query?query=a")}},
		{"metrics", 100, []func() *http.Request{get("/api/v1/metrics?from=1")}},
		{"snapshots", 60, []func() *http.Request{get("/api/v1/graph/snapshot")}},
		{"dashboards", 60, []func() *http.Request{get("/api/v1/dashboard/abc"), get("/api/v1/dashboard/def")}},
		{"the list of dashboards", 60, []func() *http.Request{get("/api/v1/dashboard")}},
		{"events", 600, []func() *http.Request{get("/api/v1/events?start=1")}},
		{"monitors", 1_000, []func() *http.Request{get("/api/v1/monitor")}},
		{"a monitor", 3_000, []func() *http.Request{get("/api/v1/monitor/1")}},
		{"new monitors", 500, []func() *http.Request{to(t, "POST", datadog+"/api/v1/monitor", "{}")}},
		{"changed monitors", 500, []func() *http.Request{to(t, "PUT", datadog+"/api/v1/monitor/1", "{}")}},
		{"SLOs", 1_000, []func() *http.Request{get("/api/v1/slo")}},
		{"checks of SLOs", 100, []func() *http.Request{get("/api/v1/slo/can_delete?ids=1")}},
		{"the history of an SLO", 150, []func() *http.Request{get("/api/v1/slo/1/history")}},
		{"deleted SLOs", 100, []func() *http.Request{to(t, "DELETE", datadog+"/api/v1/slo/1")}},
		{"new SLOs", 200, []func() *http.Request{to(t, "POST", datadog+"/api/v1/slo", "{}")}},
		{"changed SLOs", 200, []func() *http.Request{to(t, "PUT", datadog+"/api/v1/slo/1", "{}")}},
		{"new users", 100, []func() *http.Request{to(t, "POST", datadog+"/api/v1/user", "{}")}},
		{"processes", 100, []func() *http.Request{get("/api/v2/processes")}},
	})
	events := providers.Datadog()
	if tier := events.Scope("events").Policy.Tiers[1]; tier.Limit != 250_000 || tier.Window != time.Minute {
		t.Errorf("events have %v, want 250,000 a minute", tier)
	}
	for _, url := range []string{datadog + "/api/v1/events", "https://event-management-intake.datadoghq.com/api/v2/events"} {
		transport, err := events.Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		req := to(t, "POST", url, "{}")()
		if _, counts := events.Scope("events").Key(req); !counts || transport.Route(req) == nil {
			t.Errorf("POST %s counts as no event", url)
		}
	}
	for _, path := range []string{"/api/v1/series", "/api/v2/series", "/api/v2/logs", "/api/v1/distribution_points", "/api/v1/check_run"} {
		checkUnlimited(t, providers.Datadog, path, to(t, "POST", datadog+path, "{}"))
	}
}

// An endpoint without a known limit starts slowly, apart from others.
func TestDatadogUnlisted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.Datadog(), &replying{Status: 500}) // which names no limit
		for n := range 2 {
			_, _, took := send(t, rt, get(t, datadog+"/api/v2/novelties/"+strconv.Itoa(n)))
			if waited := took > 0; waited != (n == 1) {
				t.Errorf("request %d waited %v", n, took)
			}
		}
		if _, _, took := send(t, rt, get(t, datadog+"/api/v2/others")); took > 0 {
			t.Errorf("another endpoint waited %v", took)
		}
		if _, _, took := send(t, rt, get(t, "https://api.datadoghq.eu/api/v2/novelties/1")); took > 0 {
			t.Errorf("another site waited %v", took)
		}
	})
}

func TestDatadogRefusals(t *testing.T) {
	query, metrics := to(t, "GET", datadog+"/api/v1/query"), to(t, "GET", datadog+"/api/v1/metrics")
	const body = `{"errors":["Rate limit of 600 requests in 3600 seconds reached. Please try again later."]}`
	refused := func(reset string) fakeapi.Reply {
		return fakeapi.Reply{Status: 429, Body: body, Header: map[string]string{
			"X-Ratelimit-Limit": "600", "X-Ratelimit-Period": "3600", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": reset, "X-Ratelimit-Name": "batch_query"}}
	}
	checkRefusals(t, providers.Datadog, []refusalTest{
		{name: "a reset", first: query, reply: refused("1298"), want: 1298 * time.Second},
		{name: "another endpoint", next: metrics, reply: refused("1298")},
		{name: "a reset of zero", reply: refused("0"), want: time.Second},
		{name: "only a period", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"X-Ratelimit-Period": "10"}}, want: 10 * time.Second},
		{name: "a text", reply: fakeapi.Reply{Status: 429, Body: body}, want: time.Hour},
		{name: "no wait", reply: fakeapi.Reply{Status: 429, Body: "<html>"}, want: backoff},
		{name: "none left", reply: fakeapi.Reply{Header: map[string]string{"X-Ratelimit-Limit": "600", "X-Ratelimit-Period": "3600", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "100"}}, want: 101 * time.Second},
	})
}

// A refusal without headers says nothing of a limit.
func TestDatadogRefusalNamesNoLimit(t *testing.T) {
	if got := providers.Datadog().Profile.Read(answers.Response{Status: 429, Got: time.Now()}); len(got.Readings) > 0 {
		t.Errorf("read as %+v", got.Readings)
	}
}

// A limit that the caller sets holds.
func TestDatadogKeepsLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Datadog()
		p.Scope("query").Policy.Tiers = []throttle.Tier{throttle.PerHour(5)}
		rt := over(t, p, &datadogServer{limit: 600, period: 3600})
		for n := range 6 {
			if _, _, took := send(t, rt, get(t, datadog+"/api/v1/query")); (took > time.Minute) != (n == 5) {
				t.Errorf("request %d took %v", n, took)
			}
		}
	})
}
