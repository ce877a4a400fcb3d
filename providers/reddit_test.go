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

func TestReddit(t *testing.T) {
	const oauth, www = "https://oauth.reddit.com", "https://www.reddit.com"
	read, comment := to(t, "GET", oauth+"/r/golang/new"), to(t, "POST", oauth+"/api/comment", "text=hello")
	token := to(t, "POST", www+"/api/v1/access_token", "grant_type=client_credentials")
	checkAtOnce(t, providers.Reddit, []atOnceTest{
		{"OAuth", 1_000, []func() *http.Request{read, comment, to(t, "POST", oauth+"/api/submit/", "title=a")}},
		{"tokens", 300, []func() *http.Request{token, to(t, "POST", www+"/api/v1/revoke_token", "token=a")}},
		{"without OAuth", 1, []func() *http.Request{to(t, "GET", www+"/r/golang/new.json")}},
	})
	left := func(remaining, used, reset string) map[string]string {
		return map[string]string{"X-Ratelimit-Remaining": remaining, "X-Ratelimit-Used": used, "X-Ratelimit-Reset": reset}
	}
	limited := func(ratelimit, text string) fakeapi.Reply {
		return fakeapi.Reply{Body: `{"json":{` + ratelimit + `"errors":[["RATELIMIT","` + text + `","ratelimit"]]}}`}
	}
	checkRefusals(t, providers.Reddit, []refusalTest{
		{name: "none left", first: read, reply: fakeapi.Reply{Header: left("0.0", "1000", "318")}, want: 319 * time.Second},
		{name: "some left", reply: fakeapi.Reply{Header: left("998.0", "2", "318")}},
		{name: "an account with 10,000", reply: fakeapi.Reply{Header: left("9324.0", "676", "53")}},
		{name: "tokens have their own", first: token, next: read, reply: fakeapi.Reply{Header: left("0", "300", "286")}},
		{name: "refused at the end of the window", first: read, reply: fakeapi.Reply{Status: 429, Header: left("0.0", "1000", "0")}, want: time.Second},
		{name: "refused before it", reply: fakeapi.Reply{Status: 429, Header: left("0.0", "1000", "120")}, want: 121 * time.Second},
		{name: "writes wait", first: comment, reply: limited(`"ratelimit":512.2,`, "You are doing that too much. Try again in 9 minutes."), want: 512200 * time.Millisecond},
		{name: "writes of another kind go on", next: to(t, "POST", oauth+"/api/vote", "id=a"), reply: limited("", "Try again in 6 seconds.")},
		{name: "reading goes on", next: read, reply: limited("", "Try again in 6 seconds.")},
		{name: "milliseconds", reply: limited("", "You are doing that too much. Try again in 2 milliseconds."), want: time.Second},
		{name: "without the exact wait", reply: limited("", "You are doing that too much. Try again in 9 minutes."), want: time.Minute},
		{name: "another error", reply: fakeapi.Reply{Body: `{"json":{"errors":[["SUBREDDIT_EXISTS","that subreddit already exists","name"]]}}`}},
		{name: "one morechildren too many", first: to(t, "POST", oauth+"/api/morechildren"), next: read, reply: fakeapi.Reply{Status: 429, Header: left("590.0", "10", "400")}},
	})
	synctest.Test(t, func(t *testing.T) { // morechildren goes one at a time
		rt := over(t, providers.Reddit(), &replying{Body: "{}"})
		resp, err := rt.RoundTrip(get(t, oauth+"/api/morechildren?link_id=a"))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*time.Second, func() { resp.Body.Close() })
		if _, _, took := send(t, rt, get(t, oauth+"/api/morechildren?link_id=b")); took != 3*time.Second {
			t.Errorf("the second waited %v, want 3 s", took)
		}
	})
}

func ExampleReddit() {
	client, err := providers.Reddit().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://oauth.reddit.com/r/golang/new")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
