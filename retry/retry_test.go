package retry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/retry"
)

const target = "http://api.example/orders"

// bubble runs f in a synctest bubble, in which waiting takes no time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func request(t *testing.T, method string, body io.Reader, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range header {
		req.Header.Set(name, "k1")
	}
	return req
}

// finish reads and closes the response. It returns the status, or 0 if there is no response.
func finish(t *testing.T, resp *http.Response) (status int, text string) {
	t.Helper()
	if resp == nil {
		return 0, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("reading the response: %v", err)
	}
	resp.Body.Close()
	return resp.StatusCode, string(b)
}

func TestRetries(t *testing.T) {
	const never = 0 // the status of an error
	for _, c := range []struct {
		name     string
		method   string
		header   []string
		script   []string
		attempts int
		status   int
		took     time.Duration
	}{
		{name: "success", method: "POST", script: []string{"201"}, attempts: 1, status: 201},
		{name: "client error", method: "GET", script: []string{"404"}, attempts: 1, status: 404},
		{name: "POST refused", method: "POST", script: []string{"429 3", "200"}, attempts: 2, status: 200, took: 3 * time.Second},
		{name: "PATCH refused by 503", method: "PATCH", script: []string{"503 2.5", "200"}, attempts: 2, status: 200, took: 2500 * time.Millisecond},
		{name: "POST 503 alone", method: "POST", script: []string{"503", "200"}, attempts: 1, status: 503},
		{name: "POST 503 with zero", method: "POST", script: []string{"503 0", "200"}, attempts: 1, status: 503},
		{name: "GET 503 with zero", method: "GET", script: []string{"503 0", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "POST 502", method: "POST", script: []string{"502", "200"}, attempts: 1, status: 502},
		{name: "POST 504", method: "POST", script: []string{"504", "200"}, attempts: 1, status: 504},
		{name: "POST 502 with a key", method: "POST", header: []string{"Idempotency-Key"}, script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "POST 502 with the other key", method: "POST", header: []string{"X-Idempotency-Key"}, script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "PATCH 502", method: "PATCH", script: []string{"502", "200"}, attempts: 1, status: 502},
		{name: "GET 502, 500, 504", method: "GET", script: []string{"502", "500", "504", "200"}, attempts: 4, status: 200, took: 7 * time.Second},
		{name: "GET 501", method: "GET", script: []string{"501", "200"}, attempts: 1, status: 501},
		{name: "HEAD 502", method: "HEAD", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "OPTIONS 502", method: "OPTIONS", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "TRACE 502", method: "TRACE", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "PUT 502", method: "PUT", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "DELETE 502", method: "DELETE", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "no method", method: "", script: []string{"502", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "POST without a connection", method: "POST", script: []string{"dial", "dial", "200"}, attempts: 3, status: 200, took: 3 * time.Second},
		{name: "POST reset", method: "POST", script: []string{"reset", "200"}, attempts: 1, status: never},
		{name: "GET reset", method: "GET", script: []string{"reset", "200"}, attempts: 2, status: 200, took: time.Second},
		{name: "POST without a connection, then reset", method: "POST", script: []string{"dial", "reset", "200"}, attempts: 2, status: never, took: time.Second},
		{name: "bad Location", method: "GET", script: []string{"302 http://[", "200"}, attempts: 1, status: never},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script...)
			resp, err := retry.NewClient(limited(t, p.transport)).Do(request(t, c.method, nil, c.header...))
			status, _ := finish(t, resp)
			if status != c.status || (err != nil) != (c.status == never) {
				t.Errorf("status %d, error %v; want status %d", status, err, c.status)
			}
			if n := p.attempts(); n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
			if took := time.Since(p.start); took != c.took {
				t.Errorf("took %v, want %v", took, c.took)
			}
		})
	}
}

// An empty key is a bug of the caller and protects nothing. In net/http, a key without values marks
// a request as idempotent.
func TestIdempotencyKeyValues(t *testing.T) {
	for name, c := range map[string]struct {
		key      []string
		attempts int
	}{
		"empty":     {[]string{""}, 1},
		"no values": {[]string{}, 2},
	} {
		bubble(t, name, func(t *testing.T) {
			p := newProvider(t, "502", "200")
			req := request(t, "POST", nil)
			req.Header["Idempotency-Key"] = c.key
			resp, err := retry.NewClient(limited(t, p.transport)).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			finish(t, resp)
			if n := p.attempts(); n != c.attempts {
				t.Errorf("%d attempts, want %d", n, c.attempts)
			}
		})
	}
}

// Without httptrace, only the base's error can show that nothing was sent, as the error of a dial
// does.
func TestUntracedFailure(t *testing.T) {
	for _, c := range []struct {
		name     string
		err      error
		attempts int
	}{
		{"unknown", errDial, 1},
		{"refused dial", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, 2},
		{"lost connection", &net.OpError{Op: "read", Err: syscall.ECONNRESET}, 1},
	} {
		for _, limited := range []bool{false, true} {
			bubble(t, fmt.Sprintf("%s, limited %t", c.name, limited), func(t *testing.T) {
				attempts := 0
				tr := &throttle.Transport{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
					if attempts++; attempts == 1 {
						return nil, c.err
					}
					return (&once{script: []int{200}}).RoundTrip(r)
				})}
				if limited {
					tr.Limiter, _ = throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(10)}}, nil)
				}
				resp, err := retry.NewClient(tr).Do(request(t, "POST", nil))
				finish(t, resp)
				if attempts != c.attempts || c.attempts == 1 && !errors.Is(err, c.err) {
					t.Errorf("%d attempts, error %v; want %d", attempts, err, c.attempts)
				}
			})
		}
	}
}

// A server that speaks HTTP where the URL has HTTPS would do so again.
func TestSchemeMismatch(t *testing.T) {
	bubble(t, "GET", func(t *testing.T) {
		p := newProvider(t, "200")
		req := request(t, "GET", nil)
		req.URL.Scheme = "https"
		_, err := retry.NewClient(limited(t, p.transport)).Do(req)
		if n := p.attempts(); !errors.Is(err, http.ErrSchemeMismatch) || n != 1 {
			t.Errorf("%d attempts, error %v; want 1 and ErrSchemeMismatch", n, err)
		}
	})
}

// A reverse proxy forwards a server's requests, whose RequestURI is set.
func TestReverseProxy(t *testing.T) {
	bubble(t, "GET and POST", func(t *testing.T) {
		p := newProvider(t, "502", "200", "200")
		proxy := &httputil.ReverseProxy{
			Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "api.example" },
			Transport: retry.NewClient(limited(t, p.transport)).Transport,
		}
		for _, in := range []*http.Request{
			httptest.NewRequestWithContext(t.Context(), "GET", "/orders", nil),
			httptest.NewRequestWithContext(t.Context(), "POST", "/orders", strings.NewReader("order")),
		} {
			w := httptest.NewRecorder()
			if proxy.ServeHTTP(w, in); w.Code != 200 {
				t.Errorf("%s: status %d", in.Method, w.Code)
			}
		}
		if sent := p.arrived(); !slices.Equal(sent, []string{"", "", "order"}) {
			t.Errorf("bodies %q arrived", sent)
		}
	})
}

// Response.Request is the caller's request, as it is without retries. If the base sets another
// request, as a signer does, that one stays.
func TestResponseRequest(t *testing.T) {
	for _, body := range []io.Reader{nil, strings.NewReader("order"), stream{strings.NewReader("order")}} {
		bubble(t, fmt.Sprintf("%T", body), func(t *testing.T) {
			p := newProvider(t, "429 1", "200")
			req := request(t, "POST", body)
			resp, err := retry.NewClient(limited(t, p.transport)).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if finish(t, resp); resp.Request != req {
				t.Errorf("Response.Request is %p, want the caller's %p", resp.Request, req)
			}
		})
	}
	bubble(t, "signed", func(t *testing.T) {
		var signed *http.Request
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			signed = r.Clone(r.Context())
			signed.Header.Set("Authorization", "s")
			return (&once{script: []int{200}}).RoundTrip(signed)
		})
		resp, err := retry.NewClient(limited(t, base)).Do(request(t, "GET", nil))
		if err != nil || resp.Request != signed {
			t.Errorf("Response.Request is not the request of the base; error %v", err)
		}
	})
}

func TestPeersBodyNeverResentEmpty(t *testing.T) {
	const order = `{"buy":1}`
	errBody := errors.New("file is gone")
	for _, c := range []struct {
		name    string
		body    io.Reader
		getBody func() (io.ReadCloser, error) // if nil, as set by http.NewRequest
		script  []string
		sent    []string
		status  int
		err     error
	}{
		{name: "refused", body: strings.NewReader(order), script: []string{"429 1", "429", "200"}, sent: []string{order, order, order}, status: 200},
		{name: "a stream is sent once", body: stream{strings.NewReader(order)}, script: []string{"429 1", "200"}, sent: []string{order}, status: 429},
		{name: "a stream that can't connect", body: stream{strings.NewReader(order)}, script: []string{"dial", "200"}, err: errDial},
		{name: "GetBody fails", body: strings.NewReader(order), script: []string{"429 1", "200"}, sent: []string{order}, err: errBody,
			getBody: func() (io.ReadCloser, error) { return nil, errBody }},
		{name: "GetBody returns nil", body: strings.NewReader(order), script: []string{"429 1", "200"}, sent: []string{order}, err: errors.ErrUnsupported,
			getBody: func() (io.ReadCloser, error) { return nil, nil }},
		{name: "GetBody returns NoBody", body: strings.NewReader(order), script: []string{"429 1", "200"}, sent: []string{order}, err: errors.ErrUnsupported,
			getBody: func() (io.ReadCloser, error) { return http.NoBody, nil }},
		{name: "no body", body: http.NoBody, script: []string{"429 1", "200"}, sent: []string{"", ""}, status: 200},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script...)
			req := request(t, "POST", c.body)
			if c.getBody != nil {
				req.GetBody = c.getBody
			}
			resp, err := retry.NewClient(limited(t, p.transport)).Do(req)
			if status, _ := finish(t, resp); status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			switch {
			case c.err == nil && err != nil || c.err != nil && err == nil:
				t.Errorf("error %v, want %v", err, c.err)
			case c.getBody != nil && !strings.Contains(err.Error(), "replaying the request body"):
				t.Errorf("error %q, want one that mentions the replay of the body", err)
			case c.err != nil && c.err != errors.ErrUnsupported && !errors.Is(err, c.err):
				t.Errorf("error %v, want %v", err, c.err)
			}
			if got := p.arrived(); !slices.Equal(got, c.sent) {
				t.Errorf("bodies %q arrived, want %q", got, c.sent)
			}
		})
	}
}

func TestBodiesAreClosedOnce(t *testing.T) {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name   string
		script []int
		change func(*http.Request, *throttle.Transport)
		max    int
		opened int
	}{
		{name: "success", script: []int{200}, opened: 1},
		{name: "refusals", script: []int{429, 429, 200}, opened: 3},
		{name: "refusals without end", script: []int{429}, max: 2, opened: 3},
		{name: "no retries", script: []int{429}, max: -1, opened: 1},
		{name: "an error", script: []int{0}, opened: 1},
		{name: "errors of a PUT", script: []int{0, 0, 200}, opened: 3, change: func(r *http.Request, _ *throttle.Transport) { r.Method = "PUT" }},
		{name: "redirect for the caller", script: []int{307}, opened: 1, change: func(r *http.Request, _ *throttle.Transport) { r.Header.Set("Idempotency-Key", "k1") }},
		{name: "never admitted", script: []int{200}, opened: 1, change: func(_ *http.Request, tr *throttle.Transport) {
			tr.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"requests": 1 << 40} }
		}},
		{name: "context ended", script: []int{200}, opened: 1, change: func(r *http.Request, _ *throttle.Transport) { *r = *r.WithContext(expired) }},
		{name: "stream", script: []int{429}, opened: 1, change: func(r *http.Request, _ *throttle.Transport) { r.GetBody = nil }},
		{name: "never started", script: []int{200}, opened: 1, change: func(r *http.Request, _ *throttle.Transport) { r.RequestURI = "/x" }},
		{name: "no URL", script: []int{200}, opened: 1, change: func(r *http.Request, _ *throttle.Transport) { r.URL = nil }},
	} {
		bubble(t, c.name, func(t *testing.T) {
			b := &bodies{text: "order"}
			req := request(t, "POST", nil)
			req.Body, _ = b.open()
			req.GetBody = b.open
			tr := limited(t, &once{script: c.script})
			if c.change != nil {
				c.change(req, tr)
			}
			resp, _ := retry.Config{Transport: tr, Max: c.max}.Client().Transport.RoundTrip(req)
			finish(t, resp)
			for i, n := range b.closed {
				if n != 1 {
					t.Errorf("body %d was closed %d times", i, n)
				}
			}
			if len(b.closed) != c.opened {
				t.Errorf("%d bodies opened, want %d", len(b.closed), c.opened)
			}
		})
	}
	bubble(t, "net/http", func(t *testing.T) {
		b := &bodies{text: "order"}
		p := newProvider(t, "dial", "429 1", "502", "reset", "307 /elsewhere", "429", "200")
		req := request(t, "PUT", nil)
		req.Body, _ = b.open()
		req.GetBody, req.ContentLength = b.open, int64(len(b.text))
		resp, err := retry.NewClient(limited(t, p.transport)).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		finish(t, resp)
		synctest.Wait()
		if i := slices.Index(b.closed, 0); i >= 0 || len(b.closed) != 7 { // net/http closes some twice
			t.Errorf("bodies were closed %v times, want 7 bodies that are all closed", b.closed)
		}
		if sent := p.arrived(); len(sent) != 6 || slices.ContainsFunc(sent, func(s string) bool { return s != b.text }) {
			t.Errorf("bodies %q arrived", sent)
		}
	})
}

func TestLastResponse(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		max          int
		text         string
	}{
		{"default", "429", 0, "answer 5"},
		{"two retries", "502", 2, "answer 3"},
		{"no retries", "429 5", -1, "answer 1"},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.answer)
			client := retry.Config{Transport: limited(t, p.transport), Max: c.max}.Client()
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			if status, text := finish(t, resp); text != c.text || c.answer[:3] != resp.Status[:3] {
				t.Errorf("got %d %q, want %s %q", status, text, c.answer, c.text)
			}
		})
	}
}

// If the limiter does not admit another attempt, the caller receives the provider's last answer as
// a whole.
func TestLastResponseIfNextIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		script []string
		policy throttle.Policy
		within time.Duration // of the context. If zero, no deadline
		status int
		text   string
		took   time.Duration
	}{
		{name: "beyond the deadline", script: []string{"429 5", "200"}, within: 3 * time.Second, status: 429, text: "answer 1"},
		{name: "beyond MaxPause", script: []string{"429 7200", "200"}, status: 429, text: "answer 1"},
		{name: "beyond MaxWait", script: []string{"429 3700", "200"}, policy: throttle.Policy{MaxPause: 2 * time.Hour, MaxWait: time.Hour}, status: 429, text: "answer 1"},
		{name: "a pause of unknown length beyond the deadline", script: []string{"429", "200"}, within: time.Second, status: 429, text: "answer 1"},
		{name: "no quota before the deadline", script: []string{"502", "502", "200"}, policy: throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(2)}}, within: time.Minute, status: 502, text: "answer 2", took: 3 * time.Second},
		{name: "the budget is used up", script: []string{"502", "200"}, policy: throttle.Policy{Tiers: []throttle.Tier{throttle.Budget(1, "requests", throttle.Day)}}, status: 502, text: "answer 1", took: time.Second},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script...)
			tr := limited(t, p.transport)
			if c.policy.Name = "api"; c.policy.Tiers == nil {
				c.policy.Tiers = []throttle.Tier{throttle.PerSecond(10)}
			}
			tr.Limiter, _ = throttle.New(c.policy, nil)
			ctx, cancel := context.WithCancel(t.Context())
			if c.within > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), c.within)
			}
			defer cancel()
			req := request(t, "GET", nil).WithContext(ctx)
			resp, err := retry.NewClient(tr).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if status, text := finish(t, resp); status != c.status || text != c.text || resp.Request != req {
				t.Errorf("got %d %q, want %d %q", status, text, c.status, c.text)
			}
			if took := time.Since(p.start); took != c.took {
				t.Errorf("took %v, want %v", took, c.took)
			}
		})
	}
	bubble(t, "too long to keep", func(t *testing.T) {
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"7200"}}, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 1<<17))), Request: r}, nil
		})
		if _, err := retry.NewClient(limited(t, base)).Do(request(t, "GET", nil)); !errors.Is(err, throttle.ErrBanned) {
			t.Errorf("error %v, want ErrBanned", err)
		}
	})
	bubble(t, "the last error", func(t *testing.T) {
		p := newProvider(t, "reset", "200")
		tr := limited(t, p.transport)
		tr.Limiter, _ = throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}, MaxWait: time.Minute}, nil)
		_, err := retry.NewClient(tr).Do(request(t, "GET", nil))
		if !errors.Is(err, io.EOF) || !errors.Is(err, throttle.ErrDeadline) || !strings.Contains(err.Error(), "gave up after 1 attempt:") {
			t.Errorf("error %v, want the lost connection and the refusal", err)
		}
	})
}

// No attempt begins after SendBy, when the signature of the request has expired.
func TestSendBy(t *testing.T) {
	for _, c := range []struct {
		name     string
		script   []string
		by       time.Duration // from the start. If zero, no bound
		attempts int
		status   int
		took     time.Duration
	}{
		{"back-off", []string{"502"}, 2 * time.Second, 2, 502, time.Second},
		{"back-off until exactly SendBy", []string{"502"}, time.Second, 1, 502, 0},
		{"no bound", []string{"502"}, 0, 5, 502, 15 * time.Second},
		{"a pause that ends later", []string{"429 5", "200"}, 3 * time.Second, 1, 429, 0},
		{"a pause that ends before", []string{"429 2", "200"}, 3 * time.Second, 2, 200, 2 * time.Second},
		{"no connection", []string{"dial"}, 2 * time.Second, 2, 0, time.Second},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script...)
			tr := limited(t, p.transport)
			var by time.Time
			if c.by > 0 {
				by = p.start.Add(c.by)
			}
			tr.SendBy = func(*http.Request) time.Time { return by }
			resp, err := retry.NewClient(tr).Do(request(t, "GET", nil))
			if status, _ := finish(t, resp); status != c.status || (status == 0) != errors.Is(err, errDial) {
				t.Errorf("status %d, error %v; want %d", status, err, c.status)
			}
			if n, took := p.attempts(), time.Since(p.start); n != c.attempts || took != c.took {
				t.Errorf("%d attempts in %v, want %d in %v", n, took, c.attempts, c.took)
			}
		})
	}
}

func TestLastError(t *testing.T) {
	bubble(t, "wrapped", func(t *testing.T) {
		p := newProvider(t, "dial")
		req := request(t, "GET", nil)
		req.URL, _ = url.Parse("http://user:hunter2@api.example/orders")
		_, err := retry.NewClient(limited(t, p.transport)).Do(req)
		if !errors.Is(err, errDial) {
			t.Errorf("error %v, want one that wraps %v", err, errDial)
		}
		if s := err.Error(); !strings.Contains(s, "gave up after 5 attempts") || strings.Contains(s, "hunter2") || strings.Count(s, "http://") != 1 {
			t.Errorf("error is %q", s)
		}
		if took := time.Since(p.start); took != 15*time.Second {
			t.Errorf("took %v, want 1 + 2 + 4 + 8 s", took)
		}
	})
	bubble(t, "a timeout stays a timeout", func(t *testing.T) {
		p := newProvider(t, "hang")
		tr := limited(t, p.transport)
		tr.AttemptTimeout = time.Second
		_, err := retry.Config{Transport: tr, Max: 1}.Client().Do(request(t, "GET", nil))
		var u *url.Error
		if !errors.As(err, &u) || !u.Timeout() {
			t.Errorf("error %v, want a timeout", err)
		}
	})
	bubble(t, "unchanged without retries", func(t *testing.T) {
		p := newProvider(t, "reset")
		_, err := retry.NewClient(limited(t, p.transport)).Do(request(t, "POST", nil))
		if u := errors.Unwrap(err); u != io.EOF {
			t.Errorf("error %v, want io.EOF in an url.Error", err)
		}
		_, err = retry.Config{Transport: limited(t, p.transport), Max: -1}.Client().Do(request(t, "GET", nil))
		if u := errors.Unwrap(err); u != io.EOF {
			t.Errorf("error %v, want io.EOF in an url.Error", err)
		}
	})
}

func TestAttemptTimeout(t *testing.T) {
	for method, attempts := range map[string]int{"GET": 2, "POST": 1} {
		bubble(t, method, func(t *testing.T) {
			p := newProvider(t, "hang", "200")
			tr := limited(t, p.transport)
			tr.AttemptTimeout = time.Second
			resp, _ := retry.NewClient(tr).Do(request(t, method, nil))
			finish(t, resp)
			if n := p.attempts(); n != attempts {
				t.Errorf("%d attempts, want %d", n, attempts)
			}
		})
	}
}

func TestOwnErrors(t *testing.T) {
	cost := func(c throttle.Cost) func(*throttle.Transport) {
		return func(tr *throttle.Transport) { tr.Cost = func(*http.Request) throttle.Cost { return c } }
	}
	errBase := &throttle.WaitError{Err: throttle.ErrQueueFull}
	for _, c := range []struct {
		name   string
		script []string
		change func(*throttle.Transport)
		want   error // if nil, any
		sent   int
	}{
		{name: "never", script: []string{"200"}, change: cost(throttle.Cost{"requests": 5000}), want: throttle.ErrExceedsCapacity},
		{name: "a wrong Cost", script: []string{"200"}, change: cost(throttle.Cost{"tokens": 1})},
		{name: "banned", script: []string{"200"}, want: throttle.ErrBanned, change: func(tr *throttle.Transport) {
			tr.Limiter, _ = throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1)}}, nil)
			base := roundTripper(func(r *http.Request) (*http.Response, error) { return (&once{script: []int{403}}).RoundTrip(r) })
			banned := &throttle.Transport{Limiter: tr.Limiter, Base: base, Profile: &answers.Profile{Rules: []answers.Rule{{Status: 403, Kind: answers.Banned}}}}
			req, _ := http.NewRequest("GET", target, nil)
			banned.RoundTrip(req)
		}},
		{name: "of a Transport below", script: []string{"200"}, want: throttle.ErrQueueFull, change: func(tr *throttle.Transport) {
			tr.Base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errBase })
		}},
		{name: "canceled below", script: []string{"200"}, want: context.Canceled, change: func(tr *throttle.Transport) {
			tr.Base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, context.Canceled })
		}},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script...)
			tr := limited(t, p.transport)
			if c.change != nil {
				c.change(tr)
			}
			_, err := retry.NewClient(tr).Do(request(t, "GET", nil))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if _, ok := err.(*url.Error); !ok || strings.Contains(err.Error(), "gave up") {
				t.Errorf("error %q, want it unchanged", err)
			}
			if n := p.attempts(); n != c.sent {
				t.Errorf("%d requests were sent, want %d", n, c.sent)
			}
			if took := time.Since(p.start); took != 0 {
				t.Errorf("took %v, want 0", took)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestEveryAttemptPassesTheLimiter(t *testing.T) {
	bubble(t, "2/s", func(t *testing.T) {
		p := newProvider(t, "502", "502", "200", "429 0.4", "200", "200")
		tr := limited(t, p.transport)
		tr.Limiter, _ = throttle.New(throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Window: 5 * time.Second}}}, nil)
		client := retry.NewClient(tr)
		for range 2 {
			resp, err := client.Do(request(t, "GET", nil))
			if err != nil {
				t.Fatal(err)
			}
			finish(t, resp)
		}
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second}
		if !slices.Equal(p.at, want) {
			t.Errorf("sent at %v, want %v", p.at, want)
		}
	})
}

// A response that is not returned is closed. Otherwise it would hold its permit forever.
func TestIntermediateResponsesAreClosed(t *testing.T) {
	bubble(t, "concurrency of one", func(t *testing.T) {
		p := newProvider(t, "429 1", "502", "200")
		tr := limited(t, p.transport)
		tr.Limiter, _ = throttle.New(throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, nil)
		resp, err := retry.NewClient(tr).Do(request(t, "GET", nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, text := finish(t, resp); text != "answer 3" {
			t.Errorf("got %q", text)
		}
	})
}

// Without a limiter there are no pauses, and the client has to wait itself.
func TestWithoutLimiter(t *testing.T) {
	transports := map[string]func(http.RoundTripper) *throttle.Transport{
		"zero": func(p http.RoundTripper) *throttle.Transport { return &throttle.Transport{Base: p} },
		"nil from Route": func(p http.RoundTripper) *throttle.Transport {
			tr := limited(t, p)
			tr.Route = func(*http.Request) *throttle.Limiter { return nil }
			return tr
		},
	}
	for name, transport := range transports {
		for _, c := range []struct {
			answer string
			status int
			took   time.Duration
		}{
			{"429 3", 200, 3 * time.Second},
			{"429", 200, time.Second},
			{"429 30", 200, 30 * time.Second},
			{"429 31", 429, 0},
			{"429 484289", 429, 0},
		} {
			bubble(t, name+" "+c.answer, func(t *testing.T) {
				p := newProvider(t, c.answer, "200")
				resp, err := retry.NewClient(transport(p.transport)).Do(request(t, "POST", nil))
				if err != nil {
					t.Fatal(err)
				}
				if status, _ := finish(t, resp); status != c.status {
					t.Errorf("status %d, want %d", status, c.status)
				}
				if took := time.Since(p.start); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
			})
		}
	}
}

func TestContext(t *testing.T) {
	for _, c := range []struct {
		name   string
		script string
		ends   time.Duration
		by     error // context.Canceled, or DeadlineExceeded if the deadline is known before
		status int
		want   error
		took   time.Duration
	}{
		{name: "canceled between attempts", script: "502", ends: 500 * time.Millisecond, by: context.Canceled, want: context.Canceled, took: 500 * time.Millisecond},
		{name: "canceled while paused", script: "429 5", ends: 2 * time.Second, by: context.Canceled, want: context.Canceled, took: 2 * time.Second},
		{name: "canceled on the wire", script: "hang", ends: time.Second, by: context.Canceled, want: context.Canceled, took: time.Second},
		{name: "deadline before the next attempt", script: "502", ends: 900 * time.Millisecond, by: context.DeadlineExceeded, status: 502},
		{name: "deadline before the pause ends", script: "429 5", ends: 3 * time.Second, by: context.DeadlineExceeded, status: 429},
	} {
		bubble(t, c.name, func(t *testing.T) {
			p := newProvider(t, c.script)
			ctx, cancel := context.WithCancel(t.Context())
			if c.by == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(t.Context(), c.ends)
			} else {
				time.AfterFunc(c.ends, cancel)
			}
			defer cancel()
			resp, err := retry.NewClient(limited(t, p.transport)).Do(request(t, "GET", nil).WithContext(ctx))
			if status, _ := finish(t, resp); status != c.status || !errors.Is(err, c.want) {
				t.Errorf("status %d, error %v; want %d, %v", status, err, c.status, c.want)
			}
			if took := time.Since(p.start); took != c.took || p.attempts() != 1 {
				t.Errorf("%d attempts in %v, want 1 in %v", p.attempts(), took, c.took)
			}
		})
	}
}

func TestResponseAtEndOfContext(t *testing.T) {
	for _, status := range []int{429, 502} {
		ctx, cancel := context.WithCancel(t.Context())
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			defer cancel()
			return (&once{script: []int{status}}).RoundTrip(r)
		})
		resp, err := retry.NewClient(limited(t, base)).Do(request(t, "GET", nil).WithContext(ctx))
		if err != nil {
			t.Errorf("error %v, want the response %d", err, status)
		}
		finish(t, resp)
	}
}

func TestClientKeepsItsOwnFields(t *testing.T) {
	bubble(t, "Timeout covers all attempts", func(t *testing.T) {
		p := newProvider(t, "reset", "reset", "hang")
		client := retry.NewClient(limited(t, p.transport))
		client.Timeout = 10 * time.Second
		_, err := client.Do(request(t, "GET", nil))
		var u *url.Error
		if took := time.Since(p.start); took != client.Timeout || !errors.As(err, &u) || !u.Timeout() {
			t.Errorf("took %v, error %v", took, err)
		}
	})
	bubble(t, "redirects", func(t *testing.T) {
		p := newProvider(t, "307 /a", "429 1", "307 /b", "200")
		client := retry.NewClient(limited(t, p.transport))
		var seen []string
		client.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
			seen = append(seen, r.URL.Path)
			return nil
		}
		resp, err := client.Do(request(t, "POST", strings.NewReader("order")))
		if err != nil {
			t.Fatal(err)
		}
		finish(t, resp)
		if sent := p.arrived(); !slices.Equal(seen, []string{"/a", "/b"}) || !slices.Equal(sent, []string{"order", "order", "order", "order"}) {
			t.Errorf("redirects %v, bodies %q", seen, sent)
		}
	})
}

// idle counts calls of CloseIdleConnections.
type idle struct {
	once
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestCloseIdleConnections(t *testing.T) {
	bubble(t, "reaches the base", func(t *testing.T) {
		base := &idle{once: once{script: []int{0}}}
		client := retry.NewClient(limited(t, base))
		if _, err := client.Do(request(t, "GET", nil)); err == nil || base.closed != 0 {
			t.Errorf("error %v; a failed request closed idle connections %d times", err, base.closed)
		}
		if client.CloseIdleConnections(); base.closed != 1 {
			t.Errorf("closed %d times, want 1", base.closed)
		}
	})
}

func TestLog(t *testing.T) {
	bubble(t, "no secrets", func(t *testing.T) {
		var log bytes.Buffer
		p := newProvider(t, "429 1", "dial")
		req := request(t, "GET", nil)
		req.URL, _ = url.Parse("http://user:hunter2@api.example/bot-token?key=s3cr3t")
		config := retry.Config{Transport: limited(t, p.transport), Max: 2, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if _, err := config.Client().Do(req); err == nil {
			t.Error("no error")
		}
		want := []string{
			`level=INFO msg="retry: sending again" wait=0s status=429 attempt=1 method=GET host=api.example`,
			`level=INFO msg="retry: sending again" wait=2s error="no route to provider" attempt=2 method=GET host=api.example`,
			`level=WARN msg="retry: giving up" error="no route to provider" attempt=3 method=GET host=api.example`,
		}
		for i, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
			if _, line, _ = strings.Cut(line, " "); i >= len(want) || line != want[i] {
				t.Errorf("line %d: %s", i, line)
			}
		}
	})
}

func TestQuiet(t *testing.T) {
	if os.Getenv("RETRY_TEST_QUIET") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestQuiet$")
		cmd.Env = append(os.Environ(), "RETRY_TEST_QUIET=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil || stderr.Len() > 0 {
			t.Errorf("error %v, stderr %q, stdout %q", err, stderr.String(), out)
		}
		return
	}
	bubble(t, "child", func(t *testing.T) {
		p := newProvider(t, "429 1", "502", "dial")
		if _, err := retry.NewClient(limited(t, p.transport)).Do(request(t, "GET", nil)); err == nil {
			t.Error("no error")
		}
	})
}

func TestZeroConfig(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer server.Close()
	for name, client := range map[string]*http.Client{"nil": retry.NewClient(nil), "zero": retry.NewClient(&throttle.Transport{}), "Config": retry.Config{}.Client()} {
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if status, _ := finish(t, resp); status != http.StatusTeapot {
			t.Errorf("%s: status %d", name, status)
		}
	}
}

func TestCertificateErrorsAreNotRetried(t *testing.T) {
	calls := 0
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	defer server.Close()
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		calls++
		return http.DefaultTransport.RoundTrip(r)
	})
	if _, err := retry.NewClient(limited(t, base)).Get(server.URL); err == nil || calls != 1 {
		t.Errorf("error %v after %d calls, want one call", err, calls)
	}
	calls = 0
	if _, err := retry.NewClient(limited(t, base)).Get("gopher://api.example"); err == nil || calls != 1 {
		t.Errorf("error %v after %d calls, want one call", err, calls)
	}
}
