package delivery

import (
	"context"
	"crypto/tls"
	"net"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apithrottle/throttle/internal/rtt"
)

// A Trace is the context of a request that is being sent, and records what the round tripper reports of the
// request. The methods of a nil Trace report that nothing is known.
type Trace struct {
	Delivery
	*watch // nil unless the network is measured or the request must be sent by a time
}

// A watch measures the network, and ends the attempt if nothing of the request was
// written by a time.
type watch struct {
	headers  atomic.Int64 // nanoseconds from the admission until the headers were written
	uploaded atomic.Int64 // nanoseconds from then until the body was written

	sendByPassed atomic.Bool        // that time has passed
	expired      atomic.Bool        // the attempt was ended because it had passed
	closedConn   atomic.Bool        // the attempt's connection was closed before it was written
	timer        *time.Timer        // fires at that time; nil if there is none
	cancel       context.CancelFunc // ends the attempt
}

// NotSent reports whether nothing of a request that failed with err was written. Without a trace, only
// the error of a dial tells.
func (tr *Trace) NotSent(err error) bool {
	if tr == nil {
		return IsDial(err)
	}
	return tr.watch != nil && tr.closedConn.Load() || tr.Unsent(err) ||
		tr.Asked() && !tr.Connected() && strings.Contains(err.Error(), "unsupported protocol scheme")
}

// Late reports whether the attempt was ended because its time had passed.
func (tr *Trace) Late() bool { return tr != nil && tr.watch != nil && tr.expired.Load() }

// expire ends the attempt if nothing of it was written. An attempt that looks for a connection only after its
// time ends then.
func (tr *Trace) expire() {
	tr.sendByPassed.Store(true)
	if tr.Connecting() {
		tr.expired.Store(true)
		tr.cancel()
	}
}

// watchNetwork adds to the hooks: they report new connections to the timing, except those to a
// proxy on this host, and measure how long a body takes to be written.
func (tr *Trace) watchNetwork(hooks *httptrace.ClientTrace, t rtt.Timing, host string) {
	hooks.GotConn = func(c httptrace.GotConnInfo) {
		if !c.Reused && (!isLoopback(c.Conn) || host == "localhost" || net.ParseIP(host).IsLoopback()) {
			t.Connected()
		}
	}
	wroteHeaders := hooks.WroteHeaders
	hooks.WroteHeaders = func() {
		wroteHeaders()
		tr.headers.Store(int64(time.Since(t.Admitted)))
	}
	hooks.WroteRequest = func(httptrace.WroteRequestInfo) {
		tr.uploaded.Store(int64(time.Since(t.Admitted)) - tr.headers.Load())
	}
}

func isLoopback(c net.Conn) bool {
	if c == nil {
		return false
	}
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// Upload returns how long the body took to be written, or zero if that is not known.
func (tr *Trace) Upload() time.Duration {
	if tr == nil || tr.watch == nil {
		return 0
	}
	return time.Duration(tr.uploaded.Load())
}

// StopTimer ends the bound by a time, once the response is in.
func (tr *Trace) StopTimer() {
	if tr != nil && tr.watch != nil && tr.timer != nil {
		tr.timer.Stop()
	}
}

// Watch measures the network for a timing that learns from it, of a request to a host, and, unless sendBy is zero,
// ends the context at that time if nothing was written by then. It returns the function that ends the context, and
// calls end, which may be nil.
func (tr *Trace) Watch(t rtt.Timing, host string, sendBy time.Time, end context.CancelFunc) context.CancelFunc {
	tr.watch = new(watch)
	bound := !sendBy.IsZero()
	if bound {
		tr.Context, tr.cancel = context.WithCancel(tr.Context)
		tr.timer = time.AfterFunc(time.Until(sendBy), tr.expire)
	}
	tr.Extend = func(hooks *httptrace.ClientTrace) {
		if t.Learns() {
			tr.watchNetwork(hooks, t, host)
		}
		if bound {
			tr.watchSendBy(hooks)
		}
	}
	switch {
	case tr.cancel == nil:
		return end
	case end == nil:
		return tr.cancel
	}
	return func() { tr.cancel(); end() }
}

// watchSendBy adds hooks that end an attempt which gets a connection only after its time.
func (tr *Trace) watchSendBy(hooks *httptrace.ClientTrace) {
	getConn := hooks.GetConn
	hooks.GetConn = func(hostPort string) {
		getConn(hostPort)
		if tr.sendByPassed.Load() {
			tr.expire()
		}
	}
	gotConn := hooks.GotConn
	hooks.GotConn = func(c httptrace.GotConnInfo) {
		if gotConn != nil {
			gotConn(c)
		}
		if tr.sendByPassed.Load() && tr.Connecting() {
			tr.expire()
			tr.closeConn(c.Conn)
		}
	}
}

// closeConn closes the connection of an attempt whose time has passed. Canceling the context is
// not enough: if the context has ended and a connection is ready, net/http may choose the
// connection. Requests of HTTP/2 share connections, and HTTP/2 checks the context before it writes,
// so its connections stay open.
func (tr *Trace) closeConn(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol == "h2" {
		return
	}
	tr.closedConn.Store(true)
	_ = c.Close()
}
