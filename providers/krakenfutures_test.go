package providers_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/providers"
)

const krakenFutures = "https://futures.kraken.com/derivatives/api/v3/"

// signed adds a key to a request.
func signedKraken(req *http.Request) *http.Request {
	req.Header.Set("APIKey", "key")
	return req
}

// batch returns a batch of n orders, or one whose body can be read once only.
func batch(t *testing.T, n int) *http.Request {
	t.Helper()
	orders := strings.TrimSuffix(strings.Repeat(`{"order":"cancel","order_id":"1"},`, n), ",")
	form := url.Values{"json": {`{"batchOrder":[` + orders + `]}`}}.Encode()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, krakenFutures+"batchorder", strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	return signedKraken(req)
}

func TestKrakenFuturesQuotas(t *testing.T) {
	const history = "https://futures.kraken.com/api/history/v2/"
	for _, test := range []struct {
		request string
		want    int // at once
	}{
		{"POST " + krakenFutures + "sendorder", 50},
		{"POST " + krakenFutures + "cancelallorders", 20},
		{"GET " + krakenFutures + "accounts", 250},
		{"GET " + krakenFutures + "fills", 250},
		{"GET " + krakenFutures + "fills?lastFillTime=2026-11-22T00:00:00Z", 20},
		{"GET " + krakenFutures + "leveragepreferences", 250},
		{"PUT " + krakenFutures + "leveragepreferences", 50},
		{"GET " + krakenFutures + "subaccount/1/trading-enabled", 250},
		{"GET " + krakenFutures + "assignmentprogram/current", 50}, // not on the page
		{"GET " + history + "executions", 100},
		{"GET " + history + "account-log", 33},
		{"GET " + history + "account-log?count=10", 100},
		{"GET " + history + "account-log?count=100000", 10},
		{"GET " + history + "accountlogcsv", 16},
		{"GET " + history + "market/PI_XBTUSD/executions", 600},
	} {
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.KrakenFutures(), 600, func() *http.Request { return signedKraken(request(t, test.request)) }); n != test.want {
				t.Errorf("%s: %d at once, want %d", test.request, n, test.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, providers.KrakenFutures(), 600, func() *http.Request { return get(t, krakenFutures+"tickers") }); n != 600 {
			t.Errorf("%d public requests at once, want all", n)
		}
	})
}

func TestKrakenFuturesBatches(t *testing.T) {
	cost := providers.KrakenFutures().Cost
	once := batch(t, 3)
	once.GetBody = nil
	for want, req := range map[int64]*http.Request{10: batch(t, 1), 14: batch(t, 5), 19: once} {
		if c := cost(req); c["points"] != want {
			t.Errorf("a batch costs %v, want %d points", c, want)
		}
	}
}

// The two pools pause apart.
func TestKrakenFuturesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.KrakenFutures(), api)
		history := func() *http.Request {
			return signedKraken(get(t, "https://futures.kraken.com/api/history/v2/orders"))
		}
		order := func() *http.Request { return signedKraken(post(t, krakenFutures+"sendorder")) }
		send(t, rt, order())
		api.refuse(200, `{"result":"error","error":"apiLimitExceeded"}`)
		send(t, rt, history())
		if _, _, took := send(t, rt, order()); took != 0 {
			t.Errorf("an order waited %v for the history", took)
		}
		if _, _, took := send(t, rt, history()); took < time.Second || took > 2*time.Second {
			t.Errorf("the history waited %v, want one to two seconds", took)
		}
		api.refuse(200, `{"result":"error","serverTime":"2020-08-27T17:03:33.196Z","error":"nonceBelowThreshold"}`)
		send(t, rt, order())
		if _, _, took := send(t, rt, order()); took != 0 {
			t.Errorf("an order waited %v for a bad nonce", took)
		}
	})
}
