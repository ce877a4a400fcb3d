package throttle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A postbox delivers a request to the provider later, also if its caller has given up: the request
// was written.
type postbox struct {
	api   *throttletest.Provider
	delay func() time.Duration
	sent  *sync.WaitGroup
}

func (p postbox) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := make(chan *http.Response, 1)
	p.sent.Go(func() {
		time.Sleep(p.delay())
		resp, _ := p.api.RoundTrip(r.WithContext(context.Background()))
		answer <- resp
	})
	select {
	case resp := <-answer:
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// TestUnansweredLandWithTheGuard checks that a request stays in flight until the guard has passed
// if its caller gives up after it was written: the context or AttemptTimeout ends, or the Permit is
// released without Arrived.
func TestUnansweredLandWithTheGuard(t *testing.T) {
	const brief = 2 * time.Millisecond
	for name, send := range map[string]func(*throttle.Limiter, http.RoundTripper){
		"the context ends": func(l *throttle.Limiter, base http.RoundTripper) {
			req, _ := http.NewRequest("GET", trURL, nil)
			tr := &throttle.Transport{Limiter: l, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				ctx, cancel := context.WithTimeout(r.Context(), brief) // begins when the request is admitted
				defer cancel()
				return base.RoundTrip(r.WithContext(ctx))
			})}
			_, _ = tr.RoundTrip(req)
		},
		"AttemptTimeout": func(l *throttle.Limiter, base http.RoundTripper) {
			req, _ := http.NewRequest("GET", trURL, nil)
			_, _ = (&throttle.Transport{Limiter: l, Base: base, AttemptTimeout: brief}).RoundTrip(req)
		},
		"a permit is released": func(l *throttle.Limiter, base http.RoundTripper) {
			p, err := l.Acquire(context.Background(), nil)
			if err != nil {
				return
			}
			defer p.Release()
			ctx, cancel := context.WithTimeout(context.Background(), brief)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "GET", trURL, nil)
			_, _ = base.RoundTrip(req)
		},
	} {
		for _, a := range []throttle.Algorithm{throttle.SlidingLog, throttle.SlidingWindow, throttle.FixedWindow, throttle.AnchoredWindow, throttle.TokenBucket, throttle.GCRA} {
			t.Run(name+" "+a.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tier := throttle.Tier{Limit: 5, Window: time.Second, Algorithm: a}
					api := throttletest.New(tier)
					var sent, callers sync.WaitGroup
					rnd := rand.New(rand.NewPCG(1, uint64(a)))
					var mu sync.Mutex
					base := postbox{api, func() time.Duration {
						mu.Lock()
						defer mu.Unlock()
						return time.Duration(rnd.Int64N(int64(45 * time.Millisecond)))
					}, &sent}
					l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{tier}}, nil)
					for range 10 {
						for range 20 {
							callers.Go(func() { send(l, base) })
						}
						callers.Wait()
					}
					sent.Wait()
					if s := api.Summary(); s.Refused != 0 || s.Sent != 200 {
						t.Errorf("the provider refused %d of %d, want 0 of 200", s.Refused, s.Sent)
					}
				})
			})
		}
	}
}

// TestUnansweredIsNoLongerInFlight checks that an unanswered request delays others no longer than a
// response at the end of its guard interval would.
func TestUnansweredIsNoLongerInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1)}, Guard: 100 * time.Millisecond}, nil)
		began := time.Now()
		p := acquire(t, l, nil)
		time.Sleep(10 * time.Millisecond)
		p.Release()
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 1100*time.Millisecond {
			t.Errorf("the next request is admitted after %v, want 1.1s: the guard interval and a window", took)
		}
	})
}

// TestUnansweredProbe checks that the next request becomes the probe if a probe gets no response,
// and that the others keep waiting.
func TestUnansweredProbe(t *testing.T) {
	lost := errors.New("connection reset by peer")
	for name, end := range map[string]func(*http.Request) error{
		"the connection breaks": func(*http.Request) error { time.Sleep(200 * time.Millisecond); return lost },
		"AttemptTimeout":        func(r *http.Request) error { <-r.Context().Done(); return r.Context().Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				base := trNewBase(func(n int, r *http.Request) (*http.Response, error) {
					switch {
					case n == 0:
						return trAnswer(429, "Retry-After", "1"), nil
					case n <= 3:
						return nil, end(r)
					}
					time.Sleep(100 * time.Millisecond)
					return trAnswer(200), nil
				})
				tr := &throttle.Transport{
					Base: base, AttemptTimeout: 300 * time.Millisecond,
					Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, nil),
				}
				_, _ = trSend(t.Context(), tr)
				var wg sync.WaitGroup
				for range 21 {
					wg.Go(func() { _, _ = trSend(t.Context(), tr) })
				}
				time.Sleep(time.Second + 50*time.Millisecond)
				for i := 1; i <= 3; i++ {
					if n := len(base.times()); n != i+1 {
						t.Errorf("%v: %d requests were sent while probe %d has no response, want %d", time.Since(began), n, i, i+1)
					}
					step := 200 * time.Millisecond
					if name == "AttemptTimeout" {
						step = 300 * time.Millisecond
					}
					time.Sleep(step)
				}
				wg.Wait()
				if times := base.times(); len(times) != 22 || times[4] == times[5] || times[5] != times[21] {
					t.Errorf("sent at %v: want one probe after the three that failed, and the rest after its response", times)
				}
			})
		})
	}
}

// TestUnansweredRepeat checks that a request stays charged if net/http repeats it, because its
// kept-alive connection was closed, and the dial of the repetition fails. The provider may have
// counted the first request. The Base may wrap that of net/http.
func TestUnansweredRepeat(t *testing.T) {
	for _, wrap := range []func(http.RoundTripper) http.RoundTripper{
		func(base http.RoundTripper) http.RoundTripper { return base }, signer,
	} {
		unansweredRepeat(t, wrap)
	}
}

func unansweredRepeat(t *testing.T, wrap func(http.RoundTripper) http.RoundTripper) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	read := make(chan int, 1)
	go func() {
		n := 0
		defer func() { read <- n }()
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		r := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			req.Body.Close()
			if n++; n == 2 { // counted, but not answered
				ln.Close()
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		}
	}()
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: time.Minute}, nil)
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	tr := &throttle.Transport{Base: wrap(base), Limiter: lim}
	for i := range 2 {
		req, _ := http.NewRequest("GET", "http://"+ln.Addr().String()+"/", nil)
		resp, err := tr.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if (err != nil) != (i == 1) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	if got, counted := used(t, lim)[0], <-read; counted != 2 || got != 2 {
		t.Errorf("%d used and %d read by the provider, want 2 and 2", got, counted)
	}
}

// A signer is a Base that changes a copy of the request, as an oauth2.Transport does.
func signer(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer token")
		resp, err := base.RoundTrip(r)
		if err != nil {
			err = fmt.Errorf("signed: %w", err)
		}
		return resp, err
	})
}

// TestUnansweredBySilentBase checks that requests of a Base that has not asked for a trace, because it
// answered from a cache, are refunded nevertheless once one of them has failed.
func TestUnansweredBySilentBase(t *testing.T) {
	nowhere, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere.Close()
	base, hits := new(http.Transport), 100
	lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1000)}, Guard: time.Minute}, nil)
	tr := &throttle.Transport{Limiter: lim, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if hits--; hits >= 0 {
			return trAnswer(200), nil
		}
		return base.RoundTrip(r)
	})}
	for range 110 {
		req, _ := http.NewRequest("GET", "http://"+nowhere.Addr().String()+"/", nil)
		_, _ = tr.RoundTrip(req)
	}
	if got := used(t, lim)[0]; got != 100 {
		t.Errorf("%d used, want 100", got)
	}
}

// TestUnansweredBeforeTheWrite checks that a request that fails before anything is written is
// refunded, whether or not its context can end, also if the Base wraps that of net/http.
func TestUnansweredBeforeTheWrite(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for {
			conn, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("this is not TLS\r\n"))
			conn.Close()
		}
	}()
	nowhere, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere.Close()
	for i := range 4 {
		canEnd, wraps := i&1 != 0, i&2 != 0
		for name, target := range map[string]string{
			"TLS handshake": "https://" + plain.Addr().String() + "/",
			"scheme":        "gopher://provider.test/",
			"proxy":         "http://provider.test/",
			"refused":       "http://" + nowhere.Addr().String() + "/",
		} {
			ctx, cancel := context.Background(), func() {}
			if canEnd {
				ctx, cancel = context.WithCancel(ctx)
			}
			req, _ := http.NewRequestWithContext(ctx, "GET", target, nil)
			base := new(http.Transport)
			if name == "proxy" {
				base.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: nowhere.Addr().String()})
			}
			lim := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(10)}, Guard: time.Minute}, nil)
			tr := &throttle.Transport{Base: base, Limiter: lim}
			if wraps {
				tr.Base = signer(base)
			}
			if _, err := tr.RoundTrip(req); err == nil {
				t.Errorf("%s: no error, want one", name)
			}
			if got := used(t, lim); !slices.Equal(got, []int64{0}) {
				t.Errorf("%s, a context that can end: %v, a Base that wraps: %v: %v used, want nothing", name, canEnd, wraps, got)
			}
			cancel()
		}
	}
}
