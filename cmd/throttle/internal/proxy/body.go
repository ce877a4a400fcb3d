package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// bodyTimeout bounds how long a client takes to send a body that is read before its admission.
const bodyTimeout = 30 * time.Second

// buffer reads the body of a request if it has at most limit bytes, and sets GetBody. Of a longer body
// it keeps what it has read, and the rest is read when the request is sent.
func buffer(w http.ResponseWriter, r *http.Request, limit int64) *problem {
	switch {
	case r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0:
		return nil
	case limit == 0, r.ContentLength > limit, r.ContentLength < 0 && expects(r.Header):
		return nil // the first read would ask the client to send a body that is not kept
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout))
	data, err := read(r.Body, r.ContentLength, limit)
	_ = control.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return badRequest(http.StatusRequestTimeout, "body", "The body did not arrive in time.")
	case err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone
	case err != nil:
		return badRequest(http.StatusBadRequest, "body", "The body is shorter than announced, or its chunks are not valid.")
	case int64(len(data)) > limit:
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(data), r.Body), r.Body}
		return nil
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(data))
	r.TransferEncoding = nil
	return nil
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
