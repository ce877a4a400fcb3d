package throttle_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
)

// naming is a provider whose responses name a limit.
type naming struct {
	limit, sent int64
	refused     int
}

func (n *naming) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(50 * time.Millisecond)
	n.sent++
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	if n.sent > n.limit {
		resp.StatusCode, n.refused = 429, n.refused+1
	}
	resp.Header.Set("X-RateLimit-Limit", fmt.Sprint(n.limit))
	resp.Header.Set("X-RateLimit-Remaining", fmt.Sprint(max(0, n.limit-n.sent)))
	return resp, nil
}

var namesLimit = &answers.Profile{Quotas: []answers.Quota{{
	Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
}}}

// A tier that follows takes over a higher limit after two responses and a lower one after one.
func TestFollowTakesOverNamedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := throttle.Tier{Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Most: 15000}}
		l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{tier}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		api := &naming{limit: 15000}
		client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: api, Profile: namesLimit}}
		get := func() {
			resp, err := client.Get("http://api.test/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		limit := func() int64 {
			s, err := l.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Tiers[0].Limit
		}
		for i, want := range []int64{5000, 15000, 15000} {
			if get(); limit() != want {
				t.Errorf("after %d responses the limit is %d, want %d", i+1, limit(), want)
			}
		}
		api.limit = 1000
		if get(); limit() != 1000 {
			t.Errorf("the limit is %d, want 1000", limit())
		}
		if s, _ := l.Status(t.Context()); !strings.Contains(s.String(), "4 of") {
			t.Error(s)
		}
	})
}

// A response that names a limit without a window is about the tier of its unit that follows, if one does, also
// in a quota around the request's own.
func TestFollowFindsTheTierThatFollows(t *testing.T) {
	follows := throttle.Tier{Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Most: 15000}}
	for _, c := range []struct {
		name         string
		inner, outer []throttle.Tier
		want         []int64
	}{
		{"one of two", []throttle.Tier{throttle.PerMinute(900), follows}, nil, []int64{900, 6000}},
		{"around", []throttle.Tier{throttle.PerMinute(900)}, []throttle.Tier{follows}, []int64{900, 6000}},
		{"two that follow", []throttle.Tier{follows, {Limit: 100_000, Window: 24 * time.Hour, Follow: throttle.Follow{Most: 1_000_000}}}, nil, []int64{5000, 100_000}},
		{"another with this limit", []throttle.Tier{{Limit: 6000, Window: 24 * time.Hour}, follows}, nil, []int64{6000, 5000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.New(throttle.Policy{Name: "inner", Tiers: c.inner}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if c.outer != nil {
					outer, err := throttle.New(throttle.Policy{Name: "outer", Tiers: c.outer}, nil)
					if err != nil {
						t.Fatal(err)
					}
					l = l.Within(outer)
				}
				client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: &naming{limit: 6000}, Profile: namesLimit}}
				for range 2 {
					resp, err := client.Get("http://api.test/")
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
				}
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var got []int64
				for _, tier := range s.Tiers {
					got = append(got, tier.Limit)
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("the limits are %d, want %d", got, c.want)
				}
			})
		})
	}
}

// saying is a provider whose responses have the same headers.
type saying struct{ limit, left, reset string }

func (s *saying) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: 200, Header: make(http.Header), Body: http.NoBody, Request: req}
	resp.Header.Set("X-RateLimit-Limit", s.limit)
	resp.Header.Set("X-RateLimit-Remaining", s.left)
	resp.Header.Set("X-RateLimit-Reset", s.reset)
	return resp, nil
}

// What is left counts in the limit that the tier takes over, and not in one that its bounds exclude. The
// response that changes the limit counts, too.
func TestFollowCountsWhatIsLeft(t *testing.T) {
	profile := &answers.Profile{Quotas: []answers.Quota{{
		Limit: answers.Field{Header: "X-RateLimit-Limit"}, Remaining: answers.Field{Header: "X-RateLimit-Remaining"},
		Reset: answers.Field{Header: "X-RateLimit-Reset", Format: answers.Seconds},
	}}}
	for _, c := range []struct {
		name        string
		says        saying
		limit, used int64
	}{
		{"above the most", saying{"1000000", "999000", "60"}, 1500, 2},
		{"below the least", saying{"10", "3", "60"}, 500, 497},
		{"lower", saying{"700", "100", "60"}, 700, 600},
		{"nothing left", saying{"700", "0", "60"}, 700, 700},
		{"higher", saying{"1200", "200", "60"}, 1200, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier := throttle.Tier{Limit: 1000, Window: time.Minute, Follow: throttle.Follow{Least: 500, Most: 1500}}
				l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{tier}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: &c.says, Profile: profile}}
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // the second may have to wait
					req, _ := http.NewRequestWithContext(ctx, "GET", "http://api.test/", nil)
					if resp, err := client.Do(req); err == nil {
						resp.Body.Close()
					}
					cancel()
				}
				s, err := l.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				// The second response reports what the first did, and may be to a request on top of it.
				if got := s.Tiers[0]; got.Limit != c.limit || got.Used < c.used || got.Used > c.used+1 {
					t.Errorf("%d of %d are used, want %d or one more of %d", got.Used, got.Limit, c.used, c.limit)
				}
			})
		})
	}
}
