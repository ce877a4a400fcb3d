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
	name    string
	url     string
	base    http.RoundTripper
	summary func() throttletest.Summary // the provider's own count; nil for a real API
	close   func()
}

// standIn starts a strict provider on this machine. It has the tiers of the policy, and counts each
// request 1 to 10 ms after it was sent. It refuses requests of a client that allows for no delay.
func standIn(p throttle.Policy, workers int) target {
	api := throttletest.NewProvider(p.Tiers...)
	asCoinbase(api, p)
	return target{
		name:    "stand-in for Coinbase at " + api.URL,
		url:     api.URL + "/v1/accounts",
		base:    newBase(workers),
		summary: api.Summary,
		close:   api.Close,
	}
}

// asCoinbase sets the delay and the costs of the stand-in.
func asCoinbase(api *throttletest.Provider, p throttle.Policy) {
	api.Delay = func() time.Duration { return time.Millisecond + rand.N(9*time.Millisecond) }
	api.Cost = func(*http.Request) map[string]int64 { return oneOfEach(p) }
}

// endpoint returns a real API.
func endpoint(url string, workers int) target {
	return target{name: url, url: url, base: newBase(workers), close: func() {}}
}

// newBase returns a transport that keeps one connection open for each worker. http.DefaultTransport
// keeps two, so the other workers would reconnect for each request.
func newBase(workers int) http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, workers
	t.ResponseHeaderTimeout = 10 * time.Second
	return t
}
