package providers_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// kraken returns a private call.
func kraken(t *testing.T, call, form string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.kraken.com/0/private/"+call, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestKraken(t *testing.T) {
	for _, load := range []struct {
		name string
		want float64
		next func(t *testing.T, worker int) *http.Request
	}{
		{"calls", 0.97 * (15 + 600*0.33), func(t *testing.T, _ int) *http.Request { return kraken(t, "Balance", "") }},
		{"ledgers count twice", 0.97 * (15 + 600*0.33) / 2, func(t *testing.T, _ int) *http.Request { return kraken(t, "Ledgers", "") }},
		{"orders of two pairs", 0.97 * 2 * (60 + 600), func(t *testing.T, worker int) *http.Request {
			return kraken(t, "AddOrder", fmt.Sprintf("nonce=1&pair=PAIR%d&type=buy", worker%2))
		}},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("kraken")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				saturate(t, over(t, providers.Kraken(), api), 8, 10*time.Minute, func(worker int) *http.Request { return load.next(t, worker) })
				checkServed(t, api, load.want)
			})
		})
	}
}

// A batch counts half of its orders in the counter of its pair, which goes to 60. The pair is read from
// JSON as from a form.
func TestKrakenReadsJSONAndBatches(t *testing.T) {
	const api = "https://api.kraken.com/0/private/"
	order := func(pair string) func() *http.Request {
		return to(t, "POST", api+"AddOrder", `{"nonce":1,"pair":"`+pair+`","type":"buy","price":"%5"}`)
	}
	batch := func(pair string, orders int) func() *http.Request {
		list := strings.TrimSuffix(strings.Repeat(`{"ordertype":"limit","volume":"1"},`, orders), ",")
		return to(t, "POST", api+"AddOrderBatch", `{"nonce":"1","pair":"`+pair+`","orders":[`+list+`]}`)
	}
	written := func() *http.Request {
		return kraken(t, "AddOrderBatch", "nonce=1&pair=XBTUSD&orders[0][ordertype]=limit&orders[0][volume]=1&orders[1][ordertype]=limit")
	}
	preset := func() providers.Provider {
		p := providers.Kraken()
		p.Scope("key").Policy.Tiers[0].Burst = 1_000
		return p
	}
	checkAtOnce(t, preset, []atOnceTest{
		{"orders of two pairs", 120, []func() *http.Request{order("XBTUSD"), order("ETHUSD")}},
		{"batches of 15", 7, []func() *http.Request{batch("XBTUSD", 15)}},
		{"batches of 3", 30, []func() *http.Request{batch("XBTUSD", 3)}},
		{"batches of two pairs", 14, []func() *http.Request{batch("XBTUSD", 15), batch("ETHUSD", 15)}},
		{"a batch and an order", 12, []func() *http.Request{batch("XBTUSD", 15), order("XBTUSD")}}, // 6 of 9 and 6 left over
		{"a batch in a form", 60, []func() *http.Request{written}},
		{"more orders than a batch can have", 7, []func() *http.Request{batch("XBTUSD", 500)}},
		{"a batch without readable orders", 7, []func() *http.Request{to(t, "POST", api+"AddOrderBatch", `{"pair":"XBTUSD"`)}},
	})
}

// Public calls count in a counter of 30, which falls by 1 a second. Trades and candles have one for
// each pair.
func TestKrakenPublic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const public = "https://api.kraken.com/0/public/"
		rt := over(t, providers.Kraken(), accepting{})
		for _, call := range []string{"Ticker", "Trades?pair=XBTUSD", "OHLC?pair=ETHUSD"} {
			for n := range 30 {
				if _, _, took := send(t, rt, get(t, public+call)); took > 0 {
					t.Fatalf("%s %d waited %v", call, n, took)
				}
			}
			if _, _, took := send(t, rt, get(t, public+call)); took < time.Second || took > 3*time.Second/2 {
				t.Errorf("%s waited %v, want a second", call, took)
			}
		}
	})
}

func TestKrakenRefusals(t *testing.T) {
	for _, test := range []struct {
		name        string
		refused     string // the refused call
		body        string
		next        string
		least, most time.Duration
	}{
		{"EService: Throttled with a time", "Balance", `{"error":["EService: Throttled: 946684805"]}`, "Balance", 5 * time.Second, 5 * time.Second},
		{"EAPI with status 200", "Balance", `{"error":["EAPI:Rate limit exceeded"]}`, "Balance", time.Second, 2 * time.Second},
		{"EOrder with status 200", "AddOrder", `{"error":["EOrder:Rate limit exceeded"]}`, "AddOrder", time.Second, 2 * time.Second},
		{"EOrder leaves the other calls alone", "AddOrder", `{"error":["EOrder:Rate limit exceeded"]}`, "Balance", 0, 0},
		{"EOrder of a batch", "AddOrderBatch", `{"error":["EOrder:Rate limit exceeded"]}`, "AddOrder", time.Second, 2 * time.Second},
		{"EOrder of a batch leaves the other calls alone", "AddOrderBatch", `{"error":["EOrder:Rate limit exceeded"]}`, "Balance", 0, 0},
		{"EGeneral, too many requests", "Balance", `{"error":["EGeneral:Too many requests"]}`, "Balance", time.Second, 2 * time.Second},
		{"another error is not a refusal", "AddOrder", `{"error":["EOrder:Insufficient funds"]}`, "AddOrder", 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("kraken")
				rt := over(t, providers.Kraken(), api)
				api.Trap(fakeapi.Reply{Body: test.body})
				if status, body, _ := send(t, rt, kraken(t, test.refused, "pair=XBTUSD")); status != 200 || body != test.body {
					t.Errorf("%d %s", status, body)
				}
				if _, _, took := send(t, rt, kraken(t, test.next, "pair=XBTUSD")); took < test.least || took > test.most {
					t.Errorf("waited %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
}

// A lockout closes the key's calls for 15 minutes, and public calls go on.
func TestKrakenLockout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := standIn("kraken")
		rt := over(t, providers.Kraken(), api)
		api.Trap(fakeapi.Reply{Body: `{"error":["EGeneral:Temporary lockout"]}`})
		send(t, rt, kraken(t, "EditOrder", "pair=XBTUSD"))
		for _, next := range []*http.Request{kraken(t, "Balance", ""), kraken(t, "EditOrder", "pair=ETHUSD")} {
			_, err := rt.RoundTrip(next)
			var e *throttle.WaitError
			if !errors.Is(err, throttle.ErrBanned) || !errors.As(err, &e) || time.Until(e.Until) != 15*time.Minute {
				t.Errorf("%s: %v, want ErrBanned for 15 minutes", next.URL.Path, err)
			}
		}
		if _, _, took := send(t, rt, get(t, "https://api.kraken.com/0/public/Ticker?pair=XBTUSD")); took != 0 {
			t.Errorf("a public call waited %v", took)
		}
		time.Sleep(15 * time.Minute)
		if status, _, took := send(t, rt, kraken(t, "Balance", "")); status != 200 || took != 0 {
			t.Errorf("15 minutes later: %d after %v", status, took)
		}
	})
}

func ExampleKraken() {
	client, err := providers.Kraken().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("kraken")) // instead of the network

	order := strings.NewReader("nonce=1&pair=XBTUSD&type=buy&ordertype=market&volume=0.001")
	resp, err := client.Post("https://api.kraken.com/0/private/AddOrder", "application/x-www-form-urlencoded", order)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
