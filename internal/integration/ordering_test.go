package integration_test

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/httpmem"
	"github.com/apithrottle/throttle/retry"
)

// A signer adds a date to requests, as an SDK does.
type signer struct{ base http.RoundTripper }

func (s signer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Date", strconv.FormatInt(time.Now().UnixMilli(), 10))
	return s.base.RoundTrip(req)
}

// A verifier is an API that records the age of signatures on arrival, and refuses the first request
// for three seconds.
type verifier struct {
	mu   sync.Mutex // guards ages
	ages []time.Duration
}

func (v *verifier) RoundTrip(req *http.Request) (*http.Response, error) {
	millis, err := strconv.ParseInt(req.Header.Get("Date"), 10, 64)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ages = append(v.ages, time.Since(time.UnixMilli(millis))); len(v.ages) == 1 {
		return httpmem.Response(req, http.StatusTooManyRequests, http.Header{"Retry-After": {"3"}}, "", func() {}), nil
	}
	return httpmem.Response(req, http.StatusOK, http.Header{}, "", func() {}), nil
}

func (v *verifier) oldest() (d time.Duration) {
	for _, age := range v.ages {
		d = max(d, age)
	}
	return d
}

// A signer in the Base signs each attempt after its wait. A signature that is made around the
// Transport ages while the request waits.
func TestSignersGoInside(t *testing.T) {
	for _, test := range []struct {
		name   string
		wrap   func(throttled *throttle.Transport, api http.RoundTripper) http.RoundTripper
		oldest time.Duration // lower bound; if 0, exact
	}{
		{"inside", func(throttled *throttle.Transport, api http.RoundTripper) http.RoundTripper {
			throttled.Base = signer{api}
			return retry.NewClient(throttled).Transport
		}, 0},
		{"outside", func(throttled *throttle.Transport, api http.RoundTripper) http.RoundTripper {
			throttled.Base = api
			return signer{retry.NewClient(throttled).Transport}
		}, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := new(verifier)
				lim := mustNew(t, throttle.Policy{Name: "api", Tiers: []throttle.Tier{throttle.PerSecond(2)}, Guard: throttle.NoGuard}, nil)
				client := &http.Client{Transport: test.wrap(&throttle.Transport{Limiter: lim}, api)}
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						resp, err := client.Get("http://api.test/")
						if err != nil {
							t.Error(err)
							return
						}
						resp.Body.Close()
					})
				}
				wg.Wait()
				if len(api.ages) != 21 { // the first was refused and sent again
					t.Errorf("%d requests arrived, want 21", len(api.ages))
				}
				if oldest := api.oldest(); oldest < test.oldest || test.oldest == 0 && oldest > 0 {
					t.Errorf("the oldest signature was %v old on arrival", oldest)
				}
			})
		})
	}
}
