package redistest

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Proxy forwards connections to a server and breaks them on request. Its methods are safe for
// concurrent use.
type Proxy struct {
	t      testing.TB
	addr   string
	target string
	wg     sync.WaitGroup // of all goroutines

	mu       sync.Mutex // guards all below
	listener net.Listener
	conns    map[*conn]struct{}
	delay    time.Duration
	drop     int           // number of replies that are still to be dropped
	open     chan struct{} // closed unless the proxy hangs
}

// A conn is a connection through the proxy.
type conn struct {
	client, server net.Conn
	closed         chan struct{}
	once           sync.Once
	greeting       atomic.Bool // the client's last request was a greeting
}

// A chunk is the result of one read, in flight to the other side.
type chunk struct {
	data []byte
	due  time.Time
}

// NewProxy starts a proxy in front of a server's address.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{t: t, addr: net.JoinHostPort(host, "0"), target: target, conns: make(map[*conn]struct{}), open: make(chan struct{})}
	close(p.open)
	p.Refuse(false)
	p.addr = p.listener.Addr().String()
	t.Cleanup(func() {
		p.Refuse(true)
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr returns the host and port to dial.
func (p *Proxy) Addr() string { return p.addr }

// Client returns a new client like Server.Client, through the proxy.
func (p *Proxy) Client() *redis.Client { return newClient(p.t, p.addr, timeout) }

// SetDelay sets the delay in each direction of everything that is sent from now on.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// DropReplies makes the proxy cut the connection instead of forwarding each of the next n replies.
// The server has then executed a command that the client considers lost. Replies to the commands of
// a new connection (HELLO, AUTH, CLIENT, SELECT) pass and do not count.
func (p *Proxy) DropReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = n
}

// Hang makes the proxy accept connections and forward nothing on any connection. Hang(false)
// forwards the data that was held back.
func (p *Proxy) Hang(hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		if hang {
			p.open = make(chan struct{})
		}
	default:
		if !hang {
			close(p.open)
		}
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Refuse makes the system refuse new connections. Existing connections stay.
func (p *Proxy) Refuse(refuse bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case refuse && p.listener != nil:
		p.listener.Close()
		p.listener = nil
	case !refuse && p.listener == nil:
		l, err := net.Listen("tcp", p.addr)
		if err != nil {
			p.t.Errorf("the proxy can't listen: %v", err)
			return
		}
		p.listener = l
		p.wg.Go(func() { p.serve(l) })
	}
}

func (p *Proxy) serve(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		c := &conn{client: client, server: server, closed: make(chan struct{})}
		p.mu.Lock()
		p.conns[c] = struct{}{}
		if p.listener != l { // refused in the meantime
			c.close()
		}
		p.mu.Unlock()
		p.wg.Go(func() {
			p.forward(c)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

func (c *conn) close() {
	c.once.Do(func() {
		close(c.closed)
		c.client.Close()
		c.server.Close()
	})
}

// forward copies both ways until one side ends.
func (p *Proxy) forward(c *conn) {
	requests, replies := make(chan chunk, 1024), make(chan chunk, 1024)
	var wg sync.WaitGroup
	wg.Go(func() {
		p.read(c, c.client, requests, func(b []byte) bool { c.greeting.Store(greets(b)); return true })
	})
	wg.Go(func() { p.read(c, c.server, replies, func([]byte) bool { return c.greeting.Load() || !p.dropped() }) })
	wg.Go(func() { p.write(c, c.server, requests) })
	wg.Go(func() { p.write(c, c.client, replies) })
	wg.Wait()
}

// read passes on the data that it reads, and closes the connection when pass returns false.
func (p *Proxy) read(c *conn, from net.Conn, to chan<- chunk, pass func([]byte) bool) {
	defer c.close()
	defer close(to)
	for {
		b := make([]byte, 16<<10)
		n, err := from.Read(b)
		if err != nil || !pass(b[:n]) {
			return
		}
		p.mu.Lock()
		due := time.Now().Add(p.delay)
		p.mu.Unlock()
		select {
		case to <- chunk{b[:n], due}:
		case <-c.closed:
			return
		}
	}
}

// write writes each chunk when it is due and the proxy doesn't hang.
func (p *Proxy) write(c *conn, to net.Conn, from <-chan chunk) {
	defer c.close()
	for b := range from {
		select {
		case <-time.After(time.Until(b.due)):
		case <-c.closed:
			return
		}
		p.mu.Lock()
		open := p.open
		p.mu.Unlock()
		select {
		case <-open:
		case <-c.closed:
			return
		}
		if _, err := to.Write(b.data); err != nil {
			return
		}
	}
}

// dropped reports whether to drop the present reply.
func (p *Proxy) dropped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drop == 0 {
		return false
	}
	p.drop--
	return true
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
