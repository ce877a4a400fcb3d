package corpus_test

import (
	"time"

	. "github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
)

func at(header string, f Format) Field { return Field{Header: header, Format: f} }
func in(path string, f Format) Field   { return Field{Path: path, Format: f} }
func num(header string) Field          { return Field{Header: header} }

// family returns a quota with the usual three headers.
func family(unit, limit, remaining, reset string, f Format) Quota {
	return Quota{Unit: unit, Limit: num(limit), Remaining: num(remaining), Reset: at(reset, f)}
}

func full(q Quota) Quota                           { q.Full = true; return q }
func named(q Quota, name string) Quota             { q.Name = name; return q }
func nameIn(q Quota, header string) Quota          { q.NameIn = header; return q }
func windowed(q Quota, window time.Duration) Quota { q.Window = window; return q }

// sdkWaits are the headers in which OpenAI's clients look for a wait, in their order.
var sdkWaits = []Field{at("Retry-After-Ms", Millis), at("Retry-After", RetryAfter)}

var github = Quota{
	NameIn: "X-Ratelimit-Resource", Window: time.Hour, Limit: num("X-Ratelimit-Limit"), Remaining: num("X-Ratelimit-Remaining"),
	Used: num("X-Ratelimit-Used"), Reset: at("X-Ratelimit-Reset", EpochSeconds),
}

// githubRules match 403 and 429 alike. A refusal is of the primary limit only if nothing is left.
var githubRules = []Rule{
	{Status: 403, Header: "Retry-After", Kind: Limited, Reason: "secondary"},
	{Status: 403, Header: "X-RateLimit-Remaining", Value: "0", Kind: Limited, Delay: []Field{at("X-RateLimit-Reset", EpochSeconds)}, Reason: "primary"},
	{Status: 429, Header: "X-RateLimit-Remaining", Value: "0", Kind: Limited, Delay: []Field{at("X-RateLimit-Reset", EpochSeconds)}, Reason: "primary"},
	{Status: 200, Path: "errors.*.type", Text: "RATE_LIMITED", Kind: Limited, Delay: []Field{at("X-RateLimit-Reset", EpochSeconds)}},
}

func anthropic(unit, infix string) Quota {
	const h = "anthropic-ratelimit-"
	return full(named(family(unit, h+infix+"-limit", h+infix+"-remaining", h+infix+"-reset", Timestamp), infix))
}

func ended(header string, f Format) []Rule {
	return []Rule{{Status: 429, Kind: Limited, Delay: []Field{at(header, f)}}}
}

// profiles are the profiles of the providers in testdata/headers.json, by name.
var profiles = map[string]Profile{
	"Coinbase Prime": {Rules: []Rule{{Status: 429, Kind: Limited, Wait: 30 * time.Second}}},
	"Binance Spot": {
		Quotas: []Quota{
			{Name: "REQUEST_WEIGHT", Unit: "weight", Combined: at("X-MBX-USED-WEIGHT-*", UsedPerWindow)},
			{Name: "ORDERS", Unit: "orders", Combined: at("X-MBX-ORDER-COUNT-*", UsedPerWindow)},
		},
		Rules: []Rule{
			{Status: 418, Kind: Banned, Delay: []Field{{Path: "msg", After: "banned until ", Format: EpochMillis}}},
			{Status: 429, Path: "msg", Text: "*banned until*", Kind: Banned, Delay: []Field{{Path: "msg", After: "banned until ", Format: EpochMillis}}},
			{Status: 403, Kind: Banned, Reason: "WAF"},
		},
	},
	"Kraken Spot REST": {Rules: []Rule{
		{Path: "error.*", Text: "EService: Throttled*", Kind: Limited, Delay: []Field{{Path: "error.*", After: "Throttled: ", Format: EpochSeconds}}},
		{Path: "error.*", Text: "*Rate limit exceeded", Kind: Limited},
	}},
	"OpenAI": {
		Quotas: []Quota{
			full(family("", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", Duration)),
			full(family("tokens", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", Duration)),
		},
		Charges:    []Charge{{Unit: "tokens", Field: in("usage.total_tokens", Number)}},
		RetryAfter: sdkWaits,
		Rules: []Rule{
			{Status: 429, Path: "error.type", Text: "insufficient_quota", Kind: Other},
			{Status: 429, Header: "X-Should-Retry", Value: "false", Kind: Other, Reason: "x-should-retry: false"},
		},
	},
	"Anthropic": {
		Charges: []Charge{
			{Unit: "input tokens", Field: in("usage.input_tokens", Number), Or: in("message.usage.input_tokens", Number)},
			{Unit: "input tokens", Field: in("usage.cache_creation_input_tokens", Number), Or: in("message.usage.cache_creation_input_tokens", Number)},
			{Unit: "output tokens", Field: in("usage.output_tokens", Number), Or: in("message.usage.output_tokens", Number)},
		},
		Quotas: []Quota{
			anthropic("", "requests"),
			anthropic("input tokens", "input-tokens"),
			anthropic("output tokens", "output-tokens"),
			anthropic("tokens", "tokens"),
			{Name: "unified-5h", Window: 5 * time.Hour, Share: num("anthropic-ratelimit-unified-5h-utilization"), Reset: at("anthropic-ratelimit-unified-5h-reset", EpochSeconds)},
		},
		Rules: []Rule{
			{Status: 529, Kind: Limited, Reason: "overloaded"},
			{Status: 429, Header: "anthropic-ratelimit-unified-5h-status", Value: "rejected", Kind: Limited, Delay: []Field{at("anthropic-ratelimit-unified-5h-reset", EpochSeconds)}, Reason: "unified-5h"},
		},
	},
	"Google Gemini API": {Rules: []Rule{
		{Status: 429, Path: "error.details.*.violations.*.quotaId", Text: "*PerDay*", Kind: Limited, Until: "America/Los_Angeles"},
		{Status: 429, Path: "error.status", Text: "RESOURCE_EXHAUSTED", Kind: Limited, Delay: []Field{in("error.details.*.retryDelay", Duration)}},
	}},
	"Azure OpenAI": {
		Quotas: []Quota{
			{Remaining: num("x-ratelimit-remaining-requests")},
			{Unit: "tokens", Remaining: num("x-ratelimit-remaining-tokens"), Reset: at("x-ratelimit-reset-tokens", Seconds)},
		},
		RetryAfter: sdkWaits,
		Rules:      []Rule{{Status: 200, Header: "Retry-After", Kind: Limited, Reason: "in the stream"}},
	},
	"GitHub REST":    {Quotas: []Quota{github}, Rules: githubRules},
	"GitHub GraphQL": {Quotas: []Quota{withUnit(github, "points")}, Rules: githubRules},
	"GitLab": {Quotas: []Quota{
		{NameIn: "RateLimit-Name", Window: time.Minute, Limit: num("RateLimit-Limit")}, // rescaled to a minute, unlike the other headers
		{NameIn: "RateLimit-Name", Used: num("RateLimit-Observed"), Remaining: num("RateLimit-Remaining"), Reset: at("RateLimit-Reset", EpochSeconds)},
		{NameIn: "RateLimit-Name", Reset: at("RateLimit-ResetTime", HTTPDate)},
	}},
	"Shopify REST Admin": {Quotas: []Quota{{Combined: at("X-Shopify-Shop-Api-Call-Limit", UsedOfLimit)}}},
	"Shopify GraphQL Admin": {
		Quotas: []Quota{{
			Unit:      "points",
			Limit:     in("extensions.cost.throttleStatus.maximumAvailable", Number),
			Remaining: in("extensions.cost.throttleStatus.currentlyAvailable", Number),
			Rate:      in("extensions.cost.throttleStatus.restoreRate", Number),
		}},
		Charges: []Charge{{Unit: "points", Field: in("extensions.cost.actualQueryCost", Number)}},
		Rules: []Rule{{
			Status: 200, Path: "errors.*.extensions.code", Text: "THROTTLED", Kind: Limited,
			Asked: in("extensions.cost.requestedQueryCost", Number),
		}},
	},
	"Stripe": {
		Reasons: []string{"Stripe-Rate-Limited-Reason"},
		Rules: []Rule{
			{Status: 429, Header: "Stripe-Rate-Limited-Reason", Kind: Limited},
			{Status: 429, Path: "error.code", Text: "lock_timeout", Kind: Other},
		},
	},
	"Twilio":   {Quotas: []Quota{{Unit: "concurrent-requests", Used: num("Twilio-Concurrent-Requests")}}},
	"SendGrid": {Quotas: []Quota{family("", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", EpochSeconds)}, Rules: ended("X-RateLimit-Reset", EpochSeconds)},
	"Slack":    {Rules: []Rule{{Status: 200, Header: "Retry-After", Kind: Limited}}},
	"Discord": {
		Quotas:  []Quota{nameIn(family("", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset-After", Seconds), "X-RateLimit-Bucket")},
		Reasons: []string{"X-RateLimit-Scope"},
		Rules: []Rule{
			{Status: 429, Header: "X-RateLimit-Global", Value: "true", Kind: Limited, Wide: true},
			{Status: 429, Header: "X-RateLimit-Scope", Value: "global", Kind: Limited, Wide: true},
		},
	},
	"Notion":   {Rules: []Rule{{Status: 529, Kind: Limited, Reason: "service_overload"}}},
	"Airtable": {Rules: []Rule{{Status: 429, Kind: Limited, Wait: 30 * time.Second}}},
	"HubSpot": {
		Quotas: []Quota{
			{Name: "daily", Window: 24 * time.Hour, Limit: num("X-HubSpot-RateLimit-Daily"), Remaining: num("X-HubSpot-RateLimit-Daily-Remaining")},
			{Name: "interval", Limit: num("X-HubSpot-RateLimit-Max"), Remaining: num("X-HubSpot-RateLimit-Remaining"), Length: at("X-HubSpot-RateLimit-Interval-Milliseconds", Millis)},
			{Name: "secondly", Window: time.Second, Limit: num("X-HubSpot-RateLimit-Secondly"), Remaining: num("X-HubSpot-RateLimit-Secondly-Remaining")},
		},
		Rules: []Rule{{Status: 423, Kind: Limited}},
	},
	"Salesforce": {
		Quotas: []Quota{{Window: 24 * time.Hour, Combined: at("Sforce-Limit-Info", NamedUses)}},
		Rules:  []Rule{{Status: 403, Path: "*.errorCode", Text: "REQUEST_LIMIT_EXCEEDED", Kind: Limited}},
	},
	"Zendesk": {Quotas: []Quota{
		{Name: "account", Window: time.Minute, Limit: num("X-Rate-Limit"), Remaining: num("X-Rate-Limit-Remaining")},
		named(windowed(family("", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", Seconds), time.Minute), "account"),
		{Window: time.Minute, Combined: at("Zendesk-RateLimit-*", Pairs)},
	}},
	"Jira Cloud": {
		Quotas: []Quota{
			family("", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", Timestamp),
			withUnit(ietf.Quota("Beta-RateLimit"), "points"),
		},
		Reasons: []string{"RateLimit-Reason"},
		Rules:   []Rule{{Status: 503, Header: "Retry-After", Kind: Limited}},
	},
	"X (Twitter)": {
		Quotas: []Quota{
			windowed(family("", "x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset", EpochSeconds), 15*time.Minute),
			named(windowed(family("", "x-user-limit-24hour-limit", "x-user-limit-24hour-remaining", "x-user-limit-24hour-reset", EpochSeconds), 24*time.Hour), "user"),
			named(windowed(family("", "x-app-limit-24hour-limit", "x-app-limit-24hour-remaining", "x-app-limit-24hour-reset", EpochSeconds), 24*time.Hour), "app"),
		},
		Rules: []Rule{
			{Status: 429, Header: "x-user-limit-24hour-remaining", Value: "0", Kind: Limited, Delay: []Field{at("x-user-limit-24hour-reset", EpochSeconds)}, Reason: "user"},
			{Status: 429, Kind: Limited, Delay: []Field{at("x-rate-limit-reset", EpochSeconds)}},
		},
	},
	"Reddit": {
		Quotas: []Quota{{Used: num("X-Ratelimit-Used"), Remaining: num("X-Ratelimit-Remaining"), Reset: at("X-Ratelimit-Reset", Seconds)}},
		Rules:  []Rule{{Status: 200, Path: "errors.*", Text: "RATELIMIT", Kind: Limited, Delay: []Field{in("ratelimit", Seconds)}}},
	},
	"Spotify": {Rules: []Rule{{Status: 429, Path: "error.reason", Text: "QUOTA_EXCEEDED", Kind: Limited}}},
	"Google Maps (legacy web services)": {Rules: []Rule{
		{Status: 200, Path: "status", Text: "OVER_QUERY_LIMIT", Kind: Limited},
		{Status: 200, Path: "status", Text: "OVER_DAILY_LIMIT", Kind: Other},
	}},
	"Twitch Helix": {
		Quotas: []Quota{full(windowed(family("points", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", EpochSeconds), time.Minute))},
		Rules:  ended("Ratelimit-Reset", EpochSeconds),
	},
	"Cloudflare API": {Quotas: append(ietf.Profile().Quotas, Quota{Reset: at("X-RateLimit-Reset", HTTPDate)})},
	"AWS": {Rules: []Rule{
		{Status: 400, Path: "__type", Text: "*Throttl*", Kind: Limited},
		{Status: 400, Path: "__type", Text: "*RequestLimitExceeded", Kind: Limited},
		{Status: 503, Text: "*<Code>RequestLimitExceeded</Code>*", Kind: Limited, Reason: "RequestLimitExceeded"},
	}},
	"Microsoft Graph": {
		Quotas:  []Quota{{NameIn: "x-ms-throttle-scope", Unit: "resource units", Share: num("x-ms-throttle-limit-percentage")}},
		Charges: []Charge{{Unit: "resource units", Field: num("x-ms-resource-unit")}},
		Reasons: []string{"x-ms-throttle-information"},
	},
	"Okta": {
		Quotas: []Quota{windowed(family("", "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", EpochSeconds), time.Minute)},
		Rules: append([]Rule{{Status: 429, Header: "X-Rate-Limit-Limit", Value: "0", Kind: Limited, Reason: "concurrency"}},
			ended("X-Rate-Limit-Reset", EpochSeconds)...),
	},
	"Auth0": {
		Quotas: []Quota{
			family("", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", EpochSeconds),
			{Name: "client", Combined: at("Auth0-Client-Quota-Limit", Pairs)},
			{Name: "organization", Combined: at("Auth0-Organization-Quota-Limit", Pairs)},
		},
		Rules: []Rule{{Status: 500, Path: "error_description", Text: "Global limit has been reached", Kind: Limited, Delay: []Field{at("x-ratelimit-reset", EpochSeconds)}}},
	},
	"Linear": {
		Quotas: []Quota{
			windowed(family("", "X-RateLimit-Requests-Limit", "X-RateLimit-Requests-Remaining", "X-RateLimit-Requests-Reset", EpochMillis), time.Hour),
			windowed(family("complexity", "X-RateLimit-Complexity-Limit", "X-RateLimit-Complexity-Remaining", "X-RateLimit-Complexity-Reset", EpochMillis), time.Hour),
			{NameIn: "X-RateLimit-Endpoint-Name", Remaining: num("X-RateLimit-Endpoint-Requests-Remaining")},
		},
		Charges: []Charge{{Unit: "complexity", Field: num("X-Complexity")}},
		Rules: []Rule{
			{Status: 400, Header: "X-RateLimit-Requests-Remaining", Value: "0", Path: "errors.*.extensions.code", Text: "RATELIMITED", Kind: Limited, Delay: []Field{at("X-RateLimit-Requests-Reset", EpochMillis)}},
			{Status: 400, Path: "errors.*.extensions.code", Text: "RATELIMITED", Kind: Limited},
		},
	},
	"RapidAPI proxy (same header name as Linear, other unit)": {Quotas: []Quota{
		family("", "x-ratelimit-requests-limit", "x-ratelimit-requests-remaining", "x-ratelimit-requests-reset", Seconds),
	}},
	"Mailgun": {Rules: []Rule{{Status: 429, Kind: Limited, Delay: []Field{in("retry-seconds", Seconds)}}}},
	"Alpha Vantage": {Rules: []Rule{
		{Status: 200, Path: "Note", Text: "*call frequency*", Kind: Limited},
		{Status: 200, Path: "Information", Text: "*rate limit*", Kind: Limited},
	}},
	"CoinGecko": {Rules: []Rule{{Status: 403, Text: "*1020*", Kind: Banned}}},
	"Etherscan": {Rules: []Rule{{Status: 200, Path: "result", Text: "Max rate limit reached*", Kind: Limited, Wait: time.Second}}},
	"Infura":    {Rules: []Rule{{Status: 402, Kind: Limited, Until: "UTC", Reason: "the day's credit is spent"}}},
	"Alchemy":   {Rules: []Rule{{Path: "error.code", Text: "429", Kind: Limited}}},

	"IETF draft-10 (and master 2025-09)":                       ietf.Profile(),
	"IETF draft-07":                                            ietf.Profile(),
	"IETF draft-06 triple (e.g. Resend)":                       ietf.Profile(),
	"IETF draft-01..03 (RateLimit-Limit with policies inside)": ietf.Profile(),

	"Airweave (IETF name, epoch value)":            {Quotas: []Quota{{Reset: at("RateLimit-Reset", EpochSeconds)}}},
	"Prisjakt (delta milliseconds)":                {Quotas: []Quota{{Reset: at("X-Rate-Limit-Reset", Millis)}}},
	"Lemlist (JS Date string)":                     {Quotas: []Quota{{Reset: at("X-RateLimit-Reset", JSDate)}}},
	"BoldDesk (RFC3339 micros, limit is a period)": {Quotas: []Quota{{Length: at("x-rate-limit-limit", Duration), Remaining: num("x-rate-limit-remaining"), Reset: at("x-rate-limit-reset", Timestamp)}}},
	"Akamai MSL":                             {Quotas: []Quota{{Reset: at("X-RateLimit-Next", Timestamp)}}, Rules: ended("X-RateLimit-Next", Timestamp)},
	"Oracle Access Governance":               {Quotas: []Quota{{Name: "read", Remaining: num("RequestLimit-Default-Remaining")}, {Name: "write", Remaining: num("RequestLimit-Write-Remaining")}}, RetryAfter: []Field{at("RequestLimit-Default-RetryAfter", Millis)}},
	"Qomon (capacity and rate in one field)": {Quotas: []Quota{{Combined: at("X-Ratelimit-Limit", Pairs)}, {Full: true, Reset: at("X-Ratelimit-ResetTime", Seconds)}}, Charges: []Charge{{Field: num("X-Ratelimit-Cost")}}},
	"CoinGlass (limit/used headers)":         {Quotas: []Quota{{Window: time.Minute, Limit: num("API-KEY-MAX-LIMIT"), Used: num("API-KEY-USE-LIMIT")}}},
}

func withUnit(q Quota, unit string) Quota { q.Unit = unit; return q }
