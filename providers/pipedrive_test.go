package providers_test

import (
	"context"
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

const pipedrive = "https://acme.pipedrive.com/api/"

// with returns the requests with a header.
func withHeader(of func() *http.Request, name, value string) func() *http.Request {
	return func() *http.Request {
		req := of()
		req.Header.Set(name, value)
		return req
	}
}

func TestPipedriveCosts(t *testing.T) {
	for _, test := range []struct {
		method, path string
		want         int64
	}{
		{"GET", "v1/files/7", 2}, {"GET", "v1/leads", 20}, {"PUT", "v1/notes/7", 10}, {"POST", "v1/files", 10},
		{"PATCH", "v1/leads/adf21080-0e10-11eb-879b-05d71fb426ec", 10}, {"DELETE", "v1/notes/7/comments/46c3b0e1-db35-59ca-1828-4817378dff71", 6},
		{"DELETE", "v1/dealFields", 10}, {"DELETE", "v1/persons/1/picture", 6}, {"DELETE", "v1/roles/1/assignments", 6},
		{"GET", "v1/leadSources", 2}, {"GET", "v1/userSettings", 2}, {"GET", "v1/users/me", 2}, {"GET", "v1/users/1/permissions", 10},
		{"GET", "v1/webhooks", 10}, {"GET", "v1/mailbox/mailThreads/3", 20}, {"GET", "v1/legacyTeams/user/3", 20},
		{"GET", "v1/deals/3/flow", 40}, {"PUT", "v1/deals/3/merge", 40}, {"GET", "v1/leads/search", 40}, {"GET", "v1/deals/summary/archived", 80},
		{"GET", "v2/deals/3", 1}, {"GET", "v2/deals", 10}, {"GET", "v2/deals/archived", 20}, {"POST", "v2/deals", 5}, {"PATCH", "v2/deals/3", 5}, {"DELETE", "v2/deals/3", 3},
		{"GET", "v2/dealFields/add_time", 1}, {"DELETE", "v2/dealFields/add_time/options", 3}, {"GET", "v2/dealFields", 10},
		{"GET", "v2/persons/3/picture", 1}, {"GET", "v2/stages", 5}, {"GET", "v2/boards/3", 10}, {"GET", "v2/itemSearch", 20}, {"GET", "v2/itemSearch/field", 20},
		{"POST", "v2/projects/3/archive", 3}, {"DELETE", "v2/products/3/images", 6}, {"DELETE", "v2/deals/3/products", 15},
		{"PUT", "v2/products/3/images", 20}, {"POST", "v2/deals/3/products/bulk", 25}, {"POST", "v2/leads/adf21080-0e10-11eb-879b-05d71fb426ec/convert/deal", 40},
	} {
		for _, base := range []string{"", "https://acme.pipedrive.com/"} { // some paths begin without /api
			if base == "" {
				base = pipedrive
			}
			if got := providers.Pipedrive(1).Cost(to(t, test.method, base+test.path)())["tokens"]; got != test.want {
				t.Errorf("%s %s%s costs %d, want %d", test.method, base, test.path, got, test.want)
			}
		}
	}
}

func TestPipedriveScopes(t *testing.T) {
	company := func() providers.Provider { return providers.Pipedrive(1_000_000) }
	deal, find := to(t, "GET", pipedrive+"v2/deals/1"), to(t, "GET", pipedrive+"v2/persons/search?term=a")
	one, two := withHeader(deal, "X-Api-Token", "one"), withHeader(deal, "X-Api-Token", "two")
	app, other := withHeader(deal, "Authorization", "Bearer a"), withHeader(deal, "Authorization", "Bearer b")
	checkAtOnce(t, company, []atOnceTest{
		{"an API token", 20, []func() *http.Request{one}},
		{"two API tokens", 40, []func() *http.Request{one, two}},
		{"a token in the header and in the query", 20, []func() *http.Request{one, to(t, "GET", pipedrive+"v1/users?api_token=one")}},
		{"two tokens in queries", 40, []func() *http.Request{to(t, "GET", pipedrive+"v1/users?api_token=one"), to(t, "GET", pipedrive+"v1/users?api_token=two")}},
		{"an app", 80, []func() *http.Request{app}},
		{"two apps", 160, []func() *http.Request{app, other}},
		{"searches", 10, []func() *http.Request{withHeader(find, "Authorization", "Bearer a"), withHeader(to(t, "GET", pipedrive+"v2/itemSearch?term=a"), "Authorization", "Bearer a")}},
		{"searches count as requests", 20, []func() *http.Request{withHeader(find, "X-Api-Token", "one"), one, one, one}},
		{"searches of two tokens", 20, []func() *http.Request{find, withHeader(find, "X-Api-Token", "two")}},
	})
	checkAtOnce(t, func() providers.Provider { return providers.Pipedrive(30) }, []atOnceTest{
		{"lists of a company", 3, []func() *http.Request{to(t, "GET", pipedrive+"v2/deals"), withHeader(to(t, "GET", pipedrive+"v2/persons"), "Authorization", "Bearer a")}},
		{"lists of two companies", 6, []func() *http.Request{to(t, "GET", pipedrive+"v2/deals"), to(t, "GET", "https://other.pipedrive.com/api/v2/deals")}},
	})
	checkUnlimited(t, company, "tokens of OAuth", to(t, "POST", "https://oauth.pipedrive.com/oauth/token", "a=b"))
}

// The windows are 2 seconds and, until a response reports more tokens, 24 hours.
func TestPipedriveWindows(t *testing.T) {
	for _, test := range []struct {
		name   string
		tokens int64
		n      int // requests at once
		want   time.Duration
	}{{"2 seconds", 1_000, 20, 2 * time.Second}, {"a day", 10, 10, 24 * time.Hour}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := over(t, providers.Pipedrive(test.tokens), accepting{})
				for range test.n {
					send(t, rt, get(t, pipedrive+"v2/deals/1"))
				}
				_, _, took := send(t, rt, get(t, pipedrive+"v2/deals/1"))
				if took < test.want || took > test.want+1100*time.Millisecond { // and the guard
					t.Errorf("the next request waited %v, want %v", took, test.want)
				}
			})
		})
	}
}

func TestPipedriveRefusals(t *testing.T) {
	deal, find := to(t, "GET", pipedrive+"v2/deals/1"), to(t, "GET", pipedrive+"v2/deals/search?term=a")
	add, list := to(t, "POST", pipedrive+"v2/deals", "{}"), to(t, "GET", pipedrive+"v2/persons")
	app := withHeader(list, "Authorization", "Bearer a")
	state := func(header ...string) map[string]string {
		h := map[string]string{}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		return h
	}
	const limit, left, reset, daily = "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Daily-RateLimit-Token-Remaining"
	refused := state("Retry-After", "10", limit, "20", left, "0", reset, "10", "Content-Type", "application/json")
	searched := state("Retry-After", "10", limit, "10", left, "0", reset, "10")
	page := fakeapi.Reply{Status: 403, Header: state("Content-Type", "text/html; charset=UTF-8"), Body: "<html>This error is produced by Cloudflare."}
	checkRefusals(t, func() providers.Provider { return providers.Pipedrive(30_000) }, []refusalTest{
		{name: "a token", first: add, next: list, reply: fakeapi.Reply{Status: 429, Header: refused}, want: 10 * time.Second},
		{name: "another token goes on", next: app, reply: fakeapi.Reply{Status: 429, Header: refused}},
		{name: "no Retry-After", next: list, reply: fakeapi.Reply{Status: 429, Header: state(limit, "20", left, "0", reset, "7")}, want: 7 * time.Second},
		{name: "no headers", next: list, reply: fakeapi.Reply{Status: 429}, want: 10 * time.Second},
		{name: "searches", first: find, reply: fakeapi.Reply{Status: 429, Header: searched}, want: 10 * time.Second},
		{name: "searches without Retry-After", reply: fakeapi.Reply{Status: 429, Header: state(limit, "10", left, "0", reset, "5")}, want: 5 * time.Second},
		{name: "searches alone", next: deal, reply: fakeapi.Reply{Status: 429, Header: searched}},
		{name: "the day", first: deal, next: app, reply: fakeapi.Reply{Status: 429, Header: state(limit, "20", left, "19", reset, "2", daily, "0")}, want: time.Hour},
		{name: "the day, with a Retry-After", next: app, reply: fakeapi.Reply{Status: 429, Header: state("Retry-After", "3", daily, "0")}, want: time.Hour},
		{name: "presumably the day", next: app, reply: fakeapi.Reply{Status: 429, Header: state(limit, "20", left, "19", reset, "2")}, want: time.Minute},
		{name: "the day of another company", next: to(t, "GET", "https://other.pipedrive.com/v1/deals"), reply: fakeapi.Reply{Status: 429, Header: state(limit, "20", left, "19", daily, "0")}},
		{name: "Cloudflare", next: list, reply: page, want: closed},
		{name: "Cloudflare's block of another token", next: app, reply: page},
		{name: "no permission", reply: fakeapi.Reply{Status: 403, Header: state("Content-Type", "application/json"), Body: `{"success":false,"error":"Scope and URL mismatch"}`}},
		{name: "no tokens left", next: app, reply: fakeapi.Reply{Header: state("X-Daily-RateLimit-Token-Limit", "30000", daily, "0")}, want: 24 * time.Hour},
		{name: "no requests left", next: list, reply: fakeapi.Reply{Header: state(limit, "20", left, "0", reset, "2")}, want: 2 * time.Second},
		{name: "no searches left", next: list, first: find, reply: fakeapi.Reply{Header: state(limit, "10", left, "0", reset, "2")}},
		{name: "no writes left", first: add, reply: fakeapi.Reply{Header: state("X-Daily-Requests-Left", "0")}, want: 24 * time.Hour},
		{name: "no writes left, but reads", next: list, reply: fakeapi.Reply{Header: state("X-Daily-Requests-Left", "0")}},
		{name: "an app's writes", first: withHeader(add, "Authorization", "Bearer a"), reply: fakeapi.Reply{Header: state("X-Daily-Requests-Left", "0")}},
	})
}

// A pipedriveServer has 100 tokens in each day, which begins at 02:00 in UTC, for lists that cost 10. Of each day
// others use some at once.
type pipedriveServer struct {
	others int
	day    time.Time
	left   int

	refused int
	served  []int // of each day
}

func (s *pipedriveServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if day := time.Now().Add(-2 * time.Hour).Truncate(24 * time.Hour); !day.Equal(s.day) {
		s.day, s.left, s.served = day, 100-s.others, append(s.served, 0)
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
	if s.left < 10 {
		resp.StatusCode = http.StatusTooManyRequests
		s.refused++
	} else {
		s.left -= 10
		s.served[len(s.served)-1]++
	}
	resp.Header.Set("X-Daily-RateLimit-Token-Limit", "100")
	resp.Header.Set("X-Daily-RateLimit-Token-Remaining", strconv.Itoa(s.left))
	return resp, nil
}

// Whenever the day of the server begins, a client uses all of its tokens and is not refused. If others use some,
// one request tries each hour.
func TestPipedriveDay(t *testing.T) {
	for _, test := range []struct {
		others, tokens, most int // refused
	}{{0, 100, 0}, {50, 100, 0}, {100, 100, 24 * 3}} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(16 * time.Hour)
			server := &pipedriveServer{others: test.others}
			rt := over(t, providers.Pipedrive(100), server)
			ctx, cancel := context.WithTimeout(t.Context(), 72*time.Hour)
			defer cancel()
			for ctx.Err() == nil {
				resp, err := rt.RoundTrip(get(t, pipedrive+"v2/deals").WithContext(ctx))
				if err != nil {
					time.Sleep(time.Minute) // the next window is after the end
					continue
				}
				resp.Body.Close()
				time.Sleep(time.Second)
			}
			full := (100 - test.others) / 10
			if n := len(server.served); server.refused > test.most || n < 3 || server.served[0] != full || server.served[1] != full {
				t.Errorf("others use %d: %d refused, of at most %d, and %v served", test.others, server.refused, test.most, server.served)
			}
			if test.others == 100 && server.refused < 24 {
				t.Errorf("%d tried in 3 days without tokens", server.refused)
			}
		})
	}
}

// A response that reports more tokens than the last 24 hours leave ends them.
func TestPipedriveNewDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.Pipedrive(100), &pipedriveServer{})
		time.Sleep(25 * time.Hour)
		for i := range 19 { // 9 before 02:00, and 10 after it
			if i == 9 {
				time.Sleep(2 * time.Hour)
			}
			if _, _, took := send(t, rt, get(t, pipedrive+"v2/deals")); took > 0 {
				t.Errorf("request %d waited %v", i, took)
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// The headers of a refusal tell which scope is paused, and for how long.
func TestPipedriveReads(t *testing.T) {
	for _, test := range []struct {
		status int
		header []string // names and values
		want   answers.Refusal
	}{
		{429, []string{"X-Daily-Ratelimit-Token-Remaining", "0", "X-Ratelimit-Limit", "10", "X-Ratelimit-Remaining", "9", "X-Ratelimit-Reset", "2"},
			answers.Refusal{Kind: answers.Limited, Delay: time.Hour, Known: true, Wide: true, Reason: "daily"}},
		{429, []string{"X-Ratelimit-Limit", "10", "X-Ratelimit-Remaining", "0"},
			answers.Refusal{Kind: answers.Limited, Delay: 10 * time.Second, Known: true, Unit: "search", Reason: "search"}},
		{429, []string{"X-Ratelimit-Limit", "20", "X-Ratelimit-Remaining", "0"},
			answers.Refusal{Kind: answers.Limited, Delay: 10 * time.Second, Known: true, Unit: "burst", Reason: "burst"}},
		{429, []string{"X-Ratelimit-Limit", "20", "X-Ratelimit-Remaining", "3"},
			answers.Refusal{Kind: answers.Limited, Delay: time.Minute, Known: true, Wide: true, Reason: "daily"}},
		{403, []string{"Content-Type", "text/html"}, answers.Refusal{Kind: answers.Banned, Unit: "burst", Reason: "Cloudflare"}},
		{403, []string{"Content-Type", "application/json"}, answers.Refusal{}},
	} {
		h := http.Header{}
		for i := 0; i < len(test.header); i += 2 {
			h.Set(test.header[i], test.header[i+1])
		}
		if got := providers.Pipedrive(1).Profile.Read(answers.Response{Status: test.status, Header: h}).Refusal; got != test.want {
			t.Errorf("%d with %q is %+v, want %+v", test.status, test.header, got, test.want)
		}
	}
}

// Responses name the limits of the plan.
func TestPipedriveFollows(t *testing.T) {
	for _, test := range []struct {
		header map[string]string
		first  func() *http.Request
		want   int // at once after the response
	}{
		{map[string]string{"X-RateLimit-Limit": "120"}, to(t, "GET", pipedrive+"v2/deals/1"), 119},
		{map[string]string{"X-RateLimit-Limit": "480"}, withHeader(to(t, "GET", pipedrive+"v2/deals/1"), "Authorization", "Bearer a"), 479},
		{map[string]string{"X-RateLimit-Limit": "1000"}, to(t, "GET", pipedrive+"v2/deals/1"), 119},
		{map[string]string{"X-Daily-RateLimit-Token-Limit": "13"}, to(t, "GET", pipedrive+"v2/deals/1"), 12},
		{map[string]string{"X-RateLimit-Limit": "10"}, to(t, "GET", pipedrive+"v2/deals/search"), 19},
	} {
		synctest.Test(t, func(t *testing.T) {
			server := replying{Header: test.header}
			tokens := int64(1_000_000)
			if test.want == 12 {
				tokens = 20
			}
			rt := over(t, providers.Pipedrive(tokens), &server)
			next := test.first
			send(t, rt, next().WithContext(t.Context()))
			if test.want == 19 {
				next = to(t, "GET", pipedrive+"v2/deals/1")
			}
			n := 0
			for ; n <= test.want; n++ {
				if _, _, took := send(t, rt, next().WithContext(t.Context())); took > 0 {
					break
				}
			}
			if n != test.want {
				t.Errorf("%v: %d more at once, want %d", test.header, n, test.want)
			}
		})
	}
}

func ExamplePipedrive() {
	client, err := providers.Pipedrive(30_000 * 2 * 5).Client(nil) // five seats of Growth
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Get("https://acme.pipedrive.com/api/v2/deals?limit=500")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}
