package fakeapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
)

// Each API accepts its documented limit at once and refuses the next request as documented.
func TestRefusals(t *testing.T) {
	url := func(method, url string) func(*testing.T, int) *http.Request {
		return func(t *testing.T, i int) *http.Request {
			return request(t, method, strings.ReplaceAll(url, "#", fmt.Sprint(i)), "")
		}
	}
	sent := func(url, body string) func(*testing.T, int) *http.Request {
		return func(t *testing.T, _ int) *http.Request { return request(t, "POST", url, body) }
	}
	small := func() *fakeapi.Server { return fakeapi.GitHub(60, time.Hour) }
	large := func() *fakeapi.Server { return fakeapi.GitHub(5_000, time.Hour) }
	openai := func() *fakeapi.Server { return fakeapi.OpenAI(120, 1_000, time.Minute) }
	anthropic := func() *fakeapi.Server { return fakeapi.Anthropic(5, 1_000, 300) }
	slack := func() *fakeapi.Server { return fakeapi.Slack(time.Minute) }
	hubspot := func() *fakeapi.Server { return fakeapi.HubSpot(7, time.UTC) }
	const github, chat, query = "https://api.github.com", "https://api.openai.com/v1/chat/completions", `{"query":"{a}","variables":{"cost":7}}`
	for _, test := range []struct {
		name    string
		api     func() *fakeapi.Server
		next    func(*testing.T, int) *http.Request
		allowed int
		by      string
		status  int
		header  string // compared with want, together with X-RateLimit-Remaining
		want    string
	}{
		{"GitHub", small, url("GET", github+"/user"), 60, "core", 403, "X-RateLimit-Reset", "946685820 0"},
		{"GitHub, at once", large, url("GET", github+"/users/#"), 100, "concurrency", 403, "Retry-After", " 4900"},
		{"GitHub, writing", large, url("POST", github+"/gists"), 80, "content", 403, "Retry-After", " 4920"},
		{"GitHub, searching", large, url("GET", github+"/search/issues"), 30, "search", 403, "X-RateLimit-Resource", "search 0"},
		{"GitHub, searching code", large, url("GET", github+"/search/code"), 9, "code_search", 403, "X-RateLimit-Limit", "9 0"},
		{"GitHub, GraphQL", small, sent(github+"/graphql", query), 8, "graphql", 200, "X-RateLimit-Used", "56 4"},
		{"OpenAI, requests", openai, sent(chat, `{}`), 2, "requests", 429, "retry-after-ms", "500 "},
		{"OpenAI, tokens", openai, sent(chat, `{"max_tokens":600}`), 1, "tokens", 429, "retry-after-ms", "12000 "},
		{"Anthropic, requests", anthropic, sent("https://api.anthropic.com/v1/messages", `{}`), 5, "requests", 429, "Retry-After", "12 "},
		{"Anthropic, input", anthropic, sent("https://api.anthropic.com/v1/messages", `{"messages":[{"content":"`+strings.Repeat("word ", 600)+`"}]}`), 1, "input-tokens", 429, "Retry-After", "12 "},
		{"Slack, a method", slack, url("POST", "https://slack.com/api/users.list"), 20, "users.list", 429, "Retry-After", "60 "},
		{"Slack, of tier 4", slack, url("POST", "https://slack.com/api/users.info"), 100, "users.info", 429, "Retry-After", "60 "},
		{"Slack, messages", slack, url("POST", "https://slack.com/api/chat.postMessage"), 1, "channel ", 429, "Retry-After", "1 "},
		{"Discord, a route", fakeapi.Discord, url("GET", "https://discord.com/api/channels/1/messages/#"), 5, "user", 429, "X-RateLimit-Reset-After", "5.000 0"},
		{"Discord, all", fakeapi.Discord, url("GET", "https://discord.com/api/guilds/#/members"), 50, "global", 429, "X-RateLimit-Global", "true "},
		{"Notion", fakeapi.Notion, url("GET", "https://api.notion.com/v1/users"), 180, "connection", 429, "Retry-After", "17 "},
		{"HubSpot, a day", hubspot, url("GET", "https://api.hubapi.com/a"), 7, "DAILY", 429, "Retry-After", " "},
		{"HubSpot, searching", hubspot, url("POST", "https://api.hubapi.com/a/search"), 5, "SECONDLY", 429, "Retry-After", " "},
		{"HubSpot, ten seconds", func() *fakeapi.Server { return fakeapi.HubSpot(1_000, time.UTC) }, url("GET", "https://api.hubapi.com/a"), 100, "TEN_SECONDLY_ROLLING", 429, "Retry-After", " "},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := test.api()
				for i := range test.allowed {
					do(t, api, test.next(t, i)) // the body stays open
				}
				resp := do(t, api, test.next(t, test.allowed))
				if served, refused := api.Served(), api.Refused()[test.by]; served != test.allowed || refused != 1 || resp.StatusCode != test.status {
					t.Errorf("%d served, %v refused with %d, want %d and one by %s with %d", served, api.Refused(), resp.StatusCode, test.allowed, test.by, test.status)
				}
				if got := resp.Header.Get(test.header) + " " + resp.Header.Get("X-RateLimit-Remaining"); got != test.want {
					t.Errorf("%s is %q, want %q", test.header, got, test.want)
				}
			})
		})
	}
}

// OpenAI counts the characters of the prompt or max_tokens, whichever is more.
func TestOpenAICounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.OpenAI(600, 1_000, time.Minute)
		for _, test := range []struct{ body, left string }{
			{`{"messages":[{"content":"` + strings.Repeat("字", 40) + `"}],"max_tokens":100}`, "900"},
			{`{"messages":[{"content":"` + strings.Repeat("字", 800) + `"}],"max_tokens":100}`, "700"},
		} {
			resp := do(t, api, request(t, "POST", "https://api.openai.com/v1/chat/completions", test.body))
			if left := resp.Header.Get("X-RateLimit-Remaining-Tokens"); left != test.left {
				t.Errorf("%s tokens left, want %s", left, test.left)
			}
		}
	})
}

// Anthropic counts the tokens of an answer when it has ended. max_tokens plays no part.
func TestAnthropicOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.Anthropic(5, 1_000, 300)
		send := func() *http.Response {
			return do(t, api, request(t, "POST", "https://api.anthropic.com/v1/messages", `{"max_tokens":1240}`))
		}
		first := send()
		if second := send(); second.StatusCode != 200 {
			t.Fatalf("status %d, want 200 while the first answer has not ended", second.StatusCode)
		}
		if _, err := io.Copy(io.Discard, first.Body); err != nil {
			t.Fatal(err)
		}
		// The answer had 310 tokens of 300, which leaves -10. One more than 0 takes 2.2 s.
		if third := send(); third.StatusCode != 429 || third.Header.Get("Retry-After") != "3" || api.Refused()["output-tokens"] != 1 {
			t.Errorf("status %d, %v, refused %v", third.StatusCode, third.Header, api.Refused())
		}
	})
}

// Streams have the documented form: events with one JSON text each.
func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			api    *fakeapi.Server
			events int
		}{{fakeapi.OpenAI(60, 1_000, time.Minute), 3}, {fakeapi.Anthropic(60, 1_000, 1_000), 6}} {
			resp := do(t, test.api, request(t, "POST", "https://example.com/", `{"stream":true,"model":"m","max_tokens":8}`))
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
				t.Errorf("%v, %v", resp.Header, err)
			}
			events := 0
			for line := range strings.SplitSeq(string(body), "\n") {
				if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Valid([]byte("{"+data)) {
					events++
				}
			}
			if events != test.events {
				t.Errorf("%d events, want %d: %s", events, test.events, body)
			}
		}
	})
}
