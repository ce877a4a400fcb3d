package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Anthropic is Anthropic's Messages API, with the requests, input tokens and output tokens that the
// limits page of the organization allows each model family per minute. Anthropic doesn't document
// the kind of window, so windows roll. The family of claude-sonnet-4-5 is "sonnet". Models of one
// family may share a pool, so here they do. Only POSTs of messages are limited.
//
// Until the response reports the real cost, a request is charged an estimate: the input tokens of
// its text, as Provider.Tokens counts them, 1,600 for each image, one for every 50 bytes of an
// encoded file, and max_tokens output tokens. A stream reports its cost at its end. Most models don't
// charge input that they read from the prompt cache. Of a body above 16 MB only the beginning is
// read, and of a body without GetBody only the length is known: four bytes count as one token.
//
// A reported reset is the time when the whole quota is available again, rather than some of it.
// Reported remaining counts are rounded to thousands of tokens.
func Anthropic(requests, input, output int64) Provider {
	const page = "https://docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html"
	quota := func(of, unit string) answers.Quota {
		name := "Anthropic-Ratelimit-" + of
		return answers.Quota{
			Unit: unit, Full: true,
			Limit:     answers.Field{Header: name + "-Limit"},
			Remaining: answers.Field{Header: name + "-Remaining"},
			Reset:     answers.Field{Header: name + "-Reset", Format: answers.Timestamp},
		}
	}
	tokens := func(limit int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: limit, Window: time.Minute, Unit: unit, Estimated: true}
	}
	charge := func(unit, name string) answers.Charge {
		return answers.Charge{Unit: unit, Field: answers.Field{Path: "usage." + name}, Or: answers.Field{Path: "message.usage." + name}}
	}
	bodies := new(prompts)
	return Provider{
		Name: "anthropic",
		Scopes: []Scope{some("family", page, bodies.anthropicFamily,
			throttle.PerMinute(requests), tokens(input, "input-tokens"), tokens(output, "output-tokens"))},
		Cost: func(req *http.Request) throttle.Cost { return anthropicTokens(bodies.cost(req)) },
		Profile: answers.Profile{
			Quotas: []answers.Quota{quota("Requests", ""), quota("Input-Tokens", "input-tokens"), quota("Output-Tokens", "output-tokens")},
			Charges: []answers.Charge{
				charge("input-tokens", "input_tokens"), charge("input-tokens", "cache_creation_input_tokens"), charge("output-tokens", "output_tokens"),
			},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "error.details.error_code", Text: "enforced_spend_limit_reached", Kind: answers.Other, Reason: "spend limit"},
			},
		},
		Hosts: []string{"api.anthropic.com"},
	}
}

// anthropicFamily returns the family of the model in a message request.
func (c *prompts) anthropicFamily(req *http.Request) (family string, counts bool) {
	if req.Method != http.MethodPost || req.URL.Path != "/v1/messages" {
		return "", false
	}
	for word := range strings.SplitSeq(c.key(req).fields["model"], "-") {
		if word != "claude" && strings.Trim(word, "0123456789.") != "" {
			return word, true
		}
	}
	return "", true
}

// anthropicImage is the tokens of an image: its width times its height in pixels by 750, which is
// about 1,600 for the largest image that is not scaled down. See
// https://platform.claude.com/docs/en/build-with-claude/vision, read on 2026-11-22.
const anthropicImage = 1_600

// anthropicTokens returns the estimated cost of a message request.
func anthropicTokens(p prompt) throttle.Cost {
	return throttle.Cost{"input-tokens": p.tokens(anthropicImage), "output-tokens": p.number("max_tokens")}
}
