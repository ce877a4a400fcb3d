package providers

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/retryafter"
)

var binancePreset = Preset{Name: "binance", Constructor: "Binance()", kind: "Exchanges and blockchains", New: Binance}

// Binance is the Spot REST API of Binance, with the limits of an IP address and of its accounts. An
// IP address has a weight of 6,000 a minute and 300,000 requests in 5 minutes; an account has 100
// orders in 10 seconds and 200,000 a day. The limits of your account are in rateLimits of GET
// /api/v3/exchangeInfo.
//
// Each endpoint below /sapi also has a quota of its own: a weight of 12,000 a minute for an IP
// address, or of 180,000 for an account. Binance documents for each endpoint which of them counts.
// Here both do, and responses report the weight.
//
// Binance counts in windows of its own clock. The windows here have unknown boundaries and behave
// like rolling windows, which need no synchronized clocks and admit as much in the long run.
//
// The weight of a request depends on its path and parameters. An unknown path weighs 20, and below
// /sapi 1. Placing and canceling orders weighs nothing, and doesn't wait for other requests. An
// order that fails weighs 1, which the next response to a request with a weight reports. The weight
// and orders that a response reports as used replace the limiter's own counts, because a filled
// order no longer counts.
//
// A signed request is valid for recvWindow after its timestamp. A request that would have to wait
// longer fails at once with throttle.ErrDeadline, because Binance would refuse it and still count
// it. This check uses the clock of this machine. If your timestamps follow Binance's clock and the
// clocks differ, set SendBy to another function, or to nil. A request signed below the transport,
// in its Base, is always fresh.
//
// A client that continues after a 429 is banned for 2 minutes to 3 days. Therefore a 429 for weight
// pauses all requests of the address, whatever their account. After a ban of the address, its
// callers get throttle.ErrBanned with the time when the ban ends. After the last order of a day the
// callers of the account get it, too, and one order tries after each Policy.MaxPause.
//
// For several accounts behind one address set [Provider.Account], and use one store for all of
// them.
//
// The test networks and api.binance.us have quotas of their own. For testnet.binance.vision, set
// Name and Hosts. For api.binance.us there is BinanceUS, and for futures BinanceFutures.
//
// Over WebSocket, a connection to the streams has 5 messages a second, in which pings and pongs
// count, and an address has 300 attempts to connect in 5 minutes, to the streams and to the
// WebSocket API together. Requests to the WebSocket API share the weight of the address and the
// orders of the account with REST. Charge each of them as the request of REST that does the same:
//
//	twin, err := http.NewRequest("GET", "https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=5000", nil)
//	permit, err := rest.Route(twin).Acquire(ctx, rest.Cost(twin)) // rest is the Transport of the provider
//
// Then send the message. When its response is in, call the permit's Passed or Refused, then
// Release. To connect to the WebSocket API weighs 2, as GET /api/v3/avgPrice does.
func Binance() Provider {
	cost := binanceCost(binanceWeights)
	return Provider{
		Name: "binance",
		Scopes: []Scope{
			some("orders", binancePage, when(func(req *http.Request) bool { return binanceOrders(req) > 0 }),
				fixed(100, 10*time.Second, "orders"), fixed(200_000, 24*time.Hour, "orders")),
			some("sapi", binanceSAPIPage, binanceSAPI, fixed(180_000, time.Minute, "sapi-uid")),
			byAddress(some("sapi-ip", binanceSAPIPage, binanceSAPI, fixed(12_000, time.Minute, "sapi-ip"))),
			byAddress(some("weight", binancePage, when(func(req *http.Request) bool { return cost(req)["weight"] > 0 && !binanceTrades(req) }),
				fixed(6_000, time.Minute, "weight"))),
			byAddress(every("address", binancePage, fixed(300_000, 5*time.Minute, ""))),
		},
		Cost: func(req *http.Request) throttle.Cost {
			c := cost(req)
			if binanceTrades(req) {
				delete(c, "weight")
			}
			return c
		},
		SendBy: binanceSendBy,
		Profile: binanceProfile(
			answers.Quota{Name: "ORDERS", Unit: "orders", Authoritative: true, Combined: answers.Field{Header: "X-Mbx-Order-Count-*", Format: answers.UsedPerWindow}},
			answers.Quota{Unit: "sapi-ip", Authoritative: true, Combined: answers.Field{Header: "X-Sapi-Used-Ip-Weight-*", Format: answers.UsedPerWindow}},
			answers.Quota{Unit: "sapi-uid", Authoritative: true, Combined: answers.Field{Header: "X-Sapi-Used-Uid-Weight-*", Format: answers.UsedPerWindow}}),
		Hosts: []string{"api.binance.com", "api1.binance.com", "api2.binance.com", "api3.binance.com", "api4.binance.com", "api-gcp.binance.com", "data-api.binance.vision"},
		Sockets: []Scope{
			binanceMessages("binance", "https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/web-socket-streams.md", 5),
			socket("binance", "connections", "https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/web-socket-api.md", PerAddress,
				throttle.Tier{Limit: 300, Window: 5 * time.Minute}).readOn(socketsRead),
		},
	}
}

// binanceMessages returns the limit of the messages of a connection to the streams.
func binanceMessages(provider, page string, n int64) Scope {
	return socket(provider, "messages", page, PerConnection, throttle.PerSecond(n)).readOn(socketsRead)
}

// socketsRead is the day when the pages of limits over WebSocket were read.
const socketsRead = "2026-11-29"

var binanceUSPreset = Preset{Name: "binance-us", Constructor: "BinanceUS()", kind: "Exchanges and blockchains", New: BinanceUS}

// BinanceUS is the REST API of Binance.US, with the limits of one IP address and one account. It is
// an exchange of its own. An IP address has a weight of 1,200 a minute and 6,100 requests in 5
// minutes; an account has 100 orders in 10 seconds and 200,000 a day. These are the limits that its
// GET /api/v3/exchangeInfo has reported. Most queries weigh half or less of what they weigh at
// Binance; placing or canceling an order weighs 1. A connection to the streams over WebSocket has 5
// messages a second; for attempts to connect, no limit is documented. For everything else, see Binance.
func BinanceUS() Provider {
	const page = "https://github.com/binance-us/binance-us-api-docs/blob/6b62304/rest-api.md"
	p := Binance()
	p.Name, p.Hosts, p.Cost = "binance-us", []string{"api.binance.us"}, binanceCost(binanceUSWeights)
	p.Scope("weight").Policy.Tiers = []throttle.Tier{fixed(1_200, time.Minute, "weight")}
	p.Scope("weight").Key = when(func(req *http.Request) bool { return p.Cost(req)["weight"] > 0 })
	p.Scope("address").Policy.Tiers = []throttle.Tier{fixed(6_100, 5*time.Minute, "")}
	for i := range p.Scopes {
		p.Scopes[i].Page = page
	}
	p.Sockets = []Scope{binanceMessages(p.Name, "https://github.com/binance-us/binance-us-api-docs/blob/6b62304/web-socket-streams.md", 5)}
	return p
}

const binanceSAPIPage = "https://developers.binance.com/docs/margin_trading/general-info"

const binancePage = "https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/rest-api.md"

// binanceProfile returns what the spot and the futures APIs have in common, with further quotas.
func binanceProfile(quotas ...answers.Quota) answers.Profile {
	ban := answers.Field{Path: "msg", After: "banned until ", Format: answers.EpochMillis}
	const refused = http.StatusTooManyRequests
	return answers.Profile{
		Quotas: append([]answers.Quota{
			{Name: "REQUEST_WEIGHT", Unit: "weight", Authoritative: true, Combined: answers.Field{Header: "X-Mbx-Used-Weight-*", Format: answers.UsedPerWindow}},
		}, quotas...),
		Rules: []answers.Rule{
			{Status: http.StatusTeapot, Kind: answers.Banned, Delay: []answers.Field{ban}, Wide: true},
			{Status: refused, Path: "msg", Text: "*banned until*", Kind: answers.Banned, Delay: []answers.Field{ban}, Wide: true},
			{Status: refused, Path: "msg", Text: "*orders per 1 DAY*", Kind: answers.Limited, Until: "UTC", Reason: "orders"},
			{Status: refused, Path: "code", Text: "-1015", Kind: answers.Limited, Reason: "orders"},
			{Status: refused, Header: "X-Sapi-Used-Ip-Weight-1m", Kind: answers.Limited, Wait: time.Minute, Unit: "sapi-ip", Reason: "sapi"},
			{Status: refused, Header: "X-Sapi-Used-Uid-Weight-1m", Kind: answers.Limited, Wait: time.Minute, Reason: "sapi"},
			{Status: refused, Path: "msg", Text: "*current request has limited*", Kind: answers.Limited, Wait: time.Minute, Reason: "sapi"},
			{Status: refused, Kind: answers.Limited, Wait: time.Minute, Wide: true}, // weight counts by the minute
			{Status: http.StatusForbidden, Path: "code", Text: "*", Kind: answers.Other, Reason: "key"},
			{Status: http.StatusForbidden, Kind: answers.Banned, Reason: "firewall", Wide: true},
		},
	}
}

// binanceCost returns the costs of requests with these weights. A request below /sapi has no weight
// elsewhere.
func binanceCost(weights map[string]weight) func(*http.Request) throttle.Cost {
	return func(req *http.Request) throttle.Cost {
		if endpoint, sapi := binanceSAPI(req); sapi {
			c := throttle.Cost{"sapi-ip": 1, "sapi-uid": 1}
			if n := binanceSAPIWeights[endpoint]; n > 0 {
				c["sapi-uid"] = int64(n)
			}
			return c
		}
		c := throttle.Cost{"weight": binanceWeight(req, weights)}
		if n := binanceOrders(req); n > 0 {
			c["orders"] = n
		}
		return c
	}
}

// binanceSAPI returns the endpoint of a request below /sapi, without its version.
func binanceSAPI(req *http.Request) (endpoint string, counts bool) {
	path, counts := strings.CutPrefix(req.URL.Path, "/sapi/")
	_, path, _ = strings.Cut(path, "/")
	return req.Method + " " + path, counts
}

// binanceSAPIWeights are the high weights that count for an account.
var binanceSAPIWeights = map[string]int{
	"GET capital/withdraw/history": 18_000, "POST capital/withdraw/apply": 600, "GET fiat/orders": 90_000,
	"POST margin/loan": 3_000, "POST margin/repay": 3_000, "POST loan/borrow": 6_000, "POST loan/repay": 6_000,
	"POST loan/adjust/ltv": 6_000, "GET loan/income": 6_000, "GET rebate/taxQuery": 3_000, "GET pay/transactions": 3_000,
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

// binanceTrades reports whether a request places or cancels orders.
func binanceTrades(req *http.Request) bool {
	switch strings.TrimPrefix(req.URL.Path, "/api/v3/") {
	case "order", "openOrders", "orderList":
		return req.Method == http.MethodDelete || binanceOrders(req) > 0
	}
	return binanceOrders(req) > 0
}

// A weight returns the weight of a request for one path, by its parameters.
type weight func(url.Values) int64

// binanceWeights are the weights of GET requests by path, from the documentation of Binance's own
// client: @binance/spot 32.0.4 on npm, read on 2026-11-21.
var binanceWeights = map[string]weight{
	"ping": always(1), "time": always(1), "exchangeInfo": always(20),
	"depth":  byNumber(limitOr(100), 100, 5, 500, 25, 1000, 50, 250),
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

// binanceUSWeights are the weights of GET requests to Binance.US by path, from its documentation.
var binanceUSWeights = map[string]weight{
	"ping": always(1), "time": always(1), "exchangeInfo": always(10),
	"depth":  byNumber(limitOr(100), 100, 1, 500, 5, 1000, 10, 50),
	"trades": always(1), "historicalTrades": always(5), "aggTrades": always(1), "klines": always(1), "avgPrice": always(1),
	"ticker/24hr":  byNumber(symbols(101), 20, 1, 100, 20, 40),
	"ticker/price": with("symbol", 1, 2), "ticker/bookTicker": with("symbol", 1, 2), "ticker": each(2, symbols(1), 100),
	"order": always(2), "openOrders": with("symbol", 3, 40), "allOrders": always(10),
	"orderList": always(2), "openOrderList": always(3), "allOrderList": always(10),
	"account": always(10), "rateLimit/order": always(20), "myTrades": always(10), "myPreventedMatches": always(10),
}

// binanceWeight returns the weight of a request.
func binanceWeight(req *http.Request, weights map[string]weight) int64 {
	const unknown = 20
	path, spot := strings.CutPrefix(req.URL.Path, "/api/v3/")
	of, known := weights[path]
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

// binanceSendBy returns the time when a signed request expires: recvWindow after its timestamp. The
// timestamp is in milliseconds or microseconds. recvWindow may be a decimal number of milliseconds;
// its default is 5,000. A parameter in the query replaces the same parameter in the form. For a
// request that is not signed, or that Binance would not understand, binanceSendBy returns the zero
// time.
//
// Sources:
// https://github.com/binance/binance-spot-api-docs/blob/a5e0bc3/rest-api.md#timing-security and
// https://developers.binance.com/docs/binance-spot-api-docs/rest-api/request-security, read on
// 2026-11-22.
func binanceSendBy(req *http.Request) time.Time {
	const leastMicros = 100_000_000_000_000 // as milliseconds, the year 5138
	q := form(req)
	n, err := strconv.ParseInt(q.Get("timestamp"), 10, 64)
	if err != nil || n <= 0 {
		return time.Time{}
	}
	signed := time.UnixMilli(n)
	if n >= leastMicros {
		signed = time.UnixMicro(n)
	}
	window := 5 * time.Second
	if q.Has("recvWindow") {
		d, ok := retryafter.Seconds(q.Get("recvWindow"))
		if !ok {
			return time.Time{}
		}
		window = d / 1000
	}
	return signed.Add(window)
}
