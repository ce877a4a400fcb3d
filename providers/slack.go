package providers

import (
	"mime"
	"net/http"
	"path"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Slack is Slack's Web API, for one app in one workspace. Each method has a quota of 20 calls a
// minute, which most methods allow at least. Methods known to be of tier 3 or 4 have 50 or 100. The
// method chat.postMessage has one message a second for each channel. Slack tolerates bursts beyond
// that. It doesn't document how it counts, so minutes roll.
//
// Lower limits are not included: one call a minute for methods of tier 1; the unpublished limit of
// messages to a workspace; and the limits of conversations.history and .replies for new apps that
// are sold outside the Marketplace.
//
// The channel is read from a JSON or form body. Requests without a readable channel share one
// quota. A refusal may have status 200.
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
		Profile: answers.Profile{Rules: []answers.Rule{{Status: http.StatusOK, Path: "error", Text: "ratelimited", Kind: answers.Limited}}},
		Hosts:   []string{"slack.com"},
	}
}

const slackPost = "chat.postMessage"

// slackTiers are the tiers of widely used methods.
var slackTiers = map[string]int{
	"chat.delete": 3, "chat.update": 3, "conversations.history": 3, "conversations.info": 3, "conversations.replies": 3,
	"files.delete": 3, "files.list": 3, "team.info": 3,
	"conversations.members": 4, "files.info": 4, "users.info": 4,
}

// slackMethods returns the Key of the methods of a tier. Tier 0 is the methods that slackTiers
// lacks.
func slackMethods(tier int) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		method := path.Base(req.URL.Path)
		return method, method != slackPost && slackTiers[method] == tier
	}
}

// slackChannel returns the channel of a message.
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
