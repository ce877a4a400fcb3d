package proxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/cmd/throttle/internal/proxy"
	"github.com/apithrottle/throttle/providers"
)

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestRefusals checks status, reason, Retry-After and the headers that keep SDKs from trying again.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		before     int // requests that are admitted
		headers    []string
		cost       int64
		status     int
		reason     string
		tier       string
		least      time.Duration // Retry-After
		most       time.Duration
		pointless  bool
	}{
		{"max_wait", "1/h | max_wait=1s", 1, nil, 1, 429, "deadline", "1/h", 59 * time.Minute, time.Hour + time.Second, true},
		{"X-Throttle-Max-Wait", "1/30s", 1, []string{"X-Throttle-Max-Wait: 1s"}, 1, 429, "deadline", "1/30s", 20 * time.Second, 31 * time.Second, false},
		{"no wait", "1/30s", 1, []string{"X-Throttle-Max-Wait: 0"}, 1, 429, "deadline", "1/30s", 20 * time.Second, 31 * time.Second, false},
		{"exceeds_capacity", "3/h", 0, nil, 4, 422, "exceeds_capacity", "3/h", 0, 0, true},
		{"budget", "1/month;budget=true", 1, nil, 1, 429, "exhausted", "1/month;budget=true", time.Second, 32 * 24 * time.Hour, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent := 0
			b := start(t, func(http.ResponseWriter, *http.Request) { sent++ }, proxy.Options{}, func(b *bench) proxy.Table {
				r := b.route(test.spec)
				r.Transport.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"requests": test.cost} }
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			for range test.before {
				if resp := b.do("GET", "/api/x", nil, test.headers...); resp.StatusCode != 200 {
					t.Errorf("status %d, want 200: %s", resp.StatusCode, text(t, resp))
				}
			}
			resp := b.do("POST", "/api/x", strings.NewReader("body"), test.headers...)
			p := problemOf(t, resp)
			if p.Status != test.status || p.Reason != test.reason || p.Tier != test.tier || p.Policy != "test" {
				t.Errorf("%+v", p)
			}
			if h := resp.Header; h.Get("X-Throttle-Policy") != "test" || h.Get("X-Throttle-Tier") != test.tier || h.Get("X-Throttle-Waited") != "0.000" {
				t.Errorf("header %v", h)
			}
			after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			if got := time.Duration(after) * time.Second; got < test.least || got > test.most || float64(after) < p.Wait {
				t.Errorf("Retry-After %v, wait %v, want %v to %v", got, p.Wait, test.least, test.most)
			}
			if pointless := resp.Header.Get("X-Should-Retry") == "false"; pointless != test.pointless {
				t.Errorf("X-Should-Retry: false is %v, want %v", pointless, test.pointless)
			}
			if test.reason == "exhausted" {
				if until, err := time.Parse(time.RFC3339, p.Until); err != nil || until.Day() != 1 {
					t.Errorf("until %q, want the first of the next month", p.Until)
				}
			}
			if sent != test.before {
				t.Errorf("the upstream received %d requests, want %d", sent, test.before)
			}
		})
	}
}

func TestQueueFull(t *testing.T) {
	b := start(t, echo, proxy.Options{}, single("1/h | max_queue=1"))
	text(t, b.do("GET", "/api/x", nil))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go b.try(ctx, "GET", "/api/x", nil)
	<-b.queued
	p := problemOf(t, b.do("GET", "/api/x", nil))
	if p.Status != 429 || p.Reason != "queue_full" {
		t.Errorf("%+v", p)
	}
	cancel()
	for i := range b.refused {
		if errors.Is(i.Err, context.Canceled) {
			break
		}
	}
}

// TestBanned checks that the proxy refuses once the API has closed the quota, and that the refusal of
// the API itself reaches the client.
func TestBanned(t *testing.T) {
	b := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(429)
		_, _ = io.WriteString(w, "of the API")
	}, proxy.Options{}, single("5/s"))
	if resp := b.do("GET", "/api/x", nil); resp.StatusCode != 429 || text(t, resp) != "of the API" || resp.Header.Get("Retry-After") != "7200" {
		t.Errorf("status %d, header %v", resp.StatusCode, resp.Header)
	}
	resp := b.do("GET", "/api/x", nil)
	p := problemOf(t, resp)
	if after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); p.Status != 429 || p.Reason != "banned" || p.Until == "" || after < 7100 || after > 7201 {
		t.Errorf("Retry-After %d, %+v", after, p)
	}
}

// TestUpstreamFails checks statuses of requests whose upstream does not respond, and that nothing
// which the upstream or the store has said is shown or logged.
func TestUpstreamFails(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 100))
			_, _ = io.WriteString(c, "canary garbage\r\n\r\n")
			c.Close()
		}
	}()
	for _, test := range []struct {
		name   string
		change func(r *proxy.Route)
		status int
		reason string
	}{
		{"closed port", func(r *proxy.Route) { r.Upstream = parseURL(t, "http://"+closed.Addr().String()) }, 502, "unreachable"},
		{"garbage", func(r *proxy.Route) { r.Upstream = parseURL(t, "http://"+garbage.Addr().String()) }, 502, "unreachable"},
		{"TLS without a certificate", func(r *proxy.Route) { r.Upstream = parseURL(t, "https://"+r.Upstream.Host) }, 502, "unreachable"},
		{"timeout", func(r *proxy.Route) { r.Transport.AttemptTimeout = time.Millisecond }, 504, "timeout"},
		{"store away", func(r *proxy.Route) {
			r.Transport.Base = roundTripFunc(func(*http.Request) (*http.Response, error) {
				return nil, &throttle.WaitError{Policy: "test", Err: throttle.ErrUnavailable, Cause: errors.New("canary")}
			})
		}, 503, "unavailable"},
		{"closed limiter", func(r *proxy.Route) { r.Transport.Limiter.Close() }, 503, "closed"},
		{"unknown error", func(r *proxy.Route) {
			r.Transport.Base = roundTripFunc(func(*http.Request) (*http.Response, error) { return nil, errors.New("canary") })
		}, 502, "unreachable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := start(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, proxy.Options{AccessLog: true}, func(b *bench) proxy.Table {
				r := b.route(plenty)
				test.change(&r)
				return proxy.Table{Routes: []proxy.Route{r}}
			})
			resp := b.do("GET", "/api/canary?canary", nil)
			p := problemOf(t, resp)
			if p.Status != test.status || p.Reason != test.reason {
				t.Errorf("%+v", p)
			}
			if strings.Contains(p.Detail, "canary") || strings.Contains(b.log.String(), "canary") {
				t.Errorf("the canary is shown: %+v\n%s", p, b.log)
			}
			if again := resp.Header.Get("Retry-After") != ""; again != (p.Status == 503) {
				t.Errorf("Retry-After %q", resp.Header.Get("Retry-After"))
			}
		})
	}
}

// TestUnusableQuota checks that a request whose quota cannot be used is not reported as a failure of the API, and
// that the log alone has the cause.
func TestUnusableQuota(t *testing.T) {
	b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.Transport.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"fathoms": 1} }
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	resp := b.do("GET", "/api/x", nil)
	p := problemOf(t, resp)
	if p.Status != 503 || p.Reason != "error" || p.Policy != "test" || resp.Header.Get("Retry-After") != "5" || strings.Contains(p.Detail, "fathoms") {
		t.Errorf("%+v", p)
	}
	if log := b.log.String(); !strings.Contains(log, "a quota cannot be used") || !strings.Contains(log, "fathoms") {
		t.Errorf("the log is %s", log)
	}
}

// TestTLS checks that the certificate of an upstream is verified.
func TestTLSIsVerified(t *testing.T) {
	if c := proxy.NewBase(0, 0).TLSClientConfig; c.InsecureSkipVerify || c.RootCAs != nil {
		t.Error("certificates are not verified against the roots of the system")
	}
}

// TestPanic checks that a request whose handling panics ends alone, and that the value of the panic is
// not logged.
func TestPanic(t *testing.T) {
	b := start(t, echo, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route(plenty)
		r.Transport.Cost = func(req *http.Request) throttle.Cost {
			if strings.HasSuffix(req.URL.Path, "panic") {
				panic("canary")
			}
			return nil
		}
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	if resp, err := b.try(t.Context(), "GET", "/api/panic", nil); err == nil {
		t.Errorf("status %d, want a closed connection", resp.StatusCode)
	}
	if resp := b.do("GET", "/api/x", nil); resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
	if log := b.log.String(); strings.Contains(log, "canary") || !strings.Contains(log, "a request panicked") {
		t.Errorf("the log is %s", log)
	}
}

// TestModelWithoutPrice checks that a request to a model without a price is not sent, and that the client learns
// which model it is and that another attempt is pointless.
func TestModelWithoutPrice(t *testing.T) {
	sent := 0
	b := start(t, func(http.ResponseWriter, *http.Request) { sent++ }, proxy.Options{}, func(b *bench) proxy.Table {
		r := b.route("5/s")
		spending := &providers.Spending{Prices: providers.PriceList{{API: "openai", Model: "known"}}, Limiter: b.limiter("$5/month")}
		if err := spending.Limit(r.Transport, "openai"); err != nil {
			t.Fatal(err)
		}
		return proxy.Table{Routes: []proxy.Route{r}}
	})
	resp := b.do("POST", "/api/v1/responses", strings.NewReader(`{"model":"other"}`))
	p := problemOf(t, resp)
	const detail = `No price is known, and the route has a budget in dollars: openai has none for "other". Add one to prices of the route, or an unknown_model there.`
	if p.Status != 422 || p.Reason != "no_price" || p.Detail != detail || resp.Header.Get("X-Should-Retry") != "false" || sent > 0 {
		t.Errorf("%d requests were sent, X-Should-Retry is %q: %+v", sent, resp.Header.Get("X-Should-Retry"), p)
	}
	if resp := b.do("POST", "/api/v1/responses", strings.NewReader(`{"model":"known"}`)); resp.StatusCode != 200 || sent != 1 {
		t.Errorf("status %d, %d requests sent; want 200 and 1: %s", resp.StatusCode, sent, text(t, resp))
	}
}
