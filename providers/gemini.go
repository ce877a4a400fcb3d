package providers

import (
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
)

var geminiPreset = Preset{
	Name: "gemini", Constructor: "Gemini(requests, inputTokens, requestsPerDay int64)", kind: "Language models", Models: "model",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a model", Min: 1, Example: "10"},
		{Name: "input_tokens", About: "input tokens a minute of a model", Min: 1, Example: "250000"},
		{Name: "requests_per_day", About: "requests a day of a model; 0: not limited", Default: "0", Example: "250"},
	},
	call: func(a arguments) Provider {
		return Gemini(a.number("requests"), a.number("input_tokens"), a.number("requests_per_day"))
	},
}

// Gemini is the Gemini API of Google, with the limits of each model in one project. The arguments
// are the requests and input tokens a minute, and the requests a day, that AI Studio shows for a
// model. If requestsPerDay is 0, a day has no limit. A day begins at midnight Pacific time. Google
// doesn't document the kind of window of a minute, so minutes roll. All keys of a project share its
// limits, so the client is assumed to use one project. Requests that generate, embed or predict are
// limited. Counting tokens, batches, and requests that name no model, such as uploads, are not. Models
// with other limits are in the Models of the scope "model": see [NewModels].
//
// Until the response reports the input tokens, a request is charged an estimate: its text, as
// Provider.Tokens counts it, 1,120 for each image or file that it names, and one for every 50 bytes
// of an encoded file (1,000 of audio). Output doesn't count. Of a body above 16 MB only the
// beginning is read, and of a body without GetBody only the length is known: four bytes count as
// one token.
//
// A refusal pauses its model for the time in its message. After a refusal for the day, whose delay
// is too short, requests wait for midnight if Policy.MaxPause allows it. If not, the model is closed
// with throttle.ErrBanned, and one request tries after each MaxPause. A refusal for lack of credit,
// and one of a model that the plan doesn't include ("limit: 0"), pause nothing, because waiting
// doesn't help.
//
// Google also limits what a paid project spends in any ten minutes, by its tier. What a request
// will cost in money is not known here, so nothing is held back for that limit, but its refusal
// pauses all models: the scope "project", which has no other limit.
func Gemini(requests, inputTokens, requestsPerDay int64) Provider {
	const page = "https://ai.google.dev/gemini-api/docs/rate-limits"
	tokens := minute(inputTokens, "tokens")
	tokens.Estimated = true
	tiers := []throttle.Tier{throttle.PerMinute(requests), tokens}
	if requestsPerDay > 0 {
		tiers = append(tiers, googleDay(requestsPerDay, ""))
	}
	bodies := &prompt.Reader{Image: geminiImage}
	p := Provider{
		Name: "gemini",
		Scopes: []Scope{
			some("model", page, func(req *http.Request) (string, bool) { return geminiModel(req, bodies.Peek) }, tiers...),
			some("project", page, when(func(req *http.Request) bool { // its Key is the first
				_, counts := geminiModel(req, bodies.Read)
				return counts
			}), noLimit),
		},
		Cost: func(req *http.Request) throttle.Cost {
			return throttle.Cost{"tokens": bodies.Take(req).Tokens}
		},
		Profile: answers.Profile{Charges: []answers.Charge{
			{Unit: "tokens", Field: answers.Field{Path: "usageMetadata.promptTokenCount"}, Or: answers.Field{Path: "*.usageMetadata.promptTokenCount"}},
			{Unit: "tokens", Field: answers.Field{Path: "usage.prompt_tokens"}}, // in OpenAI's protocol
			// Of interactions.
			{Unit: "tokens", Field: answers.Field{Path: "usage.total_input_tokens"}, Or: answers.Field{Path: "interaction.usage.total_input_tokens"}},
		}},
		Hosts: []string{"generativelanguage.googleapis.com"},
	}
	for _, in := range []string{"error.", "*.error."} { // a stream that is no event stream has its error in an array
		p.Profile.Rules = append(p.Profile.Rules, geminiRules(in)...)
	}
	p.Profile.Rules = streamrules.Gemini(p.Profile.Rules)
	return p
}

// geminiRules returns the rules of errors at a path. Interactions have codes of their own: see
// https://ai.google.dev/gemini-api/docs/troubleshooting. The limits of spending are on the page of the
// scope. Clients captured a limit of 0, as in https://github.com/continuedev/continue/issues/9570, and the
// message of the limit of spending. All were read on 2026-11-28.
func geminiRules(in string) []answers.Rule {
	const status = http.StatusTooManyRequests
	delay := []answers.Field{ // the delay of the details is cut to the second
		{Path: in + "message", After: "retry in ", Format: answers.Duration},
		{Path: in + "details.*.retryDelay", Format: answers.Duration},
	}
	return []answers.Rule{
		{Status: status, Path: in + "message", Text: "Your prepayment credits are depleted*", Kind: answers.Other, Reason: "prepayment"},
		{Status: status, Path: in + "message", Text: "*exceeded its monthly spending cap*", Kind: answers.Other, Reason: "spending cap"},
		{Status: status, Path: in + "message", Text: "*, limit: 0,*", Kind: answers.Other, Reason: "not in the plan"},
		{Status: status, Path: in + "message", Text: "*, limit: 0\n*", Kind: answers.Other, Reason: "not in the plan"},
		{Status: status, Path: in + "message", Text: "*spend-based rate limit*", Kind: answers.Limited, Wide: true, Delay: delay, Reason: "spend in ten minutes"},
		{Status: status, Path: in + "details.*.violations.*.quotaId", Text: "*PerDay*", Kind: answers.Limited, Until: pacific},
		{Status: status, Path: in + "code", Text: "quota_exceeded", Kind: answers.Limited, Until: pacific},
		{Status: status, Path: in + "status", Text: "RESOURCE_EXHAUSTED", Kind: answers.Limited, Delay: delay},
	}
}

// geminiModel returns the model of a request. A stable version such as gemini-2.0-flash-001 is the
// model itself.
func geminiModel(req *http.Request, read func(*http.Request) prompt.Prompt) (model string, counts bool) {
	if req.Method != http.MethodPost {
		return "", false
	}
	dir, name := path.Split(req.URL.Path)
	model, action, custom := strings.Cut(name, ":")
	switch {
	case custom && (strings.HasSuffix(dir, "/models/") || strings.HasSuffix(dir, "/tunedModels/")):
		if action == "countTokens" || strings.Contains(strings.ToLower(action), "batchgenerate") || action == "asyncBatchEmbedContent" {
			return "", false
		}
	case strings.Contains(dir, "/openai/") || name == "interactions":
		body := read(req)
		if !readsPrompt(req, body) {
			return "", false
		}
		model = strings.TrimPrefix(body.Fields["model"], "models/")
	default:
		return "", false
	}
	return stableVersion.ReplaceAllString(model, ""), true
}

var stableVersion = regexp.MustCompile(`-\d{3}$`)

// geminiImage is the tokens of an image with the default resolution of Gemini 3. See
// https://ai.google.dev/gemini-api/docs/media-resolution, read on 2026-11-22. Earlier models take 258 for
// each tile of a large image.
const geminiImage = 1_120
