package fakeapi

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A window is a counter for windows aligned to the clock.
type window struct {
	limit  int64
	length time.Duration

	start time.Time
	used  int64
}

// left returns how many units are left in the window of now.
func (w *window) left(now time.Time) int64 {
	if start := now.Truncate(w.length); start.After(w.start) {
		w.start, w.used = start, 0
	}
	return w.limit - w.used
}

// Binance is Binance's Spot API, for one address and one account. A client that sends before the
// Retry-After of a 429 has passed is banned, for two minutes, and then for twice as long each time.
// An order weighs nothing, or 1 if it is refused. Orders with the type MARKET are filled at once, and
// then no longer count. A request with a
// timestamp, in milliseconds, is refused after its recvWindow, but its weight counts.
func Binance() *Server {
	b := &binance{
		weight: window{limit: 6_000, length: time.Minute}, raw: window{limit: 61_000, length: 5 * time.Minute},
		orders: window{limit: 50, length: 10 * time.Second}, daily: window{limit: 160_000, length: 24 * time.Hour},
		ban: 2 * time.Minute,
	}
	return newServer(b.decide)
}

type binance struct {
	weight, raw, orders, daily window

	blocked time.Time     // end of the Retry-After of the last 429
	banned  time.Time     // end of the ban
	ban     time.Duration // length of the next ban
}

func (b *binance) decide(c *Call) Reply {
	now := c.Now
	if now.Before(b.blocked) {
		b.banned, b.blocked = now.Add(b.ban), time.Time{}
		b.ban = min(2*b.ban, 72*time.Hour)
	}
	if now.Before(b.banned) {
		return refusal(418, "ban", b.banned.Sub(now),
			fmt.Sprintf(`{"code":-1003,"msg":"Way too much request weight used; IP banned until %d. Please use WebSocket Streams for live updates to avoid bans."}`, b.banned.UnixMilli()))
	}
	weight, orders := binanceCosts(c)
	if b.weight.left(now) < weight || b.raw.left(now) < 1 {
		b.blocked = now.Truncate(time.Minute).Add(time.Minute)
		return refusal(429, "weight", b.blocked.Sub(now),
			`{"code":-1003,"msg":"Too much request weight used; current limit is 6000 request weight per 1 MINUTE. Please use WebSocket Streams for live updates to avoid polling the API."}`)
	}
	b.weight.used, b.raw.used = b.weight.used+weight, b.raw.used+1
	r := Reply{Header: map[string]string{"X-MBX-USED-WEIGHT-1M": strconv.FormatInt(b.weight.used, 10)}, Body: `{}`}
	if binanceExpired(c) {
		b.weight.used += min(1, orders)
		r.Status, r.Refused, r.Body = http.StatusBadRequest, "timestamp", `{"code":-1021,"msg":"Timestamp for this request is outside of the recvWindow."}`
		return r
	}
	if b.orders.left(now) < orders || b.daily.left(now) < orders {
		b.weight.used++
		r.Status, r.Refused, r.Body = http.StatusTooManyRequests, "orders", `{"code":-1015,"msg":"Too many new orders; current limit is 50 orders per 10 SECOND."}`
		return r
	}
	if orders > 0 {
		b.orders.used, b.daily.used = b.orders.used+orders, b.daily.used+orders
		r.Header["X-MBX-ORDER-COUNT-10S"], r.Header["X-MBX-ORDER-COUNT-1D"] = strconv.FormatInt(b.orders.used, 10), strconv.FormatInt(b.daily.used, 10)
	}
	if c.URL.Query().Get("type") == "MARKET" {
		b.orders.used, b.daily.used = b.orders.used-orders, b.daily.used-orders
	}
	return r
}

// refusal returns a reply with a Retry-After.
func refusal(status int, by string, wait time.Duration, body string) Reply {
	return Reply{Status: status, Refused: by, Body: body, Header: map[string]string{"Retry-After": strconv.FormatInt(seconds(wait), 10)}}
}

// binanceExpired reports whether the call arrived after its recvWindow.
func binanceExpired(c *Call) bool {
	all := c.URL.Query()
	if sent, err := url.ParseQuery(string(c.Body)); err == nil {
		maps.Copy(all, sent)
	}
	signed, err := strconv.ParseInt(all.Get("timestamp"), 10, 64)
	if err != nil {
		return false
	}
	window, err := strconv.ParseInt(all.Get("recvWindow"), 10, 64)
	if err != nil {
		window = 5000
	}
	return c.Now.UnixMilli()-signed > window
}

// binanceCosts returns the costs of the calls that the tests make.
func binanceCosts(c *Call) (weight, orders int64) {
	switch c.Method + " " + c.URL.Path {
	case "GET /api/v3/depth":
		return map[string]int64{"": 5, "500": 25, "1000": 50, "5000": 250}[c.URL.Query().Get("limit")], 0
	case "GET /api/v3/klines":
		return 2, 0
	case "GET /api/v3/exchangeInfo":
		return 20, 0
	case "POST /api/v3/order":
		return 0, 1
	case "POST /api/v3/orderList/oco":
		return 0, 2
	}
	return 1, 0
}
