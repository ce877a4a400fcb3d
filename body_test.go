package throttle_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// readsBodies is a profile for which the Transport reads the beginning of each body.
var readsBodies = &answers.Profile{Quotas: []answers.Quota{{Remaining: answers.Field{Path: "left"}}}}

// A trickle is an endless body that returns one byte per interval.
type trickle struct {
	every  time.Duration
	closed chan struct{}
}

func (b trickle) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.every):
		return copy(p, " "), nil
	case <-b.closed:
		return 0, io.ErrClosedPipe
	}
}

func (b trickle) Close() error { close(b.closed); return nil }

// TestPeekIsBounded checks that reading the beginning of a body takes a bounded time, however slow
// the server is, and that the caller reads all of the body.
func TestPeekIsBounded(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(5)}}, nil)
			tr := &throttle.Transport{Limiter: l, Profile: readsBodies, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				resp := trAnswer(200, "Content-Type", "application/json")
				resp.Body = trickle{every, make(chan struct{})}
				return resp, nil
			})}
			began := time.Now()
			resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
			if took := time.Since(began); err != nil || took > 2*time.Second {
				t.Errorf("a byte every %v: RoundTrip: %v after %v, want nil by 2s", every, err, took)
			}
			if n, err := io.ReadFull(resp.Body, make([]byte, 100)); n != 100 || err != nil {
				t.Errorf("a byte every %v: read %d bytes, %v; want 100", every, n, err)
			}
			if took := time.Since(began); took > 100*every+2*time.Second {
				t.Errorf("a byte every %v: 100 bytes were read after %v", every, took)
			}
			resp.Body.Close()
		})
	}
}

// A panicBody panics when it is read.
type panicBody struct{ closed *int }

func (panicBody) Read([]byte) (int, error) { panic("body") }
func (b panicBody) Close() error           { *b.closed++; return nil }

// TestPeekOfABodyThatPanics checks that the panic of a body occurs in the goroutine of RoundTrip or
// of the reader, which can recover it.
func TestPeekOfABodyThatPanics(t *testing.T) {
	l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}}}, nil)
	closed := 0
	tr := &throttle.Transport{Limiter: l, Profile: readsBodies, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		resp := trAnswer(200, "Content-Type", "application/json")
		resp.Body = panicBody{&closed}
		return resp, nil
	})}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic, want one")
			}
		}()
		resp, err := tr.RoundTrip(httptest.NewRequest("GET", trURL, nil))
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		_, _ = io.ReadAll(resp.Body)
	}()
	if got := used(t, l)[0]; got != 0 {
		t.Errorf("%d requests are open, want 0", got)
	}
}

// TestPanics checks that a panic of a Transport's function leaves nothing open or charged, and that
// other requests are still admitted.
func TestPanics(t *testing.T) {
	boom := func() { panic("boom") }
	for name, make := range map[string]func(*throttle.Transport){
		"Cost":   func(tr *throttle.Transport) { tr.Cost = func(*http.Request) throttle.Cost { boom(); return nil } },
		"Route":  func(tr *throttle.Transport) { tr.Route = func(*http.Request) *throttle.Limiter { boom(); return nil } },
		"SendBy": func(tr *throttle.Transport) { tr.SendBy = func(*http.Request) time.Time { boom(); return time.Time{} } },
		"Meter":  func(tr *throttle.Transport) { tr.Meter = func(*http.Response) throttle.Meter { boom(); return nil } },
		"Base": func(tr *throttle.Transport) {
			tr.Base = roundTripper(func(r *http.Request) (*http.Response, error) { r.Body.Close(); boom(); return nil, nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := throttle.Policy{Name: "api", Tiers: []throttle.Tier{
					{Limit: 1, Algorithm: throttle.Concurrency},
					{Limit: 1000, Window: time.Hour, Unit: "tokens", Estimated: true},
				}}
				l := mustNew(t, policy, nil)
				answered := &trBody{Reader: strings.NewReader("answer")}
				tr := &throttle.Transport{Limiter: l, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
					r.Body.Close()
					resp := trAnswer(200)
					resp.Body = answered
					return resp, nil
				})}
				make(tr)
				body := &trBody{Reader: strings.NewReader("question")}
				req, _ := http.NewRequest("POST", trURL, body)
				func() {
					defer func() {
						if recover() == nil {
							t.Error("no panic, want one")
						}
					}()
					_, _ = tr.RoundTrip(req)
				}()
				if n := body.closed.Load(); n != 1 {
					t.Errorf("the request's body was closed %d times, want 1", n)
				}
				if n := answered.closed.Load(); name == "Meter" && n != 1 {
					t.Errorf("the response's body was closed %d times, want 1", n)
				}
				acquire(t, l, nil).Release()
			})
		})
	}
}

// TestAlertPanics checks that a panic of Alert sends and charges nothing, also if the Alert is an
// outer scope's, and that other callers are still admitted.
func TestAlertPanics(t *testing.T) {
	for _, nested := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := throttle.Policy{
				Name: "money", Tiers: []throttle.Tier{throttle.PerSecond(1), throttle.Budget(10, "cents", throttle.Month), {Limit: 1, Algorithm: throttle.Concurrency}},
				AlertAt: []int{30}, Alert: func(throttle.Alert) { panic("alert") },
			}
			l := mustNew(t, p, nil)
			if nested {
				l = mustNew(t, throttle.Policy{Name: "inner", Tiers: []throttle.Tier{throttle.PerSecond(5)}}, nil).Within(l)
			}
			panics := 0
			for range 6 {
				func() {
					defer func() {
						if recover() != nil {
							panics++
						}
					}()
					p, err := l.Acquire(t.Context(), throttle.Cost{"cents": 1})
					if err != nil {
						t.Errorf("nested: %v: Acquire: %v", nested, err)
					}
					p.Arrived()
					p.Release()
				}()
			}
			if panics != 1 {
				t.Errorf("nested: %v: %d panics, want 1", nested, panics)
			}
			s := status(t, l)
			if n := len(s.Tiers); s.Tiers[n-2].Used != 5 || s.Tiers[n-1].Used != 0 || s.Waiting != 0 {
				t.Errorf("nested: %v: status %v, want 5 cents used, none open, none waiting", nested, s)
			}
		})
	}
}

// TestUpgradeKeepsHalfClose checks that the body of a 101 response is still a connection whose
// writing side can be closed.
func TestUpgradeKeepsHalfClose(t *testing.T) {
	for name, p := range map[string]throttle.Policy{
		"plain":       {Tiers: []throttle.Tier{throttle.PerSecond(100)}},
		"concurrency": {Tiers: []throttle.Tier{{Limit: 5, Algorithm: throttle.Concurrency}}},
		"estimated":   {Tiers: []throttle.Tier{{Limit: 5, Window: time.Hour, Unit: "tokens", Estimated: true}, throttle.PerSecond(100)}},
	} {
		t.Run(name, func(t *testing.T) {
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, rw, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				all, err := io.ReadAll(rw) // until the half-close
				_, _ = conn.Write(bytes.ToUpper(all))
				if err != nil {
					t.Errorf("the backend reads %q, %v", all, err)
				}
			}))
			defer backend.Close()
			target, _ := url.Parse(backend.URL)
			base := new(http.Transport)
			defer base.CloseIdleConnections()
			proxy := httptest.NewServer(&httputil.ReverseProxy{
				Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
				Transport: &throttle.Transport{Limiter: mustNew(t, p, nil), Base: base, AttemptTimeout: time.Minute},
			})
			defer proxy.Close()
			conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			_, _ = io.WriteString(conn, "hello")
			_ = conn.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(r); string(got) != "HELLO" || err != nil {
				t.Errorf("after the half-close: %q, %v; want HELLO", got, err)
			}
		})
	}
}

// TestCostOfTheEmptyUnit checks that the unit "" of a Cost is requests, as in a Tier.
func TestCostOfTheEmptyUnit(t *testing.T) {
	l := mustNew(t, exact(throttle.PerHour(5)), nil)
	p, err := l.Acquire(context.Background(), throttle.Cost{"requests": 3})
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if got := used(t, l)[0]; got != 3 {
		t.Errorf("%d used, want 3", got)
	}
	if _, err := l.Acquire(context.Background(), throttle.Cost{"requests": 6}); !errors.Is(err, throttle.ErrExceedsCapacity) {
		t.Error(err)
	}
}

// TestBodyOfEndedContext checks that a body that nobody closes ends its attempt when the context of the
// request or AttemptTimeout ends, once, and that an upgraded connection lasts until it is closed.
func TestBodyOfEndedContext(t *testing.T) {
	const step = 100 * time.Millisecond
	for _, c := range []struct {
		name    string
		timeout time.Duration // AttemptTimeout
		ends    time.Duration // of the context
		client  time.Duration // Timeout of an http.Client
		status  int
		reads   bool
		want    time.Duration // when the place is free; zero for never
	}{
		{name: "the context ends", ends: time.Second, status: 200, want: time.Second},
		{name: "AttemptTimeout", timeout: time.Second, status: 200, want: time.Second},
		{name: "both", timeout: 2 * time.Second, ends: time.Second, status: 200, want: time.Second},
		{name: "Client.Timeout", client: time.Second, status: 200, want: time.Second},
		{name: "neither", status: 200},
		{name: "an upgrade", timeout: time.Second, ends: time.Second, status: 101},
		{name: "a body that was read", ends: time.Second, status: 200, reads: true, want: step},
	} {
		synctest.Test(t, func(t *testing.T) {
			var settled []throttle.SettledInfo
			l := mustNew(t, throttle.Policy{
				Tiers: []throttle.Tier{
					{Limit: 1, Algorithm: throttle.Concurrency},
					{Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true},
				},
				Observer: &throttle.Observer{Settled: func(i throttle.SettledInfo) { settled = append(settled, i) }},
			}, nil)
			base := roundTripper(func(*http.Request) (*http.Response, error) { return trAnswer(c.status), nil })
			tr := &throttle.Transport{
				Base: base, Limiter: l, AttemptTimeout: c.timeout,
				Cost: func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 5} },
			}
			ctx := context.Background()
			if c.ends > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.ends)
				defer cancel()
			}
			req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
			resp, err := (&http.Client{Transport: tr, Timeout: c.client}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if c.reads {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			began, free := time.Now(), time.Duration(0)
			for free == 0 && time.Since(began) < 10*time.Minute {
				time.Sleep(step)
				synctest.Wait()
				if s := status(t, l); s.Tiers[0].Used == 0 && s.Tiers[1].InFlight == 0 {
					free = time.Since(began)
				}
			}
			if free != c.want {
				t.Errorf("%s: the place and the estimate were held for %v, want %v", c.name, free, c.want)
			}
			resp.Body.Close()
			if s := status(t, l); s.Tiers[0].Used != 0 || s.Tiers[1].Used != 5 || len(settled) != 1 {
				t.Errorf("%s: after Close: %v, settled %v; want the estimate settled once", c.name, s, settled)
			}
		})
	}
}

// TestUpgradeOutlivesContext checks that a connection that net/http has upgraded works, and occupies its
// place, until it is closed, although the context of its request has ended.
func TestUpgradeOutlivesContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, conn)
	}))
	defer server.Close()
	l := mustNew(t, trAtOnce(1), nil)
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := (&throttle.Transport{Base: base, Limiter: l, AttemptTimeout: time.Hour}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range 5 {
		b := make([]byte, 5)
		if _, err := resp.Body.(io.Writer).Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "hello" {
			t.Fatalf("read %q, %v", b, err)
		}
		if got := used(t, l); !slices.Equal(got, []int64{1}) {
			t.Errorf("%v used while the connection is open, want 1", got)
		}
	}
	resp.Body.Close()
	if got := used(t, l); !slices.Equal(got, []int64{0}) {
		t.Errorf("%v used after Close, want 0", got)
	}
}

// TestBodyEndsOnce checks that the end of a context, a Read and a Close at one moment end the attempt
// once, and that no callback is called under a lock: each closes the body itself.
func TestBodyEndsOnce(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			var resp *http.Response
			settled, costs := make(chan struct{}, 9), make(chan struct{}, 9)
			l := mustNew(t, throttle.Policy{
				Tiers: []throttle.Tier{{Limit: 1, Algorithm: throttle.Concurrency}, {Limit: 100, Window: time.Hour, Unit: "tokens", Estimated: true}},
				Observer: &throttle.Observer{Settled: func(throttle.SettledInfo) {
					resp.Body.Close()
					settled <- struct{}{}
				}},
			}, nil)
			tr := &throttle.Transport{
				Base: trNewBase(nil), Limiter: l,
				Cost:  func(*http.Request) throttle.Cost { return throttle.Cost{"tokens": 5} },
				Meter: func(*http.Response) throttle.Meter { return new(length) },
				Settle: func(*http.Request) func(throttle.Cost) throttle.Cost {
					return func(c throttle.Cost) throttle.Cost {
						resp.Body.Close()
						costs <- struct{}{}
						return c
					}
				},
			}
			ctx, cancel := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
			var err error
			if resp, err = tr.RoundTrip(req); err != nil {
				t.Fatal(err)
			}
			go cancel()
			go func() { _, _ = io.Copy(io.Discard, resp.Body) }()
			go resp.Body.Close()
			synctest.Wait()
			if s := status(t, l); s.Tiers[0].Used != 0 || s.Tiers[1].InFlight != 0 || len(settled) != 1 || len(costs) != 1 {
				t.Errorf("%v, %d settlements, %d costs", s, len(settled), len(costs))
			}
		})
	}
}

// TestPeekedBodyAfterClose checks that a body whose beginning was read ahead has no more data once it is
// closed.
func TestPeekedBodyAfterClose(t *testing.T) {
	tr := &throttle.Transport{Limiter: mustNew(t, trAtOnce(1), nil), Profile: readsBodies,
		Base: roundTripper(func(*http.Request) (*http.Response, error) {
			resp := trAnswer(200, "Content-Type", "application/json")
			resp.Body = &closableBody{Reader: strings.NewReader("answer")}
			return resp, nil
		})}
	req, _ := http.NewRequest("GET", trURL, nil)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	if n, err := resp.Body.Read(b); n != 2 || err != nil {
		t.Fatalf("Read: %d, %v", n, err)
	}
	resp.Body.Close()
	if n, err := resp.Body.Read(b); n != 0 || err != errBodyClosed {
		t.Errorf("Read after Close: %d bytes, %v; want %v", n, err, errBodyClosed)
	}
}

var errBodyClosed = errors.New("the body is closed")

// A closableBody fails once it is closed.
type closableBody struct {
	io.Reader
	closed bool
}

func (b *closableBody) Read(p []byte) (int, error) {
	if b.closed {
		return 0, errBodyClosed
	}
	return b.Reader.Read(p)
}

func (b *closableBody) Close() error { b.closed = true; return nil }
