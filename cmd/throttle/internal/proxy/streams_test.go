package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// TestStreams checks that each event reaches the client before the upstream writes the next one.
func TestStreams(t *testing.T) {
	next := make(chan bool)
	for _, contentType := range []string{"text/event-stream", "application/json"} {
		b := start(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			if contentType == "application/json" {
				w.Header().Set("Content-Length", "45")
			}
			for i := range 5 {
				fmt.Fprintf(w, "event %d\n\n", i)
				w.(http.Flusher).Flush()
				<-next
			}
		}, proxy.Options{}, single(plenty))
		resp := b.do("GET", "/api/x", nil)
		lines := bufio.NewReader(resp.Body)
		for i := range 5 {
			if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
				t.Fatalf("%q, %v", line, err)
			}
			_, _ = lines.ReadString('\n')
			next <- true
		}
		if _, err := lines.ReadByte(); err != io.EOF {
			t.Error(err)
		}
		resp.Body.Close()
	}
}

// A countMeter is a Meter whose cost is the number of bytes.
type countMeter struct{ n int64 }

func (m *countMeter) Write(p []byte) (int, error) { m.n += int64(len(p)); return len(p), nil }
func (m *countMeter) Cost() throttle.Cost         { return throttle.Cost{"tokens": m.n} }

// TestStreamsSettle checks that a stream is settled once: at its end, when the client hangs up, and when
// the upstream breaks it off.
func TestStreamsSettle(t *testing.T) {
	for _, end := range []string{"whole", "client", "upstream"} {
		t.Run(end, func(t *testing.T) {
			gone := make(chan bool, 1)
			settled := make(chan throttle.SettledInfo, 10)
			b := start(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "12345")
				w.(http.Flusher).Flush()
				switch end {
				case "client":
					<-r.Context().Done()
					gone <- true
				case "upstream":
					panic(http.ErrAbortHandler)
				}
			}, proxy.Options{}, func(b *bench) proxy.Table {
				p, err := throttle.ParsePolicy("test", "1000/h;unit=tokens;estimated=true")
				if err != nil {
					t.Fatal(err)
				}
				p.Observer = throttle.JoinObservers(b.handler.Observer(), &throttle.Observer{Settled: func(i throttle.SettledInfo) { settled <- i }})
				l, err := throttle.New(p, nil)
				if err != nil {
					t.Fatal(err)
				}
				r := b.route(plenty)
				r.Transport.Limiter = l
				r.Transport.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 100} }
				r.Transport.Meter = func(*http.Response) throttle.Meter { return new(countMeter) }
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			resp, err := b.try(ctx, "GET", "/api/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			if end == "client" {
				cancel()
				<-gone
			}
			_, err = io.ReadAll(resp.Body)
			if (err == nil) != (end == "whole") {
				t.Errorf("the end of the body is %v", err)
			}
			resp.Body.Close()
			if i := <-settled; i.Estimated != 100 || i.Actual != 5 {
				t.Errorf("settled %+v, want 5 of 100", i)
			}
			b.stop()
			if err := <-b.ended; err != nil {
				t.Error(err)
			}
			b.ended <- nil
			if n := len(settled); n != 0 {
				t.Errorf("settled %d times more", n)
			}
		})
	}
}

// TestHangUp checks that a client which hangs up leaves the queue, and that nothing of its request is
// sent.
func TestHangUp(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"without a body": func() io.Reader { return nil },
		"with a body":    func() io.Reader { return strings.NewReader("body") },
		"with chunks":    func() io.Reader { return io.MultiReader(strings.NewReader("body")) },
	} {
		t.Run(name, func(t *testing.T) {
			var reached atomic.Int64
			b := start(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }, proxy.Options{AccessLog: true}, single(once))
			text(t, b.do("GET", "/api/x", nil))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-b.queued
				cancel()
			}()
			if _, err := b.try(ctx, "POST", "/api/x", body()); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if i := <-b.refused; !errors.Is(i.Err, context.Canceled) {
				t.Errorf("refused with %v", i.Err)
			}
			if n := reached.Load(); n != 1 {
				t.Errorf("%d requests reached the upstream", n)
			}
			b.stop()
			b.ended <- <-b.ended
			if log := b.log.String(); !strings.Contains(log, "status=499") {
				t.Error(log)
			}
		})
	}
}

// TestExpect checks that a client which expects 100-continue is not asked for a long body while its
// request waits, and for a short one once, which is needed to estimate its cost.
func TestExpect(t *testing.T) {
	b := start(t, echo, proxy.Options{}, single(once))
	text(t, b.do("GET", "/api/x", nil))
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", 1<<20)
	<-b.queued
	b.stop() // refuses what waits
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 503") {
		t.Errorf("%q, %v, want 503 and no 100 before", line, err)
	}
}

func TestExpectAdmitted(t *testing.T) {
	for _, size := range []int{10, 1 << 20} {
		b := start(t, echo, proxy.Options{}, single(plenty))
		asked := false
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got100Continue: func() { asked = true }})
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+b.addr+"/api/x", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Expect", "100-continue")
		tr := &http.Transport{ExpectContinueTimeout: time.Hour, DisableKeepAlives: true}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if body := text(t, resp); !asked || strings.Count(body, "x") < size {
			t.Errorf("asked for the body: %v; %d bytes came back", asked, len(body))
		}
	}
}

// TestBodies checks that bodies of all kinds reach the upstream, short ones with their length and with
// GetBody, which estimates use.
func TestBodies(t *testing.T) {
	var estimated atomic.Int64
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d %d %v", len(body), r.ContentLength, r.Trailer)
	}, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.MaxBody = 1000
		r.Transport.Cost = func(req *http.Request) throttle.Cost {
			estimated.Store(-1)
			if req.GetBody != nil {
				body, err := req.GetBody()
				if err != nil {
					t.Error(err)
				}
				n, _ := io.Copy(io.Discard, body)
				estimated.Store(n)
			}
			return nil
		}
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	for _, test := range []struct {
		n         int
		chunked   bool
		trailer   bool
		length    int
		estimated int64
	}{
		{0, false, false, 0, -1}, {1, false, false, 1, 1}, {1000, false, false, 1000, 1000}, {1001, false, false, 1001, -1},
		{0, true, false, 0, 0}, {1, true, false, 1, 1}, {1000, true, false, 1000, 1000}, {1001, true, false, -1, -1}, {1 << 20, true, false, -1, -1},
		{10, true, true, 10, 10}, {1 << 20, true, true, -1, -1},
	} {
		var body io.Reader = strings.NewReader(strings.Repeat("x", test.n))
		if test.chunked {
			body = io.MultiReader(body)
		}
		req, err := http.NewRequest("POST", "http://"+b.addr+"/api/x", body)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d %d map[]", test.n, test.length)
		if test.trailer {
			req.Trailer = http.Header{"X-Sum": {"1"}} // which does not reach the upstream
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, resp); got != want || estimated.Load() != test.estimated {
			t.Errorf("%+v: got %q, want %q; estimated from %d bytes", test, got, want, estimated.Load())
		}
	}
}

// TestShortBody checks that a request whose body ends too early is not sent.
func TestShortBody(t *testing.T) {
	var reached atomic.Int64
	b := start(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }, proxy.Options{}, single(plenty))
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")
	_ = conn.(*net.TCPConn).CloseWrite()
	_, _ = io.ReadAll(conn)
	if n := reached.Load(); n != 0 {
		t.Errorf("%d requests reached the upstream", n)
	}
}

func TestResponses(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		switch r.URL.Path {
		case "/head":
			h.Set("Content-Length", "1234")
		case "/trailer":
			h.Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "body")
			h.Set("X-Sum", "1")
			h.Set(http.TrailerPrefix+"X-Late", "2")
		case "/hints":
			h.Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			h.Del("Link")
			w.WriteHeader(204)
		case "/alt":
			h.Set("Alt-Svc", `h3=":443"`)
			h.Set("X-Throttle-Waited", "9")
			h.Set("X-Throttle-Tier", "of another proxy")
			h.Set("Connection", "X-Hop")
			h.Set("X-Hop", "1")
		case "/redirect":
			h.Set("Location", "http://"+r.Host+"/else?q=1")
			h.Set("Link", fmt.Sprintf(`<http://%s/x?page=2>; rel="next", <https://other.example/x>; rel="last"`, r.Host))
			w.WriteHeader(302)
		case "/relative":
			h.Set("Location", "/else")
			w.WriteHeader(302)
		case "/away":
			h.Set("Location", "http://other.example/else")
			w.WriteHeader(302)
		}
	}, proxy.Options{}, single(plenty))
	if resp := b.do("HEAD", "/api/head", nil); resp.ContentLength != 1234 || text(t, resp) != "" {
		t.Errorf("length %d", resp.ContentLength)
	}
	resp := b.do("GET", "/api/trailer", nil)
	if body := text(t, resp); body != "body" || resp.Trailer.Get("X-Sum") != "1" || resp.Trailer.Get("X-Late") != "2" {
		t.Errorf("body %q, trailer %v", body, resp.Trailer)
	}
	hints := ""
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints = fmt.Sprintf("%d %s", code, h.Get("Link"))
		return nil
	}})
	if resp, err := b.try(ctx, "GET", "/api/hints", nil); err != nil || resp.StatusCode != 204 || hints != "103 </api/style.css>; rel=preload" {
		t.Errorf("%v, %v, hints %q", resp, err, hints)
	}
	resp = b.do("GET", "/api/alt", nil)
	if h := resp.Header; h.Get("Alt-Svc") != "" || h.Get("X-Throttle-Waited") != "0.000" || h.Get("X-Throttle-Tier") != "" || h.Get("X-Hop") != "" {
		t.Errorf("header %v", h)
	}
	for path, want := range map[string]string{"redirect": "http://" + b.addr + "/api/else?q=1", "relative": "/api/else", "away": "http://other.example/else"} {
		if got := b.do("GET", "/api/"+path, nil).Header.Get("Location"); got != want {
			t.Errorf("%s: Location %s, want %s", path, got, want)
		}
	}
	if got, want := b.do("GET", "/api/redirect", nil).Header.Get("Link"), fmt.Sprintf(`<http://%s/api/x?page=2>; rel="next", <https://other.example/x>; rel="last"`, b.addr); got != want {
		t.Errorf("Link %s, want %s", got, want)
	}
}

// TestUpgrade checks that an upgraded connection passes through, is counted once, holds its place in a
// Concurrency tier, and ends with the proxy.
func TestUpgrade(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	}, proxy.Options{}, single("1;algo=concurrency + 100/h"))
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /api/x HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 || resp.Header.Get("X-Throttle-Policy") != "test" {
		t.Fatal(resp, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		_, _ = io.WriteString(conn, line)
		if got, err := r.ReadString('\n'); err != nil || got != line {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if p := problemOf(t, b.do("GET", "/api/x", nil, "X-Throttle-Max-Wait: 0.1")); p.Tier != "1;algo=concurrency" && p.Reason != "deadline" {
		t.Errorf("a second request was refused with %+v", p)
	}
	conn.Close()
	if n := len(b.answered); n != 1 {
		t.Errorf("%d requests were counted, want 1", n)
	}
}

// TestDrain checks the end of the proxy: an admitted request ends, and one that waits is refused.
func TestDrain(t *testing.T) {
	release, reached := make(chan bool), make(chan bool, 1)
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		reached <- true
		<-release
		_, _ = io.WriteString(w, "whole")
	}, proxy.Options{}, single("1;algo=concurrency"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if resp, err := b.try(t.Context(), "GET", "/api/x", nil); err != nil || resp.StatusCode != 200 || text(t, resp) != "whole" {
			t.Error(resp, err)
		}
	})
	<-reached
	wg.Go(func() {
		resp, err := b.try(t.Context(), "GET", "/api/x", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if p := problemOf(t, resp); p.Status != 503 || p.Reason != "draining" || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%+v", p)
		}
		release <- true // once the other was refused
	})
	<-b.queued
	b.stop()
	wg.Wait()
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
	b.ended <- nil
	if conn, err := net.Dial("tcp", b.addr); err == nil {
		conn.Close()
		t.Error("the proxy still listens")
	}
}

// TestDrainWhileReading checks that a request whose body the proxy still reads, before it waits, does not hold up the
// end of the proxy.
func TestDrainWhileReading(t *testing.T) {
	for _, header := range []string{"Content-Length: 10", "Transfer-Encoding: chunked", "Content-Length: 10\r\nExpect: 100-continue"} {
		b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
			b.handler.SetBodyBounds(time.Hour, time.Second)
			return single(plenty)(b)
		})
		conn := b.dial()
		fmt.Fprintf(conn, "POST /api/x HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", header)
		for begin := time.Now(); b.handler.Open() == 0 && time.Since(begin) < patience; time.Sleep(time.Millisecond) {
		}
		_, _ = io.WriteString(conn, "2\r\nhe")
		b.stop()
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err == nil && resp.StatusCode == http.StatusContinue {
			resp, err = http.ReadResponse(r, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v, want an answer", header, err)
		}
		if p := problemOf(t, resp); p.Reason != "draining" || !resp.Close {
			t.Errorf("%s: %+v, closes: %v", header, p, resp.Close)
		}
	}
}

// TestDrainIsBounded checks that a request which does not end is broken off.
func TestDrainIsBounded(t *testing.T) {
	reached := make(chan bool, 1)
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		reached <- true
		<-r.Context().Done()
	}, proxy.Options{}, single(plenty))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- (&proxy.Server{Handler: b.handler, Shutdown: func() time.Duration { return time.Millisecond }}).Serve(ctx, l)
	}()
	b.addr = l.Addr().String()
	go b.try(t.Context(), "GET", "/api/x", nil)
	<-reached
	stop()
	if err := <-ended; err == nil {
		t.Error("the server ended without an error")
	}
}

// TestClasses checks which class a request has.
func TestClasses(t *testing.T) {
	const i, n, batch = throttle.Interactive, throttle.Normal, throttle.Batch
	var got throttle.Class
	for _, test := range []struct {
		route  throttle.Class
		client *proxy.Client
		header string
		want   throttle.Class
	}{
		{n, nil, "", n}, {batch, nil, "", batch}, {batch, nil, "interactive", i}, {n, nil, "batch", batch},
		{batch, &proxy.Client{}, "", batch}, {batch, &proxy.Client{}, "interactive", i},
		{batch, &proxy.Client{HasClass: true, Class: i}, "", i}, {n, &proxy.Client{HasClass: true, Class: i}, "batch", batch},
		{n, &proxy.Client{HasClass: true, Class: batch}, "interactive", batch}, {n, &proxy.Client{HasClass: true, Class: n}, "interactive", n},
	} {
		b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
			p, err := throttle.ParsePolicy("test", plenty)
			if err != nil {
				t.Fatal(err)
			}
			p.Observer = &throttle.Observer{Admitted: func(_ context.Context, i throttle.AdmittedInfo) { got = i.Class }}
			l, err := throttle.New(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := b.route(plenty)
			r.Class, r.Transport.Limiter = test.route, l
			table := proxy.Table{Routes: []proxy.Route{r}}
			if test.client != nil {
				test.client.Token = webToken
				table.Clients = []proxy.Client{*test.client}
			}
			return table
		})
		headers := []string{"X-Throttle-Token: " + webToken}
		if test.header != "" {
			headers = append(headers, "X-Throttle-Class: "+test.header)
		}
		if resp := b.do("GET", "/api/x", nil, headers...); resp.StatusCode != 200 || got != test.want {
			t.Errorf("%+v: status %d, class %v", test, resp.StatusCode, got)
		}
	}
}
