package fakeapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// ShopifyREST is the REST Admin API of every shop on the standard plan. After a refusal it refuses
// requests until its Retry-After has passed.
func ShopifyREST() *Server {
	type shop struct {
		bucket  bucket
		blocked time.Time
	}
	shops := map[string]*shop{}
	return newServer(func(c *Call) Reply {
		host := cmp.Or(c.Host, c.URL.Host)
		s := shops[host]
		if s == nil {
			s = &shop{bucket: bucket{limit: 2, window: time.Second, size: 40}}
			shops[host] = s
		}
		if c.Now.Before(s.blocked) || !s.bucket.take(c.Now, 1) {
			s.blocked = c.Now.Add(2 * time.Second)
			return Reply{
				Status: http.StatusTooManyRequests, Refused: "bucket",
				Header: map[string]string{"Retry-After": "2.0", "X-Shopify-Shop-Api-Call-Limit": "40/40"},
				Body:   `{"errors":"Exceeded 2 calls per second for api client. Reduce request rates to resume uninterrupted service."}`,
			}
		}
		used := 40 - s.bucket.tokens(c.Now)
		return Reply{Header: map[string]string{"X-Shopify-Shop-Api-Call-Limit": strconv.FormatInt(used, 10) + "/40"}, Body: `{"products":[]}`}
	})
}

// ShopifyGraphQL is the GraphQL Admin API of one shop on the standard plan. The requested and the
// actual cost of a query are its variables "requested" and "actual". Until its end, a query holds
// its requested cost.
func ShopifyGraphQL() *Server {
	points := bucket{limit: 100, window: time.Second, size: 2_000}
	return newServer(func(c *Call) Reply {
		var query struct {
			Variables struct{ Requested, Actual int64 }
		}
		if err := json.Unmarshal(c.Body, &query); err != nil {
			return Reply{Status: http.StatusBadRequest, Body: `{"errors":"not JSON"}`}
		}
		requested, actual := query.Variables.Requested, query.Variables.Actual
		cost := func(available int64, actual string) string {
			return fmt.Sprintf(`"extensions":{"cost":{"requestedQueryCost":%d,"actualQueryCost":%s,"throttleStatus":{"maximumAvailable":2000.0,"currentlyAvailable":%d,"restoreRate":100.0}}}`,
				requested, actual, available)
		}
		if !points.take(c.Now, requested) {
			return Reply{Refused: "points", Body: `{"data":null,"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],` + cost(points.tokens(c.Now), "null") + `}`}
		}
		spare := requested - actual
		return Reply{
			Body:    `{"data":{"shop":{"name":"shop"}},` + cost(points.tokens(c.Now)+spare, strconv.FormatInt(actual, 10)) + `}`,
			Release: func() { points.take(time.Now(), -spare) },
		}
	})
}
