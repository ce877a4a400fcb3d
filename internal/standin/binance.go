package standin

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// A window is a counter of the windows of the clock.
type window struct {
	limit  int64
	length time.Duration

	start time.Time
	used  int64
}

// left is how much is left in the window of now.
func (w *window) left(now time.Time) int64 {
	if start := now.Truncate(w.length); start.After(w.start) {
		w.start, w.used = start, 0
	}
	return w.limit - w.used
}

// Binance is Binance's Spot API, for one address and one account. Who sends before the
// Retry-After of a 429 is over is banned, for two minutes and then for twice as long each
// time. Orders with the type MARKET are filled at once, and then count no more.
func Binance() *Server {
	weight := &window{limit: 6_000, length: time.Minute}
	raw := &window{limit: 61_000, length: 5 * time.Minute}
	orders := &window{limit: 50, length: 10 * time.Second}
	daily := &window{limit: 160_000, length: 24 * time.Hour}
	var blocked, banned time.Time
	ban := 2 * time.Minute
	return newServer(func(c *Call) Reply {
		now := c.Now
		if now.Before(blocked) {
			banned, blocked = now.Add(ban), time.Time{}
			ban = min(2*ban, 72*time.Hour)
		}
		if now.Before(banned) {
			return Reply{
				Status: http.StatusTeapot, Refused: "ban", Header: map[string]string{"Retry-After": strconv.FormatInt(seconds(banned.Sub(now)), 10)},
				Body: fmt.Sprintf(`{"code":-1003,"msg":"Way too much request weight used; IP banned until %d. Please use WebSocket Streams for live updates to avoid bans."}`, banned.UnixMilli()),
			}
		}
		w, n := binanceCosts(c)
		if weight.left(now) < w || raw.left(now) < 1 {
			blocked = now.Truncate(time.Minute).Add(time.Minute)
			return Reply{
				Status: http.StatusTooManyRequests, Refused: "weight", Header: map[string]string{"Retry-After": strconv.FormatInt(seconds(blocked.Sub(now)), 10)},
				Body: `{"code":-1003,"msg":"Too much request weight used; current limit is 6000 request weight per 1 MINUTE. Please use WebSocket Streams for live updates to avoid polling the API."}`,
			}
		}
		weight.used, raw.used = weight.used+w, raw.used+1
		header := map[string]string{"X-MBX-USED-WEIGHT": strconv.FormatInt(weight.used, 10), "X-MBX-USED-WEIGHT-1M": strconv.FormatInt(weight.used, 10)}
		if orders.left(now) < n || daily.left(now) < n {
			return Reply{Status: http.StatusTooManyRequests, Refused: "orders", Header: header, Body: `{"code":-1015,"msg":"Too many new orders; current limit is 50 orders per 10 SECOND."}`}
		}
		if n > 0 {
			orders.used, daily.used = orders.used+n, daily.used+n
			header["X-MBX-ORDER-COUNT-10S"], header["X-MBX-ORDER-COUNT-1D"] = strconv.FormatInt(orders.used, 10), strconv.FormatInt(daily.used, 10)
		}
		if c.URL.Query().Get("type") == "MARKET" {
			orders.used, daily.used = orders.used-n, daily.used-n
		}
		return Reply{Header: header, Body: `{}`}
	})
}

// binanceCosts is what the calls cost that the tests make.
func binanceCosts(c *Call) (weight, orders int64) {
	switch c.Method + " " + c.URL.Path {
	case "GET /api/v3/depth":
		return map[string]int64{"": 5, "500": 25, "1000": 50, "5000": 250}[c.URL.Query().Get("limit")], 0
	case "GET /api/v3/klines":
		return 2, 0
	case "GET /api/v3/exchangeInfo":
		return 20, 0
	case "POST /api/v3/order":
		return 1, 1
	case "POST /api/v3/orderList/oco":
		return 1, 2
	}
	return 1, 0
}
