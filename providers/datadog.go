package providers

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

var datadogPreset = Preset{Name: "datadog", Constructor: "Datadog()", kind: "Clouds and office", New: Datadog}

// Datadog is the API of Datadog, with the limits of each endpoint for one organization in each
// site. Datadog publishes few limits: 250,000 events sent a minute, 300 searches of spans an hour,
// and 60 traces a minute. The other numbers here are those of older pages and of responses that
// Datadog's clients recorded, such as 60 dashboards a minute. Organizations have different limits.
// The preset starts metric queries with 600 an hour and 10 in 10 seconds, and searches of logs with
// 300 and 2.
//
// Responses name the limit of their endpoint and its period, and the tiers of 10 seconds, a minute,
// 5 minutes and an hour take both over. An endpoint without a known limit, which is a method and a
// path, starts with one request in 10 seconds. Its first response names the limit, or reports none:
// then the endpoint has 12,000 requests a minute, which is what an organization has for all
// endpoints without a limit of their own. Metrics and logs that are sent are not limited. The hosts
// are those of all sites. Path segments that have a digit, or capital letters alone, are assumed to
// be ids.
//
// A refusal pauses its endpoint until the reset that the response reports, or else for the period
// of the limit. The client is assumed to be one user of one organization, because some limits are
// those of a user or of an API key. For several organizations, set Account.
func Datadog() Provider {
	const reset, period = "X-Ratelimit-Reset", "X-Ratelimit-Period"
	seconds := func(header string) []answers.Field {
		return []answers.Field{{Header: header, Format: answers.Seconds}}
	}
	p := Provider{
		Name: "datadog",
		Cost: costsOne(datadogUnlisted, datadogOther),
		Profile: answers.Profile{
			Quotas: []answers.Quota{{NameIn: "X-Ratelimit-Name", Read: datadogReadings}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: reset, Kind: answers.Limited, Delay: seconds(reset), Wait: time.Second},
				{Status: http.StatusTooManyRequests, Header: period, Kind: answers.Limited, Delay: seconds(period)},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Delay: []answers.Field{{Path: "errors.*", After: "requests in ", Format: answers.Duration}}},
			},
		},
		Hosts: []string{
			"api.datadoghq.com", "api.datadoghq.eu", "api.*.datadoghq.com", "api.ddog-gov.com", "api.*.ddog-gov.com",
			"us3.datadoghq.com", "us5.datadoghq.com", "ap1.datadoghq.com", "ap2.datadoghq.com", "app.datadoghq.com", "app.datadoghq.eu",
			"event-management-intake.datadoghq.com", "event-management-intake.datadoghq.eu", "event-management-intake.*.datadoghq.com",
		},
	}
	for i := range datadogLimits {
		l := &datadogLimits[i]
		tiers := datadogTiers("", l.tier)
		switch l.name { // the least limits that responses named
		case "logs":
			tiers[len(tiers)-1].Limit = 300
		case "query":
			tiers[0].Limit, tiers[1].Limit, tiers[2].Limit = 10, 60, 300
		}
		p.Scopes = append(p.Scopes, some(l.name, l.page, func(req *http.Request) (string, bool) {
			key, counts := l.key(req.Method, datadogPath(req))
			return hostOf(req) + " " + key, counts
		}, tiers...))
	}
	p.Scopes = append(p.Scopes, some("endpoint", datadogPage, datadogOther, datadogTiers(datadogUnlisted, datadogTen(1))...))
	for i := range p.Scopes {
		p.Scopes[i].Policy.MaxPause = time.Hour + time.Minute
	}
	return p.readOn("2026-11-29")
}

const (
	datadogPage     = "https://docs.datadoghq.com/api/latest/rate-limits/"
	datadogOld      = "https://github.com/DataDog/documentation/pull/7460"
	datadogClient   = "https://github.com/DataDog/datadog-api-client-go/tree/1f7e702/tests"
	datadogSpans    = "https://github.com/DataDog/datadog-api-client-go/blob/1f7e702/api/datadogV2/api_spans.go"
	datadogTraces   = "https://github.com/DataDog/datadog-api-client-go/blob/1f7e702/api/datadogV2/api_apm_trace.go"
	datadogUnlisted = "unlisted" // the unit of requests to endpoints without a known limit
)

// datadogLimits are the limits of endpoints. Those of the client's tests have the names that responses
// report in X-RateLimit-Name.
var datadogLimits = []endpointLimit{
	{"events", datadogPage, together, throttle.PerMinute(250_000), []string{"POST v1/events", "POST v2/events"}},
	{"spans", datadogSpans, perEndpoint, throttle.PerHour(300), []string{"GET v2/spans/events", "POST v2/spans/events/search", "POST v2/spans/analytics/aggregate"}},
	{"traces", datadogTraces, perEndpoint, throttle.PerMinute(60), []string{"GET v2/trace/*", "GET v2/pruned_trace/*"}},
	{"logs", datadogOld, together, datadogTen(2), []string{"POST v1/logs-queries/list", "GET v2/logs/events", "POST v2/logs/events/search"}},
	{"query", datadogOld, together, throttle.PerHour(600), []string{"GET v1/query"}},
	{"metrics", datadogOld, together, throttle.PerHour(100), []string{"GET v1/metrics"}},
	{"snapshot", datadogOld, together, throttle.PerHour(60), []string{"GET v1/graph/snapshot"}},
	{"dashboards", datadogClient, perEndpoint, throttle.PerMinute(60), []string{"GET v1/dashboard", "GET v1/dashboard/*"}},
	{"event_stream_api", datadogClient, together, throttle.PerMinute(600), []string{"GET v1/events"}},
	{"get_all_monitors", datadogClient, together, datadogTen(1_000), []string{"GET v1/monitor"}},
	{"get_monitors", datadogClient, together, datadogTen(3_000), []string{"GET v1/monitor/#"}},
	{"post_monitors", datadogClient, together, datadogTen(500), []string{"POST v1/monitor"}},
	{"put_monitors", datadogClient, together, datadogTen(500), []string{"PUT v1/monitor/#"}},
	{"slo_check_can_delete", datadogClient, together, datadogTen(100), []string{"GET v1/slo/can_delete"}},
	{"slo_get_all", datadogClient, together, datadogTen(1_000), []string{"GET v1/slo"}},
	{"slo_history", datadogClient, together, datadogTen(150), []string{"GET v1/slo/*/history"}},
	{"slo_delete", datadogClient, together, datadogTen(100), []string{"DELETE v1/slo/*"}},
	{"slo_create", datadogClient, together, throttle.PerMinute(200), []string{"POST v1/slo"}},
	{"slo_update", datadogClient, together, throttle.PerMinute(200), []string{"PUT v1/slo/*"}},
	{"create_user_api", datadogClient, together, throttle.PerMinute(100), []string{"POST v1/user"}},
	{"processes_get_all", datadogClient, together, throttle.PerMinute(100), []string{"GET v2/processes"}},
}

func datadogTen(limit int64) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: 10 * time.Second}
}

// datadogPeriods are the periods of Datadog's limits.
var datadogPeriods = []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, time.Hour}

// datadogTiers returns tiers of all periods for one limit, of which only the one with its period says more
// than the others. They follow what datadogReadings returns.
func datadogTiers(unit string, of throttle.Tier) (tiers []throttle.Tier) {
	for _, period := range datadogPeriods {
		tiers = append(tiers, follows(1, algorithms.MaxLimit, fixed(datadogIn(period, of.Limit, of.Window), period, unit)))
	}
	return tiers
}

// datadogIn returns the most requests in a period that the limit of a window allows. Windows begin with
// the clock, so that a minute has six of 10 seconds. If no tier has the window, shorter periods have their
// share of it.
func datadogIn(period time.Duration, limit int64, window time.Duration) int64 {
	if period < window && !slices.Contains(datadogPeriods, window) {
		return max(1, limit*int64(period/time.Second)/int64(window/time.Second))
	}
	return min(limit*max(1, int64(period/window)), algorithms.MaxLimit)
}

// datadogReadings returns the limit that a response names, for the tiers of all periods. A response that
// names none is of an endpoint that has only the limit of all.
func datadogReadings(r answers.Response) (all []answers.Reading) {
	number := func(name string) (n int64, ok bool) {
		n, err := strconv.ParseInt(r.Header.Get("X-Ratelimit-"+name), 10, 32)
		return n, err == nil && n >= 0
	}
	limit, named := number("Limit")
	seconds, _ := number("Period")
	window, units := time.Duration(seconds)*time.Second, []string{"requests", datadogUnlisted}
	switch {
	case named && limit > 0 && seconds > 0:
	case named || r.Status >= http.StatusBadRequest:
		return nil
	default:
		limit, window, units = 12_000, time.Minute, units[1:]
	}
	for _, unit := range units {
		for _, period := range datadogPeriods {
			one := answers.Reading{Unit: unit, Limit: datadogIn(period, limit, window), Window: period}
			if left, ok := number("Remaining"); ok && period == window {
				one.Has, one.Remaining = answers.HasRemaining, min(left, limit)
				if reset, ok := number("Reset"); ok {
					one.Has |= answers.HasReset
					one.Reset = time.Duration(reset) * time.Second
				}
			}
			all = append(all, one)
		}
	}
	return all
}

// datadogPath returns the path of a request below /api/.
func datadogPath(req *http.Request) string {
	path, _ := strings.CutPrefix(req.URL.Path, "/api/")
	return strings.TrimSuffix(path, "/")
}

// datadogSent are the endpoints that take metrics, logs and checks, which are not limited.
var datadogSent = strings.Fields("v1/series v2/series v1/distribution_points v2/logs v1/input v1/check_run")

// datadogOther is the Key of endpoints without a known limit.
func datadogOther(req *http.Request) (key string, counts bool) {
	path := datadogPath(req)
	known := slices.ContainsFunc(datadogLimits, func(l endpointLimit) bool { _, counts := l.key(req.Method, path); return counts })
	sends := req.Method == http.MethodPost && slices.Contains(datadogSent, path)
	return hostOf(req) + " " + endpoint(req.Method, path, isNumbered), strings.HasPrefix(req.URL.Path, "/api/") && !known && !sends
}
