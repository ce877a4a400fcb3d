package providers

import (
	"fmt"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

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
// default of the model, which for Converse is its largest output. The estimate here is then 128,000
// for Claude and GPT-5, 32,768 for a maker that isn't listed here, and the documented number for
// Llama, Titan, Nova, Mistral, Cohere, AI21 and gpt-oss. At the end a request costs its input,
// cache writes, and output times a rate that depends on the model, which the response reports. This
// may be more than AWS reserved. So a request is charged the greater of both: an estimate of its
// input, as for [OpenAI], and max_tokens, or the output that is expected times the rate. The
// expected output comes from earlier answers of the model to requests with the same max_tokens, as
// for [Anthropic]. While there are none, it is max_tokens, and at most 4,000. Each rate has a scope: "x5" is Claude from 3.7 on, "x15" from 4.8 on, "x10" from 5 on and GPT-5, "x1"
// all others. A model whose name an application inference profile hides is in "x5".
//
// Models with other quotas are in the Models of their scope, by region and name:
//
//	p.Scope("x5").Models = providers.NewModels(map[string][]throttle.Tier{
//		"us-east-1 us.anthropic.claude-sonnet-4-5*": providers.Bedrock(200, 1_000_000).Scope("x5").Policy.Tiers,
//	})
//
// AWS also limits the tokens of a day, by default to 1,440 minutes. New accounts have less: add a
// tier for a day to the scopes, with the Unit of the tokens there.
//
// Refusals pause their model; they name no wait. After one for the tokens of a day, whose end AWS
// doesn't document, the model waits an hour if Policy.MaxPause allows it. If not, it is closed with
// throttle.ErrBanned, and one request tries after each MaxPause. A refusal because a model is not
// ready, or by a quota that is not of time, pauses nothing. A request is not sent after its
// signature has expired; see [AWSSendBy].
func Bedrock(requests, tokens int64) Provider {
	const page = "https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html"
	api := &bedrock{bodies: prompt.Reader{Image: anthropicImage, Unknown: prompt.Cl100k}, output: newOutputs()}
	bodies := &api.bodies
	p := Provider{
		Name:    "bedrock",
		Cost:    api.cost,
		Settle:  api.settle,
		SendBy:  AWSSendBy,
		Profile: answers.Profile{Rules: append(bedrockRules(), AWSProfile().Rules...)},
		Hosts:   []string{"bedrock-runtime*.amazonaws.com", "bedrock-runtime*.api.aws"},
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

// bedrockRules returns the rules of Bedrock alone.
func bedrockRules() []answers.Rule {
	const status = http.StatusTooManyRequests
	return []answers.Rule{
		{Status: status, Header: "X-Amzn-Errortype", Value: "ModelNotReady*", Kind: answers.Other, Reason: "not ready"},
		{Status: status, Path: "message", Text: "Too many tokens per day*", Kind: answers.Limited, Wait: time.Hour, Reason: "tokens per day"},
		{Status: http.StatusForbidden, Header: "X-Amzn-Errortype", Value: "AccessDenied*", Kind: answers.Other, Reason: "no access"},
	}
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
	call, invokes := strings.CutPrefix(req.URL.Path, "/model/")
	end := max(0, strings.LastIndexByte(call, '/'))
	switch call[end:] {
	case "/invoke", "/invoke-with-response-stream", "/converse", "/converse-stream":
	default:
		return "", false
	}
	of, model := call[:end], call[:end]
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

// bedrockOutputs are the output tokens that a request without max_tokens reserves, by parts of models'
// names; the first that occurs counts. InvokeModel takes the default of the model's parameter, and
// Converse the greatest value of it, as
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InferenceConfiguration.html says.
// The numbers are those of the pages below "Inference request parameters" of the user guide, such as
// https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-meta.html, and of the model
// cards, read on 2026-11-28. Nova's default is "dynamic", so here it is the greatest value, which is in
// https://docs.aws.amazon.com/nova/latest/userguide/complete-request-schema.html. That of Nova 2 is from a
// client, https://docs.rs/mixtape-core/latest/src/mixtape_core/models/nova.rs.html. Other makers have the
// greatest value of DeepSeek-R1. The name of an application inference profile has no maker, so it may be
// Claude.
var bedrockOutputs = []struct {
	name             string
	invoke, converse int64
}{
	{"meta.llama", 512, 4_096},
	{"amazon.titan-text-lite", 512, 4_096}, {"amazon.titan-text-premier", 512, 3_072}, {"amazon.titan", 512, 8_192},
	{"amazon.nova-premier", 25_000, 25_000}, {"amazon.nova-2", 65_535, 65_535}, {"amazon.nova", 5_000, 5_000},
	{"mistral.mistral-7b", 512, 8_192}, {"mistral.mixtral", 512, 4_096}, {"mistral.", 8_192, 8_192},
	{"cohere.", 4_096, 4_096}, {"ai21.", 4_096, 4_096},
	{"openai.gpt-oss", 16_384, 16_384}, {"openai.", 128_000, 128_000},
	{"anthropic.", 128_000, 128_000},
	{".", 32_768, 32_768},
	{"", 128_000, 128_000},
}

// bedrockOutput returns the output tokens that a request without max_tokens to a model reserves.
func bedrockOutput(req *http.Request, model string) int64 {
	for _, of := range bedrockOutputs {
		if !strings.Contains(model, of.name) {
			continue
		}
		if strings.HasPrefix(path.Base(req.URL.Path), "converse") {
			return of.converse
		}
		return of.invoke
	}
	return 0
}

var noOutput = regexp.MustCompile(`embed|rerank|image|canvas|stability|video|reel`)

// bedrock is what a Provider knows of its models.
type bedrock struct {
	bodies prompt.Reader
	output *outputs
}

// expect returns a request's prompt and the question that it asks.
func (b *bedrock) expect(req *http.Request) (p prompt.Prompt, q question) {
	p = b.bodies.Peek(req)
	q.model, _ = bedrockModel(req, func(*http.Request) prompt.Prompt { return p })
	q.most = p.Number("max_tokens", "max_completion_tokens", "max_gen_len", "inferenceConfig.maxTokens", "inferenceConfig.max_new_tokens", "textGenerationConfig.maxTokenCount")
	if q.most == 0 && !noOutput.MatchString(q.model) {
		q.most = bedrockOutput(req, q.model)
	}
	return p, q
}

// cost returns the estimated cost of a request.
func (b *bedrock) cost(req *http.Request) throttle.Cost {
	p, q := b.expect(req)
	rate, input, expected := bedrockRate(q.model), p.Tokens, int64(0)
	if q.most > 0 {
		expected = b.output.expect(q)
	}
	settled := input + int64(rate)*expected // an estimate above the quota counts as all of it
	return throttle.Cost{bedrockUnit(rate): min(max(input+q.most, settled), algorithms.MaxLimit)}
}

// settle learns from the answer to a request.
func (b *bedrock) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	_, q := b.expect(req)
	if b.bodies.Take(req); q.model == "" { // forgets the body
		return nil
	}
	end := b.output.begin(q)
	return func(reported throttle.Cost) throttle.Cost {
		end(reported[outputTokens], reported[outputTokens] > 0)
		return reported
	}
}
