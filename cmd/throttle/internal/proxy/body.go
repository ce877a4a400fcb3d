package proxy

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// bodyIdle is how long a client may send no byte of a body that is being read. It also bounds the
	// body of a request that net/http answers itself.
	bodyIdle = 30 * time.Second

	// bodyDrain is how long net/http may read the rest of a body that was not read when the response
	// ended.
	bodyDrain = 5 * time.Second
)

// An incoming is the body of a client's request. A Read fails if no byte comes within idle. Until its
// end was read, net/http neither notices that the client hangs up nor bounds its own reads.
type incoming struct {
	src     io.ReadCloser
	control *http.ResponseController
	idle    time.Duration // zero for no bound

	mu       sync.Mutex // guards all below
	returned sync.Cond  // signals the end of a Read
	reading  bool
	deadline time.Time // of the last Read
	ended    bool      // the end was read
	closed   bool      // no Read may begin
	late     bool      // the client has sent nothing for too long
}

// newIncoming returns the body of a request, nil if it has none.
func newIncoming(w http.ResponseWriter, r *http.Request, idle time.Duration) *incoming {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	b := &incoming{src: r.Body, control: http.NewResponseController(w), idle: idle}
	b.returned.L = &b.mu
	return b
}

// Read sets no deadline once the end was read: net/http then reads in the background, to notice a client
// that hangs up.
func (b *incoming) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
		return 0, io.EOF
	case b.closed:
		return 0, http.ErrBodyReadAfterClose
	case b.idle > 0:
		b.deadline = time.Now().Add(b.idle)
		_ = b.control.SetReadDeadline(b.deadline)
	}
	b.reading = true
	b.mu.Unlock()
	n, err = b.src.Read(p)
	b.mu.Lock()
	b.reading = false
	b.ended = err == io.EOF
	if err != nil && !b.ended && b.idle > 0 && !time.Now().Before(b.deadline) {
		b.late = true // net/http does not always return the error of the deadline
	}
	b.returned.Broadcast()
	return n, err
}

// Close does nothing: a transport closes the body of a request that it does not send, and net/http would
// read the rest.
func (b *incoming) Close() error { return nil }

// unread reports whether the end was not read.
func (b *incoming) unread() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.ended
}

// unbound ends the bound, since the upstream has answered before it has read the whole body.
func (b *incoming) unbound() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended && !b.closed {
		b.idle = 0
		_ = b.control.SetReadDeadline(time.Time{})
	}
}

// stop ends the use of the body. It reports whether the client has sent nothing for too long.
func (b *incoming) stop() (late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.reading {
		_ = b.control.SetReadDeadline(time.Unix(1, 0))
	}
	for b.reading {
		b.returned.Wait()
	}
	return b.late
}

// finish bounds the time that net/http reads what remains after the response.
func (b *incoming) finish(drain time.Duration) {
	b.stop()
	if b.unread() {
		_ = b.control.SetReadDeadline(time.Now().Add(drain))
	}
}

// buffer reads the body of a request if it has at most limit bytes, and sets GetBody. Of a longer body
// it keeps what it has read, and the rest is read when the request is sent.
func buffer(r *http.Request, b *incoming, limit int64) *problem {
	r.Body = b
	if limit == 0 || r.ContentLength > limit || r.ContentLength < 0 && expects(r.Header) {
		return nil // the first read would ask the client to send a body that is not kept
	}
	data, err := read(b, r.ContentLength, limit)
	switch {
	case err != nil && tripOf(r.Context()).state.Load() == stoppedDraining:
		return draining()
	case err != nil && b.stop():
		return lateBody()
	case err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone
	case err != nil:
		return badRequest(http.StatusBadRequest, "body", "The body is shorter than announced, or its chunks are not valid.")
	case int64(len(data)) > limit:
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), b), b}
		return nil
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(data))
	r.TransferEncoding = nil
	return nil
}

func lateBody() *problem {
	return badRequest(http.StatusRequestTimeout, "body", "The client has sent nothing of the body for too long.")
}

func expects(h http.Header) bool { return strings.EqualFold(first(h, "Expect"), "100-continue") }

// read reads a body of n bytes, or if n is negative, at most one byte more than limit.
func read(body io.Reader, n, limit int64) ([]byte, error) {
	if n < 0 {
		return io.ReadAll(io.LimitReader(body, limit+1))
	}
	data := make([]byte, n+1)
	if _, err := io.ReadFull(body, data[:n]); err != nil {
		return nil, err
	}
	// The server notices a client that hangs up once the end was read.
	_, err := body.Read(data[n:])
	if err == io.EOF {
		err = nil
	}
	return data[:n], err
}
