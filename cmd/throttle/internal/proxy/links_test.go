package proxy_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// linkingHandler returns a Handler whose upstream https://api.example/v1 answers with a header, at the
// prefix /api. Other routes are at / and /other.
func linkingHandler(t *testing.T, public, name, value string) *proxy.Handler {
	t.Helper()
	h := proxy.New(proxy.Options{})
	answer := roundTripFunc(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 302, Header: http.Header{name: {value}}, Body: http.NoBody, Request: req}, nil
	})
	var table proxy.Table
	for prefix, to := range map[string]string{"/api": "https://api.example/v1", "/other": "https://other.example", "/": "http://all.example:8080"} {
		table.Routes = append(table.Routes, proxy.Route{Prefix: prefix, Upstream: parseURL(t, to), Transport: &throttle.Transport{Base: answer}})
	}
	if public != "" {
		table.PublicURL = parseURL(t, public)
	}
	h.SetTable(table)
	return h
}

// TestLocation checks where the links of responses lead: to the path of the route, if they lead below the
// address of the upstream, and else to the API.
func TestLocation(t *testing.T) {
	const public = "https://gw.example/throttle"
	for _, test := range []struct{ public, ref, want string }{
		{"", "https://api.example/v1/b?q=1#f", "http://localhost/api/b?q=1#f"},
		{"", "https://API.example:443/v1/b", "http://localhost/api/b"},
		{"", "https://api.example/v1", "http://localhost/api"},
		{"", "https://api.example/v1?q", "http://localhost/api?q"},
		{"", "http://api.example/v1/b", "http://localhost/api/b"}, // as APIs behind a balancer write it
		{"", "//api.example/v1/b", "http://localhost/api/b"},
		{"", "https://user@api.example/v1/b", "http://localhost/api/b"},
		{"", "https://api.example/v1/a%2Fb", "http://localhost/api/a%2Fb"},
		{"", "/v1/b", "/api/b"},
		{"", "b", "/api/b"},
		{"", "?page=2", "/api/x?page=2"},
		{"", "./b/../c", "/api/c"},
		{"", " /v1/b ", "/api/b"},
		{"", "/login", "https://api.example/login"},
		{"", "../other/x", "https://api.example/other/x"},
		{"", "/other/x", "https://api.example/other/x"},
		{"", "/v1x/y", "https://api.example/v1x/y"},
		{"", "/v1/%2e%2e/other/x", "https://api.example/v1/%2e%2e/other/x"},
		{"", "//evil.example/v1/b", "https://evil.example/v1/b"},
		{"", "https://api.example/login", "https://api.example/login"},
		{"", "https://api.example:8443/v1/b", "https://api.example:8443/v1/b"},
		{"", "http://api.example:8080/v1/b", "http://api.example:8080/v1/b"},
		{"", "https://other.example/x", "https://other.example/x"},
		{"", "mailto:a@b.example", "mailto:a@b.example"},
		{"", "https://api.example/v1/%zz", "https://api.example/v1/%zz"},
		{public, "https://api.example/v1/b", "https://gw.example/throttle/api/b"},
		{public, "/v1/b", "/throttle/api/b"},
		{public, "/login", "https://api.example/login"},
	} {
		for _, name := range []string{"Location", "Content-Location", "Operation-Location", "Azure-AsyncOperation", "X-Goog-Upload-URL"} {
			h := linkingHandler(t, test.public, http.CanonicalHeaderKey(name), test.ref)
			w := serve(t, h, "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https", "Forwarded: host=evil.example")
			if got := w.Header().Get(name); got != test.want {
				t.Errorf("public_url %q: %s: %s became %s, want %s", test.public, name, test.ref, got, test.want)
			}
		}
	}
}

// TestLocationOfRoot checks a route at / to an API without a path, and a redirect from http to https,
// which must not lead to http again.
func TestLocationOfRoot(t *testing.T) {
	for ref, want := range map[string]string{
		"http://all.example:8080":      "http://localhost/",
		"http://all.example:8080/x":    "http://localhost/x",
		"/y":                           "/y",
		"https://all.example:8080/x":   "https://all.example:8080/x",
		"http://all.example/elsewhere": "http://all.example/elsewhere",
	} {
		h := linkingHandler(t, "", "Location", ref)
		w := serveAt(t, h, "/z")
		if got := w.Header().Get("Location"); got != want {
			t.Errorf("%s became %s, want %s", ref, got, want)
		}
	}
}

// TestLink checks Link headers, of RFC 8288: several links in a field, quoted strings, relative targets.
func TestLink(t *testing.T) {
	for value, want := range map[string]string{
		`<https://api.example/v1/x?page=2>; rel="next", <https://api.example/v1/x?page=9>; rel="last"`: `<http://localhost/api/x?page=2>; rel="next", <http://localhost/api/x?page=9>; rel="last"`,
		`</v1/x?page=2>;rel=next,<?page=3>;rel=last`:                                                   `</api/x?page=2>;rel=next,</api/x?page=3>;rel=last`,
		`<http://api.example/v1?page=2>; rel=next`:                                                     `<http://localhost/api?page=2>; rel=next`,
		`<https://api.example/v1/a,b;c>; title="a, </v1/x> \", <b>"; rel=next, </login>`:               `<http://localhost/api/a,b;c>; title="a, </v1/x> \", <b>"; rel=next, <https://api.example/login>`,
		`, ,</v1/x>; rel=next,`: `, ,</api/x>; rel=next,`,
		`garbage, </v1/x>`:      `garbage, </api/x>`,
		`</v1/x`:                `</v1/x`,
		`<>; rel=self`:          `</api/x>; rel=self`,
		`>`:                     `>`,
		`</v1/x>; title="open`:  `</api/x>; title="open`,
		"":                      "",
	} {
		w := serve(t, linkingHandler(t, "", "Link", value))
		if got := strings.Join(w.Header()["Link"], "|"); got != want {
			t.Errorf("%s became %s, want %s", value, got, want)
		}
	}
}
