// Package httpmem provides HTTP responses and delays without a network, for providers in tests.
package httpmem

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Response returns a response to a request. It calls release, possibly more than once, when the
// body has been read to its end or closed.
func Response(r *http.Request, status int, header http.Header, text string, release func()) *http.Response {
	return &http.Response{
		Status:        fmt.Sprintf("%d %s", status, http.StatusText(status)),
		StatusCode:    status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        header,
		Body:          &body{strings.NewReader(text), release},
		ContentLength: int64(len(text)),
		Request:       r,
	}
}

type body struct {
	io.Reader
	release func()
}

func (b *body) Read(buf []byte) (int, error) {
	n, err := b.Reader.Read(buf)
	if err != nil {
		b.release()
	}
	return n, err
}

func (b *body) Close() error {
	b.release()
	return nil
}

// Sleep blocks for the duration that draw returns, or until the context ends. If draw is nil, Sleep
// returns at once.
func Sleep(ctx context.Context, draw func() time.Duration) error {
	if draw == nil {
		return ctx.Err()
	}
	timer := time.NewTimer(draw())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
