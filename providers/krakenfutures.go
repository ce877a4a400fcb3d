package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var krakenFuturesPreset = Preset{Name: "kraken-futures", Constructor: "KrakenFutures()", kind: "Exchanges and blockchains", New: KrakenFutures}

// KrakenFutures is the REST API of Kraken's futures, with the limits of one account. An account may
// spend 500 points in 10 seconds: an order costs 10, a batch 9 and 1 for each of its orders,
// canceling everything 25, and most queries 2. Queries of the account's history have 100 points in
// 10 minutes of their own: each costs 1, and the account's log costs up to 10. Public requests are
// not limited.
//
// Kraken doesn't document whether the 10 seconds roll, so they do. A private endpoint that Kraken's
// page doesn't list costs 10. A batch whose body can't be read costs as much as one of 10 orders.
//
// A refusal has status 200 and names no wait.
func KrakenFutures() Provider {
	const page = "https://docs.kraken.com/exchange/guides/futures/ratelimits.md"
	costs := func(of func(*http.Request) int64) func(*http.Request) (string, bool) {
		return when(func(req *http.Request) bool { return of(req) > 0 })
	}
	trade := throttle.Tier{Limit: 500, Window: 10 * time.Second, Unit: "points"}
	history := bucket(100, 10*time.Minute, 100)
	history.Unit = "tokens"
	return Provider{
		Name: "kraken-futures",
		Scopes: []Scope{
			some("derivatives", page, costs(krakenTrade), trade),
			some("history", page, costs(krakenHistory), history),
		},
		Cost: func(req *http.Request) throttle.Cost {
			if n := krakenHistory(req); n > 0 {
				return throttle.Cost{"tokens": n}
			}
			return throttle.Cost{"points": krakenTrade(req)}
		},
		Profile: answers.Profile{Rules: []answers.Rule{
			{Path: "error", Text: "apiLimitExceeded", Kind: answers.Limited},
		}},
		Hosts: []string{"futures.kraken.com"},
	}
}

// krakenTradeCosts are the costs of endpoints below /derivatives/api/v3. Those that are not listed
// cost krakenOther if the request has a key.
var krakenTradeCosts = table(map[int]string{
	2:   "accounts openpositions openorders fills leveragepreferences pnlpreferences self-trade-strategy trading-enabled",
	1:   "orders/status",
	10:  "sendorder editorder cancelorder transfer transfer/subaccount",
	25:  "cancelallorders cancelallordersafter",
	100: "withdrawaltospotwallet",
	200: "unwindqueue",
})

const krakenOther = 10

// krakenTrade returns the cost of a request in the points of the account.
func krakenTrade(req *http.Request) int64 {
	call, below := strings.CutPrefix(req.URL.Path, "/derivatives/api/")
	_, call, _ = strings.Cut(call, "/") // the version
	if strings.HasPrefix(call, "subaccount/") {
		call = "trading-enabled"
	}
	put := req.Method == http.MethodPut && strings.HasSuffix(call, "preferences")
	switch n := krakenTradeCosts[call]; {
	case !below:
		return 0
	case call == "batchorder":
		return 9 + krakenBatch(req)
	case call == "fills" && form(req).Has("lastFillTime"):
		return 25
	case n > 0 && !put:
		return int64(n)
	case put || req.Header.Get("APIKey") != "":
		return krakenOther
	}
	return 0
}

// krakenBatch returns the number of orders in a batch, or 10 if the body can't be read.
func krakenBatch(req *http.Request) int64 {
	if n := listed(members([]byte(form(req).Get("json"))), "batchOrder"); n > 0 {
		return n
	}
	return 10
}

// krakenHistory returns the cost of a request in the tokens of the account's history.
func krakenHistory(req *http.Request) int64 {
	call, below := strings.CutPrefix(req.URL.Path, "/api/history/")
	_, call, _ = strings.Cut(call, "/") // the version
	switch {
	case !below || strings.HasPrefix(call, "market/"):
		return 0
	case call == "accountlogcsv":
		return 6
	case call != "account-log":
		return 1
	}
	count, err := strconv.Atoi(req.URL.Query().Get("count"))
	switch {
	case err != nil:
		return 3 // 500
	case count <= 25:
		return 1
	case count <= 50:
		return 2
	case count <= 1000:
		return 3
	case count <= 5000:
		return 6
	}
	return 10
}
