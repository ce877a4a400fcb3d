package providers

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var binanceFuturesPreset = Preset{Name: "binance-futures", Constructor: "BinanceFutures()", kind: "Exchanges and blockchains", New: BinanceFutures}

// BinanceFutures is the REST API of Binance's futures, with the limits of one IP address and one
// account. Futures margined in USD are at fapi.binance.com, and futures margined in coins at
// dapi.binance.com. Each host has quotas of its own. An IP address has a weight of 2,400 a minute.
// An account has 300 orders in 10 seconds and 1,200 a minute; a changed order counts as a new one,
// and a canceled order does not count. A batch counts as 5 orders in the 10 seconds and as 1 in the
// minute. Queries of funding rates weigh nothing and have 500 in 5 minutes together. The limits of
// your account are in rateLimits of GET /fapi/v1/exchangeInfo.
//
// The weight of a request depends on its path and parameters; an unknown path weighs 20. The weight
// and orders that a response reports as used replace the limiter's own counts. Windows, signatures,
// refusals and bans work as for [Binance]. A refusal for weight names no wait; it pauses the host
// for a minute.
//
// Over WebSocket, a connection to the streams has 10 messages a second.
//
// The portfolio margin API, options and the test networks have other hosts and are not limited
// here.
func BinanceFutures() Provider {
	const page = "https://developers.binance.com/docs/derivatives/usds-margined-futures/general-info"
	const funding = "https://developers.binance.com/docs/derivatives/usds-margined-futures/market-data/rest-api/Get-Funding-Rate-Info"
	used := func(unit, header string, window time.Duration) answers.Quota {
		return answers.Quota{Name: "ORDERS", Unit: unit, Authoritative: true, Window: window, Used: answers.Field{Header: header}}
	}
	return Provider{
		Name: "binance-futures",
		Scopes: []Scope{
			some("orders", page, perHost(func(req *http.Request) bool { return binanceFuturesOrders(req) > 0 }),
				fixed(300, 10*time.Second, "orders-10s"), fixed(1_200, time.Minute, "orders-1m")),
			byAddress(some("funding", funding, perHost(binanceFunding), fixed(500, 5*time.Minute, ""))),
			byAddress(some("address", page, perHost(func(*http.Request) bool { return true }), fixed(2_400, time.Minute, "weight"))),
		},
		Cost: func(req *http.Request) throttle.Cost {
			c := throttle.Cost{"weight": binanceFuturesWeight(req)}
			if n := binanceFuturesOrders(req); n > 0 {
				c["orders-10s"], c["orders-1m"] = n, 1
			}
			return c
		},
		SendBy: binanceSendBy,
		Profile: binanceProfile(
			used("orders-10s", "X-Mbx-Order-Count-10s", 10*time.Second),
			used("orders-1m", "X-Mbx-Order-Count-1m", time.Minute)),
		Hosts: []string{"fapi.binance.com", "dapi.binance.com"},
		Sockets: []Scope{binanceMessages("binance-futures",
			"https://developers.binance.com/docs/derivatives/usds-margined-futures/websocket-market-streams", 10)},
	}
}

// perHost returns the Key of a scope with a quota for each host, of the requests for which counts
// is true.
func perHost(counts func(*http.Request) bool) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		return hostOf(req), counts(req)
	}
}

// binanceFuturesPath returns the path of a request without the product and the version.
func binanceFuturesPath(req *http.Request) string {
	_, path, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	_, path, _ = strings.Cut(path, "/")
	return path
}

// binanceFuturesOrders returns the number of orders that a request places or changes, in the window
// of 10 seconds.
func binanceFuturesOrders(req *http.Request) int64 {
	if req.Method != http.MethodPost && req.Method != http.MethodPut {
		return 0
	}
	switch binanceFuturesPath(req) {
	case "order":
		return 1
	case "batchOrders":
		return 5
	}
	return 0
}

// binanceFunding reports whether a request is for funding rates.
func binanceFunding(req *http.Request) bool {
	path := binanceFuturesPath(req)
	return path == "fundingRate" || path == "fundingInfo"
}

// binanceFuturesWeights are the weights of GET requests by path, from ccxt's table
// (https://github.com/ccxt/ccxt/blob/a1b3a1c/ts/src/binance.ts, read on 2026-11-22). Where the two
// products differ, the higher weight.
var binanceFuturesWeights = map[string]weight{
	"ping": always(1), "time": always(1), "exchangeInfo": always(1), "fundingRate": always(0), "fundingInfo": always(0),
	"depth":  byNumber(limitOr(500), 50, 2, 100, 5, 500, 10, 20),
	"trades": always(5), "historicalTrades": always(20), "aggTrades": always(20), "premiumIndex": always(10),
	"klines": candles, "continuousKlines": candles, "indexPriceKlines": candles, "markPriceKlines": candles,
	"ticker/24hr": with("symbol", 1, 40), "ticker/price": with("symbol", 1, 2), "ticker/bookTicker": with("symbol", 2, 5),
	"openInterest": always(1), "indexInfo": always(1), "leverageBracket": always(1),
	"order": always(1), "openOrder": always(1), "openOrders": with("symbol", 1, 40), "allOrders": with("symbol", 20, 40),
	"account": always(5), "balance": always(5), "positionRisk": always(5), "userTrades": with("symbol", 20, 40),
	"income": always(30), "commissionRate": always(20), "forceOrders": with("symbol", 20, 50), "adlQuantile": always(5),
	"positionSide/dual": always(30), "multiAssetsMargin": always(30), "positionMargin/history": always(1),
}

// candles is the weight of a request for candlesticks.
var candles = byNumber(limitOr(500), 99, 1, 499, 2, 1000, 5, 10)

// limitOr returns the parameter limit, or n if there is none.
func limitOr(n int) func(url.Values) int {
	return func(q url.Values) int {
		if limit, err := strconv.Atoi(q.Get("limit")); err == nil {
			return limit
		}
		return n
	}
}

// binanceFuturesWeight returns the weight of a request.
func binanceFuturesWeight(req *http.Request) int64 {
	const unknown = 20
	path := binanceFuturesPath(req)
	of, known := binanceFuturesWeights[path]
	switch {
	case req.Method == http.MethodGet && known:
		return of(req.URL.Query())
	case req.Method == http.MethodGet:
		return unknown
	case path == "batchOrders":
		return 5
	case binanceFuturesOrders(req) > 0:
		return 0
	case path == "countdownCancelAll":
		return 10
	}
	return 1
}
