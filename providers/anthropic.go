package providers

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
)

var anthropicPreset = Preset{
	Name: "anthropic", Constructor: "Anthropic(requests, input, output int64)", kind: "Language models", Models: "family",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a model family", Min: 1, Example: "50"},
		{Name: "input", About: "input tokens a minute of a model family", Min: 1, Example: "30000"},
		{Name: "output", About: "output tokens a minute of a model family", Min: 1, Example: "8000"},
	},
	call: func(a arguments) Provider {
		return Anthropic(a.number("requests"), a.number("input"), a.number("output"))
	},
}

// Anthropic is the Messages API of Anthropic, with the limits of each model family in one
// organization. The arguments are the requests, input tokens and output tokens per minute that the
// organization's limits page shows for a family. Where responses name other limits, these hold, up to those
// of the tier Scale or ten times the arguments. All versions 4.x of Opus share a pool, and Opus 5
// has another. The same holds for other families. Fast mode has a pool of its own, with the same
// limits unless responses report lower ones. Requests are spread over the minute, because Anthropic
// may enforce 60 a minute as 1 a second. The limits of tokens are buckets that refill continuously.
// Requests in OpenAI's protocol, to /v1/chat/completions, count as messages do. Requests for
// message batches have 1,000 a minute, for all models. The limits of token counting, files and skills
// depend on the organization, so these are not limited here. Models with other limits are in the Models
// of the scope "family", by the names of models, such as "claude-opus-4-*": see [Models] and
// [FetchAnthropic].
//
// Until the response reports the real cost, a request is charged an estimate. A stream reports its
// cost at its end. A stream that is cut off costs its estimate.
//
//   - Output: Anthropic counts what a model writes, and not max_tokens. So the estimate comes from
//     earlier answers to the same system prompt, tools and max_tokens: their average length plus
//     one and a half times their average deviation. While few such answers are known, the model's
//     other answers count, and while there are none, 4,000 tokens. For answers that take longer
//     than 75 seconds, the estimate is the output of 75 seconds, because the bucket is refilled
//     while they are written. It is never above max_tokens. It falls only as the requests in flight
//     end, because short answers end before long ones. If answers become ten times longer at once,
//     a few requests may be refused before the first long answer has ended.
//   - Input: the tokens of the text, as Provider.Tokens counts them, 1,600 for each image and one
//     for every 50 bytes of an encoded file. Anthropic doesn't charge input that it reads from the
//     prompt cache. So the input before a cache_control is free once a request with the same
//     beginning has been answered, for the lifetime of the cache. If a response reports that it was
//     not read from the cache, the next request is charged in full. Haiku 3.5 charges for cached
//     input, too.
//
// Each process learns for itself. Of a body above 16 MB only the beginning is read, and of a body
// without GetBody only the length is known: four bytes count as one token.
//
// A refusal of a long prompt that the plan doesn't include pauses nothing, because shorter ones pass.
//
// A reported reset is the time when the whole quota is available again, rather than some of it.
// Reported remaining counts are rounded to thousands of tokens. The headers of the priority tier
// are not read, because a request above its limit goes on at standard capacity. The headers of
// combined tokens are not read either, because they report the limit of a workspace if it has one:
// set the tiers to the workspace's limits.
func Anthropic(requests, input, output int64) Provider {
	const page = "https://platform.claude.com/docs/en/api/rate-limits"
	quota := func(name, unit string) answers.Quota {
		name = "Anthropic-" + name
		q := inHeaders(unit, name+"-Limit", name+"-Remaining", answers.Field{Header: name + "-Reset", Format: answers.Timestamp})
		q.Full = true
		return q
	}
	tokens := func(limit int64, unit string) throttle.Tier {
		return throttle.Tier{Limit: limit, Window: time.Minute, Algorithm: throttle.TokenBucket, Unit: unit, Estimated: true}
	}
	api := &anthropic{bodies: prompt.Reader{Image: anthropicImage, Blocks: true, Unknown: prompt.Claude}, output: newOutputs()}
	// The most are the limits of the tier Scale, on the page as read on 2026-10-17 by
	// https://www.developersdigest.tech/rate-limits/anthropic, which was read on 2026-11-28.
	family := some("family", page, api.family, tenfold(4_000, paced(requests)),
		tenfold(4_000_000, tokens(input, inputTokens)), tenfold(800_000, tokens(output, outputTokens)))
	family.model = api.model
	return Provider{
		Name: "anthropic",
		Scopes: []Scope{
			family,
			some("batches", page, when(isBatch), paced(1_000)),
		},
		Cost:   api.cost,
		Settle: api.settle,
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				quota("Ratelimit-Requests", ""), quota("Ratelimit-Input-Tokens", inputTokens), quota("Ratelimit-Output-Tokens", outputTokens),
				quota("Fast-Input-Tokens", inputTokens), quota("Fast-Output-Tokens", outputTokens),
			},
			Charges: anthropicCharges(),
			Rules:   append(append(streamrules.Anthropic(), anthropicRules()...), overloadedRules()...),
		},
		Hosts: []string{"api.anthropic.com"},
	}
}

// anthropicCharges returns the places of the tokens of a message.
func anthropicCharges() []answers.Charge {
	charge := func(unit, name string) answers.Charge {
		return answers.Charge{Unit: unit, Field: answers.Field{Path: "usage." + name}, Or: answers.Field{Path: "message.usage." + name}}
	}
	return []answers.Charge{
		charge(inputTokens, "input_tokens"), charge(inputTokens, cacheCreation), charge(cacheCreation, cacheCreation), charge(cacheRead, cacheRead),
		// The message_start of a stream reports the first token only.
		{Unit: outputTokens, Field: answers.Field{Path: "usage.output_tokens"}},
		// In OpenAI's protocol.
		{Unit: inputTokens, Field: answers.Field{Path: "usage.prompt_tokens"}},
		{Unit: outputTokens, Field: answers.Field{Path: "usage.completion_tokens"}},
	}
}

// anthropicRules returns the rules of refusals that are not of the rate. Clients captured those of the plan:
// https://github.com/anthropics/claude-code/issues/50784 and #6871, read on 2026-11-28.
func anthropicRules() []answers.Rule {
	const status = http.StatusTooManyRequests
	return []answers.Rule{
		{Status: status, Path: "error.details.error_code", Text: "enforced_spend_limit_reached", Kind: answers.Other, Reason: "spend limit"},
		{Status: status, Path: "error.message", Text: "Extra usage is required*", Kind: answers.Other, Reason: "not in the plan"},
		{Status: status, Path: "error.message", Text: "Usage credits are required for long context*", Kind: answers.Other, Reason: "not in the plan"},
		{Status: status, Path: "error.message", Text: "*long context beta is not yet available*", Kind: answers.Other, Reason: "not in the plan"},
	}
}

// overloadedRules returns the rules of a status that is nobody's quota.
func overloadedRules() []answers.Rule {
	return []answers.Rule{
		{Status: statusOverloaded, Header: "Retry-After", Kind: answers.Limited, Reason: "overloaded"},
		{Status: statusOverloaded, Kind: answers.Other, Reason: "overloaded"},
	}
}

// longAnswer is the time of which an estimate has the output. The bucket is refilled in a minute, so
// what an answer wrote before is no longer lacking. Where long answers share the bucket with short
// ones, the short ones use a part of the refill before the long ones are settled. With a quarter more
// than a minute that overdraws nothing when half of the requests take ten times as long as the others.
const longAnswer = 75 * time.Second

// statusOverloaded reports that all users send too much. It spends nothing of a quota.
const statusOverloaded = 529

// The units of an answer.
const (
	inputTokens   = "input-tokens"
	outputTokens  = "output-tokens"
	cacheCreation = "cache_creation_input_tokens" // also input tokens
	cacheRead     = "cache_read_input_tokens"     // no tier counts them
)

// anthropic is what a Provider knows of the Messages API.
type anthropic struct {
	bodies prompt.Reader
	output *outputs
	cache  prompt.Cache
}

func isBatch(req *http.Request) bool {
	return req.URL.Path == "/v1/messages/batches" || strings.HasPrefix(req.URL.Path, "/v1/messages/batches/")
}

// isMessage reports whether a request is for an answer, also in OpenAI's protocol, which has the same limits:
// https://platform.claude.com/docs/en/cli-sdks-libraries/libraries/openai-sdk, read on 2026-11-28.
func isMessage(req *http.Request) bool {
	return req.Method == http.MethodPost && (req.URL.Path == "/v1/messages" || req.URL.Path == "/v1/chat/completions")
}

// family returns the family and the major version of the model in a message request, such as
// "sonnet-4" of claude-sonnet-4-5 and "haiku-3" of claude-3-5-haiku-20241022.
func (a *anthropic) family(req *http.Request) (family string, counts bool) {
	if !isMessage(req) {
		return "", false
	}
	model, fast := modelOf(a.bodies.Read(req))
	return familyOf(model) + fast, true
}

// model returns the model of a message request, and of its fast mode another name.
func (a *anthropic) model(req *http.Request) string {
	model, fast := modelOf(a.bodies.Peek(req))
	return model + fast
}

func modelOf(p prompt.Prompt) (model, fast string) {
	if p.Fields["speed"] == "fast" {
		fast = fastMode
	}
	return p.Fields["model"], fast
}

// fastMode follows the name of a family or model in fast mode.
const fastMode = "-fast"

func familyOf(model string) (family string) {
	version := ""
	for word := range strings.SplitSeq(model, "-") {
		isNumber := strings.Trim(word, "0123456789.") == ""
		switch {
		case word == "claude":
		case isNumber && version == "" && len(word) < len("20241022"):
			version, _, _ = strings.Cut(word, ".")
		case !isNumber && family == "":
			family = word
		}
	}
	if version == "" {
		return family
	}
	return family + "-" + version
}

// readsAreFree reports whether a model doesn't charge what it reads from the cache. Haiku 3.5 does.
func readsAreFree(model string) bool { return !strings.HasPrefix(model, "claude-3-5-haiku") }

// anthropicImage is the tokens of an image: its width times its height in pixels by 750, which is
// about 1,600 for the largest image that is not scaled down. See
// https://platform.claude.com/docs/en/build-with-claude/vision, read on 2026-11-22.
const anthropicImage = 1_600

// cost returns the estimated cost of a request.
func (a *anthropic) cost(req *http.Request) throttle.Cost {
	if !isMessage(req) {
		return nil
	}
	p := a.bodies.Peek(req)
	return a.estimate(p, asked(p))
}

// estimate returns the estimated cost of a prompt that asks a question.
func (a *anthropic) estimate(p prompt.Prompt, q question) throttle.Cost {
	return throttle.Cost{inputTokens: p.Tokens - a.cached(p, q.model).Tokens, outputTokens: a.output.expect(q)}
}

// cached returns the place up to which the input of a request to a model is free.
func (a *anthropic) cached(p prompt.Prompt, model string) prompt.Place {
	if !readsAreFree(model) {
		return prompt.Place{}
	}
	return a.cache.Last(p.Places)
}

// settle learns from the answer to a request.
func (a *anthropic) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	if !isMessage(req) {
		return nil
	}
	p := a.bodies.Take(req)
	return a.learn(p, asked(p))
}

// learn notes that a prompt is sent. The function that it returns learns from the answer.
func (a *anthropic) learn(p prompt.Prompt, q question) func(throttle.Cost) throttle.Cost {
	end, expected, admitted := a.output.begin(q), a.cached(p, q.model), time.Now()
	return func(reported throttle.Cost) throttle.Cost {
		n := min(reported[outputTokens], algorithms.MaxLimit)
		longs := max(1, time.Since(admitted).Seconds()/longAnswer.Seconds())
		end(int64(math.Ceil(float64(n)/longs)), n > 0) // an answer has at least one token; a refusal has none
		read, isAnswer := reported[cacheRead], reported[inputTokens]+reported[cacheRead] > 0
		switch {
		case !isAnswer:
		case read < expected.Tokens/4: // most of it was not in the cache, although it should have been
			a.cache.Drop(expected)
		case read+reported[cacheCreation] > 0:
			a.cache.Keep(p.Places)
		}
		if !readsAreFree(q.model) && isAnswer {
			reported[inputTokens] += read
		}
		return reported
	}
}
