package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var spotifyPreset = Preset{
	Name: "spotify", Constructor: "Spotify(requests int64)", kind: "Social and data",
	Parameters: []Parameter{{Name: "requests", About: "requests in 30 seconds of the app, which Spotify does not publish", Min: 1, Example: "100"}},
	call:       func(a arguments) Provider { return Spotify(a.number("requests")) },
}

// Spotify is the Web API of Spotify, with the limits of one app. An app has a number of requests in
// any 30 seconds, over all its users. Spotify doesn't publish the number, which is lower in
// development mode: requests is the caller's choice.
//
// A refusal pauses all requests for as long as it asks. It may ask for hours, and users report that
// requests in between make the wait longer. A wait of more than 15 minutes closes the quota with
// throttle.ErrBanned, unless its Policy.MaxPause allows more. A refusal with the reason
// QUOTA_EXCEEDED, for the apps in development mode of one developer, pauses nothing, because
// Spotify doesn't document when it ends.
func Spotify(requests int64) Provider {
	return Provider{
		Name: "spotify",
		Scopes: []Scope{every("app", "https://developer.spotify.com/documentation/web-api/concepts/rate-limits",
			throttle.Tier{Limit: requests, Window: 30 * time.Second})},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Status: http.StatusTooManyRequests, Path: "error.reason", Text: "QUOTA_EXCEEDED", Kind: answers.Other},
		}},
		Hosts: []string{"api.spotify.com"},
	}
}
