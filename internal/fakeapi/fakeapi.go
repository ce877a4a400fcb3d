// Package fakeapi has strict stand-ins for well-known APIs, to test against: each counts,
// refuses and tells as its provider's documentation says, with the same headers, statuses
// and bodies.
//
// A [Server] is an http.Handler, to be served by net/http/httptest, and an
// http.RoundTripper, for runs of hours inside testing/synctest. Somebody else who uses
// the same quota is a request that is sent to it without a limiter.
package fakeapi

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/apithrottle/throttle/internal/httpmem"
)

// A Server is an API. It is made by the functions of this package that have a provider's
// name; set its fields before the first request. It is safe for concurrent use.
type Server struct {
	Latency func() time.Duration // how late a request reaches the counter; called concurrently. If nil, at once
	Hold    func() time.Duration // from counting to answering; called concurrently. If nil, none
	Skew    time.Duration        // how far its clock is ahead of ours

	mu      sync.Mutex // guards what follows, and what decide counts with
	decide  func(*Call) Reply
	traps   []Reply
	served  int
	refused map[string]int
}

var (
	_ http.Handler      = (*Server)(nil)
	_ http.RoundTripper = (*Server)(nil)
)

// A Call is a request as the API sees it.
type Call struct {
	*http.Request
	Body []byte    // all of it
	Now  time.Time // by the API's clock
}

// A Reply is what a Call is answered.
type Reply struct {
	Status  int // If zero, 200
	Header  map[string]string
	Body    string
	Refused string // by which limit. If empty, it was served
	Release func() // called once at the response's end, under the Server's lock. If nil, nothing
}

func newServer(decide func(*Call) Reply) *Server {
	return &Server{decide: decide, refused: map[string]int{}}
}

// Trap has the next call answered so, whatever is left of the limits. It is not counted
// among the Refused.
func (s *Server) Trap(r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traps = append(s.traps, r)
}

// Served is how many calls were served.
func (s *Server) Served() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// Refused is how many calls were refused, by limit.
func (s *Server) Refused() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.refused)
}

// ServeHTTP answers r. What the call holds is released before the first byte of the
// answer leaves, so that whoever has the answer may send the next.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reply, release, err := s.serve(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	release()
	maps.Copy(w.Header(), reply.header())
	w.WriteHeader(reply.Status)
	io.WriteString(w, reply.Body)
}

// RoundTrip answers r in memory, whatever its host. What the call holds is released at
// the end of the response's body.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, release, err := s.serve(r)
	if err != nil {
		return nil, err
	}
	return httpmem.Response(r, reply.Status, reply.header(), reply.Body, release), nil
}

func (r Reply) header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for k, v := range r.Header {
		h.Set(k, v)
	}
	return h
}

// serve takes a request from its receipt to its answer.
func (s *Server) serve(r *http.Request) (reply Reply, release func(), err error) {
	call := &Call{Request: r}
	if r.Body != nil {
		defer r.Body.Close()
		if call.Body, err = io.ReadAll(r.Body); err != nil {
			return reply, nil, err
		}
		call.Request = r.WithContext(r.Context()) // r is the caller's
		call.Request.Body = io.NopCloser(bytes.NewReader(call.Body))
	}
	if err := httpmem.Sleep(r.Context(), s.Latency); err != nil {
		return reply, nil, err // it was never counted
	}
	reply = s.count(call)
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if reply.Release != nil {
			reply.Release()
		}
	})
	if err := httpmem.Sleep(r.Context(), s.Hold); err != nil {
		release()
		return reply, nil, err
	}
	return reply, release, nil
}

// count is the one place that decides.
func (s *Server) count(c *Call) (r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Now = time.Now().Add(s.Skew)
	if len(s.traps) > 0 {
		r, s.traps = s.traps[0], s.traps[1:]
	} else if r = s.decide(c); r.Refused != "" {
		s.refused[r.Refused]++
	} else {
		s.served++
	}
	r.Status = cmp.Or(r.Status, http.StatusOK)
	r.Header = maps.Clone(r.Header)
	if r.Header == nil {
		r.Header = map[string]string{}
	}
	r.Header["Date"] = c.Now.UTC().Format(http.TimeFormat)
	return r
}

// Between draws lengths of time from low to high.
func Between(low, high time.Duration) func() time.Duration {
	return func() time.Duration { return low + rand.N(high-low+1) }
}

// seconds is d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// A bucket holds size tokens and gains limit in each window, continuously. It starts
// full; unlike a throttletest.Counter's its tokens may be given back, and seen.
type bucket struct {
	limit, size int64
	window      time.Duration

	left int64 // of size, in tokens by microseconds of the window
	at   int64 // when that was, in microseconds since 1970; 0 if never
}

func (b *bucket) fill(now time.Time) {
	t, full := now.UnixMicro(), b.size*b.window.Microseconds()
	if b.at == 0 || t-b.at >= full/b.limit {
		b.left = full
	} else {
		b.left = min(full, b.left+(t-b.at)*b.limit)
	}
	b.at = t
}

// tokens is how many whole tokens are left.
func (b *bucket) tokens(now time.Time) int64 {
	b.fill(now)
	return b.left / b.window.Microseconds()
}

// take takes n tokens, if so many are left; a negative n gives some back.
func (b *bucket) take(now time.Time, n int64) bool {
	if b.tokens(now) < n {
		return false
	}
	b.left = min(b.left-n*b.window.Microseconds(), b.size*b.window.Microseconds())
	return true
}

// wait is the time until n tokens are left, 0 if they are.
func (b *bucket) wait(now time.Time, n int64) time.Duration {
	b.fill(now)
	lacking := n*b.window.Microseconds() - b.left
	return time.Duration(max(0, (lacking+b.limit-1)/b.limit)) * time.Microsecond
}
