package proxy_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/observe"
)

// TestAttacks sends requests that would reach something else than the upstream's paths through a
// careless proxy. None may reach the upstream, and each is refused with a status.
func TestAttacks(t *testing.T) {
	var reached atomic.Int64
	b := start(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.Upstream.Path = "/v1"
		all := b.route(plenty)
		all.Prefix = "/"
		return proxy.Table{Routes: []proxy.Route{r, all}}
	})
	get := func(target string) string {
		return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	}
	with := func(lines string) string { return "GET /api/x HTTP/1.1\r\nConnection: close\r\n" + lines + "\r\n\r\n" }
	for _, test := range []struct {
		request string
		status  int
	}{
		{get("http://169.254.169.254/latest/meta-data/"), 421},
		{get("http://localhost/api/x"), 421},
		{get("https://evil.example/api/x"), 421},
		{get("http://user:password@evil.example/api/x"), 421},
		{get("//evil.example/api/x"), 400},
		{get("//169.254.169.254/latest"), 400},
		{get("/api//evil.example/x"), 400},
		{get("/api/\\evil.example/x"), 400},
		{get("/api/%5Cevil.example/x"), 400},
		{get("/api/%2fevil.example/x"), 400},
		{get("/api/.."), 400},
		{get("/api/../admin"), 400},
		{get("/api/./admin"), 400},
		{get("/api/%2e%2e/admin"), 400},
		{get("/api/.%2E/admin"), 400},
		{get("/api/..%2fadmin"), 400},
		{get("/api/%2e%2e%2fadmin"), 400},
		{get("/api/..%5cadmin"), 400},
		{get("/api/..\\admin"), 400},
		{get("/api/%252e%252e/admin"), 400},
		{get("/api/%252e%252e%252fadmin"), 400},
		{get("/api/%25252525252e%2525252e/admin"), 400},
		{get("/api/100%25/%252e%252e/admin"), 400}, // an upstream may decode it leniently
		{get("/api/%25zz/..%255c%252e%252e%255cadmin"), 400},
		{get("/api/100%25/x%250a"), 400},
		{get("/api/..;x=1/admin"), 400},
		{get("/api/..%3bx/admin"), 400},
		{get("/api/x%00"), 400},
		{get("/api/x%0d%0aX-Evil:%201"), 400},
		{get("/api/%250a"), 400},
		{get("/../api/x"), 400},
		{get("*"), 400},
		{get("api/x"), 400},
		{"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400},
		{"CONNECT api.github.com:443 HTTP/1.1\r\nHost: api.github.com:443\r\n\r\n", 405},
		{"CONNECT /api/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{"TRACE /api/x HTTP/1.1\r\nHost: localhost\r\n\r\n", 405},
		{with("Host: evil.example"), 421},
		{with("Host: 169.254.169.254"), 421},
		{with("Host: localhost@evil.example"), 400},
		{with("Host: localhost\r\nHost: evil.example"), 400},
		{with("Host: evil example"), 400},
		{with("X: y"), 400}, // no Host
		{with("Host: localhost\r\nContent-Length: 1\r\nContent-Length: 2"), 400},
		{with("Host: localhost\r\nContent-Length: +1"), 400},
		{with("Host: localhost\r\nContent-Length: -1"), 400},
		{with("Host: localhost\r\nTransfer-Encoding: identity, chunked"), 501},
		{with("Host: localhost\r\nTransfer-Encoding: xchunked"), 501},
		{with("Host: localhost\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), 501},
		{with("Host: localhost\r\nX Y: z"), 400},
		{with("Host: localhost\r\nX : z"), 400},
		{with("Host: localhost\r\n folded: z"), 400},
		{with("Host: localhost\r\nX: a\x00b"), 400},
		{with("Host: localhost\r\nX: a\rb"), 400},
		{with("Host: localhost\r\nX: " + strings.Repeat("a", 100<<10)), 431},
		{with("Host: localhost\r\nX-Throttle-Class: root"), 400},
		{with("Host: localhost\r\nX-Throttle-Max-Wait: -1s"), 400},
		{with("Host: localhost\r\nX-Throttle-Max-Wait: soon"), 400},
		{with("Host: localhost\r\nX-Throttle-Max-Wait: NaN"), 400},
		{with("Host: localhost\r\nOrigin: https://evil.example"), 403},
		{with("Host: localhost\r\nOrigin: null"), 403},
		{with("Host: localhost\r\nSec-Fetch-Site: cross-site"), 403},
		{"POST /api/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
	} {
		resp := b.raw(test.request)
		body := text(t, resp)
		if resp.StatusCode != test.status {
			t.Errorf("%.200q: status %d, want %d: %s", test.request, resp.StatusCode, test.status, body)
		}
		if strings.HasPrefix(test.request, "CONNECT") && !strings.Contains(body, "base URL") {
			t.Errorf("the body of CONNECT explains nothing: %s", body)
		}
		if n := reached.Swap(0); n > 0 {
			t.Errorf("%.200q reached the upstream", test.request)
		}
	}
}

// TestSmuggling checks that a request with both lengths is one request for the upstream.
func TestSmuggling(t *testing.T) {
	var reached atomic.Int64
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		echo(w, r)
	}, proxy.Options{}, single(plenty))
	resp := b.raw("POST /api/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if body := text(t, resp); strings.Contains(body, "smuggled") || reached.Load() > 2 {
		t.Errorf("status %d after %d requests: %s", resp.StatusCode, reached.Load(), body)
	}
}

// TestUpgradeToHTTP checks that no client can open a tunnel to the upstream that takes further requests,
// such as h2c: the proxy could neither see nor count them. Java's HttpClient asks for h2c by default,
// so the request passes without the upgrade.
func TestUpgradeToHTTP(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = fmt.Fprint(w, "plain ", r.Header)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
		w.WriteHeader(http.StatusSwitchingProtocols)
	}, proxy.Options{}, single(plenty))
	for upgrade, status := range map[string]int{
		"h2c": 200, "H2C": 200, "h2": 200, "HTTP/2.0": 200, "http/1.1": 200, "TLS/1.0": 200, "TLS/1.0, HTTP/1.1": 200, "websocket,h2c": 200, "websocket, h2c": 200,
		"websocket": 101, "echo/1": 101,
	} {
		resp := b.raw("GET /api/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + "\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
		if resp.StatusCode != status {
			t.Errorf("Upgrade: %s: status %d, want %d", upgrade, resp.StatusCode, status)
		}
		if status == 200 && strings.Contains(text(t, resp), "Settings") {
			t.Errorf("Upgrade: %s: the upstream received HTTP2-Settings", upgrade)
		}
	}
}

// TestAllowedTargets checks that what looks odd and is harmless reaches the upstream as it is.
func TestAllowedTargets(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) }, proxy.Options{}, func(b *bench) proxy.Table {
		r, deep := b.route(plenty), b.route(plenty)
		r.Upstream = parseURL(t, b.upstream.String()+"/v1%2Fa")
		deep.Prefix = "/api/deep"
		return proxy.Table{Routes: []proxy.Route{r, deep}}
	})
	for _, test := range []struct{ target, want string }{
		{"/api", "/v1%2Fa"},
		{"/api/", "/v1%2Fa/"},
		{"/api?q", "/v1%2Fa?q"},
		{"/api/a//b", "/v1%2Fa/a//b"},
		{"/api/a%2Fb", "/v1%2Fa/a%2Fb"},
		{"/api/a...b/..c/d..", "/v1%2Fa/a...b/..c/d.."},
		{"/api/100%25", "/v1%2Fa/100%25"},
		{"/api/a;b=1", "/v1%2Fa/a;b=1"},
		{"/api/x?to=http://evil.example/../&a;b&%zz", "/v1%2Fa/x?to=http://evil.example/../&a;b&%zz"},
		{"/api/%C3%A4", "/v1%2Fa/%C3%A4"},
		{"/api/deep/x", "/x"},
		{"/api/deeper", "/v1%2Fa/deeper"},
	} {
		resp := b.raw("GET " + test.target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if got := text(t, resp); got != test.want {
			t.Errorf("%s became %s (status %d), want %s", test.target, got, resp.StatusCode, test.want)
		}
	}
	for _, target := range []string{"/", "/other", "/apix", "/API/x", "/_throttle/none", "/_throttlex"} {
		if resp := b.do("GET", target, nil); resp.StatusCode != 404 || strings.Contains(text(t, resp), b.upstream.Host) {
			t.Errorf("%s: status %d", target, resp.StatusCode)
		}
	}
}

const webToken, nightlyToken = "web-canary-0123456789", "nightly-canary-0123456789"

// clientsTable has two clients, the second of which may not use /closed.
func clientsTable(b *bench) proxy.Table {
	open, closed := b.route(plenty), b.route(plenty)
	closed.Prefix = "/closed"
	closed.Allows = func(name string) bool { return name == "web" }
	return proxy.Table{
		Routes: []proxy.Route{open, closed},
		Clients: []proxy.Client{
			{Name: "web", Token: webToken, Class: throttle.Interactive, HasClass: true},
			{Name: "nightly", Token: nightlyToken},
		},
	}
}

func TestClients(t *testing.T) {
	b := start(t, echo, proxy.Options{}, clientsTable)
	basic := func(user, password string) string {
		return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	for _, test := range []struct {
		path    string
		headers []string
		status  int
		keeps   string // that reaches the upstream
	}{
		{"/api/x", nil, 401, ""},
		{"/api/x", []string{"Authorization: Bearer wrong"}, 401, ""},
		{"/none", nil, 401, ""},
		{"/none", []string{"Authorization: Bearer " + webToken}, 404, ""},
		{"/api/x", []string{"Authorization: Bearer " + webToken}, 200, ""},
		{"/api/x", []string{"Authorization: token " + nightlyToken}, 200, ""},
		{"/api/x", []string{"Authorization: " + nightlyToken}, 200, ""},
		{"/api/x", []string{basic(webToken, "")}, 200, ""},
		{"/api/x", []string{basic("user", webToken)}, 200, ""},
		{"/api/x", []string{"X-Api-Key: " + webToken}, 200, ""},
		{"/api/x", []string{"X-Goog-Api-Key: " + webToken}, 200, ""},
		{"/api/x", []string{"Api-Key: " + webToken}, 200, ""},
		{"/api/x", []string{"X-Throttle-Token: " + webToken, "Authorization: Bearer own-key"}, 200, "Bearer own-key"},
		{"/api/x", []string{"X-Throttle-Token: " + webToken, "X-Else: a " + webToken + " b", basic("a", webToken)}, 200, ""},
		{"/api/x?key=" + webToken, []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/" + webToken, []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/x?key=web%2Dcanary-0123456789", []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/web%2dcanary-0123456789/x", []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/x?key=web%252Dcanary-0123456789", []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/web%25252Dcanary-0123456789", []string{"Authorization: Bearer " + webToken}, 400, ""},
		{"/api/x?a=" + nightlyToken, []string{"Authorization: Bearer " + webToken}, 400, ""}, // of another client
		{"/api/x?a=" + webToken[1:], []string{"Authorization: Bearer " + webToken}, 200, ""},
		{"/api/x", []string{"Authorization: Bearer " + webToken, "X-Else: " + nightlyToken, "Cookie: a=1; b=" + nightlyToken, "X-Auth: Basic " + base64.RawURLEncoding.EncodeToString([]byte("?>:"+nightlyToken))}, 200, ""},
		{"/api/x", []string{"X-Api-Key: " + webToken, basic("user", nightlyToken), "Referer: http://x/?t=nightly%2Dcanary-0123456789"}, 200, ""},
		{"/api/x", []string{"X-Api-Key: " + webToken, "X-Own: " + nightlyToken[1:]}, 200, "X-Own"},
		{"/closed/x", []string{"Authorization: Bearer " + webToken}, 200, ""},
		{"/closed/x", []string{"Authorization: Bearer " + nightlyToken}, 403, ""},
		{"/api/x", []string{"Authorization: Bearer " + webToken, "Origin: https://app.example"}, 200, "https://app.example"},
	} {
		resp := b.do("GET", test.path, nil, test.headers...)
		body := text(t, resp)
		if resp.StatusCode != test.status {
			t.Errorf("%s %v: status %d, want %d: %s", test.path, test.headers, resp.StatusCode, test.status, body)
		}
		if (resp.Header.Get("WWW-Authenticate") != "") != (test.status == 401) {
			t.Errorf("%s %v: WWW-Authenticate is %q", test.path, test.headers, resp.Header.Get("WWW-Authenticate"))
		}
		if strings.Contains(body, webToken) || strings.Contains(body, nightlyToken) || strings.Contains(body, "Referer") || strings.Contains(body, "Basic") || !strings.Contains(body, test.keeps) {
			t.Errorf("%s %v: the upstream received %s, want it without the token, with %q", test.path, test.headers, body, test.keeps)
		}
	}
}

// TestCanary checks that no log has anything which clients or upstreams have sent.
func TestCanary(t *testing.T) {
	stats := observe.NewStats()
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Canary", "canary")
		if strings.HasSuffix(r.URL.Path, "429") {
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(429)
		}
		if strings.HasSuffix(r.URL.Path, "cut") {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "canary")
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "canary")
	}, proxy.Options{AccessLog: true, Stats: stats, Metrics: true, Page: true}, clientsTable)
	token := "Authorization: Bearer " + webToken
	for _, path := range []string{"/api/canary?canary=canary", "/api/%63anary?q=1", "/canary", "/api/cut/canary/cut", "/api/canary/429", "/api/canary"} {
		for _, method := range []string{"GET", "POST", "CANARY"} {
			resp := b.do(method, path, strings.NewReader("canary"), token, "X-Canary: canary", "Cookie: canary", "X-Throttle-Class: canary")
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			resp = b.do(method, path, strings.NewReader("canary"), token, "X-Canary: canary", "Cookie: canary")
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			text(t, b.do(method, path, nil, "Authorization: Bearer canary"))
		}
	}
	for _, request := range []string{
		"canary\r\n\r\n", "GET canary HTTP/1.1\r\n\r\n", "GET /api/canary/../x HTTP/1.1\r\nHost: canary\r\n\r\n", "GET /api/%00canary HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET http://canary/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "CONNECT canary:443 HTTP/1.1\r\nHost: canary:443\r\n\r\n", "GET / HTTP/1.1\r\nHost: canary canary\r\n\r\n",
	} {
		text(t, b.raw(request))
	}
	shown := b.log.String() + text(t, b.do("GET", "/_throttle/metrics", nil)) + text(t, b.do("GET", "/_throttle/state.json", nil)) + text(t, b.do("GET", "/_throttle/", nil))
	for _, line := range strings.Split(shown, "\n") {
		if strings.Contains(strings.ToLower(line), "canary") || strings.Contains(line, "63anary") {
			t.Errorf("the canary is shown: %s", line)
		}
	}
	if n := strings.Count(shown, "msg=request"); n < 50 {
		t.Errorf("%d lines in the access log:\n%s", n, b.log)
	}
}

// TestPages checks the proxy's own pages.
func TestPages(t *testing.T) {
	b := start(t, echo, proxy.Options{Stats: observe.NewStats(), Metrics: true, Page: true}, single(plenty))
	text(t, b.do("GET", "/api/x", nil))
	for path, want := range map[string]string{
		"/_throttle/":           "<html",
		"/_throttle/metrics":    "throttle_",
		"/_throttle/state.json": `"1000000/s"`,
		"/_throttle/health":     `"ok":true`,
		"/_throttle/live":       "ok\n",
		"/_throttle/app.js":     "EventSource",
	} {
		resp := b.do("GET", path, nil)
		if body := text(t, resp); resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: status %d: %.200s", path, resp.StatusCode, body)
		}
	}
	for _, header := range []string{"Host: evil.example", "Host: 10.0.0.1:7411", "X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "X-Real-Ip: 192.0.2.1"} {
		if resp := b.do("GET", "/_throttle/state.json", nil, header); resp.StatusCode != 403 && resp.StatusCode != 421 {
			t.Errorf("with %s: status %d", header, resp.StatusCode)
		}
	}
	if resp := b.do("GET", "/_throttle", nil); resp.StatusCode != 307 || resp.Header.Get("Location") != "./_throttle/" {
		t.Errorf("status %d, header %v", resp.StatusCode, resp.Header)
	}
	for _, elsewhere := range []string{"10.0.0.1:1234", "[2001:db8::1]:1", "garbage"} {
		if status := pageStatus(b, elsewhere); status != 403 {
			t.Errorf("the page has status %d for %s", status, elsewhere)
		}
	}
	for _, here := range []string{"127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "@", ""} {
		if status := pageStatus(b, here); status != 200 {
			t.Errorf("the page has status %d for %q", status, here)
		}
	}
}

func pageStatus(b *bench, from string) int {
	w := &recorder{header: make(http.Header)}
	r, err := http.NewRequest("GET", fmt.Sprintf("/_throttle/%s", "live"), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.RemoteAddr = from
	b.handler.ServeHTTP(w, r)
	return w.status
}

// A recorder is a ResponseWriter that keeps the status.
type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = 200
	}
	return len(p), nil
}
func (r *recorder) WriteHeader(status int) { r.status = status }
