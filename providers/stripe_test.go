package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// stripe returns a request with a key of live mode or of a sandbox.
func stripe(t *testing.T, method, path, key string) *http.Request {
	req := get(t, "https://api.stripe.com/v1/"+path)
	req.Method = method
	req.Header.Set("Authorization", "Bearer "+key)
	return req
}

const (
	live    = "sk_live_4eC39HqLyjWDarjtT1zdp7dc"
	sandbox = "sk_test_4eC39HqLyjWDarjtT1zdp7dc"
)

func TestStripe(t *testing.T) {
	d := long(20 * time.Second)
	six := []string{"customers", "charges", "refunds", "payouts", "disputes", "invoices"}
	for _, load := range []struct {
		name string
		rate float64 // a second
		next func(t *testing.T, worker int) *http.Request
	}{
		{"account", 100, func(t *testing.T, w int) *http.Request { return stripe(t, "GET", six[w%len(six)], live) }},
		{"sandbox", 25, func(t *testing.T, w int) *http.Request { return stripe(t, "GET", six[w%len(six)], sandbox) }},
		{"endpoint", 25, func(t *testing.T, w int) *http.Request {
			return stripe(t, "GET", fmt.Sprintf("payment_intents/pi_3Mt%d", w), live)
		}},
		{"search", 20, func(t *testing.T, w int) *http.Request { return stripe(t, "GET", six[w%len(six)]+"/search", live) }},
		{"live mode and sandbox", 50, func(t *testing.T, w int) *http.Request {
			return stripe(t, "POST", "customers", []string{live, sandbox}[w%2])
		}},
	} {
		t.Run(load.name, func(t *testing.T) {
			soak.Sample(t, 3)
			synctest.Test(t, func(t *testing.T) {
				api := standIn("stripe")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				saturate(t, over(t, providers.Stripe(), api), 24, d, func(w int) *http.Request { return load.next(t, w) })
				checkServed(t, api, 0.93*load.rate*d.Seconds())
			})
		})
	}
}

func TestStripeRefusals(t *testing.T) {
	limited := func(reason string) fakeapi.Reply {
		return fakeapi.Reply{Status: 429, Header: map[string]string{"Stripe-Rate-Limited-Reason": reason}, Body: `{"error":{"code":"rate_limit"}}`}
	}
	for _, test := range []struct {
		name   string
		reply  fakeapi.Reply
		path   string // of the next request
		paused bool
	}{
		{"429 lock_timeout is not a limit", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"lock_timeout","message":"This object cannot be accessed right now"}}`}, "charges", false},
		{"the limit of an endpoint pauses the endpoint", limited("endpoint-rate"), "charges", true},
		{"the limit of an endpoint leaves other endpoints alone", limited("endpoint-concurrency"), "refunds", false},
		{"a global limit pauses all", limited("global-rate"), "refunds", true},
		{"a global limit of concurrency pauses all", limited("global-concurrency"), "refunds", true},
		{"the limit of one object pauses nothing", limited("resource-specific"), "charges", false},
		{"a 429 without a reason", fakeapi.Reply{Status: 429, Body: `{"error":{"code":"rate_limit"}}`}, "charges", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("stripe")
				rt := over(t, providers.Stripe(), api)
				api.Trap(test.reply)
				if status, body, _ := send(t, rt, stripe(t, "GET", "charges", live)); status != 429 || body != test.reply.Body {
					t.Errorf("%d %s", status, body)
				}
				_, _, took := send(t, rt, stripe(t, "GET", test.path, live))
				if test.paused && (took < time.Second || took > 2*time.Second) || !test.paused && took != 0 {
					t.Errorf("waited %v, paused %v", took, test.paused)
				}
			})
		})
	}
}

// TestStripeMeterEvents checks how many meter events go at once: in live mode they have a limit of
// their own.
func TestStripeMeterEvents(t *testing.T) {
	for key, want := range map[string]int{"sk_live_1": 1_000, "sk_test_1": 25} {
		synctest.Test(t, func(t *testing.T) {
			n := atOnce(t, providers.Stripe(), 2_000, func() *http.Request {
				req := postJSON(t, "https://api.stripe.com/v1/billing/meter_events", `{}`)
				req.Header.Set("Authorization", "Bearer "+key)
				return req
			})
			if n != want {
				t.Errorf("%s: %d at once, want %d", key, n, want)
			}
		})
	}
}

func TestStripeQuotas(t *testing.T) {
	for _, test := range []struct {
		name string
		next func(*testing.T) *http.Request
		want int // at once
	}{
		{"accounts in a sandbox", func(t *testing.T) *http.Request { return stripe(t, "POST", "accounts", sandbox) }, 5},
		{"accounts", func(t *testing.T) *http.Request { return stripe(t, "POST", "accounts", live) }, 25},
		{"meter events", func(t *testing.T) *http.Request { return stripe(t, "POST", "billing/meter_events", live) }, 1_000},
		{"meter events of a connected account", func(t *testing.T) *http.Request {
			req := stripe(t, "POST", "billing/meter_events", live)
			req.Header.Set("Stripe-Account", "acct_1")
			return req
		}, 25},
		{"the stream of meter events", func(t *testing.T) *http.Request {
			return post(t, "https://meter-events.stripe.com/v2/billing/meter_event_stream")
		}, 2_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atOnce(t, providers.Stripe(), 2_000, func() *http.Request { return test.next(t) }); n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
}

// Payouts have 15 creations a second, and 30 at once.
func TestStripePayouts(t *testing.T) {
	payout := func() *http.Request { return stripe(t, "POST", "payouts", live) }
	checkBurst(t, providers.Stripe, "payouts", 15, payout)
	synctest.Test(t, func(t *testing.T) {
		p := providers.Stripe()
		p.Scope("payouts").Policy.Tiers[0].Limit, p.Scope("endpoint").Policy.Tiers[0].Limit = 100, 100
		if n := atATime(t, p, 40, payout); n != 30 {
			t.Errorf("%d at once, want 30", n)
		}
	})
}

func ExampleStripe() {
	p := providers.Stripe()
	p.Scope("account").Policy.Tiers[0].Limit = 500 // Stripe raises limits on request
	client, err := p.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("stripe")) // instead of the network

	resp, err := client.Get("https://api.stripe.com/v1/customers")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
