package providers_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// chat returns a request with prompt tokens of input, which have four characters each, and at most
// most tokens of output.
func chat(t *testing.T, model string, prompt, most int) *http.Request {
	t.Helper()
	text := strings.Repeat("one ", prompt)
	return postJSON(t, "https://api.openai.com/v1/chat/completions",
		fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}],"model":%q,"max_tokens":%d}`, text, model, most))
}

func TestOpenAI(t *testing.T) {
	d := long(2 * time.Minute)
	for _, load := range []struct {
		name         string
		prompt, most int
		want         float64 // a minute
	}{
		{"many small requests", 10, 10, 500},
		{"large answers", 100, 500, 30_000 / 500},
		{"large prompts", 2_000, 100, 30_000 / 2_010},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fakeapi.OpenAI(500, 30_000, time.Minute)
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Hold = fakeapi.Between(200*time.Millisecond, 3*time.Second)
				saturate(t, over(t, providers.OpenAI(500, 30_000), api), 64, d, func(int) *http.Request {
					return chat(t, "gpt-4o", load.prompt, load.most)
				})
				checkServed(t, api, 0.9*d.Minutes()*load.want)
			})
		})
	}
}

func TestOpenAIRefusals(t *testing.T) {
	limited := map[string]string{"retry-after-ms": "1250", "Retry-After": "2"}
	for _, test := range []struct {
		name  string
		reply fakeapi.Reply
		wait  time.Duration
	}{
		{"insufficient_quota is not a limit", fakeapi.Reply{Status: 429, Body: `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"credit_balance_exhausted"}}`}, 0},
		{"x-should-retry false", fakeapi.Reply{Status: 429, Header: map[string]string{"x-should-retry": "false"}}, 0},
		{"retry-after-ms goes before Retry-After", fakeapi.Reply{Status: 429, Header: limited, Body: `{"error":{"type":"tokens","code":"rate_limit_exceeded"}}`}, 1250 * time.Millisecond},
		{"Retry-After may have a fraction", fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "0.25"}}, 250 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fakeapi.OpenAI(600, 30_000, time.Minute)
				rt := over(t, providers.OpenAI(600, 30_000), api)
				api.Trap(test.reply)
				if status, body, _ := send(t, rt, chat(t, "gpt-4o", 10, 10)); status != 429 || body != test.reply.Body {
					t.Errorf("%d %s", status, body)
				}
				if _, _, took := send(t, rt, chat(t, "o4-mini", 10, 10)); took != 0 {
					t.Errorf("another model waited %v", took)
				}
				if status, _, took := send(t, rt, chat(t, "gpt-4o", 10, 10)); status != 200 || took != test.wait {
					t.Errorf("%d after %v, want 200 after %v", status, took, test.wait)
				}
			})
		})
	}
}

// Responses report the tokens that others in the organization use.
func TestOpenAIUsedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.OpenAI(600, 30_000, time.Minute)
		send(t, api, chat(t, "gpt-4o", 10_000, 25_000))
		time.Sleep(time.Second)
		saturate(t, over(t, providers.OpenAI(600, 30_000), api), 1, 5*time.Minute, func(int) *http.Request { return chat(t, "gpt-4o", 100, 1_000) })
		checkServed(t, api, 0.8*5*30_000/1_000)
	})
}

// A reset is the time of the full refill. If nothing is left, some tokens come long before it.
func TestOpenAIResetIsFullRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.OpenAI(600, 30_000, time.Minute)
		p := providers.OpenAI(600, 30_000)
		p.Cost, p.Scopes[0].Policy.Tiers = nil, p.Scopes[0].Policy.Tiers[:1] // no tier counts tokens
		rt := over(t, p, api)
		api.Trap(fakeapi.Reply{Header: map[string]string{"x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "1m0s"}})
		send(t, rt, chat(t, "gpt-4o", 10, 10))
		if _, _, took := send(t, rt, chat(t, "gpt-4o", 10, 10)); took != 0 {
			t.Errorf("waited %v", took)
		}
	})
}

func TestOpenAICost(t *testing.T) {
	p := providers.OpenAI(1, 1)
	image := "iVBORw0KGgo" + strings.Repeat("AbC4", 1_000)
	long := strings.Repeat("four ", 80_000)
	for _, test := range []struct {
		name, body, model string
		tokens            int64
	}{
		{"a chat", `{"model":"m","messages":[{"role":"user","content":"four, four"}]}`, "m", 11},
		{"a chat with a maximum", `{"model":"m","messages":[{"role":"user","content":"four, four"}],"max_completion_tokens":100}`, "m", 100},
		{"a maximum below the prompt", `{"max_output_tokens":7,"input":"four four four four","model":"m"}`, "m", 12},
		{"choices", `{"model":"m","prompt":"","max_tokens":10,"n":3}`, "m", 30},
		{"a model after a long prompt", `{"input":"` + long + `","model":"m"}`, "m", 80_003},
		{"a model below the top level", `{"input":{"model":"x"}}`, "", 3},
		{"a tool", `{"tools":[{"function":{"name":"f","strict":true,"parameters":{"max":1234}}}]}`, "", 11},
		{"malformed, with invalid numbers", `{"model":5,"max_tokens":-7,"n":-1,"input":`, "5", 6},
		{"cut off in a string", `{"model":"m","input":"four four`, "m", 5},
		{"more than 16 MB", `{"input":"` + strings.Repeat("four ", 4<<20) + `","model":"m"}`, "", 3_355_443},
		{"not JSON", "--boundary", "", 0},
		{"escapes", `{"input":"\u56fe\u4E66\n\\\"\ud83d\ude00"}`, "", 7},

		{"Chinese without a space", `{"input":"` + strings.Repeat("图", 1_200) + `"}`, "", 1_041},
		{"identifiers", `{"input":"` + strings.Repeat(`0a1b,`, 400) + `"}`, "", 2_001},
		{"token ids", `{"model":"m","input":[` + strings.Repeat("10234,", 999) + `7]}`, "m", 1_003},
		{"lists of token ids", `{"input":[[12345,2],[3]],"dimensions":256}`, "", 6},

		{"an image", `{"model":"m","input":[{"image_url":"data:image/png;base64,` + image + `"}]}`, "m", 6 + 1_100},
		{"two images", `{"messages":[{"content":[{"image_url":{"url":"data:image/jpeg;base64,` + image + `"}},{"image_url":{"url":"https://example.com/a.png"}}]}]}`, "", 12 + 2*1_100},
		{"a PDF", `{"input":[{"filename":"a","file_data":"data:application/pdf;base64,` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 7 + 61},
		{"audio", `{"messages":[{"content":[{"input_audio":{"data":"` + strings.Repeat("AbC4", 4_000) + `","format":"wav"}}]}]}`, "", 10 + 13},
		{"a text file", `{"input":[{"file_data":"data:text/plain;base64,` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 4 + 751},
		{"data in an unknown field", `{"input":[{"encrypted":"` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 3 + 61},
		{"base64 as text", `{"input":"` + strings.Repeat("AbC4", 1_000) + `"}`, "", 4_201},
	} {
		req := postJSON(t, "https://api.openai.com/v1/responses", test.body)
		model, counts := p.Scopes[0].Key(req)
		if cost := p.Cost(req)["tokens"]; model != test.model || !counts || cost != test.tokens {
			t.Errorf("%s: model %q, %v, %d tokens, want %q and %d", test.name, model, counts, cost, test.model, test.tokens)
		}
	}
	once := postJSON(t, "https://api.openai.com/v1/responses", `{"model":"m","max_tokens":100}`)
	once.GetBody = nil
	if model, _ := p.Scopes[0].Key(once); model != "" || p.Cost(once)["tokens"] != 8 {
		t.Errorf("a body without GetBody: model %q, %d tokens", model, p.Cost(once)["tokens"])
	}
}

func ExampleOpenAI() {
	client, err := providers.OpenAI(500, 30_000).Client(nil) // requests and tokens a minute
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, fakeapi.OpenAI(500, 30_000, time.Minute)) // instead of the network

	body := strings.NewReader(`{"model":"gpt-4o","messages":[{"role":"user","content":"Say hello."}],"max_tokens":100,"stream":true}`)
	resp, err := client.Post("https://api.openai.com/v1/chat/completions", "application/json", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	stream, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.Header.Get("x-ratelimit-remaining-tokens"), "tokens left after a stream of", strings.Count(string(stream), "data: "), "events")
	// Output: 29900 tokens left after a stream of 4 events
}
