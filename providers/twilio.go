package providers

import (
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var twilioPreset = Preset{
	Name: "twilio", Constructor: "Twilio(concurrent int64)", kind: "Messages",
	Parameters: []Parameter{{Name: "concurrent", About: "requests of the account at the same time, which Twilio does not publish", Min: 1, Example: "10"}},
	call:       func(a arguments) Provider { return Twilio(a.number("concurrent")) },
}

// Twilio is the API of Twilio, with the limits of one account. Twilio limits an account's
// concurrent requests. The limit is not published and differs between accounts. Begin with a low
// value, and watch the header Twilio-Concurrent-Requests and errors with the code 20429. An account
// and its subaccounts may also create 2,000 messages a second together.
//
// A 429 may also come from the limit of one phone number, verification, factor or sender. It pauses
// nothing, because others are not affected. When the account's messages of an hour or a day are
// used up, only further messages are paused. A refusal names no wait. Twilio doesn't process
// refused requests.
func Twilio(concurrent int64) Provider {
	return Provider{
		Name: "twilio",
		Scopes: []Scope{
			some("messages", "https://www.twilio.com/docs/api/errors/63017", when(twilioMessages), throttle.PerSecond(2_000)),
			every("account", "https://www.twilio.com/docs/api/errors/20429", throttle.Tier{Limit: concurrent, Algorithm: throttle.Concurrency}),
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{Unit: "concurrent-requests", Used: answers.Field{Header: "Twilio-Concurrent-Requests"}}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "code", Text: "20429", Kind: answers.Limited, Wide: true},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "63038", Kind: answers.Limited, Reason: "day"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "60728", Kind: answers.Limited, Reason: "hour"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "602*", Kind: answers.Other, Reason: "verification"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "603*", Kind: answers.Other, Reason: "factor"},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "21611", Kind: answers.Other, Reason: "sender"},
			},
		},
		Hosts: []string{"*.twilio.com"},
	}
}

// twilioMessages reports whether a request creates a message.
func twilioMessages(req *http.Request) bool {
	return req.Method == http.MethodPost && strings.HasSuffix(strings.TrimSuffix(req.URL.Path, ".json"), "/Messages") &&
		hostOf(req) == "api.twilio.com"
}
