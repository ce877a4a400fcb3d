package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// exchange sends bytes to the proxy, closes its side if half is true, and returns what comes back until
// the proxy closes the connection.
func (b *bench) exchange(half bool, parts ...string) (string, error) {
	conn := b.dial()
	for _, part := range parts {
		if _, err := io.WriteString(conn, part); err != nil {
			break // the proxy may close early
		}
	}
	if half {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	all, err := io.ReadAll(conn)
	return string(all), err
}

// TestHostile checks that each of these connections ends, is answered with the status if one is given,
// and that the proxy serves another request afterwards.
func TestHostile(t *testing.T) {
	t.Parallel()
	const post = "POST /api/x HTTP/1.1\r\nHost: localhost\r\n"
	get := "GET /api/x HTTP/1.1\r\nHost: localhost\r\n"
	big := strings.Repeat("x", 5000)
	for name, test := range map[string]struct {
		half   bool
		parts  []string
		status int // zero if any, or none
	}{
		"half-closed, no body":                  {true, []string{get + "Connection: close\r\n\r\n"}, 0},
		"half-closed in the header":             {true, []string{get}, 0},
		"half-closed in a short body":           {true, []string{post + "Content-Length: 10\r\n\r\nhalf"}, 0},
		"half-closed in a long body":            {true, []string{post + "Content-Length: 5000\r\n\r\nhalf"}, 0},
		"half-closed in chunks":                 {true, []string{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhe"}, 0},
		"stops in a short body":                 {false, []string{post + "Content-Length: 10\r\n\r\nhalf"}, 408},
		"stops in a long body":                  {false, []string{post + "Content-Length: 5000\r\n\r\nhalf"}, 408},
		"stops in a chunk's length":             {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n5"}, 408},
		"stops before a trailer":                {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"}, 408},
		"stops in long chunks":                  {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n1388\r\n" + big + "\r\n"}, 408},
		"garbage instead of a chunk":            {false, []string{post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n"}, 400},
		"garbage behind a long chunk":           {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n1388\r\n" + big + "\r\nzz\r\n\r\n"}, 0},
		"a negative chunk":                      {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n-1\r\n"}, 400},
		"an endless chunk extension":            {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("a", 10000) + "\r\n"}, 400},
		"a giant trailer":                       {false, []string{post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + strings.Repeat("a", 100000) + "\r\n\r\n"}, 400},
		"a giant header":                        {false, []string{get + "X: " + strings.Repeat("a", 200000) + "\r\n\r\n"}, 431},
		"many headers":                          {false, []string{get + strings.Repeat("X: a\r\n", 50000) + "\r\n"}, 431},
		"a continue that never comes":           {false, []string{post + "Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n"}, 0},
		"an upgrade with an unsent body":        {false, []string{post + "Connection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 5000\r\n\r\n"}, 0},
		"an upgrade with an unsent short body":  {false, []string{post + "Connection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 10\r\n\r\n"}, 408},
		"h2c with an unsent body":               {false, []string{post + "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5000\r\n\r\n"}, 408},
		"HEAD with an unsent body":              {false, []string{"HEAD /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"}, 408},
		"an unsent body of HTTP/1.0":            {false, []string{"POST /api/x HTTP/1.0\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"}, 408},
		"an unsent body of HTTP/1.0 to nowhere": {false, []string{"POST /none HTTP/1.0\r\nConnection: keep-alive\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"}, 404},
		"pipelining behind an unread body":      {false, []string{"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + get + "\r\n"}, 404},
		"HTTP/2":                                {false, []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}, 0},
		"TLS":                                   {false, []string{"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
				b.handler.SetBodyBounds(time.Second, 200*time.Millisecond)
				r := b.route("1;algo=concurrency + 100000/s")
				r.MaxBody = 1000
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			got, err := b.exchange(test.half, test.parts...)
			if isTimeout(err) {
				t.Errorf("the connection did not end after %.100q", got)
			}
			if test.status != 0 && !strings.Contains(got, fmt.Sprintf(" %d ", test.status)) {
				t.Errorf("the answer is %.200q, want %d", got, test.status)
			}
			if n := strings.Count(got, "HTTP/1.1 200"); strings.Contains(name, "pipelining") && n != 0 {
				t.Errorf("%d requests were served behind an unread body", n)
			}
			if resp := b.do("GET", "/api/x", nil); resp.StatusCode != 200 {
				t.Errorf("the next request got %d", resp.StatusCode)
			}
			if log := b.log.String(); strings.Contains(log, "panic") {
				t.Error(log)
			}
		})
	}
}

// TestUnknownExpectation checks that a connection ends whose request net/http answers itself.
func TestUnknownExpectation(t *testing.T) {
	h := proxy.New(proxy.Options{})
	h.SetBodyBounds(200*time.Millisecond, 200*time.Millisecond)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- (&proxy.Server{Handler: h}).Serve(ctx, l) }()
	b := &bench{t: t, addr: l.Addr().String()}
	got, err := b.exchange(false, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\nContent-Length: 10\r\n\r\n")
	if isTimeout(err) || !strings.HasPrefix(got, "HTTP/1.1 417") {
		t.Errorf("%q, %v, want 417 and the end of the connection", got, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPipelining checks that pipelined requests are answered in their order.
func TestPipelining(t *testing.T) {
	b := start(t, echo, proxy.Options{}, single(plenty))
	conn := b.dial()
	var all strings.Builder
	const n = 50
	for i := range n {
		fmt.Fprintf(&all, "POST /api/%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", i)
	}
	go io.WriteString(conn, all.String())
	r := bufio.NewReader(conn)
	for i := range n {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, resp); !strings.HasPrefix(got, fmt.Sprintf("POST /%d\n", i)) {
			t.Fatalf("the answer to request %d is %q", i, got)
		}
	}
}

// TestHostileUpstream checks what an API may send: informational responses, trailers, hops, a switch of
// protocols that nobody asked for, and bodies of HEAD and 204 responses.
func TestHostileUpstream(t *testing.T) {
	for name, test := range map[string]struct{ method, answer, want string }{
		"many hints":       {"GET", strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 3) + "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK"},
		"unasked switch":   {"GET", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", "HTTP/1.1 502"},
		"a body of HEAD":   {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK"},
		"a body of 204":    {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 204 No Content"},
		"two lengths":      {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "HTTP/1.1 502"},
		"a short body":     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", ""},
		"no length":        {"GET", "HTTP/1.0 200 OK\r\n\r\nhello", "hello"},
		"trailers":         {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n5\r\nhello\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", "X-B: 2"},
		"hops":             {"GET", "HTTP/1.1 200 OK\r\nConnection: X-Secret, X-Else\r\nX-Secret: s\r\nContent-Length: 2\r\n\r\nok", "ok"},
		"a giant response": {"GET", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("a", 2<<20) + "\r\n\r\n", "HTTP/1.1 502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer api.Close()
			wg.Go(func() {
				conn, err := api.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, test.answer)
				}
			})
			b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
				r := b.route(plenty)
				r.Upstream = parseURL(t, "http://"+api.Addr().String())
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			got, err := b.exchange(false, test.method+" /api/x HTTP/1.1\r\nHost: localhost\r\nTe: trailers\r\nConnection: close\r\n\r\n")
			if isTimeout(err) || !strings.Contains(got, test.want) || strings.Contains(got, "X-Secret") {
				t.Errorf("%.300q, %v, want %q", got, err, test.want)
			}
		})
	}
}
