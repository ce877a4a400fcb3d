package servertest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A Proxy forwards connections to a server and breaks them on request. Its methods are safe for
// concurrent use.
type Proxy struct {
	t      testing.TB
	addr   string
	target string
	tap    func() Tap
	wg     sync.WaitGroup // of all goroutines

	mu       sync.Mutex // guards all below
	listener net.Listener
	conns    map[*conn]struct{}
	delay    time.Duration
	open     chan struct{} // closed unless the proxy hangs
}

// A Tap sees what passes through one connection, in pieces as they arrive. Its methods are called from
// two goroutines.
type Tap interface {
	// Request receives what the client sends.
	Request(b []byte)
	// Reply receives what the server sends. If it returns false, the proxy cuts the connection instead of
	// forwarding it.
	Reply(b []byte) bool
}

// A conn is a connection through the proxy.
type conn struct {
	client, server net.Conn
	closed         chan struct{}
	once           sync.Once
}

// A chunk is the result of one read, in flight to the other side.
type chunk struct {
	data []byte
	due  time.Time
}

// NewProxy starts a proxy in front of a server's address, and calls tap for each connection.
func NewProxy(t testing.TB, target string, tap func() Tap) *Proxy {
	t.Helper()
	p := &Proxy{t: t, target: target, tap: tap, conns: make(map[*conn]struct{}), open: make(chan struct{})}
	close(p.open)
	l := Listen(t)
	p.listener, p.addr = l, l.Addr().String()
	p.wg.Go(func() { p.serve(l) })
	t.Cleanup(func() {
		p.Refuse(true)
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Listen listens on a free port of 127.0.0.1. The system gives it to nobody else while the test does
// not listen: it is below those that the system chooses. There, a client that dials a port on which
// nobody listens may even connect to itself.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(22000))))
		if err == nil {
			return l
		}
	}
	t.Fatal("no free port")
	return nil
}

// Addr returns the host and port to dial.
func (p *Proxy) Addr() string { return p.addr }

// SetDelay sets the delay in each direction of everything that is sent from now on.
func (p *Proxy) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
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

// Conns returns the number of open connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
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
	tap := p.tap()
	var wg sync.WaitGroup
	wg.Go(func() { p.read(c, c.client, requests, func(b []byte) bool { tap.Request(b); return true }) })
	wg.Go(func() { p.read(c, c.server, replies, tap.Reply) })
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
