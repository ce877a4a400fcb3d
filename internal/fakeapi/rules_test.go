package fakeapi_test

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/fakeapi"
)

const testdata = "../../providers/testdata"

// names returns the names of all rule files.
func names(t *testing.T) (names []string) {
	files, err := filepath.Glob(filepath.Join(testdata, "rules", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no rule files: %v", err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	return names
}

func load(t *testing.T, name string) *fakeapi.API {
	t.Helper()
	a, err := fakeapi.Load(testdata, name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Every limit has the number, the window and the burst of the fixture's limit, or says why not.
func TestRulesHaveTheDocumentedNumbers(t *testing.T) {
	for _, name := range names(t) {
		a := load(t, name)
		for _, l := range a.Limits {
			if l.Above != "" {
				continue // it has no tier
			}
			i := slices.IndexFunc(a.Documented, func(d fakeapi.Documented) bool { return d.Name == l.Limit })
			if i < 0 {
				t.Errorf("%s: limit %s: the fixture has no limit %q", name, l.ID, l.Limit)
				continue
			}
			d := a.Documented[i]
			if l.Source != d.Source {
				t.Errorf("%s: limit %s: source %q, fixture %q", name, l.ID, l.Source, d.Source)
			}
			tier, err := algorithms.ParseTier(l.Tier)
			if err != nil {
				t.Fatal(err)
			}
			n, ok := d.Limit.(float64)
			differs := !ok || tier.Limit != int64(n)
			if w, err := algorithms.ParseDuration(d.Window); err == nil && tier.Algorithm != algorithms.Concurrency && tier.Window != w {
				differs = true
			}
			if differs != (l.Differs != "") {
				t.Errorf("%s: limit %s is %s, and %v/%s in the fixture: differs is %q", name, l.ID, l.Tier, d.Limit, d.Window, l.Differs)
			}
		}
	}
}

// send sends a request without a limiter.
func send(t *testing.T, s *fakeapi.Server, r *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := s.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// burst sends n requests that arrive at one instant, and returns the first refusal and how many
// were accepted.
func burst(s *fakeapi.Server, build func() *http.Request, n int) (refusal *http.Response, body string, accepted int) {
	for range n {
		r, text, refused := s.Arrive(build())
		if refused {
			return r, text, accepted
		}
		accepted++
	}
	return nil, "", accepted
}

// A stand-in accepts every request that its fixture accepts.
func TestStandInsAcceptWhatFixturesAccept(t *testing.T) {
	for _, name := range names(t) {
		a := load(t, name)
		synctest.Test(t, func(t *testing.T) {
			for _, f := range a.Known {
				if f.Means.Refused || f.Status >= 400 || f.Request.Method == "WS" {
					continue
				}
				s := fakeapi.NewSlowServer(a)
				response, body := send(t, s, f.Build())
				if seen := s.Arrivals(); seen[0].Refused != nil || response.StatusCode >= 400 {
					t.Errorf("%s: %s: %d %s", name, f.Name, response.StatusCode, body)
				}
			}
		})
	}
}

// A limit refuses what exceeds it, with the fixture's response, and accepts again after its wait.
func TestStandInsRefuseAsFixtures(t *testing.T) {
	for _, name := range names(t) {
		whole := load(t, name)
		for _, l := range whole.Limits {
			a := *whole
			t.Run(name+"/"+l.ID, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Hour + 1234567*time.Microsecond)
					kind := traffic(&a, l)
					if kind == nil {
						f := a.Known[l.Refusal.Like]
						kind = f.Build
					}
					s := fakeapi.NewServer(&a)
					s.Only = l.ID
					tier, err := algorithms.ParseTier(l.Tier)
					if err != nil && l.Above == "" {
						t.Fatal(err)
					}
					capacity := max(tier.Limit, tier.Burst)
					if tier.Burst > 0 {
						capacity = tier.Burst
					}
					response, body, n := burst(s, kind, int(min(capacity, 1_200))+1)
					if n == 1_201 {
						return // too large to be used up here
					}
					if response == nil {
						t.Fatalf("a burst of %d requests is accepted: %s", n, l.Tier)
					}
					seen := s.Arrivals()
					last := seen[len(seen)-1]
					if last.Left >= last.Asked || last.Left+seen[0].Charged[l.ID] < 0 {
						t.Errorf("refused with %d left of which %d are needed", last.Left, last.Asked)
					}
					compare(t, &a, &l.Refusal, response, body)
				})
			})
		}
		for i, r := range whole.Answers {
			synctest.Test(t, func(t *testing.T) {
				s := fakeapi.NewServer(whole)
				f := whole.Known[r.Like]
				request := answered(s, whole, i)
				if request == nil {
					request = f.Build()
				}
				if s.AnswerOf(request) != i {
					t.Errorf("%s: no request has the answer %q", name, r.Like)
					return
				}
				response, body := send(t, s, request)
				compare(t, whole, r, response, body)
			})
		}
	}
}

// traffic returns a maker of requests which a limit counts, or nil.
func traffic(a *fakeapi.API, l *fakeapi.Limit) func() *http.Request {
	if l.Example != "" {
		parts := strings.SplitN(l.Example, " ", 3)
		kind := fakeapi.Traffic{Request: strings.Join(parts[:2], " ")}
		if len(parts) > 2 {
			kind.Body = json.RawMessage(parts[2])
		}
		return func() *http.Request { return kind.Build(a, 0, 0) }
	}
	for i := range a.Traffic {
		build := func() *http.Request { return a.Traffic[i].Build(a, 0, 0) }
		if fakeapi.Counts(a, l, build()) {
			return build
		}
	}
	return nil
}

// answered returns a request of the traffic or an example with the i-th answer, or nil.
func answered(s *fakeapi.Server, a *fakeapi.API, i int) *http.Request {
	for _, l := range a.Limits {
		if build := traffic(a, l); l.Example != "" && l.Above == "" && s.AnswerOf(build()) == i {
			return build()
		}
	}
	for k := range a.Traffic {
		if s.AnswerOf(a.Traffic[k].Build(a, 0, 0)) == i {
			return a.Traffic[k].Build(a, 0, 0)
		}
	}
	return nil
}

// compare compares the form of a response with the fixture's.
func compare(t *testing.T, a *fakeapi.API, like *fakeapi.Response, r *http.Response, body string) {
	t.Helper()
	f := a.Known[like.Like]
	f.Headers = a.Headers(like)
	if like.Text != "" {
		f.Body = placeholders.ReplaceAllString(like.Text, "0")
	}
	if r.StatusCode != f.Status {
		t.Errorf("%s: status %d, fixture %d", f.Name, r.StatusCode, f.Status)
	}
	want := http.Header{}
	for name, value := range f.Headers {
		want.Set(name, value)
	}
	for name := range want {
		if got := r.Header.Get(name); shape(got) != shape(want.Get(name)) && !known(a, name, got) {
			t.Errorf("%s: header %s is %q, fixture %q", f.Name, name, got, want.Get(name))
		}
	}
	for name := range r.Header {
		if want.Get(name) == "" && r.Header.Get(name) != "" {
			t.Errorf("%s: header %s is not in the fixture", f.Name, name)
		}
	}
	if got, want := paths(body), paths(f.Body); !maps.Equal(got, want) {
		t.Errorf("%s: body has the form\n%v, fixture\n%v", f.Name, got, want)
	}
}

// known reports whether some response of the fixture has a header with this value.
func known(a *fakeapi.API, name, value string) bool {
	for _, f := range a.Known {
		for n, v := range f.Headers {
			if v == value && http.CanonicalHeaderKey(n) == http.CanonicalHeaderKey(name) {
				return true
			}
		}
	}
	return false
}

var shapes = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{"epoch in milliseconds", regexp.MustCompile(`^\d{12,13}$`)},
	{"epoch", regexp.MustCompile(`^\d{9,10}$`)},
	{"integer", regexp.MustCompile(`^-?\d{1,8}$`)},
	{"epoch with a fraction", regexp.MustCompile(`^\d{9,10}\.\d+$`)},
	{"decimal", regexp.MustCompile(`^-?\d{1,8}\.\d+$`)},
	{"id", regexp.MustCompile(`^[0-9a-f]{8,}$`)},
	{"RFC 3339", regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)},
	{"duration", regexp.MustCompile(`^(\d+h)?(\d+m)?(\d+(\.\d+)?m?s)?$`)},
}

var placeholders = regexp.MustCompile(`\$\{[^}]*\}`)

var digits = regexp.MustCompile(`\d+(\.\d+)?(ms|s|m\d+(\.\d+)?s)?`)

// shape returns the form of a value, without its numbers.
func shape(value string) string {
	for _, s := range shapes {
		if value != "" && s.pattern.MatchString(value) {
			return s.name
		}
	}
	if at, err := http.ParseTime(value); err == nil && !at.IsZero() {
		return "HTTP date"
	}
	return digits.ReplaceAllString(value, "0")
}

// paths returns the fields of a JSON body with the forms of their values, or the form of a text.
func paths(body string) map[string]string {
	found := map[string]string{}
	var v any
	d := json.NewDecoder(strings.NewReader(body))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return map[string]string{"": digits.ReplaceAllString(body, "0")}
	}
	walk(found, "", v)
	return found
}

func walk(found map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for name, x := range v {
			walk(found, path+"."+name, x)
		}
	case []any:
		for _, x := range v {
			walk(found, path+"[]", x)
		}
	case json.Number:
		found[path] = "number"
	case string:
		found[path] = words(v)
	case nil:
		found[path] = "null"
	case bool:
		found[path] = "bool"
	}
}

// words returns a text without its numbers and identifiers.
func words(text string) string {
	return digits.ReplaceAllString(model.ReplaceAllString(text, "for M in"), "0")
}

var model = regexp.MustCompile(`for \S+ in|(in|out)put|SECOND|MINUTE`)
