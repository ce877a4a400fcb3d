package providers_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/soak"
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
		permit, err := limiter.TryAcquire(t.Context(), cost)
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

// A subject is the profile of a preset, or answers.Common.
type subject struct {
	name    string
	profile answers.Profile
	headers []string // the canonical names of the headers that the profile reads; a last * stands for any text
}

// subjects returns all of them.
func subjects() (all []subject) {
	all = []subject{{name: "answers.Common", profile: answers.Common()}, {name: "AWSProfile", profile: providers.AWSProfile()}}
	for _, preset := range presets {
		p := preset()
		all = append(all, subject{name: p.Name, profile: p.Profile})
	}
	for i := range all {
		s, p := &all[i], all[i].profile
		add := func(names ...string) {
			for _, name := range names {
				if name != "" {
					s.headers = append(s.headers, http.CanonicalHeaderKey(name))
				}
			}
		}
		add("Retry-After")
		fields := slices.Concat(p.RetryAfter, p.Reasons)
		for _, q := range p.Quotas {
			add(q.NameIn, q.UnitIn)
			fields = append(fields, q.Limit, q.Remaining, q.Used, q.Share, q.Rate, q.Length, q.Reset, q.Combined)
		}
		for _, c := range p.Charges {
			fields = append(fields, c.Field, c.Or)
		}
		for _, r := range p.Rules {
			add(r.Header)
			fields = append(append(fields, r.Delay...), r.Asked)
		}
		for _, f := range fields {
			add(f.Header)
		}
	}
	return all
}

// reads reports whether the profile reads a header.
func (s *subject) reads(header string) bool {
	return slices.ContainsFunc(s.headers, func(name string) bool {
		prefix, any := strings.CutSuffix(name, "*")
		return name == header || any && strings.HasPrefix(header, prefix)
	})
}

// hostile returns a body that has the text of a rule, and a value wherever the profile reads one.
func (s *subject) hostile(r answers.Rule, value string) []byte {
	root := map[string]any{}
	place := func(path, v string) {
		at, steps := root, strings.Split(path, ".")
		for i, step := range steps {
			if step == "*" {
				step = "a"
			}
			if i == len(steps)-1 {
				at[step] = v
				return
			}
			next, ok := at[step].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[step] = next
			}
			at = next
		}
	}
	fields := append(slices.Clone(s.profile.RetryAfter), r.Asked)
	for _, q := range s.profile.Quotas {
		fields = append(fields, q.Limit, q.Remaining, q.Used, q.Rate, q.Length, q.Reset)
	}
	for _, f := range append(fields, r.Delay...) {
		if f.Header == "" && f.Path != "" {
			place(f.Path, f.After+value)
		}
	}
	text := strings.Trim(r.Text, "*")
	if r.Path != "" {
		for _, f := range r.Delay {
			if f.Path == r.Path {
				text += " " + f.After + value
			}
		}
		place(r.Path, text)
		text = ""
	}
	body, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return append(body, text...)
}

// FuzzResponses answers a request with a hostile response. A body, and headers that the profile does
// not read, close no quota for longer than MaxPause, unless the profile takes the response for a ban,
// or the status alone for the end of a day's quota. Headers that the profile reads close it for at
// most 31 days.
func FuzzResponses(f *testing.F) {
	all := subjects()
	var headers []string // of all
	for _, s := range all {
		headers = append(headers, s.headers...)
	}
	const date = "Mon, 04 May 2026 12:00:00 GMT"
	soon := time.Now().Add(10 * 24 * time.Hour)
	values := []string{
		"86400", "2055-01-01T00:00:00Z", "86400000", "719h", "1e300", "-1", "4102444800",
		strconv.FormatInt(soon.Unix(), 10), strconv.FormatInt(soon.UnixMilli(), 10), soon.UTC().Format(time.RFC3339),
	}
	for i, s := range all {
		f.Add(uint16(i), uint8(0), false, 429, "X-Reset", date, "", []byte(strings.Repeat(`{"a":[`, 500)))
		for j, r := range s.profile.Rules {
			for k := range min(len(values), soak.Times(len(values))) {
				value := values[(i+j+k)%len(values)]
				f.Add(uint16(i), uint8(j), false, r.Status, "X-Reset", date, value, []byte(nil))
				f.Add(uint16(i), uint8(j), true, r.Status, "X-Reset", date, value, []byte(nil))
			}
		}
	}
	for _, body := range []string{`{"retry_after":1e300,"error":{"message":"try again in 1e300h"}}`, `[{"error":{"code":429}},[],{}]`, `{"parameters":{"retry_after":99999999999999999999}}`} {
		for i := range all {
			f.Add(uint16(i), uint8(0), false, 429, "Date", "Fri, 01 Jan 2055 00:00:00 GMT", "7200", []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, n uint16, rule uint8, named bool, status int, header, other, value string, body []byte) {
		s := all[int(n)%len(all)]
		if status == 0 {
			status = http.StatusTooManyRequests
		}
		h := http.Header{"Content-Type": {"application/json"}}
		for _, name := range append(headers, http.CanonicalHeaderKey(header)) {
			if !s.reads(name) && name != "Content-Encoding" && name != "Content-Type" {
				h.Set(strings.TrimSuffix(name, "*"), other)
			}
		}
		var r answers.Rule
		if rules := s.profile.Rules; len(rules) > 0 {
			if r = rules[int(rule)%len(rules)]; r.Header != "" {
				h.Set(r.Header, cmp.Or(strings.Trim(r.Value, "*"), "0"))
			}
		}
		if named {
			for _, name := range s.headers {
				if h.Get(name) == "" {
					h.Set(strings.Replace(name, "*", "1m", 1), value)
				}
			}
		}
		if len(body) == 0 {
			body = s.hostile(r, value)
		}
		method := cmp.Or(r.Method, http.MethodPost)
		bare := http.Header{"Content-Type": h["Content-Type"]}
		if r.Header != "" {
			bare.Set(r.Header, h.Get(r.Header))
		}
		alone := s.profile.Read(answers.Response{Method: method, Status: status, Header: bare, Got: time.Now()})
		answer := s.profile.Read(answers.Response{Method: method, Status: status, Header: h, Body: body[:min(len(body), 16<<10)], Got: time.Now()})
		limiter, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &throttle.Transport{Limiter: limiter, Profile: &s.profile, Base: answering(func(req *http.Request) *http.Response {
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(bytes.NewReader(body)), Request: req}
		})}
		resp, err := transport.RoundTrip(httptest.NewRequest(method, "https://api.example.com", nil))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		most := 15 * time.Minute
		if named || answer.Kind == answers.Banned {
			most = 31 * 24 * time.Hour
		} else if alone.Known {
			most = 25 * time.Hour // a day may have an hour more
		}
		if is, err := limiter.Status(t.Context()); err != nil || is.Closed > most || is.Paused > most {
			t.Errorf("%s: %d %v %.200q: closed for %v, paused for %v, %v; read as %+v", s.name, status, h, body, is.Closed, is.Paused, err, answer)
		}
	})
}

// answering makes a server of a function.
type answering func(*http.Request) *http.Response

func (f answering) RoundTrip(req *http.Request) (*http.Response, error) { return f(req), nil }
