package providers_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The stand-ins of this file count connections and messages of WebSockets as the documentation of
// the API says, from plain lists of the instants at which they arrived. Where it doesn't say what
// kind a window is, the window rolls, which is the strictest kind. What has no documented number is
// left out.
//
// An address is text such as "192.0.2.1". A connection is the address that it is from, a "#", and a
// name, such as "192.0.2.1#3". A connection that was closed stays closed.
//
// See each type for the kinds of messages. A refusal is what the API answers, or "" if it accepts.

// A socketStandIn is one of them.
type socketStandIn interface {
	connect(at time.Time, from string) (refusal string)
	send(at time.Time, connection string, kind string) (refusal string)
}

// A socketCount is n units that arrived at an instant.
type socketCount struct {
	at time.Time
	n  float64
}

// socketCounts are what arrived, by connection, by address, or by whatever else a limit counts.
type socketCounts map[string][]socketCount

func (a socketCounts) add(of string, at time.Time, n float64) {
	a[of] = append(a[of], socketCount{at, n})
}

// rolling returns the units that arrived in the window that ends at an instant. What arrived just
// one window earlier is out.
func (a socketCounts) rolling(of string, at time.Time, window time.Duration) (sum float64) {
	for _, x := range a[of] {
		if at.Sub(x.at) < window {
			sum += x.n
		}
	}
	return sum
}

// clock returns the units that arrived since the window of the clock began.
func (a socketCounts) clock(of string, at time.Time, window time.Duration) (sum float64) {
	for _, x := range a[of] {
		if !x.at.Before(at.Truncate(window)) {
			sum += x.n
		}
	}
	return sum
}

// counter returns the level of a counter that rises by what arrives, and falls at each second of
// the clock, to 0 at the least.
func (a socketCounts) counter(of string, at time.Time, fall float64) (level float64) {
	var last time.Time
	for _, x := range append(slices.Clip(a[of]), socketCount{at: at}) {
		if seconds := x.at.Unix() - last.Unix(); level > 0 && seconds > 0 {
			level = max(0, level-fall*float64(seconds))
		}
		level, last = level+x.n, x.at
	}
	return level
}

// socketAddress returns the address of a connection.
func socketAddress(connection string) string {
	address, _, _ := strings.Cut(connection, "#")
	return address
}

// socketKind returns the name of a kind and the two words after it. A word that is missing is "1".
func socketKind(kind string) (name, first, second string) {
	words := append(strings.Fields(kind), "1", "1")
	return words[0], words[1], words[2]
}

// socketNumber returns the number that a word of a kind is.
func socketNumber(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// binanceSocket stands in for the market streams of Binance.
//
// Spot: github.com/binance/binance-spot-api-docs@a5e0bc3:web-socket-streams.md, "WebSocket Limits",
// read 2026-11-29: 5 incoming messages a second, of which a PING frame, a PONG frame and a control
// message each are one; 1,024 streams a connection; 300 connections per attempt in 5 minutes and
// address. What goes beyond is disconnected. USD-M futures:
// developers.binance.com/docs/derivatives/usds-margined-futures/websocket-market-streams, read
// 2026-11-29: 10 messages a second, and 1,024 streams in one copy, 200 in another, of which the
// stricter counts; no limit of connections is told.
//
// The close code and its text are captures of github.com/binance/binance-connector-js/issues/530
// and binance-connector-go/issues/90. That the second rolls is told by
// github.com/nautechsystems/nautilus_trader/issues/5012. Neither the answer to a connection too
// many nor that to a stream too many is documented: the former is errors.md's -1034, the latter is
// in words of this test. How many disconnections ban an address is not told.
//
// Kinds: "ping", "pong", "list" and the like, and "subscribe N" or "unsubscribe N" for N streams.
type binanceSocket struct {
	messages, streams float64 // a second and connection; a connection
	// connections are those of an address in 5 minutes. If zero, they have no limit.
	connections float64

	attempts, sent socketCounts
	listens        map[string]float64
	closed         map[string]bool
}

func binanceSpotSocket() *binanceSocket { return newBinanceSocket(5, 1024, 300) }

func binanceFuturesSocket() *binanceSocket { return newBinanceSocket(10, 200, 0) }

func newBinanceSocket(messages, streams, connections float64) *binanceSocket {
	return &binanceSocket{
		messages: messages, streams: streams, connections: connections,
		attempts: socketCounts{}, sent: socketCounts{}, listens: map[string]float64{}, closed: map[string]bool{},
	}
}

func (b *binanceSocket) connect(at time.Time, from string) string {
	b.attempts.add(from, at, 1)
	if b.connections > 0 && b.attempts.rolling(from, at, 5*time.Minute) > b.connections {
		return "-1034 Too many connection attempts from IP"
	}
	return ""
}

func (b *binanceSocket) send(at time.Time, connection, kind string) string {
	if b.closed[connection] {
		return "closed"
	}
	b.sent.add(connection, at, 1)
	if b.sent.rolling(connection, at, time.Second) > b.messages {
		b.closed[connection] = true
		return "close 1008: Too many requests"
	}
	switch name, n, _ := socketKind(kind); name {
	case "subscribe":
		b.listens[connection] += socketNumber(n)
	case "unsubscribe":
		b.listens[connection] -= socketNumber(n)
	}
	if b.listens[connection] > b.streams {
		b.closed[connection] = true
		return fmt.Sprintf("closed: more than %v streams", b.streams)
	}
	return ""
}

// binanceSocketAPI stands in for the WebSocket API of Binance Spot.
//
// github.com/binance/binance-spot-api-docs@a5e0bc3:web-socket-api.md, "Rate limits", and errors.md,
// read 2026-11-29: 300 connections per attempt in 5 minutes and address; connecting costs 2 of the
// weight; 6,000 of weight in each minute of the clock and address, over all connections; orders by
// account, shared with REST, in each 10 seconds of the clock and in each day of UTC: 100 and 200,000 as
// GET /api/v3/exchangeInfo has reported, where the examples have 50 and 160,000; 429 beyond, with a
// retryAfter, and 418 from 2 minutes to 3 days for an address that goes on. How often it must do so
// is not told: here the next request before retryAfter bans. PING and PONG frames have no limit in
// it; a request "ping" weighs 1.
//
// Kinds: "NAME WEIGHT" for a request, such as "depth 50", of which "order.place 1" is an order,
// too.
type binanceSocketAPI struct {
	attempts, weight socketCounts // by address
	orders           socketCounts // of the account, whose key is ""
	retry            map[string]time.Time
	banned           map[string]time.Time
	ban              map[string]time.Duration // the latest one
}

func newBinanceSocketAPI() *binanceSocketAPI {
	return &binanceSocketAPI{
		attempts: socketCounts{}, weight: socketCounts{}, orders: socketCounts{},
		retry: map[string]time.Time{}, banned: map[string]time.Time{}, ban: map[string]time.Duration{},
	}
}

func (b *binanceSocketAPI) connect(at time.Time, from string) string {
	b.attempts.add(from, at, 1)
	if b.attempts.rolling(from, at, 5*time.Minute) > 300 {
		return "-1034 Too many connection attempts from IP"
	}
	return b.weigh(at, from, 2)
}

// weigh counts the weight of a request from an address.
func (b *binanceSocketAPI) weigh(at time.Time, from string, n float64) string {
	if at.Before(b.retry[from]) && !at.Before(b.banned[from]) {
		b.ban[from] = min(max(2*time.Minute, 2*b.ban[from]), 72*time.Hour)
		b.banned[from] = at.Add(b.ban[from])
	}
	if until := b.banned[from]; at.Before(until) {
		return fmt.Sprintf("418 -1003 Way too much request weight used; IP banned until %d.", until.UnixMilli())
	}
	if b.weight.clock(from, at, time.Minute)+n > 6000 {
		b.retry[from] = at.Truncate(time.Minute).Add(time.Minute)
		return "429 -1003 Too much request weight used; current limit is 6000 request weight per 1 MINUTE."
	}
	b.weight.add(from, at, n)
	return ""
}

func (b *binanceSocketAPI) send(at time.Time, connection, kind string) string {
	name, n, _ := socketKind(kind)
	if refusal := b.weigh(at, socketAddress(connection), socketNumber(n)); refusal != "" || name != "order.place" {
		return refusal
	}
	for _, limit := range []struct {
		n      float64
		window time.Duration
		text   string
	}{{100, 10 * time.Second, "10 SECOND"}, {200_000, 24 * time.Hour, "1 DAY"}} {
		if b.orders.clock("", at, limit.window) >= limit.n {
			return fmt.Sprintf("429 -1015 Too many new orders; current limit is %v orders per %s.", limit.n, limit.text)
		}
	}
	b.orders.add("", at, 1)
	return ""
}

// krakenSocket stands in for the WebSockets of Kraken Spot, v1 and v2.
//
// Connections: docs.kraken.com/exchange/guides/websockets/introduction and its older copies, read
// 2026-11-29: Cloudflare allows about 150 attempts of an address in rolling 10 minutes, and bans
// the address for 10 minutes beyond. 429 is the answer in github.com/knowm/XChange/issues/3733. An
// attempt counts while the ban lasts, too.
//
// Messages: the same page names no number, for it varies with the load: a test sets one. The answer
// is documented.
//
// Level 3: docs.kraken.com/api/docs/websocket-v2/level3, read 2026-11-29: 200 symbols a connection;
// a counter of 200 in a second (500 for Pro) that rises by 5, 25 or 100 for each symbol at depth
// 10, 100 or 1,000. The answers are not told.
//
// Trading: docs.kraken.com/exchange/guides/general/ratelimits, read 2026-11-29: a counter for each
// pair over all protocols, of 60, 125 or 180 by tier, which falls by 1, 2.34 or 3.75 a second, and
// rises by 1 for an order, by 1 and more for an amended or edited one, and for a canceled one, by
// its age. The fixed part counts for refused orders, too.
//
// Kinds: "level3 DEPTH SYMBOLS", "add_order PAIR", "amend_order PAIR AGE", "edit_order PAIR AGE"
// and "cancel_order PAIR AGE", with the age in seconds; others, such as "subscribe" and "ping", are
// messages only.
type krakenSocket struct {
	// rate is the number of messages a second and connection. If zero, they have no limit.
	rate         float64
	level3       float64 // of the counter in a second
	most, fall   float64 // of the counter of a pair
	attempts     socketCounts
	sent, depths socketCounts
	pairs        socketCounts
	symbols      map[string]float64
	banned       map[string]time.Time
}

func newKrakenSocket(tier string) *krakenSocket {
	k := &krakenSocket{
		level3: 200, most: 60, fall: 1,
		attempts: socketCounts{}, sent: socketCounts{}, depths: socketCounts{}, pairs: socketCounts{},
		symbols: map[string]float64{}, banned: map[string]time.Time{},
	}
	switch tier {
	case "intermediate":
		k.most, k.fall = 125, 2.34
	case "pro":
		k.level3, k.most, k.fall = 500, 180, 3.75
	}
	return k
}

func (k *krakenSocket) connect(at time.Time, from string) string {
	k.attempts.add(from, at, 1)
	if !at.Before(k.banned[from]) && k.attempts.rolling(from, at, 10*time.Minute) > 150 {
		k.banned[from] = at.Add(10 * time.Minute)
	}
	if at.Before(k.banned[from]) {
		return "429 Too Many Requests"
	}
	return ""
}

// ages are what a transaction of a pair adds, beside its fixed part, by the age of its order.
var krakenAges = map[string][]struct{ below, adds float64 }{
	"amend_order":  {{5, 3}, {10, 2}, {15, 1}},
	"edit_order":   {{5, 6}, {10, 5}, {15, 4}, {45, 2}, {90, 1}},
	"cancel_order": {{5, 8}, {10, 6}, {15, 5}, {45, 4}, {90, 2}, {300, 1}},
}

func (k *krakenSocket) send(at time.Time, connection, kind string) string {
	k.sent.add(connection, at, 1)
	if k.rate > 0 && k.sent.rolling(connection, at, time.Second) > k.rate {
		return `{"Error": "Exceeded msg rate"}`
	}
	name, first, second := socketKind(kind)
	if name == "level3" {
		cost := map[string]float64{"10": 5, "100": 25, "1000": 100}[first] * socketNumber(second)
		if k.symbols[connection]+socketNumber(second) > 200 {
			return "level3: more than 200 symbols"
		}
		if k.depths.rolling("", at, time.Second)+cost > k.level3 {
			return fmt.Sprintf("level3: counter beyond %v in a second", k.level3)
		}
		k.depths.add("", at, cost)
		k.symbols[connection] += socketNumber(second)
		return ""
	}
	ages, of := krakenAges[name]
	if !of && name != "add_order" {
		return ""
	}
	fixed, age := 1.0, 0.0
	if name == "cancel_order" {
		fixed = 0
	}
	for _, a := range ages {
		if socketNumber(second) < a.below {
			age = a.adds
			break
		}
	}
	if level := k.pairs.counter(first, at, k.fall); level+fixed+age > k.most {
		k.pairs.add(first, at, min(fixed, k.most-level))
		return "EOrder:Rate limit exceeded"
	}
	k.pairs.add(first, at, fixed+age)
	return ""
}

// krakenFuturesSocket stands in for the WebSocket of Kraken Futures.
//
// docs.kraken.com/api/docs/guides/futures-rate-limits, "Websocket Limits" (copy of 2026-05-27; the
// page of docs.kraken.com/exchange/guides/futures/ratelimits has the same title), read 2026-11-29:
// 100 connections of a client at once, and 100 requests of a connection, replenished in 1 second.
// Challenges, subscriptions and the rest are requests alike. The alert is a capture of github.com/
// nautechsystems/nautilus_trader/pull/4093: the request is dropped and the connection stays. The
// answer to a connection too many is not told.
type krakenFuturesSocket struct {
	open int
	sent socketCounts
}

func (k *krakenFuturesSocket) connect(time.Time, string) string {
	if k.open >= 100 {
		return "more than 100 connections"
	}
	k.open++
	return ""
}

// close ends one of the connections.
func (k *krakenFuturesSocket) close() { k.open-- }

func (k *krakenFuturesSocket) send(at time.Time, connection, _ string) string {
	k.sent.add(connection, at, 1)
	if k.sent.rolling(connection, at, time.Second) > 100 {
		return "alert: rate_limited"
	}
	return ""
}

// discordGateway stands in for the gateway of Discord and one bot.
//
// github.com/discord/discord-api-docs@c98d64b:developers/events/gateway.mdx,
// topics/opcodes-and-status-codes.mdx and change-log.mdx, read 2026-11-29: 120 events in 60 seconds
// and connection, of which heartbeats are no exception (discord-api-docs/issues/315), and 4008
// beyond; max_concurrency identifies in 5 seconds, one for each shard_id % max_concurrency, and an
// Invalid Session (opcode 9) beyond; 1,000 identifies in 24 hours over all shards, without resumes,
// beyond which all sessions end and the token is reset; all members of a guild once in 30 seconds,
// and RATE_LIMITED beyond. Connections have no limit of their own (discord-api-docs/issues/1369).
// Presences are no longer named: 5 in a minute was the rule of 2017. A refused identify counts as
// one of the day.
//
// Kinds: "identify SHARD", "resume", "heartbeat", "presence", "members GUILD" for all of a guild,
// and others.
type discordGateway struct {
	concurrency int     // max_concurrency of the session start limit
	total       float64 // of the session start limit

	sent, buckets, guilds socketCounts
	day                   socketCounts // the key is ""
	closed                map[string]bool
	reset                 bool // the token
}

func newDiscordGateway(concurrency int) *discordGateway {
	return &discordGateway{
		concurrency: concurrency, total: 1000,
		sent: socketCounts{}, buckets: socketCounts{}, guilds: socketCounts{}, day: socketCounts{}, closed: map[string]bool{},
	}
}

func (d *discordGateway) connect(time.Time, string) string { return "" }

func (d *discordGateway) send(at time.Time, connection, kind string) string {
	if d.closed[connection] {
		return "closed"
	}
	if d.reset {
		d.closed[connection] = true
		return "close 4004: Authentication failed"
	}
	d.sent.add(connection, at, 1)
	if d.sent.rolling(connection, at, time.Minute) > 120 {
		d.closed[connection] = true
		return "close 4008: Rate limited"
	}
	switch name, first, _ := socketKind(kind); name {
	case "identify":
		d.day.add("", at, 1)
		if d.day.rolling("", at, 24*time.Hour) > d.total {
			d.reset = true
			return "all sessions ended, token reset"
		}
		bucket := strconv.Itoa(int(socketNumber(first)) % d.concurrency)
		busy := d.buckets.rolling(bucket, at, 5*time.Second) > 0
		d.buckets.add(bucket, at, 1)
		if busy {
			return "opcode 9: Invalid Session"
		}
	case "members":
		if d.guilds.rolling(first, at, 30*time.Second) > 0 {
			return "RATE_LIMITED: opcode 8"
		}
		d.guilds.add(first, at, 1)
	}
	return ""
}

// TestSocketStandIns checks that the stand-ins accept as many as the documentation says, refuse the
// next one, and accept again after the window.
func TestSocketStandIns(t *testing.T) {
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	const address = "192.0.2.1"
	binance, futures, api := binanceSpotSocket(), binanceFuturesSocket(), newBinanceSocketAPI()
	kraken, pro, gateway := newKrakenSocket("starter"), newKrakenSocket("pro"), newDiscordGateway(16)
	slow := newKrakenSocket("starter")
	slow.rate = 20
	day := newDiscordGateway(1)
	for _, test := range []struct {
		name    string
		standIn socketStandIn
		kind    string        // if empty, connections
		every   time.Duration // between two
		n       int           // accepted
		refusal string        // of the next
		window  time.Duration // after the refusal, the next is accepted on another connection
		same    bool          // on the same connection
	}{
		{"Binance, connections", binance, "", time.Millisecond, 300, "-1034 ", 5 * time.Minute, false},
		{"Binance, messages", binance, "pong", 100 * time.Millisecond, 5, "close 1008: Too many requests", 0, false},
		{"Binance, streams", binance, "subscribe 512", time.Second, 2, "closed: more than 1024 ", 0, false},
		{"Binance Futures, messages", futures, "list", 99 * time.Millisecond, 10, "close 1008: ", 0, false},
		{"Binance Futures, streams", futures, "subscribe 50", time.Second, 4, "closed: more than 200 ", 0, false},
		{"Binance API, weight", api, "depth 250", time.Millisecond, 24, "429 -1003 ", time.Minute, true},
		{"Binance API, orders", api, "order.place 1", time.Millisecond, 100, "429 -1015 ", 10 * time.Second, true},
		{"Binance API, connections", api, "", time.Millisecond, 300, "-1034 ", 5 * time.Minute, false},
		{"Kraken, connections", kraken, "", time.Second, 150, "429 ", 10 * time.Minute, false},
		{"Kraken, messages", slow, "subscribe", time.Millisecond, 20, `{"Error": "Exceeded msg rate"}`, time.Second, true},
		{"Kraken, level 3", kraken, "level3 100 2", time.Millisecond, 4, "level3: counter ", time.Second, true},
		{"Kraken, level 3, Pro", pro, "level3 10 50", time.Millisecond, 2, "level3: counter ", time.Second, true},
		{"Kraken, symbols", pro, "level3 10 50", time.Second, 4, "level3: more than 200 ", time.Second, false},
		{"Kraken, orders", kraken, "add_order BTC/USD", time.Millisecond, 60, "EOrder:Rate limit exceeded", time.Second, true},
		{"Kraken, young orders canceled", kraken, "cancel_order ETH/USD 2", time.Millisecond, 7, "EOrder:", 8 * time.Second, true},
		{"Kraken, old orders amended", pro, "amend_order BTC/USD 20", time.Millisecond, 180, "EOrder:", time.Second, true},
		{"Kraken Futures, requests", &krakenFuturesSocket{sent: socketCounts{}}, "challenge", time.Millisecond, 100, "alert: rate_limited", time.Second, true},
		{"Discord, events", gateway, "heartbeat", 400 * time.Millisecond, 120, "close 4008: ", 0, false},
		{"Discord, identify", gateway, "identify 17", time.Second, 1, "opcode 9: ", 5 * time.Second, true},
		{"Discord, identify of another bucket", gateway, "identify 2", time.Second, 1, "opcode 9: ", 5 * time.Second, true},
		{"Discord, members", gateway, "members 41771983444115456", time.Second, 1, "RATE_LIMITED: ", 30 * time.Second, true},
		{"Discord, sessions of a day", day, "identify 0", 5 * time.Second, 1000, "all sessions ended", 0, false},
	} {
		start = start.Add(24 * time.Hour)
		at := start.Add(time.Microsecond)
		do := func(connection string) string {
			if test.kind == "" {
				return test.standIn.connect(at, address)
			}
			return test.standIn.send(at, address+"#"+connection, test.kind)
		}
		for i := range test.n {
			if refusal := do(test.name); refusal != "" {
				t.Fatalf("%s: number %d of %d is refused: %s", test.name, i+1, test.n, refusal)
			}
			at = at.Add(test.every)
		}
		if refusal := do(test.name); !strings.HasPrefix(refusal, test.refusal) {
			t.Errorf("%s: the one beyond %d gets %q, want %q", test.name, test.n, refusal, test.refusal)
		}
		if test.standIn == socketStandIn(day) {
			continue // the token is reset
		}
		connection := test.name
		if !test.same {
			connection += ", anew"
		}
		if at = at.Add(test.window); do(connection) != "" {
			t.Errorf("%s: still refused after %v", test.name, test.window)
		}
	}
}

// TestSocketStandInsPunish checks what the stand-ins do to a client that goes on.
func TestSocketStandInsPunish(t *testing.T) {
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	api := newBinanceSocketAPI()
	if api.send(start, "a#1", "x 6000") != "" || !strings.HasPrefix(api.send(start, "a#1", "x"), "429 ") {
		t.Error("no 429 beyond the weight")
	}
	if refusal := api.send(start.Add(time.Second), "a#2", "x"); !strings.HasPrefix(refusal, "418 ") {
		t.Errorf("a request before retryAfter gets %q", refusal)
	}
	if refusal := api.connect(start.Add(2*time.Minute), "a"); !strings.HasPrefix(refusal, "418 ") {
		t.Errorf("a banned address connects: %q", refusal)
	}
	if refusal := api.connect(start.Add(2*time.Minute), "b"); refusal != "" {
		t.Errorf("another address gets %q", refusal)
	}
	if refusal := api.send(start.Add(121*time.Second), "a#3", "x"); refusal != "" {
		t.Errorf("after the ban: %q", refusal)
	}

	kraken := newKrakenSocket("starter")
	at := start
	for range 150 {
		kraken.connect(at, "a")
	}
	for at = start.Add(time.Minute); at.Before(start.Add(11 * time.Minute)); at = at.Add(time.Minute) {
		if kraken.connect(at, "a") == "" {
			t.Errorf("accepted %v after the first of 150", at.Sub(start))
		}
	}
	if refusal := kraken.connect(at, "a"); refusal != "" {
		t.Errorf("after the ban: %q", refusal)
	}

	futures := &krakenFuturesSocket{sent: socketCounts{}}
	for range 100 {
		futures.connect(start, "a")
	}
	if futures.connect(start, "a") == "" {
		t.Error("a connection beyond 100 is accepted")
	}
	if futures.close(); futures.connect(start, "a") != "" {
		t.Error("a connection after one has ended is refused")
	}

	gateway := newDiscordGateway(1)
	for range 121 {
		gateway.send(start, "a#1", "presence")
	}
	if gateway.send(start.Add(time.Hour), "a#1", "heartbeat") != "closed" || gateway.send(start, "a#2", "resume") != "" {
		t.Error("a closed connection is open, or another one is closed")
	}
}
