package providers_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// A Transport reads the body of a request once, and counts it with the Provider's Tokens.
func TestPromptReadOnce(t *testing.T) {
	for _, test := range []struct {
		name string
		p    providers.Provider
		api  *fakeapi.Server
		url  string
	}{
		{"OpenAI", providers.OpenAI(600, 30_000), openAI(600, 30_000), "https://api.openai.com/v1/chat/completions"},
		{"OpenRouter", providers.OpenAICompatible("openrouter.ai", 600, 30_000), openAI(600, 30_000), "https://openrouter.ai/api/v1/chat/completions"},
		{"DeepSeek", providers.OpenAICompatible("api.deepseek.com", 600, 30_000), openAI(600, 30_000), "https://api.deepseek.com/chat/completions"},
		{"Mistral", providers.OpenAICompatible("api.mistral.ai", 600, 30_000), openAI(600, 30_000), "https://api.mistral.ai/v1/chat/completions"},
		{"Cerebras", providers.OpenAICompatible("api.cerebras.ai", 600, 30_000), openAI(600, 30_000), "https://api.cerebras.ai/v1/chat/completions"},
		{"AzureOpenAI", providers.AzureOpenAI(600, 30_000), openAI(600, 30_000), "https://acme.openai.azure.com/openai/v1/chat/completions"},
		{"Bedrock", providers.Bedrock(600, 30_000), openAI(600, 30_000), "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions"},
		{"Gemini", providers.Gemini(600, 30_000, 0), openAI(600, 30_000), "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"},
		{"Anthropic", providers.Anthropic(600, 30_000, 8_000), anthropic(600, 30_000, 8_000), "https://api.anthropic.com/v1/messages"},
		{"Anthropic", providers.Anthropic(600, 30_000, 8_000), anthropic(600, 30_000, 8_000), "https://api.anthropic.com/v1/chat/completions"},
	} {
		for _, own := range []bool{false, true} {
			var texts []string
			if test.p.Tokens = nil; own {
				test.p.Tokens = func(text string) int64 {
					texts = append(texts, text)
					return 1_000_000
				}
			}
			req := postJSON(t, test.url, `{"model":"m","messages":[{"role":"user","content":"a\nb \u56fe"}]}`)
			body, reads := req.GetBody, 0
			req.GetBody = func() (io.ReadCloser, error) {
				reads++
				return body()
			}
			_, err := over(t, test.p, test.api).RoundTrip(req)
			if reads != 1 {
				t.Errorf("%s, own %t: the body was read %d times", test.name, own, reads)
			}
			estimates := slices.Contains([]string{"Anthropic", "Bedrock", "Cerebras", "Gemini", "Mistral"}, test.name)
			if refused := own && !estimates; refused != errors.Is(err, throttle.ErrExceedsCapacity) {
				t.Errorf("%s, own %t: %v", test.name, own, err)
			}
			if want := []string{"m", "user", "a\nb 图"}; own && !slices.Equal(texts, want) {
				t.Errorf("%s: counted %q, want %q", test.name, texts, want)
			}
		}
	}
}

// The prompt that Key has read is not taken for the prompt of another request, nor of the same
// request at its next attempt.
func TestPromptOfAttempt(t *testing.T) {
	p := providers.OpenAI(600, 30_000)
	req := postJSON(t, "https://api.openai.com/v1/responses", `{"input":"one"}`)
	for i, input := range []string{"one", "one one one one"} {
		other := postJSON(t, "https://api.openai.com/v1/responses", `{"input":"one one"}`)
		req.GetBody = func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(`{"input":"` + input + `"}`)), nil
		}
		p.Scopes[0].Key(req)
		p.Scopes[0].Key(other)
		if got, want := p.Cost(req)["tokens"], int64(2+3*i); got != want {
			t.Errorf("attempt %d: %d tokens, want %d", i, got, want)
		}
		if got := p.Cost(other)["tokens"]; got != 3 {
			t.Errorf("another request: %d tokens, want 3", got)
		}
	}
}

func ExampleTokens() {
	fmt.Println(providers.Tokens("How many tokens has this question?"))
	fmt.Println(providers.Tokens("550e8400-e29b-41d4-a716-446655440000"))
	// Output:
	// 7
	// 21
}
