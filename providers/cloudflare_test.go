package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestCloudflare(t *testing.T) {
	const api = "https://api.cloudflare.com/client/v4/"
	zones, query := to(t, "GET", api+"zones"), to(t, "POST", api+"graphql", `{"query":"{viewer{zones{zoneTag}}}"}`)
	checkAtOnce(t, providers.Cloudflare, []atOnceTest{
		{"REST in a second", 200, []func() *http.Request{zones, to(t, "PUT", api+"zones/1/settings")}},
		{"GraphQL in a second", 200, []func() *http.Request{query}},
	})
	for name, test := range map[string]struct {
		next func() *http.Request
		want int
	}{"REST": {zones, 1_200}, "GraphQL": {query, 300}} {
		synctest.Test(t, func(t *testing.T) {
			rt, n, start := over(t, providers.Cloudflare(), accepting{}), 0, time.Now()
			for time.Since(start) < 4*time.Minute {
				send(t, rt, test.next().WithContext(t.Context()))
				n++
			}
			if n != test.want+1 { // the last one waited
				t.Errorf("%s: %d requests in 5 minutes, want %d", name, n-1, test.want)
			}
		})
	}
	failure := func(status int, body string, header ...string) fakeapi.Reply {
		h := map[string]string{"Content-Type": "application/json"}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return fakeapi.Reply{Status: status, Header: h, Body: body}
	}
	const wait, spent = `{"errors":[{"code":971,"message":"Please wait and consider throttling your request speed"}]}`, `{"data":null,"errors":[{"message":"rate limiter budget depleted, try again after 5 minutes"}]}`
	checkRefusals(t, providers.Cloudflare, []refusalTest{
		{name: "Retry-After", first: zones, reply: failure(429, wait, "Retry-After", "142"), want: 142 * time.Second},
		{name: "no wait named", reply: failure(429, wait), want: 5 * time.Minute},
		{name: "GraphQL waits too", next: query, reply: failure(429, wait), want: 5 * time.Minute},
		{name: "failed logins", reply: failure(429, `{"errors":[{"code":10502,"message":"Too many authentication failures"}]}`), want: closed},
		{name: "GraphQL, 429", first: query, reply: failure(429, spent), want: 5 * time.Minute},
		{name: "GraphQL, 200", reply: failure(200, spent), want: 5 * time.Minute},
		{name: "GraphQL, REST goes on", next: zones, reply: failure(200, spent)},
		{name: "an object with the words of GraphQL", first: to(t, "GET", api+"accounts/1/r2/buckets/b/objects/o"), reply: failure(200, spent)},
		{name: "GraphQL, one account", first: query, reply: failure(429, `{"errors":[{"message":"account 0123 has exceeded its rate limit. Wait."}]}`)},
		{name: "GraphQL, too large a query", reply: failure(429, `{"errors":[{"message":"query consumed excessive resources, please try smaller"}]}`)},
		{name: "GraphQL, too many at once", reply: failure(503, `{"errors":[{"message":"too many queries in progress, please try again later"}]}`), want: backoff},
	})
}

// Responses report what other programs of the user have used.
func TestCloudflareUsedElsewhere(t *testing.T) {
	used := fakeapi.Reply{Header: map[string]string{"Ratelimit-Policy": `"default";q=1200;w=300`, "Ratelimit": `"default";r=0;t=77`}}
	checkRefusals(t, providers.Cloudflare, []refusalTest{
		{name: "none left", first: to(t, "GET", "https://api.cloudflare.com/client/v4/zones"), reply: used, want: 78 * time.Second},
	})
}

func ExampleCloudflare() {
	client, err := providers.Cloudflare().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.cloudflare.com/client/v4/zones")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
