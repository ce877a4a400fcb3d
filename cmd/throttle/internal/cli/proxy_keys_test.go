//go:build unix

package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// An echo is an API that records the requests that reach it.
type echo struct {
	*httptest.Server
	mu   sync.Mutex
	urls []string
	keys [][]string // the values of Authorization
}

// startEcho starts an echo. Its answers are those of answer, or if that is nil, empty.
func startEcho(t *testing.T, answer http.HandlerFunc) *echo {
	t.Helper()
	e := new(echo)
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		e.urls, e.keys = append(e.urls, r.URL.RequestURI()), append(e.keys, r.Header["Authorization"])
		e.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// last returns the address and the keys of the last request.
func (e *echo) last() (url string, keys []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.urls[len(e.urls)-1], e.keys[len(e.keys)-1]
}

func bearer(key string) string { return "Authorization: Bearer " + key }

// TestProxyKeys checks that each value of a header is an account: one that has used up its limits, or
// waits with many requests, delays no other, and its value shows nowhere.
func TestProxyKeys(t *testing.T) {
	for _, route := range []string{
		"policy: 2/h, max_queue: 50, key: {header: authorization}",
		"policy: 2/h, max_queue: 50, key: {header: Authorization}, budget: 1000/day;budget=true",
		"preset: salesforce, with: {per_day: 2}, any_host: true, max_queue: 50, key: {header: Authorization}",
	} {
		api := startEcho(t, nil)
		p := startProxy(t, fmt.Sprintf("routes:\n  /api: {to: %q, %s}\n", api.URL, route), "--access-log")
		const path = "/api/services/data/v60.0/query"
		s := p.storm(30, path, bearer("canary-one"))
		for range 2 {
			if a := s.next(t); a.status != 200 {
				t.Fatalf("%s: %+v", route, a)
			}
		}
		for i := range 20 {
			for range 2 {
				if a := p.must(path, bearer(fmt.Sprint("canary-", i))); a.status != 200 {
					t.Fatalf("%s: another account: %+v", route, a)
				}
			}
		}
		for range 2 {
			if a := p.must(path); a.status != 200 { // requests without a key are one account
				t.Errorf("%s: %+v", route, a)
			}
		}
		for _, key := range []string{"", bearer("canary-3"), "Authorization: bearer  canary-3 "} {
			headers := []string{"X-Throttle-Max-Wait: 1s"}
			if key != "" {
				headers = append(headers, key)
			}
			if a := p.must(path, headers...); a.Reason != "deadline" || strings.Contains(a.body, "canary") {
				t.Errorf("%s: %q: %+v", route, key, a)
			}
		}
		for _, page := range []string{"/_throttle/metrics", "/_throttle/state.json", "/_throttle/health"} {
			if a := p.must(page); strings.Contains(a.body, "canary") {
				t.Errorf("%s: %s shows a key: %s", route, page, a.body)
			}
		}
		s.end()
		if strings.Contains(p.log.String(), "canary") {
			t.Errorf("%s: the log shows a key: %s", route, p.log)
		}
	}
}

// TestProxyTooManyKeys checks that accounts beyond max_keys are refused while all others have used
// something.
func TestProxyTooManyKeys(t *testing.T) {
	api := startEcho(t, nil)
	p := startProxy(t, fmt.Sprintf("routes:\n  /api: {to: %q, policy: 1/h, key: {header: X-Tenant, max_keys: 3}}\n", api.URL))
	for i := range 3 {
		if a := p.must("/api/x", fmt.Sprint("X-Tenant: ", i)); a.status != 200 {
			t.Errorf("account %d: %+v", i, a)
		}
	}
	if a := p.must("/api/x", "X-Tenant: 3"); a.status != 503 || a.Reason != "too_many_keys" || a.Policy != "api" || a.header.Get("Retry-After") == "" {
		t.Errorf("one account more: %+v", a)
	}
}

// TestProxyRepeatedKey checks that the API receives the value that counts.
func TestProxyRepeatedKey(t *testing.T) {
	api := startEcho(t, nil)
	p := startProxy(t, fmt.Sprintf("routes:\n  /api: {to: %q, policy: 5/s, key: {header: Authorization}}\n", api.URL))
	p.must("/api/x", bearer("a"), bearer("b"))
	if _, keys := api.last(); len(keys) != 1 || keys[0] != "Bearer a" {
		t.Errorf("the API received %q", keys)
	}
}

// TestProxyReloadsKeys checks that accounts keep what is charged, and requests their places, when the
// limits of a route with a key change.
func TestProxyReloadsKeys(t *testing.T) {
	api := throttletest.NewProvider(throttle.PerHour(100))
	defer api.Close()
	file := func(n int) string {
		return fmt.Sprintf("routes:\n  /api: {to: %q, policy: %d/h, key: {header: Authorization}}\n", api.URL, n)
	}
	p := startProxy(t, file(1))
	for _, key := range []string{"a", "b"} {
		if a := p.must("/api/x", bearer(key)); a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
	s := p.storm(2, "/api/x", bearer("a"))
	p.waiting("api", 2)
	p.write(file(2))
	p.reload(1)
	if a := s.next(t); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := p.must("/api/x", bearer("b")); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := p.must("/api/x", bearer("b"), "X-Throttle-Max-Wait: 1s"); a.Reason != "deadline" || a.Tier != "2/h" {
		t.Errorf("%+v", a)
	}
	p.waiting("api", 1)
}

// secretFile has secrets in an address and in a query.
const secretFile = `
routes:
  /bot: {to: "%s/bot${env:BOT_TOKEN}/v1/", policy: 1000/s, query: {apikey: "${env:API_KEY}", version: "2"}}
  /dead: {to: "http://127.0.0.1:1/v2/${env:BOT_TOKEN}", policy: 1000/s, query: {key: "${env:API_KEY}"}}
  /full: {to: "http://127.0.0.1:1/v2/${env:BOT_TOKEN}", policy: 1/h, max_wait: 1s}
`

// TestProxySecretsInAddresses checks that secrets of an address and of a query reach the API, and that a
// client can neither read nor replace them.
func TestProxySecretsInAddresses(t *testing.T) {
	const escaped = "123456:canary%2Fbot"
	api := startEcho(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/redirect") {
			w.Header().Set("Location", "https://other.example/login?next="+r.URL.RequestURI()+"&raw=123456:canary/bot")
			w.Header().Set("Link", "<http://"+r.Host+r.URL.RequestURI()+"&page=2>; rel=next")
			w.Header().Set("X-Echo", "canary+key&canary")
			w.WriteHeader(http.StatusFound)
		}
	})
	p := startProxy(t, fmt.Sprintf(secretFile, api.URL), "--access-log")
	for path, want := range map[string]string{
		"/bot":                             "/bot" + escaped + "/v1?apikey=canary%2Bkey%26canary&version=2",
		"/bot/send?text=a%20b&n=1":         "/bot" + escaped + "/v1/send?text=a%20b&n=1&apikey=canary%2Bkey%26canary&version=2",
		"/bot/send?apikey=x&n=1&apikey=y":  "/bot" + escaped + "/v1/send?n=1&apikey=canary%2Bkey%26canary&version=2",
		"/bot/send?%61pikey=x&version":     "/bot" + escaped + "/v1/send?apikey=canary%2Bkey%26canary&version=2",
		"/bot/send?a=1;apikey=x&b=2":       "/bot" + escaped + "/v1/send?b=2&apikey=canary%2Bkey%26canary&version=2",
		"/bot/send?apikey[]=x&%2561pikey=": "/bot" + escaped + "/v1/send?apikey=canary%2Bkey%26canary&version=2",
	} {
		if a := p.must(path); a.status != 200 {
			t.Errorf("%s: %+v", path, a)
		}
		if url, _ := api.last(); url != want {
			t.Errorf("%s reached the API as %s, want %s", path, url, want)
		}
	}
	var shown strings.Builder
	for _, path := range []string{"/bot/redirect", "/dead/x", "/full/x", "/full/x", "/none", "/_throttle/metrics", "/_throttle/state.json", "/_throttle/health"} {
		a := p.must(path)
		fmt.Fprintln(&shown, path, a.status, a.header, a.body)
	}
	p.write(strings.Replace(fmt.Sprintf(secretFile, api.URL), "1000/s", "1000/fortnight", 1))
	p.reload(1)
	shown.WriteString(p.log.String())
	if text := shown.String(); strings.Contains(text, "canary") || strings.Contains(text, "123456") || !strings.Contains(text, "/dead/x 502") {
		t.Errorf("a secret is shown: %s", text)
	}
}
