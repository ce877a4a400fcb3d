package page_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/leaktest"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Run(m)) }

const csp = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

// get returns the response of a handler.
func get(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// decode reads JSON.
func decode[T any](t *testing.T, body string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v: %.200s", err, body)
	}
	return v
}

// watched returns a limiter whose policy stats observe and watch.
func watched(t *testing.T, stats *observe.Stats, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	p.Observer = stats.Observer()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := stats.Watch(p.Name, l); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestMoney checks what the page says of a budget in dollars, to programs and without JavaScript.
func TestMoney(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy, err := throttle.ParsePolicy("models", "5/s + $500/month")
		if err != nil {
			t.Fatal(err)
		}
		stats := observe.NewStats()
		l := watched(t, stats, policy, nil)
		time.Sleep(20 * 24 * time.Hour)
		p, err := l.Acquire(t.Context(), throttle.Cost{"nanodollars": 396_000_000_000})
		if err != nil {
			t.Fatal(err)
		}
		p.Passed()
		p.Release()
		h := page.New(page.Options{Stats: stats})
		body := get(h, "GET", "/").Body.String()
		for _, want := range []string{
			"<li><bdi>5/s</bdi>: 1 of 5 used</li>",
			"<li><bdi>$500/month</bdi>: $396.00 of $500.00 used, about $614 expected by 31 Jan, $114 more than the budget</li>",
		} {
			if !strings.Contains(body, want) {
				t.Errorf("%s\nhas no %s", body, want)
			}
		}
		tiers := decode[page.State](t, get(h, "GET", "/state.json").Body.String()).Policies[0].Tiers
		if f := tiers[1].Forecast; tiers[0].Forecast != nil || f == nil || f.Total != 613_800_000_000 {
			t.Errorf("forecasts are %+v and %+v, want none and $613.80", tiers[0].Forecast, f)
		}
	})
}

// TestPaths checks what each path serves, and its headers.
func TestPaths(t *testing.T) {
	h := page.New(page.Options{Stats: observe.NewStats()})
	for _, test := range []struct {
		method, path string
		status       int
		contentType  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/?q=1", 200, "text/html; charset=utf-8"},
		{"GET", "/app.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/style.css", 200, "text/css; charset=utf-8"},
		{"GET", "/state.json", 200, "application/json"},
		{"GET", "/health", 200, "application/json"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/events", 200, "text/event-stream"},
		{"HEAD", "/health", 200, "application/json"},
		{"GET", "/page.html", 404, "text/plain; charset=utf-8"},
		{"GET", "/nothing", 404, "text/plain; charset=utf-8"},
		{"GET", "/app.js/nothing", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
		{"PUT", "/app.js", 405, "text/plain; charset=utf-8"},
		{"DELETE", "/state.json", 405, "text/plain; charset=utf-8"},
		{"OPTIONS", "/events", 405, "text/plain; charset=utf-8"},
	} {
		w := get(h, test.method, test.path)
		if w.Code != test.status || w.Header().Get("Content-Type") != test.contentType {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, w.Code, w.Header().Get("Content-Type"), test.status, test.contentType)
		}
		if test.status == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow %q", test.method, test.path, w.Header().Get("Allow"))
		}
		if w.Header().Get("Content-Security-Policy") != csp || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: headers %v", test.method, test.path, w.Header())
		}
		if isAsset := strings.HasSuffix(test.contentType, "script; charset=utf-8") || strings.HasPrefix(test.contentType, "text/css"); test.status == 200 &&
			(w.Header().Get("Cache-Control") == "no-store") == isAsset {
			t.Errorf("%s %s: Cache-Control %q", test.method, test.path, w.Header().Get("Cache-Control"))
		}
	}
}

// TestPrefixes checks that everything is found from the page's address, however the handler is mounted.
func TestPrefixes(t *testing.T) {
	h := page.New(page.Options{Stats: observe.NewStats()})
	mux := func(patterns map[string]http.Handler) http.Handler {
		m := http.NewServeMux()
		for pattern, h := range patterns {
			m.Handle(pattern, h)
		}
		return m
	}
	inner := httptest.NewServer(mux(map[string]http.Handler{"/": http.NotFoundHandler(), "/inner/": h}))
	defer inner.Close()
	target, err := url.Parse(inner.URL + "/inner")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		handler http.Handler
		path    string // of the page; the one without a slash at its end leads there
		bare    bool   // test that one, too
	}{
		{"alone", h, "/", false},
		{"alone under a prefix", h, "/any/prefix/", false},
		{"mux at /", mux(map[string]http.Handler{"/": h}), "/", false},
		{"mux under a prefix", mux(map[string]http.Handler{"/a/b/": h}), "/a/b/", true},
		{"mux with a method and a wildcard", mux(map[string]http.Handler{"GET /a/{b}/": h}), "/a/x y/", true},
		{"mux without the slash, too", mux(map[string]http.Handler{"/a/b": h, "/a/b/": h}), "/a/b/", true},
		{"StripPrefix", http.StripPrefix("/a/b", h), "/a/b/", true},
		{"StripPrefix with a slash", http.StripPrefix("/a/b/", h), "/a/b/", false},
		{"StripPrefix in a mux", mux(map[string]http.Handler{"/a/b/": http.StripPrefix("/a/b", h)}), "/a/b/", true},
		{"a mux in a mux", mux(map[string]http.Handler{"/a/": http.StripPrefix("/a", mux(map[string]http.Handler{"/b/": h}))}), "/a/b/", false},
		{"named like a resource", mux(map[string]http.Handler{"/health/": h}), "/health/", true},
		{"a proxy that changes the path", http.StripPrefix("/outer", httputil.NewSingleHostReverseProxy(target)), "/outer/", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			starts := []string{test.path}
			if test.bare {
				starts = append(starts, strings.TrimSuffix(test.path, "/"))
			}
			for _, start := range starts {
				resp, body := fetch(t, server.URL+start)
				if resp.StatusCode != 200 || resp.Request.URL.Path != test.path {
					t.Fatalf("%s: %d at %s, want %s", start, resp.StatusCode, resp.Request.URL, test.path)
				}
				var found []string
				for _, m := range regexp.MustCompile(`(?:href|src)="(\./[^"]*)"`).FindAllStringSubmatch(body, -1) {
					found = append(found, m[1])
				}
				if len(found) != 4 {
					t.Fatalf("the page refers to %q", found)
				}
				for _, ref := range found {
					u, err := resp.Request.URL.Parse(ref)
					if err != nil {
						t.Fatal(err)
					}
					if resp, body := fetch(t, u.String()); resp.StatusCode != 200 || body == "" {
						t.Errorf("%s: %d at %s", ref, resp.StatusCode, u)
					}
				}
			}
		})
	}
	if w := get(http.StripPrefix("/a/b", h), "GET", "/a/b"); w.Code != http.StatusTemporaryRedirect || w.Header().Get("Location") != "./b/" {
		t.Errorf("without the slash: %d %q", w.Code, w.Header().Get("Location"))
	}
	if w := get(http.StripPrefix("/a/b", h), "GET", "/a/b/nothing"); w.Code != http.StatusNotFound {
		t.Errorf("nothing under a prefix: %d", w.Code)
	}
}

// fetch gets a URL and follows redirects.
func fetch(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestAssets checks the size of the assets, that browsers keep them, and that nothing in them is inline,
// from elsewhere, or makes HTML of data.
func TestAssets(t *testing.T) {
	files, err := os.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, f := range files {
		content, err := os.ReadFile("assets/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		size += len(content)
		bad := regexp.MustCompile(`(?i)<style|\bstyle="|\son\w+=|javascript:|<script>|<base|(inner|outer|adjacent)HTML|document\.write|\beval\(|new Function|@import|url\(`)
		if found := bad.FindString(string(content)); found != "" {
			t.Errorf("%s has %q", f.Name(), found)
		}
		for _, u := range regexp.MustCompile(`(?:https?:)?//[\w.-]+\.\w+[^'"]*`).FindAllString(string(content), -1) {
			if u != "http://www.w3.org/2000/svg" {
				t.Errorf("%s refers to %s", f.Name(), u)
			}
		}
	}
	if size > 40_000 {
		t.Errorf("%d bytes, want at most 40,000", size)
	}
	h := page.New(page.Options{Stats: observe.NewStats()})
	for _, path := range []string{"/app.js", "/style.css"} {
		etag := get(h, "GET", path).Header().Get("ETag")
		if w := get(h, "GET", path, "If-None-Match", etag); etag == "" || w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s with ETag %s: %d, %d bytes", path, etag, w.Code, w.Body.Len())
		}
		if w := get(h, "GET", path, "If-None-Match", `"other"`); w.Code != 200 || w.Body.Len() == 0 {
			t.Errorf("%s with another ETag: %d", path, w.Code)
		}
	}
}

// TestHostileNames checks that names can't leave the text that they are part of.
func TestHostileNames(t *testing.T) {
	stats := observe.NewStats()
	names := []string{"</script><script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "</noscript><img src=x>", strings.Repeat("n", 10_000), "", "__proto__", "\u202egnp.exe"}
	for _, name := range names {
		watched(t, stats, throttle.Policy{Name: name, Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Allow()
	}
	l := watched(t, stats, throttle.Policy{Name: "watched", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	if err := stats.Watch("a\xffb\nevent: x\n\ndata: y", l); err != nil {
		t.Fatal(err)
	}
	h := page.New(page.Options{Stats: stats, Title: "<script>alert(2)</script>\xff"})
	if body := get(h, "GET", "/").Body.String(); strings.Contains(body, "<img") || strings.Count(body, "<script") != 1 || strings.Count(body, "</noscript>") != 1 || len(body) > 20_000 {
		t.Errorf("%d bytes: %s", len(body), body)
	}
	body := get(h, "GET", "/state.json").Body.String()
	if state := decode[page.State](t, body); len(state.Policies) != len(names)+2 || strings.ContainsAny(body, "<>") {
		t.Errorf("%d policies: %.1000s", len(state.Policies), body)
	}
}

func TestNewPanics(t *testing.T) {
	defer func() {
		if got := fmt.Sprint(recover()); got != "page: Options.Stats is nil: it must be the observe.Stats to show" {
			t.Errorf("panic %q", got)
		}
	}()
	page.New(page.Options{})
}
