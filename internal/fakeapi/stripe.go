package fakeapi

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/apithrottle/throttle/algorithms"
)

var stripeID = regexp.MustCompile(`/[a-z]+_[A-Za-z0-9]+\b`)

// Stripe is Stripe's API. A key that contains "_test_" is a key of a sandbox, and any other key is
// live.
func Stripe() *Server {
	live, sandbox := newCounters(algorithms.PerSecond(100)), newCounters(algorithms.PerSecond(25))
	endpoints, search := newCounters(algorithms.PerSecond(25)), newCounters(algorithms.PerSecond(20))
	return newServer(func(c *Call) Reply {
		key := strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")
		account := live
		if strings.Contains(key, "_test_") {
			account = sandbox
		}
		path := c.URL.Path
		limits := []limit{
			{"global-rate", account.of(key), nil},
			{"endpoint-rate", endpoints.of(key + c.Method + stripeID.ReplaceAllStringFunc(path, stripeName)), nil},
		}
		if strings.HasSuffix(path, "/search") {
			limits = append(limits, limit{"endpoint-rate", search.of(key), nil})
		}
		if by, _ := charge(c.Now, limits...); by != "" {
			return Reply{
				Status: http.StatusTooManyRequests, Refused: by,
				Header: map[string]string{"Stripe-Rate-Limited-Reason": by, "Stripe-Should-Retry": "true"},
				Body:   `{"error":{"message":"Request rate limit exceeded.","type":"invalid_request_error","code":"rate_limit"}}`,
			}
		}
		return Reply{Body: `{"object":"list","data":[],"has_more":false}`}
	})
}

// stripeName keeps the names of resources in a path and replaces IDs.
func stripeName(part string) string {
	switch part {
	case "/payment_intents", "/setup_intents", "/payment_methods", "/subscription_items":
		return part
	}
	return "/{id}"
}
