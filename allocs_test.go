package throttle_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apithrottle/throttle"
)

// TestWaitAllocs checks that a call without a shadow allocates nothing, with and without an Observer.
func TestWaitAllocs(t *testing.T) {
	for _, o := range []*throttle.Observer{nil, {}} {
		l := mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}, Observer: o}, nil)
		for name, call := range map[string]func(){
			"Wait": func() { _ = l.Wait(t.Context()) }, "WaitN": func() { _ = l.WaitN(t.Context(), 1) }, "Allow": func() { l.Allow() },
		} {
			want := 0.0
			if name == "WaitN" && o != nil {
				want = 1 // the observation
			}
			if n := testing.AllocsPerRun(100, call); n > want {
				t.Errorf("%s: %v allocations", name, n)
			}
		}
	}
}

// TestRoundTripAllocs checks that a request that learns nothing allocates nothing.
func TestRoundTripAllocs(t *testing.T) {
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}
	tr := &throttle.Transport{
		Limiter: mustNew(t, throttle.Policy{Tiers: []throttle.Tier{throttle.PerSecond(1_000_000)}}, nil),
		Base:    roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil }),
	}
	req := httptest.NewRequest("GET", trURL, nil)
	if n := testing.AllocsPerRun(100, func() { _, _ = tr.RoundTrip(req) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
