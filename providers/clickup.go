package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle/answers"
)

var clickUpPreset = Preset{
	Name: "clickup", Constructor: "ClickUp(requests int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "requests", About: "requests a minute of a token", Min: 1, Default: "100", Example: "1000"}},
	call:       func(a arguments) Provider { return ClickUp(a.number("requests")) },
}

// ClickUp is the API of ClickUp, with the limits of each token, personal or of OAuth. A token has a
// number of requests a minute, by the plan of its workspace: 100 (Free Forever, Unlimited and
// Business), 1,000 (Business Plus) or 10,000 (Enterprise). Each request counts as one.
//
// Responses name the limit, which the tier takes over up to 10,000 or to requests, how much is left
// of it, and when the minute ends. ClickUp does not document when minutes begin, so they roll until
// a response reports an end. A refusal pauses the token until the reset that it names, or else for
// a minute.
func ClickUp(requests int64) Provider {
	reset := answers.Field{Header: "X-Ratelimit-Reset", Format: answers.EpochSeconds}
	token := every("token", "https://developer.clickup.com/docs/rate-limits", follows(0, max(10_000, requests), fixed(requests, time.Minute, "")))
	token.Per = PerToken
	return Provider{
		Name:   "clickup",
		Scopes: []Scope{token},
		Profile: answers.Profile{
			Quotas:  []answers.Quota{within(time.Minute, inHeaders("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", reset))},
			Rules:   []answers.Rule{{Status: http.StatusTooManyRequests, Kind: answers.Limited, Delay: []answers.Field{reset}, Wait: time.Minute}},
			Reasons: []answers.Field{{Path: "ECODE"}},
		},
		Hosts: []string{"api.clickup.com"},
	}.readOn("2026-11-29")
}
