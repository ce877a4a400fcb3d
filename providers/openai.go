package providers

import (
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
	"github.com/apithrottle/throttle/internal/windows"
)

var openAIPreset = Preset{
	Name: "openai", Constructor: "OpenAI(requests, tokens int64)", kind: "Language models", Models: "model",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a model", Min: 1, Example: "500"},
		{Name: "tokens", About: "tokens a minute of a model", Min: 1, Example: "30000"},
	},
	call: func(a arguments) Provider { return OpenAI(a.number("requests"), a.number("tokens")) },
}

// OpenAI is the API of OpenAI, with the limits of each model in one organization or project. The
// arguments are the requests and tokens per minute that the limits page of the organization or
// project shows for a model. Where responses name other limits, these hold, up to ten times the arguments
// or to 10,000 requests and 10,000,000 tokens. Requests are spread over the minute, because OpenAI may apply a limit
// to a shorter time: 60 a minute as 1 a second. Only POST requests are limited. POSTs whose JSON
// names no model share one more quota. A vector store takes 300 files and batches of files a
// minute. Snapshots such as gpt-4o-2024-08-06, and models fine-tuned from gpt-4o, share the quota
// of gpt-4o. Set the Models of the scope "model" for models with other limits, and for those that share
// one: see [NewModels] and [FetchOpenAI]. The name gpt-4o stands for its snapshots, too. Models that
// are not listed there then share one quota.
//
// A request is charged an estimate in tokens: those of its text, as Provider.Tokens counts them, or
// max_completion_tokens, max_output_tokens or max_tokens for each of its n choices, whichever is
// more. That is OpenAI's formula; it estimates before it answers, too. An image counts as 1,100
// tokens, an encoded file as one for every 50 bytes (1,000 of audio), and a token id as one. OpenAI
// doesn't document a refund of unused tokens, so nothing is refunded here. If OpenAI counts more,
// its x-ratelimit headers report it. Uploads, batches and other requests that name no model cost no
// tokens.
//
// Add the limits of a day, which not every account has, as tiers. Responses report either the minute or the
// day, whichever is nearer to its end:
//
//	model := p.Scope("model")
//	model.Policy.Tiers = append(model.Policy.Tiers, throttle.PerDay(10_000),
//		throttle.Tier{Limit: 1_000_000, Window: 24 * time.Hour, Unit: "tokens"})
//
// Images per minute are such a tier, too, with a Unit of its own, if Provider.Cost is replaced by a
// function that adds the number of images to the cost.
//
// Of a body above 16 MB only the beginning is read, and of a body without GetBody only the length
// is known. A 429 for lack of credit, for a spend limit, or for a request above the limit, pauses
// nothing, because waiting doesn't help, nor does one because flex processing has no room. Other
// refusals pause the model. A daily limit may ask for more than Policy.MaxPause, which closes the
// model's quota with throttle.ErrBanned. If only the message asks for it, one request tries after
// each MaxPause.
func OpenAI(requests, tokens int64) Provider {
	const page = "https://developers.openai.com/api/docs/guides/rate-limits"
	bodies := &prompt.Reader{Image: openAIImage}
	return Provider{
		Name: "openai",
		Scopes: []Scope{
			// The page names no highest limit. These are the highest of captured responses.
			some("model", page, openAIModel(bodies), tenfold(10_000, paced(requests)), tenfold(10_000_000, minute(tokens, "tokens"))),
			some("vector_store", page, openAIVectorStore, throttle.PerMinute(300)),
		},
		Cost: func(req *http.Request) throttle.Cost {
			p := bodies.Take(req)
			if !readsPrompt(req, p) {
				return nil
			}
			return throttle.Cost{"tokens": max(p.Tokens, maxOutput(p))}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				windows.ByReset(openAIQuota("Requests", "")), windows.ByReset(openAIQuota("Tokens", "tokens")), windows.ByReset(openAIQuota("Project-Tokens", "tokens")),
			},
			RetryAfter: openAIWaits(),
			Rules: append(append(openAIRules(), streamrules.OpenAI()...),
				answers.Rule{Status: http.StatusServiceUnavailable, Path: "error.code", Text: "slow_down", Kind: answers.Limited}),
		},
		Hosts: []string{"api.openai.com"},
	}
}

// openAIQuota returns the quota that the x-ratelimit headers report. Its reset is the time when all of
// it is available again.
func openAIQuota(of, unit string) answers.Quota {
	q := inHeaders(unit, "X-Ratelimit-Limit-"+of, "X-Ratelimit-Remaining-"+of, answers.Field{Header: "X-Ratelimit-Reset-" + of, Format: answers.Duration})
	q.Full = true
	return q
}

// openAIWaits returns the places of a wait, in the order of OpenAI's SDKs, and then the message of
// the error.
func openAIWaits() []answers.Field {
	return []answers.Field{
		{Header: "Retry-After-Ms", Format: answers.Millis},
		{Header: "Retry-After", Format: answers.RetryAfter},
		{Path: "error.message", After: "try again in ", Format: answers.Duration},
	}
}

// openAIRules returns the rules of the 429s for which waiting doesn't help, or which are not of a quota.
// Both pages were read on 2026-11-28.
func openAIRules() []answers.Rule {
	const status = http.StatusTooManyRequests
	rules := []answers.Rule{
		{Status: status, Path: "error.type", Text: "insufficient_quota", Kind: answers.Other},
		{Status: status, Path: "error.type", Text: "billing_not_active", Kind: answers.Other},
		{Status: status, Path: "error.message", Text: "Request too large*", Kind: answers.Other, Reason: "too large"},
		{Status: status, Header: "X-Should-Retry", Value: "false", Kind: answers.Other, Reason: "x-should-retry: false"},
		// Flex processing has no room. See https://developers.openai.com/api/docs/guides/flex-processing.
		{Status: status, Path: "error.code", Text: "resource_unavailable", Kind: answers.Other},
		{Status: status, Path: "error.message", Text: "*Resource Unavailable*", Kind: answers.Other, Reason: "resource_unavailable"},
	}
	// See https://developers.openai.com/api/docs/guides/error-codes.
	for _, code := range []string{"billing_hard_limit_reached", "credit_balance_exhausted", "organization_usage_limit_exceeded", "organization_spend_limit_exceeded", "project_spend_limit_exceeded"} {
		rules = append(rules, answers.Rule{Status: status, Path: "error.code", Text: code, Kind: answers.Other})
	}
	return rules
}

// paced returns a tier of requests a minute that spreads them over the seconds of the minute.
func paced(requests int64) throttle.Tier {
	return throttle.Tier{Limit: requests, Window: time.Minute, PaceBurst: max(1, requests/60)}
}

// openAIModel returns the Key of a model, without the date of its snapshot.
func openAIModel(bodies *prompt.Reader) func(*http.Request) (string, bool) {
	named := namedModel(bodies.Read)
	return func(req *http.Request) (model string, counts bool) {
		if _, stores := openAIVectorStore(req); stores {
			return "", false
		}
		model, counts = named(req)
		return openAIBase(model), counts
	}
}

// openAIBase returns the model whose limits count for a model: that which it is fine-tuned from, without
// the date of its snapshot.
func openAIBase(model string) string {
	if tuned, ok := strings.CutPrefix(model, "ft:"); ok {
		model, _, _ = strings.Cut(tuned, ":")
	}
	return snapshot.ReplaceAllString(model, "")
}

var snapshot = regexp.MustCompile(`-(\d{4}-\d{2}-\d{2}|\d{4})$`)

// namedModel returns the Key of the model that the body of a POST names. The outermost scope reads the
// body, and scopes inside it peek.
func namedModel(read func(*http.Request) prompt.Prompt) func(*http.Request) (string, bool) {
	return func(req *http.Request) (model string, counts bool) {
		if req.Method != http.MethodPost {
			return "", false
		}
		return read(req).Fields["model"], true
	}
}

// openAIVectorStore returns the vector store to which a request adds files.
func openAIVectorStore(req *http.Request) (store string, counts bool) {
	parts := strings.Split(req.URL.Path, "/")
	if req.Method != http.MethodPost || len(parts) != 5 || parts[2] != "vector_stores" {
		return "", false
	}
	return parts[3], parts[4] == "files" || parts[4] == "file_batches"
}

// readsPrompt reports whether a model reads the body of a request: the body names the model, or the
// path is one of models.
func readsPrompt(req *http.Request, p prompt.Prompt) bool {
	switch path.Base(req.URL.Path) {
	case "completions", "responses", "embeddings", "moderations", "generations", "speech", "messages", "runs":
		return true
	}
	return p.Fields["model"] != ""
}

// openAIImage is the tokens of an image: 1,105 for one of 2,048 by 4,096 pixels with gpt-4o in high
// detail. See https://developers.openai.com/api/docs/guides/images-vision, read on 2026-11-22. Other
// models take fewer for small images, and small models many more.
const openAIImage = 1_100

// maxOutput returns the highest number of output tokens of all choices that a request allows, or 0 if it
// sets none.
func maxOutput(p prompt.Prompt) int64 {
	choices := min(max(p.Number("n"), p.Number("best_of"), 1), 128)
	return p.Number("max_completion_tokens", "max_output_tokens", "max_tokens") * choices
}
