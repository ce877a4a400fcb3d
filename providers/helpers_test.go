package providers_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

// standIn returns a stand-in of an API, from its rule file, with other tiers: see fakeapi.New.
func standIn(name string, tiers ...string) *fakeapi.Server {
	return fakeapi.New("testdata", name, tiers...)
}

// over returns the provider's transport with a fake API as its Base.
func over(t *testing.T, p providers.Provider, api http.RoundTripper) http.RoundTripper {
	t.Helper()
	transport, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport.Base = api
	return transport
}

// accepting is a server that accepts every request at once.
type accepting struct{}

func (accepting) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

// scripted is a server that accepts every request at once, with a header, except those that it is
// told to refuse.
type scripted struct {
	header http.Header
	next   []fixture
	sent   []*http.Request
}

// refuse makes the server answer its next request with a status and a body of JSON.
func (s *scripted) refuse(status int, body string) {
	s.next = append(s.next, fixture{Status: status, Body: body})
}

func (s *scripted) RoundTrip(req *http.Request) (*http.Response, error) {
	s.sent = append(s.sent, req)
	resp := &http.Response{StatusCode: http.StatusOK, Header: s.header.Clone(), Body: http.NoBody, Request: req}
	if resp.Header == nil {
		resp.Header = make(http.Header)
	}
	if len(s.next) > 0 {
		f := s.next[0]
		s.next = s.next[1:]
		r := f.Answer(time.Now())
		r.Header.Set("Content-Type", "application/json")
		resp.StatusCode, resp.Header, resp.Body = r.Status, r.Header, io.NopCloser(bytes.NewReader(r.Body))
	}
	return resp, nil
}

// atOnce returns how many requests the provider's transport sends, up to most, before one waits.
func atOnce(t *testing.T, p providers.Provider, most int, next func() *http.Request) int {
	t.Helper()
	rt := over(t, p, accepting{})
	for n := range most {
		if _, _, took := send(t, rt, next()); took > 0 {
			return n
		}
	}
	return most
}

// get returns a request without a body.
func get(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// send sends a request. It returns the response and the time until its end.
func send(t *testing.T, rt http.RoundTripper, req *http.Request) (status int, body string, took time.Duration) {
	t.Helper()
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), time.Since(start)
}

// long returns the duration of a load: d in "make test", and more in "make soak".
func long(d time.Duration) time.Duration { return d * time.Duration(soak.Times(1)) }

// scaled returns n in "make soak", and a fraction of it in "make test". A load whose limits, workers
// and costs are all scaled keeps its shape.
func scaled(n, fraction int64) int64 {
	if soak.Times(1) > 1 {
		return n
	}
	return n / fraction
}

// saturate sends requests from next for the duration d. Each worker sends its next request after
// the response to the one before. Requests that can't be admitted within d are not sent.
func saturate(t *testing.T, rt http.RoundTripper, workers int, d time.Duration, next func(worker int) *http.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				resp, err := rt.RoundTrip(next(w).WithContext(ctx))
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
}

// checkServed fails if the API refused a request, or served fewer than least.
func checkServed(t *testing.T, api *fakeapi.Server, least float64) {
	t.Helper()
	if refused := api.Refused(); len(refused) > 0 {
		t.Errorf("refused %v", refused)
	}
	served := api.Served()
	if t.Logf("%d served", served); float64(served) < least {
		t.Errorf("%d served, want at least %.0f", served, least)
	}
}

// serve makes a fake API answer a client's requests.
func serve(client *http.Client, api *fakeapi.Server) {
	client.Transport.(*throttle.Transport).Base = api
}
