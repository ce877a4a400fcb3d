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

func TestAtlassian(t *testing.T) {
	const acme, cloud = "https://acme.atlassian.net/rest/api/3/", "https://api.atlassian.com/ex/jira/1324a887-45db-1bf4-1e99-ef0ff456d421/rest/api/3/"
	const assets = "https://api.atlassian.com/jsm/assets/workspace/f1668d0c-828c-470c-b7d1-8c4f48cd345a/v1/"
	issue, search, page := to(t, "GET", acme+"issue/ABC-1"), to(t, "GET", acme+"search/jql?jql=a&maxResults=100"), to(t, "GET", "https://acme.atlassian.net/wiki/rest/api/content/1")
	update := func(key string) func() *http.Request { return to(t, "PUT", acme+"issue/"+key, `{"fields":{}}`) }
	var updates []func() *http.Request
	for i := range 60 {
		updates = append(updates, update(fmt.Sprintf("ABC-%d", i)))
	}
	checkAtOnce(t, providers.Atlassian, []atOnceTest{
		{"an endpoint", 100, []func() *http.Request{issue, to(t, "GET", acme+"issue/XYZ-7?fields=a")}},
		{"two endpoints", 200, []func() *http.Request{issue, page}},
		{"two sites", 200, []func() *http.Request{issue, to(t, "GET", "https://other.atlassian.net/rest/api/3/issue/ABC-1")}},
		{"two sites, OAuth", 200, []func() *http.Request{to(t, "GET", cloud+"issue/ABC-1"), to(t, "GET", "https://api.atlassian.com/ex/jira/b/rest/api/3/issue/ABC-1")}},
		{"two methods", 20, []func() *http.Request{update("ABC-1"), to(t, "POST", acme+"issue/ABC-1/comment", "{}")}},
		{"updates", 50, updates},
		{"customers", 5, []func() *http.Request{to(t, "GET", "https://acme.atlassian.net/rest/servicedeskapi/servicedesk/1/customer")}},
		{"one issue", 20, []func() *http.Request{update("ABC-1")}},
	})
	checkAtOnce(t, func() providers.Provider { // a lower limit, because the bucket of the endpoint holds 100
		p := providers.Atlassian()
		p.Scope("asset").Policy.Tiers[0].Limit, p.Scope("assets").Policy.Tiers[0].Limit = 10, 15
		return p
	}, []atOnceTest{
		{"an endpoint of Assets", 10, []func() *http.Request{to(t, "GET", assets+"object/1"), to(t, "GET", assets+"object/2")}},
		{"Assets", 15, []func() *http.Request{to(t, "GET", assets+"object/1"), to(t, "GET", assets+"objectschema/list")}},
	})
	for _, test := range []struct {
		name   string
		points int64
		next   func() *http.Request
	}{
		{"an issue", 2, issue}, {"a search", 101, search}, {"a page", 2, page}, {"a write", 1, update("ABC-1")},
		{"three new issues", 3, to(t, "POST", acme+"issue/bulk", `{"issueUpdates":[{},{},{}]}`)},
		{"new issues that can't be read", 50, to(t, "POST", acme+"issue/bulk", `{"issueUpdates":[`)},
		{"a search that doesn't say", 51, to(t, "POST", acme+"search/jql", `{"jql":"a"}`)},
		{"a search by POST", 11, to(t, "POST", acme+"search/jql", `{"maxResults":10}`)},
		{"members", 101, to(t, "GET", acme+"group/member?groupname=a&maxResults=50")},
		{"an absurd number", 5_001, to(t, "GET", acme+"search/jql?maxResults=9999999999999999999&limit=999999")},
	} {
		if got := providers.Atlassian().Cost(test.next())["points"]; got != test.points {
			t.Errorf("%s: %d points, want %d", test.name, got, test.points)
		}
	}
	synctest.Test(t, func(t *testing.T) { // 650 searches of 100 objects in the first minutes of an hour
		rt := over(t, providers.Atlassian(), accepting{})
		time.Sleep(10 * time.Minute)
		n := 0
		for took := time.Duration(0); took < time.Minute; n++ {
			_, _, took = send(t, rt, search().WithContext(t.Context()))
		}
		if until := time.Now().Minute(); n-1 != 65_000/101 || until != 0 {
			t.Errorf("%d searches before the end of the hour, the next at minute %d; want %d and 0", n-1, until, 65_000/101)
		}
		req := search().WithContext(t.Context())
		req.SetBasicAuth("a@example.com", "token")
		if _, ok := providers.Atlassian().Cost(req)["points"]; ok {
			t.Error("a request by API token costs points")
		}
		send(t, rt, req)
	})
	refused := func(reason, wait string) fakeapi.Reply {
		return fakeapi.Reply{Status: 429, Header: map[string]string{"RateLimit-Reason": reason, "Retry-After": wait}}
	}
	checkRefusals(t, providers.Atlassian, []refusalTest{
		{name: "points", first: search, next: issue, reply: refused("jira-quota-global-based", "1847"), want: 1847 * time.Second},
		{name: "points of Jira leave Confluence alone", next: page, reply: refused("jira-quota-global-based", "1847")},
		{name: "points of Confluence, another word", first: page, next: to(t, "GET", "https://other.atlassian.net/wiki/api/v2/pages"), reply: refused("conf-global-based", "1847"), want: 1847 * time.Second},
		{name: "a burst", first: issue, reply: refused("jira-burst-based", "7"), want: 7 * time.Second},
		{name: "a burst leaves other endpoints alone", next: search, reply: refused("jira-burst-based", "7")},
		{name: "an issue", first: update("ABC-1"), reply: refused("jira-per-issue-on-write", "2"), want: 2 * time.Second},
		{name: "other writes to it wait as well", next: to(t, "POST", acme+"issue/ABC-1/comment", "{}"), reply: refused("jira-per-issue-on-write", "2"), want: 2 * time.Second},
		{name: "reading it goes on", next: issue, reply: refused("jira-per-issue-on-write", "2")},
		{name: "other issues go on", next: update("ABC-2"), reply: refused("jira-per-issue-on-write", "2")},
		{name: "the reset alone", first: issue, want: 30 * time.Second,
			reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Date": "Sat, 01 Jan 2000 00:00:30 GMT", "X-RateLimit-Reset": "2000-01-01T00:01Z"}}},
		{name: "points used elsewhere", next: search, want: 601 * time.Second,
			reply: fakeapi.Reply{Header: map[string]string{"RateLimit-Policy": `"global-app-quota";q=65000;w=3600`, "RateLimit": `"global-app-quota";r=0;t=600`}}},
		{name: "headers that only inform", next: search, reply: fakeapi.Reply{Header: map[string]string{"Beta-RateLimit": `"global-app-quota";r=0;t=50`, "Beta-Retry-After": "50"}}},
	})
}

// A search costs as many points as its response has issues: 1,000 searches of one issue, and as many of
// none, fit into the hour, though each asks for 100.
func TestAtlassianSearchesCostWhatTheyReturn(t *testing.T) {
	const acme, cloud = "https://acme.atlassian.net/rest/api/3/", "https://api.atlassian.com/ex/jira/1324a887/rest/api/3/"
	const one = `{"issues":[{"expand":"","id":"10001","key":"ABC-1","fields":{"parent":{"id":"7"}}}],"isLast":true}`
	for _, test := range []struct {
		name   string
		url    string
		body   string
		points int64 // of one request
	}{
		{"one issue", acme + "search/jql?maxResults=100", one, 2},
		{"no issue", acme + "search/jql?maxResults=100", `{"issues":[],"isLast":true}`, 1},
		{"no issue, OAuth", cloud + "search?maxResults=100", `{"startAt":0,"issues":[]}`, 1},
		{"projects", acme + "project/search?maxResults=50", `{"values":[{"id":"1"},{"id":"2"}]}`, 3},
		{"pages", "https://acme.atlassian.net/wiki/api/v2/pages?limit=250", `{"results":[{"id":"1"}]}`, 2},
		{"unknown objects", "https://acme.atlassian.net/wiki/rest/api/search?limit=25", `{"results":[{"content":{"id":"1"}}]}`, 26},
		{"workflows", acme + "workflow/search?maxResults=50", `{"values":[{"id":{"name":"a"}}]}`, 51},
		{"members", acme + "group/member?groupname=a&maxResults=50", `{"values":[{"id":"1"}]}`, 101},
		{"an issue", acme + "issue/ABC-1", `{"id":"1"}`, 2},
		{"cut off", acme + "search/jql?maxResults=100", one[:60], 101},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport, err := providers.Atlassian().Transport(nil)
				if err != nil {
					t.Fatal(err)
				}
				transport.Base = &replying{Body: test.body}
				send(t, transport, get(t, test.url))
				status, err := transport.Route(get(t, test.url)).Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				app := status.Tiers[len(status.Tiers)-1]
				if app.Tier.Unit != "points" || app.Used != test.points {
					t.Errorf("%d %s used, want %d points", app.Used, app.Tier.Unit, test.points)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rt, start := over(t, providers.Atlassian(), &replying{Body: one}), time.Now()
		for range 1_000 {
			send(t, rt, get(t, acme+"search/jql?maxResults=100"))
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("1,000 searches took %v, want seconds", took)
		}
	})
}

func ExampleAtlassian() {
	client, err := providers.Atlassian().Client(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://acme.atlassian.net/rest/api/3/issue/ABC-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
