package providers_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

var compatibleHosts = []string{
	"api.groq.com", "openrouter.ai", "api.mistral.ai", "api.eu.mistral.ai", "api.x.ai", "api.deepseek.com", "api.together.ai", "api.together.xyz",
	"api.cerebras.ai", "gateway.example.com",
}

// ask returns a request to a model for at most most tokens, with a prompt of about prompt tokens.
func ask(t *testing.T, host, model string, prompt, most int) *http.Request {
	t.Helper()
	return postJSON(t, "https://"+host+"/v1/chat/completions",
		fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"%s"}],"max_tokens":%d}`, model, strings.Repeat("one ", prompt), most))
}

// Every host is valid with both limits, with one, and with none. A host serves requests of its own and
// no others.
func TestOpenAICompatible(t *testing.T) {
	for _, host := range compatibleHosts {
		for _, limits := range [][2]int64{{30, 8_000}, {30, 0}, {0, 8_000}, {0, 0}} {
			p := providers.OpenAICompatible(host, limits[0], limits[1])
			transport, err := p.Transport(nil)
			if err != nil {
				t.Fatal(host, limits, err)
			}
			if err := p.Profile.Validate(); err != nil {
				t.Error(host, limits, err)
			}
			transport.Base = accepting{}
			if transport.Route(ask(t, host, "m", 1, 1)) == nil || transport.Route(ask(t, "example.com", "m", 1, 1)) != nil {
				t.Errorf("%s: limits other hosts, or not itself", host)
			}
			if transport.Route(get(t, "https://"+host+"/v1/models")) != nil {
				t.Errorf("%s: limits a GET", host)
			}
			resp, err := transport.RoundTrip(ask(t, host, "m", 100, 100))
			if err != nil {
				t.Fatal(host, limits, err)
			}
			resp.Body.Close()
			if counts := p.Cost != nil && p.Cost(ask(t, host, "m", 100, 100))["tokens"] > 0; counts != (limits[1] > 0) {
				t.Errorf("%s, %v: counts tokens: %v", host, limits, counts)
			}
		}
	}
}

// The limits hold for each model apart, and max_tokens counts beside the prompt.
func TestOpenAICompatibleLimits(t *testing.T) {
	for _, test := range []struct {
		host         string
		prompt, most int
		want         int
	}{
		{"api.groq.com", 10, 10, 30},
		{"api.groq.com", 880, 100, 8},
		{"gateway.example.com", 880, 100, 8},
		{"api.x.ai", 1, 1, 1}, // a sixtieth a second
		{"api.cerebras.ai", 880, 100, 8},
		{"api.mistral.ai", 880, 100, 8},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			if got := atOnce(t, providers.OpenAICompatible(test.host, 30, 8_000), 100, func() *http.Request {
				n++
				return ask(t, test.host, "m", test.prompt, test.most)
			}); got != test.want {
				t.Errorf("%s: %d requests of %d and %d tokens at once, want %d", test.host, got, test.prompt, test.most, test.want)
			}
			if got := atOnce(t, providers.OpenAICompatible(test.host, 30, 8_000), 100, func() *http.Request {
				n++
				return ask(t, test.host, fmt.Sprint("m", n), test.prompt, test.most)
			}); got != 100 {
				t.Errorf("%s: %d models at once, want 100", test.host, got)
			}
		})
	}
}

// Free models of OpenRouter share a minute and a day. DeepSeek limits requests at the same time.
func TestOpenAICompatibleScopes(t *testing.T) {
	soak.Long(t, "it plays a day")
	synctest.Test(t, func(t *testing.T) {
		p := providers.OpenAICompatible("openrouter.ai", 0, 0)
		n := 0
		free := func() *http.Request {
			n++
			return ask(t, "openrouter.ai", fmt.Sprintf("lab/m%d:free", n), 1, 1)
		}
		if got := atOnce(t, p, 100, free); got != 20 {
			t.Errorf("%d requests to free models at once, want 20", got)
		}
		if got := atOnce(t, p, 100, func() *http.Request { return ask(t, "openrouter.ai", "lab/m", 1, 1) }); got != 100 {
			t.Errorf("%d requests to a paid model at once, want 100", got)
		}
		p.Scope("free").Policy.MaxWait = time.Hour
		rt := over(t, p, accepting{})
		for range 50 {
			send(t, rt, free())
		}
		if _, err := rt.RoundTrip(free()); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("request 51 of the day: %v", err)
		}
	})
	for model, want := range map[string]int{
		"deepseek-flash": 2_500, "deepseek-v4-flash": 2_500, "deepseek-v4-flash-vision-exp": 2_500, "deepseek-chat": 2_500, "deepseek-reasoner": 2_500,
		"deepseek-v4-pro": 500,
	} {
		p := providers.OpenAICompatible("api.deepseek.com", 0, 0)
		for i := range p.Scopes {
			p.Scopes[i].Policy.MaxWait = time.Nanosecond
		}
		rt, n := over(t, p, open{}), 0
		for ; n < 3_000; n++ {
			if _, err := rt.RoundTrip(ask(t, "api.deepseek.com", model, 1, 1)); err != nil {
				break
			}
		}
		if n != want {
			t.Errorf("%s: %d requests at the same time, want %d", model, n, want)
		}
		if _, err := rt.RoundTrip(ask(t, "api.deepseek.com", "deepseek-chat", 1, 1)); (err != nil) != (want == 2_500) { // another name of the flash model
			t.Errorf("%s: then deepseek-chat: %v", model, err)
		}
	}
}

// OpenRouter's day ends at midnight in UTC, if its refusal names no time.
func TestOpenRouterWaitsForTheDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(7 * time.Hour)
		api := openAI(100_000, 1e9)
		p := providers.OpenAICompatible("openrouter.ai", 0, 0)
		p.Scope("free").Policy.MaxPause = 25 * time.Hour
		rt := over(t, p, api)
		api.Trap(refusal(429, `{"error":{"message":"Rate limit exceeded: free-models-per-day-high-balance. ","code":429}}`)())
		send(t, rt, ask(t, "openrouter.ai", "lab/a:free", 1, 1))
		if _, _, took := send(t, rt, ask(t, "openrouter.ai", "lab/b:free", 1, 1)); took != 17*time.Hour {
			t.Errorf("waited %v, want 17 hours", took)
		}
	})
}

// open is a server whose responses don't end.
type open struct{}

func (open) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: endless{}, Request: req}, nil
}

type endless struct{}

func (endless) Read([]byte) (int, error) { return 0, nil }
func (endless) Close() error             { return nil }

// A refusal pauses its model for the time that it names, and other models as far as the limit is
// theirs, too.
func TestOpenAICompatibleRefusals(t *testing.T) {
	const no = time.Duration(0)
	reset := func(d time.Duration) string { return fmt.Sprint(time.Now().Add(d).UnixMilli()) }
	for _, test := range []struct {
		name, host  string
		reply       func() fakeapi.Reply
		same, other time.Duration // the waits of the same model and, before it, of another one
	}{
		{"Groq, tokens of a day", "api.groq.com", refusal(429, `{"error":{"type":"tokens","message":"Rate limit reached for model m on tokens per day (TPD): Limit 200000, Used 197088, Requested 4151. Please try again in 8m55.248s. Need more tokens?"}}`), 535248 * time.Millisecond, no},
		{"Groq, too large", "api.groq.com", refusal(429, `{"error":{"type":"tokens","message":"Request too large for model m on tokens per minute (TPM): Limit 8000, Requested 10098, please reduce your message size and try again. "}}`), no, no},
		{"OpenRouter, free minute", "openrouter.ai", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 429, Body: `{"error":{"message":"Rate limit exceeded: free-models-per-min. ","code":429,"metadata":{"headers":{"X-RateLimit-Limit":"16","X-RateLimit-Remaining":"0","X-RateLimit-Reset":"` + reset(41*time.Second) + `"}}}}`}
		}, 41 * time.Second, 41 * time.Second},
		{"OpenRouter, free day", "openrouter.ai", refusal(429, `{"error":{"message":"Rate limit exceeded: free-models-per-day-high-balance. ","code":429}}`), closed, closed},
		{"OpenRouter, one model", "openrouter.ai", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 429, Header: map[string]string{"X-RateLimit-Limit": "8", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset(12 * time.Second)}, Body: `{"error":{"message":"Rate limit exceeded: limit_rpm/m","code":429}}`}
		}, 12 * time.Second, no},
		{"OpenRouter, upstream", "openrouter.ai", refusal(429, `{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"{\"error\":{\"details\":[{\"retryDelay\":\"35.5s\"}]}}"}}}`), 35500 * time.Millisecond, no},
		{"OpenRouter, upstream busy", "openrouter.ai", refusal(429, `{"error":{"message":"Provider returned error","code":429,"metadata":{"limit_source":"upstream_provider_shared_pool"}}}`), no, no},
		{"OpenRouter, no credits", "openrouter.ai", refusal(402, `{"error":{"message":"Insufficient credits.","code":402}}`), no, no},
		{"OpenRouter, too much under way", "openrouter.ai", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 402, Header: map[string]string{"Retry-After": "5"}}
		}, 5 * time.Second, no},
		{"OpenRouter, inside a 200", "openrouter.ai", refusal(200, `{"choices":null,"error":{"message":"Provider returned error","code":429}}`), backoff, no},
		{"Mistral, full", "api.mistral.ai", refusal(429, `{"message":"Service tier capacity exceeded for this model.","type":"invalid_request_error"}`), no, no},
		{"Mistral, not in the plan", "api.mistral.ai", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 429, Header: map[string]string{"x-ratelimit-limit-req-minute": "0", "x-ratelimit-remaining-req-minute": "0"}}
		}, no, no},
		{"xAI, the minute", "api.x.ai", refusal(429, `{"code":"resource-exhausted","error":"Too many requests for team t and model m. Requests per Minute (actual/limit): 60/60. Resets in: 45s."}`), 45 * time.Second, no},
		{"xAI, not granted", "api.x.ai", refusal(429, `{"code":"resource-exhausted","error":"Too many requests for team t and model m. Requests per Minute (actual/limit): 0/0."}`), no, no},
		{"xAI, credits", "api.x.ai", refusal(429, `{"error":"Your team t has either used all available credits or reached its monthly spending limit."}`), no, no},
		{"DeepSeek", "api.deepseek.com", refusal(429, `{"error":{"message":"Rate Limit Reached"}}`), backoff, no},
		{"Together", "api.together.xyz", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 429, Header: map[string]string{"x-ratelimit-reset": "2"}}
		}, 2 * time.Second, no},
		{"Together, full", "api.together.xyz", refusal(503, ""), no, no},
		{"Cerebras, tokens of a minute", "api.cerebras.ai", func() fakeapi.Reply {
			return fakeapi.Reply{Status: 429, Header: map[string]string{"x-ratelimit-reset-tokens-minute": "59.5", "x-ratelimit-reset-tokens-day": "33011.382867"}, Body: `{"message":"Tokens per minute limit exceeded - too many tokens processed.","param":"quota"}`}
		}, 59500 * time.Millisecond, no},
		{"Cerebras, queue", "api.cerebras.ai", refusal(429, `{"message":"We're experiencing high traffic right now! Please try again soon.","param":"queue","code":"queue_exceeded"}`), no, no},
		{"any other", "gateway.example.com", refusal(429, `{"error":{"message":"Please try again in 1.5s."}}`), 1500 * time.Millisecond, no},
		{"any other, unpaid", "gateway.example.com", refusal(429, `{"error":{"type":"insufficient_quota"}}`), no, no},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := openAI(100_000, 1e9)
				rt := over(t, providers.OpenAICompatible(test.host, 0, 0), api)
				api.Trap(test.reply())
				send(t, rt, ask(t, test.host, "m:free", 1, 1))
				check := func(model string, want time.Duration) {
					if want == closed {
						if _, err := rt.RoundTrip(ask(t, test.host, model, 1, 1)); !errors.Is(err, throttle.ErrBanned) {
							t.Errorf("%v, want ErrBanned", err)
						}
						return
					}
					_, _, took := send(t, rt, ask(t, test.host, model, 1, 1))
					switch {
					case want == backoff && time.Second <= took && took <= 2*time.Second:
					case want <= took && took <= want+time.Millisecond: // a time may be cut to the millisecond
					default:
						t.Errorf("%s waited %v, want %v", model, took, want)
					}
				}
				if check("other:free", test.other); test.other == 0 { // else the pause of both has ended
					check("m:free", test.same)
				}
			})
		})
	}
}

// Where the provider counts what was used, max_tokens is no reason to send fewer requests: the answers so
// far tell how many tokens to hold back.
func TestOpenAICompatibleOutputIsLearned(t *testing.T) {
	for _, host := range []string{"api.mistral.ai", "api.x.ai"} {
		without := 0
		for _, most := range []string{"", `,"max_tokens":128000`} {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("mistral", "requests=100000/m", "tokens=200000/m")
				api.Output = func(int64) int64 { return 550 }
				api.Hold = fakeapi.Between(time.Second, 3*time.Second)
				saturate(t, over(t, providers.OpenAICompatible(host, 100_000, 200_000), api), 20, 3*time.Minute, func(int) *http.Request {
					return postJSON(t, "https://"+host+"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("one ", 100)+`"}]`+most+`}`)
				})
				checkServed(t, api, 0.9*max(float64(without), 3*200_000/660))
				without = api.Served()
			})
		}
	}
}

// The tokens that are held back for an answer are at most max_tokens, and none where nothing is written.
func TestOpenAICompatibleExpectsOutput(t *testing.T) {
	for _, host := range []string{"api.mistral.ai", "api.x.ai"} {
		p := providers.OpenAICompatible(host, 0, 1e6)
		request := func(path, most string) *http.Request {
			return postJSON(t, "https://"+host+path, `{"model":"m","input":"`+strings.Repeat("one ", 97)+`"`+most+`}`) // 100 tokens, with the keys
		}
		check := func(path, most string, want int64) {
			t.Helper()
			if got := p.Cost(request(path, most))["tokens"]; got < want || got > want+5 {
				t.Errorf("%s%s%s: %d tokens, want %d", host, path, most, got, want)
			}
		}
		const chat, unlimited, few = "/v1/chat/completions", `,"max_tokens":128000`, `,"max_completion_tokens":50`
		check(chat, unlimited, 4_100)
		check(chat, few, 150)
		for range 60 {
			p.Settle(request(chat, unlimited))(throttle.Cost{"tokens": 900})
		}
		check(chat, unlimited, 900)
		check(chat, few, 150)
		p.Settle(request(chat, unlimited))(throttle.Cost{"tokens": 0}) // a refusal teaches nothing
		check(chat, unlimited, 900)
		check("/v1/embeddings", "", 100)
	}
}

// A cerebras has two buckets: of tokens without those of its cache, and of three times as many. It judges a
// request by its text, of about 100 tokens, and its maximum or else 16,384, and counts both at the end by what
// was used.
type cerebras struct {
	cached, output float64 // tokens of an answer

	mu              sync.Mutex
	uncached, total refilled
	served, refused int
}

func newCerebras(limit, cached, output float64) *cerebras {
	return &cerebras{cached: cached, output: output, uncached: newRefilled(limit), total: newRefilled(3 * limit)}
}

func (api *cerebras) RoundTrip(req *http.Request) (*http.Response, error) {
	var body struct {
		Most float64 `json:"max_completion_tokens"`
	}
	if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
		return nil, err
	}
	time.Sleep(50 * time.Millisecond)
	const input = 100
	reserved := input + cmp.Or(body.Most, 16_384)
	if !api.take(reserved) {
		return response(429, `{"message":"Tokens per minute limit exceeded - too many tokens processed.","param":"quota"}`), nil
	}
	time.Sleep(time.Second)
	api.mu.Lock()
	defer api.mu.Unlock()
	api.uncached.take(input + api.output - reserved)
	api.total.take(input + api.cached + api.output - reserved)
	return response(200, fmt.Sprintf(`{"usage":{"prompt_tokens":%.0f,"completion_tokens":%.0f,"total_tokens":%.0f,"prompt_tokens_details":{"cached_tokens":%.0f}}}`,
		input+api.cached, api.output, input+api.cached+api.output, api.cached)), nil
}

// take reserves tokens in both buckets, if there are as many.
func (api *cerebras) take(n float64) bool {
	api.mu.Lock()
	defer api.mu.Unlock()
	api.uncached.take(0)
	api.total.take(0)
	if min(api.uncached.left, api.total.left) < n {
		api.refused++
		return false
	}
	api.served++
	api.uncached.take(n)
	api.total.take(n)
	return true
}

// Cerebras is asked for no more than it has room for, with a maximum and without. Cached tokens count in one
// of its two buckets only.
func TestCerebrasBuckets(t *testing.T) {
	for _, test := range []struct {
		name           string
		most           string
		cached, output float64
		limits         float64 // tokens a minute that the answers use of the bucket that decides
		each           float64
	}{
		{"without a maximum", "", 0, 500, 60_000, 600},
		{"with a maximum", `,"max_completion_tokens":2000`, 0, 500, 60_000, 600},
		{"cached", "", 1_000, 500, 60_000, 600},
		{"more cached than counts", "", 2_400, 500, 180_000, 3_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				api := newCerebras(60_000, test.cached, test.output)
				saturate(t, over(t, providers.OpenAICompatible("api.cerebras.ai", 10_000, 60_000), api), 20, 10*time.Minute, func(int) *http.Request {
					return postJSON(t, "https://api.cerebras.ai/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("one ", 95)+`"}]`+test.most+`}`)
				})
				want := 0.9 * 10 * test.limits / test.each
				if t.Logf("%d served, %d refused", api.served, api.refused); api.refused > 0 || float64(api.served) < want {
					t.Errorf("%d served and %d refused, want at least %.0f and none", api.served, api.refused, want)
				}
			})
		})
	}
}

// Where the provider counts what was used, the tokens that a response reports replace the estimate.
func TestOpenAICompatibleSettles(t *testing.T) {
	usage := `{"usage":{"prompt_tokens":8,"completion_tokens":10,"total_tokens":18}}`
	for _, test := range []struct {
		host  string
		reply replying
		want  int
	}{
		{"api.mistral.ai", replying{Header: map[string]string{"x-ratelimit-tokens-query-cost": "18"}}, 100},
		{"api.mistral.ai", replying{Body: usage}, 100},
		{"api.x.ai", replying{Body: usage}, 100},
		{"api.x.ai", replying{Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"choices\":[]}\n\ndata: " + usage + "\n\ndata: [DONE]\n\n"}, 100},
		{"api.x.ai", replying{Header: map[string]string{"Content-Type": "text/event-stream"}, Body: "data: {\"type\":\"response.completed\",\"response\":" + usage + "}\n\n"}, 100},
		{"api.cerebras.ai", replying{Body: usage}, 100},
		{"api.groq.com", replying{Body: usage}, 2},
		{"gateway.example.com", replying{Body: usage}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt, n := over(t, providers.OpenAICompatible(test.host, 60_000, 10_000), &test.reply), 0
			for ; n < 100; n++ {
				if _, _, took := send(t, rt, ask(t, test.host, "m", 10, 4_900)); took > 0 {
					break
				}
			}
			if n != test.want {
				t.Errorf("%s: %d requests before one waited, want %d", test.host, n, test.want)
			}
		})
	}
}

// Headers that report a day, or a second, change no minute.
func TestOpenAICompatibleWindows(t *testing.T) {
	for host, header := range map[string]map[string]string{
		"api.groq.com":     {"x-ratelimit-limit-requests": "1000", "x-ratelimit-remaining-requests": "2", "x-ratelimit-reset-requests": "23h57m"},
		"api.together.xyz": {"x-ratelimit-limit": "10", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "1"},
		"api.cerebras.ai":  {"x-ratelimit-limit-requests-day": "2400", "x-ratelimit-remaining-requests-day": "2", "x-ratelimit-remaining-requests-hour": "3"},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt := over(t, providers.OpenAICompatible(host, 30, 0), &replying{Header: header})
			for n := range 30 {
				if _, _, took := send(t, rt, ask(t, host, "m", 1, 1)); took > 0 {
					t.Errorf("%s: request %d waited %v", host, n+1, took)
					break
				}
			}
		})
	}
}

// response returns a response of JSON.
func response(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

func refusal(status int, body string) func() fakeapi.Reply {
	return func() fakeapi.Reply { return fakeapi.Reply{Status: status, Body: body} }
}
