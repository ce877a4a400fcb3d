package throttle_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
)

// TestProbeOfNestedNoGuard checks that only one request is sent as a probe after a refusal, also if
// its outer quota has no guard.
func TestProbeOfNestedNoGuard(t *testing.T) {
	for name, guard := range map[string]time.Duration{"NoGuard": throttle.NoGuard, "guard": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer := exact(throttle.PerHour(100))
				outer.Guard = guard
				l, o := within(t, api(throttle.PerHour(100)), outer)
				var sent []time.Time
				var mu sync.Mutex
				base := func(req *http.Request) (*http.Response, error) {
					mu.Lock()
					n := len(sent)
					sent = append(sent, time.Now())
					mu.Unlock()
					resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
					if n == 0 {
						resp.StatusCode = 429
						resp.Header.Set("Retry-After", "10")
					} else {
						time.Sleep(5 * time.Second)
					}
					return resp, nil
				}
				first := &throttle.Transport{Base: roundTripper(base), Limiter: o}
				tr := &throttle.Transport{Base: roundTripper(base), Limiter: l}
				get := func(tr *throttle.Transport) {
					req, _ := http.NewRequest("GET", "http://x.example/", nil)
					if resp, err := tr.RoundTrip(req); err != nil {
						t.Error(err)
					} else {
						resp.Body.Close()
					}
				}
				get(first)
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() { get(tr) })
				}
				wg.Wait()
				if d := sent[2].Sub(sent[1]); d != 5*time.Second {
					t.Errorf("the second request was sent %v after the probe, want 5s", d)
				}
			})
		})
	}
}

// TestProbeByNestedWait checks that a nested Wait that probes the outer quota does not block it,
// although its response is not reported.
func TestProbeByNestedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, o := within(t, api(throttle.PerHour(100)), api(throttle.PerHour(100)))
		tr := &throttle.Transport{Limiter: o, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"10"}}, Body: http.NoBody, Request: req}, nil
		})}
		req, _ := http.NewRequest("GET", "http://x.example/", nil)
		if resp, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		} else {
			resp.Body.Close()
		}
		began := time.Now()
		for range 10 {
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d > 12*time.Second {
			t.Errorf("10 calls waited for %v in all, want at most 12s", d)
		}
	})
}

// TestWithinRefundsNoGuard checks that the charge of an outer quota is refunded if the inner one is
// used up during the wait, also without a guard and after a wait for the outer quota.
func TestWithinRefundsNoGuard(t *testing.T) {
	for name, guard := range map[string]time.Duration{"NoGuard": throttle.NoGuard, "guard": time.Second} {
		for _, depth := range []int{2, 3} {
			t.Run(name+map[int]string{2: "", 3: ", three"}[depth], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner := mustNew(t, api(throttle.PerHour(1)), nil)
					mid := mustNew(t, throttle.Policy{Name: "mid", Tiers: []throttle.Tier{throttle.PerDay(100)}, Guard: guard}, nil)
					outer := mustNew(t, throttle.Policy{Name: "outer", Tiers: []throttle.Tier{throttle.PerDay(100)}, Guard: guard}, nil)
					l := inner.Within(outer)
					if depth == 3 {
						l = inner.Within(mid.Within(outer))
					}
					outer.Pause(t.Context(), time.Minute)
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					var wg sync.WaitGroup
					wg.Go(func() {
						if err := l.Wait(ctx); err == nil {
							t.Error("the nested request was admitted")
						}
					})
					time.Sleep(30 * time.Second)
					if !inner.Allow() {
						t.Error("the inner quota refused")
					}
					wg.Wait()
					if got := used(t, outer); got[0] != 0 {
						t.Errorf("outer: %v used, want 0", got)
					}
					if got := used(t, mid); got[0] != 0 {
						t.Errorf("mid: %v used, want 0", got)
					}
				})
			})
		}
	}
}
