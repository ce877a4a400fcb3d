package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// OpenAI is OpenAI's API, with the requests and tokens that the limits page of the organization or
// project allows each model per minute. Requests are spread over the minute, because OpenAI may
// apply a limit to a shorter time: 60 a minute as 1 a second. Only POST requests are limited. POSTs
// whose JSON names no model share one more quota.
//
// A request is charged an estimate in tokens: those of its text, as Provider.Tokens counts them, or
// max_completion_tokens, max_output_tokens or max_tokens for each of its n choices, whichever is
// more. That is OpenAI's formula; it estimates before it answers, too. An image counts as 1,100
// tokens, an encoded file as one for every 50 bytes (1,000 of audio), and a token id as one. OpenAI
// doesn't document a refund of unused tokens, so nothing is refunded here. If OpenAI counts more,
// its x-ratelimit headers report it.
//
// Of a body above 16 MB only the beginning is read, and of a body without GetBody only the length
// is known. A 429 for lack of credit, or for a request above the limit, pauses nothing, because waiting
// doesn't help.
func OpenAI(requests, tokens int64) Provider {
	const page = "https://developers.openai.com/api/docs/guides/rate-limits"
	const reset, remaining, limit = "X-Ratelimit-Reset-", "X-Ratelimit-Remaining-", "X-Ratelimit-Limit-"
	quota := func(of, unit string) answers.Quota {
		return answers.Quota{
			Unit: unit, Full: true,
			Limit:     answers.Field{Header: limit + of},
			Remaining: answers.Field{Header: remaining + of},
			Reset:     answers.Field{Header: reset + of, Format: answers.Duration},
		}
	}
	bodies := new(prompts)
	return Provider{
		Name: "openai",
		Scopes: []Scope{some("model", page, bodies.openAIModel,
			throttle.Tier{Limit: requests, Window: time.Minute, PaceBurst: max(1, requests/60)}, minute(tokens, "tokens"))},
		Cost: func(req *http.Request) throttle.Cost { return throttle.Cost{"tokens": openAITokens(bodies.cost(req))} },
		Profile: answers.Profile{
			Quotas: []answers.Quota{quota("Requests", ""), quota("Tokens", "tokens")},
			RetryAfter: []answers.Field{
				{Header: "Retry-After-Ms", Format: answers.Millis},
				{Header: "Retry-After", Format: answers.RetryAfter},
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Path: "error.type", Text: "billing_not_active", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Path: "error.message", Text: "Request too large*", Kind: answers.Other, Reason: "too large"},
				{Status: http.StatusTooManyRequests, Header: "X-Should-Retry", Value: "false", Kind: answers.Other, Reason: "x-should-retry: false"},
			},
		},
		Hosts: []string{"api.openai.com"},
	}
}

// openAIModel returns the model of a request.
func (c *prompts) openAIModel(req *http.Request) (model string, counts bool) {
	if req.Method != http.MethodPost {
		return "", false
	}
	return c.key(req).fields["model"], true
}

// openAIImage is the tokens of an image: 1,105 for one of 2,048 by 4,096 pixels with gpt-4o in high
// detail. See https://developers.openai.com/api/docs/guides/images-vision, read on 2026-11-22. Other
// models take fewer for small images, and small models many more.
const openAIImage = 1_100

// openAITokens returns the estimated number of tokens of a request.
func openAITokens(p prompt) int64 {
	most := p.number("max_completion_tokens", "max_output_tokens", "max_tokens")
	return max(p.tokens(openAIImage), most*min(max(p.number("n"), 1), 128))
}
