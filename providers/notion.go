package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Notion is Notion's API for a connection, which is one token. It has a budget of requests for 60
// seconds, spent at any pace. The budget depends on the workspace's plan. Here it is 180, which is
// the average of 3 a second of older pages: set the tier of the scope "connection" to that of the
// plan. Notion doesn't document when the 60 seconds begin, so they roll. The limit that the
// connections of a workspace share is not published. A refusal by it may ask for a wait of more than
// a minute.
//
// A 529 asks for a wait like a 429.
func Notion() Provider {
	return Provider{
		Name:    "notion",
		Scopes:  []Scope{every("connection", "https://developers.notion.com/reference/request-limits", throttle.PerMinute(180))},
		Profile: answers.Profile{Rules: []answers.Rule{{Status: 529, Kind: answers.Limited, Reason: "service_overload"}}},
		Hosts:   []string{"api.notion.com"},
	}
}
