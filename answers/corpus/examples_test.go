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

var update = flag.Bool("update", false, "rewrite testdata/expect.txt; check every line of the diff")

var monday = time.Date(2026, time.May, 4, 12, 0, 0, 0, time.UTC)

// A provider is an entry of testdata/headers.json: the headers that a provider documents or was
// seen to send.
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

// format formats an answer as one line.
func format(a Answer) string {
	var s []string
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	for _, r := range a.Readings {
		add("[%s]", formatReading(r))
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
	if a.Unit != "" {
		add("of %s", a.Unit)
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

func formatReading(r Reading) string {
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

// TestExamples reads every example in testdata: each header alone, with waits and reasons in a
// refusal; the first example of each header together; and the samples of whole responses. An
// instant is 40 seconds after the response's Date.
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
				t.Fatalf("no profile for %s", p.Provider)
			}
			key, is := fmt.Sprintf("%s | %d | %s", p.Provider, c.Status, c.what), format(read(profile, c.Response))
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
		t.Errorf("expect.txt has an unknown example: %s", key)
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
			setDate(r.Header, h.Format, v)
			cs = append(cs, example{h.Name + ": " + v, r})
		}
		all.Header.Set(h.Name, h.Example)
		setDate(all.Header, h.Format, h.Example)
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

// setDate sets the Date to 40 seconds before the instant v. It shares no code with Read.
func setDate(h http.Header, format, v string) {
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
