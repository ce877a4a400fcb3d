package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Notion is Notion's API with an average of 3 requests a second for a connection, which
// is one token. Newer pages have a budget for windows of 60 seconds, to be spent at any
// pace, by the workspace's plan: 3 a second keep to the same in such a window. The limit
// that a workspace's connections share is not published; a refusal by it may say a longer
// wait than a minute.
//
// A 529 asks to wait as a 429 does.
func Notion() Provider {
	return Provider{
		Name:    "notion",
		Scopes:  []Scope{every("connection", "https://developers.notion.com/reference/request-limits", throttle.PerSecond(3))},
		Profile: answers.Profile{Rules: []answers.Rule{{Status: 529, Kind: answers.Limited, Reason: "service_overload"}}},
		Hosts:   []string{"api.notion.com"},
	}
}
