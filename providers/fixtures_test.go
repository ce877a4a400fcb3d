package providers_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A fixture is a response as a provider sends it, from its documentation or from a capture.
type fixture struct {
	Name, Source string
	// Sure is how well the response is known: "documented", "captured", "sdk" or "reported".
	Sure    string
	Request struct {
		Method, Host, Path string
		Headers            map[string]any
		Body               any
	}
	Status  int
	Headers map[string]any // a string, or a list of strings
	Body    any            // text, or JSON
	Means   struct {
		Refused any
		Of      string
		Wait    any
		Kind    string
	}
}

// A page is what is known of a provider. It was written without a look at its preset.
type page struct {
	Provider, Read string
	Sources        map[string]string
	Hosts          []string
	Responses      []fixture
}

// TestFixtures checks that each page of testdata/fixtures names its sources and the day on which
// they were read, and that each response could have been sent.
func TestFixtures(t *testing.T) {
	files, err := filepath.Glob("testdata/fixtures/*.json")
	if err != nil || len(files) < 40 {
		t.Fatal(len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var p page
		if err := json.Unmarshal(text, &p); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if _, err := time.Parse(time.DateOnly, p.Read); err != nil || len(p.Sources) == 0 || len(p.Hosts) == 0 || len(p.Responses) == 0 {
			t.Errorf("%s: read %q, %d sources, %d hosts, %d responses", file, p.Read, len(p.Sources), len(p.Hosts), len(p.Responses))
		}
		for _, r := range p.Responses {
			if r.Name == "" || http.StatusText(r.Status) == "" && r.Status < 400 || r.Sure == "" {
				t.Errorf("%s: %q has status %d and is %q", file, r.Name, r.Status, r.Sure)
			}
			for _, name := range strings.FieldsFunc(r.Source, func(c rune) bool { return strings.ContainsRune("+,; ", c) }) {
				if p.Sources[name] == "" {
					t.Errorf("%s: %q names the source %q, which the page has not", file, r.Name, name)
				}
			}
			if date, ok := r.Headers["Date"].(string); ok {
				if at, err := http.ParseTime(date); err == nil && at.Weekday().String()[:3] != date[:3] {
					t.Errorf("%s: %q has the Date %s, which was a %v", file, r.Name, date, at.Weekday())
				}
			}
		}
	}
}
