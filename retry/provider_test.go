package retry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
)

var errDial = errors.New("no route to provider")

// A provider answers by a script. It uses net/http on both sides and pipes in between, which work
// in a synctest bubble. The lines of a script are "429 3", a status with its Retry-After; "dial", a
// connection refused; "reset", a connection closed without an answer; "hang", no answer until the
// client goes away; and "302 /x", a redirect. The last line repeats.
type provider struct {
	transport *http.Transport
	start     time.Time
	conns     chan net.Conn

	mu     sync.Mutex // guards all below
	script []string
	sent   []string        // bodies of the requests
	at     []time.Duration // times of the requests since start
	dials  int
}

func newProvider(t *testing.T, script ...string) *provider {
	p := &provider{start: time.Now(), conns: make(chan net.Conn), script: script}
	p.transport = &http.Transport{DialContext: p.dial, DisableKeepAlives: true}
	server := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(p)
	t.Cleanup(func() {
		p.transport.CloseIdleConnections()
		server.Close()
	})
	return p
}

// next takes the next line of the script. If wanted is not empty, it takes only one of those.
func (p *provider) next(wanted ...string) (status, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.script[0]
	if wanted != nil && !slices.Contains(wanted, line) {
		return "", ""
	}
	if len(p.script) > 1 {
		p.script = p.script[1:]
	}
	status, value, _ = strings.Cut(line, " ")
	return status, value
}

func (p *provider) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.mu.Lock()
	p.dials++
	p.mu.Unlock()
	if line, _ := p.next("dial"); line != "" {
		return nil, errDial
	}
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	p.sent = append(p.sent, string(body))
	p.at = append(p.at, time.Since(p.start))
	p.mu.Unlock()
	status, value := p.next()
	switch {
	case status == "reset":
		panic(http.ErrAbortHandler)
	case status == "hang":
		<-r.Context().Done()
		return
	case status[0] == '3':
		w.Header().Set("Location", value)
	case value != "":
		w.Header().Set("Retry-After", value)
	}
	var code int
	fmt.Sscan(status, &code)
	w.WriteHeader(code)
	fmt.Fprintf(w, "answer %d", len(p.arrived()))
}

// arrived returns the bodies of the requests that have arrived.
func (p *provider) arrived() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent)
}

// attempts returns the number of dialed connections. Without keep-alive it is the number of
// attempts.
func (p *provider) attempts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// Accept, Close and Addr implement net.Listener.
func (p *provider) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *provider) Close() error   { close(p.conns); return nil }
func (p *provider) Addr() net.Addr { return &net.UnixAddr{Name: "provider"} }

// limited returns a Transport over p whose limiter admits all requests of the tests.
func limited(t *testing.T, p http.RoundTripper) *throttle.Transport {
	l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(1000)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &throttle.Transport{Base: p, Limiter: l}
}

// A stream is a body that can be read only once.
type stream struct{ io.Reader }

// bodies opens bodies and counts how often each is closed.
type bodies struct {
	text   string
	err    error // error of every opening except the first
	mu     sync.Mutex
	closed []int // number of Close calls of each body
}

func (b *bodies) open() (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil && len(b.closed) > 0 {
		return nil, b.err
	}
	b.closed = append(b.closed, 0)
	return &body{Reader: strings.NewReader(b.text), all: b, i: len(b.closed) - 1}, nil
}

type body struct {
	io.Reader
	all *bodies
	i   int
}

func (b *body) Close() error {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.all.closed[b.i]++
	return nil
}

// once is a base that closes a body exactly once, which net/http does not guarantee. It answers by
// its script of statuses, or with an error for 0.
type once struct{ script []int }

func (o *once) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		io.Copy(io.Discard, req.Body)
		req.Body.Close()
	}
	status := o.script[0]
	if len(o.script) > 1 {
		o.script = o.script[1:]
	}
	if status == 0 {
		return nil, errDial
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}
