package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

const xPosts = "https://api.x.com/2/users/%d/tweets"

// xServer has a limit for each endpoint, in windows of 15 minutes that open with a request.
type xServer struct {
	limit, refused int
	used           map[string]int
	ends           map[string]time.Time
}

func (s *xServer) RoundTrip(req *http.Request) (*http.Response, error) {
	key := req.Header.Get("Endpoint")
	if now := time.Now(); !now.Before(s.ends[key]) {
		s.used[key], s.ends[key] = 0, now.Add(15*time.Minute).Truncate(time.Second)
	}
	s.used[key]++
	resp, _ := accepting{}.RoundTrip(req)
	if s.used[key] > s.limit {
		s.refused++
		resp.StatusCode = http.StatusTooManyRequests
	}
	resp.Header = make(http.Header)
	for name, value := range map[string]any{
		"Date": time.Now().UTC().Format(http.TimeFormat), "x-rate-limit-limit": s.limit, "x-rate-limit-remaining": max(0, s.limit-s.used[key]), "x-rate-limit-reset": s.ends[key].Unix(),
	} {
		resp.Header.Set(name, fmt.Sprint(value))
	}
	return resp, nil
}

// Limits are learned from responses, each endpoint's for itself, and never exceeded again.
func TestX(t *testing.T) {
	for _, limit := range []int{1, 75, 900} {
		synctest.Test(t, func(t *testing.T) {
			server := &xServer{limit: limit, used: map[string]int{}, ends: map[string]time.Time{}}
			rt := over(t, providers.X(), server)
			start := time.Now()
			for i := range 3*limit + 1 {
				req := get(t, fmt.Sprintf(xPosts, i))
				req.Header.Set("Endpoint", "posts")
				send(t, rt, req)
			}
			if took := time.Since(start); server.refused > 0 || took < 45*time.Minute || took > 45*time.Minute+10*time.Second {
				t.Errorf("a limit of %d: %d refused, three windows took %v", limit, server.refused, took)
			}
			req := get(t, "https://api.x.com/2/users/me")
			req.Header.Set("Endpoint", "me")
			if _, _, took := send(t, rt, req); took > 0 {
				t.Errorf("another endpoint waited %v", took)
			}
		})
	}
}

func TestXRefusals(t *testing.T) {
	const now = 946684800 // the bubble's clock starts at 2000-01-01
	window := func(more map[string]string) map[string]string {
		h := map[string]string{"x-rate-limit-limit": "900", "x-rate-limit-remaining": "0", "x-rate-limit-reset": fmt.Sprint(now + 480)}
		for name, value := range more {
			h[name] = value
		}
		return h
	}
	day := map[string]string{
		"x-rate-limit-remaining": "90", "x-user-limit-24hour-limit": "25", "x-user-limit-24hour-remaining": "0", "x-user-limit-24hour-reset": fmt.Sprint(now + 86400),
	}
	p := func() providers.Provider {
		p := providers.X()
		p.Scope("endpoint").Policy.MaxPause = 25 * time.Hour
		return p
	}
	posts, other, post := to(t, "GET", fmt.Sprintf(xPosts, 1)), to(t, "GET", fmt.Sprintf(xPosts, 2)), to(t, "POST", "https://api.x.com/2/tweets", "{}")
	checkRefusals(t, p, []refusalTest{
		{name: "15 minutes", reply: fakeapi.Reply{Status: 429, Header: window(nil), Body: `{"title":"Too Many Requests"}`}, first: posts, next: other, want: 8 * time.Minute},
		{name: "another endpoint goes on", reply: fakeapi.Reply{Status: 429, Header: window(nil)}, first: posts, next: post},
		{name: "user's day", reply: fakeapi.Reply{Status: 429, Header: window(day)}, first: post, want: 24 * time.Hour},
		{name: "no headers", reply: fakeapi.Reply{Status: 429}, want: backoff},
		{name: "a stream is taken", reply: fakeapi.Reply{Status: 429, Body: `{"connection_issue":"TooManyConnections"}`}, want: backoff},
		{name: "monthly cap", reply: fakeapi.Reply{Status: 429, Body: `{"title":"UsageCapExceeded"}`}},
		{name: "credits are spent", reply: fakeapi.Reply{Status: 402, Body: `{"title":"Payment Required"}`}},
	})
	checkRefusals(t, providers.X, []refusalTest{
		{name: "a day closes the endpoint", reply: fakeapi.Reply{Status: 429, Header: window(day)}, first: post, want: closed},
	})
}

func ExampleX() {
	client, err := providers.X().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.x.com/2/users/1/tweets")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
