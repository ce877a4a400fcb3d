package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var salesforcePreset = Preset{
	Name: "salesforce", Constructor: "Salesforce(perDay int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "per_day", About: "calls a day of the org", Min: 1, Example: "100000"}},
	call:       func(a arguments) Provider { return Salesforce(a.number("per_day")) },
}

// Salesforce is the API of the Salesforce Platform, with the limits of each org. An org has perDay
// calls in any 24 hours, whatever the user and the app: 100,000 and 1,000 for each license in the
// Enterprise Edition, 15,000 in the Developer Edition. It also has 25 calls at once that last 20
// seconds or longer (5 in the Developer Edition). How long a call will take is not known, so all
// calls count in that limit: raise it if yours are short. Each of the up to 25 requests in a
// composite/batch is a call, one after the other; other composite calls are one. A host names its org,
// so each org has quotas of its own.
//
// Responses report the use of the whole org, and its limit, which holds instead of perDay, up to ten times as
// much. When others have used up the day, calls go at the
// day's average rate, because the calls of a day ago make room little by little. A refusal has
// status 403 and names no wait: a long call may end at any time. A locked record pauses nothing.
// Bursts, and the limits of a connected app and of Chatter, are not published and not included.
// Marketing Cloud is another product.
func Salesforce(perDay int64) Provider {
	const page = "https://developer.salesforce.com/docs/platform/salesforce-app-limits-cheatsheet/guide/salesforce-app-limits-platform-api.html"
	org := bucket(perDay, 24*time.Hour, perDay) // the calls of all apps, as responses report them
	org.Unit = "org"
	return Provider{
		Name: "salesforce",
		Scopes: []Scope{some("org", page, salesforceOrg,
			tenfold(0, throttle.PerDay(perDay)), tenfold(0, org), throttle.Tier{Limit: 25, Algorithm: throttle.Concurrency, Unit: "concurrent"})},
		Cost: func(req *http.Request) throttle.Cost {
			n := salesforceCalls(req)
			return throttle.Cost{"requests": n, "org": n, "concurrent": 1}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{Window: 24 * time.Hour, Authoritative: true, Read: salesforceUsage}},
			Rules: []answers.Rule{
				{Status: http.StatusForbidden, Path: "*.message", Text: "ConcurrentRequests *", Kind: answers.Limited},
				{Status: http.StatusForbidden, Path: "*.message", Text: "ConcurrentPerOrgLongTxn *", Kind: answers.Limited},
				{Status: http.StatusForbidden, Path: "*.errorCode", Text: "REQUEST_LIMIT_EXCEEDED", Kind: answers.Limited},
				{Status: http.StatusInternalServerError, Header: "Content-Type", Value: "*xml*", Text: "*<faultcode>sf:REQUEST_LIMIT_EXCEEDED</faultcode>*", Kind: answers.Limited, Reason: "REQUEST_LIMIT_EXCEEDED"},
			},
		},
		Hosts: []string{"*.salesforce.com", "*.force.com"},
	}
}

// salesforceUsage reads the use and the limit of an org, which both of its tiers have. Other names in the
// header are other quotas. See
// https://developer.salesforce.com/docs/atlas.en-us.264.0.api_rest.meta/api_rest/headers_api_usage.htm, read
// on 2026-11-21.
func salesforceUsage(r answers.Response) []answers.Reading {
	for part := range strings.SplitSeq(r.Header.Get("Sforce-Limit-Info"), ";") {
		name, usage, _ := strings.Cut(strings.TrimSpace(part), "=")
		uses, most, _ := strings.Cut(usage, "/")
		used, err := strconv.ParseInt(uses, 10, 64)
		if name != "api-usage" || err != nil || used < 0 {
			continue
		}
		limit, _ := strconv.ParseInt(most, 10, 64) // 0 names none
		return []answers.Reading{{Unit: "org", Limit: limit, Has: answers.HasUsed, Used: used}, {Limit: limit}}
	}
	return nil
}

// salesforceOrg returns the org of a request. Logging in and listing the versions are free.
func salesforceOrg(req *http.Request) (org string, counts bool) {
	org, _, _ = strings.Cut(hostOf(req), ".")
	path := strings.TrimSuffix(req.URL.Path, "/")
	return org, strings.HasPrefix(path, "/services/") && path != "/services/data" && !strings.HasPrefix(path, "/services/oauth2/")
}

// salesforceCalls returns the number of calls in a request. A batch that can't be read has the most.
// See https://developer.salesforce.com/docs/platform/api-rest/guide/resources-composite-batch.html, read
// on 2026-11-28.
func salesforceCalls(req *http.Request) int64 {
	const most = 25
	if !strings.HasSuffix(strings.TrimSuffix(req.URL.Path, "/"), "/composite/batch") {
		return 1
	}
	if n := listed(form(req), "batchRequests"); 0 < n && n < most {
		return n
	}
	return most
}
