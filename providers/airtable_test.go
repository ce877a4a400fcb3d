package providers_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestAirtable(t *testing.T) {
	base := func(name string) func() *http.Request {
		return to(t, "GET", "https://api.airtable.com/v0/"+name)
	}
	var bases []func() *http.Request
	for _, c := range "abcdefghijkl" {
		bases = append(bases, base("app"+string(c)+"/Tasks"))
	}
	checkAtOnce(t, providers.Airtable, []atOnceTest{
		{"tables of one base", 5, []func() *http.Request{base("appX/Tasks"), base("appX/People/rec1"), base("meta/bases/appX/tables")}},
		{"many bases of one user", 50, bases},
		{"no base", 50, []func() *http.Request{base("meta/whoami")}},
	})
	full := fakeapi.Reply{Status: 429, Body: `{"errors":[{"error":"RATE_LIMIT_REACHED","message":"Rate limit exceeded. Please try again later"}]}`}
	checkRefusals(t, providers.Airtable, []refusalTest{
		{name: "a base waits 30 s", first: base("appX/Tasks"), reply: full, want: 30 * time.Second},
		{name: "other bases go on", next: base("appY/Tasks"), reply: full},
		{name: "an empty body", reply: fakeapi.Reply{Status: 429}, want: 30 * time.Second},
		{name: "no wait mends a month used up", reply: fakeapi.Reply{Status: 429, Body: `{"errors":[{"error":"PUBLIC_API_BILLING_LIMIT_EXCEEDED"}]}`}},
	})
}

func ExampleAirtable() {
	client, err := providers.Airtable().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://api.airtable.com/v0/appX/Tasks")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
