package kept_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// A naming provider refuses what is above its limit, and each response names the limit.
type naming struct {
	mu          sync.Mutex
	limit, used int64
	// sent and refused are when requests came.
	sent, refused []time.Time
}

func (n *naming) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(25 * time.Millisecond)
	n.mu.Lock()
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	if n.sent = append(n.sent, time.Now()); n.used >= n.limit {
		resp.StatusCode = 429
		n.refused = append(n.refused, time.Now())
	} else {
		n.used++
	}
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(n.limit))
	resp.Header.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, n.limit-n.used)))
	n.mu.Unlock()
	time.Sleep(25 * time.Millisecond)
	return resp, nil
}

func (n *naming) setLimit(limit int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limit = limit
}

var namesLimit = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
}}}

var follows = throttle.Policy{Name: "follows", Tiers: []throttle.Tier{{
	Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Least: 500, Most: 15000},
}}}

// run lets callers of a limiter send requests until the context ends.
func (n *naming) run(ctx context.Context, wg *sync.WaitGroup, l *throttle.Limiter, callers int) {
	client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: n, Profile: namesLimit}}
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
				if err != nil {
					panic(err)
				}
				if resp, err := client.Do(req); err == nil {
					resp.Body.Close()
				} else {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
}

func limitOf(t testing.TB, l *throttle.Limiter) int64 {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.Tiers[0].Limit
}

// One response that names a lower limit stops all processes of a fleet. Two that name a higher one let all of them go on.
func TestFleetFollowsNamedLimit(t *testing.T) {
	for name, test := range map[string]struct {
		fleet func(t testing.TB, ways ...time.Duration) *fleet
		known time.Duration
	}{"told": {newFleet, 500 * time.Millisecond}, "looks": {deafFleet, 700 * time.Millisecond}} {
		for _, used := range []time.Duration{500 * time.Millisecond, 4 * time.Second} { // below the lower limit, and above it
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
				f := test.fleet(t, 100*time.Microsecond, time.Millisecond, 5*time.Millisecond, 20*time.Millisecond)
				api := &naming{limit: 15000}
				all := f.limiters(t, follows)
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for _, l := range all {
					api.run(ctx, &wg, l, 8)
				}
				time.Sleep(used)
				for i, l := range all {
					if got := limitOf(t, l); got != 15000 {
						t.Errorf("%s: process %d has limit %d, want 15000", name, i, got)
					}
				}
				api.setLimit(1000)
				changed := time.Now().Add(25 * time.Millisecond) // of the first response
				time.Sleep(10 * time.Second)
				t.Logf("%s, %v: %d used, %d refused, last %v", name, used, api.used, len(api.refused), api.sent[len(api.sent)-1].Sub(changed))
				if n := count(api.refused, changed.Add(test.known+25*time.Millisecond), time.Now()); n > 0 {
					t.Errorf("%s: %d refused after the limit was named", name, n)
				}
				if api.used < 950 {
					t.Errorf("%s: %d of 1000 used", name, api.used)
				}
				for i, l := range all {
					if got := limitOf(t, l); got != 1000 {
						t.Errorf("%s: process %d has limit %d, want 1000", name, i, got)
					}
				}
				cancel()
				wg.Wait()
			})
		}
	}
}
