package providers_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// completion returns an answer of the Chat Completions API.
func completion(q *question) string {
	return fmt.Sprintf(`{"id":"x","object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":%.0f,"completion_tokens":%.0f,"total_tokens":%.0f,"prompt_tokens_details":{"cached_tokens":%.0f}}}`,
		q.model, q.input, q.output, q.input+q.output, q.cached)
}

// cerebrasRules returns the rules of Cerebras, with a limit of uncached tokens a minute.
//
// A request is refused before it runs if its estimate exceeds what is left: its input and
// max_completion_tokens, or an upper bound without it. The estimate is corrected when the request
// has been processed. Each model of an organization has a bucket of uncached tokens and one of all
// tokens, which is three times as large, and both refill all the time. Cached tokens don't count as
// uncached. https://inference-docs.cerebras.ai/support/rate-limits, read on 2026-11-28.
//
// The upper bound is not published. Clients measured 16,384, which also caps max_completion_tokens:
// https://github.com/dcdpr/jp/pull/1085, read on 2026-11-28. Cerebras' own changes to clients say
// that the maximum is reserved in full: https://github.com/cline/cline/pull/7881 and
// https://github.com/anomalyco/opencode/pull/5036, read on 2026-11-28.
//
// The page doesn't say whether the estimate of cached input counts as uncached until then. It does
// here, because the estimate is of total tokens. Refusals and headers are of
// providers/testdata/fixtures, which tells of accounts with and without headers. The page doesn't
// say which bucket the headers report: here it is the one of uncached tokens.
func cerebrasRules(uncached float64, headers bool) rules {
	const bound, block = 16_384, 128
	pools := func(s *llm, q *question) (requests, fresh, all *minutePool) {
		return s.bucket(q.model+" requests", 300), s.bucket(q.model+" uncached", uncached), s.bucket(q.model+" all", 3*uncached)
	}
	header := func(s *llm, q *question) http.Header {
		if !headers {
			return jsonHeader()
		}
		requests, fresh, _ := pools(s, q)
		return jsonHeader("x-ratelimit-limit-requests-minute", "300", "x-ratelimit-remaining-requests-minute", whole(requests.left()),
			"x-ratelimit-limit-tokens-minute", whole(uncached), "x-ratelimit-remaining-tokens-minute", whole(fresh.left()))
	}
	return rules{start: 100 * time.Millisecond, speed: 2000,
		demands: func(s *llm, q *question) []demand {
			most := q.number("max_completion_tokens", "max_tokens")
			if most == 0 {
				most = bound
			}
			if q.cached = 0; s.cached[q.system] {
				q.cached = math.Floor(tokensIn(q.system)/block) * block
			}
			requests, fresh, all := pools(s, q)
			estimate := q.input + min(most, bound)
			return []demand{{requests, 1, 1, 1}, {fresh, estimate, estimate, q.input - q.cached + q.output}, {all, estimate, estimate, q.input + q.output}}
		},
		answer: func(s *llm, q *question) reply {
			s.cached[q.system] = true
			return reply{200, header(s, q), completion(q)}
		},
		refusal: func(s *llm, q *question, d demand) reply {
			h := header(s, q)
			if headers {
				h.Set("Retry-After", seconds(d.pool.wait(d.need)))
			}
			return reply{429, h, `{"message":"Tokens per minute limit exceeded - too many tokens processed.","type":"too_many_tokens_error","param":"quota","code":"token_quota_exceeded"}`}
		},
	}
}

// Cerebras reserves an upper bound of the answer for a request without a maximum.
func TestCerebrasWithoutMaxStandIn(t *testing.T) {
	for name, headers := range map[string]bool{"with headers": true, "without headers": false} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 4)
			contest{share: 0.9, api: func() rules { return cerebrasRules(60_000, headers) },
				preset: func() providers.Provider { return providers.OpenAICompatible("api.cerebras.ai", 300, 60_000) },
				load: load{20, 4 * time.Minute, func(t *testing.T, w, n int) *http.Request {
					return jsonRequest(t, "https://api.cerebras.ai/v1/chat/completions",
						map[string]any{"model": "gpt-oss-120b", "messages": messagesOf(150)}, drawn(w, n, 100, 2000))
				}},
			}.run(t)
		})
	}
}

// Cerebras charges cached input to the tokens in all, of which a minute has three times as many.
func TestCerebrasCachedInputStandIn(t *testing.T) {
	contest{share: 0.9, api: func() rules { return cerebrasRules(60_000, false) },
		preset: func() providers.Provider { return providers.OpenAICompatible("api.cerebras.ai", 300, 60_000) },
		load: load{20, 3 * time.Minute, func(t *testing.T, w, n int) *http.Request {
			return jsonRequest(t, "https://api.cerebras.ai/v1/chat/completions", map[string]any{"model": "gpt-oss-120b",
				"messages": append([]any{map[string]any{"role": "system", "content": text(6_000)}}, messagesOf(105)...), "max_completion_tokens": 512}, drawn(w, n, 100, 500))
		}},
	}.run(t)
}

// usedTokens returns the rules of Mistral and xAI, which count the tokens that a request really
// used, input and output, when its answer ends. What max_tokens says plays no part: a request is
// accepted as long as anything is left of the minute.
//
// Mistral: total_tokens in a window of 60 seconds that slides, as others measured it. That, the
// headers and the refusals are of providers/testdata/fixtures/mistral.json, read on 2026-11-28.
// xAI: "tokens per minute" of input, output, cached and reasoning tokens,
// https://docs.x.ai/developers/rate-limits, with refusals of providers/testdata/fixtures/xai.json.
// That xAI doesn't count the budget of an answer, and Groq and Cerebras do:
// https://github.com/zeeyado/koassistant.koplugin/issues/106, read on 2026-11-28. The kind of
// window is not published. Here it slides, which is the strictest.
func usedTokens(tokens float64, header func(tokens *minutePool, q *question) http.Header, body func(*question) string) rules {
	pool := func(s *llm, q *question) *minutePool { return s.sliding(q.model, tokens) }
	return rules{start: 300 * time.Millisecond, speed: 100,
		demands: func(s *llm, q *question) []demand {
			return []demand{{pool: pool(s, q), need: 1, last: q.input + q.output}}
		},
		answer:  func(s *llm, q *question) reply { return reply{200, header(pool(s, q), q), completion(q)} },
		refusal: func(s *llm, q *question, _ demand) reply { return reply{429, header(pool(s, q), nil), body(q)} },
	}
}

func mistralRules(tokens float64) rules {
	return usedTokens(tokens, func(left *minutePool, q *question) http.Header {
		h := jsonHeader("x-ratelimit-limit-req-minute", "6000", "x-ratelimit-remaining-req-minute", "5990",
			"x-ratelimit-limit-tokens-minute", whole(tokens), "x-ratelimit-remaining-tokens-minute", whole(left.left()))
		if q != nil {
			h.Set("x-ratelimit-tokens-query-cost", whole(q.input+q.output))
		}
		return h
	}, func(*question) string {
		return `{"object":"error","message":"Rate limit exceeded","type":"rate_limited","param":null,"code":"1300","raw_status_code":429}`
	})
}

func xaiRules(tokens float64) rules {
	return usedTokens(tokens, func(*minutePool, *question) http.Header { return jsonHeader() }, func(q *question) string {
		return fmt.Sprintf(`{"code":"resource-exhausted","error":"Too many tokens for team f1692451-874f-4765-ab9b-5285f6c6ff65 and model %s."}`, q.model)
	})
}

// A maximum that is far above what a model writes doesn't cost answers where used tokens count.
func TestLargeMaxStandIn(t *testing.T) {
	const tokens, share = 200_000, 0.9 // of the tokens without a maximum
	for _, test := range []struct {
		host, model string
		api         func(float64) rules
	}{
		{"api.mistral.ai", "mistral-large-latest", mistralRules},
		{"api.x.ai", "grok-4.5", xaiRules},
	} {
		asking := func(most int) load {
			return load{40, 3 * time.Minute, func(t *testing.T, w, n int) *http.Request {
				body := map[string]any{"model": test.model, "messages": messagesOf(150)}
				if most > 0 {
					body["max_tokens"] = most
				}
				return jsonRequest(t, "https://"+test.host+"/v1/chat/completions", body, drawn(w, n, 100, 2000))
			}}
		}
		c := contest{share: 0.8, early: true, api: func() rules { return test.api(tokens) }, load: asking(128_000),
			preset: func() providers.Provider { return providers.OpenAICompatible(test.host, 6_000, tokens) }}
		t.Run(test.host, c.run)
		t.Run(test.host+" without a maximum", func(t *testing.T) {
			soak.Sample(t, 4)
			preset := func(t *testing.T, api *llm) http.RoundTripper { return over(t, c.preset(), api) }
			large := c.play(t, preset)
			c.load = asking(0)
			without := c.play(t, preset)
			t.Logf("%d answers with max_tokens, %d without, %.2f of the tokens; %d and %d refused",
				large.served, without.served, large.tokens/without.tokens, large.refused, without.refused)
			if large.tokens < share*without.tokens {
				t.Errorf("%.2f of the tokens without max_tokens, want at least %.2f", large.tokens/without.tokens, share)
			}
		})
	}
}

// anthropicRules returns the rules of Anthropic's Messages API and of its endpoint for the OpenAI
// SDK, /v1/chat/completions, which share the buckets of a model.
//
// Requests, input and output tokens have buckets that refill all the time. Input counts when a
// request begins, and output as it is written, whatever max_tokens says:
// https://platform.claude.com/docs/en/api/rate-limits. The endpoint for the OpenAI SDK has the
// limits of /v1/messages, x-ratelimit headers and retry-after, and errors in OpenAI's form:
// https://platform.claude.com/docs/en/api/openai-sdk. A recorded refusal of it:
// https://github.com/FoundationAgents/OpenManus/issues/746. All read on 2026-11-28. The page has no
// example of the headers, so only those of requests are sent here, which can't be misunderstood.
func anthropicRules(requests, input, output float64) rules {
	pools := func(s *llm, q *question) (r, in, out *minutePool) {
		return s.bucket(q.model+" requests", requests), s.bucket(q.model+" input", input), s.bucket(q.model+" output", output)
	}
	compatible := func(q *question) bool { return q.URL.Path == "/v1/chat/completions" }
	header := func(s *llm, q *question) http.Header {
		r, in, out := pools(s, q)
		if compatible(q) {
			return jsonHeader("x-ratelimit-limit-requests", whole(requests), "x-ratelimit-remaining-requests", whole(r.left()))
		}
		h := jsonHeader()
		for name, p := range map[string]*minutePool{"requests": r, "input-tokens": in, "output-tokens": out} {
			full := time.Now().Add(p.wait(p.limit) + time.Second).UTC().Truncate(time.Second)
			h.Set("anthropic-ratelimit-"+name+"-limit", whole(p.limit))
			h.Set("anthropic-ratelimit-"+name+"-remaining", whole(p.left()))
			h.Set("anthropic-ratelimit-"+name+"-reset", full.Format(time.RFC3339))
		}
		return h
	}
	return rules{start: 500 * time.Millisecond, speed: 80,
		demands: func(s *llm, q *question) []demand {
			r, in, out := pools(s, q)
			return []demand{{r, 1, 1, 1}, {in, q.input, q.input, q.input}, {pool: out, need: 1, last: q.output}}
		},
		answer: func(s *llm, q *question) reply {
			if compatible(q) {
				return reply{200, header(s, q), completion(q)}
			}
			return reply{200, header(s, q), fmt.Sprintf(`{"id":"msg_01","type":"message","role":"assistant","model":%q,"content":[{"type":"text","text":"Hello!"}],`+
				`"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":%.0f,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":%.0f}}`, q.model, q.input, q.output)}
		},
		refusal: func(s *llm, q *question, d demand) reply {
			h := header(s, q)
			h.Set("retry-after", seconds(d.pool.wait(d.need)))
			sentence := "This request would exceed the rate limit for your organization (1815e560-bf0c-433e-b03a-793524e11fda) of " + whole(d.pool.limit) + " tokens per minute."
			if compatible(q) {
				return reply{429, h, fmt.Sprintf(`{"error":{"code":"rate_limit_error","message":%q,"type":"invalid_request_error","param":null}}`, sentence)}
			}
			return reply{429, h, fmt.Sprintf(`{"type":"error","error":{"type":"rate_limit_error","message":%q}}`, sentence)}
		},
	}
}

const anthropicURL = "https://api.anthropic.com/v1/"

// Anthropic counts requests of the Messages API and of OpenAI's SDK in the same buckets.
func TestAnthropicWithOpenAISDKStandIn(t *testing.T) {
	for name, test := range map[string]struct {
		requests, input, output int64
		prompt, shortest, most  int
	}{
		"requests": {120, 1_000_000, 1_000_000, 150, 50, 200},
		"input":    {1_000, 100_000, 400_000, 1_500, 50, 200},
		"output":   {1_000, 1_000_000, 20_000, 150, 100, 400},
	} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 4)
			contest{share: 0.9, api: func() rules { return anthropicRules(float64(test.requests), float64(test.input), float64(test.output)) },
				preset: func() providers.Provider { return providers.Anthropic(test.requests, test.input, test.output) },
				load: load{20, 3 * time.Minute, func(t *testing.T, w, n int) *http.Request {
					path := []string{"messages", "chat/completions"}[w%2]
					r := jsonRequest(t, anthropicURL+path, map[string]any{"model": "claude-sonnet-4-5",
						"messages": messagesOf(test.prompt), "max_tokens": 1024}, drawn(w, n, test.shortest, test.most))
					r.Header.Set("anthropic-version", "2023-06-01")
					return r
				}},
			}.run(t)
		})
	}
}

// Requests that the plan doesn't allow hold up no others.
//
// A request above 200,000 tokens of a plan without long context gets status 429 and
// rate_limit_error, without a wait and for ever, while shorter requests of the model are answered:
// https://github.com/anthropics/claude-code/issues/42616 and
// https://github.com/NousResearch/hermes-agent/issues/4747, read on 2026-11-28. It costs nothing.
func TestAnthropicLongContextGateStandIn(t *testing.T) {
	soak.Long(t, "minutes of five clients")
	short := load{20, 2 * time.Minute, func(t *testing.T, w, n int) *http.Request {
		return jsonRequest(t, anthropicURL+"messages", map[string]any{"model": "claude-sonnet-4-5", "messages": messagesOf(150), "max_tokens": 1024}, drawn(w, n, 60, 160))
	}}
	c := contest{load: short, preset: func() providers.Provider { return providers.Anthropic(4_000, 10_000_000, 800_000) },
		api: func() rules {
			r := anthropicRules(4_000, 10_000_000, 800_000)
			r.gate = func(q *question) *reply {
				if q.input <= 200_000 {
					return nil
				}
				return &reply{429, jsonHeader("request-id", "req_011CXQugkT1ZmWRCq9gdSrAa"),
					`{"type":"error","error":{"type":"rate_limit_error","message":"Extra usage is required for long context requests."},"request_id":"req_011CXQugkT1ZmWRCq9gdSrAa"}`}
			}
			return r
		}}
	for name, client := range map[string]func(*testing.T, *llm) http.RoundTripper{
		"a client that knows the rules": func(_ *testing.T, api *llm) http.RoundTripper { return newKnowing(api) },
		"the preset":                    func(t *testing.T, api *llm) http.RoundTripper { return over(t, c.preset(), api) },
	} {
		t.Run(name, func(t *testing.T) {
			alone := c.play(t, client)
			long := 0
			beside := c.play(t, func(t *testing.T, api *llm) http.RoundTripper {
				rt := client(t, api)
				go repeatLong(t, rt, 5*time.Second, short.length, &long)
				return rt
			})
			t.Logf("%d short answers, %d beside %d long requests: %.2f", alone.served, beside.served, long, float64(beside.served)/float64(alone.served))
			if float64(beside.served) < 0.98*float64(alone.served) {
				t.Errorf("%d short answers beside long requests, %d without", beside.served, alone.served)
			}
			if long < 20 {
				t.Errorf("%d long requests were answered in 2 minutes, want one every 5 s", long)
			}
		})
	}
}

// repeatLong sends a request of 210,000 tokens at each interval, and counts the refusals.
func repeatLong(t *testing.T, rt http.RoundTripper, interval, length time.Duration, refused *int) {
	body := map[string]any{"model": "claude-sonnet-4-5", "messages": messagesOf(210_000), "max_tokens": 1024}
	for end := time.Now().Add(length - interval); time.Now().Before(end); time.Sleep(interval) {
		r := jsonRequest(t, anthropicURL+"messages", body, 100)
		r.Header.Set("anthropic-beta", "context-1m-2025-08-07")
		resp, err := rt.RoundTrip(r)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode == 429 {
			*refused++
		}
	}
}

// geminiRefusal is a refusal of the Gemini API, with a line for each quota:
// https://github.com/continuedev/continue/issues/9570 and /10062 (limit 0) and
// https://github.com/ogkalu2/comic-translate/issues/403 (a limit of the day), read on 2026-11-28.
func geminiRefusal(model, quota, limit, wait string) string {
	line := fmt.Sprintf("* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: %s, model: %s\\n", limit, model)
	return `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. For more information on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. To monitor your current usage, head to: https://ai.dev/rate-limit. \n` +
		strings.Repeat(line, 2) + `Please retry in ` + wait + `.","status":"RESOURCE_EXHAUSTED","details":[` +
		`{"@type":"type.googleapis.com/google.rpc.Help","links":[{"description":"Learn more about Gemini API quotas","url":"https://ai.google.dev/gemini-api/docs/rate-limits"}]},` +
		`{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"` + quota + `","quotaDimensions":{"location":"global","model":"` + model + `"}}]},` +
		`{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"20s"}]}}`
}

// A model that the plan doesn't have is refused with a limit of 0 and a wait that doesn't help. Its
// callers receive that at once. A limit that is not 0 pauses the model for the wait.
func TestGeminiLimitZeroStandIn(t *testing.T) {
	const zero, twenty = "gemini-2.5-pro", "gemini-2.5-flash"
	gate := func() func(*question) *reply {
		refused := time.Time{}
		return func(q *question) *reply {
			switch {
			case strings.Contains(q.URL.Path, zero):
				return &reply{429, jsonHeader(), geminiRefusal(zero, "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "0", "20.04s")}
			case refused.IsZero():
				refused = time.Now()
				return &reply{429, jsonHeader(), geminiRefusal(twenty, "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "20", "20.04s")}
			case time.Since(refused) < 20040*time.Millisecond:
				return &reply{429, jsonHeader(), geminiRefusal(twenty, "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "20", "1s")}
			}
			return nil
		}
	}
	preset := func(t *testing.T, api *llm) http.RoundTripper {
		return over(t, providers.Gemini(10_000, 10_000_000, 0), api)
	}
	for _, test := range []struct {
		name, model string
		client      func(*testing.T, *llm) http.RoundTripper
		least, most int // arrivals in 20 seconds
	}{
		// 20 workers send a request a second each, and the last one begins after 5 seconds.
		{"limit 0, a client that knows the rules", zero, func(_ *testing.T, api *llm) http.RoundTripper { return api }, 250, 400},
		{"limit 0, the preset", zero, preset, 250, 400},
		{"limit 20, the preset", twenty, preset, 1, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newLLM(rules{gate: gate()})
				slowest := paced(t, test.client(t, api), 20*time.Second, test.model)
				t.Logf("%d arrivals; the slowest answer took %v", len(api.seen), slowest)
				if n := len(api.seen); n < test.least || n > test.most {
					t.Errorf("%d requests arrived in 20 s, want %d to %d", n, test.least, test.most)
				}
				if test.model == zero && slowest > 500*time.Millisecond {
					t.Errorf("a caller waited %v for the refusal", slowest)
				}
			})
		})
	}
}

// paced runs 20 workers that send a request each second to a model for a duration. It returns the
// longest time of an answer. The second worker starts when the first has its answer.
func paced(t *testing.T, rt http.RoundTripper, d time.Duration, model string) (slowest time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for w := range 20 {
		all.Go(func() {
			for time.Sleep(time.Duration(w) * 250 * time.Millisecond); ctx.Err() == nil; time.Sleep(time.Second) {
				start := time.Now()
				r := jsonRequest(t, "https://generativelanguage.googleapis.com/v1beta/models/"+model+":generateContent",
					map[string]any{"contents": []any{map[string]any{"role": "user", "parts": []any{map[string]any{"text": text(150)}}}}}, 100)
				r.Header.Set(fakeapi.Worker, strconv.Itoa(w))
				resp, err := rt.RoundTrip(r.WithContext(ctx))
				if err != nil {
					return // the time is over
				}
				resp.Body.Close()
				mu.Lock()
				slowest = max(slowest, time.Since(start))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return slowest
}
