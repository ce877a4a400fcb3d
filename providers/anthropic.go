package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// Anthropic is Anthropic's Messages API with so many requests, tokens of input and tokens
// of output a minute for each family of models, as the limits page of the organization
// has them. Their windows are taken as rolling, for their kind is not said. The family of
// claude-sonnet-4-5 is "sonnet": models of one family may share a pool, so here they do.
// Only POSTs of messages are limited.
//
// What a request will cost is an estimate: as much input as it has text, four characters a
// token, and as much output as its max_tokens. So much is set aside until the response, at
// its end if it is a stream, tells the real cost. Input that is read from the prompt cache
// costs nothing, as with most models. Of a body of more than 16 MB the beginning is looked
// at; of one that can be read but once, only its length.
//
// The resets that responses tell are the times when all is available again, not when
// some is; and what is left is rounded to thousands of tokens.
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
	return Provider{
		Name: "anthropic",
		Scopes: []Scope{some("family", page, anthropicFamily,
			throttle.PerMinute(requests), tokens(input, "input-tokens"), tokens(output, "output-tokens"))},
		Cost: anthropicTokens,
		Profile: answers.Profile{
			Quotas: []answers.Quota{quota("Requests", ""), quota("Input-Tokens", "input-tokens"), quota("Output-Tokens", "output-tokens")},
			Charges: []answers.Charge{
				charge("input-tokens", "input_tokens"), charge("input-tokens", "cache_creation_input_tokens"), charge("output-tokens", "output_tokens"),
			},
		},
		Hosts: []string{"api.anthropic.com"},
	}
}

// anthropicFamily is the family of the model that a message is for.
func anthropicFamily(req *http.Request) (family string, counts bool) {
	if req.Method != http.MethodPost || req.URL.Path != "/v1/messages" {
		return "", false
	}
	for word := range strings.SplitSeq(promptOf(req).fields["model"], "-") {
		if word != "claude" && strings.Trim(word, "0123456789.") != "" {
			return word, true
		}
	}
	return "", true
}

func anthropicTokens(req *http.Request) throttle.Cost {
	p := promptOf(req)
	return throttle.Cost{"input-tokens": p.tokens(), "output-tokens": p.number("max_tokens")}
}
