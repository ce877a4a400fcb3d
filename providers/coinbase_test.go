package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const exchange = "https://api.exchange.coinbase.com"

// private returns a request of one profile.
func private(t *testing.T, path string) *http.Request {
	req := get(t, exchange+path)
	req.Header.Set("CB-ACCESS-KEY", "key")
	return req
}

func TestCoinbaseExchange(t *testing.T) {
	d := long(time.Minute)
	for _, load := range []struct {
		name string
		rate float64 // a second
		next func(*testing.T) *http.Request
	}{
		{"public", 10, func(t *testing.T) *http.Request { return get(t, exchange+"/products") }},
		{"private", 15, func(t *testing.T) *http.Request { return private(t, "/orders") }},
		{"fills", 10, func(t *testing.T) *http.Request { return private(t, "/fills") }},
		{"loans", 10, func(t *testing.T) *http.Request { return private(t, "/loans") }},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("coinbaseexchange")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				saturate(t, over(t, providers.CoinbaseExchange(), api), 8, d, func(int) *http.Request { return load.next(t) })
				checkServed(t, api, 0.97*load.rate*d.Seconds())
			})
		})
	}
	t.Run("all at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("coinbaseexchange")
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			paths := []string{"/orders", "/fills", "/loans", "/accounts"}
			saturate(t, over(t, providers.CoinbaseExchange(), api), 16, d, func(worker int) *http.Request {
				if worker%2 == 0 {
					return get(t, exchange+"/products")
				}
				return private(t, paths[worker/2%len(paths)])
			})
			checkServed(t, api, 0.97*(10+15+10+10)*d.Seconds())
		})
	})
	t.Run("the list of loan assets is public", func(t *testing.T) {
		p, req := providers.CoinbaseExchange(), private(t, "/loans/assets")
		for scope, want := range map[string]bool{"address": true, "profile": false, "loans": false} {
			if _, counts := p.Scope(scope).Key(req); counts != want {
				t.Errorf("%s: counts %v", scope, counts)
			}
		}
	})
	t.Run("a 429 without a wait pauses only the profile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("coinbaseexchange")
			rt := over(t, providers.CoinbaseExchange(), api)
			api.Trap(fakeapi.Reply{Status: http.StatusTooManyRequests, Body: `{"message":"Too many requests"}`})
			if status, body, _ := send(t, rt, private(t, "/orders")); status != 429 || body != `{"message":"Too many requests"}` {
				t.Errorf("%d %s", status, body)
			}
			if _, _, took := send(t, rt, get(t, exchange+"/products")); took != 0 {
				t.Errorf("a public request waited %v", took)
			}
			if _, _, took := send(t, rt, private(t, "/orders")); took < time.Second || took > 2*time.Second {
				t.Errorf("a private request waited %v, want one to two seconds", took)
			}
		})
	})
}

func TestCoinbaseApp(t *testing.T) {
	soak.Long(t, "it plays an hour at the full rate")
	synctest.Test(t, func(t *testing.T) {
		api := standIn("coinbaseapp")
		api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
		rt := over(t, providers.CoinbaseApp(), api)
		saturate(t, rt, 8, 2*time.Hour, func(int) *http.Request { return get(t, "https://api.coinbase.com/v2/accounts") })
		checkServed(t, api, 20_000)
		if _, _, took := send(t, rt, get(t, "https://api.coinbase.com/api/v3/brokerage/accounts")); took > time.Second {
			t.Errorf("Advanced Trade waited %v for another API", took)
		}
	})
}

const advanced = "https://api.coinbase.com/api/v3/brokerage/"

// The two APIs of api.coinbase.com share no quota.
func TestCoinbaseAdvanced(t *testing.T) {
	for path, want := range map[string]int{"accounts": 30, "orders": 30, "best_bid_ask": 30, "market/products": 10, "time": 10, "timetable": 30} {
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.CoinbaseApp(), 40, func() *http.Request { return get(t, advanced+path) }); n != want {
				t.Errorf("%s: %d at once, want %d", path, n, want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.CoinbaseApp(), api)
		send(t, rt, get(t, advanced+"market/products"))
		api.refuse(429, "<html>")
		send(t, rt, post(t, advanced+"orders"))
		for _, url := range []string{"https://api.coinbase.com/v2/accounts", advanced + "market/products"} {
			if _, _, took := send(t, rt, get(t, url)); took != 0 {
				t.Errorf("%s waited %v for Advanced Trade's user", url, took)
			}
		}
		if _, _, took := send(t, rt, get(t, advanced+"accounts")); took < time.Second || took > 2*time.Second {
			t.Errorf("Advanced Trade waited %v, want one to two seconds", took)
		}
	})
	t.Run("what is left is read, and no reset", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := &scripted{header: http.Header{"X-Ratelimit-Limit": {"30"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"1893456000"}}}
			rt := over(t, providers.CoinbaseApp(), api)
			send(t, rt, get(t, advanced+"accounts"))
			if _, _, took := send(t, rt, get(t, advanced+"accounts")); took == 0 || took > 2*time.Second {
				t.Errorf("waited %v, want about a second", took)
			}
		})
	})
}

func ExampleCoinbaseExchange() {
	client, err := providers.CoinbaseExchange().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("coinbaseexchange")) // instead of the network

	resp, err := client.Get("https://api.exchange.coinbase.com/products")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}

func ExampleCoinbaseApp() {
	client, err := providers.CoinbaseApp().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("coinbaseapp")) // instead of the network

	resp, err := client.Get("https://api.coinbase.com/v2/accounts")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
