// Package delivery finds out whether anything of an HTTP request was written.
package delivery

import (
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// A Delivery records how far one request came. The zero value is ready to use.
type Delivery struct{ connects, writes atomic.Bool }

// Trace returns the hooks that fill d in.
func (d *Delivery) Trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn:          func(string) { d.connects.Store(true) },
		WroteHeaderField: func(string, []string) { d.writes.Store(true) },
		WroteHeaders:     func() { d.writes.Store(true) },
	}
}

// Connecting reports whether the request looks for a connection, and nothing was written.
func (d *Delivery) Connecting() bool { return d.connects.Load() && !d.writes.Load() }

// Connected reports whether the request has looked for a connection.
func (d *Delivery) Connected() bool { return d.connects.Load() }

// Unsent reports whether nothing of a request that failed with err was written. Where the
// round tripper supports httptrace, as net/http does, the trace decides. Another one may have
// written the request, unless its error is that of a dial.
func (d *Delivery) Unsent(err error) bool {
	if d.connects.Load() {
		return !d.writes.Load()
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
