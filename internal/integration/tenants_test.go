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
	"github.com/apithrottle/throttle/throttletest"
)

func mustNew(t testing.TB, p throttle.Policy, s throttle.Store) *throttle.Limiter {
	t.Helper()
	l, err := throttle.New(p, s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Tenants wait for their own quotas, and while one does the shared one serves the others.
// The provider counts all of them and refuses nothing.
func TestTenants(t *testing.T) {
	own, shared := throttle.PerSecond(2), throttle.PerSecond(5)
	synctest.Test(t, func(t *testing.T) {
		stores := []throttle.Store{nil}
		for _, s := range stores {
			testTenants(t, own, shared, s, 0, 17)
		}
	})
}

func TestTenantsInAFleet(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	testTenants(t, throttle.PerSecond(2), throttle.PerSecond(5), distributed.New(rdb, distributed.Options{}), 500*time.Millisecond, 8) // a busy machine may be late
}

func testTenants(t *testing.T, own, shared throttle.Tier, s throttle.Store, guard time.Duration, least int64) {
	api := throttletest.New(shared)
	tenants := make(map[string]*throttletest.Provider)
	ip := mustNew(t, throttle.Policy{Name: "ip", Tiers: []throttle.Tier{shared}, Guard: guard}, s)
	g, err := throttle.NewGroup(throttle.Policy{Name: "tenant", Tiers: []throttle.Tier{own}, Guard: guard}, s)
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
						return // refused, because it would be too late
					}
					resp.Body.Close()
				}
			})
		}
	}
	wg.Wait()
	if api.Summary().Refused > 0 || api.Summary().Accepted < least {
		t.Errorf("the shared quota: %+v", api.Summary())
	}
	for name, p := range tenants {
		s := p.Summary()
		t.Logf("%s: %d", name, s.Accepted)
		if s.Refused > 0 || s.Accepted < least/8 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
