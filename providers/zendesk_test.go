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

func TestZendesk(t *testing.T) {
	const api = "https://acme.zendesk.com/api/v2/"
	enterprise := func() providers.Provider { return providers.Zendesk(700) }
	tickets, orgs, export := to(t, "GET", api+"tickets.json"), to(t, "GET", api+"organizations"), to(t, "GET", api+"incremental/tickets/cursor")
	update := func(id string) func() *http.Request { return to(t, "PUT", api+"tickets/"+id+".json", `{"ticket":{}}`) }
	checkAtOnce(t, enterprise, []atOnceTest{
		{"an account", 700, []func() *http.Request{tickets, orgs}},
		{"two accounts", 1_400, []func() *http.Request{orgs, to(t, "GET", "https://other.zendesk.com/api/v2/organizations")}},
		{"support and help center", 1_400, []func() *http.Request{orgs, to(t, "GET", api+"help_center/articles")}},
		{"updates of a ticket", 30, []func() *http.Request{update("1")}},
		{"updates of tickets", 100, []func() *http.Request{update("1"), update("2"), update("3"), update("4")}},
		{"updates of many tickets", 700, []func() *http.Request{to(t, "PUT", api+"tickets/update_many.json?ids=1,2", "{}")}},
		{"updates of many users and organizations", 700, []func() *http.Request{to(t, "PUT", api+"users/update_many", "{}"), to(t, "PUT", api+"organizations/update_many.json", "{}")}},
		{"deep pages", 50, []func() *http.Request{to(t, "GET", api+"tickets?page=501")}},
		{"exports", 10, []func() *http.Request{export, to(t, "GET", api+"incremental/users")}},
		{"a view", 5, []func() *http.Request{to(t, "GET", api+"views/25/execute.json")}},
		{"an organization", 5, []func() *http.Request{to(t, "PUT", api+"organizations/7", "{}")}},
		{"chat", 200, []func() *http.Request{to(t, "GET", api+"chat/chats")}},
		{"users in a second", 1, []func() *http.Request{to(t, "PUT", api+"users/1", "{}"), to(t, "POST", api+"users/create_or_update", "{}")}},
	})
	checkAtOnce(t, func() providers.Provider {
		p := providers.Zendesk(700)
		p.Scope("attachments").Policy.Tiers[0].Limit = 10
		return p
	}, []atOnceTest{{"attachments of two accounts", 20, []func() *http.Request{
		to(t, "GET", "https://acme.zendesk.com/attachments/token/a/?name=b"), to(t, "GET", "https://other.zendesk.com/attachments/token/c/?name=d"),
	}}})
	state := func(header ...string) map[string]string {
		h := map[string]string{"X-Rate-Limit": "700", "Ratelimit-Limit": "700", "Ratelimit-Reset": "41"}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return h
	}
	const left = "Ratelimit-Remaining"
	checkRefusals(t, enterprise, []refusalTest{
		{name: "the account waits", first: tickets, next: orgs, reply: fakeapi.Reply{Status: 429, Header: state(left, "0", "Retry-After", "41"), Body: "Number of allowed API requests per minute exceeded"}, want: 42 * time.Second},
		{name: "none left", next: orgs, reply: fakeapi.Reply{Header: state(left, "0")}, want: 42 * time.Second},
		{name: "none left of an endpoint", first: export, reply: fakeapi.Reply{Header: state(left, "384", "zendesk-ratelimit-incremental-exports", "total=10; remaining=0; resets=37")}, want: 38 * time.Second},
		{name: "an endpoint refuses", next: orgs, reply: fakeapi.Reply{Status: 429, Header: state(left, "384", "Retry-After", "37", "zendesk-ratelimit-incremental-exports", "total=10; remaining=0; resets=37")}},
		{name: "none left of an index", first: tickets, next: orgs, reply: fakeapi.Reply{Header: state(left, "699", "zendesk-ratelimit-tickets-index", "total=100; remaining=0; resets=41")}},
		{name: "the index", reply: fakeapi.Reply{Header: state(left, "699", "zendesk-ratelimit-tickets-index", "total=100; remaining=0; resets=41")}, want: 42 * time.Second},
		{name: "a large index", reply: fakeapi.Reply{Header: state(left, "699", "zendesk-ratelimit-tickets-index", "total=20000; remaining=19999; resets=41")}},
		{name: "no wait named", reply: fakeapi.Reply{Status: 429}, want: time.Minute},
		{name: "an hour", first: to(t, "POST", api+"requests", "{}"), want: time.Hour,
			reply: fakeapi.Reply{Status: 429, Header: state(left, "400"), Body: "Number of allowed requests per hour exceeded"}},
		{name: "an hour of one endpoint", next: orgs, reply: fakeapi.Reply{Status: 429, Header: state(left, "400"), Body: "Number of allowed requests per hour exceeded"}},
		{name: "one ticket", first: update("1"), next: update("2"), reply: fakeapi.Reply{Status: 429, Header: state(left, "640", "Retry-After", "120")}},
		{name: "the ticket waits", reply: fakeapi.Reply{Status: 429, Header: state(left, "640", "Retry-After", "120")}, want: 2 * time.Minute},
		{name: "too many jobs", first: to(t, "PUT", api+"tickets/update_many", "{}"), next: tickets, reply: fakeapi.Reply{Status: 429, Body: `{"error":"TooManyJobs"}`}},
		{name: "503", next: tickets, reply: fakeapi.Reply{Status: 503, Body: "Number of allowed API requests per minute exceeded"}, want: time.Minute},
	})
}

func ExampleZendesk() {
	client, err := providers.Zendesk(700).Client(nil) // an Enterprise account
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://acme.zendesk.com/api/v2/tickets")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
