package providers_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/local"
	"github.com/apithrottle/throttle/providers"
)

// A conn is a WebSocket connection.
type conn struct{}

func (conn) send(message string) { fmt.Println("sent", message) }

// Subscriptions wait for the messages of their connection, and requests to the WebSocket API for the weight
// that the REST client spends, too.
func ExampleBinance_webSocket() {
	ctx, ws := context.Background(), conn{}
	p := providers.Binance()
	rest, err := p.Transport(local.New()) // of the REST client
	if err != nil {
		fmt.Println(err)
		return
	}
	messages, err := throttle.New(p.Socket("messages").Policy, nil) // of one connection
	if err != nil {
		fmt.Println(err)
		return
	}
	if messages.Wait(ctx) == nil {
		ws.send(`{"method":"SUBSCRIBE","params":["btcusdt@trade"],"id":1}`)
	}

	twin, err := http.NewRequest(http.MethodGet, "https://api.binance.com/api/v3/depth?symbol=BTCUSDT&limit=5000", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	permit, err := rest.Route(twin).Acquire(ctx, rest.Cost(twin))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer permit.Release()
	ws.send(`{"id":2,"method":"depth","params":{"symbol":"BTCUSDT","limit":5000}}`)
	permit.Passed() // when the response is in
	fmt.Println("weight", rest.Cost(twin)["weight"])
	// Output:
	// sent {"method":"SUBSCRIBE","params":["btcusdt@trade"],"id":1}
	// sent {"id":2,"method":"depth","params":{"symbol":"BTCUSDT","limit":5000}}
	// weight 250
}

// Orders over WebSocket wait for the counter of their pair, which orders over REST share.
func ExampleKraken_webSocket() {
	ctx, ws := context.Background(), conn{}
	p := providers.Kraken()
	rest, err := p.Transport(local.New()) // of the REST client
	if err != nil {
		fmt.Println(err)
		return
	}
	connections, err := throttle.New(p.Socket("connections").Policy, nil) // of all connections of the address
	if err != nil {
		fmt.Println(err)
		return
	}
	if connections.Wait(ctx) == nil {
		fmt.Println("connected")
	}

	twin, err := http.NewRequest(http.MethodPost, "https://api.kraken.com/0/private/AddOrder", strings.NewReader("pair=BTC/USD"))
	if err != nil {
		fmt.Println(err)
		return
	}
	permit, err := rest.Route(twin).Acquire(ctx, rest.Cost(twin))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer permit.Release()
	ws.send(`{"method":"add_order","params":{"symbol":"BTC/USD"}}`)
	permit.Passed() // when the response is in
	// Output:
	// connected
	// sent {"method":"add_order","params":{"symbol":"BTC/USD"}}
}

// Each shard waits for its rate limit key, for the bot's sessions, and for the events of its connection.
// The other events leave five to heartbeats.
func ExampleDiscord_gateway() {
	const shard, maxConcurrency = 3, 16 // of GET /gateway/bot
	ctx, ws := context.Background(), conn{}
	p := providers.Discord()
	sessions, err := throttle.New(p.Socket("sessions").Policy, nil) // of all shards
	if err != nil {
		fmt.Println(err)
		return
	}
	identify, err := throttle.NewGroup(p.Socket("identify").Policy, nil, throttle.GroupOptions{}) // of all shards
	if err != nil {
		fmt.Println(err)
		return
	}
	policy := p.Socket("events").Policy
	events, err := throttle.New(policy, nil) // of one connection
	if err != nil {
		fmt.Println(err)
		return
	}
	policy.Tiers[0].Limit -= 5
	others, err := throttle.New(policy, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	key := strconv.Itoa(shard % maxConcurrency)
	if identify.Within(key, sessions).Wait(ctx) == nil && others.Within(events).Wait(ctx) == nil {
		ws.send(`{"op":2}`)
	}
	if events.Wait(ctx) == nil {
		ws.send(`{"op":1}`)
	}
	// Output:
	// sent {"op":2}
	// sent {"op":1}
}
