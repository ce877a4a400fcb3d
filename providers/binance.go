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

// Binance is Binance's Spot REST API. An IP address has a weight of 6,000 a minute and 61,000
// requests in 5 minutes; an account has 50 orders in 10 seconds and 160,000 a day. The limits of
// your account are in rateLimits of GET /api/v3/exchangeInfo.
//
// Binance counts in windows of its own clock. The windows here have unknown boundaries and behave
// like rolling windows, which need no synchronized clocks and admit as much in the long run.
//
// The weight of a request depends on its path and parameters; an unknown path weighs 20. The weight
// and orders that a response reports as used replace the limiter's own counts, because some
// requests weigh more when they fail, and a filled order no longer counts.
//
// A signed request is valid for recvWindow after its timestamp. A request that would have to wait
// longer fails at once with throttle.ErrDeadline, because Binance would refuse it and still count
// it. This check uses the clock of this machine. If your timestamps follow Binance's clock and the
// clocks differ, set SendBy to another function, or to nil. A request signed below the transport,
// in its Base, is always fresh.
//
// A client that continues after a 429 is banned for 2 minutes to 3 days. Callers then get
// throttle.ErrBanned with the time when the ban ends.
func Binance() Provider {
	const page = "https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/rest-api.md"
	ban := answers.Field{Path: "msg", After: "banned until ", Format: answers.EpochMillis}
	return Provider{
		Name: "binance",
		Scopes: []Scope{
			some("orders", page, when(func(req *http.Request) bool { return binanceOrders(req) > 0 }),
				fixed(50, 10*time.Second, "orders"), fixed(160_000, 24*time.Hour, "orders")),
			every("address", page, fixed(6_000, time.Minute, "weight"), fixed(61_000, 5*time.Minute, "")),
		},
		Cost: func(req *http.Request) throttle.Cost {
			c := throttle.Cost{"weight": binanceWeight(req)}
			if n := binanceOrders(req); n > 0 {
				c["orders"] = n
			}
			return c
		},
		SendBy: binanceSendBy,
		Profile: answers.Profile{
			Quotas: []answers.Quota{
				{Name: "REQUEST_WEIGHT", Unit: "weight", Authoritative: true, Combined: answers.Field{Header: "X-Mbx-Used-Weight-*", Format: answers.UsedPerWindow}},
				{Name: "ORDERS", Unit: "orders", Authoritative: true, Combined: answers.Field{Header: "X-Mbx-Order-Count-*", Format: answers.UsedPerWindow}},
			},
			Rules: []answers.Rule{
				{Status: http.StatusTeapot, Kind: answers.Banned, Delay: []answers.Field{ban}, Wide: true},
				{Status: http.StatusTooManyRequests, Path: "msg", Text: "*banned until*", Kind: answers.Banned, Delay: []answers.Field{ban}, Wide: true},
				{Status: http.StatusTooManyRequests, Path: "code", Text: "-1015", Kind: answers.Limited, Reason: "orders"},
				{Status: http.StatusTooManyRequests, Kind: answers.Limited, Wide: true},
				{Status: http.StatusForbidden, Kind: answers.Banned, Reason: "firewall", Wide: true},
			},
		},
		Hosts: []string{"api.binance.com", "api1.binance.com", "api2.binance.com", "api3.binance.com", "api4.binance.com", "api-gcp.binance.com", "data-api.binance.vision"},
	}
}

// fixed returns a tier of fixed windows, whose boundaries follow the provider's clock.
func fixed(limit int64, window time.Duration, unit string) throttle.Tier {
	return throttle.Tier{Limit: limit, Window: window, Unit: unit, Algorithm: throttle.FixedWindow, Phase: throttle.UnknownPhase}
}

// binanceOrders returns the number of orders that a request places.
func binanceOrders(req *http.Request) int64 {
	if req.Method != http.MethodPost {
		return 0
	}
	switch strings.TrimPrefix(req.URL.Path, "/api/v3/") {
	case "order", "order/cancelReplace", "sor/order":
		return 1
	case "order/oco", "orderList/oco", "orderList/oto", "orderList/opo":
		return 2
	case "orderList/otoco", "orderList/opoco":
		return 3
	}
	return 0
}

// A weight returns the weight of a request for one path, by its parameters.
type weight func(url.Values) int64

// binanceWeights are the weights of GET requests by path, from the documentation of Binance's own
// client: @binance/spot 32.0.4 on npm, read on 2026-11-21.
var binanceWeights = map[string]weight{
	"ping": always(1), "time": always(1), "exchangeInfo": always(20),
	"depth":  byNumber(func(q url.Values) int { n, _ := strconv.Atoi(q.Get("limit")); return n }, 100, 5, 500, 25, 1000, 50, 250),
	"trades": always(25), "historicalTrades": always(25), "historicalBlockTrades": always(25), "aggTrades": always(4),
	"klines": always(2), "uiKlines": always(2), "avgPrice": always(2),
	"referencePrice": always(2), "referencePrice/calculation": always(2),
	"ticker/24hr":  byNumber(symbols(101), 20, 2, 100, 40, 80),
	"ticker/price": with("symbol", 2, 4), "ticker/bookTicker": with("symbol", 2, 4),
	"ticker": each(4, symbols(1), 200), "ticker/tradingDay": each(4, symbols(1), 200), "executionRules": each(2, symbols(20), 40),
	"order": always(4), "openOrders": with("symbol", 6, 80), "allOrders": always(20), "order/amendments": always(4),
	"orderList": always(4), "openOrderList": always(6), "allOrderList": always(20),
	"account": always(20), "account/commission": always(20), "rateLimit/order": always(40), "myTrades": with("orderId", 5, 20),
	"myAllocations": always(20), "myPreventedMatches": always(20), "myFilters": always(40),
}

// binanceWeight returns the weight of a request.
func binanceWeight(req *http.Request) int64 {
	const unknown = 20
	path, spot := strings.CutPrefix(req.URL.Path, "/api/v3/")
	of, known := binanceWeights[path]
	switch {
	case !spot || req.Method == http.MethodGet && !known:
		return unknown
	case req.Method == http.MethodGet:
		return of(req.URL.Query())
	case path == "order/amend/keepPriority":
		return 4
	case strings.HasSuffix(path, "order/test"):
		return with("computeCommissionRates", 20, 1)(form(req))
	}
	return 1
}

func always(n int64) weight { return func(url.Values) int64 { return n } }

// with returns n for requests with the parameter, and without for others.
func with(parameter string, n, without int64) weight {
	return func(q url.Values) int64 {
		if q.Has(parameter) {
			return n
		}
		return without
	}
}

// each returns n for each of number, and at most most.
func each(n int64, number func(url.Values) int, most int64) weight {
	return func(q url.Values) int64 { return min(n*int64(number(q)), most) }
}

// byNumber returns a weight in steps. The steps are pairs of a number and the weight up to it, then
// the weight above the last number.
func byNumber(number func(url.Values) int, steps ...int) weight {
	return func(q url.Values) int64 {
		n, left := number(q), steps
		for ; len(left) > 1 && n > left[0]; left = left[2:] {
		}
		return int64(left[min(1, len(left)-1)])
	}
}

// symbols returns the number of symbols in the query, or all if it names none.
func symbols(all int) func(url.Values) int {
	return func(q url.Values) int {
		switch {
		case q.Has("symbols"):
			return strings.Count(q.Get("symbols"), ",") + 1
		case q.Has("symbol"):
			return 1
		}
		return all
	}
}
