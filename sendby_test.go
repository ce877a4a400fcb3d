package throttle_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

const signedHeader = "X-Signed-Until"

// sendBy returns the time until which a request's signature is valid.
func sendBy(r *http.Request) time.Time {
	by, _ := time.Parse(time.RFC3339Nano, r.Header.Get(signedHeader))
	return by
}

// signed returns a request that was signed now.
func signed(valid time.Duration) *http.Request {
	r, _ := http.NewRequest("POST", trURL, nil)
	r.Header.Set(signedHeader, time.Now().Add(valid).Format(time.RFC3339Nano))
	return r
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

// A served provider answers over pipes that a net/http Transport dials.
type served struct {
	dialing, answering time.Duration

	mu    sync.Mutex
	reads []time.Time // when each request was read
}

func (s *served) transport() *http.Transport {
	return &http.Transport{MaxConnsPerHost: 1, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-time.After(s.dialing):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		client, server := net.Pipe()
		go s.serve(server)
		return client, nil
	}}
}

func (s *served) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		s.mu.Lock()
		s.reads = append(s.reads, time.Now())
		s.mu.Unlock()
		time.Sleep(s.answering)
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
			return
		}
	}
}

func (s *served) read() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
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
