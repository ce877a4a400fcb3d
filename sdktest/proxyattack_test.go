package sdktest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"time"
)

// A recorder is an API that answers every request, and keeps all bytes that it received.
type recorder struct {
	*httptest.Server
	host string

	mu       sync.Mutex // guards what follows
	conns    int
	bytes    bytes.Buffer
	requests []seen
}

// seen is a request as a recorder received it.
type seen struct {
	*http.Request
	body string
}

type recordingListener struct {
	net.Listener
	r *recorder
}

func (l recordingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.r.mu.Lock()
		l.r.conns++
		l.r.mu.Unlock()
		c = recordingConn{c, l.r}
	}
	return c, err
}

type recordingConn struct {
	net.Conn
	r *recorder
}

func (c recordingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.r.mu.Lock()
	c.r.bytes.Write(p[:n])
	c.r.mu.Unlock()
	return n, err
}

func startRecorder(t testing.TB) *recorder {
	r := &recorder{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, seen{req, string(body)})
		r.mu.Unlock()
		w.Header().Set("X-Throttle-Waited", "forged")
		w.Header().Set("X-Throttle-Policy", "forged")
		w.Header().Set("X-Throttle-Tier", "forged")
		io.WriteString(w, "ok")
	}))
	r.Listener = recordingListener{r.Listener, r}
	r.Start()
	t.Cleanup(r.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

// take returns what was received since the last call.
func (r *recorder) take() (requests []seen, raw string, conns int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	requests, raw, conns = r.requests, r.bytes.String(), r.conns
	r.requests, r.conns = nil, 0
	r.bytes.Reset()
	return requests, raw, conns
}

// answers are the responses to the bytes of an attack, until the proxy closes the connection or
// writes nothing more.
type answers struct {
	status []int
	header []http.Header
	bodies string
	closed bool
}

// attackWith writes bytes to the proxy as they are.
func (p *proxy) attackWith(raw string) (a answers) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	go io.WriteString(conn, raw) // fails if the proxy closes the connection
	method, _, _ := strings.Cut(raw, " ")
	r := bufio.NewReader(conn)
	for {
		// A request that the proxy takes for a part of one has no answer.
		wait := 2 * time.Second
		if len(a.status) > 0 {
			wait = 100 * time.Millisecond
		}
		conn.SetReadDeadline(time.Now().Add(wait))
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil {
			timeout, ok := err.(net.Error)
			a.closed = !ok || !timeout.Timeout()
			return a
		}
		conn.SetReadDeadline(time.Now().Add(patience))
		if resp.StatusCode != http.StatusSwitchingProtocols {
			body, _ := io.ReadAll(resp.Body)
			a.bodies += string(body)
		}
		a.status = append(a.status, resp.StatusCode)
		a.header = append(a.header, resp.Header)
	}
}

const (
	clientToken = "canary-client-token-0123456789"
	setSecret   = "canary-set-secret-0123456789"
)

// An attack is a request that tries to get around the proxy.
type attack struct {
	name, raw string

	// refused requires that the proxy refuses it. Otherwise it may also pass on a harmless request.
	refused bool
	// want is a text that the answer must have.
	want string
	// check checks what the upstream has received, if anything.
	check func(t *testing.T, requests []seen, raw string)
}

func get(target string, lines ...string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: {host}\r\n" + headers(lines...) + "\r\n"
}

func post(target, body string, lines ...string) string {
	return "POST " + target + " HTTP/1.1\r\nHost: {host}\r\n" + headers(lines...) + "\r\n" + body
}

func headers(lines ...string) (text string) {
	for _, l := range lines {
		text += l + "\r\n"
	}
	return text
}

// smuggled is a request that hides in the body of another one.
const smuggled = "GET /openai/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

func notReceived(what ...string) func(*testing.T, []seen, string) {
	return func(t *testing.T, _ []seen, raw string) {
		t.Helper()
		for _, text := range what {
			if strings.Contains(strings.ToLower(raw), strings.ToLower(text)) {
				t.Errorf("the upstream received %q in\n%s", text, raw[:min(len(raw), 3000)])
			}
		}
	}
}

func receivedURI(want string) func(*testing.T, []seen, string) {
	return func(t *testing.T, requests []seen, _ string) {
		t.Helper()
		if len(requests) != 1 || requests[0].RequestURI != want {
			t.Errorf("the upstream received %d requests, want 1 for %s", len(requests), want)
			for _, r := range requests {
				t.Logf("%s %s", r.Method, r.RequestURI)
			}
		}
	}
}

func attacks() []attack {
	set := func(t *testing.T, requests []seen, _ string) {
		t.Helper()
		for _, r := range requests {
			if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+setSecret {
				t.Errorf("the upstream received Authorization %q, want only the one that the route sets", got)
			}
		}
	}
	list := []attack{
		// Other addresses.
		{name: "metadata address, absolute form", raw: get("http://169.254.169.254/latest/meta-data/"), refused: true},
		{name: "metadata address with its Host", raw: "GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", refused: true},
		{name: "absolute form, another server", raw: get("http://{evil}/"), refused: true},
		{name: "absolute form, another server, path of a route", raw: "GET http://{evil}/openai/x HTTP/1.1\r\nHost: {evil}\r\n\r\n"},
		{name: "absolute form, https", raw: get("https://{evil}/openai/x")},
		{name: "absolute form, user and password", raw: get("http://user:password@{evil}/openai/x")},
		{name: "absolute form, ftp", raw: get("ftp://{evil}/x"), refused: true},
		{name: "absolute form, file", raw: get("file:///etc/passwd"), refused: true},
		{name: "Host of the metadata address", raw: "GET /latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n", refused: true},
		{name: "Host of the metadata address, path of a route", raw: "GET /openai/x HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"},
		{name: "Host of another server", raw: "GET /openai/x HTTP/1.1\r\nHost: {evil}\r\n\r\n"},
		{name: "two Hosts", raw: "GET /openai/x HTTP/1.1\r\nHost: {host}\r\nHost: {evil}\r\n\r\n", refused: true},
		{name: "no Host", raw: "GET /openai/x HTTP/1.1\r\n\r\n", refused: true},
		{name: "a bad Host", raw: "GET /openai/x HTTP/1.1\r\nHost: a/b c\r\n\r\n", refused: true},
		{name: "X-Forwarded-Host of another server", raw: get("/openai/x", "X-Forwarded-Host: {evil}", "X-Original-URL: /admin", "X-Rewrite-URL: /admin"), check: notReceived("X-Forwarded-Host")},
		{name: "//evil.example/", raw: get("//evil.example/"), refused: true},
		{name: "//evil/openai", raw: get("//{evil}/openai/x"), refused: true},
		{name: "///evil.example/", raw: get("///evil.example/"), refused: true},
		{name: `/\evil.example/`, raw: get(`/\evil.example/`), refused: true},
		{name: "//evil behind a route", raw: get("/openai//{evil}/x")},
		{name: "//evil behind a route without a path", raw: get("/root//{evil}/x")},
		{name: "@evil behind a route without a path", raw: get("/root@{evil}/x"), refused: true},
		{name: "a route's name as the beginning of another path", raw: get("/openaiadmin"), refused: true},
		{name: ":port behind a route without a path", raw: get("/root:80/x"), refused: true},
		{name: "http:// behind a route", raw: get("/root/http://{evil}/x")},
		{name: "opaque target", raw: get("openai/x"), refused: true},
		{name: "* as the target", raw: "OPTIONS * HTTP/1.1\r\nHost: {host}\r\n\r\n"},
		{name: "# in the target", raw: get("/openai/x#@{evil}/")},
		{name: "? in place of /", raw: get("/openai?x=/../admin"), check: receivedURI("/base?x=/../admin")},

		// Web pages that a browser shows on this machine.
		{name: "a page whose name leads to this machine", raw: "GET /openai/x HTTP/1.1\r\nHost: evil.example\r\n\r\n", refused: true},
		{name: "a page with the proxy's port in its address", raw: "GET /openai/x HTTP/1.1\r\nHost: evil.example:{port}\r\n\r\n", refused: true},
		{name: "a page whose name begins as this machine's", raw: "GET /openai/x HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n", refused: true},
		{name: "a foreign page", raw: post("/openai/x", "x", "Origin: https://evil.example", "Content-Type: text/plain", "Content-Length: 1"), refused: true},
		{name: "a page without an origin", raw: post("/openai/x", "x", "Origin: null", "Sec-Fetch-Site: cross-site", "Content-Length: 1"), refused: true},
		{name: "an image on a foreign page", raw: get("/openai/x", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Referer: https://evil.example/"), refused: true},
		{name: "a preflight of a foreign page", raw: "OPTIONS /openai/x HTTP/1.1\r\nHost: {host}\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", refused: true},

		// Dot-dot.
		{name: "dot-dot", raw: get("/openai/../admin"), refused: true},
		{name: "dot-dot to another route", raw: get("/openai/../github/x"), refused: true},
		{name: "dot-dot within the route", raw: get("/openai/a/../b"), refused: true},
		{name: "dot-dot at the end", raw: get("/openai/.."), refused: true},
		{name: "dot-dot before a route", raw: get("/x/../openai/x"), refused: true},
		{name: "dot-dot from the pages", raw: get("/_throttle/../openai/x"), refused: true},
		{name: "encoded dots", raw: get("/openai/%2e%2e/admin"), refused: true},
		{name: "one encoded dot", raw: get("/openai/.%2E/admin"), refused: true},
		{name: "encoded slashes", raw: get("/openai/..%2f..%2fadmin"), refused: true},
		{name: "encoded slash behind the prefix", raw: get("/openai%2f..%2fadmin"), refused: true},
		{name: "all encoded", raw: get("/openai/%2e%2e%2f%2e%2e%2fadmin"), refused: true},
		{name: "encoded letter of the prefix", raw: get("/%6fpenai/%2e%2e/admin"), refused: true},
		{name: "backslashes", raw: get(`/openai/..\..\admin`), refused: true},
		{name: "encoded backslashes", raw: get("/openai/..%5c..%5cadmin"), refused: true},
		{name: "backslash before the dots", raw: get(`/openai\..\admin`), refused: true},
		{name: "encoded twice", raw: get("/openai/%252e%252e%252fadmin")},
		{name: "semicolon", raw: get("/openai/..;/admin")},
		{name: "overlong UTF-8", raw: get("/openai/%c0%ae%c0%ae/admin")},
		{name: "full-width dots", raw: get("/openai/%ef%bc%8e%ef%bc%8e/admin")},
		{name: "NUL behind dots", raw: get("/openai/..%00/admin")},
		{name: "NUL", raw: get("/openai/x%00y")},
		{name: "a single dot", raw: get("/openai/./x")},
		{name: "bad escape", raw: get("/openai/%zz"), refused: true},
		{name: "dot-dot, POST", raw: post("/openai/../admin", "x", "Content-Length: 1"), refused: true},

		// Lines.
		{name: "CRLF in the path", raw: get("/openai/x%0d%0aX-Evil:%20a"), check: notReceived("\nX-Evil")},
		{name: "CRLF in the query", raw: get("/openai/x?a=%0d%0aX-Evil:%20a"), check: notReceived("\nX-Evil")},
		{name: "bare CR in a header", raw: get("/openai/x", "A: b\rX-Evil: c"), refused: true},
		{name: "NUL in a header", raw: get("/openai/x", "A: b\x00c"), refused: true},
		{name: "folded header", raw: get("/openai/x", "A: b", " X-Evil: c"), check: notReceived("\nX-Evil", "\n X-Evil")},
		{name: "folded first header", raw: get("/openai/x")[:len("GET /openai/x HTTP/1.1\r\n")] + " X: y\r\nHost: {host}\r\n\r\n", refused: true},
		{name: "space before a colon", raw: get("/openai/x", "Content-Length : 5"), refused: true},
		{name: "space in a header's name", raw: get("/openai/x", "X Evil: a"), refused: true},
		{name: "empty header name", raw: get("/openai/x", ": a"), refused: true},
		{name: "two spaces in the request line", raw: "GET  /openai/x HTTP/1.1\r\nHost: {host}\r\n\r\n", refused: true},
		{name: "space in the path", raw: "GET /openai/x y HTTP/1.1\r\nHost: {host}\r\n\r\n", refused: true},
		{name: "control character in the query", raw: get("/openai/x?a=\x01"), refused: true},
		{name: "HTTP/0.9", raw: "GET /openai/x\r\n\r\n", refused: true},
		{name: "HTTP/2 preface", raw: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", refused: true},
		{name: "HTTP/3.1", raw: "GET /openai/x HTTP/3.1\r\nHost: {host}\r\n\r\n", refused: true},

		// Requests in requests.
		{name: "both Content-Length and Transfer-Encoding", raw: post("/openai/x", "0\r\n\r\n"+smuggled, fmt.Sprint("Content-Length: ", 5+len(smuggled)), "Transfer-Encoding: chunked")},
		{name: "both, the other way round", raw: post("/openai/x", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(smuggled), smuggled), "Transfer-Encoding: chunked", "Content-Length: 4")},
		{name: "two different Content-Lengths", raw: post("/openai/x", "12345"+smuggled, "Content-Length: 5", fmt.Sprint("Content-Length: ", 5+len(smuggled))), refused: true},
		{name: "Content-Length: 5, 5", raw: post("/openai/x", "12345", "Content-Length: 5, 5")},
		{name: "Content-Length: 5, 6", raw: post("/openai/x", "12345", "Content-Length: 5, 6"), refused: true},
		{name: "Content-Length: +5", raw: post("/openai/x", "12345", "Content-Length: +5"), refused: true},
		{name: "Content-Length: -5", raw: post("/openai/x", "12345", "Content-Length: -5"), refused: true},
		{name: "Content-Length: 0x5", raw: post("/openai/x", "12345", "Content-Length: 0x5"), refused: true},
		{name: "Content-Length above 64 bits", raw: post("/openai/x", "12345", "Content-Length: 99999999999999999999"), refused: true},
		{name: "Transfer-Encoding: xchunked", raw: post("/openai/x", "0\r\n\r\n"+smuggled, "Transfer-Encoding: xchunked"), refused: true},
		{name: "Transfer-Encoding: identity", raw: post("/openai/x", "12345", "Transfer-Encoding: identity", "Content-Length: 5"), refused: true},
		{name: "Transfer-Encoding: gzip, chunked", raw: post("/openai/x", "0\r\n\r\n", "Transfer-Encoding: gzip, chunked"), refused: true},
		{name: "two Transfer-Encodings", raw: post("/openai/x", "0\r\n\r\n"+smuggled, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"), refused: true},
		{name: "Transfer-Encoding with a vertical tab", raw: post("/openai/x", "0\r\n\r\n"+smuggled, "Transfer-Encoding: \x0bchunked"), refused: true},
		{name: "folded Transfer-Encoding", raw: post("/openai/x", "0\r\n\r\n", "Transfer-Encoding:", " chunked")},
		{name: "Transfer-Encoding in HTTP/1.0", raw: "POST /openai/x HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled},
		{name: "bad chunk size", raw: post("/openai/x", "zz\r\n\r\n0\r\n\r\n", "Transfer-Encoding: chunked")},
		{name: "chunk size above 64 bits", raw: post("/openai/x", "fffffffffffffffff\r\nx", "Transfer-Encoding: chunked")},
		{name: "chunk without its end", raw: post("/openai/x", "1\r\nxGET /openai/smuggled HTTP/1.1\r\n", "Transfer-Encoding: chunked")},
		{name: "chunk with a bare LF", raw: post("/openai/x", "1\nx\n0\n\n", "Transfer-Encoding: chunked")},
		{name: "trailers", raw: post("/openai/x", "1\r\nx\r\n0\r\nAuthorization: evil\r\nX-Evil: a\r\n\r\n", "Transfer-Encoding: chunked", "Trailer: Authorization, X-Evil"), check: set},
		{name: "GET with a body", raw: get("/openai/x", fmt.Sprint("Content-Length: ", len(smuggled))) + smuggled},
		{name: "Expect with a smuggled request", raw: post("/openai/x", "12345", "Expect: 100-continue", "Content-Length: 5")},
		{name: "another Expect", raw: post("/openai/x", "12345", "Expect: evil", "Content-Length: 5")},

		// Large ones.
		{name: "a header of 2 MB", raw: get("/openai/x", "A: "+strings.Repeat("a", 2<<20)), refused: true},
		{name: "a header of 1 MB", raw: get("/openai/x", "A: "+strings.Repeat("a", 1<<20)), refused: true},
		{name: "headers of 4 MB", raw: get("/openai/x", repeat(4096, func(i int) string { return fmt.Sprintf("A%d: %s", i, strings.Repeat("a", 1000)) })...), refused: true},
		{name: "10,000 headers", raw: get("/openai/x", repeat(10000, func(i int) string { return fmt.Sprint("A", i, ": b") })...), refused: true},
		{name: "one header 10,000 times", raw: get("/openai/x", repeat(10000, func(int) string { return "A: b" })...)},
		{name: "a path of 2 MB", raw: get("/openai/" + strings.Repeat("a", 2<<20)), refused: true},
		{name: "a query of 2 MB", raw: get("/openai/?" + strings.Repeat("a", 2<<20)), refused: true},

		// Methods.
		{name: "CONNECT to the metadata address", raw: "CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\nGET / HTTP/1.1\r\n\r\n", refused: true, want: "base URL"},
		{name: "CONNECT to another server", raw: "CONNECT {evil} HTTP/1.1\r\nHost: {evil}\r\n\r\nGET / HTTP/1.1\r\nHost: {evil}\r\n\r\n", refused: true},
		{name: "CONNECT to an upstream", raw: "CONNECT {upstream} HTTP/1.1\r\nHost: {upstream}\r\n\r\n", refused: true},
		{name: "CONNECT with a path", raw: "CONNECT /openai/x HTTP/1.1\r\nHost: {host}\r\n\r\n", refused: true},
		{name: "TRACE", raw: "TRACE /openai/x HTTP/1.1\r\nHost: {host}\r\nCookie: a\r\n\r\n", refused: true},
		{name: "TRACK", raw: "TRACK /openai/x HTTP/1.1\r\nHost: {host}\r\n\r\n"},
		{name: "a method with odd letters", raw: "G\xc3\xa4T /openai/x HTTP/1.1\r\nHost: {host}\r\n\r\n", refused: true},
		{name: "POST to the pages", raw: post("/_throttle/", "x", "Content-Length: 1"), refused: true},

		// Headers with a meaning.
		{name: "X-Throttle headers", raw: get("/openai/x", "X-Throttle-Policy: evil", "X-Throttle-Waited: 5", "X-Throttle-Client: web", "x-throttle-anything: evil"), check: notReceived("X-Throttle")},
		{name: "bad class", raw: get("/openai/x", "X-Throttle-Class: evil"), check: notReceived("X-Throttle")},
		{name: "bad longest wait", raw: get("/openai/x", "X-Throttle-Max-Wait: evil"), check: notReceived("X-Throttle")},
		{name: "negative longest wait", raw: get("/openai/x", "X-Throttle-Max-Wait: -5s"), check: notReceived("X-Throttle")},
		{name: "two classes", raw: get("/openai/x", "X-Throttle-Class: batch", "X-Throttle-Class: interactive"), check: notReceived("X-Throttle")},
		{name: "X-Forwarded headers", raw: get("/openai/x", "X-Forwarded-For: 10.66.66.66", "X-Forwarded-Proto: evil", "Forwarded: for=10.66.66.66", "X-Forwarded-Prefix: /evil", "X-Forwarded-Port: 1"), check: notReceived("X-Forwarded", "\nForwarded", "127.0.0.1\r")},
		{name: "Connection: Authorization", raw: get("/openai/x", "Connection: Authorization", "Authorization: Bearer evil"), check: set},
		{name: "Connection: close, Authorization, Host", raw: get("/openai/x", "Connection: close, Authorization, Host, X-Real", "X-Real: a"), check: set},
		{name: "own Authorization", raw: get("/openai/x", "Authorization: Bearer evil", "authorization: Bearer evil2"), check: set},
		{name: "Connection: X-Throttle-Max-Wait", raw: get("/openai/x", "Connection: X-Throttle-Max-Wait, X-Throttle-Class", "X-Throttle-Max-Wait: 1s", "X-Throttle-Class: batch"), check: notReceived("X-Throttle")},
		{name: "hop-by-hop headers", raw: get("/openai/x", "Connection: keep-alive, X-Hop", "X-Hop: evil", "Keep-Alive: timeout=5", "Proxy-Authorization: Basic evil", "Proxy-Connection: keep-alive", "TE: gzip, deflate", "Trailer: X", "Proxy-Authenticate: x"),
			check: notReceived("X-Hop", "Keep-Alive:", "Proxy-", "gzip, deflate", "Trailer:")},
		{name: "Upgrade: h2c", raw: get("/openai/x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"), check: notReceived("HTTP2-Settings")},
		{name: "Upgrade: TLS/1.0", raw: get("/openai/x", "Connection: Upgrade", "Upgrade: TLS/1.0")},
		{name: "Upgrade with odd letters", raw: get("/openai/x", "Connection: Upgrade", "Upgrade: \xc3\xa4\x7f"), refused: true},
		{name: "Upgrade without Connection", raw: get("/openai/x", "Upgrade: websocket"), check: notReceived("Upgrade")},
		{name: "websocket to an API that has none", raw: get("/openai/x", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")},

		// Requests that are fine.
		{name: "a path with an encoded slash passes as it is", raw: get("/openai/repos/a%2Fb/branches/c%20d?e=f%2Fg&h"), check: receivedURI("/base/repos/a%2Fb/branches/c%20d?e=f%2Fg&h")},
		{name: "three dots pass", raw: get("/openai/a...b/...?x=../.."), check: receivedURI("/base/a...b/...?x=../..")},
		{name: "a bad query passes as it is", raw: get("/openai/x?a=%zz;b"), check: receivedURI("/base/x?a=%zz;b")},
		{name: "absolute form of the proxy's own address", raw: get("http://{host}/openai/x")},
	}
	return list
}

func repeat(n int, line func(int) string) (lines []string) {
	for i := range n {
		lines = append(lines, line(i))
	}
	return lines
}

// Requests that try to reach another server, another path, or to pass as two, are refused or harmless.
// What the API received is the judge.
func TestProxyAttacks(t *testing.T) {
	t.Parallel()
	up, other, evil := startRecorder(t), startRecorder(t), startRecorder(t)
	p := startProxy(t, fmt.Sprintf(`
routes:
  /openai: {to: %s/base, policy: 1000000/s, set: {Authorization: "Bearer %s"}}
  /root: {to: %[1]s, policy: 1000000/s}
  /github: {to: %[3]s/github, policy: 1000000/s}
`, up.URL, setSecret, other.URL))
	var table strings.Builder
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			raw := strings.NewReplacer("{host}", p.addr, "{evil}", evil.host, "{upstream}", up.host, "{port}", p.addr[strings.LastIndex(p.addr, ":")+1:]).Replace(a.raw)
			got := p.attackWith(raw)
			requests, bytes, _ := up.take()
			defer func() {
				verdict := "refused"
				for _, r := range requests {
					verdict = "harmless: the API received " + r.Method + " " + r.RequestURI
				}
				fmt.Fprintf(&table, "| %s | %v | %s |\n", a.name, got.status, verdict)
			}()
			for name, s := range map[string]*recorder{"another server": evil, "another route's API": other} {
				if requests, _, conns := s.take(); conns > 0 {
					t.Errorf("%s received %d connections and %d requests", name, conns, len(requests))
				}
			}
			for _, status := range got.status {
				if a.refused && (status < 400 || status >= 600) || status == http.StatusSwitchingProtocols || status >= 500 && status != 501 && status != 505 && status != 502 {
					t.Errorf("answered %d %.200q", status, got.bodies)
				}
			}
			if len(got.status) == 0 && !got.closed {
				t.Log("no answer, and the connection stays open")
			}
			for _, h := range got.header {
				if strings.Contains(fmt.Sprint(h), "forged") {
					t.Errorf("answered with the API's own headers of the proxy: %v", h)
				}
			}
			if !strings.Contains(got.bodies, a.want) {
				t.Errorf("answered %q, want %q in it", got.bodies, a.want)
			}
			if strings.Contains(got.bodies, setSecret) {
				t.Error("answered with the secret of the route")
			}
			if a.refused && bytes != "" {
				t.Errorf("the API received %.500q", bytes)
			}
			// Each request that the API received is one that the proxy answered: both agree where it ends.
			passed := 0
			for _, status := range got.status {
				if status == http.StatusOK {
					passed++
				}
			}
			if n := len(requests); n > passed || n == 0 && bytes != "" {
				t.Errorf("the API received %d requests in %.1000q, and the client %d answers", n, bytes, passed)
			}
			for _, r := range requests {
				inBase(t, r.RequestURI, strings.HasPrefix(raw, "GET /root"))
				if r.Host != up.host {
					t.Errorf("the API received Host: %s", r.Host)
				}
				if len(r.Header["Content-Length"]) > 0 && len(r.TransferEncoding) > 0 {
					t.Errorf("the API received both %v and %v", r.Header["Content-Length"], r.TransferEncoding)
				}
			}
			if a.check != nil && (len(requests) > 0 || strings.Contains(a.name, "pass")) {
				a.check(t, requests, bytes)
			}
			if strings.Contains(p.output.String(), setSecret) {
				t.Fatal("the log has the secret of the route")
			}
		})
	}
	if status, body, _ := p.get("/openai/x"); status != 200 || body != "ok" {
		t.Errorf("after the attacks, an honest request was answered %d, %s", status, body)
	}
	t.Logf("attacks:\n%s", table.String())
}

// inBase checks that a server that decodes a path once, and takes backslashes for slashes, finds it
// in the route's base.
func inBase(t *testing.T, uri string, root bool) {
	t.Helper()
	encoded, _, _ := strings.Cut(uri, "?")
	decoded, err := url.PathUnescape(encoded)
	if err != nil || !strings.HasPrefix(uri, "/") {
		t.Errorf("the API received the path %q: %v", uri, err)
	}
	clean := path.Clean(strings.ReplaceAll(decoded, `\`, "/"))
	if !root && clean != "/base" && !strings.HasPrefix(clean, "/base/") {
		t.Errorf("the API received %q, which is not in /base", uri)
	}
}

// The token of a client counts in a header alone. Neither the API nor anybody else sees it.
func TestProxyTokens(t *testing.T) {
	t.Parallel()
	up := startRecorder(t)
	p := startProxy(t, fmt.Sprintf(`
clients:
  web: {token: %s, class: interactive}
  nightly: {token: canary-other-token-0123456789, class: batch}
routes:
  /openai: {to: %s/base, policy: 1000000/s, set: {Authorization: "Bearer %s"}}
  /pass: {to: %[2]s/base, policy: 1000000/s}
  /nightly: {to: %[2]s/base, policy: 1000000/s, clients: [nightly]}
`, clientToken, up.URL, setSecret))
	const authorization, throttleToken = "Authorization: Bearer " + clientToken, "X-Throttle-Token: " + clientToken
	for _, test := range []struct {
		name, raw string
		status    int
	}{
		{"no token", get("/openai/x"), 401},
		{"Authorization", get("/openai/x", authorization), 200},
		{"authorization, other letters", get("/openai/x", "aUTHORIZATION: bearer "+clientToken), 200},
		{"Authorization, the route sets none", get("/pass/x", authorization), 200},
		{"X-Throttle-Token", get("/openai/x", throttleToken), 200},
		{"X-Throttle-Token beside the API's own key", get("/pass/x", throttleToken, "Authorization: Bearer key-of-the-api"), 200},
		{"the same in two headers", get("/openai/x", throttleToken, authorization), 200},
		{"one token in two headers of one name", get("/openai/x", throttleToken, throttleToken), 0},
		{"a bad token, then a good one", get("/openai/x", "X-Throttle-Token: 0123456789abcdef", throttleToken), 0},
		{"in the query", get("/openai/x?token=" + clientToken + "&access_token=" + clientToken), 401},
		{"in a cookie", get("/openai/x", "Cookie: token="+clientToken), 401},
		{"in the path", get("/openai/" + clientToken), 401},
		{"in the body", post("/openai/x", clientToken, fmt.Sprint("Content-Length: ", len(clientToken))), 401},
		{"in Proxy-Authorization", get("/openai/x", "Proxy-Authorization: Bearer "+clientToken), 0},
		{"in a header that X-Forwarded names", get("/openai/x", "X-Forwarded-Authorization: Bearer "+clientToken), 401},
		{"as the user of the target", get("http://" + clientToken + "@{host}/openai/x"), 0},
		{"the beginning of a token", get("/openai/x", authorization[:len(authorization)-1]), 401},
		{"a token and more", get("/openai/x", authorization+"0"), 401},
		{"an empty token", get("/openai/x", "Authorization: Bearer "), 401},
		{"another scheme", get("/openai/x", "Authorization: Digest "+clientToken), 0},
		{"named in Connection", get("/openai/x", authorization, "Connection: Authorization"), 0},
		{"X-Throttle-Token named in Connection", get("/openai/x", throttleToken, "Connection: X-Throttle-Token"), 0},
		{"another client's route", get("/nightly/x", authorization), 403},
		{"another client's name", get("/openai/x", "X-Throttle-Client: web"), 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := p.attackWith(strings.ReplaceAll(test.raw, "{host}", p.addr))
			if len(got.status) != 1 || test.status != 0 && got.status[0] != test.status {
				t.Errorf("answered %v, want %d", got.status, test.status)
			}
			requests, raw, _ := up.take()
			if len(got.status) == 1 && got.status[0] != 200 && raw != "" {
				t.Errorf("answered %v, but the API received %q", got.status, raw)
			}
			for _, r := range requests {
				if strings.Contains(raw, clientToken) {
					t.Errorf("the API received the client's token in %q", raw)
				}
				if key := r.Header.Get("Authorization"); strings.HasPrefix(test.raw, "GET /openai") && key != "Bearer "+setSecret {
					t.Errorf("the API received Authorization %q, want the route's", key)
				}
				if strings.Contains(test.name, "own key") && r.Header.Get("Authorization") != "Bearer key-of-the-api" {
					t.Errorf("the API received Authorization %q, want the client's", r.Header.Get("Authorization"))
				}
			}
			if strings.Contains(got.bodies, clientToken) {
				t.Errorf("answered with the token: %s", got.bodies)
			}
		})
	}
	if strings.Contains(p.output.String(), "canary") {
		t.Error("the log has a token")
	}
}

// Clients that send their requests byte by byte, or never end them, hold no place in the queue and
// delay nobody.
func TestProxySlowClients(t *testing.T) {
	t.Parallel()
	up := startRecorder(t)
	p := startProxy(t, fmt.Sprintf("routes: {/one: {to: %s/base, policy: 1;algo=concurrency, max_queue: 3}}", up.URL))
	ctx, stop := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	var closed sync.Map
	trickle := func(i int, raw string, then string) {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Error(err)
			return
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		slow.Go(func() {
			_, err := io.WriteString(conn, raw)
			for at := 0; err == nil; at++ {
				select {
				case <-ctx.Done():
					return
				case <-time.After(100 * time.Millisecond):
				}
				_, err = conn.Write([]byte{then[at%len(then)]})
			}
			closed.Store(i, time.Now())
		})
	}
	for i := range 60 {
		switch i % 3 {
		case 0:
			trickle(i, "GET /one/slow HTTP/1.1\r\nHost: "+p.addr+"\r\n", "A: b\r\n")
		case 1:
			trickle(i, "POST /one/slow HTTP/1.1\r\nHost: "+p.addr+"\r\nContent-Length: 10000\r\n\r\n", "x")
		case 2:
			trickle(i, "POST /one/slow HTTP/1.1\r\nHost: "+p.addr+"\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n")
		}
	}
	length := time.Second
	if *full {
		length = 3 * time.Minute
	}
	honest := 0
	for end := time.Now().Add(length); honest < 20 || time.Now().Before(end); honest++ {
		if status, body, _ := p.get("/one/honest"); status != 200 {
			t.Errorf("an honest request beside slow ones was answered %d, %s", status, body)
			break
		}
	}
	stop()
	slow.Wait()
	ended := 0
	closed.Range(func(any, any) bool { ended++; return true })
	requests, _, _ := up.take()
	for _, r := range requests {
		if r.URL.Path != "/base/honest" {
			t.Errorf("the API received %s %s, whose body never came", r.Method, r.URL.Path)
		}
	}
	t.Logf("%d honest requests beside 60 slow ones, of which the proxy ended %d", honest, ended)
	if *full && ended < 20 {
		t.Errorf("the proxy ended %d of 60 slow requests within %v, want at least those whose headers never end", ended, length)
	}
}

// A redirect is not followed. One that leads below the address of the route leads back to the proxy, and
// any other one to its own host: a relative one would lead to another route.
func TestProxyRedirects(t *testing.T) {
	t.Parallel()
	up, evil := startUpstream(t), startRecorder(t)
	p := startProxy(t, fmt.Sprintf("routes: {/api: {to: %s/base, policy: 1000/s}}", up.URL))
	for location, want := range map[string]string{
		up.URL + "/base/next?page=2":      "/api/next?page=2",
		"/base/next":                      "/api/next",
		"next":                            "/api/next",
		"/elsewhere":                      up.URL + "/elsewhere",
		evil.URL + "/x":                   evil.URL + "/x",
		"//" + evil.host + "/x":           "http://" + evil.host + "/x",
		"http://169.254.169.254/latest/":  "http://169.254.169.254/latest/",
		up.URL + "/elsewhere":             up.URL + "/elsewhere",
		strings.ToUpper(up.URL) + "/base": "/api",
	} {
		got := p.send(t.Context(), "/api/x")
		e := up.next(t)
		e.header("Location", location)
		e.steps <- func(w http.ResponseWriter) { w.WriteHeader(http.StatusFound) }
		e.end()
		r := <-got
		to := strings.TrimPrefix(r.header.Get("Location"), p.url)
		if r.status != http.StatusFound || to != want && !(want[0] == '/' && to == location) {
			t.Errorf("a redirect to %s is answered %d with %q, want %q", location, r.status, to, want)
		}
		if to != want {
			t.Logf("a redirect to %s leads to %s, not to the proxy", location, to)
		}
	}
	if _, _, conns := evil.take(); conns > 0 {
		t.Error("the proxy has followed a redirect")
	}
	up.none(t)
}

// An API that upgrades a connection gets a tunnel that ends with the client.
func TestProxyWebsocket(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{}, 10)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		upgrade := r.Header.Get("Upgrade")
		if r.URL.Path == "/unasked" {
			upgrade = "websocket"
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+upgrade+"\r\n\r\n")
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				break
			}
			io.WriteString(conn, "echo "+line)
		}
		gone <- struct{}{}
	}))
	defer api.Close()
	p := startProxy(t, fmt.Sprintf("routes: {/api: {to: %s, policy: 1000/s}}", api.URL))
	dial := func(path string, lines ...string) (net.Conn, *bufio.Reader, *http.Response) {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(patience))
		io.WriteString(conn, strings.ReplaceAll(get(path, lines...), "{host}", p.addr))
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn, r, resp
	}
	conn, r, resp := dial("/api/socket", "Connection: Upgrade", "Upgrade: websocket")
	if resp.StatusCode == http.StatusSwitchingProtocols {
		io.WriteString(conn, "hello\n")
		if line, err := r.ReadString('\n'); line != "echo hello\n" {
			t.Errorf("the tunnel answered %q, %v", line, err)
		}
		conn.Close()
		receive(t, "the end of the tunnel at the API", gone)
	} else {
		t.Logf("an upgrade is answered %d", resp.StatusCode)
		conn.Close()
	}
	conn, _, resp = dial("/api/unasked")
	if conn.Close(); resp.StatusCode == http.StatusSwitchingProtocols {
		t.Error("the proxy passes on an upgrade that the client has not asked for")
	}
}
