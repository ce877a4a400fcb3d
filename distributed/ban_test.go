package distributed_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/distributed"
)

// banning is an API that closes the quota for an hour.
type banning struct{}

func (banning) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"3600"}}, Body: http.NoBody, Request: r}, nil
}

// A caller whose deadline comes before the end of a ban receives the ban. As long as a reply has just
// reported it, that takes no call, and so no time in an outage either.
func TestBanBeforeItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, s *miniredis.Miniredis) {
		reply := breakable(s)
		l := limiter(t, throttle.Policy{Name: "banned", MaxPause: sec, Tiers: tenASecond.Tiers, Guard: 50 * ms}, distributed.New(near(t, s), distributed.Options{}))
		resp, err := (&http.Client{Transport: &throttle.Transport{Limiter: l, Base: banning{}}}).Get("http://example.com")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		refused := func(what string, most time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 5*sec)
			defer cancel()
			start := time.Now()
			if err := l.Wait(ctx); !errors.Is(err, throttle.ErrBanned) || time.Since(start) > most {
				t.Errorf("%s: %v after %v, want ErrBanned within %v", what, err, time.Since(start), most)
			}
		}
		refused("at once", 0)
		reply(loading)
		refused("in an outage", 0)
		reply("")
		time.Sleep(time.Minute)
		refused("a minute later", 10*ms)
		time.Sleep(hour)
		if err := l.Wait(t.Context()); err != nil {
			t.Errorf("after the ban: %v", err)
		}
	})
}
