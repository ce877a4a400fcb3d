package providers_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// replying is a server that gives each request the same reply.
type replying fakeapi.Reply

func (r *replying) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: max(r.Status, 100), Header: make(http.Header), Body: http.NoBody, Request: req}
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

// A refusalTest is a reply to one request, and how long the next request then waits. A wait of -1
// is a closed quota. A wait with an error of up to a tenth or a second is that wait.
type refusalTest struct {
	name        string
	reply       fakeapi.Reply
	first, next func() *http.Request // if nil, as above
	want        time.Duration
}

// backoff is the wait after a refusal that names none: one to two seconds.
const backoff = 1500 * time.Millisecond

// refuse runs the tests, each with a new transport.
func refuse(t *testing.T, p func() providers.Provider, tests []refusalTest) {
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
				start, took := time.Now(), time.Duration(-1)
				resp, err := rt.RoundTrip(test.next().WithContext(t.Context()))
				if err == nil {
					resp.Body.Close()
					took = time.Since(start)
				}
				if slack := time.Second + test.want/10; took < test.want-slack/2 || took > test.want+slack || (test.want <= 0) != (took <= 0) {
					t.Errorf("the next request waited %v (%v), want %v", took, err, test.want)
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

// checkAtOnce checks how many requests the preset sends at once.
func checkAtOnce(t *testing.T, p func() providers.Provider, name string, want int, next func() *http.Request) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if n := atOnce(t, p(), want+1, func() *http.Request { return next().WithContext(t.Context()) }); n != want {
			t.Errorf("%s: %d at once, want %d", name, n, want)
		}
	})
}
