package fakeapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
)

func request(t *testing.T, method, url, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func do(t *testing.T, rt http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Each API accepts its documented limit at once, although no body is closed, and refuses the next request
// as documented.
func TestLimits(t *testing.T) {
	const exchange, binance, kraken = "GET https://api.exchange.coinbase.com", "https://api.binance.com/api/v3/", "POST https://api.kraken.com/0/private/"
	const stripe, github, chat, claude = "GET https://api.stripe.com/v1/", "https://api.github.com", "POST https://api.openai.com/v1/chat/completions", "POST https://api.anthropic.com/v1/messages"
	openai := []string{"requests=120/m;algo=token_bucket", "pace=120/m;algo=token_bucket;burst=2", "tokens=1000/m;algo=token_bucket"}
	anthropic := []string{"requests=5/m;algo=token_bucket", "input=1000/m;algo=token_bucket"}
	hour := []string{"core=60/h;algo=fixed_window;phase=17m", "graphql=60/h;algo=fixed_window;phase=17m", "search=30/m;algo=fixed_window"}
	key, words := "CB-ACCESS-KEY=k", strings.Repeat("word ", 600)
	for _, test := range []struct {
		api     string
		tiers   []string
		request string // # is the number of the request, and @ one of eight letters
		sent    string // the body, or a header
		allowed int
		by      string
		status  int
		header  string // NAME: value
	}{
		{"coinbaseexchange", nil, exchange + "/products", "", 15, "public", 429, ""},
		{"coinbaseexchange", nil, exchange + "/loans/assets", key, 15, "public", 429, ""},
		{"coinbaseexchange", nil, exchange + "/orders", key, 30, "private", 429, ""},
		{"coinbaseexchange", nil, exchange + "/fills", key, 20, "fills", 429, ""},
		{"coinbaseexchange", nil, exchange + "/loans", key, 10, "loans", 429, ""},
		{"coinbaseapp", nil, "GET https://api.coinbase.com/v2/accounts", "", 10_000, "key", 429, ""},
		{"binance", nil, "GET " + binance + "depth?limit=1000", "", 120, "weight", 429, "Retry-After: 60"},
		{"binance", nil, "POST " + binance + "order", "", 100, "orders", 429, "Retry-After: 10"},
		{"binance", nil, "POST " + binance + "orderList/oco", "", 50, "orders", 429, "X-Mbx-Order-Count-10s: 100"},
		{"kraken", nil, kraken + "Balance", "", 15, "key", 200, ""},
		{"kraken", nil, kraken + "Ledgers", "", 7, "key", 200, ""},
		{"kraken", nil, kraken + "AddOrder", "pair=XBTUSD", 60, "pair", 200, ""},
		{"etherscan", nil, "GET https://api.etherscan.io/v2/api", "", 3, "second", 200, ""},
		{"stripe", nil, stripe + "@", "", 100, "account", 429, "Stripe-Rate-Limited-Reason: global-rate"},
		{"stripe", nil, stripe + "@", "Authorization=Bearer sk_test_1", 25, "sandbox", 429, "Stripe-Rate-Limited-Reason: global-rate"},
		{"stripe", nil, stripe + "customers/cus_#", "", 25, "endpoint", 429, "Stripe-Rate-Limited-Reason: endpoint-rate"},
		{"stripe", nil, stripe + "charges/search", "", 20, "search", 429, "Stripe-Rate-Limited-Reason: endpoint-rate"},
		{"twilio", []string{"account=7;algo=concurrency"}, "POST https://api.twilio.com/2010-04-01/Accounts/AC1/Messages.json", "", 7, "account", 429, ""},
		{"shopifyrest", nil, "GET https://one.myshopify.com/admin/api/2026-07/products.json", "", 40, "app", 429, "Retry-After: 2.0"},
		{"shopifygraphql", nil, "POST https://one.myshopify.com/admin/api/2026-07/graphql.json", `{"variables":{"requested":50,"actual":50}}`, 40, "app", 200, ""},
		{"github", hour, "GET " + github + "/user", "", 60, "core", 403, "X-RateLimit-Reset: 946685820"},
		{"github", nil, "GET " + github + "/users/#", "", 100, "concurrent", 403, "X-RateLimit-Remaining: 4900"},
		{"github", nil, "POST " + github + "/gists", "", 80, "content", 403, ""},
		{"github", nil, "POST " + github + "/graphql", `{"query":"mutation {a}"}`, 80, "content", 403, ""},
		{"github", nil, "GET " + github + "/search/issues", "", 30, "search", 429, "X-RateLimit-Resource: search"},
		{"github", nil, "GET " + github + "/search/code", "", 9, "code", 429, "X-RateLimit-Limit: 9"},
		{"github", hour, "POST " + github + "/graphql", `{"query":"{a}","variables":{"cost":7}}`, 8, "graphql", 200, "X-RateLimit-Remaining: 4"},
		{"openai", openai, chat, `{}`, 2, "pace", 429, ""},
		{"openai", openai, chat, `{"max_tokens":600}`, 1, "tokens", 429, ""},
		{"anthropic", anthropic, claude, `{}`, 5, "requests", 429, "Anthropic-Ratelimit-Requests-Remaining: 0"},
		{"anthropic", anthropic, claude, `{"messages":[{"content":"` + words + `"}]}`, 1, "input", 429, "Retry-After: 19"},
		{"gemini", nil, "POST https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent", "", 30, "requests", 429, ""},
		{"slack", nil, "POST https://slack.com/api/users.list", "", 20, "tier2", 429, "Retry-After: 60"},
		{"slack", nil, "POST https://slack.com/api/files.upload", "", 20, "tier2", 429, "Retry-After: 60"},
		{"slack", nil, "POST https://slack.com/api/users.info", "", 100, "tier4", 429, "Retry-After: 60"},
		{"slack", nil, "POST https://slack.com/api/chat.postMessage", "channel=C1", 1, "channel", 429, "Retry-After: 1"},
		{"discord", nil, "GET https://discord.com/api/v10/channels/1/messages/#", "", 5, "route", 429, "X-RateLimit-Reset-After: 5.000"},
		{"discord", nil, "GET https://discord.com/api/v10/guilds/#/members", "", 50, "global", 429, "X-RateLimit-Global: true"},
		{"notion", nil, "GET https://api.notion.com/v1/users", "", 180, "connection", 429, "Retry-After: 17"},
		{"hubspot", []string{"day=7/day;zone=UTC"}, "GET https://api.hubapi.com/crm/a", "", 7, "day", 429, ""},
		{"hubspot", nil, "POST https://api.hubapi.com/crm/a/search", "", 5, "search", 429, ""},
		{"hubspot", nil, "GET https://api.hubapi.com/crm/a", "", 100, "burst", 429, ""},
		{"vertexai", nil, "POST https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5/publishers/anthropic/models/claude-opus-4-1%40#:rawPredict", "", 25, "requests", 429, ""},
		{"linkedin", []string{"data=10/5m"}, "GET https://api.linkedin.com/rest/adAnalytics?fields=a,b,c", "", 1, "data", 429, ""},
		{"googleads", []string{"day=60/24h"}, "POST https://googleads.googleapis.com/v23/customers/1/campaigns:mutate", `{"operations":[` + fakeapi.Fill("${list 25}", 0, 0) + `]}`, 2, "day", 429, ""},
	} {
		t.Run(test.api+"/"+test.by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fakeapi.New(testdata, test.api, test.tiers...)
				var resp *http.Response
				for i := range test.allowed + 1 {
					method, url, _ := strings.Cut(strings.NewReplacer("#", fmt.Sprint(i), "@", string(rune('a'+i%8))).Replace(test.request), " ")
					if name, value, ok := strings.Cut(test.sent, "="); ok && name != "channel" && name != "pair" {
						resp = do(t, api, request(t, method, url, "", name, value))
					} else {
						resp = do(t, api, request(t, method, url, test.sent))
					}
				}
				if refused := api.Refused(); api.Served() != test.allowed || refused[test.by] != 1 || resp.StatusCode != test.status {
					t.Errorf("%d served, %v refused with %d, want %d and one by %s with %d", api.Served(), refused, resp.StatusCode, test.allowed, test.by, test.status)
				}
				if name, want, ok := strings.Cut(test.header, ": "); ok && resp.Header.Get(name) != want {
					t.Errorf("%s is %q, want %q", name, resp.Header.Get(name), want)
				}
			})
		})
	}
}

// A client that sends before the Retry-After of a refusal has passed is banned.
func TestBinanceBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "binance")
		send := func() *http.Response {
			return do(t, api, request(t, "GET", "https://api.binance.com/api/v3/depth?limit=5000", ""))
		}
		for range 24 {
			send()
		}
		for i, want := range []struct {
			status int
			wait   string
			sleep  time.Duration
		}{
			{429, "60", 59 * time.Second}, {418, "120", 119 * time.Second}, {418, "1", time.Second}, {200, "", 0},
		} {
			resp := send()
			if resp.StatusCode != want.status || resp.Header.Get("Retry-After") != want.wait {
				t.Errorf("request %d: %d, Retry-After %q, want %+v", i, resp.StatusCode, resp.Header.Get("Retry-After"), want)
			}
			time.Sleep(want.sleep)
		}
	})
}

// A request signed too long ago is refused, and its weight counts.
func TestBinanceTimestamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "binance")
		for i, query := range []string{"timestamp=946684794999", "timestamp=946684794999&recvWindow=6000", "timestamp=946684795000"} {
			want := 200
			if i == 0 {
				want = 400
			}
			resp := do(t, api, request(t, "GET", "https://api.binance.com/api/v3/account?"+query, ""))
			if resp.StatusCode != want || i > 0 && resp.Header.Get("X-Mbx-Used-Weight-1m") != fmt.Sprint(20*(i+1)) {
				t.Errorf("%s: %d, %v", query, resp.StatusCode, resp.Header)
			}
		}
	})
}

// After a refusal Shopify refuses requests until its Retry-After has passed, and each of them begins it anew.
func TestShopifyBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "shopifyrest")
		send := func() int {
			return do(t, api, request(t, "GET", "https://one.myshopify.com/admin/api/2026-07/products.json", "")).StatusCode
		}
		for range 41 {
			send()
		}
		for _, test := range []struct {
			after time.Duration
			want  int
		}{{1999 * time.Millisecond, 429}, {1999 * time.Millisecond, 429}, {2 * time.Second, 200}} {
			if time.Sleep(test.after); send() != test.want {
				t.Errorf("after %v: want %d", test.after, test.want)
			}
		}
	})
}

// Kraken's counter falls by 1 at steps of the clock, not in between.
func TestKrakenSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "kraken")
		step := 100 * time.Second / 33
		time.Sleep(time.Until(time.Now().Truncate(step).Add(step + step/2)))
		for range 20 {
			do(t, api, request(t, "POST", "https://api.kraken.com/0/private/Balance", ""))
		}
		for i, want := range []int{16, 16, 17, 17} {
			time.Sleep(step/2 + time.Millisecond)
			do(t, api, request(t, "POST", "https://api.kraken.com/0/private/Balance", ""))
			if api.Served() != want {
				t.Errorf("after %d half steps: %d served, want %d", i+1, api.Served(), want)
			}
		}
	})
}

func TestTrapsAndClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "etherscan")
		api.Skew = time.Minute
		api.Latency = func(*http.Request) time.Duration { return time.Second }
		api.Trap(fakeapi.Reply{Status: 418, Body: "short and stout"})
		const url = "https://api.etherscan.io/v2/api"
		resp := do(t, api, request(t, "GET", url, ""))
		if date := resp.Header.Get("Date"); resp.StatusCode != 418 || date != "Sat, 01 Jan 2000 00:01:01 GMT" {
			t.Errorf("%d at %s", resp.StatusCode, date)
		}
		if api.Served() != 0 || len(api.Refused()) != 0 {
			t.Errorf("a trap was counted: %d served, %v refused", api.Served(), api.Refused())
		}
		if resp := do(t, api, request(t, "GET", url, "")); resp.StatusCode != 200 || resp.Header.Get("Date") != "Sat, 01 Jan 2000 00:01:02 GMT" {
			t.Errorf("the next call was answered %d at %s", resp.StatusCode, resp.Header.Get("Date"))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := api.RoundTrip(request(t, "GET", url, "").WithContext(ctx)); err != context.DeadlineExceeded || api.Served() != 1 {
			t.Errorf("canceled during Latency: %v, %d served", err, api.Served())
		}
	})
}

// Over a network, a request ends when it is answered.
func TestServer(t *testing.T) {
	server := httptest.NewServer(fakeapi.New(testdata, "github", "concurrent=1;algo=concurrency"))
	defer server.Close()
	for range 3 {
		resp, err := server.Client().Get(server.URL + "/user")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != `{}` || resp.StatusCode != 200 {
			t.Errorf("%d %s, %v", resp.StatusCode, body, err)
		}
	}
}

// OpenAI counts the characters of the prompt or max_tokens, whichever is more, or the tokens if they are
// still more.
func TestOpenAICounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "openai", "requests=600/m;algo=token_bucket", "pace=600/m;algo=token_bucket;burst=10", "tokens=1000/m;algo=token_bucket")
		for _, test := range []struct{ body, left string }{
			{`{"messages":[{"content":"` + strings.Repeat("字", 40) + `"}],"max_tokens":100}`, "900"},
			{`{"messages":[{"content":"` + strings.Repeat("a ", 400) + `"}],"max_tokens":100}`, "700"},
		} {
			resp := do(t, api, request(t, "POST", "https://api.openai.com/v1/chat/completions", test.body))
			if left := resp.Header.Get("X-RateLimit-Remaining-Tokens"); left != test.left {
				t.Errorf("%s tokens left, want %s", left, test.left)
			}
		}
	})
}

// Anthropic counts the tokens of an answer when it is there. max_tokens plays no part, nor does text from
// the prompt cache.
func TestAnthropicCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.New(testdata, "anthropic", "requests=9/m;algo=token_bucket;burst=9", "input=1000/m;algo=token_bucket", "output=300/m;algo=token_bucket")
		api.Output = func(most int64) int64 { return most / 4 }
		api.Hold = func(*http.Request) time.Duration { return time.Second }
		body := `{"max_tokens":1240,"system":"` + strings.Repeat("word ", 5_000) + `","messages":[{"content":"one two"}]}`
		first := make(chan int)
		go func() {
			first <- do(t, api, request(t, "POST", "https://api.anthropic.com/v1/messages", body)).StatusCode
		}()
		time.Sleep(time.Millisecond)
		second := do(t, api, request(t, "POST", "https://api.anthropic.com/v1/messages", body)).StatusCode
		if status := <-first; status != 200 || second != 200 {
			t.Fatalf("%d and %d, want 200 while the first answer is under way", status, second)
		}
		// Two answers of 310 tokens leave -320 of 300 and what has come back. One more than 0 takes a minute.
		third := do(t, api, request(t, "POST", "https://api.anthropic.com/v1/messages", body))
		if third.StatusCode != 429 || third.Header.Get("Retry-After") != "65" || api.Refused()["output"] != 1 {
			t.Errorf("status %d, %v, refused %v", third.StatusCode, third.Header, api.Refused())
		}
	})
}

// Streams have the documented form: events with one JSON text each.
func TestStreams(t *testing.T) {
	for name, test := range map[string]struct {
		url    string
		events int
	}{
		"openai":    {"https://api.openai.com/v1/chat/completions", 4},
		"anthropic": {"https://api.anthropic.com/v1/messages", 8},
		"gemini":    {"https://generativelanguage.googleapis.com/v1beta/models/g:streamGenerateContent", 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			resp := do(t, fakeapi.New(testdata, name), request(t, "POST", test.url, `{"stream":true,"model":"m","max_tokens":8}`))
			body, err := io.ReadAll(resp.Body)
			if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
				t.Errorf("%v, %v", resp.Header, err)
			}
			events := 0
			for line := range strings.SplitSeq(string(body), "\n") {
				if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Valid([]byte("{"+data)) {
					events++
				}
			}
			if events != test.events {
				t.Errorf("%s: %d events, want %d: %s", name, events, test.events, body)
			}
		})
	}
}
