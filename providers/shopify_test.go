package providers_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const products = "https://%s.myshopify.com/admin/api/2026-07/products.json"

func TestShopifyREST(t *testing.T) {
	t.Run("two shops", func(t *testing.T) {
		d := long(2 * time.Minute)
		synctest.Test(t, func(t *testing.T) {
			api := standIn("shopifyrest")
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, providers.ShopifyREST(), api), 8, d, func(w int) *http.Request {
				return get(t, fmt.Sprintf(products, []string{"one", "two"}[w%2]))
			})
			checkServed(t, api, 0.98*2*(40+d.Seconds()*2))
		})
	})
	t.Run("Retry-After is a decimal, and earlier requests are refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("shopifyrest")
			rt := over(t, providers.ShopifyREST(), api)
			one := fmt.Sprintf(products, "one")
			for range 40 { // the same app, in another process
				send(t, api, get(t, one))
			}
			if status, _, _ := send(t, rt, get(t, one)); status != 429 {
				t.Errorf("status %d", status)
			}
			if _, _, took := send(t, rt, get(t, fmt.Sprintf(products, "two"))); took != 0 {
				t.Errorf("another shop waited %v", took)
			}
			if status, _, took := send(t, rt, get(t, one)); status != 200 || took != 2*time.Second {
				t.Errorf("%d after %v, want 200 after 2 s", status, took)
			}
		})
	})
	t.Run("responses report the app's use elsewhere", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("shopifyrest")
			rt := over(t, providers.ShopifyREST(), api)
			one := fmt.Sprintf(products, "one")
			for range 30 {
				send(t, api, get(t, one))
			}
			saturate(t, rt, 1, time.Minute, func(int) *http.Request { return get(t, one) })
			checkServed(t, api, 0.98*(40+120))
		})
	})
}

// query returns a GraphQL query with a requested and an actual cost in points.
func query(t *testing.T, requested, actual int) *http.Request {
	t.Helper()
	text := fmt.Sprintf(`{"query":"query Products { shop { name } }","variables":{"requested":%d,"actual":%d}}`, requested, actual)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://one.myshopify.com/admin/api/2026-07/graphql.json", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestShopifyGraphQL(t *testing.T) {
	asking := func(points int64) providers.Provider {
		p := providers.ShopifyGraphQL()
		p.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"points": points} }
		return p
	}
	for _, load := range []struct {
		name              string
		provider          providers.Provider
		requested, actual int
		bucket            float64 // the part of the bucket that is used
		fraction          float64
	}{
		{"unknown cost", providers.ShopifyGraphQL(), 252, 52, 0, 0.85}, // one at a time
		// A response may count the 200 points that each of 7 others has not yet got back.
		{"known cost", asking(252), 252, 52, 2_000 - 252 - 7*200, 0.99},
		{"actual cost equals requested cost", asking(50), 50, 50, 2_000, 0.97},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := standIn("shopifygraphql")
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Hold = fakeapi.Between(10*time.Millisecond, 100*time.Millisecond)
				d := long(2 * time.Minute)
				saturate(t, over(t, load.provider, api), 8, d, func(int) *http.Request { return query(t, load.requested, load.actual) })
				checkServed(t, api, load.fraction*(load.bucket+d.Seconds()*100)/float64(load.actual))
			})
		})
	}
	t.Run("200 THROTTLED", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("shopifygraphql")
			rt := over(t, asking(70), api)
			const body = `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":70,"actualQueryCost":null,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":66,"restoreRate":50}}}}`
			api.Trap(fakeapi.Reply{Body: body})
			if status, got, _ := send(t, rt, query(t, 70, 70)); status != 200 || got != body {
				t.Errorf("%d %s", status, got)
			}
			if _, _, took := send(t, rt, query(t, 70, 70)); took != 80*time.Millisecond {
				t.Errorf("waited %v: 4 points more come in 80 ms", took)
			}
		})
	})
	t.Run("REST is not limited", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := standIn("shopifyrest")
			rt := over(t, providers.ShopifyGraphQL(), api)
			for range 40 {
				if _, _, took := send(t, rt, get(t, fmt.Sprintf(products, "one"))); took != 0 {
					t.Fatalf("waited %v", took)
				}
			}
		})
	})
}

// Responses report how much of the bucket another process of the app has used.
func TestShopifyGraphQLUsedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := standIn("shopifygraphql")
		p := providers.ShopifyGraphQL()
		p.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"points": 50} }
		rt := over(t, p, api)
		for range 38 {
			send(t, api, query(t, 50, 50)) // 100 of 2,000 points are left
		}
		saturate(t, rt, 1, time.Minute, func(int) *http.Request { return query(t, 50, 50) })
		checkServed(t, api, 38+0.9*6000/50)
	})
}

// The requested cost of a query is learned, so the bucket is used although the answers take time.
func TestShopifyCostIsLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := standIn("shopifygraphql")
		times := int(4 / scaled(4, 4)) // "make test" has a quarter of the workers and queries, which cost more
		api.Hold = func(*http.Request) time.Duration { return 300 * time.Millisecond }
		saturate(t, over(t, providers.ShopifyGraphQL(), api), 32/times, time.Minute, func(int) *http.Request { return query(t, 12*times, 2*times) })
		checkServed(t, api, 0.9*(2_000+60*100)/float64(2*times))
	})
}

// The cost of a query is that of the same text with variables of the same shape. A refusal teaches,
// too.
func TestShopifyEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := new(stay)
		transport, err := providers.ShopifyGraphQL().Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = api
		req := func(query, variables string) *http.Request {
			return postJSON(t, "https://one.myshopify.com/admin/api/2026-07/graphql.json", fmt.Sprintf(`{"query":%q,"variables":%s}`, query, variables))
		}
		const page = "query($n: Int, $c: String) { products(first: $n, after: $c) { nodes { id } } }"
		points := func(query, variables string) int64 { return transport.Cost(req(query, variables))["points"] }
		check := func(what string, got, low, high int64) {
			if got < low || got > high {
				t.Errorf("%s: %d points, want %d to %d", what, got, low, high)
			}
		}
		check("at first", points(page, `{"n":10}`), 1000, 1000)
		const cost = `{"extensions":{"cost":{"requestedQueryCost":%d,"actualQueryCost":2,"throttleStatus":{"maximumAvailable":2000,"currentlyAvailable":1998,"restoreRate":100}}}}`
		for n := range 12 {
			api.replies = []fakeapi.Reply{{Body: fmt.Sprintf(cost, 12)}}
			send(t, transport, req(page, fmt.Sprintf(`{"n":10,"c":"cursor %d"}`, n)))
		}
		check("after 12 pages", points(page, `{"n":10,"c":"another"}`), 12, 13)
		check("a page of another size", points(page, `{"n":250,"c":"another"}`), 12, 13)
		check("another query", points("{ shop { name } }", `{}`), 1000, 1000)
		api.replies = []fakeapi.Reply{{Body: `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":252,"actualQueryCost":null,"throttleStatus":{"maximumAvailable":2000,"currentlyAvailable":66,"restoreRate":100}}}}`}}
		send(t, transport, req(page, `{"n":250,"c":"x"}`))
		check("after it was refused", points(page, `{"n":250,"c":"another"}`), 252, 700)
		check("the other size", points(page, `{"n":10,"c":"another"}`), 12, 13)
	})
}

// Each organization of the Partner API has a limit; a storefront has none.
func TestShopifyOtherAPIs(t *testing.T) {
	for _, test := range []struct {
		url  string
		most int // of 20 requests that are sent at once
	}{
		{"https://partners.shopify.com/%d/api/2026-07/graphql.json", 20},
		{"https://partners.shopify.com/1/api/2026-07/graphql.json", 4},
		{"https://one.myshopify.com/api/2026-07/graphql.json", 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			got := atOnce(t, providers.ShopifyGraphQL(), 20, func() *http.Request {
				n++
				return postJSON(t, strings.Replace(test.url, "%d", strconv.Itoa(n), 1), `{"query":"{ shop { name } }"}`)
			})
			if got != test.most {
				t.Errorf("%s: %d at once, want %d", test.url, got, test.most)
			}
		})
	}
}

// A locked shop closes its own quota, and a security rejection pauses nothing.
func TestShopifyRefusesShops(t *testing.T) {
	for _, p := range []providers.Provider{providers.ShopifyREST(), providers.ShopifyGraphQL()} {
		synctest.Test(t, func(t *testing.T) {
			url := "https://%s.myshopify.com/admin/api/2026-07/" + map[string]string{"shopify-rest": "shop.json", "shopify-graphql": "graphql.json"}[p.Name]
			rt := over(t, p, &stay{replies: []fakeapi.Reply{{Status: 430}, {Status: 423}, {Body: "{}"}}})
			for i, shop := range []string{"one", "one", "two", "one"} {
				_, err := rt.RoundTrip(postJSON(t, fmt.Sprintf(url, shop), `{"query":"{ shop { name } }"}`))
				if (i == 3) != errors.Is(err, throttle.ErrBanned) {
					t.Errorf("%s: request %d: %v", p.Name, i, err)
				}
			}
		})
	}
}

func ExampleShopifyREST() {
	client, err := providers.ShopifyREST().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("shopifyrest")) // instead of the network

	for _, shop := range []string{"one", "two"} { // each shop has a separate quota
		resp, err := client.Get("https://" + shop + ".myshopify.com/admin/api/2026-07/products.json")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Header.Get("X-Shopify-Shop-Api-Call-Limit"))
	}
	// Output:
	// 1/40
	// 1/40
}

func ExampleShopifyGraphQL() {
	p := providers.ShopifyGraphQL()
	p.Cost = func(*http.Request) throttle.Cost { return throttle.Cost{"points": 12} } // the requested cost
	client, err := p.Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, standIn("shopifygraphql")) // instead of the network

	query := strings.NewReader(`{"query":"{ shop { name } }","variables":{"requested":12,"actual":2}}`)
	resp, err := client.Post("https://one.myshopify.com/admin/api/2026-07/graphql.json", "application/json", query)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, cost, _ := strings.Cut(string(answer), `"cost": `)
	fmt.Println(cost[:52])
	// Output: {"requestedQueryCost": 12, "actualQueryCost": 2, "th
}
