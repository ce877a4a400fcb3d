package proxy_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
)

// handlerFor returns a Handler with one route, for tests in virtual time without sockets.
func handlerFor(t *testing.T, spec string, base http.RoundTripper) *proxy.Handler {
	t.Helper()
	h := proxy.New(proxy.Options{})
	r := proxy.Route{Prefix: "/api", Upstream: parseURL(t, "https://api.example"), MaxBody: 1000, Transport: &throttle.Transport{Base: base, AttemptTimeout: time.Hour}}
	if spec != "" {
		p, err := throttle.ParsePolicy("test", spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Observer = h.Observer()
		if r.Transport.Limiter, err = throttle.New(p, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.SetTable(proxy.Table{Routes: []proxy.Route{r}})
	return h
}

// slowly is a transport whose responses take a while.
func slowly(d time.Duration) http.RoundTripper {
	return roundTripFunc(func(req *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("whole")), Request: req}, nil
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	})
}

func serve(t *testing.T, h http.Handler, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	return serveAt(t, h, "/api/x", headers...)
}

func serveAt(t *testing.T, h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
	r.Host = "localhost"
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestMaxWaitEnds checks that X-Throttle-Max-Wait bounds the wait and not the request, also if nothing
// limits the route.
func TestMaxWaitEnds(t *testing.T) {
	for _, spec := range []string{"5/s", ""} {
		for _, test := range []struct {
			takes  time.Duration
			status int
		}{{time.Minute, 200}, {2 * time.Hour, 504}} {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				w := serve(t, handlerFor(t, spec, slowly(test.takes)), "X-Throttle-Max-Wait: 1s")
				if w.Code != test.status || time.Since(begin) != min(test.takes, time.Hour) {
					t.Errorf("policy %q, %v: status %d after %v, want %d", spec, test.takes, w.Code, time.Since(begin), test.status)
				}
			})
		}
	}
}

// TestMaxWaitOutlasted checks that a request whose wait cannot be foreseen is refused when the time is
// over.
func TestMaxWaitOutlasted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handlerFor(t, "1;algo=concurrency", slowly(time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { serve(t, h) })
		synctest.Wait()
		begin := time.Now()
		w := serve(t, h, "X-Throttle-Max-Wait: 2.5")
		if w.Code != 429 || time.Since(begin) != 2500*time.Millisecond || !strings.Contains(w.Body.String(), `"reason":"deadline"`) {
			t.Errorf("status %d after %v: %s", w.Code, time.Since(begin), w.Body)
		}
		if got := w.Header().Get("X-Throttle-Waited"); got != "2.500" {
			t.Errorf("X-Throttle-Waited is %q", got)
		}
		wg.Wait()
	})
}

// TestWaited checks what responses say about the wait.
func TestWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handlerFor(t, "1/10s + 100/h", slowly(time.Second))
		for _, want := range []struct{ waited, tier string }{{"0.000", ""}, {"9.050", "1/10s"}, {"9.050", "1/10s"}} {
			w := serve(t, h)
			if got := w.Header(); got.Get("X-Throttle-Waited") != want.waited || got.Get("X-Throttle-Tier") != want.tier || got.Get("X-Throttle-Policy") != "test" {
				t.Errorf("header %v, want %v", got, want)
			}
		}
	})
}

// TestOrder checks that classes order the queue.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		h := handlerFor(t, "1/s", roundTripFunc(func(req *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, req.Header.Get("X-Name"))
			return &http.Response{StatusCode: 204, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		}))
		serve(t, h)
		var wg sync.WaitGroup
		for _, class := range []string{"batch", "normal", "interactive"} {
			wg.Go(func() { serve(t, h, "X-Name: "+class, "X-Throttle-Class: "+class) })
			synctest.Wait()
		}
		wg.Wait()
		if got := strings.Join(order, " "); got != " interactive normal batch" {
			t.Errorf("the order was %q", got)
		}
	})
}

// TestGone checks that a request whose client hangs up while it waits is not sent, and that nobody is
// delayed by it.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		h := handlerFor(t, "1/10s", roundTripFunc(func(req *http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: 204, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		}))
		begin := time.Now()
		serve(t, h)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer func() {
				if p := recover(); p != http.ErrAbortHandler {
					t.Errorf("the handler ended with %v", p)
				}
			}()
			r := httptest.NewRequestWithContext(ctx, "GET", "/api/x", nil)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		synctest.Wait()
		time.AfterFunc(5*time.Second, cancel)
		serve(t, h)
		if waited := time.Since(begin); sent != 2 || waited < 10*time.Second || waited > 10050*time.Millisecond {
			t.Errorf("%d were sent, the last after %v, want 2 after 10s", sent, waited)
		}
	})
}
