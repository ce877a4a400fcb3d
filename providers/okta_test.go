package providers_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestOkta(t *testing.T) {
	const org = "https://acme.okta.com"
	users, authn := to(t, "GET", org+"/api/v1/users"), func(name string) func() *http.Request {
		return to(t, "POST", org+"/api/v1/authn", fmt.Sprintf(`{"username":%q,"password":"x"}`, name))
	}
	var names []func() *http.Request
	for i := range 700 {
		names = append(names, authn(fmt.Sprint(i)))
	}
	checkAtOnce(t, providers.Okta, []atOnceTest{
		{"an endpoint", 600, []func() *http.Request{users}},
		{"an endpoint, of several users", 600, []func() *http.Request{to(t, "GET", org+"/api/v1/users/00ub0oNGTSWTBKOLGLNR"), to(t, "GET", org+"/api/v1/users/a@example.com")}},
		{"the log", 120, []func() *http.Request{to(t, "GET", org+"/api/v1/logs?q=x")}},
		{"authorize", 1_200, []func() *http.Request{to(t, "GET", org+"/oauth2/v1/authorize")}},
		{"keys", 2_500, []func() *http.Request{to(t, "GET", org+"/oauth2/v1/keys"), to(t, "GET", org+"/.well-known/openid-configuration")}},
		{"two organizations", 1_200, []func() *http.Request{users, to(t, "GET", "https://other.okta.com/api/v1/users")}},
		{"usernames", 600, names},
		{"one username", 4, []func() *http.Request{authn("a@example.com")}},
	})
	at := func(limit, left, reset string) map[string]string { // 20 s after midnight is 946684820
		return map[string]string{"X-Rate-Limit-Limit": limit, "X-Rate-Limit-Remaining": left, "X-Rate-Limit-Reset": reset, "Date": "Sat, 01 Jan 2000 00:00:00 GMT"}
	}
	const body = `{"errorCode":"E0000047","errorSummary":"API call exceeded rate limit due to too many requests."}`
	checkRefusals(t, providers.Okta, []refusalTest{
		{name: "the endpoint waits", first: users, reply: fakeapi.Reply{Status: 429, Header: at("600", "0", "946684820"), Body: body}, want: 21 * time.Second},
		{name: "the share of a token", reply: fakeapi.Reply{Header: at("300", "0", "946684820")}, want: 21 * time.Second},
		{name: "other endpoints go on", next: to(t, "GET", org+"/api/v1/groups"), reply: fakeapi.Reply{Status: 429, Header: at("600", "0", "946684820"), Body: body}},
		{name: "too many at once", next: to(t, "GET", org+"/api/v1/groups"), reply: fakeapi.Reply{Status: 429, Header: at("0", "0", "946684820"), Body: body}, want: backoff},
		{name: "an attack on one username leaves others alone", first: authn("victim"), next: authn("other"), reply: fakeapi.Reply{Status: 429, Header: at("1", "0", "946684820"), Body: body}},
		{name: "the username waits", reply: fakeapi.Reply{Status: 429, Header: at("1", "0", "946684820"), Body: body}, want: 20 * time.Second},
	})
	synctest.Test(t, func(t *testing.T) { // 75 requests at once
		rt := over(t, providers.Okta(), &replying{Body: "{}"})
		for i := range 75 {
			resp, err := rt.RoundTrip(get(t, fmt.Sprintf("%s/api/v1/apps?after=%d", org, i)))
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Second, func() { resp.Body.Close() })
		}
		if _, _, took := send(t, rt, users().WithContext(t.Context())); took != time.Second {
			t.Errorf("the 76th waited %v, want 1 s", took)
		}
	})
}

func ExampleOkta() {
	client, err := providers.Okta().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://acme.okta.com/api/v1/users")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

// An organization has windows of a minute and 150 requests, of which the preset doesn't know. The
// windows begin with a request, or at a second of their own. Responses report their ends in whole
// seconds, rounded up.
func TestOktaWindows(t *testing.T) {
	for name, anchored := range map[string]bool{"anchored": true, "of a phase": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(1234567 * time.Microsecond)
				org := &oktaOrg{anchored: anchored}
				saturate(t, over(t, providers.Okta(), org), 12, 4*time.Minute, func(int) *http.Request { return get(t, "https://a.okta.com/api/v1/users") })
				if org.refused > 0 || org.served < 4*140 {
					t.Errorf("%d served and %d refused, want about %d and none", org.served, org.refused, 4*150)
				}
			})
		})
	}
}

// An oktaOrg has 150 requests a minute.
type oktaOrg struct {
	anchored        bool
	mu              sync.Mutex
	end             time.Time
	left            int
	sent            int
	served, refused int
}

func (o *oktaOrg) RoundTrip(req *http.Request) (*http.Response, error) {
	o.mu.Lock()
	o.sent++
	n := o.sent
	o.mu.Unlock()
	time.Sleep(time.Duration(20+n*37%180) * time.Millisecond) // on its way
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); !now.Before(o.end) {
		o.left, o.end = 150, now.Add(time.Minute)
		if !o.anchored {
			o.end = now.Truncate(time.Minute).Add(17300 * time.Millisecond)
			if !o.end.After(now) {
				o.end = o.end.Add(time.Minute)
			}
		}
	}
	status := http.StatusOK
	if o.left == 0 {
		status = http.StatusTooManyRequests
		o.refused++
	} else {
		o.left--
		o.served++
	}
	header := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}}
	header.Set("X-Rate-Limit-Limit", "150")
	header.Set("X-Rate-Limit-Remaining", fmt.Sprint(o.left))
	header.Set("X-Rate-Limit-Reset", fmt.Sprint(o.end.Add(time.Second-1).Unix()))
	return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: req}, nil
}
