// Package redismem connects clients to a miniredis in memory, without sockets: inside a
// bubble of testing/synctest, where a call takes exactly as long as the connection says.
package redismem

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Dial returns a client of the server. Each command takes the delay to get there, and its
// reply takes no time. The client and the server must be closed in the bubble.
func Dial(server *miniredis.Miniredis, delay func() time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:6379", // else a name is looked up
		PoolSize: 256,              // no waits for a connection, with a timer that outlives the bubble
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := server.Dial()
			if err != nil {
				return nil, err
			}
			return newConn(conn, delay), nil
		},
	})
}

// A delayed connection takes a while to bring what is written, and Write doesn't wait for it:
// the caller may hold a lock, and virtual time stands still while a goroutine waits for a lock.
type delayed struct {
	net.Conn
	delay   func() time.Duration
	written chan message
	closed  chan struct{}
	close   sync.Once
}

// A message is what one Write was told, and when the other side has it. Of a large command that
// is written in pieces all arrive together.
type message struct {
	bytes []byte
	due   time.Time
}

func newConn(conn net.Conn, delay func() time.Duration) *delayed {
	c := &delayed{Conn: conn, delay: delay, written: make(chan message, 1024), closed: make(chan struct{})}
	go c.bring()
	return c
}

func (c *delayed) bring() {
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
