package answers

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/jsonpath/jsonpathtest"
)

var limitedEvents = Profile{
	Charges: []Charge{{Unit: "tokens", Field: Field{Path: "usage"}}},
	Rules: []Rule{
		{Event: "error", Path: "error.type", Text: "rate*", Kind: Limited},
		{Event: "message", Path: "error.code", Text: "429", Kind: Limited},
		{Event: "*.failed", Kind: Limited},
	},
}

// firstRefusal returns the type and the data of the first event that limitedEvents refuses, found with
// strings and encoding/json. It reports in sure whether the text is one that it can judge.
func firstRefusal(body string) (kind, data string, sure bool) {
	lines := strings.Split(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body), "\n")
	types := 0
	for _, line := range lines[:len(lines)-1] { // the last line may go on
		name, value, colon := strings.Cut(line, ":")
		switch {
		case line == "":
			if kind == "" {
				kind = "message"
			}
			if types > 1 || len(data) > maxEvent {
				return "", "", false
			}
			if data != "" && refuses(kind, data) {
				return kind, data, true
			}
			if data != "" && !json.Valid([]byte(data)) {
				return "", "", false
			}
			kind, data, types = "", "", 0
		case colon && name == "data":
			data += value + "\n"
		case colon && name == "event":
			kind = strings.TrimPrefix(value, " ")
			types++
		}
		if len(kind) >= maxEventType {
			return "", "", false
		}
	}
	return "", "", true
}

// refuses reports whether limitedEvents refuses an event. No API writes the key "error" with escapes, and a
// key that is written so is not found.
func refuses(kind, data string) bool {
	has := func(path, prefix string) bool {
		return slices.ContainsFunc(jsonpathtest.Values([]byte(data), path), func(v string) bool { return strings.HasPrefix(v, prefix) })
	}
	switch {
	case strings.HasSuffix(kind, ".failed"):
		return true
	case !json.Valid([]byte(data)):
		return false
	case kind == "error":
		return has("error.type", "rate")
	}
	return kind == "message" && strings.Contains(data, `"error"`) && slices.Contains(jsonpathtest.Values([]byte(data), "error.code"), "429")
}

// FuzzEvents checks that events are found alike however the body is split, and as another parser finds
// them.
func FuzzEvents(f *testing.F) {
	const limited = `{"error":{"type":"rate_limit_error","code":429}}`
	for _, body := range []string{
		"event: error\ndata: " + limited + "\n\n", "event:error\r\ndata:" + limited + "\r\n\r\n", "data: " + limited + "\revent: error\r\r",
		"data: " + limited + "\n\n", ": a comment\n\nevent: ping\ndata: " + limited + "\n\nevent: a.failed\ndata: {}\n\n", "event: x.failed\n\n",
		"data: {\"error\":\ndata: {\"code\":\ndata: 429}}\n\n", "event: error\nevent: ping\ndata: " + limited + "\n\n", "data: " + limited + "\n",
		"event: error\ndata\ndata: {}\n\nevent\ndata: " + limited + "\n\n", `[{"a":1},` + limited + `]`, `[1,"a",[{}],{"error":{"code":"429"}},{"error"`, "[[" + limited + "]]",
		"event: " + strings.Repeat("e", maxEventType) + "\ndata: {}\n\n", "data: " + strings.Repeat(" ", maxEvent) + limited + "\n\ndata:" + limited + "\n\n",
	} {
		f.Add(body, uint8(1))
		f.Add(body, uint8(6))
	}
	for n := range 130 { // a key at any place
		f.Add(`data: {"a":"`+strings.Repeat("a", n)+`","error":{"code":429}}`+"\n\n", uint8(31))
	}
	f.Fuzz(func(t *testing.T, body string, n uint8) {
		for _, kind := range []string{eventStream, "application/json"} {
			r := Response{Status: 200, Header: http.Header{"Content-Type": {kind}}}
			whole, parts := limitedEvents.Meter(r), limitedEvents.Meter(r)
			whole.Write([]byte(body))
			for part := range slices.Chunk([]byte(body), int(n%32)+1) {
				parts.Write(part)
				if refusals := parts.refusals; len(refusals.data) > maxEvent || len(refusals.kind) > maxEventType {
					t.Fatalf("keeps %d bytes of data and %d of a type", len(refusals.data), len(refusals.kind))
				}
			}
			got, ok := parts.Refused()
			want, is := whole.Refused()
			if got.Event != want.Event || string(got.Body) != string(want.Body) || ok != is {
				t.Fatalf("in portions: %q %q, at once: %q %q", got.Event, got.Body, want.Event, want.Body)
			}
			if ok && limitedEvents.Read(got).Kind != Limited {
				t.Fatalf("%q is no refusal", got.Body)
			}
			if event, data, sure := firstRefusal(body); sure && kind == eventStream && (event != got.Event || data != string(got.Body)) {
				t.Fatalf("%q: found %q %q, another parser %q %q", body, got.Event, got.Body, event, data)
			}
			if kind != eventStream && json.Valid([]byte(body)) && len(body) <= maxEvent && ok != jsonRefuses(body) {
				t.Fatalf("%q: found %v", body, ok)
			}
		}
	})
}

// jsonRefuses reports whether a text, or an element of it, is an error.
func jsonRefuses(body string) bool {
	var elements []json.RawMessage
	if json.Unmarshal([]byte(body), &elements) != nil {
		return refuses("message", body)
	}
	return slices.ContainsFunc(elements, func(e json.RawMessage) bool { return refuses("message", string(e)) })
}
