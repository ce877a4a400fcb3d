package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// A wire loses replies to calls of the script, and with each its connection.
type wire struct {
	loses atomic.Bool
	lost  atomic.Int64 // calls of which the reply was lost
}

func (w *wire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &lossy{Conn: c, wire: w}, err
}

type lossy struct {
	net.Conn
	wire  *wire
	calls atomic.Int64 // in what was written last
}

func (c *lossy) Write(b []byte) (int, error) {
	c.calls.Store(int64(bytes.Count(b, []byte("evalsha")) + bytes.Count(b, []byte("fcall"))))
	return c.Conn.Write(b)
}

func (c *lossy) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	calls := c.calls.Swap(0)
	if err == nil && calls > 0 && c.wire.loses.Load() && rand.Float64() < lostShare {
		c.wire.lost.Add(calls)
		c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
