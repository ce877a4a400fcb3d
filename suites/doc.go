// Package suites runs the test suites of other projects over a throttle.Transport.
//
// The packages under test are unchanged. Each package gets one more test file, hook.txt, and "go
// test -overlay" adds a variable to net/http. Through this variable, the hook wraps the transport
// of every http.Client in a throttle.Transport. Each request of a suite then passes a limiter with
// several tiers, one of them Concurrency, and the transport wraps each body. A test that passes
// without the hook must pass with it.
//
//	go test -v -count=1 -timeout=30m . -args -suites=all
//
// The versions are in go.mod. net/http/httputil comes from the Go installation.
package suites
