package providers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// bedrockRules returns the rules of the runtime of Amazon Bedrock, with the tokens a minute of each
// model.
//
// AWS deducts the input and max_tokens when a request begins, and settles it at the end as the
// input and the output times the burndown rate of the model, which is 5 for Claude from 3.7 to 4.7
// and 1 for Llama: https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html
// (How tokens are counted in Amazon Bedrock). InvokeModel and Converse share the quota of a model:
// https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-runtime.html. Both read on
// 2026-11-28.
//
// Without max_tokens: InvokeModel of Llama has a default max_gen_len of 512,
// https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters-meta.html. The default of
// Converse is the most that the model allows,
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InferenceConfiguration.html,
// which the cards of Llama 3.1 70B and 405B give as 4K tokens,
// https://docs.aws.amazon.com/bedrock/latest/userguide/model-card-meta-llama-3-1-405b-instruct.html.
// Read on 2026-11-28. AWS doesn't publish the kind of window: here it is both a bucket and a minute
// that slides. Refusals are of providers/testdata/fixtures/bedrock.json.
func bedrockRules(tokens float64, sliding bool) rules {
	pool := func(s *llm, q *question) *minutePool {
		if sliding {
			return s.sliding(q.model, tokens)
		}
		return s.bucket(q.model, tokens)
	}
	return rules{start: 300 * time.Millisecond, speed: 150,
		demands: func(s *llm, q *question) []demand {
			reserved, rate := q.input+bedrockMax(q), 1.0
			if strings.Contains(q.model, "claude") {
				rate = 5
			}
			return []demand{{pool(s, q), reserved, reserved, q.input + rate*q.output}}
		},
		answer: func(_ *llm, q *question) reply {
			if isConverse(q) {
				return reply{200, jsonHeader(), fmt.Sprintf(`{"metrics":{"latencyMs":926},"output":{"message":{"role":"assistant","content":[{"text":"Hello!"}]}},"stopReason":"end_turn",`+
					`"usage":{"inputTokens":%.0f,"outputTokens":%.0f,"totalTokens":%.0f}}`, q.input, q.output, q.input+q.output)}
			}
			return reply{200, jsonHeader("x-amzn-bedrock-input-token-count", whole(q.input), "x-amzn-bedrock-output-token-count", whole(q.output)),
				fmt.Sprintf(`{"generation":"Hello!","prompt_token_count":%.0f,"generation_token_count":%.0f,"stop_reason":"stop"}`, q.input, q.output)}
		},
		refusal: func(*llm, *question, demand) reply {
			return reply{429, jsonHeader("x-amzn-ErrorType", "ThrottlingException:http://internal.amazon.com/coral/com.amazon.bedrock/"),
				`{"message":"Too many tokens, please wait before trying again."}`}
		},
	}
}

func isConverse(q *question) bool { return strings.HasSuffix(q.URL.Path, "/converse") }

// bedrockMax returns the greatest output of a request.
func bedrockMax(q *question) float64 {
	if !isConverse(q) {
		if most := q.number("max_gen_len", "max_tokens"); most > 0 {
			return most
		}
		return 512
	}
	if c, ok := q.body["inferenceConfig"].(map[string]any); ok {
		return c["maxTokens"].(float64)
	}
	return 4_096
}

const (
	bedrockLlama  = "meta.llama3-1-8b-instruct-v1:0"
	bedrockClaude = "anthropic.claude-sonnet-4-5-20250929-v1:0"
)

// invoked and conversed return a request of an API of Bedrock.
func invoked(t *testing.T, model string, output int) *http.Request {
	return jsonRequest(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/"+model+"/invoke", map[string]any{"prompt": text(495)}, output)
}

func conversed(t *testing.T, model string, most, output int) *http.Request {
	body := map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"text": text(495)}}}}}
	if most > 0 {
		body["inferenceConfig"] = map[string]any{"maxTokens": most}
	}
	return jsonRequest(t, "https://bedrock-runtime.us-east-1.amazonaws.com/model/"+model+"/converse", body, output)
}

// Requests without a maximum reserve the default of the model, and its quota can be used.
func TestBedrockDefaultMaxStandIn(t *testing.T) {
	soak.Long(t, "minutes of five loads")
	invoke := func(t *testing.T, w, n int) *http.Request { return invoked(t, bedrockLlama, drawn(w, n, 50, 450)) }
	chat := func(t *testing.T, w, n int) *http.Request {
		return conversed(t, bedrockLlama, 0, drawn(w, n, 50, 800))
	}
	limited := func(t *testing.T, w, n int) *http.Request {
		return conversed(t, bedrockClaude, 1000, drawn(w, n, 50, 800))
	}
	for _, test := range []struct {
		name    string
		sliding bool
		next    func(t *testing.T, w, n int) *http.Request
	}{
		{"Llama 3.1 8B, InvokeModel", false, invoke},
		{"Llama 3.1 8B, Converse", true, chat},
		{"Llama 3.1 8B, both", false, func(t *testing.T, w, n int) *http.Request {
			if w%2 == 0 {
				return invoke(t, w, n)
			}
			return chat(t, w, n)
		}},
		{"Claude, five times the output", false, limited},
		{"Claude, five times the output in a sliding minute", true, limited},
	} {
		t.Run(test.name, func(t *testing.T) {
			contest{share: 0.8, api: func() rules { return bedrockRules(200_000, test.sliding) }, load: load{20, 3 * time.Minute, test.next},
				preset: func() providers.Provider { return providers.Bedrock(0, 200_000) }}.run(t)
		})
	}
}
