package redistest

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/internal/servertest"
)

// A Proxy forwards connections to a server and breaks them on request. Its methods are safe for
// concurrent use.
type Proxy struct {
	*servertest.Proxy
	t    testing.TB
	drop atomic.Int64 // number of replies that are still to be dropped
}

// A tap is a connection through the proxy.
type tap struct {
	proxy    *Proxy
	greeting atomic.Bool // the client's last request was a greeting
}

// NewProxy starts a proxy in front of a server's address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t}
	p.Proxy = servertest.NewProxy(t, target, func() servertest.Tap { return &tap{proxy: p} })
	return p
}

// Client returns a new client like Server.Client, through the proxy.
func (p *Proxy) Client() *redis.Client { return newClient(p.t, p.Addr(), timeout) }

// DropReplies makes the proxy cut the connection instead of forwarding each of the next n replies.
// The server has then executed a command that the client considers lost. Replies to the commands of
// a new connection (HELLO, AUTH, CLIENT, SELECT) pass and do not count.
func (p *Proxy) DropReplies(n int) { p.drop.Store(int64(n)) }

func (c *tap) Request(b []byte) { c.greeting.Store(greets(b)) }

func (c *tap) Reply([]byte) bool { return c.greeting.Load() || !c.proxy.dropped() }

// dropped reports whether to drop the present reply.
func (p *Proxy) dropped() bool {
	for {
		n := p.drop.Load()
		if n == 0 {
			return false
		}
		if p.drop.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// greets reports whether a request is one of those that set up a connection.
func greets(request []byte) bool {
	parts := bytes.SplitN(request, []byte("\r\n"), 4) // *2, $5, hello, …
	if len(parts) < 4 {
		return false
	}
	switch string(bytes.ToLower(parts[2])) {
	case "hello", "auth", "client", "select":
		return true
	}
	return false
}
