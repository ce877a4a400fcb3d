package providers_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/algorithms"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// accounts is how many accounts one address has here.
const accounts = 5

// byAccount counts the requests of each account apart.
func byAccount(r arrivedRequest) (string, bool) { return r.Header.Get(accountHeader), true }

// under counts requests whose paths begin with one of some texts, by account or by address.
func under(byAccount bool, prefixes ...string) func(arrivedRequest) (string, bool) {
	return func(r arrivedRequest) (key string, counts bool) {
		if byAccount {
			key = r.Header.Get(accountHeader)
		}
		for _, prefix := range prefixes {
			counts = counts || strings.HasPrefix(r.URL.Path, prefix)
		}
		return key, counts
	}
}

// signed counts requests that have a header, by account. Others don't count.
func signed(header string) func(arrivedRequest) (string, bool) {
	return func(r arrivedRequest) (string, bool) {
		return r.Header.Get(accountHeader), r.Header.Get(header) != ""
	}
}

// unsigned counts requests without a header, by address.
func unsigned(header string) func(arrivedRequest) (string, bool) {
	return func(r arrivedRequest) (string, bool) { return "", r.Header.Get(header) == "" }
}

// says is a refusal with a body and headers, in pairs. WAIT in a header stands for its seconds.
func says(status int, body string, headers ...string) func(arrivedRequest, time.Duration) fakeapi.Reply {
	return func(_ arrivedRequest, wait time.Duration) fakeapi.Reply {
		reply := fakeapi.Reply{Status: status, Body: body, Header: map[string]string{}}
		for i := 0; i < len(headers); i += 2 {
			reply.Header[headers[i]] = strings.ReplaceAll(headers[i+1], "WAIT", seconds(wait))
		}
		return reply
	}
}

// told is a refusal that names a wait.
func told(reply func(arrivedRequest, time.Duration) fakeapi.Reply, wait time.Duration) func() fakeapi.Reply {
	return func() fakeapi.Reply { return reply(arrivedRequest{}, wait) }
}

var (
	binanceWeight = says(429, `{"code":-1003,"msg":"Too much request weight used; current limit is 6000 request weight per 1 MINUTE. Please use WebSocket Streams for live updates to avoid polling the API."}`, "Retry-After", "WAIT")
	binanceOrders = says(429, `{"code":-1015,"msg":"Too many new orders; current limit is 100 orders per 10 SECOND."}`, "Retry-After", "WAIT")
	bybitAddress  = says(403, "403, access too frequent", "Content-Type", "text/plain")
	coinbaseIP    = says(429, `{"message":"Public rate limit exceeded"}`)
	coinbaseUser  = says(429, `{"message":"Private rate limit exceeded"}`)
	krakenIP      = says(200, `{"error":["EGeneral:Too many requests"]}`)
	krakenKey     = says(200, `{"error":["EAPI:Rate limit exceeded"],"result":null}`)
	okxIP         = says(429, `{"msg":"Too Many Requests","code":"50011"}`)
	okxUser       = says(200, `{"code":"50011","msg":"Rate limit reached. Please refer to API documentation and throttle requests accordingly.","data":[]}`)
	discordGlobal = says(429, `{"message":"You are being rate limited.","retry_after":1,"global":true}`, "Retry-After", "WAIT", "X-RateLimit-Global", "true", "X-RateLimit-Scope", "global")
	discordBan    = says(429, `{"code": 0, "message": "You are being blocked from accessing our API temporarily due to exceeding our rate limits frequently. Please read our docs at https://discord.com/developers/docs/topics/rate-limits to prevent this moving forward."}`)
	cloudflare971 = says(429, `{"success":false,"errors":[{"code":971,"message":"Please wait and consider throttling your request speed"}],"messages":[],"result":null}`, "Retry-After", "WAIT")
	redditIP      = says(429, "<html><title>Too Many Requests</title></html>", "Content-Type", "text/html; charset=UTF-8", "Retry-After", "WAIT")
	redditUser    = says(429, "", "x-ratelimit-remaining", "0.0", "x-ratelimit-reset", "WAIT", "x-ratelimit-used", "1000")
)

func bybitUser(_ arrivedRequest, wait time.Duration) fakeapi.Reply {
	at := time.Now()
	return fakeapi.Reply{
		Header: map[string]string{"X-Bapi-Limit": "50", "X-Bapi-Limit-Status": "0", "X-Bapi-Limit-Reset-Timestamp": fmt.Sprint(at.Add(wait).UnixMilli())},
		Body:   fmt.Sprintf(`{"retCode":10006,"retMsg":"Too many visits","result":{},"retExtInfo":{},"time":%d}`, at.UnixMilli()),
	}
}

// tierOf reads a tier such as "10/s;algo=token_bucket;burst=15".
func tierOf(text string) throttle.Tier {
	tier, err := algorithms.ParseTier(text)
	if err != nil {
		panic(err)
	}
	return tier
}

// newBinance is the Spot API, as rest-api.md, enums.md and faqs/order_count_decrement.md of
// github.com/binance/binance-spot-api-docs@a5e0bc3 describe it (read 2026-11-28): "the limits on the
// API are based on the IPs, not the API keys"; orders count for the account; who goes on after a 429
// is banned by address, "from 2 minutes to 3 days". Windows are those of the clock. exchangeInfo of
// 2026 has 100 orders in 10 s and 200,000 a day.
func newBinance() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "weight", tier: tierOf("6000/m;algo=fixed_window"), refusal: binanceWeight, cost: func(r arrivedRequest) int64 {
				if r.Method == http.MethodPost {
					return 0 // an order that succeeds, since 2026-04-02
				}
				return 25 // depth with a limit of 500
			}},
			{name: "orders", tier: tierOf("100/10s;algo=fixed_window"), refusal: binanceOrders, key: under(true, "/api/v3/order")},
			{name: "day", tier: tierOf("200000/1d;algo=fixed_window"), refusal: binanceOrders, key: under(true, "/api/v3/order")},
		},
		// Binance doesn't publish how many refusals it tolerates.
		ban: &pageBan{after: 3, within: time.Minute, lasts: 2 * time.Minute, reply: func(wait time.Duration) fakeapi.Reply {
			return binanceBan(wait)
		}},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			header := map[string]string{"x-mbx-used-weight-1m": api.used("weight", r)}
			if r.Method == http.MethodPost {
				header["x-mbx-order-count-10s"] = api.used("orders", r)
				header["x-mbx-order-count-1d"] = api.used("day", r)
			}
			return fakeapi.Reply{Header: header, Body: "{}"}
		},
	}
}

// binanceBan is the response that github.com/ccxt/ccxt/issues/14639 shows (read 2026-11-28).
func binanceBan(wait time.Duration) fakeapi.Reply {
	return fakeapi.Reply{Status: 418, Header: map[string]string{"Retry-After": seconds(wait)}, Body: fmt.Sprintf(
		`{"code":-1003,"msg":"Way too much request weight used; IP banned until %d. Please use WebSocket Streams for live updates to avoid bans."}`,
		time.Now().Add(wait).UnixMilli())}
}

// newBybit is the V5 API, as docs/v5/rate-limit/rate-limit.mdx of github.com/bybit-exchange/docs@072c197
// describes it (read 2026-11-28): 600 requests in any 5 s for an address, over all hosts; who exceeds
// that gets "403, access too frequent" and must wait at least 10 minutes. GET /v5/order/realtime has 50
// a second for each UID.
func newBybit() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "address", tier: tierOf("600/5s"), refusal: bybitAddress},
			{name: "endpoint", tier: tierOf("50/s"), refusal: bybitUser, key: under(true, "/v5/order/realtime")},
		},
		ban: &pageBan{after: 0, within: time.Second, lasts: 10 * time.Minute, reply: func(wait time.Duration) fakeapi.Reply {
			return bybitAddress(arrivedRequest{}, wait)
		}},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			reply := fakeapi.Reply{Body: `{"retCode":0,"retMsg":"OK","result":{},"retExtInfo":{}}`}
			if r.Header.Get("X-BAPI-API-KEY") != "" {
				left, more := api.left("endpoint", r)
				if left > 0 {
					more = 0 // then Bybit sends the present time
				}
				reply.Header = map[string]string{
					"X-Bapi-Limit": "50", "X-Bapi-Limit-Status": fmt.Sprint(left),
					"X-Bapi-Limit-Reset-Timestamp": fmt.Sprint(time.Now().Add(more).UnixMilli()),
				}
			}
			return reply
		},
	}
}

// newCoinbase is Coinbase Exchange, as docs.cdp.coinbase.com/exchange/rest-api/rate-limits describes it
// (read 2026-11-28): token buckets that start full; public requests 10 a second and 15 at once for an
// address, private ones 15 a second and 30 at once for a profile.
func newCoinbase() *pageAPI {
	return &pageAPI{limits: []pageLimit{
		{name: "public", tier: tierOf("10/s;algo=token_bucket;burst=15"), refusal: coinbaseIP, key: unsigned("CB-ACCESS-KEY")},
		{name: "private", tier: tierOf("15/s;algo=token_bucket;burst=30"), refusal: coinbaseUser, key: signed("CB-ACCESS-KEY")},
	}}
}

// newKraken is the Spot API, as docs.kraken.com/exchange/guides/rest/ratelimits.md describes it (read
// 2026-11-28): each API key has a counter of 15 that falls by 0.33 a second. The public limit, 1 a
// second for an address, is of support.kraken.com/articles/206548367, and its burst of 30 was measured.
func newKraken() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "public", tier: tierOf("1/s;algo=token_bucket;burst=30"), refusal: krakenIP, key: under(false, "/0/public/")},
			{name: "private", tier: tierOf("33/100s;algo=token_bucket;burst=15"), refusal: krakenKey, key: under(true, "/0/private/")},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply { return fakeapi.Reply{Body: `{"error":[],"result":{}}`} },
	}
}

// newOKX is the V5 API, as www.okx.com/docs-v5/en/#overview-rate-limits describes it (read 2026-11-28):
// public endpoints count by address, private ones by user. The ticker has 20 requests in 2 s and the
// balance 10.
func newOKX() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "ticker", tier: tierOf("20/2s"), refusal: okxIP, key: under(false, "/api/v5/market/ticker")},
			{name: "balance", tier: tierOf("10/2s"), refusal: okxUser, key: under(true, "/api/v5/account/balance")},
		},
		answer: func(*pageAPI, arrivedRequest) fakeapi.Reply {
			return fakeapi.Reply{Body: `{"code":"0","msg":"","data":[]}`}
		},
	}
}

// newDiscord is the API, as docs.discord.com/developers/topics/rate-limits describes it (read
// 2026-11-28): "All bots can make up to 50 requests per second to our API. If no authorization header
// is provided, then the limit is applied to the IP address." 10,000 invalid requests in 10 minutes ban
// the address; the response is of github.com/discord/discord-api-docs/issues/5810.
func newDiscord() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "address", tier: tierOf("50/s"), refusal: discordGlobal, key: unsigned("Authorization")},
			{name: "bot", tier: tierOf("50/s"), refusal: discordGlobal, key: signed("Authorization")},
		},
		ban: &pageBan{after: 10_000, within: 10 * time.Minute, lasts: time.Hour, reply: func(wait time.Duration) fakeapi.Reply {
			return discordBan(arrivedRequest{}, wait)
		}},
	}
}

// newCloudflare is the API, as developers.cloudflare.com/fundamentals/api/reference/limits describes it
// (read 2026-11-28): 1,200 requests in 5 minutes for a user, and 200 a second for an address. The
// refusal is of github.com/cloudflare/terraform-provider-cloudflare/issues/5505.
func newCloudflare() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "user", tier: tierOf("1200/5m"), refusal: cloudflare971, key: byAccount},
			{name: "address", tier: tierOf("200/s"), refusal: cloudflare971},
		},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			left, more := api.left("user", r)
			return fakeapi.Reply{Body: `{"success":true,"errors":[],"messages":[],"result":[]}`, Header: map[string]string{
				"ratelimit-policy": `"default";q=1200;w=300`, "ratelimit": fmt.Sprintf(`"default";r=%d;t=%s`, left, seconds(more))}}
		},
	}
}

// newReddit is the API. The quota of an OAuth client and user, 1,000 in each ten minutes of the clock,
// is of the recordings in github.com/praw-dev/praw@7b69758; the one request in 2 s of an address without
// OAuth is of the HTML refusal and github.com/reddit-archive/reddit/wiki/API (read 2026-11-28).
func newReddit() *pageAPI {
	return &pageAPI{
		limits: []pageLimit{
			{name: "oauth", tier: tierOf("1000/10m;algo=fixed_window"), refusal: redditUser, key: signed("Authorization")},
			{name: "address", tier: tierOf("1/2s"), refusal: redditIP, key: unsigned("Authorization")},
		},
		answer: func(api *pageAPI, r arrivedRequest) fakeapi.Reply {
			if r.Header.Get("Authorization") == "" {
				return fakeapi.Reply{Body: "{}"}
			}
			left, _ := api.left("oauth", r)
			const window = 10 * time.Minute
			return fakeapi.Reply{Body: "{}", Header: map[string]string{
				"x-ratelimit-remaining": fmt.Sprintf("%d.0", left), "x-ratelimit-used": api.used("oauth", r),
				"x-ratelimit-reset": seconds(time.Until(time.Now().Truncate(window).Add(window))),
			}}
		},
	}
}

// A kindOfRequest is a request of one account. The number n grows with each request.
type kindOfRequest struct {
	request string // "METHOD URL", where %d stands for n
	header  string // the header that has the account's credential, or ""
	body    string
}

func (k kindOfRequest) build(t *testing.T, account, n int) *http.Request {
	t.Helper()
	method, url, _ := strings.Cut(k.request, " ")
	if strings.Contains(url, "%d") {
		url = fmt.Sprintf(url, n)
	}
	headers := []string{fmt.Sprintf("%s: account%d", accountHeader, account), "User-Agent: test"}
	if k.header != "" {
		headers = append(headers, fmt.Sprintf("%s: Bearer %d", k.header, account))
	}
	return withBody(t, method, url, "application/x-www-form-urlencoded", k.body, headers...)
}

var (
	binanceDepth    = kindOfRequest{request: "GET https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=500", header: "X-MBX-APIKEY"}
	binanceOrder    = kindOfRequest{request: "POST https://api.binance.com/api/v3/order", header: "X-MBX-APIKEY", body: "symbol=BTCUSDT&side=BUY&type=LIMIT&timeInForce=GTC&quantity=10&price=0.1"}
	bybitTickers    = kindOfRequest{request: "GET https://api.bybit.com/v5/market/tickers?category=linear"}
	bybitRealtime   = kindOfRequest{request: "GET https://api.bybit.com/v5/order/realtime?category=linear", header: "X-BAPI-API-KEY"}
	coinbaseTicker  = kindOfRequest{request: "GET https://api.exchange.coinbase.com/products/BTC-USD/ticker"}
	coinbaseList    = kindOfRequest{request: "GET https://api.exchange.coinbase.com/accounts", header: "CB-ACCESS-KEY"}
	krakenTicker    = kindOfRequest{request: "GET https://api.kraken.com/0/public/Ticker?pair=XBTUSD"}
	krakenBalance   = kindOfRequest{request: "POST https://api.kraken.com/0/private/Balance", header: "API-Key", body: "nonce=1"}
	okxTicker       = kindOfRequest{request: "GET https://www.okx.com/api/v5/market/ticker?instId=BTC-USDT"}
	okxBalance      = kindOfRequest{request: "GET https://www.okx.com/api/v5/account/balance", header: "OK-ACCESS-KEY"}
	discordWebhook  = kindOfRequest{request: "POST https://discord.com/api/v10/webhooks/%d/token"}
	discordMessage  = kindOfRequest{request: "POST https://discord.com/api/v10/channels/%d/messages", header: "Authorization"}
	cloudflareZones = kindOfRequest{request: "GET https://api.cloudflare.com/client/v4/zones", header: "Authorization"}
	redditPublic    = kindOfRequest{request: "GET https://www.reddit.com/r/test/new.json"}
	redditOAuth     = kindOfRequest{request: "GET https://oauth.reddit.com/r/test/new", header: "Authorization"}
)

// A sharedAddress is a workload of five accounts at one address.
type sharedAddress struct {
	name   string
	preset func() providers.Provider
	api    func() *pageAPI
	kind   kindOfRequest
	tier   string // the limit that decides
	cost   int64
	each   bool // each account has the limit; else all have it together
	d      time.Duration
}

var sharedAddresses = []sharedAddress{
	{"Binance weight", providers.Binance, newBinance, binanceDepth, "6000/m;algo=fixed_window", 25, false, 4 * time.Minute},
	{"Binance orders", providers.Binance, newBinance, binanceOrder, "100/10s;algo=fixed_window", 1, true, time.Minute},
	{"Bybit public", providers.Bybit, newBybit, bybitTickers, "600/5s", 1, false, 30 * time.Second},
	{"Bybit private", providers.Bybit, newBybit, bybitRealtime, "600/5s", 1, false, 30 * time.Second},
	{"Coinbase Exchange public", providers.CoinbaseExchange, newCoinbase, coinbaseTicker, "10/s;algo=token_bucket;burst=15", 1, false, time.Minute},
	{"Coinbase Exchange private", providers.CoinbaseExchange, newCoinbase, coinbaseList, "15/s;algo=token_bucket;burst=30", 1, true, 20 * time.Second},
	{"Kraken public", providers.Kraken, newKraken, krakenTicker, "1/s;algo=token_bucket;burst=30", 1, false, 10 * time.Minute},
	{"Kraken private", providers.Kraken, newKraken, krakenBalance, "33/100s;algo=token_bucket;burst=15", 1, true, 10 * time.Minute},
	{"OKX public", providers.OKX, newOKX, okxTicker, "20/2s", 1, false, time.Minute},
	{"OKX private", providers.OKX, newOKX, okxBalance, "10/2s", 1, true, time.Minute},
	{"Discord without a bot", providers.Discord, newDiscord, discordWebhook, "50/s", 1, false, 30 * time.Second},
	{"Discord bots", providers.Discord, newDiscord, discordMessage, "50/s", 1, true, 10 * time.Second},
	{"Cloudflare", providers.Cloudflare, newCloudflare, cloudflareZones, "200/s", 1, false, 25 * time.Second},
	{"Cloudflare users", providers.Cloudflare, newCloudflare, cloudflareZones, "1200/5m", 1, true, 5 * time.Minute},
	{"Reddit without OAuth", providers.Reddit, newReddit, redditPublic, "1/2s", 1, false, 10 * time.Minute},
	{"Reddit OAuth", providers.Reddit, newReddit, redditOAuth, "1000/10m;algo=fixed_window", 1, true, 10 * time.Minute},
}

// accountOf reads the account of a request.
func accountOf(r *http.Request) string { return r.Header.Get(accountHeader) }

// byClient sends the requests of accounts with even numbers by one client, and the others by another.
type byClient [2]http.RoundTripper

func (c byClient) RoundTrip(r *http.Request) (*http.Response, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(accountOf(r), "account"))
	if err != nil {
		return nil, err
	}
	return c[n%2].RoundTrip(r)
}

// forAccounts calls run in a bubble with a client of five accounts: one that keeps its quotas to itself,
// and two that share a store. On Redis, package integration plays some of it.
func forAccounts(t *testing.T, preset func() providers.Provider, run func(t *testing.T, over func(http.RoundTripper) http.RoundTripper)) {
	transport := func(t *testing.T, s throttle.Store, api http.RoundTripper) http.RoundTripper {
		p := preset()
		p.Account = accountOf
		transport, err := p.Transport(s)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		return transport
	}
	t.Run("one client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			run(t, func(api http.RoundTripper) http.RoundTripper { return transport(t, nil, api) })
		})
	})
	t.Run("two clients", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			shared := local.New()
			run(t, func(api http.RoundTripper) http.RoundTripper {
				return byClient{transport(t, shared, api), transport(t, shared, api)}
			})
		})
	})
}

// Five accounts behind one address are never refused, share what the address may send, and each have
// all that an account may.
func TestAccountsShareAnAddress(t *testing.T) {
	for _, test := range sharedAddresses {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 24)
			forAccounts(t, test.preset, func(t *testing.T, over func(http.RoundTripper) http.RoundTripper) {
				api := test.api()
				rt := over(api)
				want := possible(t, tierOf(test.tier), test.cost, test.d)
				if test.each {
					want *= accounts
				}
				start := time.Now()
				const workers = 4 * accounts
				keepBusy(t, rt, workers, test.d, func(worker int) *http.Request {
					return test.kind.build(t, worker%accounts, worker)
				})
				checkNoneRefused(t, api)
				served, _ := api.outcomes(start)
				t.Logf("%d of %d served: %v", sum(served), want, served)
				if got := float64(sum(served)); got < 0.95*float64(want) {
					t.Errorf("%.0f served, want at least 0.95 of %d", got, want)
				}
				for n := range accounts {
					if got := served[fmt.Sprint("account", n)]; float64(got) < 0.15*float64(want) {
						t.Errorf("account %d has %d of %d, want at least 0.15", n, got, want)
					}
				}
			})
		})
	}
}

// An accountRefusal is a refusal that one of five accounts receives.
type accountRefusal struct {
	name   string
	preset func() providers.Provider
	api    func() *pageAPI
	kind   kindOfRequest
	reply  func() fakeapi.Reply
	lasts  time.Duration
}

// A refusal or a ban of the address, received by one account, stops the requests of all of them until
// it ends.
func TestRefusalOfAnAddressStopsAllAccounts(t *testing.T) {
	for _, test := range []accountRefusal{
		{"Binance 429", providers.Binance, newBinance, binanceDepth, told(binanceWeight, 29*time.Second), 29 * time.Second},
		{"Binance 418", providers.Binance, newBinance, binanceDepth, func() fakeapi.Reply { return binanceBan(2 * time.Minute) }, 2 * time.Minute},
		{"Bybit 403", providers.Bybit, newBybit, bybitRealtime, told(bybitAddress, 0), 10 * time.Minute},
		{"Coinbase Exchange", providers.CoinbaseExchange, newCoinbase, coinbaseTicker, told(coinbaseIP, 0), time.Second},
		{"Kraken", providers.Kraken, newKraken, krakenTicker, told(krakenIP, 0), time.Second},
		{"OKX", providers.OKX, newOKX, okxTicker, told(okxIP, 0), time.Second},
		{"Discord ban", providers.Discord, newDiscord, discordMessage, told(discordBan, 0), 30 * time.Minute},
		{"Discord without a bot", providers.Discord, newDiscord, discordWebhook, told(discordGlobal, 20*time.Second), 20 * time.Second},
		{"Reddit without OAuth", providers.Reddit, newReddit, redditPublic, told(redditIP, 20*time.Second), 20 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			forAccounts(t, test.preset, func(t *testing.T, over func(http.RoundTripper) http.RoundTripper) {
				api := test.api()
				rt := over(api)
				warm(t, rt, test.kind)
				before := time.Now()
				api.trap(test.reply())
				if err := fetch(rt, test.kind.build(t, 0, 0)); err != nil {
					t.Fatal(err)
				}
				refused := time.Now()
				time.Sleep(100 * time.Millisecond)
				tryUntil(t, rt, test.kind, refused.Add(test.lasts-100*time.Millisecond))
				served, others := api.outcomes(before)
				if n := sum(served) + sum(others); n > 0 {
					t.Errorf("%d requests were sent within %v of the refusal: %v %v", n, test.lasts, served, others)
				}
				goOnLater(t, api, rt, test.kind, refused.Add(test.lasts))
			})
		})
	}
}

// tryUntil makes each account try to send twenty requests, evenly until a time.
func tryUntil(t *testing.T, rt http.RoundTripper, kind kindOfRequest, end time.Time) {
	t.Helper()
	const tries = 20
	every := time.Until(end) / tries
	ctx, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	var wg sync.WaitGroup
	for n := range accounts {
		wg.Go(func() {
			for i := range tries {
				_ = fetch(rt, kind.build(t, n, 1_000+i).WithContext(ctx)) // that it is refused is one good outcome
				_ = httpmem.Sleep(ctx, func() time.Duration { return every })
			}
		})
	}
	wg.Wait()
}

// warm sends a request of each account, so that each of them has its quotas.
func warm(t *testing.T, rt http.RoundTripper, kind kindOfRequest) {
	t.Helper()
	for n := range accounts {
		if err := fetch(rt, kind.build(t, n, n)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(11 * time.Second) // one request in two seconds, and orders in ten, are free again
}

// goOnLater fails if an account sends nothing in the hour after a refusal ends.
func goOnLater(t *testing.T, api *pageAPI, rt http.RoundTripper, kind kindOfRequest, end time.Time) {
	t.Helper()
	time.Sleep(time.Until(end.Add(time.Hour)))
	after := time.Now()
	for n := range accounts {
		if err := fetch(rt, kind.build(t, n, 1_000+n)); err != nil {
			t.Errorf("account %d, an hour after the refusal: %v", n, err)
		}
		time.Sleep(3 * time.Second)
	}
	if served, _ := api.outcomes(after); len(served) != accounts {
		t.Errorf("served %v, want all accounts", served)
	}
}

// A refusal that concerns one account stops that account and no other.
func TestRefusalOfAnAccountStopsItAlone(t *testing.T) {
	for _, test := range []accountRefusal{
		{"Binance orders", providers.Binance, newBinance, binanceOrder, told(binanceOrders, 5*time.Second), 5 * time.Second},
		{"Bybit endpoint", providers.Bybit, newBybit, bybitRealtime, told(bybitUser, time.Second), time.Second},
		{"Coinbase Exchange private", providers.CoinbaseExchange, newCoinbase, coinbaseList, told(coinbaseUser, 0), time.Second},
		{"Kraken key", providers.Kraken, newKraken, krakenBalance, told(krakenKey, 0), time.Second},
		{"Kraken lockout", providers.Kraken, newKraken, krakenBalance, told(says(200, `{"error":["EGeneral:Temporary lockout"]}`), 0), 10 * time.Minute},
		{"OKX balance", providers.OKX, newOKX, okxBalance, told(okxUser, 0), time.Second},
		{"Discord bot", providers.Discord, newDiscord, discordMessage, told(discordGlobal, 20*time.Second), 20 * time.Second},
		{"Cloudflare user", providers.Cloudflare, newCloudflare, cloudflareZones, told(cloudflare971, 142*time.Second), 142 * time.Second},
		{"Reddit OAuth", providers.Reddit, newReddit, redditOAuth, told(redditUser, 300*time.Second), 300 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			forAccounts(t, test.preset, func(t *testing.T, over func(http.RoundTripper) http.RoundTripper) {
				api := test.api()
				rt := over(api)
				warm(t, rt, test.kind)
				api.trap(test.reply())
				if err := fetch(rt, test.kind.build(t, 0, 0)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.lasts-200*time.Millisecond)
				defer cancel()
				for n := range accounts {
					_ = fetch(rt, test.kind.build(t, (n+1)%accounts, 1_000+n).WithContext(ctx))
				}
				served, _ := api.outcomes(start)
				if served["account0"] > 0 {
					t.Errorf("account 0 was served %v after a refusal for %v", time.Since(start), test.lasts)
				}
				if len(served) != accounts-1 {
					t.Errorf("served %v, want the other accounts", served)
				}
			})
		})
	}
}

// Responses that overtake each other report earlier counts last. That admits nothing beyond the limits.
func TestOvertakenReportsOfUse(t *testing.T) {
	for _, test := range []struct {
		name string
		kind kindOfRequest
		tier string
		cost int64
	}{
		{"weight", binanceDepth, "6000/m;algo=fixed_window", 25},
		{"orders", binanceOrder, "100/10s;algo=fixed_window", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newBinance()
				api.early, api.ban = true, nil
				const d = 3 * time.Minute
				want := possible(t, tierOf(test.tier), test.cost, d)
				keepBusy(t, over(t, providers.Binance(), api), 16, d, func(int) *http.Request { return test.kind.build(t, 0, 0) })
				checkNoneRefused(t, api)
				if served, _ := api.outcomes(time.Time{}); float64(sum(served)) < 0.95*float64(want) {
					t.Errorf("%d served, want at least 0.95 of %d", sum(served), want)
				}
			})
		})
	}
}

// The invalid requests of all bots at an address count together: after 10,000 none is sent, until ten
// minutes have passed since the first ones.
func TestInvalidRequestsOfAnAddress(t *testing.T) {
	soak.Long(t, "10,000 requests; TestDiscordInvalidLimit has those of one bot")
	synctest.Test(t, func(t *testing.T) {
		const most = 10_000
		api := newDiscord()
		api.limits = append(api.limits, pageLimit{name: "invalid", tier: tierOf("10000/10m"), refusal: discordBan})
		api.answer = func(*pageAPI, arrivedRequest) fakeapi.Reply {
			return fakeapi.Reply{Status: 403, Body: `{"message": "You lack permissions to perform that action", "code": 50013}`}
		}
		p := providers.Discord()
		p.Account = accountOf
		keepBusy(t, over(t, p, api), 8*accounts, time.Minute, func(worker int) *http.Request {
			return discordMessage.build(t, worker%accounts, worker)
		})
		checkNoneRefused(t, api)
		if served, _ := api.outcomes(time.Time{}); float64(sum(served)) < 0.95*most {
			t.Errorf("%d requests were sent, want at least 0.95 of %d", sum(served), most)
		}
	})
}
