package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
	"github.com/apithrottle/throttle/internal/streamrules"
)

var azureOpenAIPreset = Preset{
	Name: "azure-openai", Constructor: "AzureOpenAI(requests, tokens int64)", kind: "Language models", Models: "deployment",
	Parameters: []Parameter{
		{Name: "requests", About: "requests a minute of a deployment", Min: 1, Example: "600"},
		{Name: "tokens", About: "tokens a minute of a deployment", Min: 1, Example: "100000"},
	},
	call: func(a arguments) Provider { return AzureOpenAI(a.number("requests"), a.number("tokens")) },
}

// AzureOpenAI is the API of Azure OpenAI, and of other models in Azure AI Foundry, with the limits
// of each deployment. The arguments are a deployment's requests and tokens a minute. The path of a
// request names the deployment, or the model in its body does. Azure judges requests by 1 or 10
// seconds: 600 a minute are at most 100 in any 10 seconds here, and 10 at once. Where responses name
// another limit of tokens, it holds, up to ten times the argument. Only POST requests to a deployment are
// limited.
//
// A request is charged an estimate in tokens, as for [OpenAI], but for its text and its highest
// output together. Azure refuses by that estimate, and doesn't refund unused tokens. For a request
// without max_tokens Azure reserves an unpublished number, and the estimate here is the text alone.
// Deployments with other limits are in the Models of the scope "deployment": see [NewModels].
//
// A refusal pauses its deployment for the time that it names, also inside a stream that has begun.
// A reported reset may be 0 where nothing is left, so only what is left is read. A wait of more
// than Policy.MaxPause, such as a small offer's wait for the next day, closes the deployment with
// throttle.ErrBanned.
func AzureOpenAI(requests, tokens int64) Provider {
	const page = "https://learn.microsoft.com/en-us/azure/ai-foundry/openai/quotas-limits"
	quota := func(of, unit string) answers.Quota {
		q := inHeaders(unit, "X-Ratelimit-Limit-"+of, "X-Ratelimit-Remaining-"+of, answers.Field{})
		q.Length = answers.Field{Header: "X-Ratelimit-Renewalperiod-" + of, Format: answers.Seconds}
		return q
	}
	reset := func(of string) []answers.Field { // both spellings occur
		return []answers.Field{{Header: "X-Ratelimit-Reset-" + of, Format: answers.Seconds}, {Header: "X-Rate-Limit-Reset-" + of, Format: answers.Seconds}}
	}
	bodies := &prompt.Reader{Image: openAIImage, Unknown: prompt.Cl100k}
	return Provider{
		Name: "azureopenai",
		Scopes: []Scope{some("deployment", page, func(req *http.Request) (string, bool) { return azureDeployment(req, bodies.Read) },
			paced(requests), throttle.Tier{Limit: max(1, requests/6), Window: 10 * time.Second}, tenfold(0, minute(tokens, "tokens")))},
		Cost: func(req *http.Request) throttle.Cost {
			p := bodies.Take(req)
			return throttle.Cost{"tokens": min(p.Tokens+maxOutput(p), algorithms.MaxLimit)}
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{quota("Requests", ""), quota("Tokens", "tokens")},
			RetryAfter: []answers.Field{
				{Header: "Retry-After-Ms", Format: answers.Millis},
				{Header: "Retry-After", Format: answers.RetryAfter},
				{Path: "error.message", After: "retry after ", Format: answers.Seconds},
				{Path: "error.message", After: "ry again in ", Format: answers.Seconds},
				// Of API Management, as in https://github.com/18F/piipan/issues/2530, read on 2026-11-28.
				{Path: "message", After: "ry again in ", Format: answers.Seconds},
			},
			Rules: append(append(openAIRules(), streamrules.AzureOpenAI()...),
				answers.Rule{Status: http.StatusTooManyRequests, Header: "Policy-Id", Value: "*Call*", Kind: answers.Limited, Delay: reset("Requests")},
				answers.Rule{Status: http.StatusTooManyRequests, Header: "Policy-Id", Value: "*Token*", Kind: answers.Limited, Delay: reset("Tokens")},
			),
		},
		Hosts: []string{"*.openai.azure.com", "*.services.ai.azure.com", "*.cognitiveservices.azure.com"},
	}
}

// azureDeployment returns the resource and the deployment of a request. A resource has several hosts.
func azureDeployment(req *http.Request, read func(*http.Request) prompt.Prompt) (deployment string, counts bool) {
	resource, _, _ := strings.Cut(hostOf(req), ".")
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/"), "/")
	// The endpoint of a project in the resource. See
	// https://learn.microsoft.com/python/api/azure-ai-projects/azure.ai.projects.aiprojectclient, read on
	// 2026-11-28.
	if len(parts) > 3 && parts[0] == "api" && parts[1] == "projects" {
		parts = parts[3:]
	}
	switch {
	case req.Method != http.MethodPost:
		return "", false
	case len(parts) > 3 && parts[0] == "openai" && parts[1] == "deployments":
		deployment = parts[2]
	case parts[0] == "openai" || parts[0] == "models" || parts[0] == "anthropic":
		body := read(req)
		if !readsPrompt(req, body) {
			return "", false
		}
		deployment = body.Fields["model"]
	default:
		return "", false
	}
	return strings.ToLower(resource + "/" + deployment), true
}
