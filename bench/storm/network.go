package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// A lossyNetwork loses replies to calls of the script. Each lost reply breaks its connection.
type lossyNetwork struct {
	enabled atomic.Bool
	lost    atomic.Int64 // calls whose replies were lost
}

func (n *lossyNetwork) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &lossyConn{Conn: c, network: n}, err
}

type lossyConn struct {
	net.Conn
	network *lossyNetwork
	calls   atomic.Int64 // in the last write
}

func (c *lossyConn) Write(b []byte) (int, error) {
	c.calls.Store(int64(bytes.Count(b, []byte("evalsha")) + bytes.Count(b, []byte("fcall"))))
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	calls := c.calls.Swap(0)
	if err == nil && calls > 0 && c.network.enabled.Load() && rand.Float64() < lossRate {
		c.network.lost.Add(calls)
		c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
