// Package fakeapi provides strict imitations of well-known APIs for tests. Each counts, refuses and
// reports as its provider's documentation specifies, with the same headers, statuses and bodies.
//
// A [Server] is an http.Handler, for net/http/httptest, and an http.RoundTripper, for runs of hours
// inside testing/synctest. To imitate another user of the same quota, send requests to the Server
// without a limiter.
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

// A Server is an API. Create it with the functions that have a provider's name, and set its fields
// before the first request. It is safe for concurrent use.
type Server struct {
	// Latency returns how long a request takes to reach the counter. It is called concurrently. If
	// nil, no time.
	Latency func() time.Duration
	// Hold returns the time between counting a request and answering it. It is called concurrently.
	// If nil, no time.
	Hold func() time.Duration
	// Skew is how far the API's clock is ahead of the local clock. If zero, they agree.
	Skew time.Duration

	// mu guards the fields below and the counters of decide.
	mu      sync.Mutex
	decide  func(*Call) Reply
	traps   []Reply
	served  int
	refused map[string]int
}

var (
	_ http.Handler      = (*Server)(nil)
	_ http.RoundTripper = (*Server)(nil)
)

// A Call is a request that the API receives.
type Call struct {
	*http.Request
	Body []byte    // the whole body
	Now  time.Time // by the API's clock
}

// A Reply is the API's answer to a Call.
type Reply struct {
	// Status is the HTTP status. If zero, 200.
	Status int
	Header map[string]string
	Body   string
	// Refused is the limit that refused the call. If empty, the call was served.
	Refused string
	// Release is called once at the end of the response, with the Server's lock held. If nil,
	// nothing is called.
	Release func()
}

func newServer(decide func(*Call) Reply) *Server {
	return &Server{decide: decide, refused: map[string]int{}}
}

// Trap makes r the answer to the next call, regardless of the limits. That call does not count as
// Refused.
func (s *Server) Trap(r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traps = append(s.traps, r)
}

// Served returns the number of served calls.
func (s *Server) Served() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// Refused returns the number of refused calls, by limit.
func (s *Server) Refused() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.refused)
}

// ServeHTTP answers r. It releases what the call holds before it sends the first byte of the
// answer. A client that has the answer may therefore send its next request.
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

// RoundTrip answers r in memory, regardless of its host. It releases what the call holds at the end
// of the response's body.
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

// serve processes a request from its receipt to its answer.
func (s *Server) serve(r *http.Request) (reply Reply, release func(), err error) {
	call := &Call{Request: r}
	if r.Body != nil {
		defer r.Body.Close()
		if call.Body, err = io.ReadAll(r.Body); err != nil {
			return reply, nil, err
		}
		call.Request = r.WithContext(r.Context()) // r belongs to the caller
		call.Request.Body = io.NopCloser(bytes.NewReader(call.Body))
	}
	if err := httpmem.Sleep(r.Context(), s.Latency); err != nil {
		return reply, nil, err // the call was not counted
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

// count counts a call and returns its reply.
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

// Between draws durations from low to high.
func Between(low, high time.Duration) func() time.Duration {
	return func() time.Duration { return low + rand.N(high-low+1) }
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// A bucket holds size tokens and gains limit tokens in each window, continuously. It starts full.
// Unlike in a throttletest.Counter, its tokens can be read and given back.
type bucket struct {
	limit, size int64
	window      time.Duration

	// left is the content, in tokens times microseconds of the window.
	left int64
	// at is the time of left, in microseconds since 1970. It is 0 before the first use.
	at int64
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

// tokens returns the number of whole tokens left.
func (b *bucket) tokens(now time.Time) int64 {
	b.fill(now)
	return b.left / b.window.Microseconds()
}

// take takes n tokens if there are enough. A negative n gives tokens back.
func (b *bucket) take(now time.Time, n int64) bool {
	if b.tokens(now) < n {
		return false
	}
	b.left = min(b.left-n*b.window.Microseconds(), b.size*b.window.Microseconds())
	return true
}

// spend takes n tokens, even if there are not enough.
func (b *bucket) spend(now time.Time, n int64) {
	b.fill(now)
	b.left -= n * b.window.Microseconds()
}

// wait returns the time until n tokens are left, 0 if they are.
func (b *bucket) wait(now time.Time, n int64) time.Duration {
	b.fill(now)
	lacking := n*b.window.Microseconds() - b.left
	return time.Duration(max(0, (lacking+b.limit-1)/b.limit)) * time.Microsecond
}
