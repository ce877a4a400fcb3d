package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// deployed returns a request to a deployment, with about prompt tokens and at most most tokens of output.
func deployed(t *testing.T, deployment string, prompt, most int) *http.Request {
	t.Helper()
	return postJSON(t, "https://acme.openai.azure.com/openai/deployments/"+deployment+"/chat/completions?api-version=2024-10-21",
		fmt.Sprintf(`{"messages":[{"role":"user","content":"%s"}],"max_tokens":%d}`, strings.Repeat("one ", prompt), most))
}

func TestAzureOpenAIDeployments(t *testing.T) {
	key := providers.AzureOpenAI(1, 1).Scope("deployment").Key
	for _, test := range []struct {
		url, body, want string
		counts          bool
	}{
		{"acme.openai.azure.com/openai/deployments/GPT/chat/completions", "{}", "acme/gpt", true},
		{"acme.openai.azure.com/openai/deployments/gpt/audio/transcriptions", "{}", "acme/gpt", true},
		{"other.openai.azure.com/openai/deployments/gpt/embeddings", "{}", "other/gpt", true},
		{"acme.services.ai.azure.com/openai/v1/responses", `{"model":"gpt"}`, "acme/gpt", true},
		{"acme.services.ai.azure.com/models/chat/completions", `{"model":"gpt"}`, "acme/gpt", true},
		{"acme.services.ai.azure.com/anthropic/v1/messages", `{"model":"claude"}`, "acme/claude", true},
		{"acme.services.ai.azure.com/api/projects/one/openai/v1/responses", `{"model":"gpt"}`, "acme/gpt", true},
		{"acme.services.ai.azure.com/api/projects/two/openai/v1/responses", `{"model":"gpt"}`, "acme/gpt", true},
		{"acme.services.ai.azure.com/api/projects/one/agents", `{"model":"gpt"}`, "", false},
		{"acme.services.ai.azure.com/api/projects/one", `{"model":"gpt"}`, "", false},
		{"acme.openai.azure.com/openai/v1/files", "{}", "", false},
		{"acme.openai.azure.com/openai/batches", "{}", "", false},
		{"acme.cognitiveservices.azure.com/vision/v3.2/analyze", `{"model":"gpt"}`, "", false},
	} {
		if got, counts := key(postJSON(t, "https://"+test.url, test.body)); got != test.want || counts != test.counts {
			t.Errorf("%s: %q, %v, want %q, %v", test.url, got, counts, test.want, test.counts)
		}
	}
	if _, counts := key(get(t, "https://acme.openai.azure.com/openai/deployments/gpt/x")); counts {
		t.Error("a GET counts")
	}
}

// A minute's requests are spread over its 10 seconds and its seconds, for each deployment.
func TestAzureOpenAILimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, providers.AzureOpenAI(600, 1e6), 20, func() *http.Request { return deployed(t, "gpt", 1, 1) }); n != 10 {
			t.Errorf("%d requests at once, want 10", n)
		}
		if n := atOnce(t, providers.AzureOpenAI(60_000, 10_000), 20, func() *http.Request { return deployed(t, "gpt", 880, 1_000) }); n != 5 {
			t.Errorf("%d requests of 880 and 1,000 tokens at once, want 5", n)
		}
		rt, start, times := over(t, providers.AzureOpenAI(600, 1e9), accepting{}), time.Now(), []time.Duration(nil)
		for range 500 {
			send(t, rt, deployed(t, "gpt", 1, 1))
			times = append(times, time.Since(start))
		}
		for i := 100; i < len(times); i++ {
			if times[i]-times[i-100] < 10*time.Second {
				t.Fatalf("101 requests in %v", times[i]-times[i-100])
			}
		}
		if took := times[len(times)-1]; took > 55*time.Second {
			t.Errorf("500 requests took %v", took)
		}
	})
}

func TestAzureOpenAICost(t *testing.T) {
	cost := providers.AzureOpenAI(1, 1).Cost
	for _, test := range []struct {
		body   string
		tokens int64
	}{
		{`{"prompt":"one two"}`, 3},
		{`{"prompt":"one two","max_tokens":100}`, 103},
		{`{"prompt":"one two","max_tokens":100,"best_of":3,"n":2}`, 303},
		{`{"input":"one two","max_output_tokens":100}`, 103},
	} {
		if got := cost(postJSON(t, "https://acme.openai.azure.com/openai/deployments/gpt/completions", test.body))["tokens"]; got < test.tokens || got > test.tokens+8 { // keys count, too
			t.Errorf("%s: %d tokens, want %d", test.body, got, test.tokens)
		}
	}
	upload, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://acme.openai.azure.com/openai/deployments/whisper/audio/transcriptions", strings.NewReader("--b"))
	if err != nil {
		t.Fatal(err)
	}
	upload.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	if upload.GetBody, upload.ContentLength = nil, 1<<20; cost(upload)["tokens"] != 0 {
		t.Errorf("an upload costs %v", cost(upload))
	}
}

func TestAzureOpenAIRefusals(t *testing.T) {
	const classic = `{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2024-10-21 have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after %d seconds. Please go here: https://aka.ms/oai/quotaincrease"}}`
	const backoff, closed = time.Duration(-1), time.Duration(-2)
	for _, test := range []struct {
		name   string
		status int
		header map[string]string
		body   string
		wait   time.Duration
	}{
		{"the message", 429, nil, fmt.Sprintf(classic, 33), 33 * time.Second},
		{"API Management's message", 429, nil, `{"statusCode":429,"message":"Rate limit is exceeded. Try again in 40 seconds."}`, 40 * time.Second},
		{"that message in an error", 429, nil, `{"error":{"code":"429","message":"Rate limit is exceeded. Try again in 30 seconds."}}`, 30 * time.Second},
		{"flex processing is full", 429, nil, `{"error":{"code":"resource_unavailable"}}`, 0},
		{"retry-after-ms", 429, map[string]string{"retry-after-ms": "1250", "Retry-After": "2"}, "", 1250 * time.Millisecond},
		{"a retry-after-ms of 0", 429, map[string]string{"retry-after-ms": "0", "Retry-After": "2"}, "", 2 * time.Second},
		{"requests", 429, map[string]string{"policy-id": "DeploymentRatelimit-Call", "x-ratelimit-reset-requests": "4", "x-ratelimit-reset-tokens": "50"}, "", 4 * time.Second},
		{"tokens, in the other spelling", 429, map[string]string{"policy-id": "DeploymentRatelimit-Token", "x-rate-limit-reset-tokens": "55"}, "", 55 * time.Second},
		{"limits of -1", 429, map[string]string{"x-ratelimit-limit-tokens": "-1", "x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "0"}, "", backoff},
		{"inside a stream", 200, map[string]string{"Content-Type": "text/event-stream", "retry-after": "4"}, "event: error\ndata: {}\n\n", 4 * time.Second},
		{"a day", 429, nil, fmt.Sprintf(classic, 86_400), closed},
		{"spent tokens that report no wait", 429, map[string]string{"Retry-After": "1", "x-ratelimit-limit-tokens": "5000", "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "0", "x-ratelimit-renewalperiod-tokens": "60"}, "", time.Minute},
		{"less than nothing left", 200, map[string]string{"Content-Type": "text/event-stream", "x-ratelimit-remaining-tokens": "-27978"}, "event: response.completed\n\n", time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := openAI(100_000, 1e9)
				rt := over(t, providers.AzureOpenAI(6_000, 5_000), withoutReports{api})
				api.Trap(fakeapi.Reply{Status: test.status, Header: test.header, Body: test.body})
				send(t, rt, deployed(t, "gpt", 10, 10))
				if _, _, took := send(t, rt, deployed(t, "other", 10, 10)); took > 0 {
					t.Errorf("another deployment waited %v", took)
				}
				if test.wait == closed {
					if _, err := rt.RoundTrip(deployed(t, "gpt", 10, 10)); !errors.Is(err, throttle.ErrBanned) {
						t.Errorf("%v, want ErrBanned", err)
					}
					return
				}
				_, _, took := send(t, rt, deployed(t, "gpt", 10, 10))
				if took != test.wait && (test.wait != backoff || took < time.Second || took > 2*time.Second) {
					t.Errorf("waited %v, want %v", took, test.wait)
				}
			})
		})
	}
}

// withoutReports is an API that reports limits in no response but the trapped ones, which have no usage.
type withoutReports struct{ api *fakeapi.Server }

func (w withoutReports) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.api.RoundTrip(req)
	if err == nil && resp.Header.Get("X-Ratelimit-Limit-Requests") == "100000" {
		for _, name := range []string{"Limit", "Remaining", "Reset"} {
			resp.Header.Del("X-Ratelimit-" + name + "-Requests")
			resp.Header.Del("X-Ratelimit-" + name + "-Tokens")
		}
	}
	return resp, err
}
