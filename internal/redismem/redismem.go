// Package redismem connects clients to a miniredis in memory, without sockets. In a bubble of
// testing/synctest, a call takes exactly the delay of its connection.
package redismem

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// New returns a server that has started. Close it in the bubble.
//
// Miniredis parses a script at each SCRIPT LOAD, and once more, for all servers of a program, when
// the script first runs. This server does not parse at SCRIPT LOAD: the first EVALSHA becomes an
// EVAL, which loads the script. If a test sets a hook of its own, SCRIPT LOAD parses again.
func New() *miniredis.Miniredis {
	m := miniredis.NewMiniRedis()
	if c, err := m.Dial(); err == nil { // starts it
		_ = c.Close()
	}
	var loaded sync.Map // by hash, the scripts that have not run yet
	m.Server().SetPreHook(func(p *server.Peer, cmd string, args ...string) bool {
		switch {
		case cmd == "SCRIPT" && len(args) == 2 && strings.EqualFold(args[0], "load"):
			sum := sha1.Sum([]byte(args[1]))
			hash := hex.EncodeToString(sum[:])
			loaded.Store(hash, args[1])
			p.WriteBulk(hash)
			return true
		case cmd == "SCRIPT":
			loaded.Clear() // it may be FLUSH
		case cmd == "EVALSHA" && len(args) > 1:
			if script, found := loaded.Load(args[0]); found {
				m.Server().Dispatch(p, append([]string{"EVAL", script.(string)}, args[1:]...))
				loaded.Delete(args[0])
				return true
			}
		}
		return false
	})
	return m
}

// Dial returns a client of the server. Each command takes the delay to arrive, and its reply takes
// no time. Close the client and the server in the bubble.
func Dial(server *miniredis.Miniredis, delay func() time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:6379", // an IP address, because a name would be looked up
		PoolSize: 256,              // large enough to avoid a wait for a connection, whose timer would outlive the bubble
		// The race detector marks each byte of new buffers, and those of go-redis have 64 KiB in all.
		ReadBufferSize: 4 << 10, WriteBufferSize: 4 << 10,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := server.Dial()
			if err != nil {
				return nil, err
			}
			return newConn(conn, delay), nil
		},
	})
}

// A delayed connection delivers written bytes after a delay. Write does not wait for the delivery:
// its caller may hold a lock, and virtual time does not advance while a goroutine waits for a lock.
type delayed struct {
	net.Conn
	delay   func() time.Duration
	written chan message
	closed  chan struct{}
	close   sync.Once
}

// A message contains the bytes of one Write and when they arrive. The pieces of a large command
// arrive together.
type message struct {
	bytes []byte
	due   time.Time
}

func newConn(conn net.Conn, delay func() time.Duration) *delayed {
	c := &delayed{Conn: conn, delay: delay, written: make(chan message, 1024), closed: make(chan struct{})}
	go c.deliver()
	return c
}

func (c *delayed) deliver() {
	for {
		select {
		case m := <-c.written:
			time.Sleep(time.Until(m.due))
			_, _ = c.Conn.Write(m.bytes) // the reader gets the error
		case <-c.closed:
			return
		}
	}
}

func (c *delayed) Write(b []byte) (int, error) {
	select {
	case c.written <- message{bytes.Clone(b), time.Now().Add(c.delay())}:
		return len(b), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *delayed) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
