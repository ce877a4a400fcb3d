// Package delivery reports whether any part of an HTTP request was written.
package delivery

import (
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// A Delivery records the progress of one request. The zero value is ready to use.
type Delivery struct{ connects, writes atomic.Bool }

// Trace returns the hooks that record the progress in d.
func (d *Delivery) Trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:          func(string) { d.connects.Store(true) },
		WroteHeaderField: func(string, []string) { d.writes.Store(true) },
		WroteHeaders:     func() { d.writes.Store(true) },
	}
}

// Connecting reports whether the request has asked for a connection, and nothing was written.
func (d *Delivery) Connecting() bool { return d.connects.Load() && !d.writes.Load() }

// Connected reports whether the request has asked for a connection.
func (d *Delivery) Connected() bool { return d.connects.Load() }

// Unsent reports whether nothing of a request that failed with err was written. If the round
// tripper supports httptrace, as net/http does, the trace decides. Another round tripper may have
// written the request, unless err is the error of a dial.
func (d *Delivery) Unsent(err error) bool {
	if d.connects.Load() {
		return !d.writes.Load()
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
