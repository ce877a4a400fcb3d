// Package peek reads the beginning of a response's body before the body is handed on.
package peek

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	size     = 16 << 10    // bytes of a body that are read before the body is handed on
	patience = time.Second // the longest time for that
)

// Body returns the beginning of a response's body. It replaces the body by one that still has it.
func Body(resp *http.Response) []byte {
	p := &peekedBody{ReadCloser: resp.Body, done: make(chan struct{})}
	resp.Body = p
	go p.fill()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enough = true
	return append([]byte(nil), p.buffer...)
}

// A peekedBody is a body whose beginning was read ahead. The goroutine that reads ahead ends with
// its last Read, which the caller would have to wait for as well.
type peekedBody struct {
	io.ReadCloser
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex // guards all below
	buffer []byte     // read ahead and not yet handed on
	read   int        // bytes read ahead in all
	err    error      // the error that ended the reading ahead
	enough bool       // the goroutine must not read again
	closed bool       // nothing that was read ahead is handed on
	panics any        // the value that the body's Read panicked with; nil if it did not
}

func (p *peekedBody) fill() {
	defer close(p.done)
	defer func() { // keeps a panic for the caller of Read, which can recover it
		v := recover()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.panics = v
	}()
	buffer := make([]byte, size)
	for more := true; more; {
		n, err := p.ReadCloser.Read(buffer[p.read:])
		p.mu.Lock()
		p.buffer = append(p.buffer, buffer[p.read:p.read+n]...)
		p.read += n
		p.err = err
		more = err == nil && p.read < size && !p.enough
		p.mu.Unlock()
	}
}

func (p *peekedBody) Read(b []byte) (int, error) {
	if n, err, ok := p.readAhead(b); ok {
		return n, err
	}
	<-p.done
	if n, err, ok := p.readAhead(b); ok {
		return n, err
	}
	return p.ReadCloser.Read(b)
}

// Close closes the body. What was read ahead is lost, so that a later Read gets the body's own error.
func (p *peekedBody) Close() error {
	p.mu.Lock()
	p.enough, p.closed = true, true
	p.mu.Unlock()
	return p.ReadCloser.Close()
}

// readAhead returns bytes that were read ahead, or the error that ended the reading.
func (p *peekedBody) readAhead(b []byte) (n int, err error, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, nil, false
	}
	if len(p.buffer) > 0 {
		n = copy(b, p.buffer)
		p.buffer = p.buffer[n:]
		return n, nil, true
	}
	if p.panics != nil {
		panic(p.panics)
	}
	return 0, p.err, p.err != nil
}
