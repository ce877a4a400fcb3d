package providers_test

import (
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const amazon = "https://sellingpartnerapi-eu.amazon.com"

// The page has plans of single operations, the preset those of Amazon's models. They must agree.
func TestAmazonSPAPIPlans(t *testing.T) {
	for _, limit := range readPage(t, "amazonspapi").Limits {
		if limit.Burst == 0 || limit.Name == "sandbox" {
			continue
		}
		var method, path string
		fmt.Sscan(limit.Match, &method, &path)
		t.Run(limit.Name, func(t *testing.T) {
			next := to(t, method, amazon+path)
			synctest.Test(t, func(t *testing.T) {
				if n := atOnce(t, providers.AmazonSPAPI(), 50, func() *http.Request { return next().WithContext(t.Context()) }); n != int(limit.Burst) {
					t.Errorf("%d at once, want %v", n, limit.Burst)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				rt := over(t, providers.AmazonSPAPI(), accepting{})
				var took time.Duration
				for range int(limit.Burst) + 10 {
					_, _, d := send(t, rt, next().WithContext(t.Context()))
					took += d
				}
				if want := 10 / limit.Limit.(float64); math.Abs(took.Seconds()-want) > 0.01*want+1 {
					t.Errorf("ten more took %v, want %.1f s", took, want)
				}
			})
		})
	}
}

func TestAmazonSPAPIScopes(t *testing.T) {
	preset := providers.AmazonSPAPI
	checkBurst(t, preset, "one order, whatever its id", 30, alternate(to(t, "GET", amazon+"/orders/v0/orders/1"), to(t, "GET", amazon+"/orders/v0/orders/2")))
	checkBurst(t, preset, "two operations of one plan", 20, alternate(to(t, "GET", amazon+"/reports/2021-06-30/reports"), to(t, "GET", amazon+"/feeds/2021-06-30/feeds")))
	checkBurst(t, preset, "two regions", 40, alternate(to(t, "GET", amazon+"/orders/v0/orders"), to(t, "GET", "https://sellingpartnerapi-na.amazon.com/orders/v0/orders")))
	checkBurst(t, preset, "an item whose name has a slash", 10, to(t, "GET", amazon+"/listings/2021-08-01/items/S/a%2Fb"))
	checkBurst(t, preset, "an operation without a published plan", 1, to(t, "GET", amazon+"/awd/2024-05-09/replenishmentOrders/a1"))
	checkBurst(t, preset, "the sandbox", 15, alternate(to(t, "GET", "https://sandbox.sellingpartnerapi-eu.amazon.com/orders/v0/orders"), to(t, "GET", "https://sandbox.sellingpartnerapi-eu.amazon.com/fba/inventory/v1/summaries")))
}

func TestAmazonSPAPIRefusals(t *testing.T) {
	const body = `{"errors":[{"code":"QuotaExceeded","message":"You exceeded your quota for the requested resource."}]}`
	orders, order := to(t, "GET", amazon+"/orders/v0/orders"), to(t, "GET", amazon+"/orders/v0/orders/1")
	checkRefusals(t, providers.AmazonSPAPI, []refusalTest{
		{name: "no wait", reply: fakeapi.Reply{Status: 429, Body: body}, first: orders, want: backoff},
		{name: "the rate", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"x-amzn-RateLimit-Limit": "0.0083"}, Body: body}, want: 120482 * time.Millisecond},
		{name: "another operation goes on", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"x-amzn-RateLimit-Limit": "0.0083"}, Body: body}, next: order},
		{name: "Retry-After", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "120", "x-amzn-RateLimit-Limit": "2.0"}, Body: body}, want: 2 * time.Minute},
		{name: "an absurd rate", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"x-amzn-RateLimit-Limit": "0.000000001"}, Body: body}, want: closed},
		{name: "not allowed", reply: fakeapi.Reply{Status: 403, Body: `{"errors":[{"code":"Unauthorized"}]}`}},
		{name: "an entry of a batch", reply: fakeapi.Reply{Body: `{"responses":[{"status":{"statusCode":429}}]}`}},
	})
}

func ExampleAmazonSPAPI() {
	client, err := providers.AmazonSPAPI().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://sellingpartnerapi-eu.amazon.com/orders/v0/orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
