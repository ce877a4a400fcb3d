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

const geminiURL = "https://generativelanguage.googleapis.com/v1beta/"

// generate returns a request with a prompt of about a number of tokens.
func generate(t *testing.T, model string, tokens int) *http.Request {
	t.Helper()
	return postJSON(t, geminiURL+"models/"+model+":generateContent", `{"contents":[{"parts":[{"text":"`+strings.Repeat("one ", tokens)+`"}]}]}`)
}

func TestGeminiModels(t *testing.T) {
	key := providers.Gemini(1, 1, 1).Scope("model").Key
	for _, test := range []struct {
		path, body, model string
		counts            bool
	}{
		{"models/gemini-2.5-flash:generateContent", "{}", "gemini-2.5-flash", true},
		{"models/gemini-2.5-flash:streamGenerateContent?alt=sse", "{}", "gemini-2.5-flash", true},
		{"models/gemini-2.0-flash-001:generateContent", "{}", "gemini-2.0-flash", true},
		{"models/gemini-2.5-flash-preview-09-2025:generateContent", "{}", "gemini-2.5-flash-preview-09-2025", true},
		{"models/gemini-embedding-001:batchEmbedContents", "{}", "gemini-embedding", true},
		{"models/imagen-4.0-generate-001:predict", "{}", "imagen-4.0-generate", true},
		{"tunedModels/mine:generateContent", "{}", "mine", true},
		{"openai/chat/completions", `{"model":"gemini-2.5-flash"}`, "gemini-2.5-flash", true},
		{"openai/embeddings", `{"model":"models/gemini-2.5-flash"}`, "gemini-2.5-flash", true},
		{"interactions", `{"model":"gemini-3-flash","input":"a"}`, "gemini-3-flash", true},
		{"models/gemini-2.5-flash:countTokens", "{}", "", false},
		{"models/gemini-2.5-flash:batchGenerateContent", "{}", "", false},
		{"models/gemini-embedding-001:asyncBatchEmbedContent", "{}", "", false},
		{"openai/files", "{}", "", false},
		{"cachedContents", `{"model":"models/gemini-2.5-flash"}`, "", false},
		{"batches/1:cancel", "{}", "", false},
	} {
		if model, counts := key(postJSON(t, geminiURL+test.path, test.body)); model != test.model || counts != test.counts {
			t.Errorf("%s: %q, %v, want %q, %v", test.path, model, counts, test.model, test.counts)
		}
	}
	if _, counts := key(get(t, geminiURL+"models/gemini-2.5-flash")); counts {
		t.Error("a GET counts")
	}
}

func TestGeminiCost(t *testing.T) {
	cost := providers.Gemini(1, 1, 1).Cost
	data := strings.Repeat("AbC4", 4_000) // 12,000 bytes
	for _, test := range []struct {
		name, parts string
		tokens      int64
	}{
		{"text", `{"text":"` + strings.Repeat("one ", 100) + `"}`, 101},
		{"an image", `{"inlineData":{"mimeType":"image/heic","data":"` + data + `"}}`, 1_120},
		{"an image before its type", `{"inline_data":{"data":"iVBORw0KGgo` + data + `","mime_type":"image/png"}}`, 1_120},
		{"audio", `{"inlineData":{"mimeType":"audio/mp3","data":"` + data + `"}}`, 13},
		{"audio in RIFF", `{"inlineData":{"mimeType":"audio/wav","data":"UklGR` + data + `"}}`, 13},
		{"a PDF", `{"inlineData":{"mimeType":"application/pdf","data":"` + data + `"}}`, 241},
		{"a text file", `{"inlineData":{"mimeType":"text/csv","data":"` + data + `"}}`, 3_001},
		{"files by name", `{"fileData":{"mimeType":"video/mp4","fileUri":"https://generativelanguage.googleapis.com/v1beta/files/abc"}},{"file_data":{"file_uri":"b"}}`, 2 * 1_120},
	} {
		const frame = 32 // keys, and names of types
		if got := cost(postJSON(t, geminiURL+"models/m:generateContent", `{"contents":[{"parts":[`+test.parts+`]}],"generationConfig":{"maxOutputTokens":65536}}`))["tokens"]; got < test.tokens || got > test.tokens+frame {
			t.Errorf("%s: %d tokens, want about %d", test.name, got, test.tokens)
		}
	}
}

// A model has its requests, input tokens and requests of the day, which begins at midnight Pacific.
func TestGeminiLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, providers.Gemini(10, 250_000, 0), 20, func() *http.Request { return generate(t, "m", 1) }); n != 10 {
			t.Errorf("%d requests at once, want 10", n)
		}
		if n := atOnce(t, providers.Gemini(100, 10_000, 0), 20, func() *http.Request { return generate(t, "m", 1_900) }); n != 5 {
			t.Errorf("%d requests of 1,900 tokens at once, want 5", n)
		}
		zone, err := time.LoadLocation("America/Los_Angeles")
		if err != nil {
			t.Fatal(err)
		}
		rt := over(t, providers.Gemini(100, 10_000, 2), accepting{})
		for range 2 {
			send(t, rt, generate(t, "m", 1))
		}
		if _, _, took := send(t, rt, generate(t, "other", 1)); took > 0 {
			t.Errorf("another model waited %v", took)
		}
		send(t, rt, generate(t, "m", 1))
		if now := time.Now().In(zone); now.Hour() != 0 || now.Minute() != 0 {
			t.Errorf("the third request of the day went at %v", now)
		}
	})
}

// The input tokens of a response replace the estimate, in each form of a response.
func TestGeminiSettles(t *testing.T) {
	const usage = `"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":11}`
	for name, reply := range map[string]replying{
		"JSON":                 {Body: `{"candidates":[],` + usage + `}`},
		"array":                {Body: `[{"candidates":[],"usageMetadata":{"trafficType":"ON_DEMAND"}},{"candidates":[],` + usage + `}]`},
		"events":               {Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"usageMetadata\":{\"trafficType\":\"ON_DEMAND\"}}\r\n\r\ndata: {" + usage + "}\r\n\r\n"},
		"interaction":          {Body: `{"id":"a","usage":{"total_input_tokens":8,"total_output_tokens":11}}`},
		"interaction's events": {Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"event_type\":\"interaction.completed\",\"interaction\":{\"usage\":{\"total_input_tokens\":8}}}\n\n"},
		"OpenAI's":             {Body: `{"choices":[],"usage":{"prompt_tokens":8,"total_tokens":19}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt := over(t, providers.Gemini(1_000, 10_000, 0), &reply)
			for n := range 100 {
				if _, _, took := send(t, rt, generate(t, "m", 6_000)); took > 0 {
					t.Errorf("%s: request %d waited %v", name, n+1, took)
					break
				}
			}
		})
	}
}

// exhausted is a refusal with a message and, if quota is not empty, details.
func exhausted(message, quota string) string {
	details := ""
	if quota != "" {
		details = `,"details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaId":"` + quota + `"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"15s"}]`
	}
	return fmt.Sprintf(`{"error":{"code":429,"message":%q,"status":"RESOURCE_EXHAUSTED"%s}}`, message, details)
}

func TestGeminiRefusals(t *testing.T) {
	const perDay = time.Duration(-3)
	for _, test := range []struct {
		name, body string
		wait       time.Duration
	}{
		{"a minute, with a fraction", exhausted("You exceeded your current quota.\nPlease retry in 15.811974541s.", "GenerateContentPaidTierInputTokensPerModelPerMinute"), 15811975 * time.Microsecond},
		{"a minute, without a time in the message", exhausted("You exceeded your current quota.", "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"), 15 * time.Second},
		{"a day", exhausted("You exceeded your current quota.\nPlease retry in 15.06s.", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"), perDay},
		{"without details", exhausted("You exceeded your current quota, please check your plan and billing details.", ""), backoff},
		{"no quota", exhausted("You exceeded your current quota.\n* Quota exceeded for metric: generate_content_free_tier_requests, limit: 0, model: gemini-2.5-pro\nPlease retry in 20.04s.", "GenerateRequestsPerDayPerProjectPerModel-FreeTier"), 0},
		{"no quota, without a model", exhausted("* Quota exceeded for metric: generate_content_free_tier_requests, limit: 0\nPlease retry in 20.04s.", ""), 0},
		{"some quota", exhausted("* Quota exceeded for metric: generate_content_free_tier_requests, limit: 10, model: gemini-2.5-pro\nPlease retry in 20.04s.", ""), 20040 * time.Millisecond},
		{"an interaction's day", `{"error":{"code":"quota_exceeded","message":"You have exceeded your daily quota."}}`, perDay},
		{"prepaid credits", exhausted("Your prepayment credits are depleted. Please go to AI Studio", ""), 0},
		{"the own cap", exhausted("Your project has exceeded its monthly spending cap. Please go to AI Studio", ""), 0},
	} {
		for _, body := range []string{test.body, "[" + test.body + "\n]"} {
			t.Run(test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := openAI(100_000, 1e9)
					rt := over(t, providers.Gemini(1_000, 1_000_000, 0), api)
					api.Trap(fakeapi.Reply{Status: 429, Body: body})
					send(t, rt, generate(t, "m", 1))
					if _, _, took := send(t, rt, generate(t, "other", 1)); took > 0 {
						t.Errorf("another model waited %v", took)
					}
					if test.wait == perDay {
						var e *throttle.WaitError
						_, err := rt.RoundTrip(generate(t, "m", 1))
						if !errors.As(err, &e) || !errors.Is(err, throttle.ErrBanned) || time.Until(e.Until) != 15*time.Minute { // and not for the 15 s of the message
							t.Errorf("a day: %v", err)
						}
						return
					}
					_, _, took := send(t, rt, generate(t, "m", 1))
					if took != test.wait && (test.wait != backoff || took < time.Second || took > 2*time.Second) {
						t.Errorf("waited %v, want %v", took, test.wait)
					}
				})
			})
		}
	}
}

// A refusal for the spend of ten minutes is the project's: other models wait, too.
func TestGeminiSpend(t *testing.T) {
	const message = "You exceeded your spend-based rate limit. Your spending rate has exceeded the allowed limit for your account's billing history and tier."
	for body, want := range map[string]time.Duration{
		exhausted(message, ""): backoff,
		`{"error":{"code":429,"message":"` + message + `","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"45s"}]}}`: 45 * time.Second,
	} {
		for _, url := range []string{"models/other:generateContent", "openai/chat/completions", "interactions"} {
			synctest.Test(t, func(t *testing.T) {
				api := openAI(100_000, 1e9)
				rt := over(t, providers.Gemini(1_000, 1_000_000, 0), api)
				api.Trap(fakeapi.Reply{Status: 429, Body: body})
				send(t, rt, generate(t, "m", 1))
				_, _, took := send(t, rt, postJSON(t, geminiURL+url, `{"model":"other"}`))
				if took != want && (want != backoff || took < time.Second || took > 2*time.Second) {
					t.Errorf("%s waited %v, want %v", url, took, want)
				}
			})
		}
	}
}

// With a longer MaxPause, requests wait for the day.
func TestGeminiWaitsForTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := openAI(100_000, 1e9)
		p := providers.Gemini(1_000, 1_000_000, 250)
		p.Scope("model").Policy.MaxPause = 25 * time.Hour
		rt := over(t, p, api)
		api.Trap(fakeapi.Reply{Status: 429, Body: exhausted("Please retry in 15.06s.", "GenerateRequestsPerDayPerProjectPerModel-FreeTier")})
		send(t, rt, generate(t, "m", 1))
		if _, _, took := send(t, rt, generate(t, "m", 1)); took != 8*time.Hour { // from midnight in UTC
			t.Errorf("waited %v", took)
		}
	})
}
