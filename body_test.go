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
	p, err := l.Acquire(context.Background(), throttle.Cost{"": 3})
	if err != nil {
		t.Fatal(err)
	}
	p.Release()
	if got := used(t, l)[0]; got != 3 {
		t.Errorf("%d used, want 3", got)
	}
	if _, err := l.Acquire(context.Background(), throttle.Cost{"": 6}); !errors.Is(err, throttle.ErrExceedsCapacity) {
		t.Error(err)
	}
}
