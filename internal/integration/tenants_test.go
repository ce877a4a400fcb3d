package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
	"github.com/apithrottle/throttle/internal/redismem"
	"github.com/apithrottle/throttle/throttletest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Tenants wait for their own quotas. While one waits, the shared quota serves the others. The
// provider counts all requests and refuses none.
func TestTenants(t *testing.T) {
	own, shared := throttle.PerSecond(2), throttle.PerSecond(5)
	t.Run("local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { testTenants(t, own, shared, nil, 17) })
	})
	t.Run("fleet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			server := redismem.New()
			t.Cleanup(server.Close)
			testTenants(t, own, shared, distributed.New(nearClient(t, server), distributed.Options{}), 17)
		})
	})
}

// nearClient returns a client of a server in the same bubble, with a delay of half a millisecond.
func nearClient(t *testing.T, server *miniredis.Miniredis) *redis.Client {
	rdb := redismem.Dial(server, func() time.Duration { return 500 * time.Microsecond })
	t.Cleanup(func() {
		time.Sleep(6 * time.Second) // a listener stays for five
		rdb.Close()
	})
	return rdb
}

func testTenants(t *testing.T, own, shared throttle.Tier, s throttle.Store, minAccepted int64) {
	api := throttletest.New(shared)
	tenants := make(map[string]*throttletest.Provider)
	ip := mustNew(t, throttle.Policy{Name: "ip", Tiers: []throttle.Tier{shared}}, s)
	g, err := throttle.NewGroup(throttle.Policy{Name: "tenant", Tiers: []throttle.Tier{own}}, s, throttle.GroupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		tenants[fmt.Sprint("tenant", i)] = throttletest.New(own)
	}
	client := &http.Client{Transport: &throttle.Transport{
		Route: func(r *http.Request) *throttle.Limiter { return g.Within(r.URL.Hostname(), ip) },
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			if resp, err := tenants[r.URL.Hostname()].RoundTrip(r); err != nil || resp.StatusCode != 200 {
				return resp, err
			}
			return api.RoundTrip(r)
		}),
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i, callers := range []int{20, 1, 1, 1} { // the first tenant is greedy
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					req, _ := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://tenant%d/", i), nil)
					resp, err := client.Do(req)
					if err != nil {
						return // it would be late
					}
					resp.Body.Close()
				}
			})
		}
	}
	wg.Wait()
	if api.Summary().Refused > 0 || api.Summary().Accepted < minAccepted {
		t.Errorf("the shared quota: %+v", api.Summary())
	}
	for name, p := range tenants {
		s := p.Summary()
		t.Logf("%s: %d", name, s.Accepted)
		if s.Refused > 0 || s.Accepted < minAccepted/8 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
