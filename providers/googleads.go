package providers

import (
	"encoding/json"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

var googleAdsPreset = Preset{
	Name: "google-ads", Constructor: "GoogleAds(perDay int64)", kind: "Social and data",
	Parameters: []Parameter{{Name: "per_day", About: "operations a day of the project; 0: not limited", Default: "2880", Example: "15000"}},
	call:       func(a arguments) Provider { return GoogleAds(a.number("per_day")) },
}

// GoogleAds is the API of Google Ads in REST, with the limits of one Google Cloud project or
// developer token and of each customer. The header developer-token of a request names the project
// or developer token, and its path names the customer. The argument is the operations a day: 2,880
// with Explorer access to production accounts, 15,000 with Basic access and for test accounts, and
// 0, which limits nothing, with Standard access. A request with mutate costs its operations, the
// next page of a search costs nothing, and any other request costs one. A body of more than 64 MB,
// or one without GetBody, is taken to have one operation. A day is taken to roll, because refusals
// name waits that end at any time.
//
// A customer has one request a second for keyword and reach plans, all taken together, two a second
// for themes of ad groups, and 200 a day for insights of audiences. All customers have two a second
// for metrics of targeting suggestions.
//
// Google also limits the requests and operations of each customer and project, by its load and
// without a number. So the rate of a customer is learned from refusals, as [Unknown] learns that of
// a host: it starts with 10 a second, and grows to 1,000. Requests of the planning services have
// the limits above instead.
//
// A refusal says whether the customer or the project has sent too much, and pauses it for the time
// in the error. After one for the day, requests wait for hours if Policy.MaxPause allows it. If
// not, the quota is closed with throttle.ErrBanned, and one request tries after each MaxPause.
func GoogleAds(perDay int64) Provider {
	const page, rates = "https://developers.google.com/google-ads/api/docs/best-practices/quotas", "https://developers.google.com/google-ads/api/docs/productionize/rate-limits"
	of := func(actions ...string) func(*http.Request) (string, bool) {
		return func(req *http.Request) (customer string, is bool) {
			customer, action := googleAdsCall(req)
			return customer, slices.Contains(actions, action)
		}
	}
	plans := of("generateKeywordIdeas", "generateKeywordHistoricalMetrics", "generateKeywordForecastMetrics", "generateReachForecast", "generateConversionRates")
	themes, insights := of("generateAdGroupThemes"), of("generateAudienceCompositionInsights", "generateSuggestedTargetingInsights")
	targeting := of("generateTargetingSuggestionMetrics")
	aSecond := func(n int64) throttle.Tier { // n a second, which Google calls 60 in 60 seconds, too
		return throttle.Tier{Limit: 60 * n, Window: time.Minute, PaceBurst: 1}
	}
	operations := throttle.PerDay(perDay)
	if perDay == 0 {
		operations = bucket(algorithms.MaxLimit, 24*time.Hour, algorithms.MaxLimit)
	}
	operations.Unit = "operations"
	p := Provider{
		Name: "google-ads",
		Scopes: []Scope{
			some("plans", page, plans, aSecond(1)),
			some("themes", page, themes, aSecond(2)),
			some("insights", page, insights, throttle.PerDay(200)),
			some("targeting", page, func(req *http.Request) (string, bool) {
				_, is := targeting(req)
				return "", is
			}, aSecond(2)),
			some("customer", rates, func(req *http.Request) (customer string, counts bool) {
				for _, limited := range []func(*http.Request) (string, bool){plans, themes, insights, targeting} {
					if _, is := limited(req); is {
						return "", false // a refusal is of the limit above
					}
				}
				customer, _ = googleAdsCall(req)
				return customer, customer != ""
			}, throttle.Tier{Limit: 10, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1_000}}),
			some("project", page, func(req *http.Request) (string, bool) {
				return anonymous(req.Header.Get("Developer-Token")), true
			}, operations),
		},
		Cost:    func(req *http.Request) throttle.Cost { return throttle.Cost{"operations": googleAdsOperations(req)} },
		Profile: googleAdsProfile(),
		Hosts:   []string{"googleads.googleapis.com"},
	}
	return p.readOn("2026-11-29")
}

// googleAdsProfile returns the profile of Google Ads, whose errors are in a list if the answer is a stream. A
// capture is in https://github.com/PipedreamHQ/pipedream/issues/21554. The errors are those of
// https://developers.google.com/google-ads/api/reference/rpc/v26/QuotaErrorEnum.QuotaError. Both were read on
// 2026-11-29.
func googleAdsProfile() (p answers.Profile) {
	const status = http.StatusTooManyRequests
	for _, in := range []string{"error.details.*.errors.*.", "*.error.details.*.errors.*."} {
		code, quota := in+"errorCode.quotaError", in+"details.quotaErrorDetails."
		p.RetryAfter = append(p.RetryAfter,
			answers.Field{Path: quota + "retryDelay", Format: answers.Duration},
			answers.Field{Path: in + "message", After: "Retry in ", Format: answers.Seconds})
		p.Reasons = append(p.Reasons, answers.Field{Path: quota + "rateName"}, answers.Field{Path: code})
		p.Rules = append(p.Rules,
			answers.Rule{Status: status, Path: code, Text: "PAYMENTS_PROFILE_ACTIVATION_RATE_LIMIT_EXCEEDED", Kind: answers.Other}, // for a week
			answers.Rule{Status: status, Path: quota + "rateScope", Text: "DEVELOPER", Kind: answers.Limited, Unit: "operations"},
		)
	}
	p.RetryAfter = append([]answers.Field{{Header: "Retry-After", Format: answers.RetryAfter}}, p.RetryAfter...)
	return p
}

// googleAdsCall returns the customer of a request, if there is one, and what is behind the last colon of its
// path: customers/1/campaigns:mutate, or customers/1:generateKeywordIdeas.
func googleAdsCall(req *http.Request) (customer, action string) {
	_, customer, _ = strings.Cut(req.URL.Path, "/customers/")
	customer, _, _ = strings.Cut(customer, "/")
	customer, _, _ = strings.Cut(customer, ":")
	_, action, _ = strings.Cut(path.Base(req.URL.Path), ":")
	return customer, action
}

// googleAdsOperations returns the number of operations of a request. See
// https://developers.google.com/google-ads/api/docs/api-policy/rate-sheet, read on 2026-11-29.
func googleAdsOperations(req *http.Request) int64 {
	var sent struct {
		Operations       []struct{} `json:"operations"`
		MutateOperations []struct{} `json:"mutateOperations"`
		PageToken        string     `json:"pageToken"`
	}
	_, action := googleAdsCall(req)
	if action != "mutate" && action != "search" || req.GetBody == nil {
		return 1
	}
	b, err := req.GetBody()
	if err != nil {
		return 1
	}
	defer b.Close()
	const most = 64 << 20 // bytes, which Google allows for a request
	switch err := json.NewDecoder(io.LimitReader(b, most)).Decode(&sent); {
	case err != nil:
		return 1
	case action == "search" && sent.PageToken != "":
		return 0
	}
	return max(1, int64(len(sent.Operations)+len(sent.MutateOperations)))
}
