package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var xeroPreset = Preset{
	Name: "xero", Constructor: "Xero(perDay int64)", kind: "Payments and shops",
	Parameters: []Parameter{{Name: "per_day", About: "calls a day to an organization", Min: 1, Default: "1000", Example: "5000"}},
	call:       func(a arguments) Provider { return Xero(a.number("per_day")) },
}

// Xero is the API of Xero (accounting, assets, files, finance, payroll and projects), with the
// limits of one app and of each organization. To each organization an app has perDay calls a day,
// 60 a minute, and 5 at once. The day has 5,000 calls, or 1,000 on the Starter plan of developers.
// To all organizations it has 10,000 calls a minute together. The header Xero-Tenant-Id names the
// organization. Calls without it are those of a custom connection, to its one organization. Calls
// to /connections count for the app alone. Every call costs one, whatever it returns. For several
// apps on one store, set Account to a function that returns the app.
//
// Responses report how many calls are left of the minute and of the day, so calls of other
// processes count, too. A response that reports more than 1,000 left of the day shows that the day
// has 5,000, and the preset takes that limit over. Sources disagree whether the windows are rolling
// or fixed. They roll here, which is safe for both.
//
// A refusal pauses the organization, or the app if X-Rate-Limit-Problem names the app's minute. It
// names the wait, except after too many calls at once. If a day is used up, the wait is up to a
// day, which closes the organization's quota with throttle.ErrBanned, unless the Policy.MaxPause of
// the scope "organization" is as long.
func Xero(perDay int64) Provider {
	const page = "https://developer.xero.com/faq/limits"
	day := follows(0, max(xeroDay, perDay), throttle.PerDay(perDay))
	return Provider{
		Name: "xero",
		Scopes: []Scope{
			some("organization", page, xeroOrganization,
				throttle.Tier{Limit: 5, Algorithm: throttle.Concurrency}, throttle.PerMinute(60), day),
			every("app", page, minute(10_000, "app")),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if _, counts := xeroOrganization(req); !counts {
				return throttle.Cost{"app": 1}
			}
			return throttle.Cost{"requests": 1, "app": 1}
		},
		Profile: answers.Profile{
			Quotas:  []answers.Quota{{Read: xeroLeft}},
			Reasons: []answers.Field{{Header: xeroProblem}},
			Rules: []answers.Rule{ // users report "minute", "Minute", "day", "Daily", "concurrent" and "appminute"
				{Status: http.StatusTooManyRequests, Header: xeroProblem, Value: "*pp*", Kind: answers.Limited, Wide: true, Wait: time.Minute},
				{Status: http.StatusTooManyRequests, Header: xeroProblem, Value: "*inute*", Kind: answers.Limited, Wait: time.Minute},
			},
		},
		Hosts: []string{"api.xero.com"},
	}.readOn("2026-11-29")
}

const xeroProblem = "X-Rate-Limit-Problem" // names the limit that refuses a call

const (
	xeroDay     = 5_000 // calls a day
	xeroStarter = 1_000 // on the Starter plan
)

// xeroLeft reads what is left of the minute, the day and the app's minute, and when the one that refuses a
// call ends. If more is left of a day than the Starter plan has, the day has the other limit.
func xeroLeft(r answers.Response) (readings []answers.Reading) {
	refuses := strings.ToLower(r.Header.Get(xeroProblem))
	for _, q := range []struct {
		header, problem, unit string
		window                time.Duration
	}{
		{"X-Minlimit-Remaining", "minute", "", time.Minute},
		{"X-Daylimit-Remaining", "da", "", 24 * time.Hour}, // day and daily
		{"X-Appminlimit-Remaining", "app", "app", time.Minute},
	} {
		left, err := strconv.ParseInt(r.Header.Get(q.header), 10, 64)
		if err != nil {
			continue
		}
		reading := answers.Reading{Name: q.problem, Unit: q.unit, Window: q.window, Has: answers.HasRemaining, Remaining: left}
		if q.window > time.Minute {
			reading.Name, reading.Authoritative = "day", true
			if left > xeroStarter {
				reading.Limit = xeroDay
			}
		}
		if wait, err := strconv.ParseUint(r.Header.Get("Retry-After"), 10, 31); err == nil && strings.HasPrefix(refuses, q.problem) {
			reading.Has |= answers.HasReset
			reading.Reset = time.Duration(wait) * time.Second
		}
		readings = append(readings, reading)
	}
	return readings
}

// xeroOrganization returns the organization of a call.
func xeroOrganization(req *http.Request) (organization string, counts bool) {
	path := strings.TrimPrefix(strings.ToLower(req.URL.Path), "/")
	first, _, _ := strings.Cut(path, "/")
	return strings.ToLower(req.Header.Get("Xero-Tenant-Id")), first != "connections"
}
