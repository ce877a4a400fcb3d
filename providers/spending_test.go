package providers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	results "github.com/apithrottle/throttle/internal/outcome"
	"github.com/apithrottle/throttle/providers"
)

// priced returns prices of all models of an API, in picodollars: of a thousand tokens of input they are a
// thousand nanodollars.
func priced(api string) providers.Price {
	return providers.Price{API: api, Model: "*", Input: 1_000, CachedInput: 100, CacheWrite: 1_250, HourCacheWrite: 2_000, Output: 5_000, Batch: 50}
}

// A paidAPI answers with the responses that it is given, the last one again and again. A response with
// status 0 is an error of the connection.
type paidAPI struct {
	mu      sync.Mutex
	replies []paidReply
	sent    int
}

type paidReply struct {
	status     int
	kind, body string
	header     map[string]string
	err        error
}

func (r *paidAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	next := r.replies[0]
	if len(r.replies) > 1 {
		r.replies = r.replies[1:]
	}
	if next.err != nil {
		return nil, next.err
	}
	header := http.Header{"Content-Type": {next.kind}}
	for name, value := range next.header {
		header.Set(name, value)
	}
	return &http.Response{StatusCode: next.status, Header: header, Body: io.NopCloser(strings.NewReader(next.body)), Request: req}, nil
}

func ok(body string) paidReply { return paidReply{status: 200, kind: "application/json", body: body} }

func events(data ...string) paidReply {
	return paidReply{status: 200, kind: "text/event-stream", body: "data: " + strings.Join(data, "\n\ndata: ") + "\n\n"}
}

// budgetOf returns the budget that a text describes.
func budgetOf(t *testing.T, text string) *throttle.Limiter {
	t.Helper()
	p, err := throttle.ParsePolicy("spending", text)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.New(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// spent returns how many nanodollars of a budget are used.
func spent(t *testing.T, budget *throttle.Limiter) int64 {
	t.Helper()
	s, err := budget.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Used
}

// spends returns a transport of an API whose requests cost dollars.
func spends(t *testing.T, s *providers.Spending, p providers.Provider, api string, base http.RoundTripper) *throttle.Transport {
	t.Helper()
	rt, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Limit(rt, api); err != nil {
		t.Fatal(err)
	}
	rt.Base = base
	return rt
}

// buy sends a request and reads the response. It returns what the request reports to have cost, -1 for nothing.
func buy(t *testing.T, rt http.RoundTripper, method, url, body string) (nanodollars int64, err error) {
	t.Helper()
	nanodollars = -1
	ctx := results.Spending(t.Context(), func(n int64) { nanodollars = max(0, nanodollars) + n })
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rt.RoundTrip(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return nanodollars, err
}

const (
	chatURL     = "https://api.openai.com/v1/chat/completions"
	messagesURL = "https://api.anthropic.com/v1/messages"
	contentURL  = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:"
)

// Every usage costs its tokens, each at its price, whatever the protocol.
func TestUsageCostsItsTokens(t *testing.T) {
	openAI, anthropic := providers.OpenAI(1_000, 1_000_000), providers.Anthropic(1_000, 1_000_000, 1_000_000)
	gemini := providers.Gemini(1_000, 1_000_000, 0)
	const chat, message = `{"model":"gpt-4o","max_tokens":10,"messages":[]}`, `{"model":"claude-sonnet-4-5","max_tokens":10,"messages":[]}`
	for _, tc := range []struct {
		name      string
		p         providers.Provider
		url       string
		body      string
		paidReply paidReply
		want      int64
	}{
		{"chat", openAI, chatURL, chat, ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`), 1000 + 100},
		{"cached chat", openAI, chatURL, chat, ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":400}}}`), 600 + 40 + 100},
		{"part of a nanodollar", openAI, chatURL, chat, ok(`{"usage":{"prompt_tokens":1001,"completion_tokens":0,"total_tokens":1001,"prompt_tokens_details":{"cached_tokens":1}}}`), 1001},
		{"stream of a chat", openAI, chatURL, chat, events(`{"usage":null}`, `{"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`, `[DONE]`), 1100},
		{"response", openAI, "https://api.openai.com/v1/responses", `{"model":"gpt-5","input":"hi"}`,
			ok(`{"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":10},"total_tokens":1020}}`), 740},
		{"stream of a response", openAI, "https://api.openai.com/v1/responses", `{"model":"gpt-5","input":"hi","stream":true}`,
			events(`{"type":"response.created","response":{"usage":null}}`, `{"type":"response.completed","response":{"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400},"output_tokens":20,"total_tokens":1020}}}`), 740},
		{"response that writes the cache", openAI, "https://api.openai.com/v1/responses", `{"model":"gpt-6","input":"hi"}`,
			ok(`{"usage":{"input_tokens":1000,"input_tokens_details":{"cached_tokens":400,"cache_write_tokens":200},"output_tokens":20,"total_tokens":1020}}`), 400 + 40 + 250 + 100},
		{"embedding", openAI, "https://api.openai.com/v1/embeddings", `{"model":"text-embedding-3-small","input":"hi"}`, ok(`{"usage":{"prompt_tokens":1000,"total_tokens":1000}}`), 1000},
		{"flex", openAI, chatURL, `{"model":"gpt-5","service_tier":"flex","messages":[]}`, ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`), 550},
		{"message", anthropic, messagesURL, message, ok(`{"usage":{"input_tokens":1000,"output_tokens":20}}`), 1100},
		{"cached message", anthropic, messagesURL, message,
			ok(`{"usage":{"input_tokens":1000,"cache_read_input_tokens":400,"cache_creation_input_tokens":300,"cache_creation":{"ephemeral_5m_input_tokens":200,"ephemeral_1h_input_tokens":100},"output_tokens":20}}`), 1000 + 40 + 250 + 200 + 100},
		{"stream of a message", anthropic, messagesURL, message, events(
			`{"type":"message_start","message":{"usage":{"input_tokens":1000,"cache_read_input_tokens":400,"cache_creation_input_tokens":200,"output_tokens":1}}}`,
			`{"type":"message_delta","usage":{"input_tokens":1000,"cache_read_input_tokens":400,"cache_creation_input_tokens":200,"output_tokens":20}}`), 1000 + 40 + 250 + 100},
		{"message as a chat", anthropic, "https://api.anthropic.com/v1/chat/completions", message, ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`), 1100},
		{"content", gemini, contentURL + "generateContent", `{"contents":[]}`,
			ok(`{"usageMetadata":{"promptTokenCount":1000,"cachedContentTokenCount":400,"toolUsePromptTokenCount":7,"candidatesTokenCount":15,"thoughtsTokenCount":5,"totalTokenCount":1027}}`), 607 + 40 + 100},
		{"stream of content", gemini, contentURL + "streamGenerateContent?alt=sse", `{"contents":[]}`,
			events(`{"usageMetadata":{"promptTokenCount":1000,"candidatesTokenCount":5,"totalTokenCount":1005}}`, `{"usageMetadata":{"promptTokenCount":1000,"candidatesTokenCount":20,"totalTokenCount":1020}}`), 1100},
		{"list of content", gemini, contentURL + "streamGenerateContent", `{"contents":[]}`,
			ok(`[{"usageMetadata":{"promptTokenCount":1000,"totalTokenCount":1005}},{"usageMetadata":{"promptTokenCount":1000,"candidatesTokenCount":20,"totalTokenCount":1020}}]`), 1100},
		{"interaction", gemini, "https://generativelanguage.googleapis.com/v1beta/interactions", `{"model":"gemini-3-pro","input":"hi"}`,
			ok(`{"usage":{"total_input_tokens":1000,"total_cached_tokens":400,"total_output_tokens":15,"total_thought_tokens":5,"total_tokens":1020}}`), 740},
		{"deployment", providers.AzureOpenAI(600, 1_000_000), "https://east.openai.azure.com/openai/deployments/gpt-4o/chat/completions", `{"messages":[]}`,
			ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":400}}}`), 740},
		{"thoughts beside the output", providers.OpenAICompatible("api.x.ai", 1_000, 1_000_000), "https://api.x.ai/v1/chat/completions", chat,
			ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":5,"total_tokens":1020,"completion_tokens_details":{"reasoning_tokens":15}}}`), 1100},
		{"two names of the cache", providers.OpenAICompatible("gateway.example", 1_000, 1_000_000), "https://gateway.example/v1/chat/completions", chat,
			ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":400},"cache_read_input_tokens":400,"cache_creation_input_tokens":0}}`), 740},
		{"cache hits of DeepSeek", providers.OpenAICompatible("api.deepseek.com", 1_000, 1_000_000), "https://api.deepseek.com/chat/completions", chat,
			ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020,"prompt_tokens_details":{"cached_tokens":400},"prompt_cache_hit_tokens":400,"prompt_cache_miss_tokens":600}}`), 740},
		{"two names of the input", providers.OpenAICompatible("gateway.example", 1_000, 1_000_000), "https://gateway.example/v1/chat/completions", chat,
			ok(`{"usage":{"prompt_tokens":1000,"input_tokens":1000,"completion_tokens":20,"output_tokens":20,"total_tokens":1020}}`), 1100},
		{"converse", providers.Bedrock(0, 1_000_000), "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-v1:0/converse", `{"messages":[]}`,
			ok(`{"usage":{"inputTokens":1000,"cacheReadInputTokens":400,"cacheWriteInputTokens":200,"outputTokens":20}}`), 1000 + 40 + 250 + 100},
		{"invoked model", providers.Bedrock(0, 1_000_000), "https://bedrock-runtime.us-east-1.amazonaws.com/model/us.anthropic.claude-sonnet-4-5-v1:0/invoke", `{"messages":[]}`,
			paidReply{status: 200, kind: "application/json", body: `{"usage":{"input_tokens":1000,"cache_read_input_tokens":400,"output_tokens":20}}`,
				header: map[string]string{"X-Amzn-Bedrock-Input-Token-Count": "1000", "X-Amzn-Bedrock-Output-Token-Count": "20", "X-Amzn-Bedrock-Cache-Read-Input-Token-Count": "400"}}, 1000 + 40 + 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := budgetOf(t, "$1/month")
				s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced(tc.p.Name)}}
				rt := spends(t, s, tc.p, tc.p.Name, &paidAPI{replies: []paidReply{tc.paidReply}})
				for n := int64(1); n <= 3; n++ {
					cost, err := buy(t, rt, "POST", tc.url, tc.body)
					if err != nil || cost != tc.want {
						t.Fatalf("a request cost %d, %v; want %d", cost, err, tc.want)
					}
					synctest.Wait()
					if got := spent(t, budget); got != n*tc.want {
						t.Errorf("%d nanodollars are spent, want %d", got, n*tc.want)
					}
					time.Sleep(time.Minute)
				}
			})
		})
	}
}

// A request that no response settles costs nothing if it was refused or not sent, and else its estimate: here
// four tokens of input and at most ten of output.
func TestUnsettledRequests(t *testing.T) {
	const body = `{"model":"gpt-4o","max_tokens":10,"messages":[]}`
	const estimate = 8 + 10*5 // the tokens of the text above, and the most output
	for name, tc := range map[string]struct {
		paidReply paidReply
		base      http.RoundTripper
		want      int64
	}{
		"refused":          {paidReply: paidReply{status: 429, kind: "application/json", body: `{}`}, want: 0},
		"redirected":       {paidReply: paidReply{status: 307, kind: "text/html", header: map[string]string{"Location": chatURL}}, want: 0},
		"wrong":            {paidReply: paidReply{status: 400, kind: "application/json", body: `{}`}, want: 0},
		"failed":           {paidReply: paidReply{status: 500, kind: "application/json", body: `{}`}, want: estimate},
		"without a usage":  {paidReply: ok(`{}`), want: estimate},
		"stream without":   {paidReply: events(`{"usage":null}`, `[DONE]`), want: estimate},
		"without response": {paidReply: paidReply{err: io.ErrUnexpectedEOF}, want: estimate},
		"not sent": {base: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, io.ErrClosedPipe
		}}, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := budgetOf(t, "$1/month")
				if tc.base == nil {
					tc.base = &paidAPI{replies: []paidReply{tc.paidReply}}
				}
				p := providers.OpenAI(1_000, 1_000_000)
				rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, p, "openai", tc.base)
				cost, _ := buy(t, rt, "POST", chatURL, body)
				synctest.Wait()
				if got := spent(t, budget); got != tc.want || cost != tc.want {
					t.Errorf("%d nanodollars are spent and %d are reported, want %d", got, cost, tc.want)
				}
			})
		})
	}
}

// A stream that the caller leaves costs the input that it has reported, and the output that was expected.
func TestStreamThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, p := budgetOf(t, "$1/month"), providers.Anthropic(1_000, 1_000_000, 1_000_000)
		out, in := io.Pipe()
		base := roundTrip(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: out, Request: req}, nil
		})
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("anthropic")}}, p, "anthropic", base)
		ctx, cancel := context.WithCancel(t.Context())
		var reported int64
		ctx = results.Spending(ctx, func(n int64) { reported += n })
		req, _ := http.NewRequestWithContext(ctx, "POST", messagesURL, strings.NewReader(`{"model":"claude-sonnet-4-5","max_tokens":10,"messages":[]}`))
		resp, err := rt.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		const start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":1000,\"output_tokens\":1}}}\n\n"
		go func() { _, _ = io.WriteString(in, start) }()
		if _, err := io.ReadFull(resp.Body, make([]byte, len(start))); err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		resp.Body.Close()
		if want := int64(1000 + 10*5); spent(t, budget) != want || reported != want {
			t.Errorf("%d nanodollars are spent and %d are reported, want %d", spent(t, budget), reported, want)
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func TestModelWithoutPrice(t *testing.T) {
	budget, p := budgetOf(t, "$1/month"), providers.OpenAI(1_000, 1_000_000)
	api := &paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`)}}
	known, fast := priced("openai"), priced("openai")
	known.Model, fast.Model, fast.Input = "gpt-4o*", "gpt-4o-priority", 2_000
	s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{known}}
	rt := spends(t, s, p, "openai", api)
	for body, model := range map[string]string{
		`{"model":"gpt-9"}`: `"gpt-9"`,
		`{}`:                `""`,
		`{"model":"gpt-4o","service_tier":"priority"}`: `"gpt-4o-priority"`,
	} {
		_, err := buy(t, rt, "POST", chatURL, body)
		if !errors.Is(err, providers.ErrNoPrice) || !strings.Contains(err.Error(), "openai has none for "+model+": add a Price with this API and Model to Spending.Prices, or set Spending.Default") {
			t.Errorf("%s: error %v, want ErrNoPrice, the model %s and what to do", body, err, model)
		}
	}
	if status, err := rt.Route(mustRequest(t, "POST", chatURL, `{"model":"gpt-4o"}`)).Status(t.Context()); err != nil || status.Tiers[0].Used > 0 || api.sent > 0 || spent(t, budget) > 0 {
		t.Errorf("%d requests were sent and the status is %v, %v; want none, and nothing used", api.sent, status, err)
	}
	if n, err := buy(t, rt, "GET", "https://api.openai.com/v1/models", ""); err != nil || n != -1 {
		t.Errorf("a request that no model reads cost %d, %v; want none", n, err)
	}
	for _, path := range []string{"responses/input_tokens", "fine_tuning/jobs"} {
		if n, err := buy(t, rt, "POST", "https://api.openai.com/v1/"+path, `{"model":"gpt-9"}`); err != nil || n != -1 {
			t.Errorf("%s cost %d, %v; want none, because it runs no model", path, n, err)
		}
	}
	s = &providers.Spending{Limiter: budget, Prices: providers.PriceList{known, fast}, Default: &providers.Price{Input: 3_000, Output: 1}}
	rt = spends(t, s, p, "openai", api)
	for body, want := range map[string]int64{
		`{"model":"gpt-9"}`:                            3_001,
		`{"model":"gpt-4o-mini"}`:                      1_100,
		`{"model":"gpt-4o","service_tier":"priority"}`: 2_100,
	} {
		if n, err := buy(t, rt, "POST", chatURL, body); err != nil || n != want {
			t.Errorf("%s: cost %d, %v; want %d", body, n, err, want)
		}
	}
}

func mustRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestLimitErrors(t *testing.T) {
	list := providers.PriceList{priced("openai")}
	limited := &throttle.Transport{}
	if err := (&providers.Spending{Prices: list, Limiter: budgetOf(t, "$1/day")}).Limit(limited, "openai"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		s    *providers.Spending
		t    *throttle.Transport
		want string
	}{
		"no price":   {&providers.Spending{Prices: providers.PriceList{priced("gemini")}}, &throttle.Transport{}, "Spending of openai: providers: no price is known: add its prices to Prices, or set Default"},
		"pool":       {&providers.Spending{Prices: list}, &throttle.Transport{Pool: new(throttle.Pool)}, "Spending of openai: the Transport has a Pool"},
		"meter":      {&providers.Spending{Prices: list}, &throttle.Transport{Meter: func(*http.Response) throttle.Meter { return nil }}, "Spending of openai: the Transport has a Pool, a Meter"},
		"no budget":  {&providers.Spending{Prices: list}, &throttle.Transport{}, "Spending of openai: there is no budget: set Limiter"},
		"twice":      {&providers.Spending{Prices: list, Limiter: budgetOf(t, "$1/month")}, limited, "cost dollars already: give one budget several tiers, such as $50/day + $500/month"},
		"profileFor": {&providers.Spending{Prices: list}, &throttle.Transport{ProfileFor: func(*http.Request) *answers.Profile { return nil }}, "a ProfileFor"},
	} {
		if err := tc.s.Limit(tc.t, "openai"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v\nwant %q in it", name, err, tc.want)
		}
	}
}

// Requests in flight at once never spend more than the budget, while their estimates are no less than what
// they cost, and else at most the difference. The error of the first one that is refused names the dollars and
// the end of the month.
func TestBudgetInDollarsIsNotExceeded(t *testing.T) {
	const limit, callers, most = 1_000_000, 20, 4 + 200*5 // nanodollars, those who ask at once, and the most that a request costs
	for name, tc := range map[string]struct {
		output func() int
		above  int64
	}{
		"equal answers":  {func() int { return 150 }, 0},
		"random answers": {func() int { return rand.IntN(200) }, callers * most},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := budgetOf(t, "$0.001/month")
				base := roundTrip(func(req *http.Request) (*http.Response, error) {
					time.Sleep(rand.N(time.Second))
					body := fmt.Sprintf(`{"usage":{"prompt_tokens":4,"completion_tokens":%d}}`, tc.output())
					return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
				})
				rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, providers.OpenAI(1_000_000, 1_000_000_000), "openai", base)
				var all sync.WaitGroup
				var sum atomic.Int64
				for range callers {
					all.Go(func() {
						for {
							n, err := buy(t, rt, "POST", chatURL, `{"model":"gpt-4o","max_tokens":200,"messages":[]}`)
							if err != nil {
								const want = `throttle: policy "spending": budget is used up until 2000-02-01T00:00:00Z: tier $0.001/month`
								if !errors.Is(err, throttle.ErrExhausted) || err.Error() != want {
									t.Errorf("error %v, want %s", err, want)
								}
								return
							}
							sum.Add(n)
						}
					})
				}
				all.Wait()
				if got := spent(t, budget); got != sum.Load() || got > limit+tc.above || got <= limit-most {
					t.Errorf("%d nanodollars are spent and %d are reported, want the same, and nearly %d", got, sum.Load(), limit)
				}
				time.Sleep(time.Until(time.Date(2000, 2, 1, 0, 0, 1, 0, time.UTC)))
				if n, err := buy(t, rt, "POST", chatURL, `{"model":"gpt-4o","max_tokens":200,"messages":[]}`); err != nil || n < 4 {
					t.Errorf("in the next month a request cost %d, %v", n, err)
				}
			})
		})
	}
}

// A budget that is raised admits again what it refused, with what is spent.
func TestBudgetInDollarsIsRaised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$0.000002/month")
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, providers.OpenAI(1_000, 1_000_000), "openai",
			&paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":180}}`)}})
		const body = `{"model":"gpt-4o","max_tokens":200,"messages":[]}`
		if n, err := buy(t, rt, "POST", chatURL, body); err != nil || n != 1_900 {
			t.Fatalf("cost %d, %v; want 1900", n, err)
		}
		if _, err := buy(t, rt, "POST", chatURL, body); !errors.Is(err, throttle.ErrExhausted) {
			t.Fatalf("error %v, want ErrExhausted", err)
		}
		raised, err := throttle.ParsePolicy("spending", "$0.000004/month")
		if err != nil {
			t.Fatal(err)
		}
		if err := budget.SetPolicy(t.Context(), raised); err != nil {
			t.Fatal(err)
		}
		if n, err := buy(t, rt, "POST", chatURL, body); err != nil || n != 1_900 || spent(t, budget) != 3_800 {
			t.Errorf("cost %d, %v, with %d spent; want 1900 and 3800", n, err, spent(t, budget))
		}
	})
}

// An alert comes when what is settled reaches the percentage, and not with the estimate. It names the dollars.
func TestAlertInDollars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := throttle.ParsePolicy("spending", "$0.000005/month | alert_at=80")
		if err != nil {
			t.Fatal(err)
		}
		var alerts []throttle.Alert
		policy.Alert = func(a throttle.Alert) { alerts = append(alerts, a) }
		budget, err := throttle.New(policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, providers.OpenAI(1_000, 1_000_000), "openai",
			&paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":0,"total_tokens":1000}}`)}})
		for n := range 4 {
			if _, err := buy(t, rt, "POST", chatURL, `{"model":"gpt-4o","max_tokens":200,"messages":[]}`); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if want := n / 3; len(alerts) != want {
				t.Errorf("%d alerts after $0.00000%d, want %d", len(alerts), n+1, want)
			}
		}
		if a := alerts[0]; a.Tier != "$0.000005/month" || a.Percent != 80 || a.Used != 4_000 || a.Limit != 5_000 {
			t.Errorf("got alert %+v", a)
		}
	})
}

// A request that is canceled while it waits for a quota inside the budget, or that this quota refuses, costs
// nothing.
func TestQuotaInsideTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget, p := budgetOf(t, "$1/month"), providers.OpenAI(1, 1_000_000)
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, p, "openai",
			&paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`)}})
		const body = `{"model":"gpt-4o","max_tokens":10,"messages":[]}`
		if _, err := buy(t, rt, "POST", chatURL, body); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the quota admits one a minute
		defer cancel()
		if _, err := rt.RoundTrip(mustRequest(t, "POST", chatURL, body).WithContext(ctx)); !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("error %v, want ErrDeadline", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := rt.RoundTrip(mustRequest(t, "POST", chatURL, body).WithContext(ctx)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want Canceled", err)
		}
		synctest.Wait()
		if got := spent(t, budget); got != 1_100 {
			t.Errorf("%d nanodollars are spent, want 1100", got)
		}
	})
}

// A refused budget charges none of the quotas inside it.
func TestUsedUpBudgetChargesNoQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$0.000001/month")
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, providers.OpenAI(1_000, 1_000_000), "openai", &paidAPI{replies: []paidReply{ok(`{}`)}})
		req := mustRequest(t, "POST", chatURL, `{"model":"gpt-4o","max_tokens":1000,"messages":[]}`)
		_, err := rt.RoundTrip(req)
		const want = "cost of $0.000005 exceeds the capacity of tier $0.000001/month"
		if !errors.Is(err, throttle.ErrExceedsCapacity) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
		status, err := rt.Route(req).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tier := range status.Tiers {
			if tier.Used > 0 {
				t.Errorf("%v, want nothing used", tier)
			}
		}
	})
}

// In shadow mode a budget counts, and refuses nothing. It lies around no quotas.
func TestShadowOfABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$0.000001/month | shadow=true")
		s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}
		rt := &throttle.Transport{Base: &paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":400,"completion_tokens":20,"total_tokens":420}}`)}}}
		if err := s.Limit(rt, "openai"); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if n, err := buy(t, rt, "POST", chatURL, `{"model":"gpt-4o","max_tokens":20,"messages":[]}`); err != nil || n != 500 {
				t.Errorf("cost %d, %v; want 500", n, err)
			}
		}
		synctest.Wait()
		if got := spent(t, budget); got != 1_000 {
			t.Errorf("%d nanodollars are spent by two requests that fit, want 1000", got)
		}
		nested := spends(t, s, providers.OpenAI(1_000, 1_000_000), "openai", rt.Base)
		if _, err := buy(t, nested, "POST", chatURL, `{"model":"gpt-4o"}`); err == nil || !strings.Contains(err.Error(), "Shadow is true") {
			t.Errorf("error %v, want one that names Shadow", err)
		}
	})
}

// Two APIs spend one budget, and a batch's results are charged at its price.
func TestOneBudgetOfTwoAPIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$0.000003/month")
		s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai"), priced("anthropic")}}
		chats := spends(t, s, providers.OpenAI(1_000, 1_000_000), "openai", &paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":1000,"completion_tokens":20,"total_tokens":1020}}`)}})
		messages := spends(t, s, providers.Anthropic(1_000, 1_000_000, 1_000_000), "anthropic", &paidAPI{replies: []paidReply{ok(`{"usage":{"input_tokens":1000,"output_tokens":20}}`)}})
		for _, rt := range []http.RoundTripper{chats, messages} {
			url := map[bool]string{true: chatURL, false: messagesURL}[rt == http.RoundTripper(chats)]
			if n, err := buy(t, rt, "POST", url, `{"model":"any","max_tokens":20,"messages":[]}`); err != nil || n != 1_100 {
				t.Errorf("%s: cost %d, %v; want 1100", url, n, err)
			}
		}
		var reported int64
		ctx := results.Spending(t.Context(), func(n int64) { reported += n })
		used := providers.Usage{Input: 1_000, CachedInput: 400, Output: 200, Batch: true}
		if n, err := s.Charge(ctx, "anthropic", "claude-haiku-4-5", used); err != nil || n != 1_020 || reported != 1_020 {
			t.Errorf("a batch cost %d, %v, with %d reported; want 1020", n, err, reported)
		}
		if n, err := s.Charge(ctx, "anthropic", "claude-haiku-4-5", used); err != nil || n != 1_020 {
			t.Errorf("a batch beyond the budget cost %d, %v; want 1020", n, err)
		}
		if got := spent(t, budget); got != 4_240 {
			t.Errorf("%d nanodollars are spent, want 4240", got)
		}
		if _, err := s.Charge(ctx, "gemini", "gemini-3-pro", used); !errors.Is(err, providers.ErrNoPrice) {
			t.Errorf("error %v, want ErrNoPrice", err)
		}
		if _, err := buy(t, chats, "POST", chatURL, `{"model":"any","max_tokens":1,"messages":[]}`); !errors.Is(err, throttle.ErrExhausted) {
			t.Errorf("error %v, want ErrExhausted", err)
		}
	})
}

// A sum of more than a tier counts of one request is charged whole.
func TestLargeSumIsCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &providers.Spending{Limiter: budgetOf(t, "$9000/month"), Prices: providers.PriceList{{API: "api.x.ai", Model: "*", Input: 2_000_000}}}
		const want int64 = 2_500_000_000_000 // nanodollars
		n, err := s.Charge(t.Context(), "api.x.ai", "grok-4-fast", providers.Usage{Input: want / 2_000})
		if got := spent(t, s.Limiter); err != nil || n != want || got != want {
			t.Errorf("%d nanodollars were charged, %v, and %d are spent; want %d", n, err, got, want)
		}
	})
}

// Where prices are of requests, a request costs that of its path.
func TestPriceOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$1/day")
		s := &providers.Spending{Limiter: budget, Prices: providers.PriceList{
			{API: "lookups", Model: "/v1/lookups/*", Request: 5_000_000_000}, {API: "lookups", Model: "/v1/status"},
		}}
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rt := &throttle.Transport{Limiter: l, Base: &paidAPI{replies: []paidReply{ok(`{}`), ok(`{}`), {status: 404, kind: "text/plain"}}}}
		if err := s.Limit(rt, "lookups"); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			path string
			want int64
		}{{"lookups/1", 5_000_000}, {"status", 0}, {"lookups/2", 0}} {
			if n, err := buy(t, rt, "GET", "https://lookups.example/v1/"+tc.path, ""); err != nil || n != tc.want {
				t.Errorf("%s: cost %d, %v; want %d", tc.path, n, err, tc.want)
			}
		}
		if _, err := buy(t, rt, "GET", "https://lookups.example/v2", ""); !errors.Is(err, providers.ErrNoPrice) {
			t.Errorf("error %v, want ErrNoPrice", err)
		}
	})
}

// The estimate learns from answers: a budget that has room for one answer of the most tokens admits several
// usual ones at once.
func TestEstimateInDollarsLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := budgetOf(t, "$0.0002/month")
		rt := spends(t, &providers.Spending{Limiter: budget, Prices: providers.PriceList{priced("openai")}}, providers.OpenAI(1_000_000, 1_000_000_000), "openai",
			&paidAPI{replies: []paidReply{ok(`{"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}`)}})
		const body = `{"model":"gpt-4o","messages":[]}`
		estimate := func() int64 {
			req := mustRequest(t, "POST", chatURL, body)
			rt.Route(req)
			return rt.Cost(req)[throttle.Nanodollars]
		}
		if first := estimate(); first < 4_000*5 || first > 4_010*5 {
			t.Errorf("the first estimate is %d nanodollars, want 4,000 tokens of output", first)
		}
		for range 100 {
			if _, err := buy(t, rt, "POST", chatURL, body); err != nil {
				t.Fatal(err)
			}
		}
		if last := estimate(); last < 100 || last > 300 {
			t.Errorf("the estimate after answers of 100 nanodollars is %d, want at most 300", last)
		}
	})
}
