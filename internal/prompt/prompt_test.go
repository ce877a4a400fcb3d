package prompt_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/prompt"
)

// A body of many fields takes no more memory than its text: a model stands after them.
func TestPromptOfManyFields(t *testing.T) {
	var body strings.Builder
	body.WriteByte('{')
	for i := range 100_000 {
		fmt.Fprintf(&body, `"field%d":%d,`, i, i)
	}
	body.WriteString(`"model":"m"}`)
	r := &prompt.Reader{Image: 1_100}
	allocated := testing.AllocsPerRun(1, func() {
		req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", strings.NewReader(body.String()))
		if err != nil {
			t.Fatal(err)
		}
		if model := r.Read(req).Fields["model"]; model != "m" {
			t.Errorf("model %q, want m", model)
		}
	})
	if allocated > 1_000 {
		t.Errorf("%.0f allocations", allocated)
	}
}

// A prompt counts in the vocabulary of the model that stands after it, or in the path.
func TestPromptCountsByModel(t *testing.T) {
	r := &prompt.Reader{Unknown: prompt.Cl100k}
	text := "पुस्तकालय केवल किताबें ही नहीं देता।"
	for _, test := range []struct {
		path, model string
		want        prompt.Vocabulary
	}{
		{"/v1/chat/completions", `,"model":"gpt-4o"`, prompt.O200k},
		{"/v1/chat/completions", `,"model":"gpt-4"`, prompt.Cl100k},
		{"/v1/chat/completions", `,"model":"llama-3.3-70b-versatile"`, prompt.Llama3},
		{"/openai/deployments/gpt-4o/chat/completions", "", prompt.O200k},
		{"/openai/deployments/production/chat/completions", "", prompt.Cl100k},
		{"/model/anthropic.claude-opus-4-8/converse", "", prompt.Claude},
		{"/model/anthropic.claude-opus-4-8/converse", "", prompt.Claude},
	} {
		body := `{"content":"` + text + `"` + test.model + "}"
		req, err := http.NewRequest(http.MethodPost, "https://api.example.com"+test.path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		want := test.want.Tokens("content") + test.want.Tokens(text)
		if test.model != "" {
			want += test.want.Tokens("model") + test.want.Tokens(r.Read(req).Fields["model"])
		}
		if got := r.Read(req).Tokens; got != want {
			t.Errorf("%s %s: %d tokens, want %d", test.path, test.model, got, want)
		}
	}
}

// FuzzPrompt compares the fields of a prompt with encoding/json, and checks that its tokens are sane.
func FuzzPrompt(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","input":["a",{"b":[1,-2.5e3,null]},true],"n":2}`, `{"model":"\u00e9\ud83d\ude00\/\"\\","model":5}`,
		`{"source":{"data":"/9j/"},"a":"data:image/png;base64,AA"}`, `[{"model":"x"}]`, `{"model":"a"`, `"\`, `{"a":"\ud83d\u12`, `{"input":[[1],[2]]}`,
	} {
		f.Add([]byte(s))
	}
	r := new(prompt.Reader)
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		model := r.Read(req).Fields["model"]
		if n := r.Take(req).Tokens; n < 0 {
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

// BenchmarkPrompt reads a prompt of 4 MB as a Key and a Cost do: images, or text.
func BenchmarkPrompt(b *testing.B) {
	image := `{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo` + strings.Repeat("AbC4", 250_000) + `"},`
	words := `{"type":"input_text","text":"` + strings.Repeat(`one two,\n`, 100_000) + `"},`
	r := &prompt.Reader{Image: 1_100}
	for _, test := range []struct{ name, parts string }{{"images", strings.Repeat(image, 4)}, {"text", strings.Repeat(words, 4)}} {
		body := `{"input":[` + test.parts + `{}],"model":"m"}`
		b.Run(test.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				req, err := http.NewRequest(http.MethodPost, "https://api.openai.com/v1/responses", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				if model := r.Read(req).Fields["model"]; model != "m" || r.Take(req).Tokens == 0 {
					b.Fatal(model)
				}
			}
		})
	}
}
