package fakeapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
)

func request(t *testing.T, method, url, body string, header ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return req
}

func do(t *testing.T, rt http.RoundTripper, req *http.Request) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Each API serves requests at once up to its limit and refuses the next.
func TestLimits(t *testing.T) {
	const exchange, stripe = "https://api.exchange.coinbase.com", "https://api.stripe.com/v1/"
	get := func(url string, header ...string) func(*testing.T, int) *http.Request {
		return func(t *testing.T, _ int) *http.Request { return request(t, "GET", url, "", header...) }
	}
	kraken := func(call, form string) func(*testing.T, int) *http.Request {
		return func(t *testing.T, _ int) *http.Request {
			return request(t, "POST", "https://api.kraken.com/0/private/"+call, form)
		}
	}
	binance := func(method, path string) func(*testing.T, int) *http.Request {
		return func(t *testing.T, _ int) *http.Request {
			return request(t, method, "https://api.binance.com/api/v3/"+path, "")
		}
	}
	for _, test := range []struct {
		name    string
		api     func() *fakeapi.Server
		next    func(*testing.T, int) *http.Request
		allowed int
		by      string
	}{
		{"Coinbase Exchange, public", fakeapi.CoinbaseExchange, get(exchange + "/products"), 15, "address"},
		{"Coinbase Exchange, private", fakeapi.CoinbaseExchange, get(exchange+"/orders", "CB-ACCESS-KEY", "k"), 30, "profile"},
		{"Coinbase Exchange, fills", fakeapi.CoinbaseExchange, get(exchange+"/fills", "CB-ACCESS-KEY", "k"), 20, "fills"},
		{"Coinbase Exchange, loans", fakeapi.CoinbaseExchange, get(exchange+"/loans", "CB-ACCESS-KEY", "k"), 10, "loans"},
		{"Coinbase App", fakeapi.CoinbaseApp, get("https://api.coinbase.com/v2/accounts"), 10_000, "key"},
		{"Binance, weight", fakeapi.Binance, binance("GET", "depth?limit=1000"), 120, "weight"},
		{"Binance, orders", fakeapi.Binance, binance("POST", "order"), 50, "orders"},
		{"Kraken, calls", fakeapi.Kraken, kraken("Balance", ""), 15, "EAPI:Rate limit exceeded"},
		{"Kraken, ledgers", fakeapi.Kraken, kraken("Ledgers", ""), 7, "EAPI:Rate limit exceeded"},
		{"Kraken, orders", fakeapi.Kraken, kraken("AddOrder", "pair=XBTUSD"), 60, "EOrder:Rate limit exceeded"},
		{"Etherscan", fakeapi.Etherscan, get("https://api.etherscan.io/v2/api"), 3, "account"},
		{"Stripe, account", fakeapi.Stripe, func(t *testing.T, i int) *http.Request {
			return request(t, "GET", fmt.Sprintf("%s%c", stripe, 'a'+i%8), "")
		}, 100, "global-rate"},
		{"Stripe, endpoint", fakeapi.Stripe, func(t *testing.T, i int) *http.Request {
			return request(t, "GET", fmt.Sprintf("%scustomers/cus_%d", stripe, i), "")
		}, 25, "endpoint-rate"},
		{"Stripe, search", fakeapi.Stripe, get(stripe + "charges/search"), 20, "endpoint-rate"},
		{"Stripe, sandbox", fakeapi.Stripe, func(t *testing.T, i int) *http.Request {
			return request(t, "GET", fmt.Sprintf("%s%c", stripe, 'a'+i%8), "", "Authorization", "Bearer sk_test_1")
		}, 25, "global-rate"},
		{"Twilio", func() *fakeapi.Server { return fakeapi.Twilio(7) }, get("https://api.twilio.com/"), 7, "concurrency"},
		{"Shopify REST", fakeapi.ShopifyREST, get("https://one.myshopify.com/admin/api/2026-07/products.json"), 40, "bucket"},
		{"Shopify GraphQL", fakeapi.ShopifyGraphQL, func(t *testing.T, _ int) *http.Request {
			return request(t, "POST", "https://one.myshopify.com/", `{"variables":{"requested":50,"actual":7}}`)
		}, 40, "points"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := test.api()
				for i := range test.allowed + 1 {
					do(t, api, test.next(t, i)) // the body stays open
				}
				if served, refused := api.Served(), api.Refused()[test.by]; served != test.allowed || refused != 1 {
					t.Errorf("%d served and %v refused, want %d and one by %s", served, api.Refused(), test.allowed, test.by)
				}
			})
		})
	}
}

func TestBinanceBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.Binance()
		send := func() *http.Response {
			return do(t, api, request(t, "GET", "https://api.binance.com/api/v3/depth?limit=5000", ""))
		}
		for range 24 {
			send()
		}
		for i, want := range []struct {
			status int
			wait   string
			sleep  time.Duration
		}{
			{429, "60", 59 * time.Second}, {418, "120", 119 * time.Second}, {418, "1", time.Second}, {200, "", 0},
		} {
			resp := send()
			if resp.StatusCode != want.status || resp.Header.Get("Retry-After") != want.wait {
				t.Errorf("request %d: %d, Retry-After %q, want %+v", i, resp.StatusCode, resp.Header.Get("Retry-After"), want)
			}
			time.Sleep(want.sleep)
		}
	})
}

func TestTrapsAndClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fakeapi.Etherscan()
		api.Skew = time.Minute
		api.Latency = func() time.Duration { return time.Second }
		api.Trap(fakeapi.Reply{Status: 418, Body: "short and stout"})
		resp := do(t, api, request(t, "GET", "https://api.etherscan.io/", ""))
		if date := resp.Header.Get("Date"); resp.StatusCode != 418 || date != "Sat, 01 Jan 2000 00:01:01 GMT" {
			t.Errorf("%d at %s", resp.StatusCode, date)
		}
		if api.Served() != 0 || len(api.Refused()) != 0 {
			t.Errorf("a trap was counted: %d served, %v refused", api.Served(), api.Refused())
		}
		if resp := do(t, api, request(t, "GET", "https://api.etherscan.io/", "")); resp.StatusCode != 200 {
			t.Errorf("the next call was answered %d", resp.StatusCode)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := api.RoundTrip(request(t, "GET", "https://api.etherscan.io/", "").WithContext(ctx)); err != context.DeadlineExceeded || api.Served() != 1 {
			t.Errorf("canceled during Latency: %v, %d served", err, api.Served())
		}
	})
}

func TestServer(t *testing.T) {
	api := fakeapi.Twilio(1)
	server := httptest.NewServer(api)
	defer server.Close()
	for range 3 { // each ends when it is answered
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != `{"status":"queued"}` || resp.Header.Get("Twilio-Concurrent-Requests") != "1" {
			t.Errorf("%v %s, %v", resp.Header, body, err)
		}
	}
}
