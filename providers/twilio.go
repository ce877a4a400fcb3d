package providers

import (
	"net/http"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Twilio is Twilio's REST API, which limits the concurrent requests of an account. The limit is not
// published and differs between accounts. Begin with a low value, and watch the header
// Twilio-Concurrent-Requests and the errors 20429.
//
// The limits of one phone number, verification, factor or sender also refuse with a 429. Such a
// refusal pauses nothing, because other numbers are not affected. A refusal names no wait. Twilio
// doesn't process refused requests.
func Twilio(concurrent int64) Provider {
	return Provider{
		Name: "twilio",
		Scopes: []Scope{every("account", "https://www.twilio.com/docs/api/errors/20429",
			throttle.Tier{Limit: concurrent, Algorithm: throttle.Concurrency})},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{Unit: "concurrent-requests", Used: answers.Field{Header: "Twilio-Concurrent-Requests"}}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "code", Text: "20429", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "602*", Kind: answers.Other, Reason: "verification"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "603*", Kind: answers.Other, Reason: "factor"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "21611", Kind: answers.Other, Reason: "sender"},
			},
		},
		Hosts: []string{"*.twilio.com"},
	}
}
