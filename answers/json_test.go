package answers

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// scan writes doc in portions of n bytes, and returns the first and the last value at
// the path, and the first that has an a in it.
func scan(doc []byte, path string, n int) (found [3]string) {
	s := scanner{wants: []want{{path: path}, {path: path, last: true}, {path: path, text: "*a*"}}}
	s.reset()
	for portion := range slices.Chunk(doc, n) {
		s.write(portion)
	}
	for i := range s.wants {
		if found[i] = string(s.wants[i].value); s.wants[i].nth == 0 {
			found[i] = "none"
		}
	}
	return found
}

func TestScanner(t *testing.T) {
	long := strings.Repeat("x", mostToken)
	for _, c := range []struct{ name, doc, path, want string }{
		{"a key", `{"a":1}`, "a", "1"},
		{"a number as it stands", `{"a":-1.50e+2}`, "a", "-1.50e+2"},
		{"a boolean", `{"a":false}`, "a", "false"},
		{"null", `{"a":null}`, "a", "none"},
		{"the second, if the first is null", `[{"a":null},{"a":2}]`, "*.a", "2"},
		{"the first", `{"a":1,"a":2}`, "a", "1"},
		{"keys within keys", `{"a":{"b":{"c":"v"}}}`, "a.b.c", "v"},
		{"the same keys elsewhere", `{"x":{"a":1},"a":[{"b":0}],"a":{"x":3,"b":2}}`, "a.b", "2"},
		{"behind what is passed over", `{"x":[{"y":"]}"},"\"]",[]],"a":1}`, "a", "1"},
		{"a path that is another's beginning", `{"a":{"b":1},"ab":2}`, "ab", "2"},
		{"a container at the path", `{"a":{"b":1}}`, "a", "none"},
		{"a value within the path", `{"a":1}`, "a.b", "none"},
		{"a star", `[{"a":1},{"b":"v"}]`, "*.b", "v"},
		{"stars", `{"e":[[],[{"d":[1,2]}]]}`, "e.*.*.d.*", "1"},
		{"a star is no key", `{"x":1}`, "*", "none"},
		{"but its own", `{"*":1}`, "*", "1"},
		{"a key is no index", `[1]`, "0", "none"},
		{"escapes in a key", `{"\u0061\"":1}`, `a"`, "1"},
		{"escapes in a value", `{"a":"\ud83d\ude00\n\\"}`, "a", "😀\n\\"},
		{"no UTF-8", "{\"a\":\"\xff\"}", "a", "\ufffd"},
		{"a scalar alone", `1`, "a", "none"},
		{"a second text", `{"b":1}{"a":1}`, "a", "none"},
		{"space", " {\n\"a\"\t:\r1 }", "a", "1"},
		{"half a number", `{"a":12`, "a", "none"},
		{"half a string", `{"a":"12`, "a", "none"},
		{"half a container", `{"a":12,`, "a", "12"},
		{"no comma", `{"b":1 "a":1}`, "a", "none"},
		{"no colon", `{"a" 1}`, "a", "none"},
		{"the wrong bracket", `{"b":[1},"a":1}`, "a", "1"}, // nothing is wanted there, so nobody looks
		{"the wrong bracket on the way", `{"a":[1},"a":1}`, "a.b", "none"},
		{"another", `{"a":{"b":1],"a":{"c":2}}`, "a.c", "none"},
		{"a comma at the end", `{"a":{"b":1,},"c":2}`, "a.c", "none"},
		{"a word that is none", `{"a":nul,"a":1}`, "a", "none"},
		{"a number that is none", `{"a":01,"a":1}`, "a", "none"},
		{"an escape that is none", `{"a":"\x","a":1}`, "a", "none"},
		{"a raw line end", "{\"a\":\"\n\",\"a\":1}", "a", "none"},
		{"not JSON", `<html>`, "a", "none"},
		{"as long as may be", `{"a":"` + long + `"}`, "a", long},
		{"too long a value", `{"a":"` + long + `x","a":1}`, "a", "1"},
		{"too long a key", `{"` + long + `x":1}`, long + "x", "none"},
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

// Of a text with all that is wanted at its beginning the rest isn't looked at.
func TestScannerStops(t *testing.T) {
	s := scanner{wants: []want{{path: "a"}}}
	if s.scan([]byte(`{"a":1,`)); s.state != over {
		t.Error("it goes on")
	}
	if s.scan([]byte(`{"a":2}`)); string(s.wants[0].value) != "1" {
		t.Errorf("what was found first is now %s", s.wants[0].value)
	}
	s.wants = nil
	if s.scan([]byte("{")); s.state != over {
		t.Error("nothing is wanted, and it goes on")
	}
}

func TestScannerOfNestedPaths(t *testing.T) {
	s := scanner{wants: []want{{path: "a.b"}, {path: "a"}, {path: "a.b.c"}}}
	s.scan([]byte(`{"a":1,"a":{"b":{"c":2},"b":3}}`))
	for i, want := range []string{"3", "1", "2"} {
		if got := string(s.wants[i].value); got != want {
			t.Errorf("at %s: %s, want %s", s.wants[i].path, got, want)
		}
	}
}

// valuesAt is what encoding/json finds at a path.
func valuesAt(d *json.Decoder, path string) (vs []string) {
	t, _ := d.Token()
	delim, nested := t.(json.Delim)
	if !nested {
		if b, ok := t.(bool); ok && path == "" {
			return []string{map[bool]string{true: "true", false: "false"}[b]}
		}
		if n, ok := t.(json.Number); ok && path == "" {
			return []string{n.String()}
		}
		if s, ok := t.(string); ok && path == "" {
			return []string{s}
		}
		return nil
	}
	step, rest, _ := strings.Cut(path, ".")
	for d.More() {
		here := step == "*"
		if delim == '{' {
			key, _ := d.Token()
			here = path != "" && key == step
		}
		if found := valuesAt(d, rest); here {
			vs = append(vs, found...)
		}
	}
	d.Token()
	return vs
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
			t.Fatalf("in portions %q, at once %q", parts, whole)
		}
		cut := doc[:int(n)%(len(doc)+1)]
		for i, got := range scan(cut, path, len(doc)+1) {
			if i != 1 && got != "none" && got != whole[i] {
				t.Fatalf("of a text cut off %q, of all %q", got, whole[i])
			}
		}
		if !json.Valid(doc) || len(doc) > mostToken || strings.Contains("."+path+".", "..") {
			return
		}
		d := json.NewDecoder(bytes.NewReader(doc))
		d.UseNumber()
		want := [3]string{"none", "none", "none"}
		for i, v := range valuesAt(d, path) {
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
	})
}

func BenchmarkScanner(b *testing.B) {
	chat := `{"choices":[` + strings.Repeat(`{"index":0,"message":{"role":"assistant","content":"`+strings.Repeat("The quick brown fox. ", 40)+`"}},`, 70) + `1],"usage":{"total_tokens":64}}`
	rows := `{"data":[` + strings.Repeat(`{"id":"gid://shopify/Product/1","n":[1,2.5,true],"title":"a"},`, 1000) + `1],"usage":{"total_tokens":64}}`
	for _, c := range []struct{ name, doc, path string }{{"texts", chat, "usage.total_tokens"}, {"rows", rows, "usage.total_tokens"}, {"every row", rows, "data.*.errorCode"}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.doc)))
			b.ReportAllocs()
			s, doc := scanner{wants: []want{{path: c.path, last: true}}}, []byte(c.doc)
			for b.Loop() {
				s.scan(doc)
			}
		})
	}
}
