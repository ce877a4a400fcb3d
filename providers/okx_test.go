package providers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/providers"
)

const okx = "https://www.okx.com/api/v5/"

// okxCall returns a request with a JSON body.
func okxCall(t *testing.T, path, body string) *http.Request {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, okx+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// okxBatch returns a batch of orders.
func okxBatch(instruments ...string) string {
	return `[{"instId":"` + strings.Join(instruments, `"},{"instId":"`) + `"}]`
}

func TestOKXQuotas(t *testing.T) {
	const spot, swap = `{"instId":"BTC-USDT"}`, `{"instId":"BTC-USDT-SWAP"}`
	for _, test := range []struct {
		path, body string
		want       int // at once
	}{
		{"trade/order", spot, 60},
		{"trade/order", swap, 60},
		{"trade/order", "{", 60},
		{"trade/cancel-order", spot, 60},
		{"trade/order", "", 60}, // a query
		{"trade/batch-orders", okxBatch("BTC-USDT"), 60},
		{"trade/batch-orders", okxBatch("BTC-USDT", "BTC-USDT"), 150},
		{"trade/batch-orders", okxBatch("BTC-USDT", "ETH-USDT", "BTC-USDT"), 100},
		{"trade/batch-orders", "{", 15},
		{"trade/cancel-algos", okxBatch("BTC-USDT"), 20},
		{"trade/cancel-algos", okxBatch("BTC-USDT", "BTC-USDT", "BTC-USDT", "BTC-USDT"), 5},
		{"trade/cancel-algos", "{", 2},
		{"trade/orders-pending", "", 60},
		{"account/balance", "", 10},
		{"market/ticker?instId=BTC-USDT", "", 20},
		{"market/books?instId=BTC-USDT", "", 40},
		{"asset/transfer", "{}", 2},
		{"some/thing-new", "", 5},
	} {
		synctest.Test(t, func(t *testing.T) {
			if n := atOnce(t, providers.OKX(), 400, func() *http.Request { return okxCall(t, test.path, test.body) }); n != test.want {
				t.Errorf("%s %s: %d at once, want %d", test.path, test.body, n, test.want)
			}
		})
	}
	t.Run("instruments are apart, options by family", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rt := over(t, providers.OKX(), accepting{})
			waits := func(instrument string) (n int) {
				for range 60 {
					if _, _, took := send(t, rt, okxCall(t, "trade/order", `{"instId":"`+instrument+`"}`)); took > 0 {
						return 1
					}
				}
				return 0
			}
			if n := waits("BTC-USDT") + waits("BTC-USDT-SWAP") + waits("ETH-USDT-SWAP") + waits("BTC-USD-261225-60000-C"); n > 0 {
				t.Errorf("%d of four instruments waited", n)
			}
			if waits("BTC-USD-261225-70000-P") == 0 {
				t.Error("another option of the family did not wait")
			}
		})
	})
	t.Run("orders of a sub-account", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rt := over(t, providers.OKX(), accepting{})
			for i := range 50 {
				body := okxBatch(slices.Repeat([]string{fmt.Sprintf("X%d-USDT-SWAP", i)}, 20)...)
				if _, _, took := send(t, rt, okxCall(t, "trade/batch-orders", body)); took != 0 {
					t.Fatalf("order %d waited %v", 20*i, took)
				}
			}
			if _, _, took := send(t, rt, okxCall(t, "trade/cancel-order", swap)); took != 0 {
				t.Errorf("a cancel waited %v", took)
			}
			if _, _, took := send(t, rt, okxCall(t, "trade/order", spot)); took != 0 {
				t.Errorf("a spot order waited %v", took)
			}
			if _, _, took := send(t, rt, okxCall(t, "trade/order", swap)); took == 0 {
				t.Error("order 1,001 did not wait")
			}
		})
	})
}

func TestOKXRefusals(t *testing.T) {
	order := func(t *testing.T, instrument string) *http.Request {
		return okxCall(t, "trade/order", `{"instId":"`+instrument+`"}`)
	}
	for _, test := range []struct {
		name               string
		status             int
		body               string
		same, other, query time.Duration // how long an order of the instrument, of another one, and a query wait
	}{
		{"endpoint", 200, `{"code":"50011","msg":"Rate limit reached.","data":[]}`, 2 * time.Second, 0, 0},
		{"endpoint, a number", 429, `{"msg":"Requests too frequent.","code":50011}`, 2 * time.Second, 0, 0},
		{"sub-account", 200, `{"code":"50061","msg":"You've reached the maximum order rate limit for this account.","data":[]}`, 2 * time.Second, 2 * time.Second, 0},
		{"sub-account, in data", 200, `{"code":"1","msg":"","data":[{"sCode":"50061","sMsg":"","ordId":""}]}`, 2 * time.Second, 2 * time.Second, 0},
		{"overload", 429, `{"code":"50013","msg":"Systems are busy. Please try again later.","data":[]}`, 0, 0, 0},
		{"timestamp", 401, `{"code":"50102","msg":"Timestamp request expired","data":[]}`, 0, 0, 0},
	} {
		for name, want := range map[string]time.Duration{"BTC-USDT-SWAP": test.same, "ETH-USDT-SWAP": test.other, "": test.query} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					api := &scripted{}
					rt := over(t, providers.OKX(), api)
					api.refuse(test.status, test.body)
					send(t, rt, order(t, "BTC-USDT-SWAP"))
					req := okxCall(t, "account/balance", "")
					if name != "" {
						req = order(t, name)
					}
					if _, _, took := send(t, rt, req); took != want {
						t.Errorf("waited %v, want %v", took, want)
					}
				})
			})
		}
	}
}
