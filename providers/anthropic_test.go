package providers_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// message returns a request with prompt tokens of input and at most most tokens of output.
func message(t *testing.T, model string, prompt, most int, stream bool) *http.Request {
	t.Helper()
	text := strings.Repeat("one ", prompt)
	return postJSON(t, "https://api.anthropic.com/v1/messages",
		fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":%t,"messages":[{"role":"user","content":"%s"}]}`, model, most, stream, text))
}

// anthropic returns a stand-in with limits a minute. Its answers have a quarter of max_tokens.
func anthropic(requests, input, output int64) *fakeapi.Server {
	api := standIn("anthropic", fmt.Sprintf("requests=%d/m;algo=token_bucket", requests),
		fmt.Sprintf("input=%d/m;algo=token_bucket", input), fmt.Sprintf("output=%d/m;algo=token_bucket", output))
	api.Output = func(most int64) int64 { return most / 4 }
	return api
}

func TestAnthropic(t *testing.T) {
	d := long(5 * time.Minute)
	for _, load := range []struct {
		name         string
		prompt, most int
		stream       bool
		want         float64 // a minute
	}{
		// Requests are spread over the minute. Each of the 0.6 s between them is longer by the guard.
		{"many small requests", 10, 4, false, 100 * 0.6 / 0.65},
		// An answer takes 100 tokens. For the 1.6 s until its end, 300 more are reserved.
		{"large answers", 10, 400, false, 8_000 / (100 + 300*1.6/60)},
		{"streams of large answers", 10, 400, true, 8_000 / (100 + 300*1.6/60)},
		{"large prompts", 1_500, 100, true, 30_000 / 1_500},
	} {
		t.Run(load.name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := anthropic(100, 30_000, 8_000)
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Hold = fakeapi.Between(200*time.Millisecond, 3*time.Second)
				saturate(t, over(t, providers.Anthropic(100, 30_000, 8_000), api), 64, d, func(int) *http.Request {
					return message(t, "claude-sonnet-4-5", load.prompt, load.most, load.stream)
				})
				checkServed(t, api, 0.9*d.Minutes()*load.want)
			})
		})
	}
}

func TestAnthropicRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := anthropic(100, 30_000, 8_000)
		rt := over(t, providers.Anthropic(100, 30_000, 8_000), api)
		api.Trap(fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "7"}, Body: `{"type":"error","error":{"type":"rate_limit_error"}}`})
		send(t, rt, message(t, "claude-sonnet-4-5", 10, 10, false))
		if _, _, took := send(t, rt, message(t, "claude-3-5-haiku-20241022", 10, 10, false)); took != 0 {
			t.Errorf("another family waited %v", took)
		}
		if status, _, took := send(t, rt, message(t, "claude-sonnet-4-20250514", 10, 10, false)); status != 200 || took != 7*time.Second {
			t.Errorf("%d after %v, want 200 after 7 s", status, took)
		}
	})
}

// A refusal of a long prompt that the plan doesn't include is no limit: shorter ones pass.
func TestAnthropicPlan(t *testing.T) {
	for text, pauses := range map[string]bool{
		"Extra usage is required for long context requests.":                           false,
		"Usage credits are required for long context requests.":                        false,
		"The long context beta is not yet available for this subscription.":            false,
		"This request would exceed your account's rate limit. Please try again later.": true,
	} {
		synctest.Test(t, func(t *testing.T) {
			api := anthropic(100_000, 1e9, 1e9)
			rt := over(t, providers.Anthropic(60_000, 1e9, 1e9), api)
			api.Trap(fakeapi.Reply{Status: 429, Body: fmt.Sprintf(`{"type":"error","error":{"type":"rate_limit_error","message":%q}}`, text)})
			send(t, rt, message(t, "claude-opus-4-8", 10, 10, false))
			if _, _, took := send(t, rt, message(t, "claude-opus-4-8", 10, 10, false)); pauses != (took >= time.Second) || !pauses && took > 0 {
				t.Errorf("%s: the next request waited %v", text, took)
			}
		})
	}
}

// Requests in OpenAI's protocol share the limits of messages, and are charged what their responses report.
func TestAnthropicOpenAIProtocol(t *testing.T) {
	const url = "https://api.anthropic.com/v1/chat/completions"
	chat := func(t *testing.T, most string) *http.Request {
		return postJSON(t, url, `{"model":"claude-opus-4-8"`+most+`,"messages":[{"role":"user","content":"`+strings.Repeat("one ", 1_000)+`"}]}`)
	}
	p := providers.Anthropic(60_000, 1e6, 1e6)
	if family, counts := p.Scope("family").Key(chat(t, "")); family != "opus-4" || !counts {
		t.Errorf("family %q, %v", family, counts)
	}
	for most, want := range map[string]int64{"": 4_000, `,"max_tokens":70`: 70, `,"max_completion_tokens":80`: 80} {
		if got := p.Cost(chat(t, most)); got["output-tokens"] != want || got["input-tokens"] < 1_000 || got["input-tokens"] > 1_300 {
			t.Errorf("%s: %v, want 1,000 to 1,300 and %d", most, got, want)
		}
	}
	usage := `{"usage":{"prompt_tokens":400,"completion_tokens":80,"total_tokens":480}}`
	for name, reply := range map[string]replying{
		"JSON":   {Body: usage},
		"stream": {Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"choices\":[]}\n\ndata: " + usage + "\n\ndata: [DONE]\n\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, n := over(t, providers.Anthropic(60_000, 41_000, 12_500), &reply), 0
			for ; n < 200; n++ {
				req := chat(t, "")
				if n%2 == 1 { // of the same pool
					req = message(t, "claude-opus-4-1", 1_000, 100, false)
				}
				if _, _, took := send(t, rt, req); took > 0 {
					break
				}
			}
			if n < 99 || n > 102 { // 400 of 41,000 for each, and 1,000 for the last
				t.Errorf("%s: %d requests before one waited, want about 100", name, n)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		if got := atOnce(t, providers.Anthropic(60, 1e6, 1e6), 120, func() *http.Request { return chat(t, "") }); got != 1 {
			t.Errorf("%d requests at once, want 1", got)
		}
	})
}

// The models of one family and major version share a pool, and fast mode has one of its own.
func TestAnthropicPools(t *testing.T) {
	key := providers.Anthropic(1, 1, 1).Scope("family").Key
	for _, test := range []struct{ fields, want string }{
		{`"model":"claude-opus-4-1-20250805"`, "opus-4"},
		{`"model":"claude-opus-4-8"`, "opus-4"},
		{`"model":"claude-opus-4-8","speed":"fast"`, "opus-4-fast"},
		{`"model":"claude-opus-5"`, "opus-5"},
		{`"model":"claude-opus-5-5"`, "opus-5"},
		{`"model":"claude-sonnet-4-20250514"`, "sonnet-4"},
		{`"model":"claude-3-7-sonnet-latest"`, "sonnet-3"},
		{`"model":"claude-3-5-haiku-20241022"`, "haiku-3"},
		{`"model":"claude-haiku-4.5"`, "haiku-4"},
		{`"model":"claude-fable-5"`, "fable-5"},
		{`"model":"claude-mythos-preview"`, "mythos"},
		{`"other":"field"`, ""},
	} {
		req := postJSON(t, "https://api.anthropic.com/v1/messages", "{"+test.fields+"}")
		if got, counts := key(req); got != test.want || !counts {
			t.Errorf("%s: %q, %v, want %q", test.fields, got, counts, test.want)
		}
	}
}

// Requests are spread over the minute, because Anthropic may enforce 60 a minute as 1 a second. Fast
// mode has headers of its own.
func TestAnthropicPaceAndFastMode(t *testing.T) {
	checkBurst(t, func() providers.Provider { return providers.Anthropic(600, 1e9, 1e9) }, "messages", 10,
		func() *http.Request { return message(t, "claude-opus-4-8", 10, 10, false) })
	for _, unit := range []string{"Input", "Output"} {
		synctest.Test(t, func(t *testing.T) {
			rt := over(t, providers.Anthropic(60_000, 60_000, 60_000), &scripted{header: http.Header{
				"Anthropic-Fast-" + unit + "-Tokens-Limit":     {"60000"},
				"Anthropic-Fast-" + unit + "-Tokens-Remaining": {"0"},
				"Anthropic-Fast-" + unit + "-Tokens-Reset":     {time.Now().Add(time.Minute).Format(time.RFC3339)},
			}})
			fast := func() *http.Request {
				return postJSON(t, "https://api.anthropic.com/v1/messages", `{"model":"claude-opus-4-8","speed":"fast","max_tokens":2000,"messages":[{"role":"user","content":"`+strings.Repeat("one ", 2_000)+`"}]}`)
			}
			send(t, rt, fast())
			if _, _, took := send(t, rt, fast()); took < time.Second || took > 5*time.Second {
				t.Errorf("with no %s tokens left, 2,000 waited %v, want about two seconds", unit, took)
			}
		})
	}
}

// Batches have a limit of their own, and what has no documented limit is not limited.
func TestAnthropicEndpoints(t *testing.T) {
	const host = "https://api.anthropic.com"
	for _, test := range []struct {
		method, path string
		most         int // requests of 100 that are sent at once
	}{
		{"POST", "/v1/messages/batches", 16},
		{"GET", "/v1/messages/batches/msgbatch_1/results", 16},
		{"POST", "/v1/messages/count_tokens", 100},
		{"GET", "/v1/models", 100},
	} {
		synctest.Test(t, func(t *testing.T) {
			got := atOnce(t, providers.Anthropic(1, 1, 1), 100, func() *http.Request {
				req := postJSON(t, host+test.path, `{"requests":[]}`)
				req.Method = test.method
				return req
			})
			if got != test.most {
				t.Errorf("%s %s: %d at once, want %d", test.method, test.path, got, test.most)
			}
		})
	}
}

// An overload is everybody's: it costs nothing and pauses nothing, unless it names a time.
func TestAnthropicOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &stay{replies: []fakeapi.Reply{
			{Status: 529, Body: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`},
			{Status: 529, Body: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`},
			{Status: 529, Header: map[string]string{"Retry-After": "7"}},
			usage(10, 0, 0, 5),
		}}
		rt := over(t, providers.Anthropic(60_000, 1_000_000, 4_000), api) // one estimate is the whole bucket
		for i, want := range []time.Duration{0, 0, 0, 7 * time.Second} {
			req := postJSON(t, "https://api.anthropic.com/v1/messages", goOn(false, ""))
			if _, _, took := send(t, rt, req); took != want {
				t.Errorf("request %d waited %v, want %v", i, took, want)
			}
		}
	})
}

// Haiku 3.5 charges for what it reads from the cache.
func TestAnthropicCacheReads(t *testing.T) {
	for model, want := range map[string]int64{"claude-3-5-haiku-20241022": 10_060, "claude-haiku-4-5": 60} {
		settle := providers.Anthropic(1, 1, 1).Settle(postJSON(t, "https://api.anthropic.com/v1/messages", fmt.Sprintf(`{"model":%q,"messages":[]}`, model)))
		got := settle(throttle.Cost{"input-tokens": 60, "output-tokens": 7, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 10_000})
		if got["input-tokens"] != want || got["output-tokens"] != 7 {
			t.Errorf("%s: charged %v, want %d input tokens", model, got, want)
		}
	}
}

// A reset is the time of the full refill. If nothing is left, some tokens come long before it, so
// requests don't wait for the reset, even if no tier counts tokens.
func TestAnthropicResetIsFullRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := anthropic(100, 30_000, 8_000)
		p := providers.Anthropic(600, 30_000, 8_000)
		p.Cost, p.Scopes[0].Policy.Tiers = nil, p.Scopes[0].Policy.Tiers[:1]
		rt := over(t, p, api)
		api.Trap(fakeapi.Reply{Header: map[string]string{
			"anthropic-ratelimit-input-tokens-limit": "30000", "anthropic-ratelimit-input-tokens-remaining": "0", "anthropic-ratelimit-input-tokens-reset": "2000-01-01T00:01:00Z",
			"anthropic-ratelimit-output-tokens-limit": "8000", "anthropic-ratelimit-output-tokens-remaining": "0", "anthropic-ratelimit-output-tokens-reset": "2000-01-01T00:01:00Z",
		}})
		send(t, rt, message(t, "claude-sonnet-4-5", 10, 10, false))
		if _, _, took := send(t, rt, message(t, "claude-sonnet-4-5", 10, 10, false)); took != 0 {
			t.Errorf("waited %v", took)
		}
	})
}

// A prompt from the cache is charged an estimate until the response reports that it is free.
func TestAnthropicCachedInput(t *testing.T) {
	d := long(2 * time.Minute)
	cached := strings.Repeat("long prompt ", 1_000) // 2,000 tokens
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %t", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := anthropic(100, 30_000, 8_000)
				api.Hold = fakeapi.Between(200*time.Millisecond, 3*time.Second)
				saturate(t, over(t, providers.Anthropic(100, 30_000, 8_000), api), 64, d, func(int) *http.Request {
					return postJSON(t, "https://api.anthropic.com/v1/messages",
						fmt.Sprintf(`{"model":"claude-opus-4-1","max_tokens":40,"stream":%t,"system":"%s","messages":[{"role":"user","content":"Go on."}]}`, stream, cached))
				})
				checkServed(t, api, 0.85*d.Minutes()*100) // each request keeps its distance of 0.6 s, and its guard
			})
		})
	}
}

// Responses report, in thousands, the input that others in the organization use.
func TestAnthropicUsedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := anthropic(100, 30_000, 8_000)
		send(t, api, message(t, "claude-sonnet-4-5", 24_000, 10, false))
		saturate(t, over(t, providers.Anthropic(100, 30_000, 8_000), api), 1, 5*time.Minute, func(int) *http.Request {
			return message(t, "claude-sonnet-4-5", 2_000, 10, true)
		})
		checkServed(t, api, 0.9*(6_000+4*30_000)/2_000)
	})
}

func TestAnthropicCost(t *testing.T) {
	p := providers.Anthropic(1, 1, 1)
	png, pdf := "iVBORw0KGgo"+strings.Repeat("AbC4", 1_000), "JVBERi0x"+strings.Repeat("AbC4", 1_000)
	const before, after = `{"model":"claude-opus-4-1","max_tokens":64,"messages":[{"role":"user","content":[`, `]}]}`
	send := func(part string) int64 {
		req := postJSON(t, "https://api.anthropic.com/v1/messages", before+part+after)
		if family, counts := p.Scopes[0].Key(req); family != "opus-4" || !counts {
			t.Errorf("%.80s: family %q, %v", part, family, counts)
		}
		cost := p.Cost(req)
		if cost["output-tokens"] != 64 {
			t.Errorf("%.80s: %d output tokens", part, cost["output-tokens"])
		}
		return cost["input-tokens"]
	}
	none := send("")
	for _, test := range []struct {
		name, part string
		want       int64 // more than without the part
	}{
		{"text", `{"type":"text","text":"one two"}`, 5},
		{"an image", `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + png + `"}}`, 1_600 + 13},
		{"its type after it", `{"type":"image","source":{"data":"` + png + `","media_type":"image/png","type":"base64"}}`, 1_600 + 13},
		{"an image's address", `{"type":"image","source":{"type":"url","url":"https://example.com/a-long-name.jpg"}}`, 1_600 + 6},
		{"a PDF", `{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"` + pdf + `"}}`, 61 + 16},
		{"a document of text", `{"type":"document","source":{"type":"text","media_type":"text/plain","data":"` + strings.Repeat("one ", 1_000) + `"}}`, 1_000 + 12},
		{"a call of a tool", `{"type":"tool_use","id":"a","name":"b","input":{"width":1200,"tags":["c"]}}`, 14},
	} {
		if got := send(test.part) - none; got != test.want {
			t.Errorf("%s: %d tokens, want %d", test.name, got, test.want)
		}
	}
}

func ExampleAnthropic() {
	client, err := providers.Anthropic(100, 30_000, 8_000).Client(nil) // requests, input and output tokens a minute
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, anthropic(100, 30_000, 8_000)) // instead of the network

	body := strings.NewReader(`{"model":"claude-sonnet-4-5","max_tokens":1000,"messages":[{"role":"user","content":"Say hello."}]}`)
	resp, err := client.Post("https://api.anthropic.com/v1/messages", "application/json", body)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body) // at its end the real cost replaces the estimate
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.Header.Get("anthropic-ratelimit-requests-remaining"), "requests left,", strings.Contains(string(answer), `"output_tokens":250`))
	// Output: 99 requests left, true
}
