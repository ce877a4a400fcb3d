package providers_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
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

// openAI returns a stand-in with limits a minute. It limits requests by the sixtieth of a minute, too.
func openAI(requests, tokens int64) *fakeapi.Server {
	return standIn("openai", fmt.Sprintf("requests=%d/m;algo=token_bucket", requests),
		fmt.Sprintf("pace=%d/m;algo=token_bucket;burst=%d", requests, max(1, requests/60)), fmt.Sprintf("tokens=%d/m;algo=token_bucket", tokens))
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
				api := openAI(500, 30_000)
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

// Requests are spread over the minute, because OpenAI may apply a limit to a second.
func TestOpenAIPace(t *testing.T) {
	checkBurst(t, func() providers.Provider { return providers.OpenAI(600, 1e9) }, "chats", 10,
		func() *http.Request { return chat(t, "gpt-4o", 10, 10) })
}

const limitReached = `{"error":{"type":"tokens","code":"rate_limit_exceeded","message":"Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 28039, Requested 3906. `

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
		{"a wait in the message", fakeapi.Reply{Status: 429, Body: limitReached + `Please try again in 174ms. Visit https://platform.openai.com/account/rate-limits to learn more."}}`}, 174 * time.Millisecond},
		{"a longer wait", fakeapi.Reply{Status: 429, Body: limitReached + `Please try again in 2m5.5s. Contact us"}}`}, 125500 * time.Millisecond},
		{"a header goes before the message", fakeapi.Reply{Status: 429, Header: limited, Body: limitReached + `Please try again in 20s."}}`}, 1250 * time.Millisecond},
		{"too large", fakeapi.Reply{Status: 429, Body: `{"error":{"type":"tokens","message":"Request too large for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Requested 87968."}}`}, 0},
		{"billing_hard_limit_reached", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"billing_hard_limit_reached"}}`}, 0},
		{"credit_balance_exhausted", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"credit_balance_exhausted"}}`}, 0},
		{"a usage limit", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"organization_usage_limit_exceeded"}}`}, 0},
		{"a spend limit", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"organization_spend_limit_exceeded"}}`}, 0},
		{"a project's spend limit", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"project_spend_limit_exceeded"}}`}, 0},
		{"flex processing is full", fakeapi.Reply{Status: 429, Body: `{"error":{"message":"429 Resource Unavailable"}}`}, 0},
		{"flex processing is full, by its code", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"resource_unavailable"}}`}, 0},
		{"overloaded", fakeapi.Reply{Status: 503, Body: `{"error":{"type":"service_unavailable_error","code":"server_is_overloaded"}}`}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := openAI(600, 30_000)
				rt := over(t, providers.OpenAI(600, 30_000), api)
				api.Trap(test.reply)
				if status, body, _ := send(t, rt, chat(t, "gpt-4o", 10, 10)); status != test.reply.Status || body != test.reply.Body {
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
		api := openAI(600, 30_000)
		send(t, api, chat(t, "gpt-4o", 10_000, 25_000))
		time.Sleep(time.Second)
		saturate(t, over(t, providers.OpenAI(600, 30_000), api), 1, 5*time.Minute, func(int) *http.Request { return chat(t, "gpt-4o", 100, 1_000) })
		checkServed(t, api, 0.8*5*30_000/1_000)
	})
}

// A reset is the time of the full refill. If nothing is left, some tokens come long before it.
func TestOpenAIResetIsFullRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := openAI(600, 30_000)
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
		{"a chat", `{"model":"m","messages":[{"role":"user","content":"four, four"}]}`, "m", 9},
		{"a chat with a maximum", `{"model":"m","messages":[{"role":"user","content":"four, four"}],"max_completion_tokens":100}`, "m", 100},
		{"a maximum below the prompt", `{"max_output_tokens":7,"input":"four four four four","model":"m"}`, "m", 10},
		{"choices", `{"model":"m","prompt":"","max_tokens":10,"n":3}`, "m", 30},
		{"a model after a long prompt", `{"input":"` + long + `","model":"m"}`, "m", 80_003},
		{"a model below the top level", `{"input":{"model":"x"}}`, "", 3},
		{"a tool", `{"tools":[{"function":{"name":"f","strict":true,"parameters":{"max":1234}}}]}`, "", 10},
		{"malformed, with invalid numbers", `{"model":5,"max_tokens":-7,"n":-1,"input":`, "5", 5},
		{"cut off in a string", `{"model":"m","input":"four four`, "m", 5},
		{"more than 16 MB", `{"input":"` + strings.Repeat("four ", 4<<20) + `","model":"m"}`, "", 3_355_443},
		{"not JSON", "--boundary", "", 0},
		{"escapes", `{"input":"\u56fe\u4E66\n\\\"\ud83d\ude00"}`, "", 8},

		{"Chinese without a space", `{"input":"` + strings.Repeat("图", 1_200) + `"}`, "", 1_141},
		{"identifiers", `{"input":"` + strings.Repeat(`0a1b,`, 400) + `"}`, "", 2_033},
		{"token ids", `{"model":"m","input":[` + strings.Repeat("10234,", 999) + `7]}`, "m", 1_003},
		{"lists of token ids", `{"input":[[12345,2],[3]],"dimensions":256}`, "", 6},

		{"an image", `{"model":"m","input":[{"image_url":"data:image/png;base64,` + image + `"}]}`, "m", 5 + 1_100},
		{"two images", `{"messages":[{"content":[{"image_url":{"url":"data:image/jpeg;base64,` + image + `"}},{"image_url":{"url":"https://example.com/a.png"}}]}]}`, "", 8 + 2*1_100},
		{"a PDF", `{"input":[{"filename":"a","file_data":"data:application/pdf;base64,` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 5 + 61},
		{"audio", `{"messages":[{"content":[{"input_audio":{"data":"` + strings.Repeat("AbC4", 4_000) + `","format":"wav"}}]}]}`, "", 7 + 13},
		{"a text file", `{"input":[{"file_data":"data:text/plain;base64,` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 3 + 751},
		{"data in an unknown field", `{"input":[{"encrypted":"` + strings.Repeat("AbC4", 1_000) + `"}]}`, "", 3 + 61},
		{"base64 as text", `{"input":"` + strings.Repeat("AbC4", 1_000) + `"}`, "", 4_831},
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

// A refusal for a rise of the rate backs off, with either status. Retry-After may be missing.
func TestOpenAISlowDown(t *testing.T) {
	for _, status := range []int{429, 503} {
		synctest.Test(t, func(t *testing.T) {
			api := openAI(600, 30_000)
			rt := over(t, providers.OpenAI(600, 30_000), api)
			api.Trap(fakeapi.Reply{Status: status, Body: `{"error":{"message":"Your request rate increased too quickly.","type":"rate_limit_error","code":"slow_down"}}`})
			send(t, rt, chat(t, "gpt-4o", 10, 10))
			if _, _, took := send(t, rt, chat(t, "gpt-4o", 10, 10)); took < time.Second || took > 2*time.Second {
				t.Errorf("%d: waited %v, want the first back-off", status, took)
			}
		})
	}
}

func TestOpenAIFamilies(t *testing.T) {
	key := providers.OpenAI(1, 1).Scope("model").Key
	for model, want := range map[string]string{
		"gpt-4o": "gpt-4o", "gpt-4o-2024-08-06": "gpt-4o", "gpt-4o-mini-2024-07-18": "gpt-4o-mini", "gpt-4-0613": "gpt-4", "gpt-3.5-turbo-0125": "gpt-3.5-turbo",
		"ft:gpt-4o-2024-08-06:acme::9abc": "gpt-4o", "ft:gpt-4.1:acme:name:9abc": "gpt-4.1", "gpt-4-turbo-preview": "gpt-4-turbo-preview",
		"davinci-002": "davinci-002", "gpt-5.1": "gpt-5.1", "chatgpt-4o-latest": "chatgpt-4o-latest", "": "", "2024-08-06": "2024-08-06",
	} {
		if got, counts := key(chat(t, model, 1, 1)); got != want || !counts {
			t.Errorf("%q counts as %q, %v, want %q", model, got, counts, want)
		}
	}
}

// Requests that name no model cost no tokens, even if only their length is known.
func TestOpenAIUploads(t *testing.T) {
	p := providers.OpenAI(600, 30_000)
	for _, test := range []struct {
		path, kind string
		tokens     int64
	}{
		{"/v1/files", "", 0},
		{"/v1/files", "multipart/form-data; boundary=b", 0},
		{"/v1/uploads/up_1/parts", "multipart/form-data; boundary=b", 0},
		{"/v1/batches", "application/json", 0},
		{"/v1/vector_stores", "application/json", 0},
		{"/v1/vector_stores/vs_1/files", "application/json", 0},
		{"/v1/audio/transcriptions", "multipart/form-data; boundary=b", 0},
		{"/v1/images/edits", "Multipart/Form-Data; boundary=b", 0},
		{"/v1/responses", "application/json", 262_144},
		{"/v1/chat/completions", "", 262_144},
	} {
		body := struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1<<20))} // without GetBody
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.openai.com"+test.path, body)
		if err != nil {
			t.Fatal(err)
		}
		if req.ContentLength = 1 << 20; test.kind != "" {
			req.Header.Set("Content-Type", test.kind)
		}
		if got := p.Cost(req)["tokens"]; got != test.tokens {
			t.Errorf("%s, %q: %d tokens, want %d", test.path, test.kind, got, test.tokens)
		}
		_, err = over(t, p, accepting{}).RoundTrip(req)
		if tooLarge := errors.Is(err, throttle.ErrExceedsCapacity); tooLarge != (test.tokens > 0) || !tooLarge && err != nil {
			t.Errorf("%s, %q: %v", test.path, test.kind, err)
		}
	}
}

// A vector store takes 300 files a minute, and files are no requests to a model.
func TestOpenAIVectorStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := func(store string) func() *http.Request {
			return func() *http.Request {
				return postJSON(t, "https://api.openai.com/v1/vector_stores/"+store+"/files", `{"file_id":"file-1"}`)
			}
		}
		if n := atOnce(t, providers.OpenAI(1, 1), 301, file("vs_1")); n != 300 {
			t.Errorf("%d files at once, want 300", n)
		}
	})
}

// Tiers that the caller adds count, and headers that report a day change no minute.
func TestOpenAIAddedTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.OpenAI(600, 30_000)
		model, cost := p.Scope("model"), p.Cost
		model.Policy.Tiers = append(model.Policy.Tiers, throttle.PerDay(40),
			throttle.Tier{Limit: 1_000_000, Window: 24 * time.Hour, Unit: "tokens"}, throttle.Tier{Limit: 5, Window: time.Minute, Unit: "images"})
		p.Cost = func(req *http.Request) throttle.Cost {
			c := cost(req)
			if strings.HasPrefix(req.URL.Path, "/v1/images/") {
				c["images"] = 1
			}
			return c
		}
		rt := over(t, p, accepting{})
		paint := func() *http.Request {
			return postJSON(t, "https://api.openai.com/v1/images/generations", `{"model":"gpt-image-1","prompt":"a cat"}`)
		}
		for range 5 {
			send(t, rt, paint())
		}
		if _, _, took := send(t, rt, paint()); took < 55*time.Second || took > 61*time.Second {
			t.Errorf("the sixth image waited %v, want about a minute", took)
		}
		for range 40 {
			send(t, rt, chat(t, "gpt-4o", 10, 10))
		}
		if _, _, took := send(t, rt, chat(t, "gpt-4o", 10, 10)); took < 23*time.Hour {
			t.Errorf("request 41 of the day waited %v", took)
		}
	})
}

// A project may have less than its organization. Its headers have names of their own.
func TestOpenAIProjectTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := openAI(600, 30_000)
		rt := over(t, providers.OpenAI(600, 30_000), api)
		api.Trap(fakeapi.Reply{Header: map[string]string{
			"x-ratelimit-limit-tokens": "150000", "x-ratelimit-remaining-tokens": "149984", "x-ratelimit-reset-tokens": "6ms",
			"x-ratelimit-limit-project-tokens": "30000", "x-ratelimit-remaining-project-tokens": "500", "x-ratelimit-reset-project-tokens": "59s",
		}})
		send(t, rt, chat(t, "gpt-4o", 10, 10))
		if _, _, took := send(t, rt, chat(t, "gpt-4o", 10, 1_000)); took < time.Second {
			t.Errorf("1,000 tokens waited %v, though the project has 500", took)
		}
	})
}

func ExampleOpenAI() {
	client, err := providers.OpenAI(500, 30_000).Client(nil) // requests and tokens a minute
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, openAI(500, 30_000)) // instead of the network

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
	// Output: 29900 tokens left after a stream of 5 events
}
