package corpus_test

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"testing"

	. "github.com/apithrottle/throttle/answers"
)

const (
	openaiStream = `data: {"id":"c","choices":[{"delta":{"content":"usage: \"total_tokens\":9"}}],"usage":null}

data: {"id":"c","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}

data: [DONE]

`
	anthropicStream = `event: message_start
data: {"type":"message_start","message":{"id":"m","usage":{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":7,"output_tokens":1}}}

: a comment
event: ping
data: {"type": "ping"}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

`
)

var stream = http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}

// charged writes a body to a meter in portions of n bytes.
func charged(p Profile, h http.Header, body string, n int) string {
	m := p.Meter(Response{Status: 200, Header: h})
	if m == nil {
		return "no meter"
	}
	for part := range slices.Chunk([]byte(body), n) {
		m.Write(part)
	}
	return format(Answer{Charged: m.Charged()})
}

func TestMeterStreams(t *testing.T) {
	openai, anthropic := profiles["OpenAI"], profiles["Anthropic"]
	for _, c := range []struct {
		name    string
		profile Profile
		body    string
		want    string
	}{
		{"the last event", openai, openaiStream, "charged 12 tokens"},
		{"running totals", anthropic, anthropicStream, "charged 125 input tokens charged 15 output tokens charged 100 cache creation tokens charged 7 cache read tokens"},
		{"both totals in the last event", anthropic, strings.Replace(anthropicStream, `"usage":{"output_tokens":15}`, `"usage":{"input_tokens":30,"output_tokens":15}`, 1), "charged 130 input tokens charged 15 output tokens charged 100 cache creation tokens charged 7 cache read tokens"},
		{"cut off", anthropic, anthropicStream[:strings.Index(anthropicStream, ": a comment")], "charged 125 input tokens charged 1 output tokens charged 100 cache creation tokens charged 7 cache read tokens"},
		{"no empty line at the end", openai, strings.TrimRight(openaiStream[:strings.Index(openaiStream, "data: [")], "\n"), "charged 12 tokens"},
		{"no space", openai, "data:{\"usage\":{\"total_tokens\":3}}\n\n", "charged 3 tokens"},
		{"data on several lines", openai, "data: {\"usage\":\ndata: {\"total_tokens\":\nid: 7\n: so\ndata: 3\ndata: }}\n\n", "charged 3 tokens"},
		{"a number on two lines", openai, "data: {\"usage\":{\"total_tokens\":1\ndata:2}}\n\n", "charged 1 tokens"},
		{"an event cut in two", openai, "data: {\"usage\":\n\ndata: {\"total_tokens\":3}}\n\n", "nothing"},
		{"other fields", openai, "event: {\"usage\":{\"total_tokens\":3}}\ndatum: {\"usage\":{\"total_tokens\":3}}\ndat\ndata\n\n", "nothing"},
		{"after a malformed event", openai, "data: {\"usage\" 3}\n\ndata: {\"usage\":{\"total_tokens\":3}}\n\n", "charged 3 tokens"},
		{"not a number", openai, "data: {\"usage\":{\"total_tokens\":\"many\"}}\n\n", "nothing"},
		{"empty", openai, "", "nothing"},
	} {
		for _, end := range []string{"\n", "\r\n", "\r"} {
			body := strings.ReplaceAll(c.body, "\n", end)
			for n := range 20 {
				if got := charged(c.profile, stream, body, n+1); got != c.want {
					t.Errorf("%s, line end %q, portions of %d bytes: %s, want %s", c.name, end, n+1, got, c.want)
				}
			}
		}
	}
}

// TestMeter has bodies with a meter and bodies without.
func TestMeter(t *testing.T) {
	const body = `{"usage":{"total_tokens":64,"more":36}}`
	of := func(cs ...Charge) Profile { return Profile{Charges: cs} }
	tokens := Charge{Unit: "tokens", Field: in("usage.total_tokens", Number)}
	type header = map[string]string
	for _, c := range []struct {
		name    string
		profile Profile
		header  header
		want    string
	}{
		{"JSON", of(tokens), header{"Content-Type": "application/json"}, "charged 64 tokens"},
		{"JSON by another name", of(tokens), header{"Content-Type": "application/vnd.API+JSON; charset=utf-8"}, "charged 64 tokens"},
		{"JSON from Amazon", of(tokens), header{"Content-Type": "application/x-amz-json-1.1"}, "charged 64 tokens"},
		{"not compressed", of(tokens), header{"Content-Type": "application/json", "Content-Encoding": "identity"}, "charged 64 tokens"},
		{"compressed", of(tokens), header{"Content-Type": "application/json", "Content-Encoding": "gzip"}, "no meter"},
		{"from a cache", of(tokens), header{"Content-Type": "application/json", "Age": "1"}, "no meter"},
		{"lines of JSON", of(tokens), header{"Content-Type": "application/x-ndjson"}, "no meter"},
		{"HTML", of(tokens), header{"Content-Type": "text/html"}, "no meter"},
		{"no Content-Type", of(tokens), nil, "no meter"},
		{"the cost in a header", of(Charge{Field: num("X-Cost")}), header{"Content-Type": "application/json"}, "no meter"},
		{"the cost in a header that is present", of(Charge{Field: num("X-Cost"), Or: tokens.Field}), header{"Content-Type": "application/json", "X-Cost": "5"}, "no meter"},
		{"the cost in a header that is absent", of(Charge{Unit: "tokens", Field: num("X-Cost"), Or: tokens.Field}), header{"Content-Type": "application/json"}, "charged 64 tokens"},
		{"no charges", of(), header{"Content-Type": "application/json"}, "no meter"},
		{"a sum", of(tokens, Charge{Unit: "tokens", Field: in("usage.more", Number)}), header{"Content-Type": "application/json"}, "charged 100 tokens"},
		{"one path twice", of(tokens, tokens), header{"Content-Type": "application/json"}, "charged 128 tokens"},
		{"several times", of(tokens, Charge{Unit: "tokens", Field: in("usage.more", Number), Times: 5}), header{"Content-Type": "application/json"}, "charged 244 tokens"},
		{"one path, two units", of(tokens, Charge{Field: tokens.Field}), header{"Content-Type": "application/json"}, "charged 64 tokens charged 64 requests"},
		{"a format that is not a count", of(Charge{Field: in("usage.total_tokens", Seconds)}), header{"Content-Type": "application/json"}, "nothing"},
	} {
		h := http.Header{}
		for k, v := range c.header {
			h.Set(k, v)
		}
		if got := charged(c.profile, h, body, 5); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Gemini streams an array, unless the request asks for events. Each element has the total so far.
func TestMeterArray(t *testing.T) {
	p := Profile{Charges: []Charge{{Unit: "tokens", Field: in("u.total", Number), Or: in("*.u.total", Number)}}}
	h := http.Header{"Content-Type": {"application/json"}}
	if got := charged(p, h, `[{"u":{"total":1}},{"u":{"total":5}}]`, 3); got != "charged 5 tokens" {
		t.Error(got)
	}
	if got := charged(p, h, `{"u":{"total":5}}`, 3); got != "charged 5 tokens" {
		t.Error(got)
	}
}

// Elements are counted once the body has been read to its end, and there may be none.
func TestMeterCountsElements(t *testing.T) {
	p := Profile{Charges: []Charge{
		{Unit: "points", Field: in("issues.*.id", Elements)},
		{Unit: "points", Field: in("users.*.id", Elements), Times: 2},
	}}
	h := http.Header{"Content-Type": {"application/json"}}
	for body, want := range map[string]string{
		`{"issues":[{"id":"1","fields":{"id":"x"}},{"id":"2"},{"key":"A-3"}],"isLast":true}`: "charged 2 points",
		`{"issues":[{"id":1}],"users":[{"id":"a"},{"id":"b"}]}` + "\n":                       "charged 5 points",
		`{"issues":[]}`:             "charged 0 points",
		`{"errorMessages":["no"]}`:  "charged 0 points",
		`{"issues":[{"id":"1"}`:     "nothing",
		`{"issues":[{"id":"1"}]]}`:  "nothing",
		`[{"issues":[{"id":"1"}]}]`: "charged 0 points",
	} {
		for _, portion := range []int{1, 7, 1_000} {
			if got := charged(p, h, body, portion); got != want {
				t.Errorf("%s: %s, want %s", body, got, want)
			}
		}
	}
}

// A hash is the same number for the same text alone, and none for no text.
func TestChargeHash(t *testing.T) {
	p := Profile{Charges: []Charge{{Unit: "bucket", Field: at("X-Bucket", Hash)}}}
	seen := map[int64]string{}
	for _, text := range []string{"a", "b", "0", "-1", "1e99", strings.Repeat("a", 9_000), "a"} {
		charged := p.Read(Response{Status: 200, Header: http.Header{"X-Bucket": {text}}}).Charged
		if len(charged) != 1 || charged[0].Unit != "bucket" || charged[0].N < 1 {
			t.Fatalf("%.9s: %v", text, charged)
		}
		if other, is := seen[charged[0].N]; is != (other == text) {
			t.Errorf("%.9s has the number of %.9s", text, other)
		}
		seen[charged[0].N] = text
	}
	if charged := p.Read(Response{Status: 200, Header: http.Header{}}).Charged; len(charged) != 0 {
		t.Errorf("no header: %v", charged)
	}
}

// message returns a message of Amazon's with some headers and a payload.
func message(headers, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(16+len(headers)+len(payload)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
	return string(b) + "crc1" + headers + payload + "crc2"
}

// Bedrock streams messages whose payloads are JSON, or JSON in base64.
func TestMeterAmazon(t *testing.T) {
	p := Profile{Charges: []Charge{{Unit: "tokens", Field: in("usage.outputTokens", Number), Or: in("metrics.outputTokenCount", Number)}}}
	const headers = "\x0b:event-type\x07\x00\x08metadata"
	encoded := func(json, after string) string {
		return message(headers, `{"bytes":"`+base64.StdEncoding.EncodeToString([]byte(json))+`"`+after+`}`)
	}
	metadata := message(headers, `{"metrics":{"latencyMs":50},"usage":{"inputTokens":10,"outputTokens":3}}`)
	for _, c := range []struct{ name, body, want string }{
		{"converse", message(headers, `{"delta":{"text":"usage"}}`) + metadata, "charged 3 tokens"},
		{"no headers", message("", `{"usage":{"outputTokens":4}}`), "charged 4 tokens"},
		{"no payload", message(headers, "") + message("", "") + metadata, "charged 3 tokens"},
		{"the last message", metadata + message(headers, `{"usage":{"outputTokens":5}}`) + message(headers, `{"p":"abc"}`), "charged 5 tokens"},
		{"base64", encoded(`{"type":"content_block_delta"}`, `,"p":"abcd"`) + encoded(`{"type":"message_stop","metrics":{"outputTokenCount":36}}`, `,"p":"ab"`), "charged 36 tokens"},
		{"base64 with padding", encoded(`{"metrics":{"outputTokenCount":7}}`, ""), "charged 7 tokens"},
		{"malformed base64", message(headers, `{"bytes":"!!!!"}`) + metadata, "charged 3 tokens"},
		{"a short payload", message(headers, `{"by`) + metadata, "charged 3 tokens"},
		{"cut off", metadata[:len(metadata)-20], "nothing"},
		{"without its checksum", metadata[:len(metadata)-4], "charged 3 tokens"},
		{"headers longer than the message", "\x00\x00\x00\x20\x00\x00\x00\x21crc1" + metadata, "nothing"},
		{"shorter than a message", "\x00\x00\x00\x0f\x00\x00\x00\x00crc1" + metadata, "nothing"},
		{"longer than any", "\xff\xff\xff\xff\x00\x00\x00\x00crc1" + metadata, "nothing"},
		{"JSON", `{"usage":{"outputTokens":3}}`, "nothing"},
		{"empty", "", "nothing"},
	} {
		for n := range 30 {
			if got := charged(p, http.Header{"Content-Type": {"application/vnd.amazon.eventstream"}}, c.body, n+1); got != c.want {
				t.Errorf("%s, portions of %d bytes: %s, want %s", c.name, n+1, got, c.want)
			}
		}
	}
}

// Read reads the charges in headers. It adds up charges of one unit, and reads Or if Field has no
// number.
func TestChargesInHeaders(t *testing.T) {
	p := Profile{Charges: []Charge{
		{Unit: "t", Field: num("A"), Or: num("B")}, {Unit: "t", Field: num("C")}, {Unit: "u", Field: num("D"), Times: 3}, {Unit: "t", Field: in("a", Number)},
	}}
	runWith(t, p, []readTest{
		{name: "a sum", lines: []string{"A: 1", "B: 2", "C: 4", "D: 8"}, want: "charged 5 t charged 24 u"},
		{name: "the largest product", lines: []string{"D: 333333333333334"}, want: "charged 999999999999999 u"},
		{name: "the other place", lines: []string{"B: 2", "C: 4"}, want: "charged 6 t"},
		{name: "the first place is not a number", lines: []string{"A: x", "B: 2"}, want: "charged 2 t"},
		{name: "the largest count", lines: []string{"A: 999999999999999", "C: 1"}, want: "charged 999999999999999 t"},
	})
	if got := format(p.Read(response(200, `{"a":1}`, "C: 4"))); got != "charged 4 t" {
		t.Errorf("Read of a charge in the body: %s", got)
	}
}

// byStatus is a profile of a provider whose requests cost 1, 0 or 5 by their status.
var byStatus = Profile{Charges: []Charge{
	{Unit: "core", ByStatus: map[int]int64{304: 0, 500: 5, 0: 1}},
	{Unit: "invalid", ByStatus: map[int]int64{401: 1, 403: 1}}, // others report no charge
	{Unit: "tokens", Field: in("tokens", Number), Times: 3},
}}

// The status alone decides what a Charge with ByStatus is. The tokens count three times.
func TestChargesByStatus(t *testing.T) {
	runWith(t, byStatus, []readTest{
		{name: "free", status: 304, want: "charged 0 core"},
		{name: "a status of its own", status: 500, want: "charged 5 core"},
		{name: "every other", status: 404, want: "charged 1 core"},
		{name: "two units", status: 401, want: "charged 1 core charged 1 invalid"},
		{name: "beside the body", status: 200, body: `{"tokens":7}`, want: "charged 1 core charged 21 tokens"},
		{name: "from a cache", status: 304, lines: []string{"Age: 60"}, want: "nothing"},
	})
}

// BenchmarkMeter/<stream>/<what> reads a stream of 1 MB in portions of 32 KB. What is the cost alone, or also
// refusals.
func BenchmarkMeter(b *testing.B) {
	for _, c := range []struct{ name, kind, api, event, end, body string }{
		{"OpenAI", "text/event-stream", "OpenAI", `data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":" fox"}}],"usage":null}` + "\n\n", "", openaiStream},
		{"Anthropic", "text/event-stream", "Anthropic", "event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}` + "\n\n", "", anthropicStream},
		{"Gemini", "text/event-stream", "Google Gemini API", `data: {"candidates":[{"content":{"parts":[{"text":"Hello, and then some more text"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":8},"modelVersion":"gemini-2.5-flash"}` + "\r\n\r\n", "", ""},
		{"array", "application/json", "Google Gemini API", `{"candidates":[{"content":{"parts":[{"text":"Hello, and then some more text"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":8},"modelVersion":"gemini-2.5-flash"},` + "\r\n", "{}]", ""},
	} {
		body := []byte(strings.Repeat(c.event, 1<<20/len(c.event)) + c.body + c.end)
		if c.end != "" {
			body = append([]byte{'['}, body...)
		}
		r := Response{Method: "POST", Status: 200, Header: http.Header{"Content-Type": {c.kind}}}
		for _, what := range []string{"cost", "refusals"} {
			p := profiles[c.api]
			if len(p.Charges) == 0 {
				p.Charges = []Charge{{Unit: "tokens", Field: in("usageMetadata.promptTokenCount", Number), Or: in("*.usageMetadata.promptTokenCount", Number)}}
			}
			if what == "cost" {
				p.Rules = nil
			}
			b.Run(c.name+"/"+what, func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					m := p.Meter(r)
					for part := range slices.Chunk(body, 32<<10) {
						m.Write(part)
					}
					if _, refused := m.Refused(); refused || len(m.Charged()) == 0 {
						b.Fatal(m.Charged())
					}
				}
			})
		}
	}
}
