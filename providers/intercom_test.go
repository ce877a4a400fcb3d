package providers_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

// intercomBy returns a function that makes a request with a token.
func intercomBy(t *testing.T, host, token string) func() *http.Request {
	return func() *http.Request {
		req := get(t, "https://"+host+"/contacts")
		req.Header.Set("Authorization", "Bearer "+token)
		return req
	}
}

func TestIntercom(t *testing.T) {
	a, b, c := intercomBy(t, "api.intercom.io", "a"), intercomBy(t, "api.eu.intercom.io", "b"), intercomBy(t, "api.au.intercom.io", "c")
	checkAtOnce(t, providers.Intercom, []atOnceTest{
		{"an app", 1_666, []func() *http.Request{a}},
		{"three apps of a workspace", 4_166, []func() *http.Request{a, b, c}},
	})
	checkAtOnce(t, func() providers.Provider {
		p := providers.Intercom()
		p.Account = func(req *http.Request) string { return req.URL.Host }
		return p
	}, []atOnceTest{{"an app in three workspaces", 3 * 1_666, []func() *http.Request{a, b, c}}})
	// The beginning of time in synctest is a whole minute.
	at := strconv.Itoa(int(time.Date(2000, 1, 1, 0, 0, 7, 0, time.UTC).Unix()))
	limits := func(limit, remaining string) map[string]string {
		return map[string]string{"X-RateLimit-Limit": limit, "X-RateLimit-Remaining": remaining, "X-RateLimit-Reset": at}
	}
	const body = `{"type":"error.list","request_id":"b2i3","errors":[{"code":"rate_limit_exceeded","message":"Exceeded rate limit of 83 in 10_seconds"}]}`
	checkRefusals(t, providers.Intercom, []refusalTest{
		{name: "a refusal", first: a, reply: fakeapi.Reply{Status: 429, Header: limits("83", "0"), Body: body}, want: 7 * time.Second},
		{name: "another app", next: b, reply: fakeapi.Reply{Status: 429, Header: limits("83", "0"), Body: body}},
		{name: "nothing left", reply: fakeapi.Reply{Header: limits("1667", "0")}, want: 7 * time.Second},
		{name: "one left", reply: fakeapi.Reply{Header: limits("1667", "1")}},
		{name: "no wait", reply: fakeapi.Reply{Status: 429, Body: body}, want: backoff},
		{name: "a wait", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "3"}}, want: 3 * time.Second},
	})
}

// The reason of a refusal is its code.
func TestIntercomReason(t *testing.T) {
	answer := providers.Intercom().Profile.Read(answers.Response{Status: 429, Body: []byte(`{"type":"error.list","errors":[{"code":"rate_limit_exceeded","message":"Exceeded rate limit of 83 in 10_seconds"}]}`)})
	if answer.Reason != "rate_limit_exceeded" {
		t.Errorf("%+v", answer)
	}
}

// Responses name the limit of the app: a lower one holds at once, a higher one when two name it.
func TestIntercomFollows(t *testing.T) {
	for _, test := range []struct {
		limit string
		want  int // requests at once in the next window
	}{{"83", 83}, {"167", 167}, {"1", 16}, {"2500", 2_500}, {"4000", 4_000}} {
		synctest.Test(t, func(t *testing.T) {
			server := replying{Header: map[string]string{"X-RateLimit-Limit": test.limit}}
			rt := over(t, providers.Intercom(), &server)
			next := intercomBy(t, "api.intercom.io", "a")
			send(t, rt, next())
			send(t, rt, next())
			time.Sleep(time.Minute)
			n := 0
			for start := time.Now(); time.Since(start) == 0 && n <= test.want+1; n++ {
				send(t, rt, next())
			}
			if n--; n != test.want {
				t.Errorf("limit %s: %d at once, want %d", test.limit, n, test.want)
			}
		})
	}
}

func ExampleIntercom() {
	client, err := providers.Intercom().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.intercom.io/contacts")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
