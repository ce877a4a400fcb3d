package main

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A target is the API that the batch sends its requests to.
type target struct {
	url     string
	base    http.RoundTripper
	summary func() throttletest.Summary // the provider's own count
	close   func()
}

// standIn starts a strict provider on this machine. It has the tiers of the policy, and counts each
// request 1 to 10 ms after it was sent. It refuses requests of a client that allows for no delay.
func standIn(p throttle.Policy) target {
	api := throttletest.NewProvider(p.Tiers...)
	api.Delay = func() time.Duration { return time.Millisecond + rand.N(9*time.Millisecond) }
	return target{url: api.URL + "/v1/accounts", base: newBase(), summary: api.Summary, close: api.Close}
}

// newBase returns a transport that keeps its connections open. http.DefaultTransport keeps two to a
// host, so other workers would reconnect for each request.
func newBase() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 1_000
	t.ResponseHeaderTimeout = 10 * time.Second
	return t
}
