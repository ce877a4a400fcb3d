package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var intercomPreset = Preset{Name: "intercom", Constructor: "Intercom()", kind: "Messages", New: Intercom}

// Intercom is the API of Intercom, with the limits of one workspace and of each of its apps. An app
// has 10,000 requests a minute and a workspace 25,000, which Intercom spreads over windows of 10
// seconds: 1,666 and 4,166 in each. A token is of one app in one workspace. For an app that is
// installed in several workspaces, set Account to a function that returns the workspace. Every
// request costs one. Canvas Kit and webhooks, which Intercom sends, don't count.
//
// Responses name the app's limit, which Intercom changes on request, and report how much is left of
// the window and when it ends. The scope "app" takes the limit over, from 16 to 16,660 in 10
// seconds. No response names the limit of the workspace: set the tier of the scope "workspace".
//
// A refusal pauses the app until the window ends.
func Intercom() Provider {
	const page = "https://developers.intercom.com/docs/references/2.17/rest-api/errors/rate-limiting"
	const window = 10 * time.Second
	reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.EpochSeconds}
	app := every("app", page, follows(16, 16_660, fixed(1_666, window, "")))
	app.Per = PerToken
	return Provider{
		Name:   "intercom",
		Scopes: []Scope{app, every("workspace", page, fixed(4_166, window, "workspace"))},
		Cost:   func(*http.Request) throttle.Cost { return throttle.Cost{"requests": 1, "workspace": 1} },
		Profile: answers.Profile{
			Quotas:     []answers.Quota{within(window, inHeaders("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", reset))},
			RetryAfter: []answers.Field{{Header: "Retry-After", Format: answers.RetryAfter}, reset},
			Reasons:    []answers.Field{{Path: "errors.*.code"}},
		},
		Hosts: []string{"api.intercom.io", "api.eu.intercom.io", "api.au.intercom.io"},
	}.readOn("2026-11-29")
}
