package providers

import (
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// OpenAI is OpenAI's API with so many requests and tokens a minute for each model, as the
// limits page of the organization or project has them. Requests are spread over the
// minute, for limits may be applied to shorter times: 60 a minute as 1 a second. Only POST
// requests are limited; those whose JSON names no model share one more quota.
//
// A request is taken to cost as many tokens as it has text, four characters each, and as
// it may be answered with: its max_completion_tokens, max_output_tokens or max_tokens,
// for each of n choices, and nothing if it sets none. OpenAI, too, estimates before it
// answers; that it gives back what was not used is not said, so here it isn't. Where it
// counts more, the x-ratelimit headers of its responses tell.
//
// Of a body of more than 16 MB the beginning is looked at; of one that can be read but
// once, only its length. A 429 for want of credit is no limit: no wait mends it.
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
	return Provider{
		Name: "openai",
		Scopes: []Scope{some("model", page, openAIModel,
			throttle.Tier{Limit: requests, Window: time.Minute, PaceBurst: max(1, requests/60)}, minute(tokens, "tokens"))},
		Cost: func(req *http.Request) throttle.Cost { return throttle.Cost{"tokens": openAITokens(req)} },
		Profile: answers.Profile{
			Quotas: []answers.Quota{quota("Requests", ""), quota("Tokens", "tokens")},
			RetryAfter: []answers.Field{
				{Header: "Retry-After-Ms", Format: answers.Millis},
				{Header: "Retry-After", Format: answers.RetryAfter},
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
				{Status: http.StatusTooManyRequests, Header: "X-Should-Retry", Value: "false", Kind: answers.Other, Reason: "x-should-retry: false"},
			},
		},
		Hosts: []string{"api.openai.com"},
	}
}

// openAIModel is the model that a request is for.
func openAIModel(req *http.Request) (model string, counts bool) {
	if req.Method != http.MethodPost {
		return "", false
	}
	return promptOf(req).fields["model"], true
}

// openAITokens are those that a request may use.
func openAITokens(req *http.Request) int64 {
	p := promptOf(req)
	return p.tokens() + p.number("max_completion_tokens", "max_output_tokens", "max_tokens")*min(max(p.number("n"), 1), 128)
}
