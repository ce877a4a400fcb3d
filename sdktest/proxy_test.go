package sdktest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/redistest"
	"github.com/apithrottle/throttle/throttletest"
)

// These tests run the command's proxy as its users do: a process with a file, between clients and
// stand-ins of APIs on the loopback interface. They share no code with it.

var full = flag.Bool("full", false, "run the tests of the proxy in full length, and require speed, memory and use of the quota; needs an idle machine")

// patience is how long a test waits for something that must happen.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if target := os.Getenv(plainTarget); target != "" {
		servePlain(target)
	}
	code := redistest.Run(m)
	if dir := binaryDir; dir != "" {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

var binaryDir string // written by binary

// binary builds the command once and returns its path, or that of $THROTTLE_COMMAND.
var binary = sync.OnceValues(func() (path string, err error) {
	if path = os.Getenv("THROTTLE_COMMAND"); path != "" {
		return path, nil
	}
	if binaryDir, err = os.MkdirTemp("", "throttle"); err != nil {
		return "", err
	}
	path = filepath.Join(binaryDir, "throttle.exe") // for Windows
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = filepath.Join("..", "cmd", "throttle")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "GOWORK=") { // its go.work has the library of this tree
			build.Env = append(build.Env, v)
		}
	}
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return path, nil
})

// A proxy is a process of throttle proxy.
type proxy struct {
	t      testing.TB
	url    string // without a / at its end
	addr   string
	file   string
	cmd    *exec.Cmd
	output *output
	exited chan struct{} // closed when the process has ended
}

// An output keeps what a process writes.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// startProxy starts a proxy with a file, which says nothing about the address, and returns when the
// proxy answers. The process ends with the test.
func startProxy(t testing.TB, config string) *proxy {
	t.Helper()
	return startProxyWith(t, config, nil)
}

// startProxyWith is startProxy with more arguments, and with more of an environment.
func startProxyWith(t testing.TB, config string, args []string, env ...string) *proxy {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, file: filepath.Join(t.TempDir(), "throttle.yaml")}
	for range 10 { // another process may take the port first
		p.addr = freeAddress()
		p.url = "http://" + p.addr
		p.write(config)
		p.cmd = exec.Command(path, append([]string{"proxy", "--config", p.file}, args...)...)
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "THROTTLE_") {
				p.cmd.Env = append(p.cmd.Env, v)
			}
		}
		p.cmd.Env = append(p.cmd.Env, env...)
		p.output = new(output)
		p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.exited = make(chan struct{})
		go func() {
			_ = p.cmd.Wait() // ProcessState has the result
			close(p.exited)
		}()
		if p.answers(!strings.Contains(config, "log: ")) {
			t.Cleanup(p.kill)
			return p
		}
		p.cmd.Process.Kill()
		<-p.exited
		if !strings.Contains(p.output.String(), "address already in use") {
			break
		}
	}
	t.Fatalf("throttle proxy does not start with\n%s\nit wrote\n%s", config, p.output)
	return nil
}

var lastPort atomic.Int64

// freeAddress returns an address that nobody listens on. Each call returns another one.
func freeAddress() string {
	for {
		// These ports are below those that the kernel chooses.
		lastPort.CompareAndSwap(0, rand.Int64N(20_000))
		addr := net.JoinHostPort("127.0.0.1", strconv.FormatInt(10_000+lastPort.Add(1)%20_000, 10))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
}

// answers waits until the proxy accepts connections, and reports whether it has not ended instead. If
// it logs, it has also logged its address: somebody else on the same port would not.
func (p *proxy) answers(logs bool) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-p.exited:
			return false
		case <-time.After(10 * time.Millisecond):
		}
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			continue
		}
		conn.Close()
		if logs && !strings.Contains(p.output.String(), p.addr) {
			continue
		}
		select {
		case <-p.exited:
			return false
		default:
			return true
		}
	}
	return false
}

func (p *proxy) kill() {
	p.cmd.Process.Kill()
	<-p.exited
	if p.t.Failed() {
		text := p.output.String()
		p.t.Logf("the proxy %s wrote:\n%s", p.addr, text[max(0, len(text)-4000):])
	}
}

// write replaces the file at once, as editors and config maps do.
func (p *proxy) write(config string) {
	p.t.Helper()
	text := "listen: " + p.addr + "\n" + config
	if err := os.WriteFile(p.file+".new", []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(p.file+".new", p.file); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) signal(s syscall.Signal) {
	p.t.Helper()
	if runtime.GOOS == "windows" {
		p.t.Skip("Windows has no signals")
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// metric returns the sum of a metric's samples whose labels contain a text.
func (p *proxy) metric(name, labels string) (sum float64) {
	p.t.Helper()
	status, body, _ := p.get("/_throttle/metrics")
	if status != http.StatusOK {
		p.t.Fatalf("the metrics answer %d: %s", status, body)
	}
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		n, err := strconv.ParseFloat(value, 64)
		if strings.HasPrefix(series, name+"{") && strings.Contains(series, labels) && err == nil {
			sum += n
		}
	}
	return sum
}

// get sends a request on a connection of its own.
func (p *proxy) get(path string, header ...string) (status int, body string, h http.Header) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	status, body, h, err := p.do(ctx, "GET", path, "", header...)
	if err != nil {
		p.t.Errorf("%s: %v", path, err)
	}
	return status, body, h
}

// do sends a request on a connection of its own.
func (p *proxy) do(ctx context.Context, method, path, body string, header ...string) (int, string, http.Header, error) {
	resp, err := p.open(ctx, method, path, body, header...)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), resp.Header, err
}

// open sends a request on a connection of its own, and leaves the response's body to the caller.
func (p *proxy) open(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return lone.RoundTrip(req)
}

// lone opens a connection for each request.
var lone = &http.Transport{DisableKeepAlives: true}

// until waits until something holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// An upstream is an API whose answers a test writes by hand.
type upstream struct {
	*httptest.Server
	arrived chan *exchange
}

// An exchange is a request to an upstream. The test calls its methods.
type exchange struct {
	*http.Request
	body  string
	steps chan func(http.ResponseWriter)
	gone  <-chan struct{} // closed when the client has gone, or the response has ended
}

func startUpstream(t testing.TB) *upstream {
	u := &upstream{arrived: make(chan *exchange, 1000)}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		e := &exchange{Request: r, body: string(body), steps: make(chan func(http.ResponseWriter)), gone: r.Context().Done()}
		u.arrived <- e
		for {
			select {
			case step, open := <-e.steps:
				if !open {
					return
				}
				step(w)
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() {
		u.CloseClientConnections()
		u.Close()
	})
	return u
}

// next waits for a request.
func (u *upstream) next(t testing.TB) *exchange {
	t.Helper()
	return receive(t, "a request at the upstream", u.arrived)
}

// none fails if a request has arrived that no test has expected.
func (u *upstream) none(t testing.TB) {
	t.Helper()
	select {
	case e := <-u.arrived:
		t.Errorf("the upstream received %s %s", e.Method, e.RequestURI)
	default:
	}
}

// write writes a part of the response, and returns when it was written.
func (e *exchange) write(text string) time.Time {
	wrote := make(chan time.Time, 1)
	select {
	case e.steps <- func(w http.ResponseWriter) {
		io.WriteString(w, text)
		w.(http.Flusher).Flush()
		wrote <- time.Now()
	}:
		return <-wrote
	case <-e.gone:
		return time.Now()
	}
}

// header sets a header of the response, before the first write.
func (e *exchange) header(key, value string) {
	e.steps <- func(w http.ResponseWriter) { w.Header().Set(key, value) }
}

// end ends the response.
func (e *exchange) end() { close(e.steps) }

// answer answers with a text.
func (e *exchange) answer(text string) {
	e.write(text)
	e.end()
}

// A refusal is the problem that the proxy answers.
type refusal struct {
	Type, Title, Detail, Policy, Tier, Reason string
}

func problem(t testing.TB, body string, h http.Header) (r refusal) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &r); err != nil || h.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%q of type %q is not a problem: %v", body, h.Get("Content-Type"), err)
	}
	return r
}

// A reply is the answer to a request in the background.
type reply struct {
	status int
	body   string
	header http.Header
	err    error
}

// send sends a request in the background.
func (p *proxy) send(ctx context.Context, path string, header ...string) <-chan reply {
	c := make(chan reply, 1)
	go func() {
		status, body, h, err := p.do(ctx, "GET", path, "", header...)
		c <- reply{status, body, h, err}
	}()
	return c
}

// Refusals are 429 with Retry-After and a problem, and say what was decisive. A wait is in a header.
func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf(`
routes:
  /api: {to: %[1]s/base, policy: 1/h}
  /one: {to: %[1]s, policy: 1;algo=concurrency, max_queue: 1}
`, up.URL))

	first := p.send(t.Context(), "/api/x?q=1")
	e := up.next(t)
	if e.RequestURI != "/base/x?q=1" || e.Host != strings.TrimPrefix(up.URL, "http://") {
		t.Errorf("the upstream received %s for %s, want /base/x?q=1 for its own host", e.RequestURI, e.Host)
	}
	e.answer("done")
	if r := <-first; r.err != nil || r.status != 200 || r.body != "done" {
		t.Errorf("answered %+v, want done", r)
	}
	// The second one would wait for an hour.
	status, body, h := p.get("/api/x", "X-Throttle-Max-Wait", "5s")
	after, err := strconv.Atoi(h.Get("Retry-After"))
	if r := problem(t, body, h); status != 429 || err != nil || after < 60 || after > 3600 || r.Policy != "api" || r.Tier != "1/h" {
		t.Errorf("%d, Retry-After %q, %+v, want 429 with the time until the hour has passed, policy api and tier 1/h", status, h.Get("Retry-After"), r)
	}

	held := p.send(t.Context(), "/one/x")
	a := up.next(t)
	queued := p.send(t.Context(), "/one/y")
	until(t, "the second request waits", func() bool { return p.metric("throttle_queued_requests", `"one"`) == 1 })
	status, body, h = p.get("/one/z")
	if r := problem(t, body, h); status != 429 || !strings.Contains(r.Reason, "queue") {
		t.Errorf("%d, %+v, want 429, because the queue is full", status, r)
	}
	a.answer("a")
	b := up.next(t)
	if b.URL.Path != "/y" {
		t.Errorf("the upstream received %s, want /y", b.URL.Path)
	}
	b.answer("b")
	if r := <-held; r.status != 200 {
		t.Errorf("answered %+v", r)
	}
	r := <-queued
	if waited, err := strconv.ParseFloat(r.header.Get("X-Throttle-Waited"), 64); r.status != 200 || err != nil || waited <= 0 {
		t.Errorf("answered %+v, want 200 and how many seconds it waited", r)
	}
	up.none(t)
}

// Each refusal has its status and its reason, and says whether it is worth trying again.
func TestProxyReasons(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf(`
clients:
  web: {token: 0123456789abcdef}
  poor: {token: fedcba9876543210, budget: 1/d;budget=true}
routes:
  /api: {to: %[1]s, policy: 1000/s, clients: [web, poor]}
  /closed: {to: %[1]s, policy: 1000/s, clients: [poor]}
  /costly: {to: %[1]s, policy: "5/s + 10/h;unit=usd", cost: {usd: 100}}
  /budget: {to: %[1]s, policy: 1000/s, cost: {usd: 5}, budget: 5/month;unit=usd;budget=true}
  /away: {to: http://127.0.0.1:1, policy: 1000/s}
  /late: {to: %[1]s, policy: 1000/s, timeout: 100ms}
`, up.URL))
	go func() {
		for {
			select {
			case e := <-up.arrived:
				if e.URL.Path != "/late" {
					e.answer("ok")
				}
			case <-t.Context().Done():
				return
			}
		}
	}()
	for _, test := range []struct {
		path, token string
		status      int
		reason      string
		again       bool
	}{
		{"/api/x", "0123456789abcdef", 200, "", false},
		{"/api/x", "", 401, "", false},
		{"/api/x", "wrong-0123456789abcdef", 401, "", false},
		{"/closed/x", "0123456789abcdef", 403, "", false},
		{"/nowhere", "0123456789abcdef", 404, "", false},
		{"/costly/x", "0123456789abcdef", 422, "exceeds_capacity", false},
		{"/budget/x", "0123456789abcdef", 200, "", false},
		{"/budget/x", "0123456789abcdef", 429, "exhausted", true},
		{"/api/x", "fedcba9876543210", 200, "", false},
		{"/api/x", "fedcba9876543210", 429, "exhausted", true},
		{"/away/x", "0123456789abcdef", 502, "unreachable", false},
		{"/late/late", "0123456789abcdef", 504, "timeout", false},
	} {
		status, body, h := p.get(test.path, "X-Throttle-Token", test.token)
		if status != test.status || (h.Get("Retry-After") != "") != test.again {
			t.Errorf("%s: answered %d with Retry-After %q, want %d", test.path, status, h.Get("Retry-After"), test.status)
		}
		if status == http.StatusOK {
			continue
		}
		if r := problem(t, body, h); test.reason != "" && r.Reason != test.reason || r.Title == "" || r.Detail == "" {
			t.Errorf("%s: answered %+v, want reason %s", test.path, r, test.reason)
		}
	}
}

// While the store is away, nothing is sent, and requests are refused with 503 once they have waited for
// as long as they may. Afterwards the proxy goes on by itself.
func TestProxyStoreAway(t *testing.T) {
	t.Parallel()
	api := throttletest.NewProvider(throttle.PerSecond(1000))
	defer api.Close()
	server := redistest.Start(t)
	p := startProxy(t, fmt.Sprintf("store: {redis: 'redis://%s/0'}\nroutes: {/api: {to: %s, policy: 1000/s}}", server.Addr(), api.URL))
	if status, body, _ := p.get("/api/x"); status != 200 {
		t.Fatalf("answered %d, %s", status, body)
	}
	server.Kill()
	status, body, h := p.get("/api/x", "X-Throttle-Max-Wait", "1s")
	if r := problem(t, body, h); status != 503 || r.Reason != "unavailable" || h.Get("Retry-After") == "" {
		t.Errorf("answered %d, %+v without its store, want 503", status, r)
	}
	if n := api.Summary().Sent; n != 1 {
		t.Errorf("the API received %d requests, want 1", n)
	}
	server.Restart()
	until(t, "the proxy goes on", func() bool {
		status, _, _ := p.get("/api/x")
		return status == 200
	})
	if strings.Contains(p.output.String(), "redis: ") {
		t.Errorf("the client of Redis writes to the log of the proxy")
	}
}

// Clients that hang up at any instant cost the API nothing: it refuses none of the others, and at the
// end nobody waits and nothing is in flight.
func TestProxyHangUpsUnderLoad(t *testing.T) {
	t.Parallel()
	// The API has no Concurrency: it may notice later than the proxy that a client has gone.
	api := throttletest.NewProvider(throttle.PerSecond(50))
	defer api.Close()
	api.Hold = func() time.Duration { return time.Duration(rand.IntN(20)) * time.Millisecond }
	p := startProxy(t, fmt.Sprintf("routes: {/api: {to: %s, policy: 50/s + 4;algo=concurrency | guard=5s}}", api.URL))
	var clients sync.WaitGroup
	var answered, gone atomic.Int64
	for range 32 {
		clients.Go(func() {
			for range 10 {
				ctx, hangUp := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(200*time.Millisecond))))
				status, body, _, err := p.do(ctx, "POST", "/api/x", "body")
				switch {
				case err != nil && ctx.Err() != nil:
					gone.Add(1)
				case err != nil || status != http.StatusOK:
					t.Errorf("answered %d, %s, %v", status, body, err)
				default:
					answered.Add(1)
				}
				hangUp()
			}
		})
	}
	clients.Wait()
	for _, name := range []string{"throttle_queued_requests", "throttle_active_requests"} {
		until(t, name+" is 0", func() bool { return p.metric(name, "") == 0 })
	}
	s := api.Summary()
	t.Logf("%d answered, %d hung up, %d received by the API, %d refused", answered.Load(), gone.Load(), s.Sent, s.Refused)
	if s.Refused > 0 {
		t.Errorf("the API refused %d of %d requests", s.Refused, s.Sent)
	}
	if s.Sent < answered.Load() {
		t.Errorf("the API received %d requests, and %d were answered", s.Sent, answered.Load())
	}
	if status, body, _ := p.get("/api/x"); status != 200 {
		t.Errorf("afterwards a request is answered %d, %s", status, body)
	}
}

// A client that hangs up while it waits leaves the queue: nothing is sent, and its place is free.
func TestProxyHangUpInQueue(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf("routes: {/one: {to: %s, policy: 1;algo=concurrency, max_queue: 8}}", up.URL))
	queued := func(n float64) {
		t.Helper()
		until(t, fmt.Sprintf("%v requests wait", n), func() bool { return p.metric("throttle_queued_requests", `"one"`) == n })
	}
	held := p.send(t.Context(), "/one/held")
	a := up.next(t)
	ctx, hangUp := context.WithCancel(t.Context())
	var gone []<-chan reply
	for i := range 8 {
		gone = append(gone, p.send(ctx, fmt.Sprint("/one/gone", i)))
	}
	queued(8)
	hangUp()
	for _, c := range gone {
		if r := <-c; !errors.Is(r.err, context.Canceled) {
			t.Errorf("answered %+v", r)
		}
	}
	queued(0)
	last := p.send(t.Context(), "/one/last")
	queued(1)
	a.answer("a")
	b := up.next(t)
	if b.URL.Path != "/last" {
		t.Errorf("the upstream received %s of a client that had hung up", b.URL.Path)
	}
	b.answer("b")
	for _, c := range []<-chan reply{held, last} {
		if r := <-c; r.status != 200 || r.err != nil {
			t.Errorf("answered %+v", r)
		}
	}
	up.none(t)
}

// A client that hangs up in the middle of a stream ends the request to the API, and frees its place.
func TestProxyHangUpInStream(t *testing.T) {
	t.Parallel()
	up := startUpstream(t)
	p := startProxy(t, fmt.Sprintf("routes: {/one: {to: %s, policy: 1;algo=concurrency}}", up.URL))
	for range 3 {
		ctx, hangUp := context.WithCancel(t.Context())
		opened := make(chan *http.Response, 1)
		go func() {
			resp, err := p.open(ctx, "GET", "/one/stream", "")
			if err != nil {
				t.Error(err)
			}
			opened <- resp
		}()
		e := up.next(t)
		e.header("Content-Type", "text/event-stream")
		e.write("data: 1\n\n")
		resp := <-opened
		if resp == nil {
			t.Fatal("no response")
		}
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 1\n" {
			t.Errorf("received %q, %v", line, err)
		}
		hangUp()
		resp.Body.Close()
		receive(t, "the end of the request at the upstream", e.gone)
	}
	up.none(t)
}
