package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var quickBooksPreset = Preset{Name: "quickbooks", Constructor: "QuickBooks()", kind: "Payments and shops", New: QuickBooks}

// QuickBooks is the Accounting API of QuickBooks Online, with the limits of one app in each
// company. A company, which is the realm ID in the path, has 500 requests a minute, 10 a second,
// and 10 at once. A batch is one request, whatever it contains. Of the 500, 40 may be batches and
// 200 reports. The sandbox has the same limits, and sends 40 emails a day. Intuit doesn't document
// the kinds of windows, so all of them roll.
//
// The limits of a second and of requests at once are from different years, and so is that of
// reports, which the present page doesn't name. All hold here, because Intuit may enforce any. All
// apps share the 500 of a company. If other apps use the company, lower the tier of the scope
// "company". An app in the Builder tier of Intuit's partner program has 500,000 reads a month for
// all companies, which are not counted here. Neither are Intuit's other APIs, such as Payments.
//
// Responses report no limits. A refusal has status 429, or in older captures 403, and doesn't name
// the limit. It pauses the company for a minute, as Intuit asks. A refusal of a batch, a report or
// an email pauses only requests of its kind. An item of a batch that is refused pauses nothing,
// because the batch has status 200.
func QuickBooks() Provider {
	const page = "https://developer.intuit.com/app/developer/qbo/docs/learn/limits-and-throttles"
	of := func(counts func(host, call string) bool) func(*http.Request) (string, bool) {
		return func(req *http.Request) (company string, is bool) {
			company, call, is := quickBooksCall(req)
			return company, is && counts(hostOf(req), call)
		}
	}
	p := Provider{
		Name: "quickbooks",
		Scopes: []Scope{
			some("batches", page, of(func(_, call string) bool { return call == "batch" }), throttle.PerMinute(40)),
			// As Intuit quoted its page in this thread.
			some("reports", "https://github.com/intuit/QuickBooks-V3-PHP-SDK/issues/54",
				of(func(_, call string) bool { return strings.HasPrefix(call, "reports/") }), throttle.PerMinute(200)),
			some("emails", page, of(func(host, call string) bool {
				return strings.HasPrefix(host, "sandbox-") && strings.HasSuffix(call, "/send")
			}), throttle.PerDay(40)),
			some("company", page, of(func(_, _ string) bool { return true }), throttle.PerMinute(500), throttle.PerSecond(10),
				throttle.Tier{Limit: 10, Algorithm: throttle.Concurrency, Unit: "concurrent"}),
		},
		Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"concurrent": 1} },
		Profile: answers.Profile{Rules: []answers.Rule{
			{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wait: time.Minute},
			// In XML, as in https://github.com/ruckus/quickbooks-ruby/issues/338, or in JSON.
			{Status: http.StatusForbidden, Text: "*message=ThrottleExceeded;*", Kind: answers.Limited, Wait: time.Minute, Reason: "ThrottleExceeded"},
		}},
		Hosts: []string{"quickbooks.api.intuit.com", "sandbox-quickbooks.api.intuit.com"},
	}
	return p.readOn("2026-11-29")
}

// quickBooksCall returns the company of a request, and the path below it.
func quickBooksCall(req *http.Request) (company, call string, ok bool) {
	path, ok := strings.CutPrefix(req.URL.Path, "/v3/company/")
	company, call, _ = strings.Cut(path, "/")
	return company, strings.TrimSuffix(call, "/"), ok
}
