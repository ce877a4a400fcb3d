package providers

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var discordPreset = Preset{Name: "discord", Constructor: "Discord()", kind: "Messages", New: Discord}

// Discord is the API of Discord, with the limits of one IP address, one bot and each route. A bot
// has 50 requests a second in all, not counting those with an interaction's token, and for each
// route a quota that only responses report. Requests without the header Authorization, such as
// those to a webhook, have 50 a second for an IP address. A route is a method and a path; the
// channel, guild or webhook in the path is part of the route, and other ids are not. A route sends
// one request at a time, because only the response reports how many are left. If none is left, the
// next request waits for the reset.
//
// Several routes may share a bucket, which their responses name. Once the response of a route has
// named the bucket of another, both share one quota for each channel, guild or webhook. Requests
// that waited before that still use their own route's responses, so a few may be refused.
//
// Discord bans an IP address after 10,000 invalid requests in 10 minutes. A request is invalid if
// its response is a 401, a 403, or a 429 that others have not caused. One that gets no response
// counts as invalid. After 10,000 all requests wait until the window allows more. The limiter
// counts only what passes through it: bots of one address count together if they share a store and
// the Provider.Name, and Provider.Account names them.
//
// A 429 of a resource's own limit, which others may have used up, reports a longer wait than the
// bucket does. The longer wait counts. A wait of more than 15 minutes closes the route with
// throttle.ErrBanned, unless its Policy.MaxPause allows more. A block of the IP address by Discord
// closes all routes for an hour with throttle.ErrBanned. One by Cloudflare, error 1015, closes the
// route for as long as the response asks or for an hour, because users report that other paths go
// on: see https://github.com/discord/discord-api-docs/issues/5385. A webhook that is unknown closes
// its route, because Discord restricts those who use it again.
//
// Over WebSocket, the Gateway closes a connection that sends more than 120 events in 60 seconds.
// Heartbeats are assumed to count, because Discord lists them among the events. A flood of other
// events uses up the minute at once, so let them leave five to the heartbeats. The example Gateway
// also checks the errors:
//
//	p := providers.Discord().Socket("events").Policy
//	events, err := throttle.New(p, nil) // of one connection
//	p.Tiers[0].Limit -= 5
//	others, err := throttle.New(p, nil)
//	err = events.Wait(ctx)                // before a heartbeat
//	err = others.Within(events).Wait(ctx) // before another event
//
// A bot has one Identify in 5 seconds for each rate limit key, which is the shard's id modulo
// max_concurrency of GET /gateway/bot, and 1,000 in 24 hours for all of its shards. Beyond them
// Discord resets the bot's token, so keep "sessions" on a store that outlives the process. GET
// /gateway/bot names the higher number of larger bots, and how many are left of it. A bot also has
// one request of all members of a guild in 30 seconds. Updates of the presence have no other
// documented limit. For "identify" and "members", open a throttle.Group, with a Limiter for each
// rate limit key or guild:
//
//	identify, err := throttle.NewGroup(providers.Discord().Socket("identify").Policy, store, throttle.GroupOptions{})
//	err = identify.Within(strconv.Itoa(shard%maxConcurrency), sessions).Wait(ctx)
func Discord() Provider {
	buckets := &discordBuckets{}
	const page = "https://github.com/discord/discord-api-docs/blob/c98d64b/developers/topics/rate-limits.mdx"
	return Provider{
		Name: "discord",
		Scopes: []Scope{
			some("route", page, func(req *http.Request) (string, bool) { return buckets.key(req), true },
				throttle.Tier{Limit: 1, Algorithm: throttle.Concurrency}),
			some("bot", page, when(func(req *http.Request) bool { return !discordInteraction(req) && !anonymously(req) }), throttle.PerSecond(50)),
			byAddress(some("anonymous", page, when(func(req *http.Request) bool { return !discordInteraction(req) && anonymously(req) }), throttle.PerSecond(50))),
			byAddress(every("address", page, throttle.Tier{Limit: 10_000, Window: 10 * time.Minute, Unit: "invalid", Estimated: true})),
		},
		Cost:   func(*http.Request) throttle.Cost { return throttle.Cost{"invalid": 1} }, // until the response is in
		Settle: buckets.learn,
		Profile: answers.Profile{
			Quotas: []answers.Quota{{
				NameIn: "X-Ratelimit-Bucket", Unit: "route-requests", // a unit apart from the requests of the bot's tier
				Limit:     answers.Field{Header: "X-Ratelimit-Limit"},
				Remaining: answers.Field{Header: "X-Ratelimit-Remaining"},
				Reset:     answers.Field{Header: "X-Ratelimit-Reset-After", Format: answers.Seconds},
			}},
			Charges: []answers.Charge{
				{Unit: "invalid", ByStatus: map[int]int64{http.StatusUnauthorized: 1, http.StatusForbidden: 1, http.StatusTooManyRequests: 1, 0: 0}},
				{Unit: "bucket", Field: answers.Field{Header: "X-Ratelimit-Bucket", Format: answers.Hash}},
			},
			Reasons: []answers.Field{{Header: "X-Ratelimit-Scope"}},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Value: "shared", Kind: answers.Limited, Cost: map[string]int64{"invalid": 0}},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Global", Kind: answers.Limited, Unit: "requests"},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Value: "global", Kind: answers.Limited, Unit: "requests"},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Bucket", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Header: "X-Ratelimit-Scope", Kind: answers.Limited},
				{Status: http.StatusTooManyRequests, Path: "message", Text: "You are being blocked*", Kind: answers.Banned, Wait: discordBan, Wide: true, Reason: "blocked"},
				{Status: http.StatusTooManyRequests, Path: "retry_after", Text: "*", Kind: answers.Limited, Delay: []answers.Field{{Path: "retry_after", Format: answers.Seconds}}},
				{Status: http.StatusTooManyRequests, Header: "Content-Type", Value: "text/*", Kind: answers.Banned, Wait: discordBan, Reason: "blocked"},
				{Status: http.StatusNotFound, Path: "code", Text: "10015", Kind: answers.Banned, Reason: "unknown webhook"},
			},
		},
		Hosts: []string{"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"},
		Sockets: []Scope{
			socket("discord", "events", discordGateway, PerConnection, throttle.PerMinute(120)).readOn(socketsRead),
			socket("discord", "identify", discordGateway, PerToken, throttle.Tier{Limit: 1, Window: 5 * time.Second}).readOn(socketsRead),
			socket("discord", "members", "https://github.com/discord/discord-api-docs/blob/c98d64b/developers/change-log.mdx", PerToken,
				throttle.Tier{Limit: 1, Window: 30 * time.Second}).readOn(socketsRead),
			socket("discord", "sessions", discordGateway, PerToken, throttle.PerDay(1_000)).readOn(socketsRead),
		},
	}
}

const discordGateway = "https://github.com/discord/discord-api-docs/blob/c98d64b/developers/events/gateway.mdx"

// discordBan is how long a block of the IP address is taken to last. Users report an hour and more.
const discordBan = time.Hour

// anonymously reports whether a request names no bot.
func anonymously(req *http.Request) bool { return req.Header.Get("Authorization") == "" }

// A discordRequest is the route of a request.
type discordRequest struct {
	template string // the method and the path below the version, with {} for the top-level resource
	top      string // the top-level resource, such as channels/1; empty if there is none
}

// discordRoute returns the route of a request.
func discordRoute(req *http.Request) discordRequest {
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/"), "/")
	if len(parts) > 1 && strings.HasPrefix(parts[0], "v") {
		parts = parts[1:] // the version
	}
	named := 0 // parts of the top-level resource
	if len(parts) > 1 && topLevel(parts[0]) {
		if named = 2; len(parts) > 2 && (parts[0] == "webhooks" || parts[0] == "interactions") {
			named, parts[2] = 3, anonymous(parts[2]) // a token
		}
	}
	old := discordOld(req.Method, parts)
	for i := named; i < len(parts); i++ {
		if i > 0 && parts[i-1] == "reactions" || strings.ContainsAny(parts[i], "0123456789") {
			parts[i] = "*"
		}
	}
	if named == 0 {
		return discordRequest{template: req.Method + " " + strings.Join(parts, "/")}
	}
	rest := strings.Join(append([]string{""}, parts[named:]...), "/")
	return discordRequest{req.Method + " {}" + rest + old, strings.Join(parts[:named], "/")}
}

// discordOld returns a suffix for a request that deletes a message of more than two weeks, because
// such requests have a bucket of their own: see generateRouteData in
// https://github.com/discordjs/discord.js/blob/main/packages/rest/src/lib/REST.ts, read on 2026-11-28.
func discordOld(method string, parts []string) string {
	if method != http.MethodDelete || len(parts) != 4 || parts[0] != "channels" || parts[2] != "messages" {
		return ""
	}
	const epoch = 1_420_070_400_000 // of Discord's ids, in milliseconds
	id, err := strconv.ParseInt(parts[3], 10, 64)
	if err != nil || time.Since(time.UnixMilli(id>>22+epoch)) < 14*24*time.Hour {
		return ""
	}
	return " old"
}

// A discordBuckets knows which routes share a bucket: the first route of a bucket names the quota of
// all. Each bot has routes and buckets of its own. It is safe for concurrent use.
type discordBuckets struct {
	mu    sync.Mutex
	first map[string]string // the template of the first route of a bucket
	same  map[string]string // the template of the first route of the bucket of a route
}

// The most routes and buckets that are known, and the longest template of one. Discord has a few
// hundred routes. A client of many bots, or of paths that Discord doesn't have, forgets and learns again.
const (
	discordRoutes  = 4_096
	discordLongest = 256
)

// key returns the key of the quota of a request.
func (b *discordBuckets) key(req *http.Request) string {
	r := discordRoute(req)
	b.mu.Lock()
	template, known := b.same[discordBot(req)+r.template]
	b.mu.Unlock()
	if !known {
		template = r.template
	}
	if r.top != "" && !strings.Contains(template, "{}") {
		return template + " " + r.top
	}
	return strings.Replace(template, "{}", r.top, 1)
}

// learn returns a function that receives the bucket of a request, as a number, among its cost.
func (b *discordBuckets) learn(req *http.Request) func(throttle.Cost) throttle.Cost {
	bot, template := discordBot(req), discordRoute(req).template
	return func(reported throttle.Cost) throttle.Cost {
		if n := reported["bucket"]; n > 0 && len(template) <= discordLongest {
			b.join(bot+template, bot+strconv.FormatInt(n, 36), template)
		}
		delete(reported, "bucket")
		return reported
	}
}

// join makes a route share the quota of the first route of its bucket.
func (b *discordBuckets) join(route, bucket, template string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first == nil || len(b.first) >= discordRoutes || len(b.same) >= discordRoutes {
		b.first, b.same = make(map[string]string), make(map[string]string)
	}
	if _, known := b.first[bucket]; !known {
		b.first[bucket] = template
	}
	b.same[route] = b.first[bucket]
}

// discordBot returns a name for the bot of a request.
func discordBot(req *http.Request) string {
	return anonymous(req.Header.Get("Authorization")) + " "
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
