package providers

import (
	"net/http"
	"strings"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/retryafter"
)

var coinbaseExchangePreset = Preset{Name: "coinbase-exchange", Constructor: "CoinbaseExchange()", kind: "Exchanges and blockchains", New: CoinbaseExchange}

// CoinbaseExchange is the REST API of Coinbase Exchange, with the limits of one IP address and one
// profile. Public requests have a token bucket for each address. Private requests, which have a
// CB-ACCESS-KEY, have one for each profile, and /fills and /loans have others. The client is assumed
// to use one profile; for several, let Provider.Account return their names.
//
// Coinbase doesn't document the size of the bucket of /loans, so a second rolls there. Responses
// report no limits. A signed request is valid for 30 seconds. One that would have to wait longer
// fails at once with throttle.ErrDeadline.
func CoinbaseExchange() Provider {
	const page = "https://docs.cdp.coinbase.com/exchange/rest-api/rate-limits.md"
	private := func(req *http.Request) bool {
		return req.Header.Get("CB-ACCESS-KEY") != "" && req.URL.Path != "/loans/assets"
	}
	below := func(path string) func(*http.Request) bool {
		return func(req *http.Request) bool {
			return private(req) && strings.HasPrefix(req.URL.Path+"/", path)
		}
	}
	fills, loans := below("/fills/"), below("/loans/")
	return Provider{
		Name: "coinbase-exchange",
		Scopes: []Scope{
			some("fills", page, when(fills), bucket(10, time.Second, 20)),
			some("loans", page, when(loans), throttle.PerSecond(10)),
			some("profile", page, when(func(req *http.Request) bool { return private(req) && !fills(req) && !loans(req) }), bucket(15, time.Second, 30)),
			byAddress(some("address", page, when(func(req *http.Request) bool { return !private(req) }), bucket(10, time.Second, 15))),
		},
		SendBy: coinbaseSendBy,
		Hosts:  []string{"api.exchange.coinbase.com"},
	}
}

var coinbaseAppPreset = Preset{Name: "coinbase-app", Constructor: "CoinbaseApp()", kind: "Exchanges and blockchains", New: CoinbaseApp}

// CoinbaseApp is the API of the Coinbase app and of Advanced Trade, with the limits of one key, one
// user and one IP address. The paths of the app begin with /v2, and those of Advanced Trade with
// /api/v3/brokerage.
//
// The app's API allows 10,000 requests an hour for an API key, or for each user who has authorized
// an OAuth app. Advanced Trade allows a user 30 private requests a second, and an IP address 10
// public ones: the time and the paths below market. The client is assumed to be one key and one user;
// for several, let Provider.Account return their names. Coinbase doesn't document the kind of window,
// so the hour and the seconds roll.
//
// Responses of Advanced Trade report how many requests are left. A refusal names no wait. It pauses
// its own scope only.
func CoinbaseApp() Provider {
	const advanced = "https://docs.cloud.coinbase.com/advanced-trade/docs/rest-api-rate-limits"
	public := func(req *http.Request) bool {
		call, trade := strings.CutPrefix(req.URL.Path+"/", "/api/v3/brokerage/")
		return trade && (strings.HasPrefix(call, "market/") || strings.HasPrefix(call, "time/"))
	}
	private := func(req *http.Request) bool {
		return strings.HasPrefix(req.URL.Path, "/api/v3/") && !public(req)
	}
	app := func(req *http.Request) bool { return strings.HasPrefix(req.URL.Path, "/v2/") }
	return Provider{
		Name: "coinbase-app",
		Scopes: []Scope{
			byAddress(some("address", advanced, when(public), throttle.PerSecond(10))),
			some("user", advanced, when(private), throttle.PerSecond(30)),
			some("key", "https://docs.cdp.coinbase.com/coinbase-app/api-architecture/rate-limiting", when(app), throttle.PerHour(10_000)),
		},
		Profile: answers.Profile{
			Quotas: []answers.Quota{within(time.Second, inHeaders("", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", answers.Field{}))},
			Rules: []answers.Rule{
				{Status: http.StatusTooManyRequests, Path: "errors.*.id", Text: "rate_limit_exceeded", Kind: answers.Limited},
			},
		},
		Hosts: []string{"api.coinbase.com"},
	}
}

// coinbaseSendBy returns the time when a request to Coinbase Exchange expires: 30 seconds after its
// CB-ACCESS-TIMESTAMP.
//
// Source: https://docs.cdp.coinbase.com/exchange/rest-api/authentication, read on 2026-11-22.
func coinbaseSendBy(req *http.Request) time.Time {
	signed, ok := retryafter.Seconds(req.Header.Get("CB-ACCESS-TIMESTAMP"))
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, int64(signed)).Add(30 * time.Second)
}
