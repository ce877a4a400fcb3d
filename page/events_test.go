package page_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/observe"
	"github.com/apithrottle/throttle/page"
)

// hubs returns how many goroutines send events.
func hubs() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "page.(*hub).run(")
}

// A recorder is a ResponseWriter without Flush.
type recorder struct{ *httptest.ResponseRecorder }

func newRecorder() recorder           { return recorder{httptest.NewRecorder()} }
func (r recorder) body() string       { return r.Body.String() }
func (r recorder) Flush(struct{}) int { return 0 } // hides that of the ResponseRecorder

func request(ctx context.Context, path string) *http.Request {
	return httptest.NewRequest("GET", path, nil).WithContext(ctx)
}

// A pipeListener accepts connections in memory, which have deadlines and no buffer.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// dial returns a connection to the server.
func (l *pipeListener) dial() net.Conn {
	client, server := net.Pipe()
	l.conns <- server
	return client
}

// serve serves the handler in a synctest bubble.
func serve(t *testing.T, h http.Handler, server *http.Server) *pipeListener {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server.Handler = h
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return l
}

// A viewer reads events.
type viewer struct {
	conn   net.Conn
	resp   *http.Response
	reader *bufio.Reader
}

// watch connects a viewer.
func watch(t *testing.T, l *pipeListener) *viewer {
	t.Helper()
	v := &viewer{conn: l.dial()}
	go func() { _, _ = io.WriteString(v.conn, "GET /events HTTP/1.1\r\nHost: test\r\n\r\n") }()
	resp, err := http.ReadResponse(bufio.NewReader(v.conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	v.resp, v.reader = resp, bufio.NewReader(resp.Body)
	return v
}

// next returns the next event: its lines by their fields.
func (v *viewer) next() (map[string]string, error) {
	fields := make(map[string]string)
	for {
		line, err := v.reader.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line == "\n" {
			return fields, nil
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		fields[name] = value
	}
}

// events reads events until there are n of them, or an error.
func (v *viewer) events(t *testing.T, n int) (kinds []string, states []page.State) {
	t.Helper()
	for range n {
		e, err := v.next()
		if err != nil {
			t.Fatal(err)
		}
		kinds, states = append(kinds, e["event"]), append(states, decode[page.State](t, e["data"]))
	}
	return kinds, states
}

// TestEvents checks that viewers share one goroutine, that each sees what happens within a second, and
// that nothing runs and nothing asks the store while nobody looks.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats, s := observe.NewStats(), new(countingStore)
		limiter := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5), throttle.PerHour(1000)}}, s)
		idle := watched(t, stats, throttle.Policy{Name: "idle", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
		l := serve(t, page.New(page.Options{Stats: stats}), new(http.Server))
		time.Sleep(time.Hour)
		if n, m := hubs(), s.status.Load(); n != 0 || m != 0 {
			t.Fatalf("nobody looks: %d goroutines, %d calls of the store", n, m)
		}
		first := watch(t, l)
		if got := first.resp.Header.Get("Content-Type"); got != "text/event-stream" || first.resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("headers %v", first.resp.Header)
		}
		kinds, states := first.events(t, 3)
		if fmt.Sprint(kinds) != "[state tick tick]" || len(states[0].Policies) != 2 || len(states[0].Policies[0].History.Admitted) != 300 {
			t.Fatalf("%v: %+v", kinds, states[0])
		}
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		limiter.Allow()
		_, states = first.events(t, 1)
		if took := time.Since(began); took > time.Second || len(states[0].Policies) != 1 {
			t.Fatalf("an admission came after %v: %+v", took, states[0].Policies)
		}
		if p := states[0].Policies[0]; p.Tiers[1].Used != 1 || len(p.History.Admitted) > 4 {
			t.Errorf("the change was sent as %+v", p)
		}

		before := s.status.Load()
		second := watch(t, l)
		began = time.Now()
		if kinds, states := second.events(t, 2); fmt.Sprint(kinds) != "[state tick]" || len(states[0].Policies) != 2 {
			t.Errorf("the second viewer received %v", kinds)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the second viewer had two events after %v", took)
		}
		both := func(n int) {
			var wg sync.WaitGroup
			for _, v := range []*viewer{first, second} {
				wg.Go(func() {
					for range n {
						if _, err := v.next(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		}
		began = time.Now()
		both(10)
		elapsed := time.Since(began)
		if n, m := hubs(), s.status.Load()-before; n != 1 || m > int64(elapsed/time.Second)+3 {
			t.Errorf("two viewers: %d goroutines, %d calls of the store in %v", n, m, elapsed)
		}
		idle.Allow()
		if err := stats.Watch("late", idle); err != nil {
			t.Fatal(err)
		}
		for {
			kinds, states := first.events(t, 1)
			if kinds[0] == "state" && len(states[0].Policies) == 3 { // policies have come
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatal("a new limiter was not sent")
			}
		}
		_ = first.conn.Close()
		_ = second.conn.Close()
		synctest.Wait()
		if n := hubs(); n != 0 {
			t.Errorf("%d goroutines after the last viewer", n)
		}
		before = s.status.Load()
		time.Sleep(time.Hour)
		if n := s.status.Load() - before; n != 0 {
			t.Errorf("%d calls of the store while nobody looks", n)
		}
		again := watch(t, l)
		if kinds, _ := again.events(t, 2); fmt.Sprint(kinds) != "[state tick]" {
			t.Errorf("a later viewer received %v", kinds)
		}
		_ = again.conn.Close()
		synctest.Wait()
	})
}

// TestTimeouts checks that the timeouts of a server do not end the stream.
func TestTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, page.New(page.Options{Stats: observe.NewStats()}), &http.Server{
			WriteTimeout: 3 * time.Second, ReadTimeout: 3 * time.Second, ReadHeaderTimeout: time.Second, IdleTimeout: time.Second,
		})
		v := watch(t, l)
		began := time.Now()
		v.events(t, 60)
		if took := time.Since(began); took < 50*time.Second || took > 61*time.Second {
			t.Errorf("60 events in %v", took)
		}
		_ = v.conn.Close()
		synctest.Wait()
	})
}

// TestSlowViewer checks that a viewer that does not read is disconnected, and delays nobody.
func TestSlowViewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, page.New(page.Options{Stats: observe.NewStats()}), new(http.Server))
		good := watch(t, l)
		slow := watch(t, l) // reads the header alone
		began := time.Now()
		good.events(t, 30)
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("30 events in %v", took)
		}
		buf := make([]byte, 1<<20)
		if n := strings.Count(string(buf[:runtime.Stack(buf, true)]), "page.(*hub).ServeHTTP("); n != 1 {
			t.Errorf("%d requests of viewers are open, want that of the good one", n)
		}
		_ = good.conn.Close()
		_ = slow.conn.Close()
		synctest.Wait()
	})
}

// TestMaxViewers checks that there are at most 100 viewers.
func TestMaxViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := serve(t, page.New(page.Options{Stats: observe.NewStats()}), new(http.Server))
		var all []*viewer
		for i := range 101 {
			v := watch(t, l)
			all = append(all, v)
			if got := v.resp.StatusCode; (i < 100) != (got == 200) {
				t.Fatalf("viewer %d: %d", i, got)
			}
		}
		if h := all[100].resp.Header; all[100].resp.StatusCode != 503 || h.Get("Retry-After") != "10" {
			t.Errorf("viewer 101: %d %v", all[100].resp.StatusCode, h)
		}
		if n := hubs(); n != 1 {
			t.Errorf("%d goroutines", n)
		}
		_ = all[0].conn.Close()
		synctest.Wait()
		v := watch(t, l)
		if v.resp.StatusCode != 200 {
			t.Errorf("after one has left: %d", v.resp.StatusCode)
		}
		for _, v := range append(all, v) {
			_ = v.conn.Close()
		}
		synctest.Wait()
		if n := hubs(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}

// TestWithoutFlush checks the answer where events can't be sent.
func TestWithoutFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRecorder()
		page.New(page.Options{Stats: observe.NewStats()}).ServeHTTP(struct{ http.ResponseWriter }{w}, request(t.Context(), "/events"))
		if w.Code != http.StatusNotImplemented || w.Header().Get("Content-Type") == "text/event-stream" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		synctest.Wait()
		if n := hubs(); n != 0 {
			t.Errorf("%d goroutines are left", n)
		}
	})
}

// TestShutdown checks that viewers end with the server's base context, as the package says.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		server := &http.Server{BaseContext: func(net.Listener) context.Context { return ctx }}
		server.RegisterOnShutdown(cancel)
		l := serve(t, page.New(page.Options{Stats: observe.NewStats()}), server)
		v := watch(t, l)
		v.events(t, 2)
		done := make(chan error)
		go func() { done <- server.Shutdown(context.Background()) }()
		for {
			if _, err := v.next(); err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("the stream ended with %v", err)
				}
				break
			}
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestStorm lets viewers come and go at random. The race detector and leaktest judge it.
func TestStorm(t *testing.T) {
	stats := observe.NewStats()
	l := watched(t, stats, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil)
	h := page.New(page.Options{Stats: stats})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				ctx, cancel := context.WithCancel(t.Context())
				w := &firstWrite{ResponseRecorder: httptest.NewRecorder(), wrote: cancel}
				l.Allow()
				h.ServeHTTP(w, request(ctx, "/events"))
				if !bytes.HasPrefix(w.Body.Bytes(), []byte("id: ")) || !bytes.Contains(w.Body.Bytes(), []byte("event: state\n")) {
					t.Errorf("received %.100q", w.Body)
				}
				cancel()
				get(h, "GET", "/state.json")
			}
		})
	}
	wg.Wait()
}

// A firstWrite calls a function at the first write.
type firstWrite struct {
	*httptest.ResponseRecorder
	wrote func()
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.wrote()
	return w.ResponseRecorder.Write(b)
}
