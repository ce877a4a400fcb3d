package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

const bybit = "https://api.bybit.com/v5/"

// bybitCall returns a signed request with a JSON body.
func bybitCall(t *testing.T, path, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, bybit+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-BAPI-API-KEY", "key")
	return req
}

// bybitBatch returns a batch of n orders.
func bybitBatch(category string, n int) string {
	return fmt.Sprintf(`{"category":%q,"request":[%s]}`, category, strings.TrimSuffix(strings.Repeat(`{"symbol":"BTCUSDT"},`, n), ","))
}

func TestBybitQuotas(t *testing.T) {
	for _, test := range []struct {
		path, body string
		want       int // at once
	}{
		{"order/create", `{"category":"linear"}`, 10},
		{"order/create", `{"category":"option"}`, 10},
		{"order/create", `{"category":"spot"}`, 20},
		{"order/create", ``, 10},
		{"order/amend", `{"category":"spot"}`, 10},
		{"order/cancel-all", `{"category":"linear"}`, 10},
		{"order/cancel-all", `{"category":"option"}`, 1},
		{"order/create-batch", bybitBatch("linear", 5), 2},
		{"order/create-batch", bybitBatch("spot", 5), 4},
		{"order/create-batch", bybitBatch("option", 5), 10},
		{"order/create-batch", ``, 1},
		{"order/realtime", ``, 50},
		{"position/set-leverage", ``, 10},
		{"account/transaction-log", ``, 25},
		{"asset/transfer/inter-transfer", ``, 60},
		{"rfq/create-quote", ``, 50},
		{"p2p/item/online", ``, 5},
		{"fiat/balance-query", ``, 600},
		{"market/tickers", ``, 600},
	} {
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.Bybit(), 700, func() *http.Request { return bybitCall(t, test.path, test.body) }); n != test.want {
				t.Errorf("%s %s: %d at once, want %d", test.path, test.body, n, test.want)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, providers.Bybit(), 700, func() *http.Request { return get(t, "https://api.bytick.com/v5/market/tickers") }); n != 600 {
			t.Errorf("%d public requests at once, want 600", n)
		}
	})
	t.Run("categories and batches are apart", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rt, n := over(t, providers.Bybit(), accepting{}), 0
			for _, call := range [][2]string{{"order/create", `{"category":"linear"}`}, {"order/create", `{"category":"inverse"}`}, {"order/create-batch", bybitBatch("linear", 1)}, {"order/cancel", `{"category":"linear"}`}} {
				for range 10 {
					if _, _, took := send(t, rt, bybitCall(t, call[0], call[1])); took == 0 {
						n++
					}
				}
			}
			if n != 40 {
				t.Errorf("%d of 40 at once", n)
			}
		})
	})
}

func TestBybitRefusals(t *testing.T) {
	order := func(t *testing.T) *http.Request { return bybitCall(t, "order/create", `{"category":"linear"}`) }
	positions := func(t *testing.T) *http.Request { return bybitCall(t, "position/list", ``) }
	for _, test := range []struct {
		name        string
		refusal     fixture
		least, most time.Duration // that another order waits
		banned      bool          // all are refused
	}{
		{"endpoint", fixture{Status: 200, Body: `{"retCode":10006,"retMsg":"Too many visits!"}`, Headers: map[string]any{
			"X-Bapi-Limit": "10", "X-Bapi-Limit-Status": "0", "X-Bapi-Limit-Reset-Timestamp": "946684800361",
		}}, 361 * time.Millisecond, 2 * time.Second, false},
		{"without a header", fixture{Status: 200, Body: `{"retCode":10006,"retMsg":"Too many visits!"}`}, time.Second, time.Second, false},
		{"one order", fixture{Status: 200, Body: `{"retCode":130035,"retMsg":"Too fast to cancel"}`}, 0, 0, false},
		{"clock", fixture{Status: 200, Body: `{"retCode":10002,"retMsg":"The request time exceeds the time window range."}`}, 0, 0, false},
		{"overload", fixture{Status: 429, Body: `{"retCode":429,"retMsg":"The trading service is experiencing a high server load."}`}, 0, 0, false},
		{"ban", fixture{Status: 403, Body: "403, access too frequent"}, 0, 0, true},
		{"region", fixture{Status: 403, Body: "<HTML>403 ERROR"}, 0, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := &scripted{next: []fixture{test.refusal}}
				rt := over(t, providers.Bybit(), api)
				send(t, rt, order(t))
				if test.banned {
					start := time.Now()
					_, err := rt.RoundTrip(positions(t))
					var e *throttle.WaitError
					if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || !e.Until.Equal(start.Add(10*time.Minute)) {
						t.Errorf("%v, want a ban of ten minutes", err)
					}
					return
				}
				if _, _, took := send(t, rt, positions(t)); took != 0 {
					t.Errorf("another endpoint waited %v", took)
				}
				if _, _, took := send(t, rt, order(t)); took < test.least || took > test.most {
					t.Errorf("an order waited %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
	t.Run("what is left is read, without a reset", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := &scripted{header: http.Header{"X-Bapi-Limit": {"10"}, "X-Bapi-Limit-Status": {"1"}, "X-Bapi-Limit-Reset-Timestamp": {"946684800000"}}}
			rt := over(t, providers.Bybit(), api)
			send(t, rt, order(t))
			if _, _, took := send(t, rt, order(t)); took != 0 {
				t.Errorf("the last order waited %v", took)
			}
			if _, _, took := send(t, rt, order(t)); took == 0 || took > 2*time.Second {
				t.Errorf("an order too many waited %v", took)
			}
		})
	})
}
