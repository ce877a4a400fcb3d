package pgtest

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/apithrottle/throttle/internal/servertest"
)

// A Proxy forwards connections to a server or a PgBouncer, counts messages, and breaks connections on
// request. It understands connections without TLS only. Its methods are safe for concurrent use.
type Proxy struct {
	*servertest.Proxy
	url string

	mu      sync.Mutex // guards all below
	sent    map[byte]int
	every   int // each one of so many replies is dropped, or 0
	replies int // since DropReplies
}

// NewProxy starts a proxy in front of a database.
func NewProxy(t testing.TB, d *Database) *Proxy {
	t.Helper()
	p := &Proxy{sent: make(map[byte]int)}
	p.Proxy = servertest.NewProxy(t, d.Addr(), func() servertest.Tap { return &tap{proxy: p} })
	through := *d
	through.addr = p.Addr()
	p.url = through.URL()
	return p
}

// URL returns the URL of the database, through the proxy.
func (p *Proxy) URL() string { return p.url }

// DropReplies makes the proxy cut the connection instead of forwarding the last part of each one of so
// many replies: of each reply if every is 1, and of none if it is 0. The server has then executed
// what the client sent, and the client can't know. A reply is what the server sends for a Query or up to a
// Sync, with all of its statements. The reply to the start of a connection passes and does not count.
func (p *Proxy) DropReplies(every int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every, p.replies = every, 0
}

// Sent returns how many messages of these types clients have sent since the proxy was started, after
// the start of their connections: "Q" is Query, "P" Parse, "B" Bind, "E" Execute, and "S" Sync. So
// Sent("QE") counts statements, and Sent("QS") round trips.
// https://www.postgresql.org/docs/15/protocol-message-formats.html (2026-11-28)
func (p *Proxy) Sent(types string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, b := range []byte(types) {
		n += p.sent[b]
	}
	return n
}

// A tap is a connection through the proxy.
type tap struct {
	proxy           *Proxy // its mutex guards all below
	request, reply  messages
	started, served bool // the client has sent its startup message; the server is ready for more
	asked           int  // questions for encryption, each of which the server answers by one byte
	encrypted       bool
}

// Codes of messages without a type, before the startup message.
const (
	askTLS    = 80877103
	askGSSAPI = 80877104
)

func (c *tap) Request(b []byte) {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	for len(b) > 0 && !c.encrypted {
		var kind byte
		var code uint32
		if !c.started {
			b, code = c.request.nextUntyped(b)
			switch code {
			case 0: // more must come
			case askTLS, askGSSAPI:
				c.asked++
			default:
				c.started = true
			}
			continue
		}
		if b, kind = c.request.next(b); kind != 0 {
			c.proxy.sent[kind]++
		}
	}
}

func (c *tap) Reply(b []byte) bool {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	for len(b) > 0 && !c.encrypted {
		if c.asked > 0 {
			c.asked--
			c.encrypted = b[0] != 'N'
			b = b[1:]
			continue
		}
		var kind byte
		if b, kind = c.reply.next(b); kind != 'Z' { // ReadyForQuery
			continue
		}
		if !c.served {
			c.served = true
			continue
		}
		if c.proxy.drops() {
			return false
		}
	}
	return true
}

// drops reports whether to drop the present reply.
func (p *Proxy) drops() bool {
	p.replies++
	return p.every > 0 && p.replies%p.every == 0
}

// messages finds the messages in a stream of bytes that arrives in pieces.
type messages struct {
	header []byte // the present message's, as far as it has arrived
	left   int    // bytes of the present message that are to come after the header
}

// next returns the rest of b after the header or content at its beginning, and the type of the message
// whose header is complete now, if any.
func (m *messages) next(b []byte) (rest []byte, kind byte) {
	rest, header := m.head(b, 5)
	if header == nil {
		return rest, 0
	}
	m.left = int(binary.BigEndian.Uint32(header[1:])) - 4
	return rest, header[0]
}

// nextUntyped is next for messages that have no type but a code, before a connection is started.
func (m *messages) nextUntyped(b []byte) (rest []byte, code uint32) {
	rest, header := m.head(b, 8)
	if header == nil {
		return rest, 0
	}
	m.left = int(binary.BigEndian.Uint32(header)) - 8
	return rest, binary.BigEndian.Uint32(header[4:])
}

// head consumes the content of the present message and up to size bytes of the next header, which it
// returns when it is complete.
func (m *messages) head(b []byte, size int) (rest, header []byte) {
	n := min(m.left, len(b))
	m.left -= n
	b = b[n:]
	n = min(size-len(m.header), len(b))
	m.header = append(m.header, b[:n]...)
	if len(m.header) < size {
		return b[n:], nil
	}
	header, m.header = m.header, nil
	return b[n:], header
}
