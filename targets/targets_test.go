package targets

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/apithrottle/throttle"
)

var key = http.Header{"Api-Key": {"s3cret"}}

func TestNewNamesTheFieldAndTheFix(t *testing.T) {
	for _, c := range []struct {
		target Target
		err    string // empty for none
	}{
		{Target{Header: key}, "URL is empty: set it"},
		{Target{URL: "https://user:s3cret/x@east.example", Header: key}, "URL is not valid: write it as https://host/path"},
		{Target{URL: "east.example/v1", Header: key}, "URL is not valid: write it as https://host/path"},
		{Target{URL: "ftp://east.example", Header: key}, "URL is not valid: write it as https://host/path"},
		{Target{URL: "https:///v1", Header: key}, "URL is not valid: write it as https://host/path"},
		{Target{URL: "https://east.example/v1?key=s3cret"}, "URL has a query or a fragment: set Query"},
		{Target{URL: "https://east.example/v1#s3cret", Header: key}, "URL has a query or a fragment: set Query"},
		{Target{URL: "https://east.example", Strip: "v1", Header: key}, `Strip is "v1": write it as /path`},
		{Target{URL: "https://east.example", Strip: "/v1/", Header: key}, `Strip is "/v1/": write it as /path`},
		{Target{URL: "https://east.example"}, "Header and Query have no credential: set the member's key"},
		{Target{URL: "https://east.example", Header: http.Header{"OpenAI-Organization": {"org"}}, Query: url.Values{"api-version": {"1"}}}, "Header and Query have no credential: set the member's key"},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {""}}}, "the credential Api-Key is empty: set the member's key"},
		{Target{URL: "https://east.example", Header: http.Header{"Authorization": {"Bearer "}}}, "the credential Authorization is empty: set the member's key"},
		{Target{URL: "https://east.example", Query: url.Values{"key": {""}}}, "the credential key is empty: set the member's key"},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret\n"}}}, "Header Api-Key has a line break or another control character: trim it"},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret\x7f"}}}, "Header Api-Key has a line break or another control character: trim it"},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret"}, "X Team": {"a"}}}, `Header "X Team" is not the name of a field`},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret"}, "": {"a"}}}, `Header "" is not the name of a field`},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret"}, "host": {"west.example"}}}, "Header host is not sent"},
		{Target{URL: "https://east.example", Header: http.Header{"Api-Key": {"s3cret"}, "api-key": {"s3cret2"}}}, "Header has Api-Key twice"},
		{Target{URL: "https://east.example", Header: key}, ""},
		{Target{URL: "http://127.0.0.1:8080/v1/", Query: url.Values{"key": {"s3cret"}}}, ""},
		{Target{URL: "https://user:s3cret@east.example"}, ""},
	} {
		m, err := New(map[string]Target{"east": c.target, "west": {URL: "https://west.example", Header: key}})
		switch {
		case c.err == "" && err != nil, c.err != "" && (err == nil || m != nil || !strings.HasPrefix(err.Error(), `targets: member "east": `+c.err)):
			t.Errorf("%+v: %v, want %q", c.target, err, c.err)
		case err != nil && strings.Contains(err.Error(), "s3cret"):
			t.Errorf("the error contains credentials: %v", err)
		}
	}
	if _, err := New(map[string]Target{"west": {}, "east": {}}); err == nil || strings.Count(err.Error(), "URL is empty") != 2 {
		t.Errorf("of two members: %v", err)
	}
}

func TestPaths(t *testing.T) {
	for _, c := range []struct{ base, strip, request, want string }{
		{"https://m.example", "", "/v1/chat", "https://m.example/v1/chat"},
		{"https://m.example/", "", "/v1/chat", "https://m.example/v1/chat"},
		{"https://m.example/base", "", "/v1/chat", "https://m.example/base/v1/chat"},
		{"https://m.example/base/", "", "", "https://m.example/base"},
		{"https://m.example", "", "", "https://m.example"},
		{"https://m.example/base", "", "/", "https://m.example/base/"},
		{"https://m.example/b%2Fc", "", "/v1/a%2Fb%20c/", "https://m.example/b%2Fc/v1/a%2Fb%20c/"},
		{"https://m.example/base", "", "/v1//x", "https://m.example/base/v1//x"},
		{"https://m.example/openai/v1", "/v1", "/v1/chat", "https://m.example/openai/v1/chat"},
		{"https://m.example/openai/v1", "/v1", "/v1", "https://m.example/openai/v1"},
		{"https://m.example", "/v1", "/v1/chat", "https://m.example/chat"},
		{"https://m.example/openai/deployments/four-west", "/openai/deployments/*", "/openai/deployments/four/chat/completions", "https://m.example/openai/deployments/four-west/chat/completions"},
		{"https://m.example/v1/projects/p2/locations/l2", "/v1/projects/*/locations/*", "/v1/projects/p/locations/l/models/m:generate", "https://m.example/v1/projects/p2/locations/l2/models/m:generate"},
		{"https://m.example/x", "/v1", "/v10/chat", "error"},
		{"https://m.example/x", "/v1", "/chat", "error"},
		{"https://m.example/x", "/openai/deployments/*", "/openai/deployments/", "error"},
		{"https://m.example/x", "/openai/deployments/*", "/openai/deployments", "error"},
		{"https://m.example/x", "", "/../y", "error"},
		{"https://m.example/x", "", "/a/%2E%2e/%2e%2e/y", "error"},
		{"https://m.example/x", "", "/a/.", "error"},
		{"https://m.example/x", "", "/a/..b", "https://m.example/x/a/..b"},
	} {
		m, err := New(map[string]Target{"m": {URL: c.base, Strip: c.strip, Header: key}})
		if err != nil {
			t.Fatal(err)
		}
		req, _ := http.NewRequest("GET", "http://api.example"+c.request, nil)
		got := "error"
		if err := m.Rewrite(req, "m"); err == nil {
			got = req.URL.String()
		}
		if got != c.want {
			t.Errorf("%s at %s without %q is %s, want %s", c.request, c.base, c.strip, got, c.want)
		}
	}
}

func TestQueriesAndFields(t *testing.T) {
	query := url.Values{"api-version": {"2024-10-21"}, "key": {"k&y"}}
	header := http.Header{"api-key": {"s3cret"}, "Openai-Project": {"p"}}
	m, err := New(map[string]Target{
		"plain": {URL: "https://plain.example", Header: header},
		"query": {URL: "https://user:s3cret@query.example", Header: header, Query: query},
	})
	if err != nil {
		t.Fatal(err)
	}
	header.Set("Openai-Project", "changed later")
	query.Set("key", "changed later")
	for member, want := range map[string]string{
		"plain": "https://plain.example/v1?b=%31&api-version=1&a;c&page_token=x%2F",
		"query": "https://user:s3cret@query.example/v1?b=%31&a;c&page_token=x%2F&api-version=2024-10-21&key=k%26y",
	} {
		req, _ := http.NewRequest("GET", "http://api.example/v1?b=%31&api-version=1&a;c&page_token=x%2F", nil)
		req.Header = http.Header{"Openai-Project": {"old", "older"}, "Accept": {"*/*"}}
		if err := m.Rewrite(req, member); err != nil {
			t.Fatal(err)
		}
		if req.URL.String() != want || req.Host != "" {
			t.Errorf("%s: %s, want %s", member, req.URL, want)
		}
		if got := fmt.Sprint(req.Header); got != "map[Accept:[*/*] Api-Key:[s3cret] Openai-Project:[p]]" {
			t.Errorf("%s: %s", member, got)
		}
		req.Header["Api-Key"][0] = "changed by a Base"
		req.URL.Host = "changed.example"
	}
}

func TestUnknownMember(t *testing.T) {
	m, err := New(map[string]Target{"west": {URL: "https://west.example", Header: key}, "east": {URL: "https://east.example", Header: key}})
	if err != nil {
		t.Fatal(err)
	}
	req, _ := http.NewRequest("GET", "http://api.example/v1", nil)
	if err := m.Rewrite(req, "north"); err == nil || err.Error() != `targets: member "north" is not known: add it to the Map of ["east" "west"]` || req.URL.Host != "api.example" {
		t.Errorf("%v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestRedirectsUnderStrip checks that an http.Client follows the redirects of members whose paths differ from the
// caller's, and that the user of a URL is sent.
func TestRedirectsUnderStrip(t *testing.T) {
	for strip, c := range map[string][2]string{
		"":      {"https://m.example/base", "https://m.example/base/v1/deployments/a/next"},
		"/v1":   {"https://m.example/api", "/api/deployments/a/next"},
		"/v1/*": {"https://m.example/v1/other", "/v1/other/a/next"},
	} {
		m, err := New(map[string]Target{"m": {URL: strings.Replace(c[0], "//", "//user:s3cret@", 1), Strip: strip}})
		if err != nil {
			t.Fatal(err)
		}
		l, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := throttle.NewPool(throttle.Member{Name: "m", Limiter: l})
		if err != nil {
			t.Fatal(err)
		}
		var sent []string
		client := &http.Client{Transport: &throttle.Transport{Pool: p, Rewrite: m.Rewrite, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			user, password, _ := r.BasicAuth()
			sent = append(sent, fmt.Sprint(r.URL, user, password))
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(""))}
			if strings.HasSuffix(r.URL.Path, "/first") {
				resp.StatusCode = 302
				resp.Header.Set("Location", c[1])
			}
			return resp, nil
		})}}
		resp, err := client.Get("https://api.example/v1/deployments/a/first")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		to, _ := url.Parse(c[1])
		if want := "https://m.example" + to.Path + "users3cret"; len(sent) != 2 || sent[1] != want {
			t.Errorf("%q: sent %q, want %s", strip, sent, want)
		}
		if got := resp.Request.URL.String(); got != "https://api.example/v1/deployments/a/next" {
			t.Errorf("%q: the response is to %s", strip, got)
		}
	}
}
