package providers

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var hubSpotPreset = Preset{
	Name: "hubspot", Constructor: "HubSpot(zone string)", kind: "Code and work",
	Parameters: []Parameter{{Name: "zone", About: "time zone of the account", Text: true, Default: "UTC", Example: "Europe/Berlin", check: isZone}},
	call:       func(a arguments) Provider { return HubSpot(a["zone"]) },
}

// HubSpot is the API of HubSpot, with the limits of one app in one free or Starter account. An app
// has 100 requests in any 10 seconds, and apart from them 5 searches a second. The account has
// 250,000 requests a day; its day begins at midnight in the account's time zone, such as
// "America/New_York", or UTC if zone is empty.
//
// A Professional account has 190 in 10 seconds and 625,000 a day, an Enterprise account 190 and
// 1,000,000, and with a limit increase, of which there may be two, 250 and 1,000,000 more. Responses name
// the limits, and the tiers of the scopes "app", whose unit is "burst", and "account" take them over. An app
// of the marketplace, which uses OAuth, has 110 and no daily limit: remove the scope "account", which is
// the last.
//
// Responses report the daily use of the account's other apps. When the day is used up, requests
// wait for midnight. After a refusal they do, too, if the Policy.MaxPause of each scope allows it.
// If not, the quota is closed with throttle.ErrBanned, and one request tries after each MaxPause.
func HubSpot(zone string) Provider {
	zone = cmp.Or(zone, "UTC")
	searches := func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, "/search") }
	app := when(func(req *http.Request) bool { return !searches(req) })
	const page, search = "https://developers.hubspot.com/apisbytier", "https://developers.hubspot.com/docs/api-reference/latest/crm/search-the-crm"
	burst := inHeaders("burst", "X-Hubspot-Ratelimit-Max", "X-Hubspot-Ratelimit-Remaining", answers.Field{})
	burst.Length = answers.Field{Header: "X-Hubspot-Ratelimit-Interval-Milliseconds", Format: answers.Millis}
	return Provider{
		Name: "hubspot",
		Scopes: []Scope{
			some("search", search, when(searches), throttle.PerSecond(5)),
			some("app", page, app, follows(0, 250, throttle.Tier{Limit: 100, Window: 10 * time.Second, Unit: "burst"})),
			every("account", page, follows(0, 3_000_000, throttle.Tier{Limit: 250_000, Algorithm: throttle.Calendar, Period: throttle.Day, Zone: zone})),
		},
		Cost: costsOne("burst", app), // a unit apart, to tell what responses report of the day
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				named("daily", inHeaders("", "X-Hubspot-Ratelimit-Daily", "X-Hubspot-Ratelimit-Daily-Remaining", answers.Field{})),
				named("interval", burst),
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "policyName", Text: "DAILY", Kind: answers.Limited, Until: zone, Wide: true},
				{Status: http.StatusTooManyRequests, Path: "policyName", Text: "TEN_SECONDLY_ROLLING", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "message", Text: "*daily limit*", Kind: answers.Limited, Until: zone, Wide: true, Reason: "DAILY"},
				{Status: http.StatusTooManyRequests, Path: "message", Text: "*ten_secondly_rolling*", Kind: answers.Limited, Reason: "TEN_SECONDLY_ROLLING"},
				{Status: http.StatusLocked, Kind: answers.Other, Reason: "locked"},
				{Status: 477, Kind: answers.Limited, Wide: true, Reason: "migration"},
			},
		},
		Hosts: []string{"api.hubapi.com", "*.hubapi.com", "api.hubspot.com"},
	}
}

func isZone(text string) error {
	if _, err := time.LoadLocation(text); err != nil {
		return errors.New("it must be a time zone such as Europe/Berlin")
	}
	return nil
}
