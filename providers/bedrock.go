package providers

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
)

var bedrockPreset = Preset{
	Name: "bedrock", Constructor: "Bedrock(requests, tokens int64)", kind: "Language models",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a model; 0: not limited", Default: "0", Example: "50"},
		{Name: "tokens", About: "tokens a minute of a model", Min: 1, Example: "200000"},
	},
	call: func(a arguments) Provider { return Bedrock(a.number("requests"), a.number("tokens")) },
}

// Bedrock is the API of the models of Amazon Bedrock, with the limits of each model in a region.
// The arguments are the requests and tokens a minute that Service Quotas shows for a model. If
// requests is 0, a minute has no limit of requests. InvokeModel, Converse and their streams share a
// model's quota; a cross-region inference profile, such as us.MODEL, has one of its own. Counting
// tokens, guardrails, asynchronous invocations and provisioned models are not limited. The hosts of
// bedrock-mantle have other quotas.
//
// AWS reserves the input and max_tokens of a request. Set max_tokens: without it AWS reserves the
// largest output of the model, and the estimate here is 128,000. At the end a request costs its
// input, cache writes, and output times a rate that depends on the model, which the response
// reports. This may be more than AWS reserved. So a request is charged the greater of both: an
// estimate of its input, as for [OpenAI], and max_tokens, or the output that is expected times the
// rate, at most the quota. The expected output comes from earlier answers of the model to requests
// with the same max_tokens, as for [Anthropic]. While there are none, it is max_tokens, and at most
// 4,000. Each rate has a scope: "x5" is Claude from 3.7 on, "x15" from 4.8 on, "x10" from 5 on and
// GPT-5, "x1" all others. A model whose name an application inference profile hides is in "x5".
//
// AWS also limits the tokens of a day, by default to 1,440 minutes. New accounts have less: add a
// tier for a day to the scopes, with the Unit of the tokens there.
//
// Refusals pause their model; they name no wait. A refusal because a model is not ready, or by a
// quota that is not of time, pauses nothing. A request is not sent after its signature has expired;
// see [AWSSendBy].
func Bedrock(requests, tokens int64) Provider {
	const page = "https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html"
	api := &bedrock{bodies: prompt.Reader{Image: anthropicImage, Unknown: prompt.Cl100k}, tokens: tokens, output: prompt.Learner{First: 4_000}}
	bodies := &api.bodies
	p := Provider{
		Name:   "bedrock",
		Cost:   api.cost,
		Settle: api.settle,
		SendBy: AWSSendBy,
		Profile: answers.Profile{
			Rules: append([]answers.Rule{
				{Status: http.StatusTooManyRequests, Header: "X-Amzn-Errortype", Value: "ModelNotReady*", Kind: answers.Other, Reason: "not ready"},
				{Status: http.StatusForbidden, Header: "X-Amzn-Errortype", Value: "AccessDenied*", Kind: answers.Other, Reason: "no access"},
			}, AWSProfile(false).Rules...),
		},
		Hosts: []string{"bedrock-runtime*.amazonaws.com", "bedrock-runtime*.api.aws"},
	}
	charge := func(unit, header, converse, stream string, times int) {
		p.Profile.Charges = append(p.Profile.Charges,
			answers.Charge{Unit: unit, Times: int64(times), Field: answers.Field{Header: "X-Amzn-Bedrock-" + header + "-Token-Count"}, Or: answers.Field{Path: "usage." + converse}},
			answers.Charge{Unit: unit, Times: int64(times), Field: answers.Field{Path: "amazon-bedrock-invocationMetrics." + stream}})
	}
	for i, rate := range []int{1, 5, 10, 15} {
		unit := bedrockUnit(rate)
		tiers := []throttle.Tier{minute(tokens, unit)}
		if tiers[0].Estimated = true; requests > 0 {
			tiers = append(tiers, throttle.PerMinute(requests))
		}
		read := bodies.Peek
		if i == 3 { // the outermost scope, whose Key is the first
			read = bodies.Read
		}
		p.Scopes = append(p.Scopes, some(fmt.Sprint("x", rate), page, func(req *http.Request) (string, bool) {
			model, counts := bedrockModel(req, read)
			_, host, _ := strings.Cut(hostOf(req), ".")
			region, _, _ := strings.Cut(host, ".")
			return region + " " + model, counts && bedrockRate(model) == rate
		}, tiers...))
		charge(unit, "Input", "inputTokens", "inputTokenCount", 1)
		charge(unit, "Cache-Write-Input", "cacheWriteInputTokens", "cacheWriteInputTokenCount", 1)
		charge(unit, "Output", "outputTokens", "outputTokenCount", rate)
	}
	charge(outputTokens, "Output", "outputTokens", "outputTokenCount", 1)
	return p
}

// bedrockUnit returns the unit of the tokens of models with a rate.
func bedrockUnit(rate int) string { return fmt.Sprint("tokens-x", rate) }

// bedrockModel returns the model that a request invokes. The path names it, or in OpenAI's protocol the
// body.
func bedrockModel(req *http.Request, read func(*http.Request) prompt.Prompt) (model string, counts bool) {
	if req.Method != http.MethodPost {
		return "", false
	}
	if strings.HasPrefix(req.URL.Path, "/openai/") {
		body := read(req)
		return body.Fields["model"], readsPrompt(req, body)
	}
	path, invokes := strings.CutPrefix(req.URL.Path, "/model/")
	end := max(0, strings.LastIndexByte(path, '/'))
	switch path[end:] {
	case "/invoke", "/invoke-with-response-stream", "/converse", "/converse-stream":
	default:
		return "", false
	}
	of, model := path[:end], path[:end]
	if strings.HasPrefix(of, "arn:") {
		model = of[strings.LastIndexByte(of, '/')+1:]
	}
	return model, invokes && !strings.Contains(of, ":provisioned-model/")
}

var (
	bedrockName   = regexp.MustCompile(`[a-z0-9]\.[a-z]`) // the maker and the name of a model
	claudeVersion = regexp.MustCompile(`\bclaude-(?:[a-z]+-)?(\d{1,2})(?:-(\d{1,2}))?(?:-|$)`)
)

// bedrockRate returns how many tokens of the quota an output token of a model takes.
func bedrockRate(model string) int {
	major, minor := 0, 0
	if version := claudeVersion.FindStringSubmatch(model); version != nil {
		major, _ = strconv.Atoi(version[1])
		minor, _ = strconv.Atoi(version[2])
	}
	switch {
	case major >= 5, strings.Contains(model, "openai.gpt-5"):
		return 10
	case major == 4 && minor >= 8:
		return 15
	case major == 4, major == 3 && minor >= 7, !bedrockName.MatchString(model):
		return 5
	}
	return 1
}

// bedrockOutput is the output tokens that a request without max_tokens reserves: the most of the model,
// which is 64,000 to 128,000 for large ones.
const bedrockOutput = 128_000

var noOutput = regexp.MustCompile(`embed|rerank|image|canvas|stability|video|reel`)

// bedrock is what a Provider knows of its models.
type bedrock struct {
	bodies prompt.Reader
	tokens int64 // a minute, as the account has them
	output prompt.Learner
}

// expect returns a request's prompt, model and kinds, and the most output that it asks for.
func (b *bedrock) expect(req *http.Request) (p prompt.Prompt, model string, kinds []uint64, most int64) {
	p = b.bodies.Peek(req)
	model, _ = bedrockModel(req, func(*http.Request) prompt.Prompt { return p })
	most = p.Number("max_tokens", "max_completion_tokens", "max_gen_len", "inferenceConfig.maxTokens", "inferenceConfig.max_new_tokens", "textGenerationConfig.maxTokenCount")
	if most == 0 && !noOutput.MatchString(model) {
		most = bedrockOutput
	}
	return p, model, []uint64{prompt.Kind(model), prompt.Kind(model, strconv.FormatInt(most, 10))}, most
}

// cost returns the estimated cost of a request.
func (b *bedrock) cost(req *http.Request) throttle.Cost {
	p, model, kinds, most := b.expect(req)
	rate, input := bedrockRate(model), p.Tokens
	settled := min(input+int64(rate)*min(most, b.output.Estimate(kinds...)), b.tokens)
	return throttle.Cost{bedrockUnit(rate): min(max(input+most, settled), algorithms.MaxLimit)}
}

// settle learns from the answer to a request.
func (b *bedrock) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	_, model, kinds, _ := b.expect(req)
	if b.bodies.Take(req); model == "" { // forgets the body
		return nil
	}
	end := b.output.Begin(kinds...)
	return func(reported throttle.Cost) throttle.Cost {
		end(reported[outputTokens], reported[outputTokens] > 0)
		return reported
	}
}
