package throttle_test

import (
	"context"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A path is the network between a client and a provider. It makes a connection in dial, reports it
// as net/http does, and delays requests and answers by the provider's Delay and Hold.
type path struct {
	api    *throttletest.Provider
	dial   time.Duration // if zero, no connection is reported
	reused bool          // the connection exists already

	upload func() time.Duration // how long the body takes to be written; nil for no time
	conn   net.Conn             // reported to the trace; may be nil
}

// A proxied connection goes to a proxy on this host.
type proxied struct{ net.Conn }

func (proxied) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3128} }

func (p path) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil && p.dial > 0 {
		if !p.reused {
			time.Sleep(p.dial)
		}
		trace.GotConn(httptrace.GotConnInfo{Conn: p.conn, Reused: p.reused})
		if p.upload != nil {
			trace.WroteHeaders()
			time.Sleep(p.upload())
			if trace.WroteRequest != nil {
				trace.WroteRequest(httptrace.WroteRequestInfo{})
			}
		}
	}
	return p.api.RoundTrip(req)
}

// saturate sends requests with some workers for a length of time.
func saturate(t *testing.T, policy throttle.Policy, base http.RoundTripper, workers int, length time.Duration) {
	lim, err := throttle.New(policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &throttle.Transport{Base: base, Limiter: lim}}
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for ; workers > 0; workers-- {
		wg.Go(func() {
			for time.Now().Before(end) {
				resp, err := client.Get("http://api.test/")
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// outcome returns how many requests the API has refused and accepted.
func outcome(api *throttletest.Provider) (refused, accepted float64) {
	s := api.Summary()
	return float64(s.Refused), float64(s.Accepted)
}

func uniform(from, to time.Duration) func() time.Duration {
	return func() time.Duration { return from + rand.N(to-from) }
}

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
