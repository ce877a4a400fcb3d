package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/observe"
)

// A bench is a proxy before one upstream.
type bench struct {
	t        *testing.T
	handler  *proxy.Handler
	base     *http.Transport
	upstream *url.URL
	addr     string // of the proxy
	log      *buffer
	stop     context.CancelFunc // begins the end of the proxy
	ended    chan error
	queued   chan throttle.QueuedInfo // one for each request that takes a place
	answered chan throttle.AnsweredInfo
	refused  chan throttle.RefusedInfo
}

// A buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start starts an upstream and a proxy before it. Route returns the table for the proxy.
func start(t *testing.T, upstream http.HandlerFunc, opts proxy.Options, table func(b *bench) proxy.Table) *bench {
	t.Helper()
	api := httptest.NewServer(upstream)
	t.Cleanup(api.Close)
	u, err := url.Parse(api.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, upstream: u, log: new(buffer), base: proxy.NewBase(10*time.Second, 0), ended: make(chan error, 1),
		queued: make(chan throttle.QueuedInfo, 1000), answered: make(chan throttle.AnsweredInfo, 1000), refused: make(chan throttle.RefusedInfo, 1000),
	}
	t.Cleanup(b.base.CloseIdleConnections)
	opts.Log = slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts.LocalHosts = true
	b.handler = proxy.New(opts)
	b.handler.SetTable(table(b))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	server := &proxy.Server{Handler: b.handler, Shutdown: func() time.Duration { return 20 * time.Second }, Log: opts.Log}
	go func() { b.ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// limiter returns a limiter whose events the proxy and the bench receive.
func (b *bench) limiter(spec string) *throttle.Limiter {
	b.t.Helper()
	p, err := throttle.ParsePolicy("test", spec)
	if err != nil {
		b.t.Fatal(err)
	}
	p.Observer = throttle.JoinObservers(b.handler.Observer(), observe.Log(slog.New(slog.NewTextHandler(b.log, nil)), observe.LogOptions{}), &throttle.Observer{
		Queued:   func(_ context.Context, i throttle.QueuedInfo) { b.queued <- i },
		Answered: func(_ context.Context, i throttle.AnsweredInfo) { b.answered <- i },
		Refused:  func(_ context.Context, i throttle.RefusedInfo) { b.refused <- i },
	})
	l, err := throttle.New(p, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

// route returns a route at /api to the upstream.
func (b *bench) route(spec string) proxy.Route {
	return proxy.Route{
		Prefix: "/api", Upstream: b.upstream, MaxBody: 64 << 10,
		Transport: &throttle.Transport{Base: b.base, Limiter: b.limiter(spec)},
	}
}

// single returns a table with one route at /api.
func single(spec string) func(b *bench) proxy.Table {
	return func(b *bench) proxy.Table { return proxy.Table{Routes: []proxy.Route{b.route(spec)}} }
}

// plenty is a policy that delays nothing.
const plenty = "1000000/s"

// once is a policy that admits one request in the time of a test.
const once = "1/h"

// do sends a request through the proxy. Header lines are "Name: value".
func (b *bench) do(method, path string, body io.Reader, headers ...string) *http.Response {
	b.t.Helper()
	resp, err := b.try(context.Background(), method, path, body, headers...)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp
}

func (b *bench) try(ctx context.Context, method, path string, body io.Reader, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+b.addr+path, body)
	if err != nil {
		return nil, err
	}
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Add(name, value)
	}
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	return tr.RoundTrip(req)
}

// raw sends bytes to the proxy and returns the first response.
func (b *bench) raw(text string) *http.Response {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.t.Fatalf("%q: %v", text, err)
	}
	return resp
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	return string(body)
}

// A refusal is the body of a problem.
type refusal struct {
	Type, Title, Detail, Policy, Tier, Reason, Until string
	Status                                           int
	Wait                                             float64 `json:"wait_seconds"`
}

func problemOf(t *testing.T, resp *http.Response) (p refusal) {
	t.Helper()
	if kind := resp.Header.Get("Content-Type"); kind != "application/problem+json" {
		t.Errorf("Content-Type is %q", kind)
	}
	body := text(t, resp)
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Errorf("%v: %s", err, body)
	}
	if p.Status != resp.StatusCode || p.Title == "" || p.Type == "" || p.Detail == "" || p.Reason == "" {
		t.Errorf("status %d, body %s", resp.StatusCode, body)
	}
	return p
}

// echo responds with the request as the upstream receives it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	_ = r.Header.Write(w)
	fmt.Fprintf(w, "Length: %d\n%s", r.ContentLength, body)
}

func TestForwards(t *testing.T) {
	b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		to := *b.upstream
		to.Path = "/v1"
		r.Upstream = &to
		r.Set = map[string]string{"authorization": "Bearer key"}
		r.Remove = []string{"cookie"}
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	resp := b.do("POST", "/api/a%2Fb//c?q=1;2&%zz", strings.NewReader("hello"),
		"Cookie: c", "Authorization: other", "X-Throttle-Class: batch", "X-Throttle-Max-Wait: 5s", "X-Throttle-Else: 1",
		"User-Agent: ua", "Forwarded: for=1", "X-Forwarded-For: 2", "X-Forwarded-Else: 3", "Connection: Authorization, X-Hop", "X-Hop: 1", "X-Own: own")
	got := text(t, resp)
	want := fmt.Sprintf("POST /v1/a%%2Fb//c?q=1;2&%%zz\nHost: %s\nAuthorization: Bearer key\r\nContent-Length: 5\r\nUser-Agent: ua\r\nX-Own: own\r\nLength: 5\nhello", b.upstream.Host)
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if w := resp.Header.Get("X-Throttle-Waited"); w != "0.000" {
		t.Errorf("waited %q", w)
	}
	if p := resp.Header.Get("X-Throttle-Policy"); p != "test" {
		t.Errorf("policy %q", p)
	}
}

func TestQueues(t *testing.T) {
	b := start(t, echo, proxy.Options{}, single("1/50ms"))
	for range 5 {
		resp := b.do("GET", "/api/", nil)
		text(t, resp)
		if resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
}

func parseURL(t testing.TB, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestUserAgent checks that the proxy adds no User-Agent of its own.
func TestUserAgent(t *testing.T) {
	b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
		plain, removing := b.route(plenty), b.route(plenty)
		removing.Prefix, removing.Remove = "/removing", []string{"user-agent"}
		return proxy.Table{Routes: []proxy.Route{plain, removing}}
	})
	for _, path := range []string{"/api/x", "/removing/x"} {
		resp := b.raw("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + map[string]string{"/removing/x": "User-Agent: ua\r\n"}[path] + "\r\n")
		if got := text(t, resp); strings.Contains(got, "User-Agent") {
			t.Errorf("%s: the upstream received %s", path, got)
		}
	}
}
