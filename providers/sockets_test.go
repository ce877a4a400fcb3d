package providers_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

func TestSockets(t *testing.T) {
	for _, test := range []struct {
		of     func() providers.Provider
		socket string
		per    providers.Per
		n      int // at once
		window time.Duration
		guard  time.Duration
	}{
		{providers.Binance, "messages", providers.PerConnection, 5, time.Second, 250 * time.Millisecond},
		{providers.Binance, "connections", providers.PerAddress, 300, 5 * time.Minute, time.Second},
		{providers.BinanceUS, "messages", providers.PerConnection, 5, time.Second, 250 * time.Millisecond},
		{providers.BinanceFutures, "messages", providers.PerConnection, 10, time.Second, 250 * time.Millisecond},
		{providers.Kraken, "connections", providers.PerAddress, 150, 10 * time.Minute, time.Second},
		{providers.Discord, "events", providers.PerConnection, 120, time.Minute, time.Second},
		{providers.Discord, "identify", providers.PerToken, 1, 5 * time.Second, time.Second},
		{providers.Discord, "members", providers.PerToken, 1, 30 * time.Second, time.Second},
		{providers.Discord, "sessions", providers.PerToken, 1_000, 24 * time.Hour, time.Second},
	} {
		p := test.of()
		t.Run(p.Name+"/"+test.socket, func(t *testing.T) {
			s := p.Socket(test.socket)
			if s == nil || s.Per != test.per || s.Policy.Guard != test.guard || s.Read != "2026-11-29" {
				t.Fatalf("the socket is %+v, want per %v, with a guard of %v", s, test.per, test.guard)
			}
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.New(s.Policy, nil)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for l.Allow() {
					n++
				}
				start := time.Now()
				if err := l.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				// A message may take as long as the guard, and the next one none.
				if took := time.Since(start); n != test.n || took != test.window+test.guard {
					t.Errorf("%d at once, and the next after %v, want %d and %v", n, took, test.n, test.window+test.guard)
				}
			})
		})
	}
	if s := providers.BinanceUS().Socket("connections"); s != nil {
		t.Errorf("Binance.US documents no limit of connections, and has %+v", s)
	}
}

// checkTwins sends requests through one Transport, and charges others as messages through another one on the
// same store, until one has to wait.
func checkTwins(t *testing.T, of func() providers.Provider, want int, twin func() *http.Request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := local.New()
		rest, err := of().Transport(s)
		if err != nil {
			t.Fatal(err)
		}
		rest.Base = accepting{}
		ws, err := of().Transport(s)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; n <= want; n++ {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			req := twin().WithContext(ctx)
			if n%2 == 0 {
				var resp *http.Response
				if resp, err = rest.RoundTrip(req); err == nil {
					resp.Body.Close()
				}
			} else {
				var permit *throttle.Permit
				if permit, err = ws.Route(req).Acquire(ctx, ws.Cost(req)); err == nil {
					permit.Passed()
					permit.Release()
				}
			}
			if cancel(); err != nil {
				break
			}
		}
		if n != want || !errors.Is(err, throttle.ErrDeadline) {
			t.Errorf("%d over REST and WebSocket together, then %v, want %d", n, err, want)
		}
	})
}

// Requests over WebSocket share the quotas of their twins over REST.
func TestSocketsShareWithREST(t *testing.T) {
	checkTwins(t, providers.Binance, 24, to(t, "GET", "https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=5000")) // a weight of 250 of 6,000
	checkTwins(t, providers.Binance, 100, to(t, "POST", "https://api.binance.com/api/v3/order?symbol=BTCUSDT"))
	order := func(pair string) func() *http.Request {
		return to(t, "POST", "https://api.kraken.com/0/private/AddOrder", `{"pair":"`+pair+`"}`)
	}
	checkTwins(t, providers.Kraken, 60, order("BTC/USD"))
	checkTwins(t, providers.Kraken, 120, alternate(order("BTC/USD"), order("BTC/USD"), order("ETH/USD"), order("ETH/USD")))
}

// The weight of a connection to Binance's WebSocket API is that of the request which its constructor names.
func TestBinanceConnectionWeight(t *testing.T) {
	if w := providers.Binance().Cost(to(t, "GET", "https://api.binance.com/api/v3/avgPrice?symbol=BTCUSDT")())["weight"]; w != 2 {
		t.Errorf("GET avgPrice weighs %d, want 2", w)
	}
}

// Shards with different rate limit keys start at once, as long as the bot has sessions.
func TestDiscordIdentify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := providers.Discord()
		p.Socket("sessions").Policy.Tiers[0].Limit = 3
		sessions, err := throttle.New(p.Socket("sessions").Policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		identify, err := throttle.NewGroup(p.Socket("identify").Policy, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for i, step := range []struct {
			key  string
			want time.Duration // after the start
		}{{"0", 0}, {"1", 0}, {"0", 6 * time.Second}, {"1", 24*time.Hour + time.Second}} {
			if err := identify.Within(step.key, sessions).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if at := time.Since(start); at != step.want {
				t.Errorf("Identify %d came after %v, want %v", i, at, step.want)
			}
		}
	})
}
