package providers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// vertex returns the address of a call of a model in a location, such as "google/models/gemini-2.5-pro:predict".
func vertex(location, call string) string {
	host := "aiplatform.googleapis.com"
	if location != "global" {
		host = location + "-" + host
	}
	return "https://" + host + "/v1/projects/acme/locations/" + location + "/publishers/" + call
}

func TestVertexAIModels(t *testing.T) {
	const chat = "https://aiplatform.googleapis.com/v1/projects/acme/locations/global/endpoints/openapi/chat/completions"
	p := providers.VertexAI(1, 1, 1)
	for _, test := range []struct{ url, body, want string }{
		{vertex("us-central1", "google/models/gemini-2.5-pro:generateContent"), "{}", "model=acme us-central1 gemini-2.5-pro"},
		{vertex("global", "google/models/gemini-2.0-flash-001:streamGenerateContent?alt=sse"), "{}", "model=acme global gemini-2.0-flash"},
		{"https://aiplatform.googleapis.com/v1/publishers/google/models/gemini-2.5-pro:generateContent", "{}", "model= global gemini-2.5-pro"},
		{"https://us-central1-aiplatform.googleapis.com/v1/projects/acme/locations/us-central1/endpoints/123:generateContent", "{}", "model=acme us-central1 123"},
		{vertex("us-central1", "google/models/veo-3.0-generate-001:predictLongRunning"), "{}", "model=acme us-central1 veo-3.0-generate"},
		{vertex("us-central1", "google/models/imagen-4.0-generate-001:predict"), "{}", "model=acme us-central1 imagen-4.0-generate predict=acme us-central1"},
		{vertex("us-central1", "google/models/text-embedding-005:predict"), "{}", "model=acme us-central1 textembedding-gecko predict=acme us-central1"},
		{vertex("us-central1", "google/models/gemini-embedding-001:predict"), "{}", "embeddings=acme us-central1 gemini-embedding predict=acme us-central1"},
		{vertex("global", "google/models/gemini-embedding-2:embedContent"), "{}", "embeddings-2=acme global gemini-embedding-2"},
		{chat, `{"model":"google/gemini-2.5-flash"}`, "model=acme global gemini-2.5-flash"},
		{chat, `{"model":"meta/llama-4-maverick-17b-128e-instruct-maas"}`, "partner=acme global llama-4-maverick-17b-128e-instruct-maas"},

		{vertex("us-east5", "anthropic/models/claude-sonnet-4-5@20250929:rawPredict"), "{}", "partner=acme us-east5 claude-sonnet-4-5"},
		{vertex("global", "anthropic/models/claude-opus-4-7:streamRawPredict"), "{}", "partner=acme global claude-opus-4-7"},
		{vertex("global", "anthropic/models/claude-opus-4-8:streamRawPredict"), "{}", "partner=acme global claude-opus"},
		{vertex("us", "anthropic/models/claude-opus-5-5:rawPredict"), "{}", "partner=acme us claude-opus"},
		{vertex("us-east5", "anthropic/models/claude-opus-5:rawPredict"), "{}", "partner=acme us-east5 claude-opus-5"},
		{vertex("global", "anthropic/models/claude-sonnet-4-6:rawPredict"), "{}", "partner=acme global claude-sonnet-4-6"},
		{vertex("global", "anthropic/models/claude-sonnet-5:rawPredict"), "{}", "partner=acme global claude-sonnet"},
		{vertex("global", "anthropic/models/claude-fable-5:rawPredict"), "{}", "partner=acme global claude-fable"},
		{vertex("global", "anthropic/models/claude-haiku-5:rawPredict"), "{}", "partner=acme global claude-haiku-5"},
		{vertex("global", "anthropic/models/claude-haiku-5-5:rawPredict"), "{}", "partner=acme global claude-haiku"},
		{vertex("us-central1", "mistralai/models/mistral-large-2411:rawPredict"), "{}", "partner=acme us-central1 mistral-large-2411"},

		{vertex("us-central1", "google/models/gemini-2.5-pro:countTokens"), "{}", ""},
		{vertex("us-east5", "anthropic/models/count-tokens:rawPredict"), "{}", ""},
		{vertex("us-central1", "google/models/veo-3.0-generate-001:fetchPredictOperation"), "{}", ""},
		{"https://us-central1-aiplatform.googleapis.com/v1/projects/acme/locations/us-central1/batchPredictionJobs", "{}", ""},
		{chat, "{}", ""},
	} {
		var got []string
		for i := range p.Scopes {
			if key, counts := p.Scopes[i].Key(postJSON(t, test.url, test.body)); counts {
				got = append(got, p.Scopes[i].Name+"="+key)
			}
		}
		if got := strings.Join(got, " "); got != test.want {
			t.Errorf("%s %s: %q, want %q", test.url, test.body, got, test.want)
		}
	}
	if _, counts := p.Scope("model").Key(get(t, vertex("us-central1", "google/models/gemini-2.5-pro:generateContent"))); counts {
		t.Error("a GET counts")
	}
	transport, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	const path = "/v1/projects/acme/locations/us/publishers/google/models/gemini-2.5-pro:generateContent"
	for host, limited := range map[string]bool{"aiplatform.us.rep.googleapis.com": true, "generativelanguage.googleapis.com": false, "aiplatform.evil.example": false} {
		if got := transport.Route(postJSON(t, "https://"+host+path, "{}")) != nil; got != limited {
			t.Errorf("limits %s: %v, want %v", host, got, limited)
		}
	}
}

// rawPredict returns a request to Claude with a prompt of about a number of tokens.
func rawPredict(t *testing.T, model string, tokens, most int) func() *http.Request {
	return to(t, "POST", vertex("us-east5", "anthropic/models/"+model+":rawPredict"),
		fmt.Sprintf(`{"anthropic_version":"vertex-2023-10-16","max_tokens":%d,"messages":[{"role":"user","content":"%s"}]}`, most, strings.Repeat("one ", tokens)))
}

func embed(t *testing.T, model, action string, tokens int) func() *http.Request {
	return to(t, "POST", vertex("global", "google/models/"+model+":"+action), `{"content":"`+strings.Repeat("one ", tokens)+`"}`)
}

func TestVertexAILimits(t *testing.T) {
	sonnet, opus := rawPredict(t, "claude-sonnet-4-5@20250929", 100, 10), rawPredict(t, "claude-opus-4-1@20250805", 100, 10)
	limited := func(requests, input, output int64) func() providers.Provider {
		return func() providers.Provider { return providers.VertexAI(requests, input, output) }
	}
	checkAtOnce(t, limited(3, 0, 0), []atOnceTest{
		{"requests", 3, []func() *http.Request{sonnet}},
		{"each model", 6, []func() *http.Request{sonnet, opus}},
	})
	checkBurst(t, limited(0, 0, 0), "a rate is learned", 1, sonnet)
	checkBurst(t, limited(0, 0, 0), "Gemini", 1, to(t, "POST", vertex("global", "google/models/gemini-2.5-pro:generateContent"), "{}"))
	checkBurst(t, limited(1_000, 1_000, 0), "input", 4, rawPredict(t, "claude-sonnet-4-5", 200, 10)) // with the keys
	checkBurst(t, limited(1_000, 0, 1_000), "output", 5, rawPredict(t, "claude-sonnet-4-5", 1, 200))
	checkBurst(t, limited(1_000, 0, 9_000), "output without max_tokens", 2, to(t, "POST", vertex("us-east5", "anthropic/models/claude-sonnet-4-5:rawPredict"), "{}"))
	large := func() providers.Provider {
		p := providers.VertexAI(0, 0, 0)
		p.Tokens = func(string) int64 { return 999_000 }
		return p
	}
	checkBurst(t, large, "embeddings", 5, embed(t, "gemini-embedding-001", "embedContent", 1))
	checkBurst(t, large, "embeddings of the second kind", 10, embed(t, "gemini-embedding-2", "embedContent", 1))
	p := providers.VertexAI(0, 0, 0)
	if got := providers.VertexAI(1, 0, 0).Scope("partner").Policy.Tiers[0]; got != throttle.PerMinute(1) {
		t.Errorf("one request a minute is %v", got)
	}
	for scope, want := range map[string]throttle.Tier{
		"predict": throttle.PerMinute(30_000), "embeddings-2": throttle.PerMinute(40_000),
		"model": {Limit: 5, Window: time.Second, Algorithm: throttle.GCRA, Burst: 1, Learn: throttle.Learn{Most: 500}},
	} {
		if tiers := p.Scope(scope).Policy.Tiers; tiers[len(tiers)-1] != want {
			t.Errorf("%s: %v, want %v", scope, tiers, want)
		}
	}
}

// A response reports the tokens, and later requests are charged what earlier ones make likely.
func TestVertexAISettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const used = `{"usage":{"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":%d}}`
		server := replying{Body: fmt.Sprintf(used, 400, 500, 5_000, 1), Header: map[string]string{"Content-Type": "application/json"}}
		rt := over(t, providers.VertexAI(1_000, 1_000, 1_000), &server)
		if _, _, took := send(t, rt, rawPredict(t, "claude-sonnet-4-5", 10, 990)()); took != 0 {
			t.Errorf("the first waited %v", took)
		}
		server.Body = fmt.Sprintf(used, 1, 0, 0, 999)
		if _, _, took := send(t, rt, rawPredict(t, "claude-sonnet-4-5", 10, 990)()); took != 0 { // one token of output has been used
			t.Errorf("the second waited %v", took)
		}
		if _, _, took := send(t, rt, rawPredict(t, "claude-sonnet-4-5", 10, 1)()); took < 59*time.Second {
			t.Errorf("the third waited %v, but the output of a minute is used up", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		server := replying{Body: `{"usageMetadata":{"promptTokenCount":4999000}}`, Header: map[string]string{"Content-Type": "application/json"}}
		rt := over(t, providers.VertexAI(0, 0, 0), &server)
		next := embed(t, "gemini-embedding-001", "embedContent", 1_000)
		send(t, rt, next())
		if _, _, took := send(t, rt, next()); took < 59*time.Second {
			t.Errorf("the second waited %v, but the tokens of a minute are used up", took)
		}
	})
}

func TestVertexAIRefusals(t *testing.T) {
	sonnet, gemini := rawPredict(t, "claude-sonnet-4-5", 1, 1), to(t, "POST", vertex("global", "google/models/gemini-2.5-pro:generateContent"), "{}")
	quota := `{"error":{"code":429,"message":"Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model with base model: anthropic-claude-sonnet-4-5. Please submit a quota increase request.","status":"RESOURCE_EXHAUSTED"}}`
	checkRefusals(t, func() providers.Provider { return providers.VertexAI(1_000, 0, 0) }, []refusalTest{
		{name: "a quota", first: sonnet, reply: fakeapi.Reply{Status: 429, Body: quota}, want: backoff},
		{name: "in a list", reply: fakeapi.Reply{Status: 429, Body: "[" + quota + "]"}, want: backoff},
		{name: "other models go on", next: rawPredict(t, "claude-opus-4-1", 1, 1), reply: fakeapi.Reply{Status: 429, Body: quota}},
		{name: "an overload pauses nothing", reply: fakeapi.Reply{Status: 529, Body: `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`}},
		{name: "shared capacity lowers the rate", first: gemini, reply: fakeapi.Reply{Status: 429, Body: `{"error":{"code":429,"message":"Resource exhausted. Please try again later.","status":"RESOURCE_EXHAUSTED"}}`}, want: 250 * time.Millisecond},
	})
	for event, body := range map[string]string{
		"message": `{"error":{"code":429,"message":"Resource exhausted. Please try again later.","status":"RESOURCE_EXHAUSTED"}}`,
		"error":   `{"type":"error","error":{"type":"rate_limit_error","message":"limited"}}`,
	} {
		r := answers.Response{Method: "POST", Status: 200, Event: event, Body: []byte(body), Got: time.Now()}
		if got := providers.VertexAI(0, 0, 0).Profile.Read(r).Refusal; got.Kind != answers.Limited {
			t.Errorf("an event %s with %s: %v", event, body, got.Kind)
		}
	}
	for body, want := range map[string]string{
		quota: "quota",
		`{"error":{"code":429,"message":"Too many requests. Exceeded the Provisioned Throughput.","status":"RESOURCE_EXHAUSTED"}}`: "provisioned throughput",
		`[{"error":{"code":429,"message":"Resource exhausted, please try again later.","status":"RESOURCE_EXHAUSTED"}}]`:           "RESOURCE_EXHAUSTED",
	} {
		r := answers.Response{Method: "POST", Status: 429, Body: []byte(body), Got: time.Now()}
		if got := providers.VertexAI(0, 0, 0).Profile.Read(r).Refusal; got.Kind != answers.Limited || got.Reason != want {
			t.Errorf("%s: %v, reason %q, want %q", body, got.Kind, got.Reason, want)
		}
	}
}
