package providers_test

import (
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

// over is the provider's transport, in front of its stand-in.
func over(t *testing.T, p providers.Provider, api *fakeapi.Server) http.RoundTripper {
	t.Helper()
	transport, err := p.Transport(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport.Base = api
	return transport
}

// get is a request without a body.
func get(t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// send sends a request and returns what was answered, and how long that took.
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

// long is how long a load lasts: d in "make test", and longer in "make soak".
func long(d time.Duration) time.Duration { return d * time.Duration(soak.Times(1)) }

// saturate sends what next makes from so many workers, each its next when the last was
// answered, for so long. Requests that can't be admitted within that time are not sent.
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

// unrefused fails if the stand-in refused anything, or served less than that.
func unrefused(t *testing.T, api *fakeapi.Server, least float64) {
	t.Helper()
	if refused := api.Refused(); len(refused) > 0 {
		t.Errorf("refused %v", refused)
	}
	served := api.Served()
	if t.Logf("%d served", served); float64(served) < least {
		t.Errorf("%d served, want %.0f", served, least)
	}
}

// serve has a client's requests answered by a stand-in.
func serve(client *http.Client, api *fakeapi.Server) {
	client.Transport.(*throttle.Transport).Base = api
}
