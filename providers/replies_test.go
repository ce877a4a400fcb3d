package providers_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// replying is a server that gives each request the same reply.
type replying fakeapi.Reply

func (r *replying) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: max(r.Status, 100), Header: http.Header{"Content-Type": {"application/json"}}, Body: http.NoBody, Request: req}
	if r.Status == 0 {
		resp.StatusCode = http.StatusOK
	}
	for name, value := range r.Header {
		resp.Header.Set(name, value)
	}
	if r.Body != "" {
		resp.Body = io.NopCloser(strings.NewReader(r.Body))
	}
	return resp, nil
}

// A refusalTest is a reply to one request, and how long another then waits.
type refusalTest struct {
	name        string
	first, next func() *http.Request // if nil, as in the test before, and as first
	reply       fakeapi.Reply
	want        time.Duration // or backoff, or closed
}

const (
	backoff time.Duration = -1 // the wait after a refusal that names none: one to two seconds
	closed  time.Duration = -2 // no wait, but throttle.ErrBanned
)

// checkRefusals runs the tests, each with a new transport.
func checkRefusals(t *testing.T, p func() providers.Provider, tests []refusalTest) {
	t.Helper()
	for i := range tests {
		test := &tests[i]
		if test.first == nil {
			test.first = tests[i-1].first
		}
		if test.next == nil {
			test.next = test.first
		}
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := replying(test.reply)
				rt := over(t, p(), &server)
				send(t, rt, test.first().WithContext(t.Context()))
				server = replying{}
				start := time.Now()
				resp, err := rt.RoundTrip(test.next().WithContext(t.Context()))
				took := time.Since(start)
				if err == nil {
					resp.Body.Close()
				}
				least, most := test.want-time.Millisecond, test.want+time.Second // where the wait is rounded, or spread
				if test.want == 0 {
					most = 0
				}
				switch test.want {
				case closed:
					if !errors.Is(err, throttle.ErrBanned) {
						t.Errorf("%v after %v, want ErrBanned", err, took)
					}
					return
				case backoff:
					least, most = time.Second, 2*time.Second
				}
				if err != nil || took < least || took > most {
					t.Errorf("%v after %v, want %v to %v", err, took, least, most)
				}
			})
		})
	}
}

// to returns a function that makes a request: a method and an address, and perhaps a JSON body.
func to(t *testing.T, method, url string, body ...string) func() *http.Request {
	t.Helper()
	return func() *http.Request {
		req := postJSON(t, url, strings.Join(body, ""))
		if req.Method = method; len(body) == 0 {
			req.Body, req.GetBody, req.ContentLength = nil, nil, 0
			req.Header.Del("Content-Type")
		}
		return req
	}
}

// An atOnceTest is how many of some requests go at once. The functions take turns.
type atOnceTest struct {
	name     string
	want     int
	requests []func() *http.Request
}

// checkAtOnce runs the tests, each with a new transport. A want of 2,500 is no limit.
func checkAtOnce(t *testing.T, p func() providers.Provider, tests []atOnceTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			checkBurst(t, p, test.name, test.want, alternate(test.requests...))
		})
	}
}

// checkBurst checks how many requests the preset sends at once. A want of 2,500 is no limit. Under -short,
// more than 500 are not sent.
func checkBurst(t *testing.T, p func() providers.Provider, name string, want int, next func() *http.Request) {
	t.Helper()
	if testing.Short() && want > 500 {
		return
	}
	synctest.Test(t, func(t *testing.T) {
		most := want + 1
		if want == 2_500 {
			most = want
		}
		if n := atOnce(t, p(), most, func() *http.Request { return next().WithContext(t.Context()) }); n != want {
			t.Errorf("%s: %d at once, want %d", name, n, want)
		}
	})
}

// alternate returns a function that makes the requests in turn.
func alternate(requests ...func() *http.Request) func() *http.Request {
	n := -1
	return func() *http.Request {
		n++
		return requests[n%len(requests)]()
	}
}

// checkUnlimited checks that the preset limits none of the requests.
func checkUnlimited(t *testing.T, p func() providers.Provider, name string, next func() *http.Request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, p(), 100, func() *http.Request { return next().WithContext(t.Context()) }); n != 100 {
			t.Errorf("%s: %d at once, want any number", name, n)
		}
	})
}

// atATime returns how many of n requests the preset has in flight, if none is answered.
func atATime(t *testing.T, p providers.Provider, n int, next func() *http.Request) int {
	t.Helper()
	held := &holding{until: make(chan struct{})}
	defer close(held.until)
	rt := over(t, p, held)
	for range n {
		req := next().WithContext(t.Context())
		go func() {
			if resp, err := rt.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}()
	}
	synctest.Wait()
	return int(held.sent.Load())
}

// holding is a server that answers requests only after until is closed.
type holding struct {
	sent  atomic.Int64
	until chan struct{}
}

func (h *holding) RoundTrip(req *http.Request) (*http.Response, error) {
	h.sent.Add(1)
	<-h.until
	return accepting{}.RoundTrip(req)
}
