package providers_test

import (
	"fmt"
	"io"
	"net/http"
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
			api := fakeapi.ShopifyREST()
			api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
			saturate(t, over(t, providers.ShopifyREST(), api), 8, d, func(w int) *http.Request {
				return get(t, fmt.Sprintf(products, []string{"one", "two"}[w%2]))
			})
			checkServed(t, api, 0.98*2*(40+d.Seconds()*2))
		})
	})
	t.Run("Retry-After is a decimal, and earlier requests are refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := fakeapi.ShopifyREST()
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
			api := fakeapi.ShopifyREST()
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
		{"known cost", asking(252), 252, 52, 2_000 - 252, 0.97},
		{"actual cost equals requested cost", asking(50), 50, 50, 2_000, 0.97},
	} {
		t.Run(load.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := fakeapi.ShopifyGraphQL()
				api.Latency = fakeapi.Between(5*time.Millisecond, 50*time.Millisecond)
				api.Hold = fakeapi.Between(10*time.Millisecond, 100*time.Millisecond)
				saturate(t, over(t, load.provider, api), 8, 5*time.Minute, func(int) *http.Request { return query(t, load.requested, load.actual) })
				checkServed(t, api, load.fraction*(load.bucket+300*100)/float64(load.actual))
			})
		})
	}
	t.Run("200 THROTTLED", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			api := fakeapi.ShopifyGraphQL()
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
			api := fakeapi.ShopifyREST()
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
		api := fakeapi.ShopifyGraphQL()
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

func ExampleShopifyREST() {
	client, err := providers.ShopifyREST().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	serve(client, fakeapi.ShopifyREST()) // instead of the network

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
	serve(client, fakeapi.ShopifyGraphQL()) // instead of the network

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
	fmt.Println(string(answer[:33]))
	// Output: {"data":{"shop":{"name":"shop"}},
}
