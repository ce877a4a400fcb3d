package providers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// A streamAPI is a stand-in of an API that answers in streams of server-sent events, with status
// 200. One of its streams ends in a refusal. From a millisecond later until the wait of the refusal
// is over, the API refuses all requests with a plain status.
type streamAPI struct {
	dialect
	bad   int             // number of the stream that ends in a refusal. If zero, none does.
	event streamedRefusal // which it ends in
	wrong []string        // a text that the model writes in each stream

	mu         sync.Mutex // guards the fields below
	began      int        // streams
	refused    int        // requests, with a plain status
	from, till time.Time  // of the plain refusals
	resumed    time.Time  // the first stream that began after the wait
}

// A dialect is the form of an API's streams.
type dialect struct {
	preset func() providers.Provider
	url    string
	body   map[string]any
	first  []string                   // events at the beginning
	said   func(text string) []string // events of a text of the model
	last   []string                   // events at the end
}

// A streamedRefusal is an event, and what the API does with requests that follow it.
type streamedRefusal struct {
	name, text string
	wait       time.Duration
	status     int // of the plain refusals
	body       string
}

func (s *streamAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	io.Copy(io.Discard, r.Body)
	r.Body.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if !s.from.IsZero() && !now.Before(s.from) && now.Before(s.till) {
		s.refused++
		return &http.Response{StatusCode: s.event.status, Header: jsonHeader(), Body: io.NopCloser(strings.NewReader(s.event.body)), Request: r}, nil
	}
	if !s.till.IsZero() && !now.Before(s.till) && s.resumed.IsZero() {
		s.resumed = now
	}
	s.began++
	events := append([]string(nil), s.first...)
	for _, text := range append([]string{"The", " quick", " brown", " fox"}, s.wrong...) {
		events = append(events, s.said(text)...)
	}
	stream := &eventStream{api: s, ctx: r.Context(), pieces: []int{len(s.event.text) + 1, 7, 1}[s.began%3]}
	if stream.events = append(events, s.last...); s.began == s.bad {
		stream.events, stream.refuses = append(events, s.event.text), true
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, streamSent: {strings.Join(stream.events, "")}},
		Body: stream, Request: r}, nil
}

// streamSent is a header with the bytes of a stream, for the test.
const streamSent = "X-Test-Sent"

// refuse begins the plain refusals.
func (s *streamAPI) refuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from.IsZero() {
		s.from, s.till = time.Now().Add(time.Millisecond), time.Now().Add(s.event.wait)
	}
}

// An eventStream is the body of a stream: an event every 200 milliseconds, in pieces.
type eventStream struct {
	api     *streamAPI
	ctx     context.Context
	events  []string
	rest    string // of an event
	pieces  int    // bytes of a Read at most
	refuses bool   // the last event is a refusal
}

func (e *eventStream) Read(p []byte) (int, error) {
	if e.rest == "" {
		if len(e.events) == 0 {
			return 0, io.EOF
		}
		if err := sleep(e.ctx, 200*time.Millisecond); err != nil {
			return 0, err
		}
		e.rest, e.events = e.events[0], e.events[1:]
	}
	n := copy(p[:min(len(p), e.pieces)], e.rest)
	if e.rest = e.rest[n:]; e.refuses && e.rest == "" && len(e.events) == 0 {
		e.api.refuse()
	}
	return n, nil
}

func (e *eventStream) Close() error { return nil }

// readStreams runs 20 workers for a duration. They read streams to the end or, if leaves is true,
// close a body after an event that is an error, as SDKs do. It returns the longest wait for a
// response, and fails if the bytes of a stream are not the ones that the API sent.
func readStreams(t *testing.T, rt http.RoundTripper, api *streamAPI, d time.Duration, leaves bool) (slowest time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for w := range 20 {
		all.Go(func() {
			for time.Sleep(time.Duration(w) * 61 * time.Millisecond); ctx.Err() == nil; {
				start := time.Now()
				r := jsonRequest(t, api.url, api.body, 0)
				r.Header.Set(fakeapi.Worker, strconv.Itoa(w))
				resp, err := rt.RoundTrip(r.WithContext(ctx))
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				slowest = max(slowest, time.Since(start))
				mu.Unlock()
				if got := readStream(resp, leaves); ctx.Err() == nil && resp.StatusCode == 200 && got != resp.Header.Get(streamSent) {
					t.Errorf("the caller read\n%q\nof\n%q", got, resp.Header.Get(streamSent))
				}
				if resp.StatusCode != 200 {
					time.Sleep(100 * time.Millisecond) // a client that tries again
				}
			}
		})
	}
	all.Wait()
	return slowest
}

// endsInError reports whether the last event of a stream is a refusal.
func endsInError(read []byte) bool {
	events, ended := bytes.CutSuffix(read, []byte("\n\n"))
	if !ended {
		return false
	}
	last := string(events[bytes.LastIndex(events, []byte("\n\n"))+1:])
	for _, begin := range []string{"event: error\n", "event: response.failed\n", `data: {"error":`} {
		if strings.HasPrefix(strings.TrimPrefix(last, "\n"), begin) {
			return true
		}
	}
	return false
}

func readStream(resp *http.Response, leaves bool) string {
	defer resp.Body.Close()
	var read bytes.Buffer
	for part := make([]byte, 512); ; {
		n, err := resp.Body.Read(part)
		read.Write(part[:n])
		if err != nil || leaves && endsInError(read.Bytes()) {
			return read.String()
		}
	}
}

// A listening client knows the API: it sends nothing after a refusal in a stream until the wait is
// over.
type listening struct {
	api *streamAPI
	mu  sync.Mutex
	off time.Time
}

func (l *listening) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		l.mu.Lock()
		wait := time.Until(l.off)
		l.mu.Unlock()
		if wait <= 0 {
			break
		}
		if err := sleep(r.Context(), wait); err != nil {
			return nil, err
		}
	}
	resp, err := l.api.RoundTrip(r)
	if err == nil && resp.StatusCode == 200 {
		resp.Body = &listened{ReadCloser: resp.Body, l: l}
	}
	return resp, err
}

type listened struct {
	io.ReadCloser
	l    *listening
	read bytes.Buffer
}

func (b *listened) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read.Write(p[:n]); n > 0 && endsInError(b.read.Bytes()) {
		b.l.mu.Lock()
		b.l.off = time.Now().Add(b.l.api.event.wait)
		b.l.mu.Unlock()
	}
	return n, err
}

// sse returns an event. Without a name, it has only data.
func sse(name, data string) string {
	if name == "" {
		return "data: " + data + "\n\n"
	}
	return "event: " + name + "\ndata: " + data + "\n\n"
}

// quoted returns a JSON string.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// The Responses API of OpenAI. Events:
// https://developers.openai.com/api/reference/resources/responses, a recorded stream with an error
// event and response.failed in the fixtures of https://github.com/prism-php/prism
// (stream-unknown-error-responses-1.json), and the recorded response.failed of a test of
// https://github.com/openai/codex ("Please try again in 11.054s"). The sentence is of
// https://github.com/pomerium/mcp-app-demo/issues/156. Read on 2026-11-28.
func responsesDialect() dialect {
	const response = `"response":{"id":"resp_1","object":"response","created_at":1751642570,"status":%q,"error":null,"model":"gpt-4o-2024-08-06","output":[],"usage":%s,"metadata":{}}`
	return dialect{
		preset: func() providers.Provider { return providers.OpenAI(10_000, 100_000_000) },
		url:    "https://api.openai.com/v1/responses",
		body:   map[string]any{"model": "gpt-4o", "stream": true, "input": text(150), "max_output_tokens": 500},
		first:  []string{sse("response.created", `{"type":"response.created","sequence_number":0,`+fmt.Sprintf(response, "in_progress", "null")+`}`)},
		said: func(text string) []string {
			return []string{sse("response.output_text.delta", `{"type":"response.output_text.delta","sequence_number":1,"item_id":"msg_1","output_index":0,"content_index":0,"delta":`+quoted(text)+`}`)}
		},
		last: []string{sse("response.completed", `{"type":"response.completed","sequence_number":9,`+fmt.Sprintf(response, "completed", `{"input_tokens":150,"output_tokens":4,"total_tokens":154}`)+`}`)},
	}
}

func responsesRefusals() []streamedRefusal {
	const sentence = "Rate limit reached for gpt-4o in organization org-AAA on tokens per min (TPM): Limit 450000, Used 379102, Requested 89741. Please try again in 2.512s. Visit https://platform.openai.com/account/rate-limits to learn more."
	const parts = `"code":"rate_limit_exceeded","message":"` + sentence + `"`
	refusal := streamedRefusal{wait: 2512 * time.Millisecond, status: 429, body: `{"error":{"type":"tokens","param":null,` + parts + `}}`}
	all := []streamedRefusal{
		{name: "error", text: sse("error", `{"type":"error","sequence_number":6,"error":{"type":"tokens","param":null,`+parts+`}}`)},
		{name: "error, flat", text: sse("error", `{"type":"error","sequence_number":6,"param":null,`+parts+`}`)},
		{name: "response.failed", text: sse("response.failed", `{"type":"response.failed","sequence_number":6,"response":{"id":"resp_1","object":"response","created_at":1751642570,"status":"failed","background":false,"error":{`+parts+`},"usage":null,"user":null,"metadata":{}}}`)},
	}
	for i := range all {
		all[i].wait, all[i].status, all[i].body = refusal.wait, refusal.status, refusal.body
	}
	return all
}

// The Messages API of Anthropic, whose errors may follow a status of 200 in a stream:
// https://platform.claude.com/docs/en/build-with-claude/streaming and
// https://platform.claude.com/docs/en/api/errors, read on 2026-11-28. They name no wait: a second
// here, which is the least that a client without other knowledge waits.
func messagesDialect() dialect {
	return dialect{
		preset: func() providers.Provider { return providers.Anthropic(10_000, 10_000_000, 10_000_000) },
		url:    anthropicURL + "messages",
		body:   map[string]any{"model": "claude-sonnet-4-5", "stream": true, "messages": messagesOf(150), "max_tokens": 500},
		first: []string{sse("message_start", `{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"claude-sonnet-4-5","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":150,"output_tokens":1}}}`),
			sse("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`), sse("ping", `{"type": "ping"}`)},
		said: func(text string) []string {
			return []string{sse("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+quoted(text)+`}}`)}
		},
		last: []string{sse("content_block_stop", `{"type":"content_block_stop","index":0}`),
			sse("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":4}}`), sse("message_stop", `{"type":"message_stop"}`)},
	}
}

// An overloaded_error is not among them: it concerns all users and names no wait, and a plain 529 without
// Retry-After pauses nothing either.
func messagesRefusals() []streamedRefusal {
	const limited = `{"type":"error","error":{"type":"rate_limit_error","message":"Number of requests has exceeded your rate limit"}}`
	return []streamedRefusal{
		{"rate_limit_error", sse("error", limited), time.Second, 429, limited},
	}
}

// The Gemini API, whose stream may end in an error object after status 200. That it does is of
// tests of clients, such as TestParseSSEStreamError of a client that names Vertex AI, and the
// object is that of a plain refusal; no recorded stream was found. Read on 2026-11-28.
func geminiDialect() dialect {
	chunk := func(parts, rest string) string {
		return sse("", `{"candidates":[{"content":{"parts":[`+parts+`],"role":"model"},"index":0`+rest)
	}
	return dialect{
		preset: func() providers.Provider { return providers.Gemini(10_000, 10_000_000, 0) },
		url:    "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
		body:   map[string]any{"contents": []any{map[string]any{"role": "user", "parts": []any{map[string]any{"text": text(150)}}}}},
		said: func(text string) []string {
			events := []string{chunk(`{"text":`+quoted(text)+`}`, `}]}`)}
			if json.Valid([]byte(text)) { // a model that calls a function with an object
				events = append(events, chunk(`{"functionCall":{"name":"report","args":`+text+`}}`, `}]}`))
			}
			return events
		},
		last: []string{chunk(`{"text":"."}`, `,"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":150,"candidatesTokenCount":4,"totalTokenCount":154},"modelVersion":"gemini-2.5-flash"}`)},
	}
}

func geminiRefusals() []streamedRefusal {
	body := geminiRefusal("gemini-2.5-flash", "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "20", "20.04s")
	return []streamedRefusal{{"error", sse("", body), 20040 * time.Millisecond, 429, body}}
}

// A refusal in a stream that has begun pauses the quota as a plain one does.
func TestRefusalInStreamStandIn(t *testing.T) {
	for _, test := range []struct {
		name     string
		dialect  dialect
		refusals []streamedRefusal
	}{
		{"OpenAI", responsesDialect(), responsesRefusals()},
		{"Anthropic", messagesDialect(), messagesRefusals()},
		{"Gemini", geminiDialect(), geminiRefusals()},
	} {
		for _, refusal := range test.refusals {
			for _, leaves := range []bool{false, true} {
				name := fmt.Sprintf("%s, %s, closed after it %v", test.name, refusal.name, leaves)
				t.Run(name+", a client that knows the API", func(t *testing.T) {
					soak.Sample(t, 4)
					refuseInStream(t, test.dialect, refusal, leaves, func(_ *testing.T, api *streamAPI) http.RoundTripper { return &listening{api: api} })
				})
				t.Run(name+", the preset", func(t *testing.T) {
					soak.Sample(t, 4)
					refuseInStream(t, test.dialect, refusal, leaves, func(t *testing.T, api *streamAPI) http.RoundTripper { return over(t, test.dialect.preset(), api) })
				})
			}
		}
	}
}

func refuseInStream(t *testing.T, d dialect, e streamedRefusal, leaves bool, client func(*testing.T, *streamAPI) http.RoundTripper) {
	synctest.Test(t, func(t *testing.T) {
		for bad := 30; bad < 33; bad++ { // streams in large, small and smallest pieces
			api := &streamAPI{dialect: d, bad: bad, event: e}
			readStreams(t, client(t, api), api, 12*time.Second+e.wait, leaves)
			resumed := api.resumed.Sub(api.till)
			t.Logf("stream %d: %d requests refused with status %d during the wait; streams again after it by %v, %d in all", bad, api.refused, e.status, resumed, api.began)
			if api.refused > 0 {
				t.Errorf("%d requests were sent during the wait", api.refused)
			}
			if api.resumed.IsZero() || resumed > 5*time.Second {
				t.Errorf("no stream within 5 s after the wait: %v", resumed)
			}
		}
	})
}

// A model that quotes an error in what it writes pauses nothing.
func TestQuotedRefusalInStreamStandIn(t *testing.T) {
	for name, d := range map[string]dialect{"OpenAI": responsesDialect(), "Anthropic": messagesDialect(), "Gemini": geminiDialect()} {
		t.Run(name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := &streamAPI{dialect: d}
				for _, r := range append(append(responsesRefusals(), messagesRefusals()...), geminiRefusals()...) {
					api.wrong = append(api.wrong, r.text, "\n\n"+r.text, r.body)
				}
				slowest := readStreams(t, over(t, d.preset(), api), api, 30*time.Second, false)
				if t.Logf("%d streams; the longest wait was %v", api.began, slowest); slowest > 500*time.Millisecond {
					t.Errorf("a request waited %v", slowest)
				}
			})
		})
	}
}
