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
		{"an endpoint, whoever", 600, []func() *http.Request{to(t, "GET", org+"/api/v1/users/00ub0oNGTSWTBKOLGLNR"), to(t, "GET", org+"/api/v1/users/a@example.com")}},
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
