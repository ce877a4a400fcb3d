// Package delivery reports whether any part of an HTTP request was written.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"sync/atomic"
)

// A Delivery is the context of one request, whose progress it records. Its hooks are made when the
// round tripper first asks for them, because some never do. Set Context before use.
type Delivery struct {
	context.Context

	// Extend adds hooks to those of the Delivery. If nil, it has no others.
	Extend func(*httptrace.ClientTrace)

	traced           atomic.Pointer[context.Context] // contains the hooks
	connects, writes atomic.Bool
}

// Value returns the trace of the Delivery, composed with that of its Context, for the key of
// package httptrace.
func (d *Delivery) Value(key any) any {
	if key != traceKey {
		return d.Context.Value(key)
	}
	if d.traced.Load() == nil {
		ctx := httptrace.WithClientTrace(d.Context, d.trace())
		d.traced.CompareAndSwap(nil, &ctx)
	}
	return (*d.traced.Load()).Value(key)
}

func (d *Delivery) trace() *httptrace.ClientTrace {
	hooks := &httptrace.ClientTrace{
		GetConn:          func(string) { d.connects.Store(true) },
		WroteHeaderField: func(string, []string) { d.writes.Store(true) },
		WroteHeaders:     func() { d.writes.Store(true) },
	}
	if d.Extend != nil {
		d.Extend(hooks)
	}
	return hooks
}

// String returns a text for packages that print contexts, without the state of d, which other
// goroutines may change.
func (d *Delivery) String() string { return fmt.Sprint(d.Context) + ".WithDelivery" }

// traceKey is the key of a trace in a context, which package httptrace does not export.
var traceKey = func() any {
	var s spy
	httptrace.ContextClientTrace(&s)
	return s.key
}()

// A spy is a context that records which key it is asked for.
type spy struct {
	context.Context
	key any
}

func (s *spy) Value(key any) any {
	s.key = key
	return nil
}

// Connecting reports whether the request has asked for a connection, and nothing was written.
func (d *Delivery) Connecting() bool { return d.connects.Load() && !d.writes.Load() }

// Asked reports whether the round tripper has asked for the trace.
func (d *Delivery) Asked() bool { return d.traced.Load() != nil }

// Connected reports whether the request has asked for a connection.
func (d *Delivery) Connected() bool { return d.connects.Load() }

// Unsent reports whether nothing of a request that failed with err was written. If the round
// tripper supports httptrace, as net/http does, the trace decides. Another round tripper may have
// written the request, unless err is the error of a dial.
func (d *Delivery) Unsent(err error) bool {
	if d.connects.Load() {
		return !d.writes.Load()
	}
	return IsDial(err)
}

// IsDial reports whether err is the error of a dial.
func IsDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
