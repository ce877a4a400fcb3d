// Package profiles has the profiles of about fifty APIs: where their responses report limits,
// costs and refusals.
//
//	gitlab, err := profiles.Named("GitLab")
//	if err != nil {
//		log.Fatal(err)
//	}
//	client := &http.Client{Transport: &throttle.Transport{Limiter: lim, Profile: &gitlab.Profile}}
//
// A profile contains no limits: the Policy of lim has the limits of your account, in tiers whose
// Units are those of the profile's Quotas and Charges. Package providers has limits, costs and
// profiles of the APIs that it knows, and answers.Common serves APIs that nobody has described.
//
// Responses are read as the pages describe them, or as they were captured. Each [Entry] names its
// page and the day when the page was read.
package profiles

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/answers/ietf"
	"github.com/apithrottle/throttle/internal/streamrules"
	"github.com/apithrottle/throttle/internal/windows"
)

// An Entry is a profile and its source.
type Entry struct {
	// Page is the address of a page that describes the responses.
	Page string

	// Read is the day when Page was read, as 2006-01-02.
	Read string

	Profile answers.Profile
}

// Names returns the names of the profiles, sorted.
func Names() []string { return slices.Sorted(maps.Keys(all())) }

// Named returns the profile with this name, such as "GitLab". Each call returns a new one, which the
// caller may change. The error is not nil if there is none.
func Named(name string) (Entry, error) {
	entry, ok := all()[name]
	if !ok {
		return Entry{}, fmt.Errorf("profiles: the name is %q: it must be one of Names", name)
	}
	return entry, nil
}

// read is the day when the pages were read, unless an entry names another day.
const read = "2026-11-21"

// all returns the profiles by name.
func all() map[string]Entry {
	return map[string]Entry{
		"Coinbase Prime": {"https://docs.cdp.coinbase.com/prime/rest-api/rate-limits.md", read, answers.Profile{Rules: []answers.Rule{{Status: 429, Kind: answers.Limited, Wait: 30 * time.Second}}}},
		"Binance Spot": {"https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/rest-api.md", read, answers.Profile{
			Quotas: []answers.Quota{
				{Name: "REQUEST_WEIGHT", Unit: "weight", Combined: at("X-Mbx-Used-Weight-*", answers.UsedPerWindow)},
				{Name: "ORDERS", Unit: "orders", Combined: at("X-Mbx-Order-Count-*", answers.UsedPerWindow)},
				{Unit: "sapi-ip", Combined: at("X-Sapi-Used-Ip-Weight-*", answers.UsedPerWindow)},
				{Unit: "sapi-uid", Combined: at("X-Sapi-Used-Uid-Weight-*", answers.UsedPerWindow)},
			},
			Rules: []answers.Rule{
				{Status: 418, Kind: answers.Banned, Delay: []answers.Field{{Path: "msg", After: "banned until ", Format: answers.EpochMillis}}},
				{Status: 429, Path: "msg", Text: "*banned until*", Kind: answers.Banned, Delay: []answers.Field{{Path: "msg", After: "banned until ", Format: answers.EpochMillis}}},
				{Status: 429, Path: "msg", Text: "*orders per 1 DAY*", Kind: answers.Limited, Until: "UTC", Reason: "orders"},
				{Status: 429, Path: "code", Text: "-1015", Kind: answers.Limited, Reason: "orders"},
				{Status: 429, Path: "msg", Text: "*current request has limited*", Kind: answers.Limited, Wait: time.Minute, Reason: "sapi"},
				{Status: 429, Kind: answers.Limited, Wait: time.Minute}, // weight counts by the minute
				{Status: 403, Path: "code", Text: "*", Kind: answers.Other, Reason: "key"},
				{Status: 403, Kind: answers.Banned, Reason: "WAF"},
			},
		}},
		"Kraken Spot REST": {"https://docs.kraken.com/exchange/guides/rest/ratelimits.md", read, answers.Profile{Rules: []answers.Rule{
			{Path: "error.*", Text: "EGeneral:Temporary lockout", Kind: answers.Banned, Wait: 15 * time.Minute},
			{Path: "error.*", Text: "EGeneral:Too many requests", Kind: answers.Limited},
			{Path: "error.*", Text: "EService:Throttled", Kind: answers.Limited},
			{Path: "error.*", Text: "EService: Throttled*", Kind: answers.Limited, Delay: []answers.Field{{Path: "error.*", After: "Throttled: ", Format: answers.EpochSeconds}}},
			{Path: "error.*", Text: "EOrder:Domain rate limit exceeded", Kind: answers.Limited},
			{Path: "error.*", Text: "*Rate limit exceeded", Kind: answers.Limited},
		}}},
		"OpenAI": {"https://developers.openai.com/api/docs/guides/rate-limits", read, answers.Profile{
			Quotas: []answers.Quota{
				windows.ByReset(family("", "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", answers.Duration)),
				windows.ByReset(family("tokens", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens", answers.Duration)),
				windows.ByReset(family("tokens", "X-Ratelimit-Limit-Project-Tokens", "X-Ratelimit-Remaining-Project-Tokens", "X-Ratelimit-Reset-Project-Tokens", answers.Duration)),
			},
			Charges:    []answers.Charge{{Unit: "tokens", Field: in("usage.total_tokens", answers.Number)}},
			RetryAfter: sdkWaits("try again in ", answers.Duration),
			Rules: append(streamrules.OpenAI(), []answers.Rule{
				{Status: 429, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
				{Status: 429, Path: "error.type", Text: "billing_not_active", Kind: answers.Other},
				{Status: 429, Path: "error.code", Text: "billing_hard_limit_reached", Kind: answers.Other},
				{Status: 503, Path: "error.code", Text: "slow_down", Kind: answers.Limited},
				{Status: 429, Path: "error.message", Text: "Request too large*", Kind: answers.Other},
				{Status: 429, Header: "X-Should-Retry", Value: "false", Kind: answers.Other, Reason: "x-should-retry: false"},
			}...),
		}},
		"Anthropic": {"https://docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html", read, answers.Profile{
			Charges: []answers.Charge{
				{Unit: "input tokens", Field: in("usage.input_tokens", answers.Number), Or: in("message.usage.input_tokens", answers.Number)},
				{Unit: "input tokens", Field: in("usage.cache_creation_input_tokens", answers.Number), Or: in("message.usage.cache_creation_input_tokens", answers.Number)},
				{Unit: "output tokens", Field: in("usage.output_tokens", answers.Number), Or: in("message.usage.output_tokens", answers.Number)},
				{Unit: "cache creation tokens", Field: in("usage.cache_creation_input_tokens", answers.Number), Or: in("message.usage.cache_creation_input_tokens", answers.Number)},
				{Unit: "cache read tokens", Field: in("usage.cache_read_input_tokens", answers.Number), Or: in("message.usage.cache_read_input_tokens", answers.Number)},
			},
			Quotas: []answers.Quota{
				anthropic("", "ratelimit-requests"),
				anthropic("input tokens", "ratelimit-input-tokens"),
				anthropic("output tokens", "ratelimit-output-tokens"),
				anthropic("tokens", "ratelimit-tokens"),
				anthropic("input tokens", "fast-input-tokens"),
				anthropic("output tokens", "fast-output-tokens"),
				{Name: "unified-5h", Window: 5 * time.Hour, Share: num("Anthropic-Ratelimit-Unified-5h-Utilization"), Reset: at("Anthropic-Ratelimit-Unified-5h-Reset", answers.EpochSeconds)},
			},
			Rules: append(streamrules.Anthropic(), []answers.Rule{
				{Status: 429, Path: "error.details.error_code", Text: "enforced_spend_limit_reached", Kind: answers.Other},
				{Status: 429, Header: "Anthropic-Ratelimit-Unified-5h-Status", Value: "rejected", Kind: answers.Limited, Delay: []answers.Field{at("Anthropic-Ratelimit-Unified-5h-Reset", answers.EpochSeconds)}, Reason: "unified-5h"},
				{Status: 529, Header: "Retry-After", Kind: answers.Limited, Reason: "overloaded"},
				{Status: 529, Kind: answers.Other, Reason: "overloaded"},
			}...),
		}},
		"Google Gemini API": {"https://ai.google.dev/gemini-api/docs/rate-limits", read, answers.Profile{Charges: []answers.Charge{{Unit: "tokens", Field: in("usageMetadata.promptTokenCount", answers.Number), Or: in("*.usageMetadata.promptTokenCount", answers.Number)}}, Rules: streamrules.Gemini([]answers.Rule{
			{Status: 429, Path: "error.message", Text: "Your prepayment credits are depleted*", Kind: answers.Other, Reason: "credits"},
			{Status: 429, Path: "error.message", Text: "Your project has exceeded its monthly spending cap*", Kind: answers.Other, Reason: "spending cap"},
			{Status: 429, Path: "error.details.*.violations.*.quotaId", Text: "*PerDay*", Kind: answers.Limited, Until: "America/Los_Angeles"},
			{Status: 429, Path: "error.status", Text: "RESOURCE_EXHAUSTED", Kind: answers.Limited, Delay: []answers.Field{
				{Path: "error.message", After: "retry in ", Format: answers.Duration}, in("error.details.*.retryDelay", answers.Duration), // cut to the second
			}},
		})}},
		"Azure OpenAI": {"https://learn.microsoft.com/en-us/microsoft-cloud/dev/dev-proxy/concepts/azure-openai-429-token-rate-limit", read, answers.Profile{
			Quotas: []answers.Quota{
				{Limit: num("X-Ratelimit-Limit-Requests"), Remaining: num("X-Ratelimit-Remaining-Requests"), Length: at("X-Ratelimit-Renewalperiod-Requests", answers.Seconds)},
				{Unit: "tokens", Limit: num("X-Ratelimit-Limit-Tokens"), Remaining: num("X-Ratelimit-Remaining-Tokens"), Length: at("X-Ratelimit-Renewalperiod-Tokens", answers.Seconds), Reset: at("X-Ratelimit-Reset-Tokens", answers.Seconds)},
			},
			RetryAfter: sdkWaits("retry after ", answers.Seconds),
			Rules: append(streamrules.AzureOpenAI(), // both spellings of a reset occur
				answers.Rule{Status: 429, Header: "Policy-Id", Value: "*Call*", Kind: answers.Limited, Delay: []answers.Field{at("X-Ratelimit-Reset-Requests", answers.Seconds), at("X-Rate-Limit-Reset-Requests", answers.Seconds)}},
				answers.Rule{Status: 429, Header: "Policy-Id", Value: "*Token*", Kind: answers.Limited, Delay: []answers.Field{at("X-Ratelimit-Reset-Tokens", answers.Seconds), at("X-Rate-Limit-Reset-Tokens", answers.Seconds)}}),
		}},
		"GitHub REST":    {"https://github.com/github/docs/blob/21143d5/content/rest/using-the-rest-api/rate-limits-for-the-rest-api.md", read, answers.Profile{Quotas: []answers.Quota{github}, Rules: githubRules()}},
		"GitHub GraphQL": {"https://github.com/github/docs/blob/5ce330d/content/graphql/overview/rate-limits-and-node-limits-for-the-graphql-api.md", read, answers.Profile{Quotas: []answers.Quota{withUnit(github, "points")}, Charges: []answers.Charge{{Unit: "points", Field: in("data.rateLimit.cost", answers.Number)}}, Rules: githubRules()}},
		"GitLab": {"https://github.com/gitlabhq/gitlabhq/blob/0286e4c/doc/administration/settings/user_and_ip_rate_limits.md", read, answers.Profile{Quotas: []answers.Quota{
			{NameIn: "Ratelimit-Name", Window: time.Minute, Limit: num("Ratelimit-Limit")}, // rescaled to a minute, unlike the other headers
			{NameIn: "Ratelimit-Name", Used: num("Ratelimit-Observed"), Remaining: num("Ratelimit-Remaining"), Reset: at("Ratelimit-Reset", answers.EpochSeconds)},
			{NameIn: "Ratelimit-Name", Reset: at("Ratelimit-Resettime", answers.HTTPDate)},
		}, Rules: []answers.Rule{
			{Status: 429, Path: "message.error", Text: "This endpoint has been requested too many times*", Kind: answers.Limited, Wait: time.Minute},
			{Status: 429, Path: "message", Text: "This endpoint has been requested too many times*", Kind: answers.Limited, Wait: time.Minute},
			{Method: "POST", Status: 200, Path: "errors.*.message", Text: "This endpoint has been requested too many times*", Kind: answers.Limited, Wait: time.Minute},
		}}},
		"Shopify REST Admin": {"https://shopify.dev/docs/api/admin-rest/usage/rate-limits", read, answers.Profile{Quotas: []answers.Quota{{Combined: at("X-Shopify-Shop-Api-Call-Limit", answers.UsedOfLimit)}}}},
		"Shopify GraphQL Admin": {"https://shopify.dev/docs/api/usage/limits", read, answers.Profile{
			Quotas: []answers.Quota{{
				Unit:      "points",
				Limit:     in("extensions.cost.throttleStatus.maximumAvailable", answers.Number),
				Remaining: in("extensions.cost.throttleStatus.currentlyAvailable", answers.Number),
				Rate:      in("extensions.cost.throttleStatus.restoreRate", answers.Number),
			}},
			Charges: []answers.Charge{
				{Unit: "points", Field: in("extensions.cost.actualQueryCost", answers.Number)},
				{Unit: "requested", Field: in("extensions.cost.requestedQueryCost", answers.Number)},
			},
			Rules: []answers.Rule{{
				Status: 200, Path: "errors.*.extensions.code", Text: "THROTTLED", Kind: answers.Limited,
				Asked: in("extensions.cost.requestedQueryCost", answers.Number),
			}},
		}},
		"Stripe": {"https://docs.stripe.com/rate-limits", read, answers.Profile{
			Reasons: []answers.Field{{Header: "Stripe-Rate-Limited-Reason"}},
			Rules: []answers.Rule{
				{Status: 429, Header: "Stripe-Rate-Limited-Reason", Value: "resource-specific", Kind: answers.Other},
				{Status: 429, Header: "Stripe-Rate-Limited-Reason", Kind: answers.Limited},
				{Status: 429, Path: "error.code", Text: "lock_timeout", Kind: answers.Other},
				{Status: 400, Path: "error.code", Text: "rate_limit", Kind: answers.Limited},
				{Status: 400, Path: "error.message", Text: "*too quickly*", Kind: answers.Limited, Reason: "accounts"},
			},
		}},
		"Twilio": {"https://www.twilio.com/docs/api/errors/20429", read, answers.Profile{Quotas: []answers.Quota{{Unit: "concurrent-requests", Used: num("Twilio-Concurrent-Requests")}}, Rules: []answers.Rule{
			{Status: 429, Path: "code", Text: "60728", Kind: answers.Limited, Reason: "hour"},
			{Status: 429, Path: "code", Text: "602*", Kind: answers.Other, Reason: "verification"},
			{Status: 429, Path: "code", Text: "603*", Kind: answers.Other, Reason: "factor"},
			{Status: 429, Path: "code", Text: "21611", Kind: answers.Other, Reason: "sender"},
		}}},
		"SendGrid": {"https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/rate-limits", read, answers.Profile{Quotas: []answers.Quota{family("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", answers.EpochSeconds)}, Rules: ended("X-Ratelimit-Reset", answers.EpochSeconds)}},
		"Slack":    {"https://docs.slack.dev/apis/web-api/rate-limits.md", read, answers.Profile{Rules: []answers.Rule{{Status: 200, Path: "error", Text: "ratelimited", Kind: answers.Limited}}}},
		"Discord": {"https://github.com/discord/discord-api-docs/blob/c98d64b/developers/topics/rate-limits.mdx", read, answers.Profile{
			Quotas:  []answers.Quota{nameIn(family("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset-After", answers.Seconds), "X-Ratelimit-Bucket")},
			Reasons: []answers.Field{{Header: "X-Ratelimit-Scope"}},
			Rules: []answers.Rule{
				{Status: 429, Header: "X-Ratelimit-Global", Value: "true", Kind: answers.Limited, Wide: true},
				{Status: 429, Header: "X-Ratelimit-Scope", Value: "global", Kind: answers.Limited, Wide: true},
				{Status: 429, Header: "X-Ratelimit-Scope", Kind: answers.Limited},
				{Status: 429, Path: "message", Text: "You are being blocked*", Kind: answers.Banned, Wait: time.Hour, Wide: true, Reason: "blocked"},
				{Status: 429, Path: "retry_after", Text: "*", Kind: answers.Limited},
				{Status: 429, Header: "Content-Type", Value: "text/*", Kind: answers.Banned, Wait: time.Hour, Wide: true, Reason: "blocked"},
			},
		}},
		"Notion": {"https://developers.notion.com/reference/request-limits", read, answers.Profile{Reasons: []answers.Field{in("additional_data.rate_limit_reason", answers.Number)}, Rules: []answers.Rule{{Status: 529, Kind: answers.Limited, Reason: "service_overload"}}}},
		"Airtable": {"https://support.airtable.com/docs/managing-api-call-limits-in-airtable.md", read, answers.Profile{Rules: []answers.Rule{
			{Status: 429, Path: "errors.*.error", Text: "PUBLIC_API_BILLING_LIMIT_EXCEEDED", Kind: answers.Other},
			{Status: 429, Kind: answers.Limited, Wait: 30 * time.Second},
		}}},
		"HubSpot": {"https://developers.hubspot.com/changelog/2018-11-06-rate-limit-information-headers-will-be-included-in-http-responses", read, answers.Profile{
			Quotas: []answers.Quota{
				{Name: "daily", Window: 24 * time.Hour, Limit: num("X-Hubspot-Ratelimit-Daily"), Remaining: num("X-Hubspot-Ratelimit-Daily-Remaining")},
				{Name: "interval", Limit: num("X-Hubspot-Ratelimit-Max"), Remaining: num("X-Hubspot-Ratelimit-Remaining"), Length: at("X-Hubspot-Ratelimit-Interval-Milliseconds", answers.Millis)},
				{Name: "secondly", Window: time.Second, Limit: num("X-Hubspot-Ratelimit-Secondly"), Remaining: num("X-Hubspot-Ratelimit-Secondly-Remaining")},
			},
			Rules: []answers.Rule{ // a day ends at midnight of the account's zone, which no response reports
				{Status: 429, Path: "policyName", Text: "DAILY", Kind: answers.Limited, Until: "UTC"},
				{Status: 429, Path: "message", Text: "*daily limit*", Kind: answers.Limited, Until: "UTC", Reason: "DAILY"},
				{Status: 423, Kind: answers.Other, Reason: "locked"},
				{Status: 477, Kind: answers.Limited, Reason: "migration"},
			},
		}},
		"Salesforce": {"https://developer.salesforce.com/docs/atlas.en-us.264.0.api_rest.meta/api_rest/headers_api_usage.htm", read, answers.Profile{
			Quotas: []answers.Quota{{Window: 24 * time.Hour, Combined: at("Sforce-Limit-Info", answers.NamedUses)}},
			Rules: []answers.Rule{
				{Status: 403, Path: "*.errorCode", Text: "REQUEST_LIMIT_EXCEEDED", Kind: answers.Limited},
				{Status: 500, Header: "Content-Type", Value: "*xml*", Text: "*<faultcode>sf:REQUEST_LIMIT_EXCEEDED</faultcode>*", Kind: answers.Limited, Reason: "REQUEST_LIMIT_EXCEEDED"},
				{Status: 429, Path: "errorcode", Text: "50200", Kind: answers.Banned, Reason: "blocked"}, // Marketing Cloud
			},
		}},
		"Zendesk": {"https://developer.zendesk.com/documentation/api-basics/best-practices/best-practices-for-avoiding-rate-limiting", read, answers.Profile{Quotas: []answers.Quota{
			{Name: "account", Window: time.Minute, Limit: num("X-Rate-Limit"), Remaining: num("X-Rate-Limit-Remaining"), Reset: at("Ratelimit-Reset", answers.Seconds)},
			named(windowed(family("", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", answers.Seconds), time.Minute), "account"),
			{Window: time.Minute, Combined: at("Zendesk-Ratelimit-*", answers.Pairs)},
		}, Rules: []answers.Rule{
			{Status: 429, Path: "error", Text: "TooManyJobs", Kind: answers.Limited},
			{Status: 429, Kind: answers.Limited, Wait: time.Minute},
			{Status: 503, Text: "Number of allowed API requests per minute exceeded*", Kind: answers.Limited, Wait: time.Minute},
		}}},
		"Jira Cloud": {"https://developer.atlassian.com/cloud/jira/platform/rate-limiting", read, answers.Profile{
			Quotas: []answers.Quota{
				family("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", answers.Timestamp),
				{Unit: "points", Window: time.Hour, Remaining: answers.Field{Header: "Ratelimit", After: `"global-app-quota";r=`}, Reset: answers.Field{Header: "Ratelimit", After: ";t=", Format: answers.Seconds}},
				withUnit(ietf.Quota("Beta-Ratelimit"), "points"),
			},
			Reasons: []answers.Field{{Header: "Ratelimit-Reason"}},
			Rules:   []answers.Rule{{Status: 503, Header: "Retry-After", Kind: answers.Limited}},
		}},
		"X": {"https://docs.x.com/fundamentals/rate-limits", read, answers.Profile{
			Quotas: []answers.Quota{
				windowed(family("", "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", answers.EpochSeconds), 15*time.Minute),
				named(windowed(family("", "X-User-Limit-24hour-Limit", "X-User-Limit-24hour-Remaining", "X-User-Limit-24hour-Reset", answers.EpochSeconds), 24*time.Hour), "user"),
				named(windowed(family("", "X-App-Limit-24hour-Limit", "X-App-Limit-24hour-Remaining", "X-App-Limit-24hour-Reset", answers.EpochSeconds), 24*time.Hour), "app"),
			},
			Rules: []answers.Rule{
				{Status: 429, Path: "title", Text: "UsageCapExceeded", Kind: answers.Other},
				{Status: 429, Header: "X-User-Limit-24hour-Remaining", Value: "0", Kind: answers.Limited, Delay: []answers.Field{at("X-User-Limit-24hour-Reset", answers.EpochSeconds)}, Reason: "user"},
				{Status: 429, Kind: answers.Limited, Delay: []answers.Field{at("X-Rate-Limit-Reset", answers.EpochSeconds)}},
			},
		}},
		"Reddit": {"https://laterforreddit.com/news/2017/03/04/reddit-api-ratelimiting-explained/", read, answers.Profile{
			Quotas: []answers.Quota{{Used: num("X-Ratelimit-Used"), Remaining: num("X-Ratelimit-Remaining"), Reset: at("X-Ratelimit-Reset", answers.Seconds)}},
			Rules: []answers.Rule{
				{Status: 429, Header: "X-Ratelimit-Remaining", Value: "0*", Kind: answers.Limited, Delay: []answers.Field{at("X-Ratelimit-Reset", answers.Seconds)}, Wait: time.Second},
				{Status: 200, Path: "errors.*", Text: "RATELIMIT", Kind: answers.Limited, Delay: []answers.Field{in("ratelimit", answers.Seconds)}, Wait: time.Minute},
				{Status: 200, Path: "json.errors.*.*", Text: "* milliseconds*", Kind: answers.Limited, Wait: time.Second, Reason: "RATELIMIT"},
				{Status: 200, Path: "json.errors.*.*", Text: "RATELIMIT", Kind: answers.Limited, Delay: []answers.Field{in("json.ratelimit", answers.Seconds)}, Wait: time.Minute},
			},
		}},
		"Spotify": {"https://developer.spotify.com/documentation/web-api/concepts/rate-limits", read, answers.Profile{Rules: []answers.Rule{{Status: 429, Path: "error.reason", Text: "QUOTA_EXCEEDED", Kind: answers.Banned}}}},
		"Google Maps": {"https://developers.google.com/maps/documentation/mapmanagement/usage-and-billing", read, answers.Profile{Rules: []answers.Rule{
			{Status: 200, Path: "status", Text: "OVER_QUERY_LIMIT", Kind: answers.Limited},
			{Status: 200, Path: "status", Text: "OVER_DAILY_LIMIT", Kind: answers.Other},
		}}},
		"Twitch Helix": {"https://dev.twitch.tv/docs/api/guide", read, answers.Profile{
			Quotas: []answers.Quota{full(windowed(family("points", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", answers.EpochSeconds), time.Minute))},
			Rules:  ended("Ratelimit-Reset", answers.EpochSeconds),
		}},
		"Cloudflare API": {"https://developers.cloudflare.com/fundamentals/api/reference/limits", read, answers.Profile{
			Quotas: append(ietf.Profile().Quotas, answers.Quota{Reset: at("X-Ratelimit-Reset", answers.HTTPDate)}),
			Rules: []answers.Rule{
				{Status: 429, Path: "errors.*.code", Text: "10502", Kind: answers.Banned, Reason: "failed logins"},
				{Status: 429, Path: "errors.*.message", Text: "query consumed excessive resources*", Kind: answers.Other},
				{Status: 429, Path: "errors.*.message", Text: "*has exceeded its rate limit*", Kind: answers.Other},
				{Status: 429, Kind: answers.Limited, Wait: 5 * time.Minute},
				{Status: 503, Path: "errors.*.message", Text: "too many queries in progress*", Kind: answers.Limited},
				{Method: "POST", Status: 200, Path: "errors.*.message", Text: "rate limiter budget depleted*", Kind: answers.Limited, Wait: 5 * time.Minute},
			},
		}},
		"AWS": {"https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html", read, answers.Profile{RetryAfter: []answers.Field{at("X-Amz-Retry-After", answers.Millis), at("Retry-After", answers.RetryAfter)}, Rules: []answers.Rule{
			{Status: 429, Path: "Reason", Text: "*Function*", Kind: answers.Other, Reason: "function"}, // Lambda
			{Status: 400, Path: "__type", Text: "com.amazonaws.dynamodb.v20120810#LimitExceededException", Kind: answers.Limited, Reason: "LimitExceededException"},
			{Status: 400, Path: "__type", Text: "*ProvisionedThroughputExceeded*", Kind: answers.Other, Reason: "ProvisionedThroughputExceeded"},
			{Status: 400, Header: "Content-Type", Value: "*xml*", Text: "*<Code>PriorRequestNotComplete*", Kind: answers.Other, Reason: "PriorRequestNotComplete"},
			{Status: 503, Header: "Content-Type", Value: "*xml*", Text: "*<Code>SlowDown*", Kind: answers.Other, Reason: "SlowDown"},
			{Status: 400, Path: "__type", Text: "*Throttl*", Kind: answers.Limited},
			{Status: 400, Path: "__type", Text: "*RequestLimitExceeded", Kind: answers.Limited},
			{Status: 400, Header: "Content-Type", Value: "*xml*", Text: "*<Code>Throttling</Code>*", Kind: answers.Limited, Reason: "Throttling"},
			{Status: 403, Header: "Content-Type", Value: "*xml*", Text: "*<Code>RequestThrottled</Code>*", Kind: answers.Limited, Reason: "RequestThrottled"},
			{Status: 509, Header: "Content-Type", Value: "*xml*", Text: "*<Code>BandwidthLimitExceeded</Code>*", Kind: answers.Limited, Reason: "BandwidthLimitExceeded"},
			{Status: 503, Header: "Content-Type", Value: "*xml*", Text: "*<Code>RequestLimitExceeded</Code>*", Kind: answers.Limited, Reason: "RequestLimitExceeded"},
		}}},
		"Microsoft Graph": {"https://github.com/microsoftgraph/microsoft-graph-docs-contrib/blob/0135174/concepts/throttling-limits.md", read, answers.Profile{
			Quotas:  []answers.Quota{windowed(family("files", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", answers.Seconds), time.Minute), {NameIn: "X-Ms-Throttle-Scope", Unit: "resource units", Share: num("X-Ms-Throttle-Limit-Percentage")}},
			Charges: []answers.Charge{{Unit: "resource units", Field: num("X-Ms-Resource-Unit")}},
			Reasons: []answers.Field{{Header: "X-Ms-Throttle-Information"}},
			Rules:   []answers.Rule{{Status: 503, Header: "Retry-After", Kind: answers.Limited}}, // kept whole: it may be minutes
		}},
		"Okta": {"https://github.com/okta/okta-developer-docs/blob/10e4405/packages/@okta/vuepress-site/docs/reference/rl-best-practices/index.md", read, answers.Profile{
			Quotas: []answers.Quota{windowed(family("", "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", answers.EpochSeconds), time.Minute)},
			Rules: append([]answers.Rule{{Status: 429, Header: "X-Rate-Limit-Limit", Value: "0", Kind: answers.Limited, Reason: "concurrency"}},
				ended("X-Rate-Limit-Reset", answers.EpochSeconds)...),
		}},
		"Auth0": {"https://auth0.com/blog/why-getting-429s-and-how-to-stop-them", read, answers.Profile{
			Quotas: []answers.Quota{
				family("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", answers.EpochSeconds),
				{Name: "client", Combined: at("Auth0-Client-Quota-Limit", answers.Pairs)},
				{Name: "organization", Combined: at("Auth0-Organization-Quota-Limit", answers.Pairs)},
			},
			Rules: []answers.Rule{{Status: 500, Path: "error_description", Text: "Global limit has been reached", Kind: answers.Limited, Delay: []answers.Field{at("X-Ratelimit-Reset", answers.EpochSeconds)}}},
		}},
		"Linear": {"https://linear.app/developers/rate-limiting.md", read, answers.Profile{
			Quotas: []answers.Quota{
				windowed(family("", "X-Ratelimit-Requests-Limit", "X-Ratelimit-Requests-Remaining", "X-Ratelimit-Requests-Reset", answers.EpochMillis), time.Hour),
				windowed(family("complexity", "X-Ratelimit-Complexity-Limit", "X-Ratelimit-Complexity-Remaining", "X-Ratelimit-Complexity-Reset", answers.EpochMillis), time.Hour),
				{NameIn: "X-Ratelimit-Endpoint-Name", Remaining: num("X-Ratelimit-Endpoint-Requests-Remaining")},
			},
			Charges: []answers.Charge{{Unit: "complexity", Field: num("X-Complexity")}},
			// The resets are always an hour away, though the buckets gain all the time, so no refusal waits for one.
			Rules: []answers.Rule{{Status: 400, Path: "errors.*.extensions.code", Text: "RATELIMITED", Kind: answers.Limited}},
		}},
		"RapidAPI": {"https://docs.rapidapi.com/docs/response-headers", "2026-11-22", answers.Profile{Quotas: []answers.Quota{
			family("", "X-Ratelimit-Requests-Limit", "X-Ratelimit-Requests-Remaining", "X-Ratelimit-Requests-Reset", answers.Seconds),
		}}},
		"Mailgun": {"https://laracasts.com/discuss/channels/laravel/does-mailgun-driver-handle-rate-limiting", read, answers.Profile{Rules: []answers.Rule{{Status: 429, Kind: answers.Limited, Delay: []answers.Field{in("retry-seconds", answers.Seconds)}}}}},
		"Alpha Vantage": {"https://fintut.com/alpha-vantage-api-limits", "2026-11-22", answers.Profile{Rules: []answers.Rule{
			{Status: 200, Path: "Note", Text: "*call frequency*", Kind: answers.Limited},
			{Status: 200, Path: "Information", Text: "*rate limit*", Kind: answers.Limited},
		}}},
		"CoinGecko": {"https://docs.coingecko.com/docs/errors-and-rate-limits.md", read, answers.Profile{Rules: []answers.Rule{{Status: 403, Header: "Content-Type", Value: "text/*", Text: "*1020*", Kind: answers.Banned}}}},
		"Etherscan": {"https://docs.etherscan.io/rate-limits.md", read, answers.Profile{Rules: []answers.Rule{
			{Status: 200, Path: "result", Text: "*daily rate limit reached*", Kind: answers.Limited, Until: "UTC"},
			{Status: 200, Path: "result", Text: "Too many invalid api key*", Kind: answers.Banned, Wait: 30 * time.Second},
			{Status: 200, Path: "result", Text: "Max rate limit reached, please use API Key*", Kind: answers.Limited, Wait: 5 * time.Second},
			{Status: 200, Path: "result", Text: "*rate limit reached*", Kind: answers.Limited, Wait: time.Second},
		}}},
		"Infura": {"https://docs.metamask.io/services/how-to/avoid-rate-limiting.md", read, answers.Profile{Rules: []answers.Rule{
			{Status: 402, Kind: answers.Limited, Until: "UTC", Reason: "the day's credit is spent"},
			{Status: 429, Path: "error.event", Text: "-33400", Kind: answers.Limited, Until: "UTC", Reason: "day of the key"},
			{Status: 429, Kind: answers.Limited, Delay: []answers.Field{in("error.data.rate.backoff_seconds", answers.Seconds)}, Wait: time.Second},
		}}},
		"Alchemy": {"https://www.alchemy.com/docs/reference/throughput.md", read, answers.Profile{Rules: []answers.Rule{
			{Path: "error.message", Text: "Monthly capacity limit exceeded*", Kind: answers.Other},
			{Path: "error.code", Text: "429", Kind: answers.Limited, Wait: time.Second},
			{Path: "error.code", Text: "-32016", Kind: answers.Limited, Wait: time.Second},
			{Method: "POST", Path: "*.error.code", Text: "429", Kind: answers.Limited, Wait: time.Second},
			{Status: 429, Kind: answers.Limited, Wait: time.Second},
		}}},

		"Airweave":                 {"https://docs.airweave.ai/rate-limits", read, answers.Profile{Quotas: []answers.Quota{{Reset: at("Ratelimit-Reset", answers.EpochSeconds)}}}},
		"Prisjakt":                 {"https://developer.prisjakt.nu/docs/sections/rate-limit", read, answers.Profile{Quotas: []answers.Quota{{Reset: at("X-Rate-Limit-Reset", answers.Millis)}}}},
		"Lemlist":                  {"https://developer.lemlist.com/api-reference/getting-started/rate-limits", read, answers.Profile{Quotas: []answers.Quota{{Reset: at("X-Ratelimit-Reset", answers.JSDate)}}}},
		"BoldDesk":                 {"https://support.bolddesk.com/kb/article/808/api-rate-limits-optimizing-restful-api-usage", read, answers.Profile{Quotas: []answers.Quota{{Length: at("X-Rate-Limit-Limit", answers.Duration), Remaining: num("X-Rate-Limit-Remaining"), Reset: at("X-Rate-Limit-Reset", answers.Timestamp)}}}},
		"Akamai MSL":               {"https://techdocs.akamai.com/msl/reference/resource-limiting", read, answers.Profile{Quotas: []answers.Quota{{Reset: at("X-Ratelimit-Next", answers.Timestamp)}}, Rules: ended("X-Ratelimit-Next", answers.Timestamp)}},
		"Oracle Access Governance": {"https://docs.oracle.com/en/cloud/paas/access-governance/pmapi/rate-limits.html", read, answers.Profile{Quotas: []answers.Quota{{Name: "read", Remaining: num("Requestlimit-Default-Remaining")}, {Name: "write", Remaining: num("Requestlimit-Write-Remaining")}}, RetryAfter: []answers.Field{at("Requestlimit-Default-Retryafter", answers.Millis)}}},
		"Qomon":                    {"https://developers.qomon.com/rights-limiting", read, answers.Profile{Quotas: []answers.Quota{{Combined: at("X-Ratelimit-Limit", answers.Pairs)}, {Full: true, Reset: at("X-Ratelimit-Resettime", answers.Seconds)}}, Charges: []answers.Charge{{Field: num("X-Ratelimit-Cost")}}}},
		"CoinGlass":                {"https://docs.coinglass.com/reference/responses-error-codes.md", read, answers.Profile{Quotas: []answers.Quota{{Window: time.Minute, Limit: num("Api-Key-Max-Limit"), Used: num("Api-Key-Use-Limit")}}}},
	}
}

func at(header string, f answers.Format) answers.Field {
	return answers.Field{Header: header, Format: f}
}
func in(path string, f answers.Format) answers.Field { return answers.Field{Path: path, Format: f} }
func num(header string) answers.Field                { return answers.Field{Header: header} }

// family returns a quota with the usual three headers.
func family(unit, limit, remaining, reset string, f answers.Format) answers.Quota {
	return answers.Quota{Unit: unit, Limit: num(limit), Remaining: num(remaining), Reset: at(reset, f)}
}

func full(q answers.Quota) answers.Quota                           { q.Full = true; return q }
func named(q answers.Quota, name string) answers.Quota             { q.Name = name; return q }
func nameIn(q answers.Quota, header string) answers.Quota          { q.NameIn = header; return q }
func windowed(q answers.Quota, window time.Duration) answers.Quota { q.Window = window; return q }

// sdkWaits returns the headers in which OpenAI's clients look for a wait, in their order, and then the message
// of the error.
func sdkWaits(after string, f answers.Format) []answers.Field {
	return []answers.Field{
		at("Retry-After-Ms", answers.Millis), at("Retry-After", answers.RetryAfter),
		{Path: "error.message", After: after, Format: f},
	}
}

var github = answers.Quota{
	NameIn: "X-Ratelimit-Resource", Window: time.Hour, Limit: num("X-Ratelimit-Limit"), Remaining: num("X-Ratelimit-Remaining"),
	Used: num("X-Ratelimit-Used"), Reset: at("X-Ratelimit-Reset", answers.EpochSeconds),
}

// githubRules returns rules that match 403 and 429 alike. A refusal is of the primary limit only if nothing is left.
func githubRules() []answers.Rule {
	const second = "You have exceeded a secondary rate limit*"
	reset := []answers.Field{at("X-Ratelimit-Reset", answers.EpochSeconds)}
	return []answers.Rule{
		{Status: 403, Header: "Retry-After", Kind: answers.Limited, Reason: "secondary"},
		{Status: 403, Header: "X-Ratelimit-Remaining", Value: "0", Kind: answers.Limited, Delay: reset, Reason: "primary"},
		{Status: 429, Header: "X-Ratelimit-Remaining", Value: "0", Kind: answers.Limited, Delay: reset, Reason: "primary"},
		{Status: 403, Path: "message", Text: "You have triggered an abuse detection mechanism*", Kind: answers.Limited, Wait: time.Minute, Reason: "secondary"},
		{Status: 403, Path: "message", Text: second, Kind: answers.Limited, Wait: time.Minute, Reason: "secondary"},
		{Status: 429, Header: "Retry-After", Kind: answers.Limited, Reason: "secondary"},
		{Status: 429, Kind: answers.Limited, Wait: time.Minute, Reason: "secondary"},
		{Status: 200, Header: "X-Ratelimit-Resource", Value: "graphql", Path: "errors.*.type", Text: "RATE_LIMIT*", Kind: answers.Limited, Delay: reset},
		{Status: 200, Header: "X-Ratelimit-Resource", Value: "graphql", Path: "errors.*.message", Text: second, Kind: answers.Limited, Wait: time.Minute, Reason: "secondary"},
	}
}

func anthropic(unit, infix string) answers.Quota {
	header := func(end string) string {
		return http.CanonicalHeaderKey("anthropic-" + infix + "-" + end)
	}
	return full(named(windowed(family(unit, header("limit"), header("remaining"), header("reset"), answers.Timestamp), time.Minute), strings.TrimPrefix(infix, "ratelimit-")))
}

func ended(header string, f answers.Format) []answers.Rule {
	return []answers.Rule{{Status: 429, Kind: answers.Limited, Delay: []answers.Field{at(header, f)}}}
}

func withUnit(q answers.Quota, unit string) answers.Quota { q.Unit = unit; return q }
