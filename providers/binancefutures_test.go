package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/providers"
)

const fapi, dapi = "https://fapi.binance.com/fapi/v1/", "https://dapi.binance.com/dapi/v1/"

func TestBinanceFuturesQuotas(t *testing.T) {
	for _, test := range []struct {
		request string
		want    int // at once
	}{
		{"POST " + fapi + "order", 300},
		{"PUT " + fapi + "order", 300},
		{"POST " + dapi + "order", 300},
		{"POST " + fapi + "batchOrders", 60},
		{"DELETE " + fapi + "order", 2_400},
		{"GET " + fapi + "klines?limit=1500", 240},
		{"GET " + fapi + "klines", 480},
		{"GET " + fapi + "depth?limit=1000", 120},
		{"GET " + dapi + "ticker/24hr", 60},
		{"GET " + fapi + "fundingRate", 500},
		{"GET https://fapi.binance.com/futures/data/openInterestHist", 120},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := atOnce(t, providers.BinanceFutures(), 3_000, func() *http.Request { return request(t, test.request) })
			if n != test.want {
				t.Errorf("%s: %d at once, want %d", test.request, n, test.want)
			}
		})
	}
}

// request returns a request from its method and address.
func request(t *testing.T, text string) *http.Request {
	t.Helper()
	var method, url string
	if _, err := fmt.Sscan(text, &method, &url); err != nil {
		t.Fatal(err)
	}
	req := get(t, url)
	req.Method = method
	return req
}

// The two products share nothing, and a refusal for weight lasts until the minute has ended.
func TestBinanceFuturesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{}
		rt := over(t, providers.BinanceFutures(), api)
		send(t, rt, get(t, fapi+"time"))
		api.refuse(429, `{"code":-1003,"msg":"Too many requests; current limit of IP(38.25.70.6) is 2400 requests per minute. Please use the websocket for live updates to avoid polling the API."}`)
		send(t, rt, get(t, fapi+"income"))
		if _, _, took := send(t, rt, get(t, dapi+"time")); took != 0 {
			t.Errorf("dapi waited %v for fapi", took)
		}
		if _, _, took := send(t, rt, post(t, fapi+"order")); took != time.Minute {
			t.Errorf("fapi waited %v, want a minute", took)
		}
		api.refuse(429, `{"code":-1015,"msg":"Too many new orders; current limit is 300 orders per 10 SECOND."}`)
		send(t, rt, post(t, fapi+"order"))
		if _, _, took := send(t, rt, request(t, "DELETE "+fapi+"order")); took != 0 {
			t.Errorf("a cancel waited %v for orders", took)
		}
		if _, _, took := send(t, rt, post(t, fapi+"order")); took < time.Second || took > 2*time.Second {
			t.Errorf("an order waited %v, want one to two seconds", took)
		}
		api.refuse(503, `{"code":-1008,"msg":"Request throttled by system-level protection. Reduce-only/close-position orders are exempt. Please try again."}`)
		send(t, rt, post(t, fapi+"order"))
		if _, _, took := send(t, rt, post(t, fapi+"order")); took != 0 {
			t.Errorf("an order waited %v for an overload", took)
		}
		until := time.Now().Add(25 * time.Minute)
		api.refuse(418, fmt.Sprintf(`{"code":-1003,"msg":"Way too many requests; IP(88.238.33.41) banned until %d. Please use the websocket for live updates to avoid bans."}`, until.UnixMilli()))
		send(t, rt, get(t, fapi+"time"))
		_, err := rt.RoundTrip(get(t, fapi+"time"))
		var e *throttle.WaitError
		if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || !e.Until.Equal(until.Truncate(time.Millisecond)) {
			t.Errorf("%v, want ErrBanned until %v", err, until)
		}
	})
}

// Reports of one window replace the count of that window only.
func TestBinanceFuturesReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &scripted{header: http.Header{"X-Mbx-Order-Count-10s": {"5"}, "X-Mbx-Order-Count-1m": {"1200"}, "X-Mbx-Used-Weight-1m": {"41"}}}
		rt := over(t, providers.BinanceFutures(), api)
		send(t, rt, post(t, fapi+"order"))
		if _, _, took := send(t, rt, get(t, fapi+"depth")); took != 0 {
			t.Errorf("a query waited %v", took)
		}
		if _, _, took := send(t, rt, post(t, fapi+"order")); took < 30*time.Second || took > time.Minute+time.Second {
			t.Errorf("an order waited %v, want about a minute", took)
		}
	})
}

func TestBinanceFuturesSendBy(t *testing.T) {
	transport, err := providers.BinanceFutures().Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	signed := time.UnixMilli(1_700_000_000_000)
	if by := transport.SendBy(get(t, fapi+"order?timestamp=1700000000000&recvWindow=3000")); !by.Equal(signed.Add(3 * time.Second)) {
		t.Errorf("send by %v", by)
	}
}
