package providers

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

var bybitPreset = Preset{Name: "bybit", Constructor: "Bybit()", kind: "Exchanges and blockchains", New: Bybit}

// Bybit is the V5 API of Bybit, with the limits of one IP address and of one account without a VIP
// level. An IP address has 600 requests in 5 seconds, over all hosts of Bybit. An account has a
// quota for each private endpoint, by Bybit's table. For orders it has one for each endpoint and
// category: 10 a second, and 20 for spot. A batch costs as many requests as it has orders, and
// batches have a quota of their own. A private endpoint that the table lacks has 5 a second.
// Seconds and minutes roll.
//
// The scopes of endpoints are named for their limits, such as "50/s". Responses name the limit of an endpoint.
// That of orders, which a VIP account has raised, is taken over, up to 600. The category and the number of orders are read from the
// request's body. Orders without a readable category share one quota, and a batch that can't be
// read costs 10, as many as a batch can have.
//
// A signed request is valid for its receive window, which is 5 seconds by default. One that would
// have to wait longer fails at once with throttle.ErrDeadline.
//
// Responses report how many requests are left for an endpoint. A refusal has status 200 and pauses
// the endpoint until the reset that it reports. After too many requests, Bybit bans the address for
// 10 minutes, and callers get throttle.ErrBanned. A 429 means that Bybit is overloaded, and pauses
// nothing.
//
// For several accounts behind one address set [Provider.Account], and use one store for all of them.
//
// The test network and the demo service have other hosts and are not limited here.
func Bybit() Provider {
	const page = "https://github.com/bybit-exchange/docs/blob/130165c/docs/v5/rate-limit/rate-limit.mdx"
	orders := func(name string, limit int64) Scope {
		return some(name, page, bybitOrders(name), follows(1, bybitMost, throttle.Tier{Limit: limit, Window: time.Second, Unit: "calls"}))
	}
	p := Provider{
		Name: "bybit",
		Scopes: []Scope{
			orders("option-cancel-all", 1), orders("spot", 20), orders("orders", 10),
		},
		Cost:   bybitCost,
		SendBy: bybitSendBy,
		Profile: answers.Profile{
			// The header X-Bapi-Limit-Reset-Timestamp is the present while requests are left.
			Quotas: []answers.Quota{inHeaders("calls", "X-Bapi-Limit", "X-Bapi-Limit-Status", answers.Field{})},
			Rules: []answers.Rule{
				{
					Status: http.StatusOK, Path: "retCode", Text: "10006", Kind: answers.Limited, Wait: time.Second,
					Delay: []answers.Field{{Header: "X-Bapi-Limit-Reset-Timestamp", Format: answers.EpochMillis}},
				},
				{Status: http.StatusOK, Path: "retCode", Text: "170005", Kind: answers.Limited, Wait: time.Second, Reason: "orders"},
				{Status: http.StatusOK, Path: "retCode", Text: "170222", Kind: answers.Limited, Wait: time.Second},
				{Status: http.StatusOK, Path: "retCode", Text: "30034", Kind: answers.Other, Reason: "order"},
				{Status: http.StatusOK, Path: "retCode", Text: "*30035", Kind: answers.Other, Reason: "order"}, // and 130035
				{Status: http.StatusForbidden, Text: "*access too frequent*", Kind: answers.Banned, Wait: 10 * time.Minute, Wide: true},
				{Status: http.StatusTooManyRequests, Kind: answers.Other, Reason: "overload"},
			},
		},
		Hosts: []string{
			"api.bybit.com", "api.bytick.com", "api.bybick.com", "api.bybit.kz", "api.bybit.nl", "api.bybit.tr",
			"api.bybit.eu", "api.bybit.ae", "api.bybit.id", "api.bybitgeorgia.ge",
		},
	}
	p.Scopes = append(p.Scopes, bybitLimits.scopes(page, "calls", bybitEndpoint)...)
	p.Scopes = append(p.Scopes, byAddress(every("address", page, throttle.Tier{Limit: 600, Window: 5 * time.Second})))
	return p
}

// bybitMost is the highest limit of orders a second in Bybit's examples for institutions:
// https://bybit-exchange.github.io/docs/v5/rate-limit/rules-for-pros/apilimit-set, read on 2026-11-28.
const bybitMost = 600

// bybitLimits are the limits of endpoints by Bybit's table, without those of orders.
var bybitLimits = pathLimits{ // below /v5/
	{"1/s", 1, time.Second, `
		account/borrow account/repay account/no-convert-repay account/quick-repayment account/upgrade-to-uta
		asset/withdraw/vasp/list user/create-sub-member user/create-sub-api spot-margin-trade/fixedborrow
		spot-margin-trade/fixedborrow-renew`},
	{"3/s", 3, time.Second, "grid/create-grid grid/close-grid dca/create-bot dca/close-bot"},
	{"5/s", 5, time.Second, ""},
	{"10/s", 10, time.Second, `
		position/move-history position/set-leverage position/switch-mode position/trading-stop position/set-auto-add-margin
		position/add-margin position/confirm-pending-mmr position/move-positions account/instruments-info
		account/set-limit-px-action fcombobot/getlimit fcombobot/create fcombobot/close fcombobot/detail fgridbot/validate
		fgridbot/create fgridbot/close fgridbot/detail fmartingalebot/getlimit fmartingalebot/close fmartingalebot/detail
		grid/query-grid-detail asset/covert/small-balance-list user/query-sub-members user/query-api user/aff-customer-info
		user/sub-apikeys user/get-member-type user/invitation/referrals`},
	{"20/s", 20, time.Second, `
		asset/transfer/save-transfer-sub-member asset/exchange/quote-apply asset/exchange/convert-execute user/agreement
		spread/order/create spread/order/amend spread/order/cancel`},
	{"25/s", 25, time.Second, "account/transaction-log"},
	{"30/s", 30, time.Second, "asset/exchange/query-coin-list asset/fundinghistory"},
	{"50/s", 50, time.Second, `
		order/realtime order/history order/spot-borrow-check execution/list position/list position/closed-pnl
		position/get-closed-positions account/wallet-balance account/withdrawal account/borrow-history
		account/collateral-info asset/coin-greeks account/info account/pay-info account/trade-info-for-analysis
		account/user-setting-config asset/asset-overview asset/delivery-record asset/portfolio-margin
		asset/settlement-record asset/total-members-assets asset/exchange/convert-result-query
		asset/exchange/query-convert-history spread/order/realtime spread/order/history spread/execution/list
		spread/max-qty rfq/`},
	{"100/s", 100, time.Second, "fmartingalebot/create grid/validate-input strategy/create strategy/stop fiat/trade-execute"},
	{"200/s", 200, time.Second, "strategy/list strategy/order-list"},
	{"300/s", 300, time.Second, `
		asset/withdraw/withdrawable-amount asset/deposit/query-internal-record asset/withdraw/query-address
		asset/deposit/deposit-to-account`},
	{"450/s", 450, time.Second, "asset/transfer/query-account-coin-balance"},
	{"1000/s", 1_000, time.Second, `
		fiat/balance-query fiat/query-coin-list fiat/trade-query fiat/query-trade-history fiat/quote-apply
		fiat/reference-price`},
	{"60/min", 60, time.Minute, `
		asset/transfer/query-asset-info asset/transfer/query-transfer-coin-list asset/transfer/query-inter-transfer-list
		asset/transfer/query-sub-member-list asset/transfer/inter-transfer asset/withdraw/cancel`},
	{"100/min", 100, time.Minute, "asset/deposit/query-record"},
	{"300/min", 300, time.Minute, `
		asset/deposit/query-sub-member-record asset/deposit/query-address asset/deposit/query-sub-member-address
		asset/withdraw/query-record`},
	{"600/min", 600, time.Minute, "asset/exchange/order-record"},
}

// bybitPrivate returns the path of a private request below /v5/.
func bybitPrivate(req *http.Request) (path string, private bool) {
	path, v5 := strings.CutPrefix(req.URL.Path, "/v5/")
	return path, v5 && req.Header.Get("X-BAPI-API-KEY") != "" && !strings.HasPrefix(path, "market/")
}

// bybitEndpoint returns the path of a private request that is not for orders, in the table and as key.
func bybitEndpoint(req *http.Request) (path, key string, limited bool) {
	key, private := bybitPrivate(req)
	if path = key; strings.HasPrefix(path, "rfq/") {
		path = "rfq/" // all of them
	}
	return path, key, private && !bybitOrder(key)
}

// bybitOrder reports whether a path is for orders, whose limits depend on the category.
func bybitOrder(path string) bool {
	switch path {
	case "order/create", "order/amend", "order/cancel", "order/cancel-all", "order/pre-check",
		"order/create-batch", "order/amend-batch", "order/cancel-batch":
		return true
	}
	return false
}

// bybitOrders returns the Key of the endpoints for orders in one of their three scopes.
func bybitOrders(scope string) func(*http.Request) (string, bool) {
	return func(req *http.Request) (string, bool) {
		path, private := bybitPrivate(req)
		if !private || !bybitOrder(path) {
			return "", false
		}
		category, _ := bybitBody(req)
		in := "orders"
		switch {
		case category == "spot" && path != "order/amend":
			in = "spot"
		case category == "option" && path == "order/cancel-all":
			in = "option-cancel-all"
		}
		return path + " " + category, in == scope
	}
}

// bybitBody returns the category of a request for orders and the number of orders in a batch.
func bybitBody(req *http.Request) (category string, orders int64) {
	const most = 10
	var body struct {
		Category string
		Request  []struct{}
	}
	if !decode(req, &body) {
		return "", most
	}
	return body.Category, int64(len(body.Request))
}

// bybitCost returns the cost of a request: one call of a private endpoint, or one for each order of
// a batch, but one for a batch of options.
func bybitCost(req *http.Request) throttle.Cost {
	path, private := bybitPrivate(req)
	if !private {
		return nil
	}
	cost := throttle.Cost{"calls": 1}
	if strings.HasSuffix(path, "-batch") {
		if category, orders := bybitBody(req); category != "option" {
			cost["calls"] = max(orders, 1)
		}
	}
	return cost
}

// bybitSendBy returns the time when a signed request expires: X-BAPI-RECV-WINDOW after its
// X-BAPI-TIMESTAMP, both in milliseconds. Without a window, 5 seconds after it.
//
// Source: https://bybit-exchange.github.io/docs/v5/guide, read on 2026-11-22.
func bybitSendBy(req *http.Request) time.Time {
	signed := headerMillis(req, "X-BAPI-TIMESTAMP")
	if signed.IsZero() {
		return signed
	}
	if window, err := strconv.ParseUint(req.Header.Get("X-BAPI-RECV-WINDOW"), 10, 31); err == nil {
		return signed.Add(time.Duration(window) * time.Millisecond)
	}
	return signed.Add(5 * time.Second)
}
