package providers_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
	"github.com/apithrottle/throttle/throttletest"
)

// clickUp returns a function that makes a request with a token.
func clickUp(t *testing.T, token string) func() *http.Request {
	t.Helper()
	request := to(t, "GET", "https://api.clickup.com/api/v2/team")
	return func() *http.Request {
		req := request()
		req.Header.Set("Authorization", token)
		return req
	}
}

func TestClickUp(t *testing.T) {
	free := func() providers.Provider { return providers.ClickUp(100) }
	checkAtOnce(t, free, []atOnceTest{
		{"a token", 100, []func() *http.Request{clickUp(t, "pk_1")}},
		{"two tokens", 200, []func() *http.Request{clickUp(t, "pk_1"), clickUp(t, "Bearer 2")}},
	})
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // as in synctest
	header := func(left string) map[string]string {
		return map[string]string{"X-Ratelimit-Limit": "100", "X-Ratelimit-Remaining": left, "X-Ratelimit-Reset": fmt.Sprint(now.Add(40 * time.Second).Unix())}
	}
	const body = `{"err":"Rate limit reached","ECODE":"APP_002"}`
	checkRefusals(t, free, []refusalTest{
		{name: "a reset", first: clickUp(t, "pk_1"), reply: fakeapi.Reply{Status: 429, Header: header("0"), Body: body}, want: 40 * time.Second},
		{name: "no header", reply: fakeapi.Reply{Status: 429, Body: body}, want: time.Minute},
		{name: "another token", next: clickUp(t, "pk_2"), reply: fakeapi.Reply{Status: 429, Header: header("0"), Body: body}},
		{name: "none left", reply: fakeapi.Reply{Header: header("0")}, next: clickUp(t, "pk_1"), want: 41 * time.Second},
	})
	p := free().Profile
	if got := p.Read(answers.Response{Status: 429, Body: []byte(body), Got: now}); got.Reason != "APP_002" {
		t.Errorf("the reason is %q, want the ECODE", got.Reason)
	}
}

// A minute may begin at any time.
func TestClickUpRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.New(throttle.Tier{Limit: 100, Window: time.Minute, Algorithm: throttle.FixedWindow, Phase: 17 * time.Second})
		api.Delay = func() time.Duration { return rand.N(50 * time.Millisecond) }
		request := clickUp(t, "pk_1")
		saturate(t, over(t, providers.ClickUp(100), api), 64, 10*time.Minute-time.Second, func(int) *http.Request { return request() })
		if s := api.Summary(); s.Refused > 0 || s.Accepted < 950 {
			t.Errorf("%d refused and %d accepted, want 1,000", s.Refused, s.Accepted)
		}
	})
}

func TestClickUpFollows(t *testing.T) {
	for named, want := range map[string]int64{"1000": 1_000, "10000": 10_000, "20000": 10_000, "60": 60} {
		synctest.Test(t, func(t *testing.T) {
			transport, err := providers.ClickUp(100).Transport(nil)
			if err != nil {
				t.Fatal(err)
			}
			transport.Base = &plan{[]string{"X-Ratelimit-Limit: " + named, "X-Ratelimit-Remaining: 50"}}
			for range 2 {
				send(t, transport, clickUp(t, "pk_1")().WithContext(t.Context()))
			}
			if got := limitsOf(t, transport.Route(clickUp(t, "pk_1")())); got[0] != want {
				t.Errorf("the limit is %d after %s was named, want %d", got, named, want)
			}
		})
	}
	if got := providers.ClickUp(12_000).Scope("token").Policy.Tiers[0]; got.Limit != 12_000 || got.Follow.Most != 12_000 {
		t.Errorf("a larger limit is %+v", got)
	}
}
