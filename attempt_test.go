package throttle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/throttletest"
)

// A proxied connection goes to a proxy on this host.
type proxied struct{ net.Conn }

func (proxied) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3128} }

// heavyTailed returns a time whose median is 25 ms and whose maximum is 500 ms.
func heavyTailed() time.Duration {
	return min(500*time.Millisecond, time.Duration(25e6*math.Exp(1.1*rand.NormFloat64())))
}

func TestAutoGuard(t *testing.T) {
	tests := []struct {
		name        string
		dial        time.Duration
		delay, hold func() time.Duration
		guard       time.Duration
		refused     float64 // at most
		used        float64 // at least
	}{
		{"near", ms, nil, nil, throttle.AutoGuard, 0, 0.99},
		{"jitter", ms, uniform(5*ms, 50*ms), nil, throttle.AutoGuard, 0, 0.96},
		{"heavy tail", ms, heavyTailed, nil, throttle.AutoGuard, 0.002, 0.75},
		{"heavy tail, no connection reported", 0, heavyTailed, nil, throttle.AutoGuard, 0.002, 0.75},
		{"slow server, near", ms, nil, uniform(sec, 5*sec), throttle.AutoGuard, 0, 0.96},
		{"slow server", 10 * ms, uniform(5*ms, 15*ms), uniform(sec, 5*sec), throttle.AutoGuard, 0, 0.96},
		{"slow server, no connection reported", 0, nil, uniform(sec, 5*sec), throttle.AutoGuard, 0, 0.93},
		{"the same with a long guard", ms, nil, uniform(sec, 5*sec), 500 * ms, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			soak.Sample(t, 3)
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := throttletest.New(throttle.PerSecond(5))
				api.Delay, api.Hold = tt.delay, tt.hold
				policy := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}, Guard: tt.guard}
				saturate(t, policy, path{api: api, dial: tt.dial}, 64, 10*time.Minute)
				refused, used := outcome(api)
				refused, used = refused/(refused+used), used/(5*600+64) // each worker's last request is sent after the end
				t.Logf("%.2f %% refused, %.1f %% used", 100*refused, 100*used)
				if refused > tt.refused || used < tt.used {
					t.Errorf("%.2f %% refused, %.1f %% used; want %.2f %% at most and %.1f %% at least",
						100*refused, 100*used, 100*tt.refused, 100*tt.used)
				}
			})
		})
	}
}

// TestAutoGuardOfASlowNetwork checks that slow uploads, and a proxy on this host that is far closer
// than the provider behind it, are not taken for a slow server: the guard stays as long as the
// network's delay.
func TestAutoGuardOfASlowNetwork(t *testing.T) {
	for name, network := range map[string]path{
		"uploads":       {dial: ms, upload: uniform(50*ms, 400*ms)},
		"a local proxy": {dial: ms, conn: proxied{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network.api = throttletest.New(throttle.PerSecond(5))
				if network.upload == nil {
					network.api.Delay = uniform(100*ms, 240*ms)
				}
				policy := throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(5)}, Guard: throttle.AutoGuard}
				saturate(t, policy, network, 64, 10*time.Minute)
				if refused, accepted := outcome(network.api); refused > 0 || accepted < 1500 {
					t.Errorf("%v refused and %v accepted, want 0 and at least 1500", refused, accepted)
				}
			})
		})
	}
}

// TestAutoGuardBounds checks the learned guard by how long an unreported request counts.
func TestAutoGuardBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New()
		lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(100)}, Guard: throttle.AutoGuard}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &throttle.Transport{Base: path{api: api, dial: 3 * ms}, Limiter: lim}}
		send := func(n int, trip time.Duration) {
			api.Hold = func() time.Duration { return trip - 3*ms }
			for range n {
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
		}
		want := func(guard time.Duration, when string) {
			t.Helper()
			time.Sleep(3 * time.Second)
			if err := lim.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			s, err := lim.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := (s.Tiers[0].ResetAfter - time.Second).Round(ms); got != guard {
				t.Errorf("%s the guard is %v, want %v", when, got, guard)
			}
		}
		want(time.Second, "before any response")
		send(7, 16*ms)
		want(time.Second, "after seven responses")
		send(1, 16*ms)
		want(276*ms, "after eight quick ones")
		send(56, 16*ms)
		want(52*ms, "after 64 quick ones")
		send(64, 16*ms)
		want(36*ms, "after 128 quick ones")
		send(128, 40*ms)
		want(70*ms, "after as many of 40 ms")
		send(1, 5*time.Second)
		want(time.Second, "after one of 5 s among quick ones")
		send(32, 2*time.Second)
		want(20*ms, "when the server is slow")
		send(32, 16*ms)
		want(time.Second, "when it is quick again")
		time.Sleep(6 * time.Minute)
		send(64, 16*ms)
		time.Sleep(6 * time.Minute)
		send(64, 16*ms)
		want(36*ms, "ten minutes later")
		time.Sleep(12 * time.Minute)
		want(36*ms, "long after the last response")
		send(8, 16*ms)
		want(276*ms, "when all but eight are forgotten")
		send(55, 2*time.Second)
		want(20*ms, "when the server is slow")

		client.Transport.(*throttle.Transport).Base = path{api: api, dial: 3 * ms, reused: true}
		for range 4 {
			time.Sleep(4 * time.Minute)
			send(8, 2*time.Second)
		}
		want(20*ms, "when the connections are old")

		refuse := throttletest.New(throttle.Tier{Limit: 1, Window: time.Hour})
		client.Transport.(*throttle.Transport).Base = path{api: refuse, dial: 3 * ms}
		refuse.Penalty = time.Second
		send(2, 16*ms)
		want(40*ms, "after a refusal")
	})
}

// TestAutoGuardOfNestedLimits checks that each scope of nested limits learns its own guard from the
// same responses.
func TestAutoGuardOfNestedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func(n int64) *throttle.Limiter {
			lim, err := throttle.New(throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(n)}, Guard: throttle.AutoGuard}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return lim
		}
		api := throttletest.New(throttle.PerSecond(5))
		api.Delay = uniform(5*ms, 15*ms)
		lim := limiter(50).Within(limiter(5))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for lim.Wait(ctx) == nil { // these requests stay in flight for the guard interval
				}
			})
		}
		client := &http.Client{Transport: &throttle.Transport{Base: path{api: api, dial: ms}, Limiter: lim}}
		admitted := 0
		for {
			req, _ := http.NewRequestWithContext(ctx, "GET", "http://api.test/", nil)
			resp, err := client.Do(req)
			if err != nil {
				break // refused at the end of the test
			}
			resp.Body.Close()
			admitted++
		}
		wg.Wait()
		if admitted < 200 { // of 3,000 among nine callers: 170 with a guard of a second
			t.Errorf("%d requests were admitted, want at least 200", admitted)
		}
	})
}

// sendBy returns the time until which a request's signature is valid.
func sendBy(r *http.Request) time.Time {
	by, _ := time.Parse(time.RFC3339Nano, r.Header.Get(signedHeader))
	return by
}

// TestSendByOfManyOrders sends 200 orders that were signed at the same time, each valid for five
// seconds. No order may reach the provider later, a late order must be refused at once, and the
// valid ones must use the whole quota.
func TestSendByOfManyOrders(t *testing.T) {
	const valid = 5 * time.Second
	tiers := []throttle.Tier{{Limit: 20, Window: time.Second}, {Limit: 50, Window: 10 * time.Second}}
	for name, guard := range map[string]time.Duration{"none": throttle.NoGuard, "default": 0, "auto": throttle.AutoGuard} {
		t.Run("guard "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				delay := map[string]time.Duration{"default": 50 * time.Millisecond, "auto": time.Second}[name]
				api := throttletest.New(tiers...)
				api.Delay = func() time.Duration { return delay }
				l := mustNew(t, throttle.Policy{Tiers: tiers, Guard: guard}, nil)
				var mu sync.Mutex
				var late, refusedLater, other []string
				tr := &throttle.Transport{Limiter: l, SendBy: sendBy, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
					if arrives := time.Now().Add(delay); arrives.After(sendBy(r)) {
						mu.Lock()
						late = append(late, arrives.Sub(sendBy(r)).String())
						mu.Unlock()
					}
					return api.RoundTrip(r)
				})}
				var wg sync.WaitGroup
				for range 200 {
					wg.Go(func() {
						began := time.Now()
						resp, err := tr.RoundTrip(signed(valid))
						if err == nil {
							_, _ = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
							return
						}
						mu.Lock()
						defer mu.Unlock()
						var e *throttle.WaitError
						switch {
						case !errors.Is(err, throttle.ErrDeadline) || !errors.As(err, &e) || e.Tier != "50/10s":
							other = append(other, err.Error())
						case time.Since(began) > 0:
							refusedLater = append(refusedLater, time.Since(began).String())
						}
					})
				}
				wg.Wait()
				if s := api.Summary(); len(late) > 0 || s.Sent != 50 || s.Refused > 0 {
					t.Errorf("%d orders sent, %d refused, late by %v; want 50 sent, none refused or late", s.Sent, s.Refused, late)
				}
				if len(refusedLater) > 0 || len(other) > 0 {
					t.Errorf("orders refused after %v, want at once; other errors: %v", refusedLater, other)
				}
			})
		})
	}
}

// TestSendByZero checks that a request whose SendBy is zero waits as long as necessary.
func TestSendByZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(1)}}, nil)
		tr := &throttle.Transport{Limiter: l, SendBy: sendBy, Base: trNewBase(nil)}
		for range 2 {
			if _, err := trSend(t.Context(), tr); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSendByAndTheGuard checks that a request is admitted at the latest one guard interval before
// SendBy, by the longest guard of all scopes.
func TestSendByAndTheGuard(t *testing.T) {
	auto, second := throttle.AutoGuard, time.Second
	for _, tt := range []struct {
		name         string
		inner, outer time.Duration // guards; outer 0: no outer scope
		least        time.Duration // the shortest time until SendBy that is enough
	}{
		{"none", throttle.NoGuard, 0, 0},
		{"default", 0, 0, 50 * time.Millisecond},
		{"a second", second, 0, second},
		{"auto", auto, 0, second},
		{"in an outer scope", throttle.NoGuard, second, second},
		{"auto in an outer scope", throttle.NoGuard, auto, second},
	} {
		for _, more := range []time.Duration{-time.Microsecond, 0} {
			t.Run(fmt.Sprint(tt.name, ", ", more), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tiers := []throttle.Tier{throttle.PerHour(5)}
					l := mustNew(t, throttle.Policy{Name: "inner", Tiers: tiers, Guard: tt.inner}, nil)
					if tt.outer != 0 {
						l = l.Within(mustNew(t, throttle.Policy{Name: "outer", Tiers: tiers, Guard: tt.outer}, nil))
					}
					base := trNewBase(nil)
					resp, err := (&throttle.Transport{Limiter: l, SendBy: sendBy, Base: base}).RoundTrip(signed(tt.least + more))
					if more == 0 && err != nil {
						t.Errorf("with just enough time: error %v", err)
					}
					if more < 0 && (!errors.Is(err, throttle.ErrDeadline) || len(base.times()) > 0 || used(t, l)[0] > 0) {
						t.Errorf("with too little time: %v, %v, %d sent, %v used; want ErrDeadline", resp, err, len(base.times()), used(t, l))
					}
				})
			})
		}
	}
}

// TestSendByEndsAnAttempt checks that an attempt ends at SendBy if nothing was written by then: the
// dial hangs, the only connection is busy, or the code around net/http is slow. If something was
// written, it lasts until the response.
func TestSendByEndsAnAttempt(t *testing.T) {
	const valid = 5 * time.Second
	slowBase := func(base http.RoundTripper) http.RoundTripper { // fetches a token first
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(2 * valid)
			return base.RoundTrip(r)
		})
	}
	for _, tt := range []struct {
		name               string
		dialing, answering time.Duration
		wrap               func(http.RoundTripper) http.RoundTripper
		busy, idle         bool // the state of an existing connection
		sent               bool
		took               time.Duration
	}{
		{name: "a dial that hangs", dialing: time.Hour, took: valid},
		{name: "a slow dial", dialing: 4 * time.Second, sent: true, took: 4 * time.Second},
		{name: "a slow response", answering: time.Minute, sent: true, took: time.Minute},
		{name: "a busy connection", answering: time.Minute, busy: true, took: valid},
		{name: "a slow base", wrap: slowBase, took: 2 * valid},
		{name: "a slow base, and an idle connection", wrap: slowBase, idle: true, took: 2 * valid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &served{dialing: tt.dialing, answering: tt.answering}
				inner := api.transport()
				defer inner.CloseIdleConnections()
				l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerHour(5)}}, nil)
				tr := &throttle.Transport{Limiter: l, SendBy: sendBy, Base: inner}
				if tt.wrap != nil {
					tr.Base = tt.wrap(inner)
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				before := 0
				if tt.idle {
					resp, err := inner.RoundTrip(signed(0))
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					synctest.Wait()
					before = 1
				}
				if tt.busy {
					wg.Go(func() {
						resp, err := inner.RoundTrip(signed(0))
						if err == nil {
							resp.Body.Close()
						}
					})
					synctest.Wait()
					before = 1
				}
				began := time.Now()
				resp, err := tr.RoundTrip(signed(valid))
				took := time.Since(began)
				if err == nil {
					if body, err := io.ReadAll(resp.Body); string(body) != "ok" || err != nil {
						t.Errorf("body %q, %v; want ok", body, err)
					}
					resp.Body.Close()
				}
				if sent := len(api.read()) > before; sent != tt.sent || (err == nil) != tt.sent || took != tt.took {
					t.Errorf("sent: %v, %v after %v; want sent: %v after %v", sent, err, took, tt.sent, tt.took)
				}
				if err != nil && !errors.Is(err, throttle.ErrDeadline) {
					t.Errorf("the error is %v, want ErrDeadline", err)
				}
				for _, at := range api.read()[before:] {
					if at.Sub(began) > valid {
						t.Errorf("the request was sent %v after SendBy", at.Sub(began)-valid)
					}
				}
			})
		})
	}
}

// TestSendByPassed checks that a request whose SendBy has passed is refused at once and not
// charged, and that its body is closed.
func TestSendByPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := mustNew(t, throttle.Policy{Name: "orders", Tiers: []throttle.Tier{throttle.PerHour(5)}}, nil)
		base := trNewBase(nil)
		r := signed(-time.Second)
		body := &trBody{Reader: strings.NewReader("order")}
		r.Body = body
		_, err := (&throttle.Transport{Limiter: l, SendBy: sendBy, Base: base}).RoundTrip(r)
		var e *throttle.WaitError
		if !errors.As(err, &e) || !errors.Is(err, throttle.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) || e.Policy != "orders" {
			t.Errorf("error is %v, want ErrDeadline of policy orders", err)
		}
		if got := used(t, l)[0]; got != 0 || len(base.times()) != 0 || body.closed.Load() != 1 {
			t.Errorf("%d used, %d sent, the body was closed %d times; want 0, 0, 1", got, len(base.times()), body.closed.Load())
		}
	})
}

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
