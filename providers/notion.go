package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Notion is Notion's API, with an average of 3 requests a second for a connection, which is one
// token. Newer pages describe a budget for windows of 60 seconds, spent at any pace, that depends
// on the workspace's plan. A rate of 3 a second stays within such a budget too. The limit that the
// connections of a workspace share is not published. A refusal by it may ask for a wait of more
// than a minute.
//
// A 529 asks for a wait like a 429.
func Notion() Provider {
	return Provider{
		Name:    "notion",
		Scopes:  []Scope{every("connection", "https://developers.notion.com/reference/request-limits", throttle.PerSecond(3))},
		Profile: answers.Profile{Rules: []answers.Rule{{Status: 529, Kind: answers.Limited, Reason: "service_overload"}}},
		Hosts:   []string{"api.notion.com"},
	}
}
