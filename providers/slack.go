package providers

import (
	"mime"
	"net/http"
	"path"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Slack is Slack's Web API, for one app in one workspace: a quota for each method, of 20
// calls a minute, as most methods allow at least, or of 50 or 100 for those known to be of
// tier 3 or 4; and for chat.postMessage one message a second for each channel. Slack
// tolerates bursts beyond that, and doesn't say how it counts: minutes are rolling here.
//
// Lower limits are not known to it: of methods of tier 1, one call a minute; what may be
// posted to a workspace in all, which is not published; and those of conversations.history
// and .replies for apps that are new and sold outside the Marketplace.
//
// The channel is read from a body of JSON or a form; where it can't be, one quota is
// shared. A Retry-After counts on a response of status 200 too.
func Slack() Provider {
	const page, methods = "https://docs.slack.dev/apis/web-api/rate-limits", "https://docs.slack.dev/reference/methods"
	return Provider{
		Name: "slack",
		Scopes: []Scope{
			some("message", page, slackChannel, throttle.PerSecond(1)),
			some("tier4", methods, slackMethods(4), throttle.PerMinute(100)),
			some("tier3", methods, slackMethods(3), throttle.PerMinute(50)),
			some("method", page, slackMethods(0), throttle.PerMinute(20)),
		},
		Profile: answers.Profile{Rules: []answers.Rule{{Status: http.StatusOK, Header: "Retry-After", Kind: answers.Limited}}},
		Hosts:   []string{"slack.com"},
	}
}

const slackPost = "chat.postMessage"

// slackTiers are those of methods in wide use.
var slackTiers = map[string]int{
	"chat.delete": 3, "chat.update": 3, "conversations.history": 3, "conversations.info": 3, "conversations.replies": 3,
	"files.delete": 3, "files.list": 3, "team.info": 3,
	"conversations.members": 4, "files.info": 4, "users.info": 4,
}

// slackMethods is the Key of the methods of a tier, 0 being those of which none is known.
func slackMethods(tier int) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		method := path.Base(req.URL.Path)
		return method, method != slackPost && slackTiers[method] == tier
	}
}

// slackChannel is the channel that a message is for.
func slackChannel(req *http.Request) (channel string, counts bool) {
	if path.Base(req.URL.Path) != slackPost {
		return "", false
	}
	if kind, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); kind != "application/json" {
		return form(req).Get("channel"), true
	}
	var message struct{ Channel string }
	decode(req, &message)
	return message.Channel, true
}
