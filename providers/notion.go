package providers

import (
	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var notionPreset = Preset{Name: "notion", Constructor: "Notion()", kind: "Code and work", New: Notion}

// Notion is the API of Notion, with the limits of one connection, which is one token. A connection
// has a budget of requests for 60 seconds, spent at any pace. The budget depends on the workspace's
// plan. Here it is 180, because older pages allow 3 a second on average: set the tier of the scope
// "connection" to the plan's budget. Notion doesn't document when the 60 seconds begin, so they
// roll. The limit that the connections of a workspace share is not published. A refusal by it may
// ask for a wait of more than a minute.
//
// A 529 asks for a wait like a 429.
func Notion() Provider {
	connection := every("connection", "https://developers.notion.com/reference/request-limits", throttle.PerMinute(180))
	connection.Per = PerToken
	return Provider{
		Name:   "notion",
		Scopes: []Scope{connection},
		Profile: answers.Profile{
			Reasons: []answers.Field{{Path: "additional_data.rate_limit_reason"}},
			Rules:   []answers.Rule{{Status: 529, Kind: answers.Limited, Reason: "service_overload"}},
		},
		Hosts: []string{"api.notion.com"},
	}
}
