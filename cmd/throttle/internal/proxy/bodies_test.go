package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// patience is how long a test waits for the proxy before it fails.
const patience = 30 * time.Second

// dial connects to the proxy for at most patience.
func (b *bench) dial() net.Conn {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// TestUnsentBody checks that a client which announces a body and does not send it is answered, and that
// its connection ends, wherever the proxy refuses the request.
func TestUnsentBody(t *testing.T) {
	for _, lengths := range []string{"Content-Length: 10", "Content-Length: 100000", "Content-Length: 10000000", "Transfer-Encoding: chunked", "Content-Length: 10\r\nExpect: 100-continue"} {
		for _, test := range []struct {
			request string
			status  int
		}{
			{"POST /none", 404}, {"POST /closed/x", 403}, {"POST /api/%2e%2e/x", 400}, {"CONNECT x:1", 405}, {"TRACE /api/x", 405},
			{"POST /api/x?key=" + nightlyToken, 400}, {"POST /_throttle/live", 200}, {"POST /_throttle/none", 404}, {"HEAD /none", 404},
		} {
			b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
				b.handler.SetBodyBounds(time.Minute, 50*time.Millisecond)
				return clientsTable(b)
			})
			conn := b.dial()
			fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\nX-Throttle-Token: %s\r\n%s\r\n\r\n", test.request, nightlyToken, lengths)
			method, _, _ := strings.Cut(test.request, " ")
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				t.Errorf("%s with %s: %v, want an answer", test.request, lengths, err)
				continue
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != test.status || !resp.Close {
				t.Errorf("%s with %s: status %d, want %d; closes: %v; %v", test.request, lengths, resp.StatusCode, test.status, resp.Close, err)
			}
			if _, err := r.ReadByte(); isTimeout(err) {
				t.Errorf("%s with %s: the connection did not end", test.request, lengths)
			}
		}
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

// TestLateBody checks that a client which stops in the middle of a body is refused, also once its
// request is admitted, and leaves its place.
func TestLateBody(t *testing.T) {
	for _, header := range []string{"Content-Length: 10", "Transfer-Encoding: chunked", "Content-Length: 5000", "Content-Length: 5000\r\nExpect: 100-continue"} {
		b := start(t, echo, proxy.Options{AccessLog: true}, func(b *bench) proxy.Table {
			b.handler.SetBodyBounds(100*time.Millisecond, 100*time.Millisecond)
			r := b.route("1;algo=concurrency + 1000/s")
			r.MaxBody = 1000
			return proxy.Table{Routes: []proxy.Route{r}}
		})
		conn := b.dial()
		fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", header)
		if !strings.Contains(header, "Expect") {
			_, _ = io.WriteString(conn, "5\r\nhe")
		}
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(r, nil)
		}
		if err != nil {
			t.Errorf("%s: %v, want an answer", header, err)
			continue
		}
		if p := problemOf(t, resp); p.Status != 408 || p.Reason != "body" || !resp.Close {
			t.Errorf("%s: %+v, closes: %v", header, p, resp.Close)
		}
		if _, err := r.ReadByte(); isTimeout(err) {
			t.Errorf("%s: the connection did not end", header)
		}
		if got := text(t, b.do("GET", "/api/x", nil)); !strings.HasPrefix(got, "GET") {
			t.Errorf("%s: the next request got %q", header, got)
		}
	}
}

// TestSteadyBody checks that uploads which take longer than the bound pass, if they are never idle for
// as long, and that the time in the queue is not part of it.
func TestSteadyBody(t *testing.T) {
	const idle, parts = 3 * time.Second, 35
	for _, maxBody := range []int64{1000, 1} {
		t.Run(fmt.Sprint("max_body ", maxBody), func(t *testing.T) {
			t.Parallel()
			b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
				b.handler.SetBodyBounds(idle, time.Minute)
				r := b.route("1/s | guard=0s")
				r.MaxBody = maxBody
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			text(t, b.do("GET", "/api/x", nil)) // the upload waits for a second
			conn := b.dial()
			fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", parts)
			tick := time.NewTicker(idle / 30)
			defer tick.Stop()
			for range parts {
				<-tick.C
				_, _ = io.WriteString(conn, "x")
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, resp); resp.StatusCode != 200 || !strings.HasSuffix(got, strings.Repeat("x", parts)) {
				t.Errorf("status %d: %s", resp.StatusCode, got)
			}
		})
	}
}

// TestEarlyAnswer checks that the answer of an API which does not read the body passes at once, goes on
// for longer than the bound, and ends.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	release := make(chan bool)
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // net/http would read the body first
		w.WriteHeader(413)
		_, _ = io.WriteString(w, "begin")
		w.(http.Flusher).Flush()
		<-release
		_, _ = io.WriteString(w, "end")
	}, proxy.Options{}, func(b *bench) proxy.Table {
		b.handler.SetBodyBounds(idle, idle/20)
		r := b.route(plenty)
		r.MaxBody = 1
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	conn := b.dial()
	fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil || !resp.Close {
		t.Fatalf("closes: %v, %v", resp.Close, err)
	}
	time.AfterFunc(idle+idle/2, func() { release <- true })
	if rest := text(t, resp); rest != "end" {
		t.Errorf("the rest is %q", rest)
	}
	if _, err := r.ReadByte(); isTimeout(err) {
		t.Error("the connection did not end")
	}
}

// TestBodyKeepsConnection checks that a connection serves further requests after bodies that were read.
func TestBodyKeepsConnection(t *testing.T) {
	b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.MaxBody = 10
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	conn := b.dial()
	r := bufio.NewReader(conn)
	for range 3 {
		for _, n := range []int{0, 5, 5000} {
			fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", n, strings.Repeat("x", n))
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := text(t, resp); resp.Close || !strings.HasSuffix(got, fmt.Sprintf("Length: %d\n%s", n, strings.Repeat("x", n))) {
				t.Errorf("%d bytes: closes: %v, %.100q", n, resp.Close, got)
			}
		}
	}
}

// TestAbortWithUnreadBody checks that a connection ends if the API breaks off and the body is unread.
func TestAbortWithUnreadBody(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}, proxy.Options{}, func(b *bench) proxy.Table {
		b.handler.SetBodyBounds(50*time.Millisecond, 50*time.Millisecond)
		r := b.route(plenty)
		r.MaxBody = 1
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	conn := b.dial()
	fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf")
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Error("the connection did not end")
	}
}
