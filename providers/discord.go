package providers

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Discord is Discord's API for one bot: 50 requests a second in all, but for interactions,
// and for each route a quota that only its responses tell. A route is a method and a path,
// whose channel, guild or webhook is one of its own and whose other ids may be any. So one
// request of a route goes at a time, and when the response says that none is left, the
// next waits for the reset.
//
// Routes that share a bucket, which their responses name alike, are not known to: the
// second learns of it from its own responses. Requests that end in 401, 403 or 429 count
// towards 10,000 in 10 minutes for an IP address, above which it is banned; those of 401
// and 403 are yours to stop.
//
// A 429 of the resource's own limit, which others may have used, says longer waits than
// the bucket: then the longer one counts, and a wait of more than 15 minutes closes the
// route, with throttle.ErrBanned, unless its Policy.MaxPause allows more.
func Discord() Provider {
	const page = "https://github.com/discord/discord-api-docs/blob/c98d64b/developers/topics/rate-limits.mdx"
	return Provider{
		Name: "discord",
		Scopes: []Scope{
			some("route", page, func(req *http.Request) (string, bool) { return discordRoute(req), true },
				throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}),
			some("bot", page, when(func(req *http.Request) bool { return !strings.Contains(req.URL.Path, "/interactions/") }), throttle.PerSecond(50)),
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				NameIn: "X-Ratelimit-Bucket", Unit: "route-requests", // not those that the bot's tier counts
				Limit:     answers.Field{Header: "X-Ratelimit-Limit"},
				Remaining: answers.Field{Header: "X-Ratelimit-Remaining"},
				Reset:     answers.Field{Header: "X-Ratelimit-Reset-After", Format: answers.Seconds},
			}},
			Reasons: []string{"X-Ratelimit-Scope"},
			Rules:   []answers.Rule{{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Global", Kind: answers.Limited, Wide: true}},
		},
		Hosts: []string{"discord.com", "discordapp.com"},
	}
}

// discordRoute is the request's method and path, with * for ids below the top level.
func discordRoute(req *http.Request) string {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/"), "/")
	if len(parts) > 1 && strings.HasPrefix(parts[0], "v") {
		parts = parts[1:] // the version
	}
	for i, part := range parts {
		switch {
		case i == 1 && topLevel(parts[0]):
		case i == 2 && (parts[0] == "webhooks" || parts[0] == "interactions"): // a token
			parts[i] = fmt.Sprintf("%x", sha256.Sum256([]byte(part)))[:16]
		case i > 0 && parts[i-1] == "reactions" || strings.ContainsAny(part, "0123456789"):
			parts[i] = "*"
		}
	}
	return req.Method + " " + strings.Join(parts, "/")
}

func topLevel(resource string) bool {
	return resource == "channels" || resource == "guilds" || resource == "webhooks" || resource == "interactions"
}
