package throttle_test

import (
	"fmt"
	"net/http"
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

// The reading of the response that changes a limit counts.
func TestFollowKeepsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := throttle.Tier{Limit: 5000, Window: time.Hour, Algorithm: throttle.FixedWindow, Follow: throttle.Follow{Most: 15000}}
		l, err := throttle.New(throttle.Policy{Name: "api", Tiers: []throttle.Tier{tier}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &throttle.Transport{Limiter: l, Base: &naming{limit: 1000, sent: 998}, Profile: namesLimit}}
		resp, err := client.Get("http://api.test/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if !l.Allow() || l.Allow() {
			t.Error("got another number of requests than the one that is left")
		}
	})
}
