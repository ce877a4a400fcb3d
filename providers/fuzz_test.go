package providers_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/providers"
)

// reads counts how often the body of a request is read, and how many bytes.
type reads struct{ times, bytes int }

// requestOf returns a request whose body's reads are counted, or nil if there is no such request.
func requestOf(method, address, kind string, body []byte) (req *http.Request, read *reads) {
	req, err := http.NewRequest(method, address, bytes.NewReader(body))
	if err != nil || len(body) == 0 {
		return nil, nil
	}
	req.Header.Set("Content-Type", kind)
	read = new(reads)
	req.GetBody = func() (io.ReadCloser, error) {
		read.times++
		return io.NopCloser(io.TeeReader(bytes.NewReader(body), read)), nil
	}
	return req, read
}

func (r *reads) Write(p []byte) (int, error) {
	r.bytes += len(p)
	return len(p), nil
}

// FuzzPresets sends hostile requests to each preset. Its functions don't panic, read a body at most
// twice for each scope and four times more, and return costs in units that the scopes count.
func FuzzPresets(f *testing.F) {
	const form, object = "application/x-www-form-urlencoded", "application/json"
	for i := range presets {
		f.Add(uint8(i), "POST", "/v1/messages?a=b", object, "1777896041", []byte(`{"channel":"C1","model":"m","input":["a",1]}`))
	}
	for _, s := range []struct{ path, kind, body string }{
		{"/api/chat.postMessage", form, "channel=C1&text=a"},
		{"/bot1:a/sendPhoto", "multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"chat_id\"\r\n\r\n7\r\n--b--\r\n"},
		{"/bot1:a/sendMessage?chat_id=1", object, `{"chat_id":-1.5e9}`},
		{"/v20.0/", form, `batch=[{"method":"GET"},1]`},
		{"/v20.0/?ids=1,2,,", object, `{"batch":[{},{}]}`},
		{"/v1.0/$batch", object, `{"requests":[{"id":"1","method":"GET","url":"/users/a/messages"}]}`},
		{"/", object, `[{"jsonrpc":"2.0","method":"eth_getLogs"},{"method":1}]`},
		{"/derivatives/api/v3/batchorder", form, `json={"batchOrder":[{"order":"send"},{"order":"cancel"}]}`},
		{"/0/private/AddOrder", form, "nonce=1&pair=XBTUSD"},
		{"/api/v5/trade/batch-orders", object, `[{"instId":"BTC-USDT"},{"instId":7}]`},
		{"/v5/order/create-batch", object, `{"category":"linear","request":[{},{}]}`},
		{"/api/v3/order?timestamp=1777896041000&recvWindow=5000.5&symbols=[\"A\",\"B\"]", form, "timestamp=9223372036854775807&limit=5000"},
		{"/admin/api/2026-10/graphql.json", object, `{"query":"{a}","variables":{"n":[1,{"a":"b"}]}}`},
		{"/graphql", object, `{"query":" mutation {a}"}`},
		{"/model/arn:aws:bedrock:us-east-1:1:inference-profile%2Fanthropic.claude-opus-4-8-v1:0/converse", object, `{"inferenceConfig":{"maxTokens":9223372036854775807}}`},
		{"/v1beta/models/gemini-2.5-flash:generateContent", object, `{"contents":[{"parts":[{"inlineData":{"mimeType":"image/png","data":"AAAA"}}]}]}`},
		{"/batch/calendar/v3", "multipart/mixed; boundary=b", "--b\r\nContent-Type: application/http\r\n\r\nGET /calendar/v3/a\r\n\r\n--b--"},
		{"/api/v1/authn", object, `{"username":"a@b.c"}`},
		{"/api/v1/authn", object, "{\"username\":\"a@\xe2\x12c\"}"}, // malformed, so it is read as a form, too
	} {
		for i := range presets {
			f.Add(uint8(i), "POST", s.path, s.kind, "5000", []byte(s.body))
		}
	}
	var transports []*throttle.Transport
	for _, preset := range presets {
		transport, err := preset().Transport(nil)
		if err != nil {
			f.Fatal(err)
		}
		transports = append(transports, transport)
	}
	f.Fuzz(func(t *testing.T, n uint8, method, path, kind, value string, body []byte) {
		i := int(n) % len(presets)
		p, transport := presets[i](), transports[i]
		req, read := requestOf(method, "https://"+strings.Replace(p.Hosts[int(n)/len(presets)%len(p.Hosts)], "*", "a", 1)+path, kind, body)
		if req == nil {
			return
		}
		for _, name := range []string{"X-Amz-Date", "CB-ACCESS-TIMESTAMP", "X-BAPI-TIMESTAMP", "X-BAPI-RECV-WINDOW", "expTime", "OK-ACCESS-TIMESTAMP"} {
			req.Header.Set(name, value)
		}
		limiter := transport.Route(req)
		if transport.SendBy != nil {
			transport.SendBy(req)
		}
		var cost throttle.Cost
		if transport.Cost != nil {
			cost = transport.Cost(req)
		}
		for unit, n := range cost {
			if n < 0 || n > algorithms.MaxLimit {
				t.Errorf("%s %s: %d %s", p.Name, req.URL, n, unit)
			}
		}
		if limiter == nil {
			return
		}
		permit, err := limiter.TryAcquire(cost)
		if err == nil {
			permit.Release()
		} else if !errors.As(err, new(*throttle.WaitError)) {
			t.Errorf("%s %s: %v", p.Name, req.URL, err)
		}
		if transport.Settle != nil {
			if settle := transport.Settle(req); settle != nil {
				settle(cost)
			}
		}
		if most := 2*len(p.Scopes) + 4; read.times > most || read.bytes > most*len(body) {
			t.Errorf("%s %s: the body was read %d times, %d of %d bytes", p.Name, req.URL, read.times, read.bytes, len(body))
		}
	})
}

// FuzzPrompts reads hostile prompts as each API of models does. What is counted as text is not longer
// than the body.
func FuzzPrompts(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","stream":true,"max_completion_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0K"}},{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}]}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_data":"data:application/pdf;base64,AAAA"}]}],"tools":[{"type":"function","parameters":{"a":{"enum":[1,"b"]}}}]}`,
		`{"model":"m","input":[[1,2],[3]],"prompt":"a","n":4,"best_of":129}`,
		`{"model":"claude-3-5-haiku-20241022","max_tokens":5,"cache_control":{"type":"ephemeral","ttl":"1h"},"tools":[{"name":"a","input_schema":{},"cache_control":{"type":"ephemeral"}}],"system":[{"type":"text","text":"a","cache_control":{"ttl":"1h"}}],"messages":[{"role":"user","content":"b"},{"role":"user","content":[{"type":"document","source":{"type":"base64","media_type":"text/plain","data":"AAAA"}}]}]}`,
		`{"contents":[{"role":"user","parts":[{"text":"a"},{"inlineData":{"mimeType":"video/mp4","data":"AAAA"}},{"fileData":{"fileUri":"b"}}]}],"systemInstruction":{"parts":[{"text":"c"}]},"generationConfig":{"maxOutputTokens":8}}`,
		`{"messages":[{"role":"user","content":[{"text":"a"},{"image":{"format":"png","source":{"bytes":"AAAA"}}},{"document":{"source":{"s3Location":{"uri":"s3://a"}}}}]}],"system":[{"cachePoint":{"type":"default"}}],"inferenceConfig":{"maxTokens":7}}`,
		strings.Repeat("[", 1_001), `{"a":"\\\\\\\"`, `{"cache_control":{`, `{"messages":[],"messages":[{"content":1}],"system":2,"tools":"a"}`,
	} {
		f.Add([]byte(body))
	}
	tests := []struct {
		p    providers.Provider
		path string
	}{
		{providers.OpenAI(1, 1), "https://api.openai.com/v1/chat/completions"},
		{providers.OpenAICompatible("api.deepseek.com", 1, 1), "https://api.deepseek.com/chat/completions"},
		{providers.AzureOpenAI(1, 1), "https://acme.openai.azure.com/openai/v1/embeddings"},
		{providers.Anthropic(1, 1, 1), "https://api.anthropic.com/v1/messages"},
		{providers.Bedrock(1, 1), "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-opus-4-8-v1:0/invoke"},
		{providers.Bedrock(1, 1), "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1/chat/completions"},
		{providers.Gemini(1, 1, 1), "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent"},
		{providers.Gemini(1, 1, 1), "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"},
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, test := range tests {
			for _, own := range []bool{false, true} {
				texts, calls := 0, 0
				if test.p.Tokens = nil; own {
					test.p.Tokens = func(text string) int64 {
						calls, texts = calls+1, texts+len(text)
						return -1
					}
				}
				transport, err := test.p.Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				req, read := requestOf(http.MethodPost, test.path, "application/json", body)
				if req == nil {
					return
				}
				transport.Route(req)
				for unit, n := range transport.Cost(req) {
					if n < 0 || n > algorithms.MaxLimit {
						t.Errorf("%s: %q: %d %s", test.path, body, n, unit)
					}
				}
				if texts > len(body) || calls > len(body) || read.times != 1 || read.bytes != len(body) {
					t.Errorf("%s: %q: counted %d texts of %d bytes, read %d times %d bytes", test.path, body, calls, texts, read.times, read.bytes)
				}
			}
		}
	})
}

// FuzzHosts compares the presets of a host with those that regular expressions find. Auto has one quota
// for equal requests to any host.
func FuzzHosts(f *testing.F) {
	type hosted struct {
		p  providers.Provider
		is *regexp.Regexp
	}
	var all []hosted
	for _, preset := range presets {
		p := preset()
		needsNothing := func(l providers.Preset) bool { return l.New != nil && l.New().Name == p.Name }
		if !slices.ContainsFunc(providers.Lookup(strings.Replace(p.Hosts[0], "*", "some", 1)), needsNothing) {
			continue
		}
		var patterns []string
		for _, host := range p.Hosts {
			patterns = append(patterns, strings.ReplaceAll(regexp.QuoteMeta(host), `\*`, "[^/]*")) // no host has a slash
			f.Add(strings.Replace(host, "*", "some", 1), "/admin/api/graphql.json")
		}
		all = append(all, hosted{p, regexp.MustCompile(`^(?is:` + strings.Join(patterns, "|") + `)$`)})
	}
	for _, host := range []string{"", ".", "/.atlassian.net", "a..b", "[::1]:80", "API.GitHub.com:443", ".myshopify.com", "xn--", strings.Repeat("a.", 1_000)} {
		f.Add(host, "")
	}
	transport, err := providers.Auto{}.Transport(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, path string) {
		req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: host, Path: path}, Header: http.Header{}}
		if first := transport.Route(req); transport.Route(req) != first || transport.ProfileFor(req) == nil {
			t.Errorf("%q: no profile, or another quota for each request", host)
		}
		var want, got []string
		for _, h := range all {
			if h.is.MatchString(host) {
				want = append(want, h.p.Name)
			}
		}
		for _, preset := range providers.Lookup(host) {
			if preset.New != nil {
				got = append(got, preset.New().Name)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	})
}
