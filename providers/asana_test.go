package providers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/providers"
)

func TestAsana(t *testing.T) {
	const api = "https://app.asana.com/api/1.0/"
	free := func() providers.Provider { return providers.Asana(150) }
	paid := func() providers.Provider { return providers.Asana(1_500) }
	read, write := to(t, "GET", api+"tasks/1?opt_fields=name"), to(t, "PUT", api+"tasks/1", "{}")
	search := to(t, "GET", api+"workspaces/1/tasks/search?text=a")
	duplicate := to(t, "POST", api+"tasks/1/duplicate", "{}")
	batch := func(actions ...string) func() *http.Request {
		return to(t, "POST", api+"batch", `{"data":{"actions":[`+strings.Join(actions, ",")+`]}}`)
	}
	const get, post = `{"method":"get","relative_path":"/tasks/1"}`, `{"method":"POST","relative_path":"/tasks","data":{}}`
	const copies = `{"method":"post","relative_path":"/tasks/1/duplicate"}`
	const find = `{"method":"get","relative_path":"/workspaces/1/tasks/search?text=a"}`
	by := func(token string, next func() *http.Request) func() *http.Request {
		return func() *http.Request {
			req := next()
			req.Header.Set("Authorization", "Bearer "+token)
			return req
		}
	}
	checkAtOnce(t, free, []atOnceTest{
		{"a free domain", 150, []func() *http.Request{read, write, duplicate}},
		{"two tokens", 300, []func() *http.Request{by("a", read), by("b", read)}},
		{"searches", 60, []func() *http.Request{search, to(t, "GET", api+"workspaces/2/tasks/search/")}},
		{"searches of two tokens", 120, []func() *http.Request{by("a", search), by("b", search)}},
		{"batches of five", 30, []func() *http.Request{batch(get, get, get, post, post)}},
		{"searches, also in batches with writes", 60, []func() *http.Request{search, batch(find, post)}},
		{"batches with two searches", 30, []func() *http.Request{batch(find, find)}},
		{"batches with more jobs than go at once", 25, []func() *http.Request{batch(copies, copies, copies, copies, copies, copies)}},
		{"batches without actions", 15, []func() *http.Request{batch()}},
		{"signing in", 2_500, []func() *http.Request{to(t, "POST", "https://app.asana.com/-/oauth_token", "{}")}},
	})
	checkAtOnce(t, paid, []atOnceTest{{"a paid domain", 1_500, []func() *http.Request{read}}})
	for _, test := range []struct {
		name string
		next func() *http.Request
		want int
	}{
		{"reads", read, 50},
		{"reads without a method", to(t, "", api+"tasks/1"), 50},
		{"writes", write, 15},
		{"reads and writes", alternate(read, read, read, read, write), 50 + 14}, // of 56 reads and 14 writes
		{"batches of reads", batch(get, get, get, get, get), 10},
		{"batches of writes", batch(post, post, post), 5},
		{"batches without actions", batch(), 1},
		{"batches of too many", batch(slices.Repeat([]string{get}, 11)...), 1},
		{"duplications", alternate(duplicate, to(t, "POST", api+"projects/1/duplicate", "{}")), 5},
		{"instantiations", alternate(to(t, "POST", api+"project_templates/1/instantiateProject", "{}"), to(t, "POST", api+"task_templates/1/instantiateTask", "{}")), 5},
		{"exports", alternate(to(t, "POST", api+"organization_exports", "{}"), to(t, "POST", api+"exports/graph", "{}")), 5},
		{"states of exports", alternate(to(t, "GET", api+"organization_exports/1"), to(t, "GET", api+"exports/1")), 50},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := atATime(t, paid(), 70, func() *http.Request { return test.next().WithContext(t.Context()) }); n != test.want {
					t.Errorf("%d in flight, want %d", n, test.want)
				}
			})
		})
	}
	refusal := func(wait string) fakeapi.Reply {
		r := fakeapi.Reply{Status: 429, Body: `{"errors":[{"message":"You've made too many requests and hit a rate limit. Please retry after the given amount of time."}]}`}
		if wait != "" {
			r.Header = map[string]string{"Retry-After": wait}
		}
		return r
	}
	checkRefusals(t, free, []refusalTest{
		{name: "the token", first: read, next: write, reply: refusal("30"), want: 30 * time.Second},
		{name: "a search", first: search, next: read, reply: refusal("30")},
		{name: "searches wait", next: search, reply: refusal("30"), want: 30 * time.Second},
		{name: "a job", first: duplicate, next: write, reply: refusal("30")},
		{name: "no wait", first: write, reply: refusal(""), want: backoff},
		{name: "another token", first: by("a", read), next: by("b", read), reply: refusal("30")},
	})
}

func ExampleAsana() {
	client, err := providers.Asana(150).Client(nil) // a free domain
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://app.asana.com/api/1.0/users/me")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
