// Package fakeapi provides strict stand-ins of APIs from rule files. A rule file is what an API's
// documentation says: which limits count a request, by what and how, and how the API answers. It is
// written without knowledge of the presets of package providers, and tests them.
//
// A rule file names the responses of a fixture of the same API. A stand-in answers with the status,
// headers and body of the fixture, and replaces the values that depend on its counts.
//
// A [Server] is an http.Handler, for net/http/httptest, and an http.RoundTripper, for runs of hours
// inside testing/synctest. To imitate another user of the same quota, send requests to the Server
// without a limiter.
package fakeapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apithrottle/throttle/algorithms"
)

// An API is a rule file.
type API struct {
	// Fixture is the name of the fixture. If empty, the name of the rule file.
	Fixture string `json:"fixture"`
	// Note says what the rule file leaves out.
	Note string `json:"note"`
	// MaxOutput selects the greatest number of output tokens that a request asks for.
	MaxOutput string `json:"max_output"`
	// Early is true if headers tell the counts at the arrival of a request, and false if at its answer.
	Early bool `json:"early"`
	// Limits are the limits, in the order in which the API judges them.
	Limits []*Limit `json:"limits"`
	// Answers are the responses to accepted requests. The first that matches is sent.
	Answers []*Response `json:"answers"`
	// Traffic is a mix of common requests.
	Traffic []Traffic `json:"traffic"`

	Name  string             `json:"-"`
	Known map[string]Fixture `json:"-"` // by name
	// Documented are the limits of the fixture.
	Documented []Documented `json:"-"`
	// Hosts are the hosts of the fixture.
	Hosts []string `json:"-"`
}

// A Match chooses requests. An empty Match chooses all.
type Match struct {
	// Match are patterns such as "GET,POST host/path/*/**". One must match. A pattern without a
	// host matches all hosts. A * stands for text without a slash, and ** for any text.
	Match []string `json:"match"`
	// Unless are patterns of which none may match.
	Unless []string `json:"unless"`
	// Where maps a selector to a regular expression that its value must match.
	Where map[string]string `json:"where"`
}

// A Limit is one limit of an API.
type Limit struct {
	Match
	// ID names the limit in placeholders and in Server.Refused.
	ID string `json:"id"`
	// Limit is the name of the limit in the fixture.
	Limit string `json:"limit"`
	// Differs says why Tier has other numbers than the fixture's limit.
	Differs string `json:"differs"`
	// Source is the name of the source in the fixture.
	Source string `json:"source"`
	// Tier is the number, the window and the kind, as algorithms.ParseTier reads it.
	Tier string `json:"tier"`
	// Steps is true if a bucket gains whole units at steps of the clock, not continuously.
	Steps bool `json:"steps"`
	// Above is an amount. If not empty, the limit refuses requests with a greater Cost, has no
	// Tier, and counts nothing.
	Above string `json:"above"`
	// Key are the selectors that choose the counter. If empty, all requests have one.
	Key []string `json:"key"`
	// Cost is what a request must find free. If empty, 1.
	Cost string `json:"cost"`
	// Settled is what a request is charged in the end. If empty, Cost.
	Settled string `json:"settled"`
	// Costs are the costs of some requests. The first that matches replaces Cost and Settled.
	Costs []struct {
		Match
		Cost    string `json:"cost"`
		Settled string `json:"settled"`
	} `json:"costs"`
	// Debt is true if a request is admitted as long as anything is left.
	Debt bool `json:"debt"`
	// Refused is what a refused request is charged, such as "cost": its Cost. If empty, nothing.
	Refused string `json:"refused"`
	// Block is how long the limit refuses everything after a refusal, or "wait": until the time
	// that the refusal names. If empty, no longer than its counter does.
	Block string `json:"block"`
	// Ban is what a request gets that arrives during Block. If nil, Refusal, and Block begins anew.
	Ban *Ban `json:"ban"`
	// Example is a request that the limit counts or, with Above, refuses: "METHOD URL", or "METHOD URL
	// BODY". Its body may have placeholders. If empty, one of the traffic or of the fixture.
	Example string `json:"example"`
	// Refusal is the response to a refused request.
	Refusal Response `json:"refusal"`

	tier  algorithms.Tier
	block time.Duration
}

// A Ban refuses every request that its limit counts, for a time that doubles with each ban.
type Ban struct {
	First   string   `json:"first"` // duration of the first ban
	Most    string   `json:"most"`
	Refusal Response `json:"refusal"`

	first, most time.Duration
}

// A Response is a response of the fixture with other values.
type Response struct {
	Match
	// Like is the name of the fixture's response.
	Like string `json:"like"`
	// Headers replace values of headers. A header with a placeholder of a limit that does not count
	// the request is left out.
	Headers map[string]string `json:"headers"`
	// Body replaces texts of the body.
	Body map[string]string `json:"body"`
	// HeadersLike is the name of a response whose headers are sent, too. If empty, none.
	HeadersLike string `json:"headers_like"`
	// Text is the body. If empty, the body of the fixture's response.
	Text string `json:"text"`
}

// Traffic is one kind of request. Its URL, headers and body may have placeholders.
type Traffic struct {
	Request string            `json:"request"` // "METHOD URL"
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"` // a text, or JSON
}

// A Fixture is a response of an API in its documentation.
type Fixture struct {
	Name    string `json:"name"`
	Request struct {
		Method  string            `json:"method"`
		Host    string            `json:"host"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body"`
	} `json:"request"`
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Means   struct {
		Refused bool   `json:"refused"`
		Kind    string `json:"kind"`
	} `json:"means"`
}

// Documented is a limit in a fixture.
type Documented struct {
	Name   string `json:"name"`
	Limit  any    `json:"limit"`
	Window string `json:"window"`
	Burst  any    `json:"burst"`
	Source string `json:"source"`
}

// New returns a stand-in from the rule file rules/NAME.json below dir. Tiers replace the tiers of some
// limits, as in "requests=600/m;algo=token_bucket". New panics if it cannot.
func New(dir, name string, tiers ...string) *Server {
	a, err := Load(dir, name, tiers...)
	if err != nil {
		panic(err)
	}
	return NewServer(a)
}

// Load reads the rule file rules/NAME.json and its fixture fixtures/FIXTURE.json below dir, and
// replaces tiers as New does.
func Load(dir, name string, tiers ...string) (*API, error) {
	a := &API{Name: name, Fixture: name, Known: map[string]Fixture{}}
	if err := read(filepath.Join(dir, "rules", name+".json"), a, true); err != nil {
		return nil, err
	}
	var f struct {
		Hosts     []string     `json:"hosts"`
		Limits    []Documented `json:"limits"`
		Responses []Fixture    `json:"responses"`
	}
	if err := read(filepath.Join(dir, "fixtures", a.Fixture+".json"), &f, false); err != nil {
		return nil, err
	}
	a.Documented, a.Hosts = f.Limits, f.Hosts
	for _, r := range f.Responses {
		if r.Request.Host == "" {
			r.Request.Host = f.Hosts[0]
		}
		a.Known[r.Name] = r
	}
	if err := a.replace(tiers); err != nil {
		return nil, err
	}
	return a, a.check()
}

// replace replaces the tiers of limits.
func (a *API) replace(tiers []string) (err error) {
	for _, t := range tiers {
		id, tier, _ := strings.Cut(t, "=")
		i := slices.IndexFunc(a.Limits, func(l *Limit) bool { return l.ID == id })
		if i < 0 {
			return fmt.Errorf("%s: no limit %q for the tier %q", a.Name, id, t)
		}
		l := a.Limits[i]
		l.Tier = tier
		if l.tier, err = algorithms.ParseTier(tier); err != nil {
			return fmt.Errorf("%s: limit %s: %w", a.Name, id, err)
		}
	}
	return nil
}

func read(file string, into any, strict bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// check reads the tiers and durations, and reports names and texts of the rule file that its
// fixture lacks.
func (a *API) check() error {
	for _, l := range a.Limits {
		if err := a.checkLimit(l); err != nil {
			return fmt.Errorf("%s: limit %s: %w", a.Name, l.ID, err)
		}
	}
	for _, r := range a.Answers {
		if err := a.checkResponse(r, false); err != nil {
			return fmt.Errorf("%s: answer: %w", a.Name, err)
		}
	}
	return nil
}

func (a *API) checkLimit(l *Limit) (err error) {
	if l.Above == "" {
		if l.tier, err = algorithms.ParseTier(l.Tier); err != nil {
			return err
		}
	}
	if l.Block != "" && l.Block != "wait" {
		if l.block, err = time.ParseDuration(l.Block); err != nil {
			return err
		}
	}
	if b := l.Ban; b != nil {
		if b.first, err = time.ParseDuration(b.First); err != nil {
			return err
		}
		if b.most, err = time.ParseDuration(b.Most); err != nil {
			return err
		}
		if err := a.checkResponse(&b.Refusal, true); err != nil {
			return err
		}
	}
	return a.checkResponse(&l.Refusal, true)
}

func (a *API) checkResponse(r *Response, refused bool) error {
	f, ok := a.Known[r.Like]
	if !ok {
		return fmt.Errorf("the fixture has no response %q", r.Like)
	}
	if _, ok := a.Known[r.HeadersLike]; !ok && r.HeadersLike != "" {
		return fmt.Errorf("the fixture has no response %q", r.HeadersLike)
	}
	if f.Means.Refused != refused {
		return fmt.Errorf("response %q: refused is %v in the fixture", r.Like, f.Means.Refused)
	}
	headers := a.Headers(r)
	for name := range r.Headers {
		if _, ok := headers[name]; !ok {
			return fmt.Errorf("response %q has no header %q", r.Like, name)
		}
	}
	for old := range r.Body {
		if !strings.Contains(f.Body, old) {
			return fmt.Errorf("the body of response %q lacks %q", r.Like, old)
		}
	}
	return nil
}

// Headers returns the headers that a response has in the fixture.
func (a *API) Headers(r *Response) map[string]string {
	headers := map[string]string{}
	maps.Copy(headers, a.Known[r.HeadersLike].Headers)
	maps.Copy(headers, a.Known[r.Like].Headers)
	return headers
}

// An expression is a regular expression or, if isGlob is set, a pattern of a Match.
type expression struct {
	text   string
	isGlob bool
}

var compiled sync.Map // *regexp.Regexp by expression

func (e expression) matches(s string) bool {
	p, ok := compiled.Load(e)
	if !ok {
		text := e.text
		if e.isGlob {
			text = "^" + strings.NewReplacer(`\*\*`, `.*`, `\*`, `[^/]*`).Replace(regexp.QuoteMeta(text)) + "$"
		}
		p, _ = compiled.LoadOrStore(e, regexp.MustCompile(text))
	}
	return p.(*regexp.Regexp).MatchString(s)
}

// fits reports whether a request is one of the Match, and the pattern that matched.
func (m *Match) fits(r *request) (pattern string, ok bool) {
	if len(m.Match) > 0 {
		i := slices.IndexFunc(m.Match, r.matches)
		if i < 0 {
			return "", false
		}
		pattern = m.Match[i]
	}
	if slices.ContainsFunc(m.Unless, r.matches) {
		return "", false
	}
	for selector, text := range m.Where {
		if !(expression{text, false}).matches(r.value(selector)) {
			return "", false
		}
	}
	return pattern, true
}

func (r *request) matches(pattern string) bool {
	methods, where, ok := strings.Cut(pattern, " ")
	if !ok {
		methods, where = "*", pattern
	}
	if methods != "*" && !slices.Contains(strings.Split(methods, ","), r.Method) {
		return false
	}
	on := r.URL.Path
	if !strings.HasPrefix(where, "/") {
		on = r.URL.Host + on
	}
	return expression{where, true}.matches(on)
}

// Build returns the n-th request of a kind.
func (t *Traffic) Build(a *API, worker, n int) *http.Request {
	fill := func(s string) string { return Fill(s, worker, n) }
	method, url, _ := strings.Cut(t.Request, " ")
	body := []byte(t.Body)
	if len(body) > 0 && body[0] == '"' {
		var text string
		if err := json.Unmarshal(body, &text); err != nil {
			panic(err)
		}
		body = []byte(text)
	}
	var compact bytes.Buffer
	if len(body) > 0 && body[0] == '{' && json.Compact(&compact, body) == nil {
		body = compact.Bytes()
	}
	r, err := http.NewRequest(method, fill(url), strings.NewReader(fill(string(body))))
	if err != nil {
		panic(err)
	}
	if len(body) == 0 {
		r.Body, r.GetBody = nil, nil
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, value := range t.Headers {
		r.Header.Set(name, fill(value))
	}
	return r
}

// Build returns the request of a fixture.
func (f *Fixture) Build() *http.Request {
	r, err := http.NewRequest(f.Request.Method, "https://"+f.Request.Host+f.Request.Path, strings.NewReader(f.Request.Body))
	if err != nil {
		panic(err)
	}
	if f.Request.Body == "" {
		r.Body, r.GetBody = nil, nil
	}
	for name, value := range f.Request.Headers {
		r.Header.Set(name, value)
	}
	return r
}
