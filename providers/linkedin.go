package providers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
)

var linkedInPreset = Preset{
	Name: "linkedin", Constructor: "LinkedIn(perDay, perMember int64)", kind: "Social and data",
	Parameters: []Parameter{
		{Name: "per_day", About: "calls a day of the app; 0: not limited", Default: "0", Example: "500"},
		{Name: "per_member", About: "calls a day of a member; 0: not limited", Default: "0", Example: "100"},
	},
	call: func(a arguments) Provider { return LinkedIn(a.number("per_day"), a.number("per_member")) },
}

// LinkedIn is the API of LinkedIn, with the limits of one app and of each of its members. The token
// of a request is its member. Days begin at midnight UTC.
//
// The development tier of the Community Management API has 500 calls a day, 100 of them for one
// member, over all endpoints. The arguments are these two limits. In the standard tier, and in
// other products, each endpoint has limits of its own, for the app and for a member. LinkedIn shows
// the app's limits in the Developer Portal and publishes only a few. Share on LinkedIn has 100,000
// posts a day of the app and 150 of a member. A member has 600 requests a minute for the users of
// segments, 300 for their companies, and 600 a minute and 300,000 a day for conversion events. If
// the arguments are 0, nothing else is limited until a refusal. If you know the limits of
// endpoints, set them in the scopes "endpoint" and "member endpoint". Name all that you use,
// because the others then share one quota, and its pauses:
//
//	p := providers.LinkedIn(0, 0)
//	analytics := p.Scope("endpoint").Policy.Tiers[0]
//	analytics.Limit = 10_000
//	p.Scope("endpoint").Models = providers.NewModels(map[string][]throttle.Tier{"GET /rest/adAnalytics": {analytics}})
//
// A request for several objects is taken to be one call. The numbers and texts with a colon in a
// path are taken to be ids. The data that analytics return is limited, too, which is not included.
//
// Responses report no limits. A refusal pauses its endpoint. One for the day says whether the app
// or the member has used it up, and the endpoint waits for midnight UTC if Policy.MaxPause allows
// it. If not, the quota is closed with throttle.ErrBanned, and one request tries after each
// MaxPause.
func LinkedIn(perDay, perMember int64) Provider {
	const page = "https://learn.microsoft.com/en-us/linkedin/shared/api-guide/concepts/rate-limits"
	const tiers = "https://learn.microsoft.com/en-us/linkedin/marketing/increasing-access"
	const share = "https://learn.microsoft.com/en-us/linkedin/consumer/integrations/self-serve/share-on-linkedin"
	const segments = "https://learn.microsoft.com/en-us/linkedin/marketing/matched-audiences/create-and-manage-segment-companies"
	const conversions = "https://developer.salesforce.com/docs/data/data-cloud-int/guide/c360-a-linkedincapi-connector.html"
	day := func(limit int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: limit, Unit: unit, Algorithm: throttle.Calendar, Period: throttle.Day, Zone: "UTC"}
	}
	of := func(patterns ...string) func(*http.Request) (string, bool) {
		limit := endpointLimit{patterns: patterns}
		return func(req *http.Request) (string, bool) { return limit.key(req.Method, req.URL.Path) }
	}
	ofMember := func(s Scope) Scope {
		s.Per = PerToken
		return s
	}
	posts := of("POST /v2/ugcPosts", "POST /rest/posts")
	p := Provider{
		Name: "linkedin",
		Scopes: []Scope{
			ofMember(some("segment users", segments, of("POST /rest/dmpSegments/*/users", "POST /v2/dmpSegments/*/users"), throttle.PerMinute(600))),
			ofMember(some("segment companies", segments, of("POST /rest/dmpSegments/*/companies", "POST /v2/dmpSegments/*/companies"), throttle.PerMinute(300))),
			ofMember(some("conversions", conversions, of("POST /rest/conversionEvents"), throttle.PerMinute(600), day(300_000, ""))),
			ofMember(some("member posts", share, posts, day(150, ""))),
			ofMember(some("member endpoint", page, linkedInEndpoint, day(algorithms.MaxLimit, "member"))), // until a refusal
			some("posts", share, posts, day(100_000, "")),
			some("endpoint", page, linkedInEndpoint, day(algorithms.MaxLimit, "application")), // until a refusal
		},
		Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"member": 1, "application": 1} },
		Profile: answers.Profile{Rules: []answers.Rule{ // captured in https://github.com/PostHog/posthog/pull/64614, for example
			linkedInDay("*MEMBER DAY limit*", "member"),
			linkedInDay("*APPLICATION DAY limit*", "application"),
		}},
		Hosts: []string{"api.linkedin.com"},
	}
	if perMember > 0 {
		p.Scopes = append(p.Scopes, ofMember(every("member", tiers, day(perMember, ""))))
	}
	if perDay > 0 {
		p.Scopes = append(p.Scopes, every("application", tiers, day(perDay, "")))
	}
	return p.readOn("2026-11-29")
}

// linkedInDay returns the rule of a refusal for the day.
func linkedInDay(text, unit string) answers.Rule {
	return answers.Rule{Status: http.StatusTooManyRequests, Path: "message", Text: text, Kind: answers.Limited, Unit: unit, Until: "UTC", Reason: unit + " day"}
}

// linkedInEndpoint returns the endpoint of a request.
func linkedInEndpoint(req *http.Request) (name string, counts bool) {
	return endpoint(req.Method, strings.TrimSuffix(req.URL.Path, "/"), func(segment string) bool {
		return isNumbered(segment) || strings.Contains(segment, ":") // urn:li:share:1, or (id:a)
	}), true
}
