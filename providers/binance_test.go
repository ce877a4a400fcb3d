package providers_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const binance = "https://api.binance.com/api/v3/"

func post(t *testing.T, url string) *http.Request {
	req := get(t, url)
	req.Method = http.MethodPost
	return req
}

// binanceAPI returns a stand-in with the limits of an account that has fewer orders.
func binanceAPI() *fakeapi.Server {
	return standIn("binance", "raw=61000/5m;algo=fixed_window", "orders=50/10s;algo=fixed_window", "day=160000/1d;algo=fixed_window")
}

// binanceOf returns the preset with the orders of the account that the stand-in has.
func binanceOf() providers.Provider {
	p := providers.Binance()
	p.Scope("orders").Policy.Tiers[0].Limit, p.Scope("orders").Policy.Tiers[1].Limit = 50, 160_000
	return p
}

func TestBinance(t *testing.T) {
	soak.Long(t, "it plays minutes at the full rate, and TestBinanceQuotas plays some")
	for _, skew := range []time.Duration{0, 17 * time.Second} {
		t.Run(fmt.Sprintf("saturated, clock ahead by %v", skew), func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := binanceAPI()
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Skew = skew
				rt := over(t, binanceOf(), api)
				time.Sleep(50 * time.Second) // the end of a minute is near, by either clock
				saturate(t, rt, 16, 5*time.Minute, func(worker int) *http.Request {
					if worker%4 == 0 {
						return post(t, binance+"order?symbol=BTCUSDT")
					}
					return get(t, binance+"depth?symbol=BTCUSDT&limit=500")
				})
				// Queries of weight 25 use up the 6,000 of a minute, and orders have no weight.
				checkServed(t, api, 0.95*5*(6*50+6_000/25))
			})
		})
	}
	t.Run("orders", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := binanceAPI()
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, binanceOf(), api), 8, 2*time.Minute, func(worker int) *http.Request {
				if worker%2 == 0 {
					return post(t, binance+"orderList/oco?symbol=BTCUSDT")
				}
				return post(t, binance+"order?symbol=BTCUSDT")
			})
			checkServed(t, api, 0.95*12*50/1.5)
		})
	})
	t.Run("filled orders no longer count", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := binanceAPI()
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, binanceOf(), api), 4, time.Minute, func(int) *http.Request {
				return post(t, binance+"order?symbol=BTCUSDT&type=MARKET")
			})
			checkServed(t, api, 6_100) // more than the weight of a minute
		})
	})
}

func TestBinanceRefusals(t *testing.T) {
	order := binance + "order?symbol=BTCUSDT"
	klines := binance + "klines?symbol=BTCUSDT"
	trap := func(name string, reply fakeapi.Reply, check func(*testing.T, http.RoundTripper)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := binanceAPI()
				rt := over(t, providers.Binance(), api)
				api.Trap(reply)
				if status, _, _ := send(t, rt, post(t, order)); status != reply.Status {
					t.Errorf("status %d", status)
				}
				check(t, rt)
			})
		})
	}
	trap("418 bans with a time and no sleep",
		fakeapi.Reply{Status: 418, Header: map[string]string{"Retry-After": "120"}, Body: `{"code":-1003,"msg":"Way too much request weight used; IP banned until 946684920000."}`},
		func(t *testing.T, rt http.RoundTripper) {
			start := time.Now()
			_, err := rt.RoundTrip(get(t, klines))
			var e *throttle.WaitError
			if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || !e.Until.Equal(start.Add(2*time.Minute)) {
				t.Errorf("%v, want a ban of two minutes", err)
			}
			if slept := time.Since(start); slept != 0 {
				t.Errorf("slept %v", slept)
			}
			time.Sleep(2 * time.Minute)
			if status, _, took := send(t, rt, get(t, klines)); status != 200 || took != 0 {
				t.Errorf("after the ban: %d in %v", status, took)
			}
		})
	trap("418 without Retry-After has the time in its text",
		fakeapi.Reply{Status: 418, Body: fmt.Sprintf(`{"code":-1003,"msg":"Way too much request weight used; IP banned until %d."}`, time.Date(2000, 1, 1, 0, 3, 0, 0, time.UTC).UnixMilli())},
		func(t *testing.T, rt http.RoundTripper) {
			_, err := rt.RoundTrip(get(t, klines))
			var e *throttle.WaitError
			if !errors.As(err, &e) || !e.Until.Equal(time.Now().Add(3*time.Minute)) {
				t.Errorf("%v, want a ban of three minutes", err)
			}
		})
	trap("429 for weight pauses everything",
		fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "40"}, Body: `{"code":-1003,"msg":"Too much request weight used; current limit is 6000 request weight per 1 MINUTE."}`},
		func(t *testing.T, rt http.RoundTripper) {
			if _, _, took := send(t, rt, get(t, klines)); took != 40*time.Second {
				t.Errorf("waited %v, want 40 s", took)
			}
		})
	trap("429 for orders has no Retry-After and pauses only orders",
		fakeapi.Reply{Status: 429, Body: `{"code":-1015,"msg":"Too many new orders; current limit is 50 orders per 10 SECOND."}`},
		func(t *testing.T, rt http.RoundTripper) {
			if _, _, took := send(t, rt, get(t, klines)); took != 0 {
				t.Errorf("a query waited %v", took)
			}
			if _, _, took := send(t, rt, post(t, order)); took < time.Second || took > 2*time.Second {
				t.Errorf("an order waited %v, want one to two seconds", took)
			}
		})
	trap("403 of the firewall bans without a time", fakeapi.Reply{Status: 403, Body: `<html>`},
		func(t *testing.T, rt http.RoundTripper) {
			if _, err := rt.RoundTrip(get(t, klines)); !errors.Is(err, throttle.ErrBanned) {
				t.Errorf("%v, want ErrBanned", err)
			}
		})
}

// orderForm returns an order with its parameters in a form.
func orderForm(t *testing.T, query, form string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, binance+"order?"+query, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return req
}

func TestBinanceSendBy(t *testing.T) {
	at := func(millis float64) time.Time { return time.UnixMicro(int64(1_700_000_000_000_000 + millis*1000)) }
	transport, err := providers.Binance().Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := get(t, "https://example.com/?timestamp=1700000000000")
	once := orderForm(t, "", "timestamp=1700000000000")
	once.GetBody = nil
	for _, test := range []struct {
		name string
		req  *http.Request
		want time.Time
	}{
		{"not signed", get(t, binance+"depth?symbol=BTCUSDT"), time.Time{}},
		{"another host", elsewhere, time.Time{}},
		{"the default window", get(t, binance+"order?timestamp=1700000000000"), at(5000)},
		{"a window", get(t, binance+"order?timestamp=1700000000000&recvWindow=100"), at(100)},
		{"a decimal window", get(t, binance+"order?timestamp=1700000000000&recvWindow=6000.346"), at(6000.346)},
		{"the longest window", get(t, binance+"order?timestamp=1700000000000&recvWindow=60000"), at(60_000)},
		{"microseconds", get(t, binance+"order?timestamp=1700000000000123"), at(5000.123)},
		{"a form", orderForm(t, "", "symbol=BTCUSDT&timestamp=1700000000000&recvWindow=200"), at(200)},
		{"a query and a form", orderForm(t, "recvWindow=300", "timestamp=1700000000000"), at(300)},
		{"a query replaces the form", orderForm(t, "recvWindow=300&timestamp=1700000000000", "recvWindow=1&timestamp=1"), at(300)},
		{"JSON", orderForm(t, "", `{"symbol":"a&timestamp=1","timestamp":1700000000000,"recvWindow":"200"}`), at(200)},
		{"a form without GetBody", once, time.Time{}},
		{"a timestamp that is not a number", get(t, binance+"order?timestamp=now"), time.Time{}},
		{"a negative timestamp", get(t, binance+"order?timestamp=-1"), time.Time{}},
		{"a window that is not a number", get(t, binance+"order?timestamp=1700000000000&recvWindow=long"), time.Time{}},
	} {
		if by := transport.SendBy(test.req); !by.Equal(test.want) {
			t.Errorf("%s: %v, want %v", test.name, by, test.want)
		}
		if test.req.Body != nil {
			if b, _ := io.ReadAll(test.req.Body); int64(len(b)) != test.req.ContentLength {
				t.Errorf("%s: %d of %d bytes of the body are left", test.name, len(b), test.req.ContentLength)
			}
		}
	}
}

// Of 200 orders signed at once, the limiter sends those whose signatures are still valid at their
// turn. It refuses the others immediately and charges nothing for them.
func TestBinanceSignedOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := binanceAPI()
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		rt := over(t, binanceOf(), api)
		burst := func(n int) (served, late int) {
			var wg sync.WaitGroup
			var mu sync.Mutex
			start := time.Now()
			for range n {
				wg.Go(func() {
					resp, err := rt.RoundTrip(orderForm(t, "", fmt.Sprintf("symbol=BTCUSDT&timestamp=%d", start.UnixMilli())))
					mu.Lock()
					defer mu.Unlock()
					switch took := time.Since(start); {
					case err == nil:
						resp.Body.Close()
						served++
					case !errors.Is(err, throttle.ErrDeadline) || took != 0:
						t.Errorf("%v after %v, want ErrDeadline at once", err, took)
					default:
						late++
					}
				})
			}
			wg.Wait()
			return served, late
		}
		if served, late := burst(200); served != 50 || late != 150 {
			t.Errorf("%d served and %d refused at once, want 50 and 150", served, late)
		}
		time.Sleep(20 * time.Second)
		if served, late := burst(50); served != 50 || late != 0 {
			t.Errorf("20 s later: %d served and %d refused at once, want 50 and none", served, late)
		}
		checkServed(t, api, 100)
	})
}

// The used weight in each response includes the use of others with the same address.
func TestBinanceUsedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := binanceAPI()
		rt := over(t, providers.Binance(), api)
		for range 110 { // 5,500 of weight
			send(t, api, get(t, binance+"depth?limit=1000"))
		}
		saturate(t, rt, 1, 59*time.Second, func(int) *http.Request { return get(t, binance+"depth?limit=1000") })
		checkServed(t, api, 120)
	})
}

func TestBinanceWeights(t *testing.T) {
	cost := providers.Binance().Cost
	for _, test := range []struct {
		request string
		weight  int64
		orders  int64
	}{
		{"GET ping", 1, 0},
		{"GET depth?symbol=BTCUSDT", 5, 0}, {"GET depth?limit=100", 5, 0}, {"GET depth?limit=101", 25, 0},
		{"GET depth?limit=1000", 50, 0}, {"GET depth?limit=5000", 250, 0}, {"GET depth?limit=9999", 250, 0},
		{"GET ticker/24hr", 80, 0}, {"GET ticker/24hr?symbol=BTCUSDT", 2, 0}, {"GET ticker/24hr?symbols=[1,2,3]", 2, 0},
		{"GET ticker/price", 4, 0}, {"GET ticker/price?symbol=BTCUSDT", 2, 0}, {"GET ticker/price?symbols=[1]", 4, 0},
		{"GET ticker?symbol=BTCUSDT", 4, 0}, {"GET ticker?symbols=[1,2]", 8, 0},
		{"GET openOrders", 80, 0}, {"GET openOrders?symbol=BTCUSDT", 6, 0},
		{"GET myTrades?symbol=BTCUSDT", 20, 0}, {"GET myTrades?orderId=7", 5, 0},
		{"GET order?orderId=7", 4, 0}, {"DELETE order?orderId=7", 0, 0}, {"DELETE openOrders?symbol=BTCUSDT", 0, 0}, {"POST order", 0, 1}, {"POST orderList/otoco", 0, 3},
		{"POST order/test", 1, 0}, {"POST order/test?computeCommissionRates=true", 20, 0},
		{"PUT order/amend/keepPriority", 4, 0}, {"POST order/cancelReplace", 0, 1},
		{"GET madeUpYesterday", 20, 0},
	} {
		var method, path string
		fmt.Sscan(test.request, &method, &path)
		req := get(t, binance+path)
		req.Method = method
		if c := cost(req); c["weight"] != test.weight || c["orders"] != test.orders {
			t.Errorf("%s costs %v, want weight %d and %d orders", test.request, c, test.weight, test.orders)
		}
	}
}

// Binance.US has weights of its own.
func TestBinanceUSWeights(t *testing.T) {
	for request, want := range map[string]throttle.Cost{
		"GET ping": {"weight": 1}, "GET exchangeInfo": {"weight": 10}, "GET account": {"weight": 10},
		"GET depth": {"weight": 1}, "GET depth?limit=500": {"weight": 5}, "GET depth?limit=1000": {"weight": 10}, "GET depth?limit=5000": {"weight": 50},
		"GET ticker/24hr": {"weight": 40}, "GET ticker/24hr?symbol=BTCUSD": {"weight": 1}, "GET ticker/price": {"weight": 2},
		"GET openOrders": {"weight": 40}, "GET openOrders?symbol=BTCUSD": {"weight": 3}, "GET rateLimit/order": {"weight": 20},
		"POST order": {"weight": 1, "orders": 1}, "DELETE order?orderId=7": {"weight": 1}, "POST order/cancelReplace": {"weight": 1, "orders": 1},
		"GET madeUpYesterday": {"weight": 20},
	} {
		method, path, _ := strings.Cut(request, " ")
		req := get(t, "https://api.binance.us/api/v3/"+path)
		req.Method = method
		if c := providers.BinanceUS().Cost(req); !maps.Equal(c, want) {
			t.Errorf("%s costs %v, want %v", request, c, want)
		}
	}
}

// Orders have no weight, so they do not wait for it. Those of Binance.US do.
func TestBinanceOrdersPassWeight(t *testing.T) {
	for _, p := range []providers.Provider{providers.Binance(), providers.BinanceUS()} {
		synctest.Test(t, func(t *testing.T) {
			host, waits := p.Hosts[0], p.Name == "binance-us"
			deep := get(t, "https://"+host+"/api/v3/depth?limit=5000")
			p.Scope("weight").Policy.Tiers[0].Limit = p.Cost(deep)["weight"]
			rt := over(t, p, accepting{})
			send(t, rt, deep)
			cancel := get(t, "https://"+host+"/api/v3/order?orderId=7")
			cancel.Method = http.MethodDelete
			for _, req := range []*http.Request{post(t, "https://"+host+"/api/v3/order"), cancel} {
				if _, _, took := send(t, rt, req); !waits && took > 0 {
					t.Errorf("%s %s waited %v for weight", req.Method, req.URL, took)
				} else if waits && req.Method == http.MethodPost && took == 0 {
					t.Errorf("%s %s did not wait for its weight", req.Method, req.URL)
				}
			}
		})
	}
}

// An account has 100 orders in 10 seconds, and each endpoint below /sapi a quota apart from the
// weight of the other requests.
func TestBinanceQuotas(t *testing.T) {
	const sapi = "https://api.binance.com/sapi/v1/"
	for _, test := range []struct {
		name string
		next func(*testing.T) *http.Request
		want int
	}{
		{"orders", func(t *testing.T) *http.Request { return post(t, binance+"order") }, 100},
		{"weight", func(t *testing.T) *http.Request { return get(t, binance+"depth?limit=5000") }, 24},
		{"sapi by account", func(t *testing.T) *http.Request { return get(t, sapi+"capital/withdraw/history") }, 10},
		{"sapi by address", func(t *testing.T) *http.Request { return get(t, sapi+"capital/config/getall") }, 12_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				if n := atOnce(t, providers.Binance(), test.want+1, func() *http.Request { return test.next(t) }); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
	t.Run("US", func(t *testing.T) {
		checkBurst(t, func() providers.Provider {
			p := providers.BinanceUS()
			p.Scope("weight").Policy.Tiers[0].Limit = 1_000_000
			return p
		}, "requests of an address", 6_100, to(t, "GET", "https://api.binance.us/api/v3/ping"))
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.BinanceUS(), 121, func() *http.Request { return get(t, "https://api.binance.us/api/v3/depth?limit=1000") }); n != 120 {
				t.Errorf("%d at once, want 120", n)
			}
		})
	})
	for header, used := range map[string]string{"X-Sapi-Used-Ip-Weight-1m": "12000", "X-Sapi-Used-Uid-Weight-1m": "180000"} {
		t.Run("sapi's weight is read: "+header, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &scripted{header: http.Header{header: {used}}}
				rt := over(t, providers.Binance(), api)
				send(t, rt, get(t, sapi+"accountSnapshot"))
				if _, _, took := send(t, rt, get(t, sapi+"margin/order")); took > 0 {
					t.Errorf("another endpoint waited %v", took)
				}
				if _, _, took := send(t, rt, get(t, sapi+"accountSnapshot")); took < 30*time.Second {
					t.Errorf("the used up endpoint waited %v", took)
				}
			})
		})
	}
}

// A refusal of an endpoint below /sapi pauses that endpoint, and an order too many of a day closes
// orders until midnight.
func TestBinanceNarrowRefusals(t *testing.T) {
	const loan = "https://api.binance.com/sapi/v1/margin/loan"
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.Binance(), api)
		api.refuse(429, `{"code":-1003,"msg":"Too many requests; current request has limited."}`)
		send(t, rt, post(t, loan))
		if _, _, took := send(t, rt, get(t, binance+"time")); took != 0 {
			t.Errorf("the market data waited %v", took)
		}
		if _, _, took := send(t, rt, post(t, loan)); took != time.Minute {
			t.Errorf("the endpoint waited %v, want a minute", took)
		}
		api.refuse(403, `{"code":-2015,"msg":"Invalid API-key, IP, or permissions for action."}`)
		send(t, rt, get(t, binance+"account"))
		if _, _, took := send(t, rt, get(t, binance+"time")); took != 0 {
			t.Errorf("a bad key made others wait %v", took)
		}
		api.refuse(429, `{"code":-1015,"msg":"Too many new orders; current limit is 200000 orders per 1 DAY."}`)
		send(t, rt, post(t, binance+"order"))
		_, err := rt.RoundTrip(post(t, binance+"order"))
		var e *throttle.WaitError
		if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Until(e.Until) != 15*time.Minute {
			t.Errorf("an order: %v, want ErrBanned for 15 minutes", err)
		}
		if _, _, took := send(t, rt, get(t, binance+"time")); took != 0 {
			t.Errorf("the market data waited %v", took)
		}
	})
}

func ExampleBinance() {
	p := providers.Binance()
	client, err := p.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, binanceAPI()) // instead of the network

	resp, err := client.Get("https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=1000")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, "for", p.Cost(resp.Request)["weight"], "of 6000 a minute")
	// Output: 200 OK for 50 of 6000 a minute
}
