package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Twilio is Twilio's REST API, which limits how many requests of an account are open at
// once. How many it allows is not published, and differs between accounts: begin with
// few, and see the header Twilio-Concurrent-Requests and the errors 20429.
//
// What Verify allows for a phone number is not limited here. A refusal names no time to
// wait; refused requests were not processed.
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
