package providers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

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
		{"OpenAI", providers.OpenAI(600, 30_000), fakeapi.OpenAI(600, 30_000, time.Minute), "https://api.openai.com/v1/chat/completions"},
		{"OpenRouter", providers.OpenAICompatible("openrouter.ai", 600, 30_000), fakeapi.OpenAI(600, 30_000, time.Minute), "https://openrouter.ai/api/v1/chat/completions"},
		{"DeepSeek", providers.OpenAICompatible("api.deepseek.com", 600, 30_000), fakeapi.OpenAI(600, 30_000, time.Minute), "https://api.deepseek.com/chat/completions"},
		{"AzureOpenAI", providers.AzureOpenAI(600, 30_000), fakeapi.OpenAI(600, 30_000, time.Minute), "https://acme.openai.azure.com/openai/v1/chat/completions"},
		{"Bedrock", providers.Bedrock(600, 30_000), fakeapi.OpenAI(600, 30_000, time.Minute), "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions"},
		{"Gemini", providers.Gemini(600, 30_000, 0), fakeapi.OpenAI(600, 30_000, time.Minute), "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"},
		{"Anthropic", providers.Anthropic(600, 30_000, 8_000), fakeapi.Anthropic(600, 30_000, 8_000), "https://api.anthropic.com/v1/messages"},
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
			estimates := test.name == "Anthropic" || test.name == "Bedrock" || test.name == "Gemini"
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

// A body of many fields takes no more memory than its text: a model stands after them.
func TestPromptOfManyFields(t *testing.T) {
	var body strings.Builder
	body.WriteByte('{')
	for i := range 100_000 {
		fmt.Fprintf(&body, `"field%d":%d,`, i, i)
	}
	body.WriteString(`"model":"m"}`)
	p := providers.OpenAI(1, 1)
	allocated := testing.AllocsPerRun(1, func() {
		req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", strings.NewReader(body.String()))
		if err != nil {
			t.Fatal(err)
		}
		if model, _ := p.Scopes[0].Key(req); model != "m" {
			t.Errorf("model %q, want m", model)
		}
	})
	if allocated > 1_000 {
		t.Errorf("%.0f allocations", allocated)
	}
}

// FuzzPrompt compares what Key reads with encoding/json, and checks that Cost is sane.
func FuzzPrompt(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","input":["a",{"b":[1,-2.5e3,null]},true],"n":2}`, `{"model":"\u00e9\ud83d\ude00\/\"\\","model":5}`,
		`{"source":{"data":"/9j/"},"a":"data:image/png;base64,AA"}`, `[{"model":"x"}]`, `{"model":"a"`, `"\`, `{"a":"\ud83d\u12`, `{"input":[[1],[2]]}`,
	} {
		f.Add([]byte(s))
	}
	p := providers.OpenAICompatible("api.openai.com", 1, 1)
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		model, _ := p.Scopes[0].Key(req)
		if n := p.Cost(req)["tokens"]; n < 0 {
			t.Errorf("%q: %d tokens", body, n)
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		fields := map[string]any{}
		if !json.Valid(body) || d.Decode(&fields) != nil {
			return
		}
		var want string
		switch v := fields["model"].(type) {
		case json.Number:
			want = v.String()
		case string:
			want = v
		default:
			return // an earlier field of the same name may have had a value
		}
		if len(want) <= 64 && model != want {
			t.Errorf("%q: model %q, want %q", body, model, want)
		}
	})
}

// BenchmarkPrompt reads a prompt of 4 MB as a Transport does: images, or text.
func BenchmarkPrompt(b *testing.B) {
	image := `{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo` + strings.Repeat("AbC4", 250_000) + `"},`
	words := `{"type":"input_text","text":"` + strings.Repeat(`one two,\n`, 100_000) + `"},`
	p := providers.OpenAI(1, 1)
	for _, test := range []struct{ name, parts string }{{"images", strings.Repeat(image, 4)}, {"text", strings.Repeat(words, 4)}} {
		body := `{"input":[` + test.parts + `{}],"model":"m"}`
		b.Run(test.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				if model, _ := p.Scopes[0].Key(req); model != "m" || p.Cost(req)["tokens"] == 0 {
					b.Fatal(model)
				}
			}
		})
	}
}
