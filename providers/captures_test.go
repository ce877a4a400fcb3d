package providers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fixtures"
	"github.com/apithrottle/throttle/providers"
)

// A capturePage is a page of testdata/captures.json. Its responses are from public threads, and what
// each means was judged from the thread and the documentation, without a look at the preset.
//
// A host with a star stands for one that the threads hide. What they don't show is left out.
type capturePage struct {
	Provider, Preset, Read string
	Sources                map[string]string
	Hosts                  []string
	Responses              []capture
}

// A capture is one of the responses.
type capture struct{ fixtures.Response }

// readCaptures reads testdata/captures.json.
func readCaptures(t *testing.T) (pages []capturePage) {
	t.Helper()
	text, err := os.ReadFile("testdata/captures.json")
	if err == nil {
		err = json.Unmarshal(text, &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// profile returns the profile of the preset that knows the hosts of the page.
func (p capturePage) profile(t *testing.T) answers.Profile {
	t.Helper()
	var preset providers.Preset
	for _, host := range p.Hosts {
		known := providers.Lookup(strings.Replace(host, "*", "name", 1))
		i := slices.IndexFunc(known, func(k providers.Preset) bool { return k.Name == p.Preset })
		if i < 0 {
			t.Fatalf("%s: %s is none of the presets of %s: %v", p.Provider, p.Preset, host, known)
		}
		preset = known[i]
	}
	args := preset.Example()
	if _, ok := args["host"]; ok {
		args["host"] = p.Hosts[0]
	}
	return preset.Provider(args).Profile
}

// refuses reports whether the response is a refusal for lack of quota, which some wait mends.
func (c capture) refuses() bool {
	return slices.Contains([]string{"rate", "daily", "concurrency", "lockout"}, c.Means.Kind)
}

// wait returns the wait that the record names, and when the response arrived, which threads without
// a Date don't tell.
func (c capture) wait(t *testing.T) (d time.Duration, named bool, got time.Time) {
	t.Helper()
	text, named := c.Means.Wait.(string)
	until, isTime := strings.CutPrefix(text, "until ")
	got = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	var err error
	switch {
	case until == "midnight Pacific":
		d = 20 * time.Hour
	case isTime:
		var at time.Time
		at, err = time.Parse(time.RFC3339, until)
		d, got = 5*time.Minute, at.Add(-5*time.Minute)
	case named:
		d, err = time.ParseDuration(text)
	}
	if err != nil {
		t.Errorf("%q: %v", c.Name, err)
	}
	return d, named, got
}

// refusal returns what a Transport with the profile takes the response for. Threads seldom show the
// Content-Type, on which it depends whether the body is read.
func (c capture) refusal(t *testing.T, p answers.Profile) answers.Refusal {
	_, _, got := c.wait(t)
	r := c.Answer(got)
	r.Method = c.Request.Method
	if r.Method == "" && strings.HasPrefix(string(r.Body), "event: ") {
		r.Method = http.MethodPost
	}
	switch {
	case r.Header.Get("Content-Type") != "" || len(r.Body) == 0:
	case json.Valid(r.Body):
		r.Header.Set("Content-Type", "application/json")
	case strings.HasPrefix(string(r.Body), "event: "):
		r.Header.Set("Content-Type", "text/event-stream")
	default:
		r.Header.Set("Content-Type", "text/html")
	}
	whole := r.Body
	if !p.Peeks(r.Status, r.Header) {
		r.Body = nil
	}
	if got := p.Read(r).Refusal; got.Kind != answers.Passed {
		return got
	}
	r.Body = whole // of which the Meter reads the events
	return fixtures.ReadAll(p, r).Refusal
}

// judge compares what was read with the record. What was read is "partly" right if a client that
// believes it only waits too long or too short, or sends again what no wait mends.
func (c capture) judge(t *testing.T, got answers.Refusal) string {
	right, partly := false, false
	switch means := c.Means; {
	case means.Refused != true:
		right = got.Kind == answers.Passed
	case means.Kind == "lockout":
		right, partly = got.Kind == answers.Banned, got.Kind != answers.Passed
	case c.refuses():
		right = got.Kind == answers.Limited || got.Kind == answers.Other && means.Of == "object"
	case got.Kind == answers.Banned: // it closes for everybody, as the lack of money and a blocked address do
		right = means.Kind == "spend" || means.Of == "ip"
	default: // no wait helps, or nobody's quota is the reason: everybody else goes on
		partly = got.Kind == answers.Passed
		right = got.Kind == answers.Other || partly && c.Status != http.StatusTooManyRequests
	}
	want, named, _ := c.wait(t)
	switch {
	case right && (!named || got.Known && (got.Delay-want).Abs() <= time.Second):
		return "right"
	case right || partly:
		return "partly"
	}
	return "wrong"
}

// readAll reads all captures by the profiles of their pages, prints a table, and passes each to check.
func readAll(t *testing.T, profile func(capturePage) answers.Profile, check func(p capturePage, c capture, got answers.Refusal, verdict string)) {
	n, counts := 0, make(map[string]int)
	for _, p := range readCaptures(t) {
		for _, c := range p.Responses {
			got := c.refusal(t, profile(p))
			verdict := c.judge(t, got)
			n, counts[verdict] = n+1, counts[verdict]+1
			read := []string{"Passed", "Limited", "Banned", "Other"}[got.Kind]
			if got.Known {
				read += " " + got.Delay.String()
			}
			means := fmt.Sprintf("%s of %s", c.Means.Kind, c.Means.Of)
			if c.Means.Wait != nil {
				means += fmt.Sprint(", ", c.Means.Wait)
			}
			t.Logf("%-17s %d %-52s %-43s %-18s %s", p.Preset, c.Status, c.Name, means, read, verdict)
			check(p, c, got, verdict)
		}
	}
	t.Logf("%d captures: %d %% right, %v", n, 100*counts["right"]/n, counts)
}

// TestCaptures checks that each capture names its source, and that it could have been sent.
func TestCaptures(t *testing.T) {
	kinds := []string{"rate", "daily", "concurrency", "lockout", "spend", "poison", "outage"}
	n, others := 0, 0
	for _, p := range readCaptures(t) {
		if _, err := time.Parse(time.DateOnly, p.Read); err != nil {
			t.Errorf("%s: read %q", p.Provider, p.Read)
		}
		for _, c := range p.Responses {
			n++
			if !c.refuses() {
				others++
			}
			if p.Sources[c.Source] == "" || c.Sure != "captured" && c.Sure != "reported" || c.Body == nil && len(c.Headers) == 0 {
				t.Errorf("%s: %q is %q by %q, with body %v and headers %v", p.Provider, c.Name, c.Sure, c.Source, c.Body, c.Headers)
			}
			if refused := c.Means.Refused == true; refused != slices.Contains(kinds, c.Means.Kind) {
				t.Errorf("%s: %q is refused %v, kind %q", p.Provider, c.Name, refused, c.Means.Kind)
			}
			for name, value := range c.Headers {
				date, _ := value.(string)
				if at, err := http.ParseTime(date); strings.EqualFold(name, "Date") && (err != nil || !strings.HasPrefix(date, at.Weekday().String()[:3])) {
					t.Errorf("%s: %q has the Date %q: %v, %v", p.Provider, c.Name, date, at.Weekday(), err)
				}
			}
		}
	}
	if n < 60 || others < 10 {
		t.Errorf("%d captures, of which %d are no refusals for lack of quota", n, others)
	}
}

// TestPresetsReadCaptures checks that the presets read what was captured apart from them.
func TestPresetsReadCaptures(t *testing.T) {
	profile := func(p capturePage) answers.Profile { return p.profile(t) }
	readAll(t, profile, func(p capturePage, c capture, got answers.Refusal, verdict string) {
		if verdict != "right" {
			t.Errorf("%s: %q, %+v: read as %+v, %s", p.Provider, c.Name, c.Means, got, verdict)
		}
	})
}

// TestCommonReadsCaptures checks that answers.Common takes each 429 for lack of quota for one.
func TestCommonReadsCaptures(t *testing.T) {
	common := func(capturePage) answers.Profile { return answers.Common() }
	readAll(t, common, func(p capturePage, c capture, got answers.Refusal, verdict string) {
		if got.Kind != answers.Limited && c.refuses() && c.Status == http.StatusTooManyRequests {
			t.Errorf("%s: %q, %+v: read as %+v", p.Provider, c.Name, c.Means, got)
		}
	})
}
