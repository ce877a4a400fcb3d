package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var unknownPreset = Preset{
	Name: "unknown", Constructor: "Unknown(hosts ...string)", kind: "Any other API",
	Parameters: []Parameter{{Name: "hosts", About: "host of the API, in which * stands for any text", Text: true, Default: "*", Example: "api.example.com", check: isHost}},
	call:       func(a arguments) Provider { return Unknown(a["hosts"]) },
	known:      func() []map[string]string { return nil },
}

// Unknown is the API of any host that documents no limits, with the limits of each host that refusals
// reveal. If there are no hosts, it is that of every host.
//
//	client, err := providers.Unknown("api.example.com").Client(nil)
//
// A host starts with 5 requests a second, one at a time. While requests wait for more, the rate grows, up to
// 1,000 a second: it doubles in 7 seconds until the host refuses one. Then it falls by a quarter, grows
// again to just below the rate that was refused, and seldom tries more; see [algorithms.Learn]. So a host
// refuses 0.2 to 1 % of the requests, which callers see, or package retry sends again. Of refusals that do
// not depend on the rate, a few are tolerated.
//
// The limiter of a request reports what was learned in its Status, and forgets it with Forget:
//
//	t, err := p.Transport(store)
//	status, err := t.Route(req).Status(ctx)
//
// When you know the limit, set it. The tier then counts as you say, and learns nothing:
//
//	p.Scope("host").Policy.Tiers = []throttle.Tier{throttle.PerSecond(12)}
//
// A host is taken to have one limit of requests for all of its paths and methods, whatever they cost. For an
// API with a limit for each user or endpoint, set the Key of the scope. Responses are read by
// [answers.Common], which reads waits and no counts. If responses name a limit, write a profile and a tier
// that follows it instead: see the page docs/unlisted.md.
func Unknown(hosts ...string) Provider {
	const page = "https://www.rfc-editor.org/rfc/rfc6585#section-4" // all that is known of such an API
	host := some("host", page, func(req *http.Request) (string, bool) { return hostOf(req), true },
		throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 1_000}})
	host.Read = "2026-11-28"
	return Provider{Name: "unknown", Scopes: []Scope{host}, Profile: answers.Common(), Hosts: hosts}
}
