package sdktest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// canary begins every secret of these tests.
const canary = "canary"

var anyCanary = regexp.MustCompile(`.{0,60}` + canary + `-[a-z-]+.{0,20}`)

// A faultyAPI answers each connection with bytes, which may be no HTTP at all.
func faultyAPI(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		l.Close()
		conns.Wait()
	})
	replies := map[string]string{
		"error":       "HTTP/1.1 500 canary-reason\r\nX-Error: canary-upstream-header\r\nContent-Length: 20\r\n\r\ncanary-upstream-text",
		"limited":     "HTTP/1.1 429 canary-reason\r\nRetry-After: canary-after\r\nContent-Length: 20\r\n\r\ncanary-upstream-text",
		"limited-now": "HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nX-Ratelimit-Reset: canary-reset\r\nContent-Length: 20\r\n\r\ncanary-upstream-text",
		"forbidden":   "HTTP/1.1 403 Forbidden\r\nWww-Authenticate: canary-upstream-header\r\nContent-Length: 20\r\n\r\ncanary-upstream-text",
		"no-http":     "canary-no-http\r\n\r\n",
		"bad-status":  "HTTP/1.1 canary-status OK\r\n\r\n",
		"bad-version": "HTTP/canary-version 200 OK\r\n\r\n",
		"bad-header":  "HTTP/1.1 200 OK\r\ncanary-no-colon\r\n\r\n",
		"bad-length":  "HTTP/1.1 200 OK\r\nContent-Length: canary-length\r\n\r\n",
		"two-lengths": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\ncanary-body",
		"bad-coding":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: canary-coding\r\n\r\n",
		"bad-chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\ncanary-chunk\r\n",
		"cut":         "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\ncanary-cut",
		"unasked":     "HTTP/1.1 101 Switching Protocols\r\nUpgrade: canary-protocol\r\nConnection: Upgrade\r\n\r\n",
		"early":       "HTTP/1.1 103 Early Hints\r\nLink: canary-link\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"redirect":    "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/canary-location\r\nContent-Length: 0\r\n\r\n",
		"bad-cookie":  "HTTP/1.1 200 OK\r\nSet-Cookie: canary-cookie=\x01\r\nContent-Length: 2\r\n\r\nok",
		"gzip":        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 11\r\n\r\ncanary-gzip",
		// net/http logs what comes between two responses.
		"more": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokcanary-unsolicited-response",
		"late": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				for r := bufio.NewReader(conn); ; {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					name := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
					if name == "slow" {
						<-ctx.Done()
						return
					}
					io.WriteString(conn, replies[name])
					switch name {
					case "more", "early", "redirect", "error", "limited", "limited-now", "forbidden":
					case "late":
						<-time.After(50 * time.Millisecond) // the connection is idle then
						io.WriteString(conn, "canary-unsolicited-later")
					default:
						return
					}
				}
			})
		}
	}()
	return l.Addr().String()
}

// Secrets are in no line of the log at any level, on no page of the proxy and in no answer of its own:
// queries, bodies, headers, tokens, what the routes set, and what an API that fails has written.
func TestProxyKeepsSecrets(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"debug", "info", "warn", "error", "off"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			keepsSecrets(t, level)
		})
		t.Run(level+" of all requests as JSON", func(t *testing.T) {
			t.Parallel()
			keepsSecrets(t, level, "--access-log", "--json")
		})
	}
}

func keepsSecrets(t *testing.T, level string, args ...string) {
	api := faultyAPI(t)
	config := fmt.Sprintf(`
observability: {log: %s}
timeouts: {connect: 1s, shutdown: 1s}
clients:
  web: {token: canary-client-token-0123456789, budget: 1000000/day;budget=true}
  poor: {token: canary-poor-token-0123456789, budget: 1/day;budget=true}
routes:
  /api: {to: http://%s, policy: 1000000/s | max_pause=1ms, set: {X-Secret: "${env:SECRET}", Authorization: "Bearer canary-set-authorization"}}
  /openai: {to: http://%[2]s, preset: openai, any_host: true, with: {requests: 600000, tokens: 100000}}
  /away: {to: http://127.0.0.1:1, policy: 1000/s}
  /one: {to: http://%[2]s, policy: 1;algo=concurrency, max_queue: 1}
  /slow: {to: http://%[2]s, policy: 1000/s, timeout: 1s}
  /never: {to: http://%[2]s, policy: 1/d}
  /costly: {to: http://%[2]s, policy: "5/s + 10/h;unit=usd", cost: {usd: 100}}
`, level, api)
	p := startProxyWith(t, config, args, "SECRET=canary-set-secret")
	var own strings.Builder // what the proxy itself has answered
	ask := func(method, path, token, body string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		status, text, h, err := p.do(ctx, method, path+"?key=canary-query&canary-query-name=1", body,
			"X-Throttle-Token", token, "Authorization", "Bearer canary-authorization", "Cookie", "canary-cookie=canary-cookie",
			"X-Canary", "canary-header", "User-Agent", "canary-agent", "Referer", "http://x/?canary-referer",
			"X-Throttle-Max-Wait", "10s", "Content-Type", "canary-content-type")
		if kind := h.Get("Content-Type"); err == nil && (kind == "application/problem+json" || status == 502 || status == 504) {
			fmt.Fprintln(&own, path, status, h, text)
			if !json.Valid([]byte(text)) {
				t.Errorf("%s: answered %d with %q, which is no JSON", path, status, text)
			}
		}
	}
	const web, body = "canary-client-token-0123456789", `{"model":"canary-model","max_tokens":5,"messages":[{"role":"user","content":"canary-body"}]}`
	for _, name := range []string{"error", "limited", "limited-now", "forbidden", "no-http", "bad-status", "bad-version", "bad-header", "bad-length", "two-lengths",
		"bad-coding", "bad-chunk", "cut", "unasked", "early", "redirect", "bad-cookie", "gzip", "more", "more", "late", "late"} {
		ask("GET", "/api/"+name, web, "")
		ask("POST", "/api/"+name, web, body)
	}
	for _, name := range []string{"error", "limited-now", "no-http", "cut"} {
		ask("POST", "/openai/v1/chat/completions/"+name, web, body)
	}
	ask("POST", "/openai/v1/chat/completions", web, `{"model":"canary-model","max_tokens":1000000000}`) // never
	ask("POST", "/openai/v1/chat/completions", web, `{"model":"canary-model`+strings.Repeat("[", 60_000))
	ask("GET", "/away/x", web, body)
	ask("GET", "/slow/slow", web, body)
	ask("GET", "/never/more", web, "")
	ask("GET", "/never/more", web, "")
	ask("GET", "/costly/more", web, "")
	ask("GET", "/api/more", "canary-poor-token-0123456789", "")
	ask("GET", "/api/more", "canary-poor-token-0123456789", "")
	ask("GET", "/api/more", "canary-bad-token-0123456789", "")
	ask("GET", "/nowhere", web, "")
	ask("GET", "/api/../x", web, "")
	ask("GET", "/api/%2e%2e/x", web, "")
	ask("PATCH", "/_throttle/", web, body)
	ask("GET", "/_throttle/nowhere", web, body)
	ask("TRACE", "/api/more", web, "")
	for _, raw := range []string{
		"CONNECT canary-host.example:443 HTTP/1.1\r\nHost: canary-host.example\r\nProxy-Authorization: canary-proxy\r\n\r\n",
		"GET http://user:canary-password@127.0.0.1:1/?canary-query HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /api/x?canary-query HTTP/1.1\r\nHost: canary-host.example\r\n\r\n",
		"canary-method /api/x?canary-query HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\n\r\n",
		"GET /api/x?canary-query\x01 HTTP/1.1\r\nHost: {host}\r\n\r\n",
		"GET /api/x HTTP/1.1\r\nHost: {host}\r\ncanary-header : x\r\n\r\n",
		"GET /api/x HTTP/1.1\r\nHost: {host}\r\nX: canary-header\x00\r\n\r\n",
		"GET /api/%canary-path HTTP/1.1\r\nHost: {host}\r\n\r\n",
		"POST /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nContent-Length: canary-length\r\n\r\n",
		"POST /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nTransfer-Encoding: canary-coding\r\n\r\n",
		"POST /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nTransfer-Encoding: chunked\r\n\r\ncanary-chunk\r\n",
		"GET /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nX-Throttle-Class: canary-class\r\n\r\n",
		"GET /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nX-Throttle-Max-Wait: canary-wait\r\n\r\n",
		"GET /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nConnection: Upgrade\r\nUpgrade: canary-protocol\r\n\r\n",
		"GET /api/more HTTP/1.1\r\nHost: {host}\r\nX-Throttle-Token: " + web + "\r\nExpect: canary-expect\r\n\r\n",
		"\x16\x03\x01\x00canary-tls\r\n\r\n",
	} {
		fmt.Fprintln(&own, p.attackWith(strings.ReplaceAll(raw, "{host}", p.addr)).bodies)
	}
	// A client that hangs up: while it waits, and before its body is whole.
	ctx, hangUp := context.WithCancel(t.Context())
	gone := []<-chan reply{
		p.send(ctx, "/one/slow?canary-query", "X-Throttle-Token", web, "X", "canary-header"),
		p.send(ctx, "/one/slow?canary-query", "X-Throttle-Token", web, "X", "canary-header"),
	}
	until(t, "a request waits", func() bool { return p.metric("throttle_queued_requests", "") == 1 })
	pages := map[string]string{}
	for _, path := range []string{"/_throttle/", "/_throttle/metrics", "/_throttle/state.json", "/_throttle/health", "/_throttle/live", "/_throttle/nowhere?canary-query"} {
		_, pages[path], _ = p.get(path)
	}
	hangUp()
	for _, c := range gone {
		<-c
	}
	if conn, err := net.Dial("tcp", p.addr); err == nil {
		io.WriteString(conn, "POST /api/more?canary-query HTTP/1.1\r\nHost: "+p.addr+"\r\nX-Throttle-Token: "+web+"\r\nContent-Length: 100\r\n\r\ncanary-half-body")
		conn.Close()
	}
	// A reload to a file with problems, and the end.
	for _, bad := range []string{
		config + "  /bad: {to: 'https://user:canary-password@api.example', policy: 5/s}\n",
		config + "store: {redis: 'redis://:canary-redis-password@127.0.0.1:1/x'}\n",
		strings.Replace(config, "canary-client-token-0123456789", "canary-short", 1),
		strings.Replace(config, "${env:SECRET}", "canary-new\\nsecret", 1),
	} {
		p.write(bad)
		p.signal(syscall.SIGHUP)
		<-time.After(50 * time.Millisecond)
	}
	p.signal(syscall.SIGTERM)
	receive(t, "the end of the proxy", p.exited)

	pages["the log"], pages["the answers of the proxy"] = p.output.String(), own.String()
	for where, text := range pages {
		if text == "" && !(where == "the log" && level == "off") {
			t.Errorf("%s is empty", where)
		}
		for _, found := range anyCanary.FindAllString(text, 10) {
			t.Errorf("%s has %q", where, found)
		}
	}
}
