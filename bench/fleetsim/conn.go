package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"sync"
	"time"

	resp "github.com/alicebob/miniredis/v2/server"
)

// A conn is a connection for messages, on which go-redis subscribes. It opens at once: go-redis
// holds a lock while it connects, and virtual time stands still while a goroutine waits for a lock.
// Data that is sent while the process is cut off arrives when it no longer is, because TCP resends
// it.
type conn struct {
	process  *process
	channels int // guarded by server.mu

	mu          sync.Mutex // guards all below
	sent        []byte     // bytes of an incomplete command
	there, back time.Time  // when the last message arrives
	read        []byte
	more        chan struct{} // has one element if there is something to read
	closed      chan struct{}
	isClosed    bool
}

func newConn(p *process) *conn {
	return &conn{process: p, more: make(chan struct{}, 1), closed: make(chan struct{})}
}

// due returns how long a message takes that is sent now. It arrives after the message before it.
// The caller must hold mu.
func (c *conn) due(last *time.Time) time.Duration {
	at := time.Now().Add(c.process.cutFor() + c.process.drawDelay())
	if at.Before(*last) {
		at = *last
	}
	*last = at
	return time.Until(at)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return 0, net.ErrClosed
	}
	c.sent = append(c.sent, b...)
	for {
		words, rest := parseCommand(c.sent)
		if words == nil {
			return len(b), nil
		}
		c.sent = rest
		v := &visit{commands: [][]string{words}, epoch: c.process.server.epoch.Load(), conn: c, done: func([]any) {}}
		time.AfterFunc(c.due(&c.there), func() {
			if !c.process.killed.Load() {
				c.process.server.enqueue(v)
			}
		})
	}
}

// parseCommand returns the words of the first command if it is complete, and the bytes after it.
func parseCommand(b []byte) (words []string, rest []byte) {
	unread := bytes.NewReader(b)
	in := bufio.NewReader(unread)
	command, err := resp.ParseReply(in) // has the form of a reply
	if err != nil {
		return nil, nil
	}
	for _, word := range command.([]any) {
		words = append(words, word.(string))
	}
	return words, b[len(b)-unread.Len()-in.Buffered():]
}

// deliver sends a message to the client.
func (c *conn) deliver(message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	time.AfterFunc(c.due(&c.back), func() {
		if c.process.killed.Load() {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.read = append(c.read, message...)
		select {
		case c.more <- struct{}{}:
		default:
		}
	})
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	for {
		c.mu.Lock()
		n := copy(b, c.read)
		c.read = c.read[n:]
		c.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-c.more:
		case <-c.closed:
			return 0, io.EOF
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	first := !c.isClosed
	c.isClosed = true
	c.mu.Unlock()
	if first {
		close(c.closed)
		c.process.server.unsubscribeAll(c)
	}
	return nil
}

// LocalAddr and the methods below implement net.Conn and do nothing.
func (c *conn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *conn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
