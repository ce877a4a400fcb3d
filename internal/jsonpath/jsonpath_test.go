package jsonpath

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/apithrottle/throttle/internal/jsonpath/jsonpathtest"
)

// scan writes doc in portions of n bytes. It returns the first and the last value at the path, and
// the first value that contains an a.
func scan(doc []byte, path string, n int) (found [3]string) {
	s := Scanner{Queries: []Query{{Path: path}, {Path: path, Last: true}, {Path: path, Pattern: "*a*"}}}
	s.Reset()
	for portion := range slices.Chunk(doc, n) {
		s.Write(portion)
	}
	for i := range s.Queries {
		if found[i] = string(s.Queries[i].value); s.Queries[i].nth == 0 {
			found[i] = "none"
		}
	}
	return found
}

func TestScanner(t *testing.T) {
	long := strings.Repeat("x", MaxToken)
	for _, c := range []struct{ name, doc, path, want string }{
		{"a key", `{"a":1}`, "a", "1"},
		{"a number as it stands", `{"a":-1.50e+2}`, "a", "-1.50e+2"},
		{"a boolean", `{"a":false}`, "a", "false"},
		{"null", `{"a":null}`, "a", "none"},
		{"the second, if the first is null", `[{"a":null},{"a":2}]`, "*.a", "2"},
		{"the first", `{"a":1,"a":2}`, "a", "1"},
		{"keys within keys", `{"a":{"b":{"c":"v"}}}`, "a.b.c", "v"},
		{"the same keys elsewhere", `{"x":{"a":1},"a":[{"b":0}],"a":{"x":3,"b":2}}`, "a.b", "2"},
		{"after a skipped value", `{"x":[{"y":"]}"},"\"]",[]],"a":1}`, "a", "1"},
		{"a path that is a prefix of another key", `{"a":{"b":1},"ab":2}`, "ab", "2"},
		{"a container at the path", `{"a":{"b":1}}`, "a", "none"},
		{"a value within the path", `{"a":1}`, "a.b", "none"},
		{"a star", `[{"a":1},{"b":"v"}]`, "*.b", "v"},
		{"stars", `{"e":[[],[{"d":[1,2]}]]}`, "e.*.*.d.*", "1"},
		{"a star for a key", `{"x":1}`, "*", "1"},
		{"stars for keys and elements", `{"5":[{"t":"a","n":2}],"7":[{"n":3}]}`, "*.*.n", "2"},
		{"a key named star", `{"*":1}`, "*", "1"},
		{"a number does not match an index", `[1]`, "0", "none"},
		{"escapes in a key", `{"\u0061\"":1}`, `a"`, "1"},
		{"escapes in a value", `{"a":"\ud83d\ude00\n\\"}`, "a", "😀\n\\"},
		{"invalid UTF-8", "{\"a\":\"\xff\"}", "a", "\ufffd"},
		{"a scalar alone", `1`, "a", "none"},
		{"a second text", `{"b":1}{"a":1}`, "a", "none"},
		{"space", " {\n\"a\"\t:\r1 }", "a", "1"},
		{"half a number", `{"a":12`, "a", "none"},
		{"half a string", `{"a":"12`, "a", "none"},
		{"half a container", `{"a":12,`, "a", "12"},
		{"no comma", `{"b":1 "a":1}`, "a", "none"},
		{"no colon", `{"a" 1}`, "a", "none"},
		{"the wrong bracket", `{"b":[1},"a":1}`, "a", "1"}, // no path leads into b, so its brackets are not matched
		{"the wrong bracket on the path", `{"a":[1},"a":1}`, "a.b", "none"},
		{"the wrong bracket after a match", `{"a":{"b":1],"a":{"c":2}}`, "a.c", "none"},
		{"a comma at the end", `{"a":{"b":1,},"c":2}`, "a.c", "none"},
		{"an invalid word", `{"a":nul,"a":1}`, "a", "none"},
		{"an invalid number", `{"a":01,"a":1}`, "a", "none"},
		{"an invalid escape", `{"a":"\x","a":1}`, "a", "none"},
		{"a raw newline", "{\"a\":\"\n\",\"a\":1}", "a", "none"},
		{"not JSON", `<html>`, "a", "none"},
		{"the longest value", `{"a":"` + long + `"}`, "a", long},
		{"a value that is too long", `{"a":"` + long + `x","a":1}`, "a", "1"},
		{"a key that is too long", `{"` + long + `x":1}`, long + "x", "none"},
		{"deep", strings.Repeat(`{"a":`, 63) + "1" + strings.Repeat("}", 63), strings.Repeat("a.", 62) + "a", "1"},
		{"too deep", strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64), strings.Repeat("a.", 63) + "a", "none"},
		{"a million brackets", strings.Repeat("[", 1_000_000), "*.*.a", "none"},
	} {
		for _, n := range []int{1, 2, 3, 7, len(c.doc)} {
			if got := scan([]byte(c.doc), c.path, n)[0]; got != c.want {
				t.Errorf("%s, in portions of %d bytes: %.40q, want %.40q", c.name, n, got, c.want)
			}
		}
	}
}

// A Scanner stops reading once every query is settled.
func TestScannerStops(t *testing.T) {
	s := Scanner{Queries: []Query{{Path: "a"}}}
	if s.Scan([]byte(`{"a":1,`)); s.state != done {
		t.Error("the scanner reads on after the value")
	}
	if s.Scan([]byte(`{"a":2}`)); string(s.Queries[0].value) != "1" {
		t.Errorf("after a second text: %s, want 1", s.Queries[0].value)
	}
	s.Queries = nil
	if s.Scan([]byte("{")); s.state != done {
		t.Error("without queries: the scanner reads on")
	}
}

func TestScannerNestedPaths(t *testing.T) {
	s := Scanner{Queries: []Query{{Path: "a.b"}, {Path: "a"}, {Path: "a.b.c"}}}
	s.Scan([]byte(`{"a":1,"a":{"b":{"c":2},"b":3}}`))
	for i, want := range []string{"3", "1", "2"} {
		if got := string(s.Queries[i].value); got != want {
			t.Errorf("at %s: %s, want %s", s.Queries[i].Path, got, want)
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, doc := range []string{`{"a":{"b":[{"c":"a1"},{"c":2},3]},"d":null}`, `[[1,"\u0061\\\""],{"*":true}]`, `{"a":-1.5e9,"a":"b"}`, `{"a" 1}`, `"a"`, `[`} {
		for _, path := range []string{"a", "a.b.*.c", "*.*", "a.b.*", "*", "d", "a.", ".a", "a..b"} {
			f.Add([]byte(doc), path, uint16(3))
		}
	}
	f.Fuzz(func(t *testing.T, doc []byte, path string, n uint16) {
		if path == "" || len(path) > 60 {
			return
		}
		whole := scan(doc, path, len(doc)+1)
		if parts := scan(doc, path, int(n%16)+1); parts != whole {
			t.Fatalf("in portions: %q, at once: %q", parts, whole)
		}
		cut := doc[:int(n)%(len(doc)+1)]
		for i, got := range scan(cut, path, len(doc)+1) {
			if i != 1 && got != "none" && got != whole[i] {
				t.Fatalf("truncated text: %q, whole text: %q", got, whole[i])
			}
		}
		if !json.Valid(doc) || len(doc) > MaxToken || strings.Contains("."+path+".", "..") {
			return
		}
		want := [3]string{"none", "none", "none"}
		for i, v := range jsonpathtest.Values(doc, path) {
			if i == 0 {
				want[0] = v
			}
			if want[1] = v; want[2] == "none" && strings.Contains(v, "a") {
				want[2] = v
			}
		}
		if whole != want {
			t.Fatalf("%q at %q: %q, encoding/json: %q", doc, path, whole, want)
		}
		var each []string
		s := Scanner{Queries: []Query{{Path: path, Last: true}}, Each: func(v []byte) { each = append(each, string(v)) }}
		if s.Scan(doc); !slices.Equal(each, jsonpathtest.Values(doc, path)) {
			t.Fatalf("%q at %q: each of %q, encoding/json: %q", doc, path, each, jsonpathtest.Values(doc, path))
		}
	})
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, v string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*b", "ab", true}, {"*b", "ba", false},
		{"a*", "ab", true}, {"a*", "ba", false}, {"*b*", "abc", true}, {"*", "", true}, {"", "a", false},
	} {
		if got := Match(c.pattern, c.v); got != c.want {
			t.Errorf("Match(%q, %q) = %v, want %v", c.pattern, c.v, got, c.want)
		}
	}
}

func BenchmarkScanner(b *testing.B) {
	chat := `{"choices":[` + strings.Repeat(`{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat("The quick brown fox. ", 40)+`"}},`, 70) + `1],"usage":{"total_tokens":64}}`
	rows := `{"data":[` + strings.Repeat(`{"id":"gid://shopify/Product/1","n":[1,2.5,true],"title":"a"},`, 1000) + `1],"usage":{"total_tokens":64}}`
	for _, c := range []struct{ name, doc, path string }{{"texts", chat, "usage.total_tokens"}, {"rows", rows, "usage.total_tokens"}, {"every row", rows, "data.*.errorCode"}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			s, doc := Scanner{Queries: []Query{{Path: c.path, Last: true}}}, []byte(c.doc)
			for b.Loop() {
				s.Scan(doc)
			}
		})
	}
}
