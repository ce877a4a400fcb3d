package answers

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/internal/jsonpath"
	"github.com/apithrottle/throttle/internal/jsonpath/jsonpathtest"
)

// A wait of 1,000⅓ ns rounds up to two microseconds.
func TestRefillTime(t *testing.T) {
	d, ok := refillTime(1, []Reading{{}, {Has: HasRemaining, Limit: 3, Window: 3001 * time.Nanosecond}})
	if !ok || d != 2*time.Microsecond {
		t.Error(d, ok)
	}
	if d, ok := refillTime(maxCount, []Reading{{Has: HasRemaining, Limit: maxCount, Window: maxTime}}); ok {
		t.Error("a time that overflows 64 bits:", d)
	}
}

// lastIn returns the last count at the path in the events of a stream, found with encoding/json. It
// reports in valid whether the data of every event is JSON.
func lastIn(body, path string) (as []Amount, valid bool) {
	body = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(body)
	var last, data string
	for line := range strings.SplitSeq(body+"\n\n", "\n") {
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			data += value + "\n"
		}
		if line != "" || data == "" {
			continue
		}
		if !json.Valid([]byte(data)) {
			return nil, false
		}
		for _, v := range jsonpathtest.Values([]byte(data), path) {
			last = v
		}
		data = ""
	}
	if n, ok := count(last, up); ok {
		as = []Amount{{"tokens", n}}
	}
	return as, true
}

func FuzzMeter(f *testing.F) {
	for _, body := range []string{
		`data: {"usage":{"total_tokens":3}}` + "\n\n" + `data: {"usage":null}` + "\n\ndata: [DONE]\n\n",
		`data: {"usage":` + "\r\n" + `data: {"total_tokens":3.5}}` + "\r\n\r\n", ":\r\rdata: 1\r",
		`data:{"usage":{"total_tokens":"3"}}` + "\n\n" + `data:{"usage":{"total_tokens":4}}`, `{"usage":{"total_tokens":5}}`,
		"\x00\x00\x00\x2c\x00\x00\x00\x00crc." + `{"usage":{"total_tokens":6}}` + "crc.", "\x00\x00\x00\x3a\x00\x00\x00\x02crc.hh" + `{"bytes":"eyJ1c2FnZSI6eyJ0b3RhbF90b2tlbnMiOjd9fQ=="}` + "crc.",
	} {
		f.Add(body, uint8(1))
	}
	for n := range 40 { // a line that ends where Write pauses its search
		f.Add(`data: {"a":"`+strings.Repeat("a", maxPart-30+n)+"\"}\r\n\r\n"+`data: {"usage":{"total_tokens":8}}`+"\r\n\r\n", uint8(31))
	}
	p := Profile{Charges: []Charge{{Unit: "tokens", Field: Field{Path: "usage.total_tokens"}}}}
	f.Fuzz(func(t *testing.T, body string, n uint8) {
		for _, kind := range []string{"text/event-stream", "application/json", amazonStream} {
			r := Response{Header: http.Header{"Content-Type": {kind}}}
			whole, parts := p.Meter(r), p.Meter(r)
			whole.Write([]byte(body))
			for part := range slices.Chunk([]byte(body), int(n%32)+1) {
				parts.Write(part)
			}
			if got, want := parts.Charged(), whole.Charged(); !reflect.DeepEqual(got, want) {
				t.Fatalf("in portions: %v, at once: %v", got, want)
			}
			want, ok := lastIn(body, "usage.total_tokens")
			if got := whole.Charged(); ok && kind == "text/event-stream" && len(body) <= jsonpath.MaxToken && !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: %v, encoding/json: %v", body, got, want)
			}
		}
	})
}
