package providers

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var okxPreset = Preset{Name: "okx", Constructor: "OKX()", kind: "Exchanges and blockchains", New: OKX}

// OKX is the V5 API of OKX, with the limits of an IP address and of a sub-account. Each endpoint
// has a quota in 2 seconds, by OKX's documentation. It is for a user, or for an IP address if the
// endpoint is public. Placing, amending and canceling orders have 60 for each instrument, or 300
// orders in batches, and 20 canceled algorithmic orders; options count by family. An endpoint that the table here lacks has 5. A
// sub-account also has 1,000 new and amended orders of derivatives in 2 seconds. OKX doesn't
// document whether the seconds roll, so they do.
//
// The scopes of endpoints are named for their limits, such as "60/2s" and "public 20/2s". Instruments are read from
// the request's body. Orders without a readable instrument share one quota, as do batches for
// several instruments. A batch of one order counts as a single order, and one that can't be read as
// 20, as many as a batch can have. GET /api/v5/trade/account-rate-limit reports the limit of a VIP
// sub-account: change the Policy of the scope "orders".
//
// A signed request is valid for 30 seconds, and an order with an expTime until then. One that would
// have to wait longer fails at once with throttle.ErrDeadline.
//
// Responses report no limits. A refusal may have status 200. It pauses the endpoint for 2 seconds,
// or all new orders of the sub-account. OKX also sends 429 when it is overloaded, which pauses
// nothing.
func OKX() Provider {
	const page, orders = "https://www.okx.com/docs-v5/en/#overview-rate-limits", "https://www.okx.com/docs-v5/en/#overview-rate-limits-sub-account-rate-limit"
	const window = 2 * time.Second
	limited := func(path, code string, wide bool) answers.Rule {
		return answers.Rule{Path: path, Text: code, Kind: answers.Limited, Wait: window, Wide: wide}
	}
	p := Provider{
		Name:   "okx",
		Cost:   okxCost,
		SendBy: okxSendBy,
		Profile: answers.Profile{Rules: []answers.Rule{
			limited("code", "50011", false), // the endpoint
			limited("code", "58102", false), // the same, of funding
			limited("code", "50061", true),  // orders of the sub-account
			limited("data.*.sCode", "50061", true),
			limited("data.*.sCode", "50011", false),
			{Status: http.StatusTooManyRequests, Path: "code", Text: "50013", Kind: answers.Other, Reason: "overload"},
			{Status: http.StatusTooManyRequests, Text: "Too Many Requests", Kind: answers.Other, Reason: "overload"},
		}},
		Hosts: []string{"www.okx.com", "my.okx.com", "tr.okx.com", "www.okex.com"},
	}
	for _, public := range okxLimits.scopes(page, "", okxEndpoint(true)) {
		public.Name = "public " + public.Name
		p.Scopes = append(p.Scopes, byAddress(public))
	}
	p.Scopes = append(p.Scopes, okxLimits.scopes(page, "", okxEndpoint(false))...)
	p.Scopes = append(p.Scopes, some("orders", orders, when(func(req *http.Request) bool { return okxOrders(req) > 0 }),
		throttle.Tier{Limit: 1_000, Window: window, Unit: "orders"}))
	return p
}

// okxPublic reports whether an endpoint is public, so that OKX counts an IP address.
func okxPublic(path string) bool {
	area, _, _ := strings.Cut(path, "/")
	switch area {
	case "market", "public", "system", "rubik":
		return true
	}
	return strings.Contains(path, "/public-")
}

// okxLimits are the limits of endpoints, from OKX's documentation and ccxt's table
// (https://github.com/ccxt/ccxt/blob/d8bbe84/ts/src/okx.ts, read on 2026-11-22).
var okxLimits = pathLimits{ // below /api/v5/
	{"1/10s", 1, 10 * time.Second, "system/status market/open-oracle"},
	{"1/2s", 1, 2 * time.Second, "market/exchange-rate asset/deposit-withdraw-status copytrading/algo-order"},
	{"2/2s", 2, 2 * time.Second, `
		market/platform-24-volume public/discount-rate-interest-free-quota public/interest-rate-loan-quota
		public/vip-interest-rate-loan-quota asset/transfer-state asset/transfer asset/convert-dust-assets
		asset/subaccount/transfer account/subaccount/balances account/simulated_margin users/subaccount/list
		users/subaccount/apikey users/subaccount/delete-apikey users/subaccount/modify-apikey
		users/subaccount/set-transfer-out users/entrust-subaccount-list rfq/rfqs rfq/quotes rfq/execute-quote
		copytrading/current-subpositions copytrading/subpositions-history copytrading/instruments
		copytrading/close-subposition copytrading/set-instruments`},
	{"5/2s", 5, 2 * time.Second, ""},
	{"10/2s", 10, 2 * time.Second, `
		account/account-position-risk account/balance account/positions account/positions-history account/risk-state
		account/greeks public/estimated-price public/mark-price public/position-tiers public/time trade/fills-history
		market/history-mark-price-candles market/history-index-candles`},
	{"12/2s", 12, 2 * time.Second, `
		account/bills account/bills-archive account/borrow-repay asset/deposit-address asset/balances asset/deposit-history
		asset/withdrawal-history asset/withdrawal asset/cancel-withdrawal asset/currencies asset/bills
		asset/non-tradable-assets asset/subaccount/bills asset/convert/currencies asset/convert/currency-pair
		asset/convert/history market/books-lite finance/savings/balance finance/savings/purchase-redempt
		finance/savings/set-lending-rate finance/savings/lending-history finance/savings/lending-rate-summary
		finance/savings/lending-rate-history`},
	{"20/2s", 20, 2 * time.Second, `
		market/tickers market/ticker market/index-tickers market/history-candles market/index-candles
		market/mark-price-candles market/trades market/index-components market/option/instrument-family-trades
		public/instruments public/open-interest public/funding-rate public/funding-rate-history public/price-limit
		public/opt-summary public/option-trades public/underlying account/max-size account/max-avail-size
		account/leverage-info account/set-leverage account/max-loan account/max-withdrawal account/position/margin-balance
		trade/orders-history-archive trade/orders-algo-pending trade/orders-algo-history trade/order-algo
		trade/amend-algos trade/cancel-algos trade/cancel-advance-algos trade/close-position
		tradingBot/grid/orders-algo-pending tradingBot/grid/orders-algo-history tradingBot/grid/orders-algo-details
		tradingBot/grid/sub-orders tradingBot/grid/positions tradingBot/grid/ai-param tradingBot/grid/order-algo
		tradingBot/grid/amend-order-algo tradingBot/grid/stop-order-algo tradingBot/grid/withdraw-income
		tradingBot/grid/compute-margin-balance tradingBot/grid/margin-balance finance/staking-defi/offers
		finance/staking-defi/orders-active finance/staking-defi/orders-history`},
	{"40/2s", 40, 2 * time.Second, `
		market/books market/candles public/delivery-exercise-history public/liquidation-orders trade/orders-history`},
	{"60/2s", 60, 2 * time.Second, "trade/order trade/amend-order trade/cancel-order trade/orders-pending trade/fills"},
	{"300/2s", 300, 2 * time.Second, "trade/batch-orders trade/amend-batch-orders trade/cancel-batch-orders"},
}

// okxSingle are the endpoints for one order, by the endpoint for a batch.
var okxSingle = map[string]string{
	"trade/batch-orders": "trade/order", "trade/amend-batch-orders": "trade/amend-order", "trade/cancel-batch-orders": "trade/cancel-order",
}

// okxPath returns the path of a request below /api/v5/. If the request is for orders, which have a
// quota for each instrument, it returns the instruments of the orders, too.
func okxPath(req *http.Request) (path string, instruments []string) {
	path = strings.TrimPrefix(req.URL.Path, "/api/v5/")
	if req.Method != http.MethodPost {
		return path, nil
	}
	switch path {
	case "trade/order", "trade/amend-order", "trade/cancel-order":
		return path, okxInstruments(req, 1)
	case "trade/cancel-algos", "trade/cancel-advance-algos":
		return path, okxInstruments(req, 10)
	case "trade/batch-orders", "trade/amend-batch-orders", "trade/cancel-batch-orders":
		const most = 20
		instruments = okxInstruments(req, most)
		if len(instruments) == 1 {
			path = okxSingle[path]
		}
	}
	return path, instruments
}

// okxInstruments returns the instrument of each order in the body of a request; for an option its
// family. If the body can't be read, it returns most times "".
func okxInstruments(req *http.Request, most int) []string {
	type order struct{ InstID string }
	var orders []order
	text := body(req)
	if json.Unmarshal(text, &orders) != nil {
		orders = make([]order, 1)
		if json.Unmarshal(text, &orders[0]) != nil {
			return make([]string, most)
		}
	}
	instruments := make([]string, len(orders))
	for i, o := range orders {
		instruments[i] = o.InstID
		if parts := strings.Split(o.InstID, "-"); len(parts) == 5 {
			instruments[i] = strings.Join(parts[:2], "-") + "-OPTION"
		}
	}
	return instruments
}

// okxEndpoint returns a function for the public or the private endpoints, which returns the path of a
// request, and its key.
func okxEndpoint(public bool) func(*http.Request) (path, key string, limited bool) {
	return func(req *http.Request) (path, key string, limited bool) {
		path, instruments := okxPath(req)
		key = req.Method + " " + path
		if of := slices.Compact(instruments); len(of) == 1 {
			key += " " + of[0]
		}
		return path, key, okxPublic(path) == public
	}
}

// okxOrders returns the number of orders that a request places or amends and that count for the
// sub-account: those of derivatives, whose names have three parts, and of unknown instruments.
func okxOrders(req *http.Request) (n int64) {
	path, instruments := okxPath(req)
	if strings.Contains(path, "cancel") {
		return 0
	}
	for _, instrument := range instruments {
		if strings.Count(instrument, "-") != 1 {
			n++
		}
	}
	return n
}

// okxCost returns the cost of a request: of a batch, as many as it has orders.
func okxCost(req *http.Request) throttle.Cost {
	_, instruments := okxPath(req)
	if instruments == nil {
		return nil
	}
	cost := throttle.Cost{"requests": int64(max(len(instruments), 1))}
	if n := okxOrders(req); n > 0 {
		cost["orders"] = n
	}
	return cost
}

// okxSendBy returns the time when a signed request expires: 30 seconds after its
// OK-ACCESS-TIMESTAMP, or the expTime of an order if that is earlier.
//
// Source: https://www.okx.com/docs-v5/en/#overview-transaction-timeouts, read on 2026-11-22.
func okxSendBy(req *http.Request) time.Time {
	by := headerMillis(req, "expTime")
	signed, err := time.Parse(time.RFC3339, req.Header.Get("OK-ACCESS-TIMESTAMP"))
	if end := signed.Add(30 * time.Second); err == nil && (by.IsZero() || end.Before(by)) {
		return end
	}
	return by
}
