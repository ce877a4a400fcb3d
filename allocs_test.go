package throttle_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apithrottle/throttle"
)

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
