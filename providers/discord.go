package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var discordPreset = Preset{Name: "discord", Constructor: "Discord()", kind: "Messages", New: Discord}

// Discord is the API of Discord, with the limits of one IP address, one bot and each route. A bot has
// 50 requests a second in all, not counting those with an interaction's token, and for each route a
// quota that only responses report. A route is a method and a path; the channel, guild or webhook in
// the path is part of the route, and other ids are not. A route sends one request at a time, because
// only the response reports how many are left. If none is left, the next request waits for the reset.
//
// Several routes may share a bucket, which their responses name. The limiter doesn't join such
// routes: each route uses only its own responses.
//
// Discord bans an IP address after 10,000 invalid requests in 10 minutes. A request is invalid if its
// response is a 401, a 403, or a 429 that others have not caused. One that gets no response counts as
// invalid. After 10,000 all requests wait until the window allows more. The limiter counts only what
// passes through it: bots of one address count together if they share a store and the Provider.Name,
// and Provider.Account names them.
//
// A 429 of a resource's own limit, which others may have used up, reports a longer wait than the
// bucket does. The longer wait counts. A block of the IP address, which names no wait, closes all
// routes for an hour with throttle.ErrBanned. A wait of more than 15 minutes closes the route with
// throttle.ErrBanned, unless its Policy.MaxPause allows more.
func Discord() Provider {
	const page = "https://github.com/discord/discord-api-docs/blob/c98d64b/developers/topics/rate-limits.mdx"
	return Provider{
		Name: "discord",
		Scopes: []Scope{
			some("route", page, func(req *http.Request) (string, bool) { return discordRoute(req), true },
				throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}),
			some("bot", page, when(func(req *http.Request) bool { return !discordInteraction(req) }), throttle.PerSecond(50)),
			byAddress(every("address", page, throttle.Tier{Limit: 10_000, Window: 10 * time.Minute, Unit: "invalid", Estimated: true})),
		},
		Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"invalid": 1} }, // until the response is in
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				NameIn: "X-Ratelimit-Bucket", Unit: "route-requests", // a unit apart from the requests of the bot's tier
				Limit:     answers.Field{Header: "X-Ratelimit-Limit"},
				Remaining: answers.Field{Header: "X-Ratelimit-Remaining"},
				Reset:     answers.Field{Header: "X-Ratelimit-Reset-After", Format: answers.Seconds},
			}},
			Charges: []answers.Charge{{
				Unit:     "invalid",
				ByStatus: map[int]int64{http.StatusUnauthorized: 1, http.StatusForbidden: 1, http.StatusTooManyRequests: 1, 0: 0},
			}},
			Reasons: []answers.Field{{Header: "X-Ratelimit-Scope"}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Value: "shared", Kind: answers.Limited, Cost: map[string]int64{"invalid": 0}},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Global", Kind: answers.Limited, Unit: "requests"},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Value: "global", Kind: answers.Limited, Unit: "requests"},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Bucket", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "message", Text: "You are being blocked*", Kind: answers.Banned, Wait: discordBan, Wide: true, Reason: "blocked"},
				{Status: http.StatusTooManyRequests, Path: "retry_after", Text: "*", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Header: "Content-Type", Value: "text/*", Kind: answers.Banned, Wait: discordBan, Wide: true, Reason: "blocked"},
			},
		},
		Hosts: []string{"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"},
	}
}

// discordBan is how long a block of the IP address is taken to last. Users report an hour and more.
const discordBan = time.Hour

// discordRoute returns the method and path of a request, with * for ids below the top level.
func discordRoute(req *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/"), "/")
	if len(parts) > 1 && strings.HasPrefix(parts[0], "v") {
		parts = parts[1:] // the version
	}
	for i, part := range parts {
		switch {
		case i == 1 && topLevel(parts[0]):
		case i == 2 && (parts[0] == "webhooks" || parts[0] == "interactions"): // a token
			parts[i] = anonymous(part)
		case i > 0 && parts[i-1] == "reactions" || strings.ContainsAny(part, "0123456789"):
			parts[i] = "*"
		}
	}
	return req.Method + " " + strings.Join(parts, "/")
}

// discordInteraction reports whether a request is one of the endpoints of interactions, which have the
// interaction's token in the path. The token is base64 of "interaction:" and more, and the tokens of
// webhooks are not. See https://docs.discord.com/developers/interactions/receiving-and-responding.
func discordInteraction(req *http.Request) bool {
	path := req.URL.Path
	return strings.Contains(path, "/interactions/") || strings.Contains(path, "/webhooks/") && strings.Contains(path, "/aW50ZXJhY3Rpb246")
}

func topLevel(resource string) bool {
	return resource == "channels" || resource == "guilds" || resource == "webhooks" || resource == "interactions"
}
