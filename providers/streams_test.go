package providers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fixtures"
	"github.com/apithrottle/throttle/providers"
)

// streamRefusal returns what the preset reads in a stream of a POST.
func streamRefusal(p providers.Provider, body string) answers.Refusal {
	r := answers.Response{Method: http.MethodPost, Status: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: []byte(body), Got: time.Now()}
	if body[0] == '[' {
		r.Header.Set("Content-Type", "application/json; charset=UTF-8")
	}
	return fixtures.ReadAll(p.Profile, r).Refusal
}

func TestRefusalsInStreams(t *testing.T) {
	openAI, azure, anthropic, gemini := providers.OpenAI(500, 30_000), providers.AzureOpenAI(600, 100_000), providers.Anthropic(50, 1e6, 1e6), providers.Gemini(10, 250_000, 250)
	openRouter, groq := providers.OpenAICompatible("openrouter.ai", 0, 0), providers.OpenAICompatible("api.groq.com", 30, 8_000)
	const (
		sentence = `"code":"rate_limit_exceeded","message":"Rate limit reached for o3-deep-research in organization org-REDACTED on tokens per min (TPM): Limit 450000, Used 379102, Requested 89741. Please try again in 2.512s. Visit https://platform.openai.com/account/rate-limits to learn more.","param":null`
		tooLarge = `"code":"rate_limit_exceeded","message":"Request too large for gpt-4o in organization org-AAA on tokens per min (TPM): Limit 30000, Requested 39143. The input or output tokens must be reduced in order to run successfully."`
		perModel = `"error":{"code":429,"message":"You exceeded your current quota. Please retry in 34.074824224s.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34s"}]}`
		credits  = `"error":{"code":429,"message":"Your prepayment credits are depleted.","status":"RESOURCE_EXHAUSTED"}`
		text     = `"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"}}]`
	)
	for _, c := range []struct {
		name   string
		preset providers.Provider
		body   string
		kind   answers.Kind
		wait   time.Duration
	}{
		{"OpenAI, the error of an event", openAI, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"tokens\"," + sentence + "}}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"OpenAI, an event that is the error", openAI, "event: error\ndata: {\"type\":\"error\"," + sentence + ",\"sequence_number\":2}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"OpenAI, the response failed", openAI, "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{" + sentence + "}}}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"OpenAI, Chat Completions", openAI, "data: {\"choices\":[]}\n\ndata: {\"error\":{" + sentence + "}}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"OpenAI, too large", openAI, "event: response.failed\ndata: {\"response\":{\"error\":{" + tooLarge + "}}}\n\n", answers.Other, 0},
		{"OpenAI, overloaded", openAI, "event: error\ndata: {\"type\":\"error\",\"error\":{\"code\":\"server_is_overloaded\",\"message\":\"try again in 5s\"}}\n\n", answers.Passed, 0},
		{"OpenAI, nothing failed", openAI, "event: response.completed\ndata: {\"response\":{\"status\":\"completed\",\"error\":null}}\n\n", answers.Passed, 0},
		{"Groq", groq, "data: {\"error\":{" + sentence + "}}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"OpenRouter", openRouter, "data: {\"error\":{\"code\":429,\"message\":\"busy\"},\"choices\":[{\"finish_reason\":\"error\"}]}\n\n", answers.Limited, 0},
		{"Azure", azure, "event: error\ndata: {\"type\":\"error\",\"error\":{" + sentence + "}}\n\n", answers.Limited, 2512 * time.Millisecond},
		{"Azure, Anthropic's model", azure, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\"}}\n\n", answers.Limited, 0},
		{"Anthropic, limited", anthropic, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"This request would exceed your organization's rate limit\"}}\n\n", answers.Limited, 0},
		{"Anthropic, overloaded", anthropic, "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"details\":null,\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n", answers.Other, 0},
		{"Anthropic, spent", anthropic, "event: error\ndata: {\"error\":{\"type\":\"rate_limit_error\",\"details\":{\"error_code\":\"enforced_spend_limit_reached\"}}}\n\n", answers.Other, 0},
		{"Gemini", gemini, "data: {" + text + "}\r\n\r\ndata: {" + perModel + "}\r\n\r\n", answers.Limited, 34_074_825 * time.Microsecond},
		{"Gemini, an array", gemini, "[{" + text + "}\n,\r\n{" + perModel + "}\n]", answers.Limited, 34_074_825 * time.Microsecond},
		{"Gemini, an array that begins with it", gemini, "[{\n  " + perModel + "\n}]", answers.Limited, 34_074_825 * time.Microsecond},
		{"Gemini, credits", gemini, "data: {" + credits + "}\n\n", answers.Other, 0},
		{"Gemini, overloaded", gemini, "data: {\"error\":{\"code\":503,\"message\":\"Please retry in 5s\",\"status\":\"UNAVAILABLE\"}}\n\n", answers.Passed, 0},
	} {
		if got := streamRefusal(c.preset, c.body); got.Kind != c.kind || got.Delay != c.wait {
			t.Errorf("%s: %+v, want %v for %v", c.name, got, c.kind, c.wait)
		}
	}
}

// TestModelsPauseNobody has streams in which a model writes what looks like an error into every text that
// it chooses.
func TestModelsPauseNobody(t *testing.T) {
	hostile := []string{
		"rate_limit_exceeded", "429", "rate_limit_error", "RESOURCE_EXHAUSTED", "Please try again in 24h", "error",
		"\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"code\":\"rate_limit_exceeded\"}}\n\n",
		"\r\rdata: {\"error\":{\"code\":429,\"status\":\"RESOURCE_EXHAUSTED\"}}\r\r", `"},"error":{"code":"rate_limit_exceeded","status":"RESOURCE_EXHAUSTED","type":"rate_limit_error"},"a":{"b":"`,
		`"}]}}]},{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}},{"a":"`, "]\n,{\"error\":{\"status\":\"RESOURCE_EXHAUSTED\"}}]",
	}
	for name, c := range map[string]struct {
		preset providers.Provider
		bodies []string // with %s in the place of a text
	}{
		"OpenAI": {providers.OpenAI(1, 1), []string{
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":%s}\n\n",
			"event: response.code_interpreter_call_code.done\ndata: {\"type\":\"response.code_interpreter_call_code.done\",\"code\":%[1]s,\"message\":%[1]s}\n\n",
			"event: response.function_call_arguments.done\ndata: {\"arguments\":%s}\n\n",
			"event: response.output_item.done\ndata: {\"item\":{\"error\":{\"code\":%[1]s,\"message\":%[1]s},\"output\":%[1]s}}\n\n",
			"event: response.completed\ndata: {\"response\":{\"error\":null,\"metadata\":{\"error\":%[1]s},\"output\":[{\"error\":{\"code\":%[1]s}}]}}\n\n",
			"data: {\"choices\":[{\"delta\":{\"content\":%[1]s,\"refusal\":%[1]s}}]}\n\n",
		}},
		"Anthropic": {providers.Anthropic(1, 1, 1), []string{
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":%s}}\n\n",
			"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"input\":{\"error\":{\"type\":%[1]s}},\"name\":%[1]s}}\n\n",
		}},
		"Gemini": {providers.Gemini(1, 1, 0), []string{
			"data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":%[1]s},{\"functionCall\":{\"args\":{\"error\":{\"status\":%[1]s}}}}]}}]}\n\n",
			"[{\"candidates\":[{\"content\":{\"parts\":[{\"text\":%[1]s},{\"functionCall\":{\"args\":{\"error\":{\"status\":%[1]s}}}}]}}]}\n]",
			"[{\"candidates\":[{\"content\":{\"parts\":[{\"text\":%[1]s}", // cut off
		}},
	} {
		for _, body := range c.bodies {
			for _, text := range hostile {
				quoted, err := json.Marshal(text)
				if err != nil {
					t.Fatal(err)
				}
				if got := streamRefusal(c.preset, fmt.Sprintf(body, quoted)); got.Kind != answers.Passed {
					t.Errorf("%s: %s read as %+v", name, fmt.Sprintf(body, quoted), got)
				}
			}
		}
	}
	file := answers.Response{Method: http.MethodGet, Status: 200, Header: http.Header{"Content-Type": {"application/json"}},
		Body: []byte(`[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}]`), Got: time.Now()}
	if got := fixtures.ReadAll(providers.Gemini(1, 1, 0).Profile, file).Refusal; got.Kind != answers.Passed {
		t.Errorf("a file that a GET returns was read as %+v", got)
	}
}
