package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var krakenPreset = Preset{Name: "kraken", Constructor: "Kraken()", kind: "Exchanges and blockchains", New: Kraken}

// Kraken is the Spot REST API of Kraken, with the limits of one key in the lowest tier, Starter.
// Kraken's futures have another API: KrakenFutures.
//
// Private calls count in the key's counter, which goes to 15 and falls by 0.33 a second
// (Intermediate 20 and 0.5, Pro 20 and 1). Calls for ledgers and trade history count 2. Calls that
// add or cancel an order count 0 there. Public calls count in a counter of the IP address, which
// falls by 1 a second, and those for trades and candles in one for each pair. Kraken documents that
// 1 a second is safe. The counter goes to 30, as it was measured.
//
// Adding or editing an order also counts in the matching engine, in a counter for each pair, which
// goes to 60 and falls by 1 a second (Intermediate 125 and 2.34, Pro 180 and 3.75). A batch of orders
// counts half of their number, rounded up. The cost of editing depends on the order's age, so it
// counts the maximum, 7. Amending and canceling cost up to 8 and name no pair. They are not counted:
// leave room for them. The pair is read from the request's body, a form or JSON. Bodies without a
// readable pair count as one pair, and a batch without readable orders as one of 15, the maximum.
//
// Refusals have status 200. "EService: Throttled" names the time until which to wait. After failed
// keys Kraken locks the private calls of an account for about 15 minutes: callers get
// throttle.ErrBanned.
//
// Over WebSocket, an address has about 150 attempts to connect in any 10 minutes, and is banned for 10
// minutes after more. How many messages a connection may send isn't published. Orders over WebSocket
// share the counters of the matching engine with REST. Charge each of them as the request of REST that does
// the same, with the pair in one spelling for both:
//
//	twin, err := http.NewRequest("POST", "https://api.kraken.com/0/private/AddOrder", strings.NewReader("pair=XBTUSD"))
//	permit, err := rest.Route(twin).Acquire(ctx, rest.Cost(twin)) // rest is the Transport of the provider
//
// Then send the message, and call the permit's Passed or Refused when its response is in, and Release.
func Kraken() Provider {
	const page = "https://docs.kraken.com/exchange/guides/rest/ratelimits.md"
	const engine = "https://docs.kraken.com/exchange/guides/general/ratelimits.md"
	p := Provider{
		Name: "kraken",
		Scopes: []Scope{
			some("pair", engine, krakenPair,
				throttle.Tier{Limit: 1, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 60, Unit: "engine"}),
			byAddress(some("public", "https://support.kraken.com/articles/206548367", krakenPublic,
				throttle.Tier{Limit: 1, Window: time.Second, Algorithm: throttle.LeakyBucket, Burst: 30})),
			some("key", page, when(func(req *http.Request) bool { return krakenCalls(req) > 0 }),
				throttle.Tier{Limit: 33, Window: 100 * time.Second, Algorithm: throttle.LeakyBucket, Burst: 15}),
		},
		Cost: func(req *http.Request) throttle.Cost {
			c := throttle.Cost{"requests": krakenCalls(req)}
			if _, public := krakenPublic(req); public {
				c["requests"] = 1
			}
			if n := krakenEngine(req); n > 0 {
				c["engine"] = n
			}
			return c
		},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Path: "error.*", Text: "EGeneral:Temporary lockout", Kind: answers.Banned, Wait: 15 * time.Minute, Wide: true},
			{Path: "error.*", Text: "EGeneral:Too many requests", Kind: answers.Limited},
			{Path: "error.*", Text: "EService:Throttled", Kind: answers.Limited, Wide: true},
			{Path: "error.*", Text: "EOrder:Domain rate limit exceeded", Kind: answers.Limited, Wide: true},
			{Path: "error.*", Text: "EService: Throttled*", Kind: answers.Limited, Wide: true, Delay: []answers.Field{{Path: "error.*", After: "Throttled: ", Format: answers.EpochSeconds}}},
			{Path: "error.*", Text: "EOrder:Rate limit exceeded", Kind: answers.Limited, Unit: "engine"},
			{Path: "error.*", Text: "EAPI:Rate limit exceeded", Kind: answers.Limited, Wide: true},
		}},
		Hosts: []string{"api.kraken.com"},
		Sockets: []Scope{socket("kraken", "connections", "https://docs.kraken.com/api/docs/guides/spot-ws-intro", PerAddress,
			throttle.Tier{Limit: 150, Window: 10 * time.Minute}).readOn(socketsRead)},
	}
	p.Scope("pair").Shared = true // by orders that the key's counter counts and orders that it doesn't
	return p
}

// krakenCalls returns the cost of a request in the key's counter.
func krakenCalls(req *http.Request) int64 {
	call, private := strings.CutPrefix(req.URL.Path, "/0/private/")
	switch {
	case !private, call == "AddOrder", call == "CancelOrder":
		return 0
	case call == "Ledgers", call == "QueryLedgers", call == "TradesHistory", call == "QueryTrades":
		return 2
	}
	return 1
}

// krakenPublic returns the quota of a public call: its pair, if that has a quota of its own.
func krakenPublic(req *http.Request) (pair string, counts bool) {
	call, public := strings.CutPrefix(req.URL.Path, "/0/public/")
	if call == "Trades" || call == "OHLC" {
		pair = req.URL.Query().Get("pair")
	}
	return pair, public
}

// krakenEngine returns the maximum cost of a request in its pair's counter.
func krakenEngine(req *http.Request) int64 {
	switch req.URL.Path {
	case "/0/private/AddOrder":
		return 1
	case "/0/private/EditOrder":
		return 7
	case "/0/private/AddOrderBatch":
		n := listed(form(req), "orders")
		if n == 0 || n > krakenBatchMost {
			n = krakenBatchMost
		}
		return (n + 1) / 2
	}
	return 0
}

const krakenBatchMost = 15 // orders in a batch

// krakenPair returns the pair of an order.
func krakenPair(req *http.Request) (pair string, counts bool) {
	if krakenEngine(req) == 0 {
		return "", false
	}
	return param(req, "pair"), true
}
