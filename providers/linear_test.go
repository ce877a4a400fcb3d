package providers_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const linearAPI = "https://api.linear.app/graphql"

// linearCall returns a function that makes a query with the credentials with.
func linearCall(t *testing.T, with, query string) func() *http.Request {
	t.Helper()
	body, err := json.Marshal(map[string]any{"query": query})
	if err != nil {
		t.Fatal(err)
	}
	make := to(t, "POST", linearAPI, string(body))
	return func() *http.Request {
		req := make()
		if with != "" {
			req.Header.Set("Authorization", with)
		}
		return req
	}
}

// The keys of a user share a quota, a token of an app has its own, and so has an address.
func TestLinearLimits(t *testing.T) {
	const viewer = "{ viewer { id } }"
	call := func(with string) func() *http.Request { return linearCall(t, with, viewer) }
	with := func(credentials string) func() *http.Request { // a query that can't be read
		unreadable := to(t, "POST", linearAPI, "[]")
		return func() *http.Request {
			req := unreadable()
			req.Header.Set("Authorization", credentials)
			return req
		}
	}
	for _, test := range []struct {
		name string
		want int
		of   []func() *http.Request
	}{
		{"an API key", 2_500, []func() *http.Request{call("lin_api_a")}},
		{"two API keys", 2_500, []func() *http.Request{call("lin_api_a"), call("lin_api_b")}},
		{"a token", 5_000, []func() *http.Request{call("Bearer a")}},
		{"two tokens", 10_000, []func() *http.Request{call("Bearer a"), call("Bearer b")}},
		{"a key and a token", 5_000, []func() *http.Request{call("lin_api_a"), call("Bearer a")}}, // until the key has none
		{"an address", 600, []func() *http.Request{call("")}},
		{"points of a key", 300, []func() *http.Request{with("lin_api_a")}},
		{"points of a token", 200, []func() *http.Request{with("Bearer a")}},
		{"points of an address", 10, []func() *http.Request{with("")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 8)
			synctest.Test(t, func(t *testing.T) {
				next := alternate(test.of...)
				n := atOnce(t, providers.Linear(), test.want+1, func() *http.Request { return next().WithContext(t.Context()) })
				if n != test.want {
					t.Errorf("%d at once, want %d", n, test.want)
				}
			})
		})
	}
	if got := providers.Linear().Scope("address").Per; got != providers.PerAddress {
		t.Errorf("requests without credentials count %v", got)
	}
	checkUnlimited(t, providers.Linear, "another path", to(t, "POST", "https://api.linear.app/oauth/token", "{}"))
}

// A bucket gains the limit of an hour in an hour, and nothing is lost while responses report none
// left.
func TestLinearRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.Linear(), &replying{Header: map[string]string{
			"X-Complexity": "2", "X-Ratelimit-Requests-Limit": "2500", "X-Ratelimit-Requests-Remaining": "0",
			"X-Ratelimit-Requests-Reset": fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()),
		}})
		next := linearCall(t, "lin_api_a", "{ viewer { id } }")
		send(t, rt, next().WithContext(t.Context()))
		start := time.Now()
		for range 25 {
			send(t, rt, next().WithContext(t.Context()))
		}
		if took := time.Since(start); took < 35*time.Second || took > 45*time.Second {
			t.Errorf("25 requests took %v, want 25 × 1.44 s", took)
		}
	})
}

func TestLinearCost(t *testing.T) {
	const issues = `issues(first: 5) { edges { node { title description creator { email }
		labels { edges { node { name } } } comments { edges { node { user { email } body } } } } } }`
	for _, test := range []struct {
		name, query, variables string
		want                   int64
	}{
		{"an object", `query WhoAmI { user(id: "me") { name } }`, "", 2},
		{"a connection", `{ user(id: "me") { createdIssues { nodes { id title createdAt } } } }`, "", 66},
		{"ten of a connection", `{ user(id: "me") { createdIssues(first: 10) { nodes { id title createdAt } } } }`, "", 14},
		{"the last ten", `{ user(id: "me") { createdIssues(last: 10, filter: {n: {eq: 3}}, orderBy: updatedAt) { nodes { id title createdAt } } } }`, "", 14},
		{"edges", "{ " + issues + " }", "", 1_342}, // Linear counted 13,415 for 50
		{"a variable", `query Q($n: Int = 7, $f: F) { user { createdIssues(first: $n, filter: $f) { nodes { id title createdAt } } } }`, `{"n": 10, "f": {"a": 1}}`, 14},
		{"the default of a variable", `query Q($n: Int = 10) { user { createdIssues(first: $n) { nodes { id title createdAt } } } }`, "{}", 14},
		{"fragments", `query Q { me: user { createdIssues @include(if: true) { ...C } } } # the SDK's
			fragment C on IssueConnection { nodes { ...I ... on Issue { id } } } fragment I on Issue { title, createdAt }`, "", 66},
		{"a mutation", `mutation { issueCreate(input: {title: "a } b", teamId: "1"}) { success issue { id } } }`, "", 3},
		{"a fragment in itself", `{ a { ...F } } fragment F on A { b ...F }`, "", 2},
		{"the operation named", `query A { issues { nodes { id } } } query Op { user { name } } query B { issues { nodes { id } } }`, "", 2},
		{"too complex", `{ issues(first: 250) { nodes { comments(first: 250) { nodes { id } } } } }`, "", 10_000},
		{"a huge page", `{ issues(first: 9223372036854775807) { nodes { id } } }`, "", 275},
		{"malformed", `{ issues { nodes { id }`, "", 10_000},
		{"too deep", strings.Repeat("{ a ", 60) + strings.Repeat("}", 60), "", 10_000},
		{"none", "", "", 10_000},
	} {
		if test.variables == "" {
			test.variables = "null"
		}
		query, _ := json.Marshal(test.query)
		req := to(t, "POST", linearAPI, fmt.Sprintf(`{"operationName": "Op", "query": %s, "variables": %s}`, query, test.variables))()
		if got := providers.Linear().Cost(req); got["complexity"] != test.want {
			t.Errorf("%s costs %v, want %d", test.name, got, test.want)
		}
	}
}

// X-Complexity corrects the estimate.
func TestLinearSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := over(t, providers.Linear(), &replying{Header: map[string]string{"X-Complexity": "10000"}})
		next := linearCall(t, "lin_api_a", "{ viewer { id } }")
		for n := range 301 {
			if _, _, took := send(t, rt, next().WithContext(t.Context())); (took > 0) != (n == 300) {
				t.Errorf("request %d waited %v: the hour has 300 of 10,000 points", n, took)
			}
		}
	})
}

// A linearServer has the buckets of a user, and reports their state. A query costs more than its
// text says.
type linearServer struct {
	mu              sync.Mutex // guards all below
	at              time.Time
	requests        float64 // left
	points          float64
	served, refused int
}

func (s *linearServer) RoundTrip(req *http.Request) (*http.Response, error) {
	const cost = 3_000
	time.Sleep(5*time.Millisecond + rand.N(45*time.Millisecond))
	s.mu.Lock()
	defer s.mu.Unlock()
	passed := time.Since(s.at).Hours()
	s.at = time.Now()
	s.requests, s.points = min(2_500, s.requests+2_500*passed), min(3_000_000, s.points+3_000_000*passed)
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-Complexity": {fmt.Sprint(cost)}}, Body: http.NoBody, Request: req}
	if s.requests < 1 || s.points < cost {
		s.refused++
		resp.StatusCode = http.StatusTooManyRequests
	} else {
		s.served++
		s.requests--
		s.points -= cost
	}
	for name, value := range map[string]float64{"Requests-Remaining": s.requests, "Requests-Limit": 2_500, "Complexity-Remaining": s.points, "Complexity-Limit": 3_000_000} {
		resp.Header.Set("X-Ratelimit-"+name, fmt.Sprint(int64(value)))
	}
	return resp, nil
}

// Queries that cost more than their text says are not refused once similar ones have been answered.
func TestLinearLearns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &linearServer{at: time.Now(), requests: 2_500, points: 3_000_000}
		next := linearCall(t, "lin_api_a", "{ viewer { id } }")
		saturate(t, over(t, providers.Linear(), api), 64, 2*time.Hour, func(int) *http.Request { return next() })
		if api.refused > 0 || api.served < 2_850 {
			t.Errorf("%d refused and %d served, want 3,000", api.refused, api.served)
		}
	})
}

func TestLinearRefusals(t *testing.T) {
	const body = `{"errors":[{"message":"Rate limit exceeded. Only 2500 requests are allowed per 1 hour.","extensions":{"type":"ratelimited","code":"RATELIMITED","statusCode":429}}]}`
	reset := func(of, left string, d time.Duration) map[string]string {
		return map[string]string{ // the clock of synctest
			"X-Ratelimit-" + of + "-Remaining": left,
			"X-Ratelimit-" + of + "-Reset":     fmt.Sprint(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(d).UnixMilli()),
		}
	}
	create, viewer := linearCall(t, "k", "mutation { issueCreate { success } }"), linearCall(t, "k", "{ viewer { id } }")
	checkRefusals(t, providers.Linear, []refusalTest{
		{name: "requests", first: create, next: viewer, reply: fakeapi.Reply{Status: 400, Header: reset("Requests", "0", time.Hour), Body: body}, want: backoff},
		{name: "requests, 200", next: viewer, reply: fakeapi.Reply{Status: 200, Header: reset("Requests", "0", time.Hour), Body: body}, want: backoff},
		{name: "requests, 429", next: viewer, reply: fakeapi.Reply{Status: 429, Header: reset("Requests", "0", time.Hour), Body: body}, want: backoff},
		{name: "complexity", next: viewer, reply: fakeapi.Reply{Status: 400, Header: reset("Complexity", "0", time.Hour), Body: body}, want: backoff},
		{name: "only a message", first: create, next: viewer, reply: fakeapi.Reply{Body: `{"errors":[{"message":"Rate limit exceeded. Only 2500 requests are allowed per 1 hour."}]}`}, want: backoff},
		{name: "another message", first: create, next: viewer, reply: fakeapi.Reply{Body: `{"errors":[{"message":"Not found: Rate limit exceeded. Only 2500"}]}`}},
		{name: "an endpoint", first: create, reply: fakeapi.Reply{Status: 400, Header: reset("Endpoint-Requests", "0", time.Minute), Body: body}, want: time.Minute},
		{name: "another endpoint", next: viewer, reply: fakeapi.Reply{Status: 400, Header: reset("Endpoint-Requests", "0", time.Minute), Body: body}},
		{name: "no header", next: viewer, reply: fakeapi.Reply{Status: 400, Body: body}, want: backoff},
		{name: "no body", next: viewer, reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "7"}}, want: 7 * time.Second},
		{name: "another token", first: linearCall(t, "Bearer a", "{ viewer { id } }"), next: linearCall(t, "Bearer b", "{ viewer { id } }"), reply: fakeapi.Reply{Status: 400, Body: body}},
		{name: "an endpoint of another token", next: linearCall(t, "Bearer b", "{ viewer { id } }"), reply: fakeapi.Reply{Status: 400, Header: reset("Endpoint-Requests", "0", time.Minute), Body: body}},
		{name: "a bad request", first: viewer, reply: fakeapi.Reply{Status: 400, Header: reset("Requests", "100", time.Hour), Body: `{"errors":[{"extensions":{"code":"INPUT_ERROR"}}]}`}},
	})
}

// A file may contain the text of a refusal.
func TestLinearFiles(t *testing.T) {
	r := answers.Response{Method: "GET", Status: 200, Body: []byte(`{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`), Got: time.Now()}
	if got := providers.Linear().Profile.Read(r); got.Kind != answers.Passed {
		t.Errorf("a file is read as %+v", got.Refusal)
	}
}

func TestLinearFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := providers.Linear().Transport(nil)
		if err != nil {
			t.Fatal(err)
		}
		transport.Base = &plan{[]string{"X-Ratelimit-Requests-Limit: 6000", "X-Ratelimit-Complexity-Limit: 250000"}}
		next := linearCall(t, "Bearer a", "{ viewer { id } }")
		for range 2 {
			send(t, transport, next().WithContext(t.Context()))
		}
		if got := limitsOf(t, transport.Route(next())); fmt.Sprint(got[len(got)-2:]) != "[6000 250000]" {
			t.Errorf("the limits are %d, want 6,000 requests and 250,000 points", got)
		}
	})
}

// A response that reports more points than a query may cost charges what it may cost.
func TestLinearBoundsReportedPoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reply := replying{Status: 200, Header: map[string]string{"X-Complexity": "1000000000000000000"}, Body: "{}"}
		rt := over(t, providers.Linear(), &reply)
		for range 2 {
			req := to(t, "POST", "https://api.linear.app/graphql", `{"query":"{viewer{id}}"}`)()
			req.Header.Set("Authorization", "key")
			if _, _, took := send(t, rt, req); took != 0 {
				t.Fatalf("waited %v", took)
			}
		}
	})
}
