package providers_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/soak"
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

// A socketNetwork delivers messages to a stand-in, each after up to 200 ms.
type socketNetwork struct {
	mu       sync.Mutex
	standIn  socketStandIn
	accepted int
	refused  []string // the first ones
}

// deliver returns the stand-in's refusal of a message, or of a connection if the kind is empty.
func (n *socketNetwork) deliver(connection, kind string) (refusal string) {
	time.Sleep(rand.N(200 * time.Millisecond))
	n.mu.Lock()
	defer n.mu.Unlock()
	if kind == "" {
		refusal = n.standIn.connect(time.Now(), socketAddress(connection))
	} else {
		refusal = n.standIn.send(time.Now(), connection, kind)
	}
	switch {
	case refusal == "":
		n.accepted++
	case len(n.refused) < 3:
		n.refused = append(n.refused, refusal)
	}
	return refusal
}

// flood lets as many senders send until ctx ends, each as soon as it may. send waits for what it needs.
func (n *socketNetwork) flood(ctx context.Context, senders int, send func(sender int) error) {
	var all sync.WaitGroup
	for i := range senders {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := send(i); err != nil {
					<-ctx.Done() // the next window is after the end
				}
			}
		})
	}
	all.Wait()
}

// check reports refusals, and less accepted than a share of what is possible.
func (n *socketNetwork) check(t *testing.T, possible, floor float64) {
	t.Helper()
	share := float64(n.accepted) / possible
	t.Logf("%d accepted of %.0f, %.3f", n.accepted, possible, share)
	if len(n.refused) > 0 || share < floor {
		t.Errorf("%d accepted of %.0f, %.3f, want %.2f; refused: %q", n.accepted, possible, share, floor, n.refused)
	}
}

// Many senders, whose messages take up to 200 ms, are never refused, and send nearly as much as the API allows. The
// guard of a second, or of a quarter of a shorter window, is the rest.
func TestSocketsSaturateTheirAPIs(t *testing.T) {
	const address = "192.0.2.1"
	for _, test := range []struct {
		of          func() providers.Provider
		socket      string
		standIn     socketStandIn
		kind        string // and a number. If empty, senders connect
		senders     int
		connections int // or guilds, each with its own Limiter
		limit       float64
		window      time.Duration
		length      time.Duration
		floor       float64
	}{
		{providers.Binance, "messages", binanceSpotSocket(), "pong", 32, 4, 5, time.Second, 61 * time.Second, 0.8},
		{providers.Binance, "connections", binanceSpotSocket(), "", 64, 1, 300, 5 * time.Minute, time.Hour, 0.9},
		{providers.BinanceUS, "messages", binanceSpotSocket(), "pong", 8, 1, 5, time.Second, 61 * time.Second, 0.8},
		{providers.BinanceFutures, "messages", binanceFuturesSocket(), "list", 48, 3, 10, time.Second, 61 * time.Second, 0.8},
		{providers.Kraken, "connections", newKrakenSocket("starter"), "", 16, 1, 150, 10 * time.Minute, 2 * time.Hour, 0.9},
		{providers.Discord, "events", newDiscordGateway(1), "presence", 64, 2, 120, time.Minute, 20 * time.Minute, 0.9},
		{providers.Discord, "members", newDiscordGateway(1), "members", 8, 4, 1, 30 * time.Second, 20 * time.Minute, 0.9},
	} {
		p := test.of()
		t.Run(p.Name+"/"+test.socket, func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				quotas, err := throttle.NewGroup(p.Socket(test.socket).Policy, nil, throttle.GroupOptions{})
				if err != nil {
					t.Fatal(err)
				}
				network := &socketNetwork{standIn: test.standIn}
				ctx, cancel := context.WithTimeout(t.Context(), test.length)
				defer cancel()
				network.flood(ctx, test.senders, func(sender int) error {
					n := strconv.Itoa(sender % test.connections)
					if err := quotas.For(n).Wait(ctx); err != nil {
						return err
					}
					if test.kind == "" {
						network.deliver(address, "")
					} else {
						network.deliver(address+"#"+n, strings.TrimSpace(test.kind+" "+n))
					}
					return nil
				})
				network.check(t, test.limit*float64(test.connections)*float64(test.length)/float64(test.window), test.floor)
			})
		})
	}
}

// A socketREST sends requests of REST to the stand-in of the WebSocket, which counts both.
type socketREST struct {
	network *socketNetwork
	kind    string
}

func (r socketREST) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
	if r.network.deliver("192.0.2.1#rest", r.kind) != "" {
		resp.StatusCode = http.StatusTooManyRequests
	}
	return resp, nil
}

// Senders over REST and over WebSocket are never refused together, and use nearly all of their common quota.
func TestSocketsSaturateWithREST(t *testing.T) {
	order := to(t, "POST", "https://api.kraken.com/0/private/AddOrder", "pair=BTC/USD")
	for _, test := range []struct {
		name     string
		of       func() providers.Provider
		standIn  socketStandIn
		kind     string
		twin     func() *http.Request
		possible float64 // in two minutes
	}{
		{"Binance's weight", providers.Binance, newBinanceSocketAPI(), "depth 250", to(t, "GET", "https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=5000"), 2 * 24},
		{"Binance's orders", providers.Binance, newBinanceSocketAPI(), "order.place 1", to(t, "POST", "https://api.binance.com/api/v3/order?symbol=BTCUSDT"), 2 * 600},
		{"Kraken's pair", providers.Kraken, newKrakenSocket("starter"), "add_order BTC/USD", order, 60 + 2*60},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, network := local.New(), &socketNetwork{standIn: test.standIn}
				rest, err := test.of().Transport(s)
				if err != nil {
					t.Fatal(err)
				}
				rest.Base = socketREST{network, test.kind}
				ws, err := test.of().Transport(s)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				network.flood(ctx, 32, func(sender int) error {
					req := test.twin().WithContext(ctx)
					if sender%2 == 0 {
						resp, err := rest.RoundTrip(req)
						if err == nil {
							resp.Body.Close()
						}
						return err
					}
					permit, err := ws.Route(req).Acquire(ctx, ws.Cost(req))
					if err != nil {
						return err
					}
					defer permit.Release()
					if network.deliver("192.0.2.1#1", test.kind) != "" {
						return permit.Refused(ctx, 0)
					}
					permit.Passed()
					return nil
				})
				network.check(t, test.possible, 0.9)
			})
		})
	}
}

// Shards of a bot identify as often as their rate limit keys and the bot's sessions allow.
func TestDiscordIdentifies(t *testing.T) {
	const shards, concurrency = 64, 16
	synctest.Test(t, func(t *testing.T) {
		p := providers.Discord()
		sessions, err := throttle.New(p.Socket("sessions").Policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		identify, err := throttle.NewGroup(p.Socket("identify").Policy, nil, throttle.GroupOptions{})
		if err != nil {
			t.Fatal(err)
		}
		network := &socketNetwork{standIn: newDiscordGateway(concurrency)}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Hour)
		defer cancel()
		time.AfterFunc(5*time.Minute, func() {
			network.mu.Lock()
			defer network.mu.Unlock()
			if possible := concurrency * (5 * 60 / 5); network.accepted < possible*8/10 {
				t.Errorf("%d of %d identified in 5 minutes", network.accepted, possible)
			}
		})
		network.flood(ctx, shards, func(shard int) error {
			if err := identify.Within(strconv.Itoa(shard%concurrency), sessions).Wait(ctx); err != nil {
				return err
			}
			network.deliver("192.0.2.1#"+strconv.Itoa(shard), "identify "+strconv.Itoa(shard))
			return nil
		})
		network.check(t, 2_000, 1) // in a day and an hour
	})
}

// Heartbeats are on time while other events wait, which leave some to them.
func TestDiscordHeartbeats(t *testing.T) {
	const interval, length = 41_250 * time.Millisecond, 15 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		p := providers.Discord().Socket("events").Policy
		events, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.Tiers[0].Limit -= 5
		others, err := throttle.New(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		network := &socketNetwork{standIn: newDiscordGateway(1)}
		ctx, cancel := context.WithTimeout(t.Context(), length)
		defer cancel()
		var heartbeats sync.WaitGroup
		heartbeats.Go(func() {
			for start := time.Now(); time.Since(start) < length; time.Sleep(interval) {
				due := time.Now()
				if err := events.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				if late := time.Since(due); late > 0 {
					t.Errorf("a heartbeat was late by %v", late)
				}
				network.deliver("192.0.2.1#1", "heartbeat")
			}
		})
		network.flood(ctx, 32, func(int) error {
			if err := others.Within(events).Wait(ctx); err != nil {
				return err
			}
			network.deliver("192.0.2.1#1", "presence")
			return nil
		})
		heartbeats.Wait()
		network.check(t, 120*length.Minutes(), 0.9)
	})
}
