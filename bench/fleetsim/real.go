package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle/bench/internal/cpu"
	"github.com/apithrottle/throttle/internal/redistest"
)

// A realServer is the backend of a scenario in real time: a redis-server of its own on this machine,
// behind a proxy that delays both directions for each of the scenario's ways. A process uses the
// mean of its way.
type realServer struct {
	server   *redistest.Server // nil if the scenario needs none
	addr     string
	scenario scenario
	admin    *redis.Client // nil where server is nil
	proxies  []*redistest.Proxy
	loses    atomic.Pointer[fault] // the fault that loses replies now
	lost     atomic.Int64          // replies to calls of the script
}

// playOnServer runs a scenario in real time.
func (s scenario) playOnServer(t *testing.T, seed uint64) (r result, err error) {
	if s.alone {
		f := &fleet{scenario: s, seed: seed, server: &realServer{}, began: time.Now()}
		return f.run()
	}
	server := redistest.Start(t)
	b := &realServer{server: server, addr: server.Addr(), scenario: s}
	b.admin = redis.NewClient(&redis.Options{Addr: b.addr, ReadTimeout: 10 * time.Second}) // the server may be overloaded
	defer b.admin.Close()
	for _, w := range s.ways {
		p := redistest.NewProxy(t, b.addr)
		p.SetDelay((w.least + w.most) / 2)
		b.proxies = append(b.proxies, p)
	}
	f := &fleet{scenario: s, seed: seed, server: b, began: time.Now()}
	for _, fault := range s.faults {
		time.AfterFunc(fault.at, func() { b.set(fault, true) })
		time.AfterFunc(fault.at+fault.lasts, func() { b.set(fault, false) })
	}
	return f.run()
}

// set begins a fault, or ends it.
func (b *realServer) set(f fault, on bool) {
	switch {
	case f.kind == stall && on:
		b.server.Stop()
	case f.kind == stall:
		b.server.Resume()
	case f.kind == slow:
		for i, p := range b.proxies {
			delay := (b.scenario.ways[i].least + b.scenario.ways[i].most) / 2
			if on {
				delay += f.by
			}
			p.SetDelay(delay)
		}
	case f.kind == lose && on:
		b.loses.Store(&f)
	case f.kind == lose:
		b.loses.Store(nil)
	}
}

// connect implements backend.
func (b *realServer) connect(i int) client {
	options := &redis.Options{Addr: b.addr}
	if i < b.scenario.processes && len(b.proxies) > 0 {
		options.Addr = b.proxies[i%len(b.proxies)].Addr()
	}
	options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &lossyConn{Conn: c, server: b}, err
	}
	return realClient{redis.NewClient(options)}
}

type realClient struct{ rdb *redis.Client }

func (c realClient) redis() *redis.Client { return c.rdb }
func (c realClient) kill()                { _ = c.rdb.Close() }
func (c realClient) close()               { _ = c.rdb.Close() }

func (b *realServer) close(all []client) {
	for _, c := range all {
		c.close()
	}
}

// counted implements backend.
func (b *realServer) counted() (t tally, err error) {
	if t.Used = cpu.Used(); b.admin == nil {
		return t, nil
	}
	text, err := b.admin.InfoMap(context.Background(), "all").Result()
	if err != nil {
		return t, err
	}
	for name, value := range text["Commandstats"] {
		var calls int
		if _, err := fmt.Sscanf(value, "calls=%d,", &calls); err != nil {
			return t, fmt.Errorf("%s: %q", name, value)
		}
		switch strings.TrimPrefix(name, "cmdstat_") {
		case "evalsha", "eval", "fcall":
			t.Calls += calls
		}
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		var seconds float64
		if _, err := fmt.Sscan(text["CPU"][name], &seconds); err != nil {
			return t, fmt.Errorf("%s: %q", name, text["CPU"][name])
		}
		t.Busy += time.Duration(seconds * float64(time.Second))
	}
	t.Lost = int(b.lost.Load())
	return t, nil
}

// A lossyConn loses replies to calls of the script while a fault says so. Each lost reply breaks the
// connection.
type lossyConn struct {
	net.Conn
	server *realServer
	calls  atomic.Int64 // in the last write
}

func (c *lossyConn) Write(b []byte) (int, error) {
	c.calls.Store(int64(bytes.Count(b, []byte("evalsha")) + bytes.Count(b, []byte("fcall"))))
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	calls := c.calls.Swap(0)
	if f := c.server.loses.Load(); err == nil && calls > 0 && f != nil && rand.Float64() < f.share {
		c.server.lost.Add(calls)
		c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// silent drops the log messages about connections that a scenario breaks.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
