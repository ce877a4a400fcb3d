package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Twilio is Twilio's REST API, which limits the concurrent requests of an account. The limit is not
// published and differs between accounts. Begin with a low value, and watch the header
// Twilio-Concurrent-Requests and the errors 20429.
//
// Verify's limits for a phone number are not included. A refusal names no wait. Twilio doesn't
// process refused requests.
func Twilio(concurrent int64) Provider {
	return Provider{
		Name: "twilio",
		Scopes: []Scope{every("account", "https://www.twilio.com/docs/api/errors/20429",
			throttle.Tier{Limit: concurrent, Algorithm: throttle.Concurrency})},
		Profile: answers.Profile{Quotas: []answers.Quota{
			{Unit: "concurrent-requests", Used: answers.Field{Header: "Twilio-Concurrent-Requests"}},
		}},
		Hosts: []string{"*.twilio.com"},
	}
}
