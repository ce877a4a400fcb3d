package corpus_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/apithrottle/throttle/answers"
)

var update = flag.Bool("update", false, "write testdata/expect.txt anew: read every line of the difference")

var monday = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

// A provider is an entry of testdata/headers.json: what providers document, or were seen
// to send.
type provider struct {
	Provider string
	Headers  []struct {
		Name, Format, Example string
		More                  []string `json:"more_examples"`
	}
	StatusCodes []int `json:"status_codes"`
	Samples     []struct {
		Note, Body string
		Status     int
		Headers    map[string]string
	}
}

func providers(t testing.TB) (ps []provider) {
	b, err := os.ReadFile("testdata/headers.json")
	if err == nil {
		err = json.Unmarshal(b, &ps)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

// tell writes an answer in one line.
func tell(a Answer) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	for _, r := range a.Readings {
		add("[%s]", tellReading(r))
	}
	for _, c := range a.Charged {
		add("charged %d %s", c.N, c.Unit)
	}
	if a.Kind != Passed || a.Reason != "" {
		add("%s", []string{"passed", "limited", "banned", "other"}[a.Kind])
	}
	if a.Wide {
		add("wide")
	}
	if a.Known {
		add("for %v", a.Delay)
	}
	if a.Reason != "" {
		add("%q", a.Reason)
	}
	if s == nil {
		return "nothing"
	}
	return strings.Join(s, " ")
}

func tellReading(r Reading) string {
	s := []string{}
	add := func(is bool, format string, args ...any) {
		if is {
			s = append(s, fmt.Sprintf(format, args...))
		}
	}
	add(r.Name != "", "%q", r.Name)
	add(r.Key != "", "key %x", r.Key)
	add(r.Unit != "requests", "%s", r.Unit)
	add(r.Limit != 0, "limit %d", r.Limit)
	add(r.Has&HasRemaining != 0, "left %d", r.Remaining)
	add(r.Has&HasUsed != 0, "used %d", r.Used)
	add(r.Has&HasShare != 0, "share %d", r.Share)
	add(r.Window != 0, "window %v", r.Window)
	add(r.Has&HasReset != 0, "reset %v", r.Reset)
	add(r.Slack != 0, "slack %v", r.Slack)
	add(r.Full, "full")
	add(r.Authoritative, "authoritative")
	return strings.Join(s, " ")
}

// TestExamples reads every example there is of what providers send: each alone (those of
// waits and reasons in a refusal), the first of each header together, and the samples of
// whole responses. An instant is 40 seconds after the response's Date.
func TestExamples(t *testing.T) {
	want, got := map[string]string{}, []string{}
	b, _ := os.ReadFile("testdata/expect.txt")
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " => ")
		want[key] = value
	}
	for _, p := range providers(t) {
		for _, c := range p.cases() {
			profile, ok := profiles[p.Provider]
			if !ok {
				t.Fatalf("no profile of %s", p.Provider)
			}
			key, is := fmt.Sprintf("%s | %d | %s", p.Provider, c.Status, c.what), tell(read(profile, c.Response))
			got = append(got, key+" => "+is)
			if want[key] != is && !*update {
				t.Errorf("%s\nread %s\nwant %s", key, is, want[key])
			}
			delete(want, key)
		}
	}
	if *update {
		if err := os.WriteFile("testdata/expect.txt", []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for key := range want {
		t.Errorf("no such example: %s", key)
	}
}

type example struct {
	what string
	Response
}

func (p provider) cases() (cs []example) {
	all := response(p.StatusCodes[0], "", "Date: ")
	for _, h := range p.Headers {
		for _, v := range append([]string{h.Example}, h.More...) {
			r := response(200, "", "Date: ", h.Name+": "+v)
			if strings.Contains(strings.ToLower(h.Name), "retry") || strings.Contains("enum bool path opaque", h.Format) {
				r.Status = p.StatusCodes[0]
			}
			dated(r.Header, h.Format, v)
			cs = append(cs, example{h.Name + ": " + v, r})
		}
		all.Header.Set(h.Name, h.Example)
		dated(all.Header, h.Format, h.Example)
	}
	if len(p.Headers) > 1 {
		cs = append(cs, example{"all first examples", all})
	}
	for _, s := range p.Samples {
		r := response(s.Status, s.Body, "Date: ")
		for k, v := range s.Headers {
			r.Header.Set(k, v)
		}
		cs = append(cs, example{"sample: " + s.Note, r})
	}
	return cs
}

// dated sets the Date to 40 seconds before an instant. It shares no code with Read.
func dated(h http.Header, format, v string) {
	var at time.Time
	var n float64
	switch format {
	case "epoch-s", "epoch-s-float":
		fmt.Sscan(v, &n)
		at = time.UnixMilli(int64(n * 1000))
	case "epoch-ms":
		fmt.Sscan(v, &n)
		at = time.UnixMilli(int64(n))
	case "rfc3339":
		at.UnmarshalText([]byte(v))
	case "http-date", "http-date-or-delta-s", "delta-s-float":
		at, _ = time.Parse(time.RFC1123, v)
	case "js-date":
		at = time.Date(2021, time.February, 16, 8, 2, 42, 0, time.UTC)
	}
	if !at.IsZero() {
		h.Set("Date", at.Add(-40*time.Second).UTC().Format(http.TimeFormat))
	}
}
