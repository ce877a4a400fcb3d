// Package suites runs the test suites of other people's packages over a throttle.Transport.
//
// Nothing in those packages is changed. Each package under test gets one more test file, hook.txt,
// and net/http gets one more variable by way of "go test -overlay": through it the hook wraps the
// transport of every http.Client in a throttle.Transport. So each request of a suite passes a
// limiter with several tiers, one of them Concurrency, and each body is watched. What passes
// without the hook must pass with it.
//
//	go test -v -count=1 -timeout=30m . -args -suites=all
//
// The versions are those of go.mod; net/http/httputil is that of the Go installation.
package suites
