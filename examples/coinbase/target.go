package main

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/throttletest"
)

// A target is what the batch sends its requests to.
type target struct {
	name  string
	url   string
	base  http.RoundTripper
	seen  func() throttletest.Summary // by the provider. If nil, nobody but the batch knows
	close func()
}

// standIn starts a strict provider on this machine. It counts by the policy's
// tiers, each request 1 to 10 ms after it was sent: a client that allows for no
// delay is refused.
func standIn(p throttle.Policy, workers int) target {
	api := throttletest.NewProvider(p.Tiers...)
	asCoinbase(api, p)
	return target{
		name:  "stand-in for Coinbase at " + api.URL,
		url:   api.URL + "/v1/accounts",
		base:  connections(workers),
		seen:  api.Summary,
		close: api.Close,
	}
}

func asCoinbase(api *throttletest.Provider, p throttle.Policy) {
	api.Delay = func() time.Duration { return time.Millisecond + rand.N(9*time.Millisecond) }
	api.Cost = func(*http.Request) map[string]int64 { return oneOfEach(p) }
}

// endpoint is a real API.
func endpoint(url string, workers int) target {
	return target{name: url, url: url, base: connections(workers), close: func() {}}
}

// connections keeps one open for each worker; http.DefaultTransport keeps two for
// a host, and the others would connect anew for each request.
func connections(workers int) http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, workers
	t.ResponseHeaderTimeout = 10 * time.Second
	return t
}
