package providers

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
)

var vertexAIPreset = Preset{
	Name: "vertex-ai", Constructor: "VertexAI(requests, input, output int64)", kind: "Language models", Models: "partner",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a partner's model; 0: learned", Default: "0", Example: "1500"},
		{Name: "input", About: "input tokens a minute of a partner's model; 0: not limited", Default: "0", Example: "1500000"},
		{Name: "output", About: "output tokens a minute of a partner's model; 0: not limited", Default: "0", Example: "150000"},
	},
	call: func(a arguments) Provider {
		return VertexAI(a.number("requests"), a.number("input"), a.number("output"))
	},
}

// VertexAI is the API of the models of Google Cloud's Vertex AI, with the limits of each model in a
// project and a location. Each location has quotas of its own: a region, a multi-region such as
// "us", or "global". Versions of a model share its limits. Counting tokens and batches are not
// limited.
//
//   - Gemini, Imagen, Veo and other models of Google have no published quota, because all customers
//     share their capacity. So the rate of requests is learned from refusals, as [Unknown] learns
//     that of a host: it starts with 5 a second and grows to at most 30,000 a minute, which is the
//     limit of a model in a region. A tuned model learns for itself.
//   - Models of partners, such as Claude, have the quotas that the Cloud console shows. The
//     arguments are the requests, input tokens and output tokens a minute of each model. If
//     requests is 0, the rate is learned, too. If input or output is 0, these tokens are not
//     limited. By default Claude Sonnet 4.5 has 1,500 requests, 1,500,000 input tokens and 150,000
//     output tokens, Claude Sonnet 4 has 35, 280,000 and 20,000, and a new project may have none.
//     In multi-regions and "global" all versions of Opus since 4.8, of Sonnet and Fable since 5,
//     and of Haiku since 5.5 share a quota. Claude before 4 counts input and output together, which
//     is not included.
//   - Gemini's embeddings have 5,000,000 input tokens a minute, and gemini-embedding-2 has
//     10,000,000 and 40,000 requests. Predict has 30,000 requests a minute for all models of a
//     location.
//
// Partners' models with other quotas are in the Models of the scope "partner", by project, location
// and name:
//
//	p.Scope("partner").Models = providers.NewModels(map[string][]throttle.Tier{
//		"my-project us-east5 claude-opus-4-1": providers.VertexAI(25, 60_000, 6_000).Scope("partner").Policy.Tiers,
//	})
//
// Until the response reports the tokens, a request is charged an estimate, as for [Anthropic]:
// input that the model reads from its prompt cache is free, and the output is what earlier answers
// make likely. Google documents that it reserves an estimate and refunds the rest, but not whether
// the estimate of the output is max_tokens. If it is, Google refuses some requests with a large
// one, so set max_tokens to what answers need. The responses of predict don't report tokens in one
// place, so their estimate stands.
//
// Google doesn't document the kind of window of a minute, so minutes roll. A refusal names no wait.
// It pauses its model, or lowers the rate that was learned.
func VertexAI(requests, input, output int64) Provider {
	const paygo = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/standard-paygo"
	const claude = "https://docs.cloud.google.com/gemini-enterprise-agent-platform/models/partner-models/claude/quotas"
	const quotas = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/quotas"
	learned := throttle.Tier{Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 500}}
	estimated := func(limit int64, unit string) throttle.Tier {
		t := minute(cmp.Or(limit, algorithms.MaxLimit), unit)
		t.Estimated = true
		return t
	}
	partner := []throttle.Tier{learned, estimated(input, inputTokens), estimated(output, outputTokens)}
	if requests > 0 {
		partner[0] = throttle.PerMinute(requests)
	}
	api := &vertexAI{anthropic{bodies: prompt.Reader{Image: anthropicImage, Blocks: true, Unknown: prompt.Claude}, output: newOutputs()}}
	p := Provider{
		Name: "vertex-ai",
		Scopes: []Scope{
			some("partner", claude, api.kind("partner"), partner...),
			some("model", paygo, api.kind("model"), learned),
			some("embeddings", quotas, api.kind("embeddings"), estimated(5_000_000, "tokens")),
			some("embeddings-2", quotas, api.kind("embeddings-2"), estimated(10_000_000, "tokens"), throttle.PerMinute(40_000)),
			some("predict", quotas, api.predicts, throttle.PerMinute(30_000)),
		},
		Cost:   api.cost,
		Settle: api.settle,
		Profile: answers.Profile{
			Charges: append(anthropicCharges(), answers.Charge{Unit: "tokens", Field: answers.Field{Path: "usageMetadata.promptTokenCount"}}),
			Rules:   append(append(vertexRules(), streamrules.Anthropic()...), overloadedRules()...),
		},
		Hosts: []string{"aiplatform.googleapis.com", "*-aiplatform.googleapis.com", "aiplatform.*.rep.googleapis.com"},
	}
	return p.readOn("2026-11-29")
}

// vertexRules returns the rules of refusals. The messages are those of
// https://docs.cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 and of captures such as
// https://github.com/anthropics/claude-code/issues/1440, read on 2026-11-29. A body may be a list.
func vertexRules() (rules []answers.Rule) {
	const status = http.StatusTooManyRequests
	for _, in := range []string{"error.", "*.error."} {
		rules = append(rules,
			answers.Rule{Status: status, Path: in + "message", Text: "Quota exceeded for *", Kind: answers.Limited, Reason: "quota"},
			answers.Rule{Status: status, Path: in + "message", Text: "*Exceeded the Provisioned Throughput*", Kind: answers.Limited, Reason: "provisioned throughput"},
			answers.Rule{Status: status, Path: in + "status", Text: "RESOURCE_EXHAUSTED", Kind: answers.Limited},
		)
	}
	return streamrules.Gemini(rules)
}

// inOpenAI is the action of a call in OpenAI's protocol, whose body names the model.
const inOpenAI = "completions"

// A vertexCall is the call of a model in a request.
type vertexCall struct{ project, location, publisher, model, action string }

// vertexCallOf returns the call of a request, or false if no model answers it.
func vertexCallOf(req *http.Request, read func(*http.Request) prompt.Prompt) (c vertexCall, ok bool) {
	segments := strings.Split(req.URL.Path, "/")
	for i, segment := range segments[:len(segments)-1] {
		switch next := segments[i+1]; segment {
		case "projects":
			c.project = next
		case "locations":
			c.location = next
		case "publishers":
			c.publisher = next
		case "models", "endpoints":
			c.model, c.action, _ = strings.Cut(next, ":")
		}
	}
	if c.model == "openapi" && strings.HasSuffix(req.URL.Path, "/chat/completions") {
		c.publisher, c.model, _ = strings.Cut(read(req).Fields["model"], "/")
		c.action = inOpenAI
	}
	c.location = cmp.Or(c.location, "global")
	c.publisher = cmp.Or(c.publisher, "google") // a tuned model, which is an endpoint
	c.model, _, _ = strings.Cut(c.model, "@")
	switch c.action {
	case "generateContent", "streamGenerateContent", inOpenAI, "embedContent", "predict", "predictLongRunning", "rawPredict", "streamRawPredict":
		return c, req.Method == http.MethodPost && c.model != "" && c.model != "count-tokens"
	}
	return c, false
}

// kind returns the name of the scope of a call, and the base model whose quota counts it.
func (c vertexCall) kind() (scope, base string) {
	base = stableVersion.ReplaceAllString(c.model, "")
	switch {
	case c.publisher != "google":
		return "partner", c.lineage()
	case strings.HasPrefix(base, "gemini-embedding-2"):
		return "embeddings-2", base
	case strings.HasPrefix(base, "gemini-embedding"):
		return "embeddings", base
	case strings.HasPrefix(base, "text-embedding"):
		return "model", "textembedding-gecko"
	}
	return "model", base
}

// lineages are the first versions of Claude that share a quota outside of the regions: 408 is 4.8.
var lineages = map[string]int{"opus": 408, "sonnet": 500, "fable": 500, "haiku": 505}

// lineage returns the name of the quota of a partner's model.
func (c vertexCall) lineage() string {
	version := claudeVersion.FindStringSubmatch(c.model)
	if version == nil || strings.Contains(c.location, "-") {
		return c.model
	}
	major, _ := strconv.Atoi(version[1])
	minor, _ := strconv.Atoi(version[2])
	family, _, _ := strings.Cut(familyOf(c.model), "-")
	if first, shared := lineages[family]; !shared || 100*major+minor < first {
		return c.model
	}
	return "claude-" + family
}

// vertexAI is what a Provider knows of the models of Vertex AI.
type vertexAI struct{ anthropic }

// predicts returns the location of a prediction. It is the first Key of a request.
func (a *vertexAI) predicts(req *http.Request) (location string, counts bool) {
	c, ok := vertexCallOf(req, a.bodies.Read)
	return c.project + " " + c.location, ok && c.action == "predict"
}

// kind returns the Key of the models of a scope.
func (a *vertexAI) kind(scope string) func(*http.Request) (string, bool) {
	return func(req *http.Request) (key string, counts bool) {
		c, ok := vertexCallOf(req, a.bodies.Peek)
		is, base := c.kind()
		return fmt.Sprintf("%s %s %s", c.project, c.location, base), ok && is == scope
	}
}

// cost returns the estimated cost of a request.
func (a *vertexAI) cost(req *http.Request) throttle.Cost {
	c, ok := vertexCallOf(req, a.bodies.Peek)
	switch scope, _ := c.kind(); {
	case !ok || scope == "model":
		return nil
	case scope == "partner":
		p := a.bodies.Peek(req)
		return a.estimate(p, c.question(p))
	}
	return throttle.Cost{"tokens": a.bodies.Take(req).Tokens}
}

// settle learns from the answer to a request.
func (a *vertexAI) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	c, ok := vertexCallOf(req, a.bodies.Peek)
	switch scope, _ := c.kind(); {
	case ok && scope == "partner":
		p := a.bodies.Take(req)
		return a.learn(p, c.question(p))
	case c.action == inOpenAI:
		a.bodies.Take(req) // drops the body
	}
	return nil
}

// question returns what a prompt asks.
func (c vertexCall) question(p prompt.Prompt) question {
	return question{model: c.model, instructions: p.Instructions, most: maxOutput(p)}
}
