package providers_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/internal/fakeapi"
	"github.com/apithrottle/throttle/internal/soak"
	"github.com/apithrottle/throttle/providers"
)

const mondayAPI = "https://api.monday.com/v2"

// mondayQuery returns a function that sends a query, which costs its variable cost.
func mondayQuery(t *testing.T, query string, cost int) func() *http.Request {
	body, _ := json.Marshal(map[string]any{"query": query, "variables": map[string]any{"cost": cost}})
	return to(t, "POST", mondayAPI, string(body))
}

// A mondayServer counts points as monday.com documents: in a minute that begins with a query.
type mondayServer struct {
	headers, field bool // how it reports points: in the header RateLimit, in the field complexity
	latency        time.Duration

	mu       sync.Mutex
	began    time.Time
	used     int
	served   int // points
	passed   int
	refused  int
	inFlight int
}

func (s *mondayServer) RoundTrip(req *http.Request) (*http.Response, error) {
	const budget = 1_000_000
	var query struct{ Variables struct{ Cost int } }
	text, _ := io.ReadAll(req.Body)
	_ = json.Unmarshal(text, &query)
	cost := query.Variables.Cost
	s.mu.Lock()
	if now := time.Now(); now.Sub(s.began) >= time.Minute {
		s.began, s.used = now, 0
	}
	s.inFlight++
	refused := s.used+cost > budget || s.inFlight > 40
	if !refused {
		s.used, s.served, s.passed = s.used+cost, s.served+cost, s.passed+1
	} else {
		s.refused++
	}
	left := budget - s.used
	s.mu.Unlock()
	time.Sleep(s.latency)
	s.mu.Lock()
	s.inFlight--
	s.mu.Unlock()
	reply := replying{Status: 200, Header: map[string]string{}, Body: `{"data":{}}`}
	if s.headers {
		reply.Header["RateLimit-Policy"] = `"minuteRate";q=1000;w=60, "concurrency";q=40;qu="concurrent-requests", "complexityMinute";q=1000000;w=60;qu="content-bytes"`
		reply.Header["RateLimit"] = fmt.Sprintf(`"minuteRate";r=999, "concurrency";r=39, "complexityMinute";r=%d;t=45`, left)
	}
	if s.field {
		reply.Body = fmt.Sprintf(`{"data":{"complexity":{"before":%d,"query":%d,"after":%d,"reset_in_x_seconds":45}}}`, left+cost, cost, left)
	}
	if refused {
		reply.Body = `{"errors":[{"message":"Complexity budget exhausted","extensions":{"code":"COMPLEXITY_BUDGET_EXHAUSTED","retry_in_seconds":7}}]}`
	}
	return reply.RoundTrip(req)
}

// Costs are learned from what responses report, in either way. The header alone does not tell the costs of queries in
// flight apart: chance lets one of 200,000 be refused.
func TestMondayCosts(t *testing.T) {
	for _, test := range []struct {
		name           string
		headers, field bool
		share          int // percent of the budget
		refused        int // at most
	}{
		{"the field complexity", false, true, 90, 0}, {"the header", true, false, 90, 1},
		{"both", true, true, 90, 0}, {"neither", false, false, 65, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			soak.Sample(t, 4)
			synctest.Test(t, func(t *testing.T) {
				const minutes = 10
				p := providers.Monday(1_000)
				p.Scope("account").Policy.Tiers[3].Limit = 1_000_000
				server := &mondayServer{headers: test.headers, field: test.field, latency: 300 * time.Millisecond}
				saturate(t, over(t, p, server), 32, minutes*time.Minute, func(worker int) *http.Request {
					if worker%2 == 0 {
						return mondayQuery(t, fmt.Sprintf(`query { boards(ids: %d, page: %d) { name } }`, 12345+worker, worker), 4_000)()
					}
					return mondayQuery(t, `mutation { create_item(item_name: "`+strings.Repeat("x", worker)+`") { id } }`, 10_000)()
				})
				if least := test.share * minutes * 10_000; server.refused > test.refused || server.served < least {
					t.Errorf("%d refused, %d served with %d points, want %d and %d", server.refused, server.passed, server.served, test.refused, least)
				}
			})
		})
	}
}

func TestMonday(t *testing.T) {
	small := mondayQuery(t, "query { me { id } }", 1)
	free := func() providers.Provider { // with known costs
		p := providers.Monday(1_000)
		cost := p.Cost
		p.Settle = nil
		p.Cost = func(req *http.Request) throttle.Cost {
			c := cost(req)
			c["points"] = 1
			return c
		}
		return p
	}
	mutation := func(query string) func() *http.Request { return mondayQuery(t, query, 1) }
	board := mutation(`mutation { create_board(board_name: "x") { id } }`)
	checkAtOnce(t, free, []atOnceTest{
		{"an account", 1_000, []func() *http.Request{small}},
		{"boards", 40, []func() *http.Request{board}},
		{"copies of boards and groups", 80, []func() *http.Request{mutation("mutation { duplicate_board(id: 1) { id } }"), mutation("mutation { duplicate_group(id: 1) { id } }")}},
		{"copies of groups", 40, []func() *http.Request{mutation("mutation { duplicate_group(id: 1) { id } }")}},
		{"two boards in a mutation", 20, []func() *http.Request{mutation("mutation { a: create_board(x: 1) { id } b: create_board(x: 2) { id } }")}},
		{"boards in mutations with others", 40, []func() *http.Request{board, mutation("mutation { create_board { id } duplicate_group { id } }")}},
		{"portfolios", 15, []func() *http.Request{mutation("mutation { connect_project_to_portfolio(a: 1) { id } }")}},
		{"subscriptions", 120, []func() *http.Request{mutation("query { app_subscriptions(a: 1) { id } }")}},
		{"no boards", 1_000, []func() *http.Request{mutation(`mutation { create_item(name: "create_board") { create_board_id } }`)}},
	})
	for perDay, want := range map[int64][2]int64{1_000: {1_000, 40}, 10_000: {2_500, 100}, 25_000: {5_000, 250}, 2_000: {1_000, 40}} {
		tiers := providers.Monday(perDay).Scope("account").Policy.Tiers
		if tiers[0].Limit != want[0] || tiers[1].Limit != want[1] || tiers[3].Limit != perDay || tiers[3].Period != throttle.Day {
			t.Errorf("%d a day: %v, want %v", perDay, tiers, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		if n := atATime(t, free(), 60, func() *http.Request { return small().WithContext(t.Context()) }); n != 40 {
			t.Errorf("%d in flight, want 40", n)
		}
	})
	checkAtOnce(t, func() providers.Provider {
		p := free()
		p.Scope("account").Policy.Tiers[0].Limit = 10_000
		return p
	}, []atOnceTest{{"a day", 1_000, []func() *http.Request{small}}})
	// A new query may cost a tenth of the budget, and one with a limited field less.
	synctest.Test(t, func(t *testing.T) {
		if n := atATime(t, providers.Monday(1_000), 20, func() *http.Request { return small().WithContext(t.Context()) }); n != 10 {
			t.Errorf("%d new queries in flight, want 10", n)
		}
	})
}

func TestMondayRefusals(t *testing.T) {
	free := func() providers.Provider { return providers.Monday(1_000) }
	small, board := mondayQuery(t, "query { me { id } }", 1), mondayQuery(t, "mutation { create_board { id } }", 1)
	coded := func(status int, code, more string) fakeapi.Reply {
		return fakeapi.Reply{Status: status, Body: `{"errors":[{"message":"Refused","extensions":{"code":"` + code + `"` + more + `}}]}`}
	}
	checkRefusals(t, free, []refusalTest{
		{name: "points", first: small, reply: coded(200, "COMPLEXITY_BUDGET_EXHAUSTED", `,"retry_in_seconds":7`), want: 7 * time.Second},
		{name: "points, by a mutation", first: board, next: small, reply: coded(429, "COMPLEXITY_BUDGET_EXHAUSTED", `,"retry_in_seconds":60,"status_code":429`), want: time.Minute},
		{name: "points, with an error_code", first: small, want: 16 * time.Second,
			reply: fakeapi.Reply{Body: `{"error_code":"ComplexityException","status_code":429,"error_message":"Complexity budget exhausted, query cost 222080 budget remaining 747 out of 10000000 reset in 16 seconds","error_data":{},"errors":["Complexity budget exhausted, query cost 222080 budget remaining 747 out of 10000000 reset in 16 seconds"],"account_id":1}`}},
		{name: "points, with another error_code", reply: fakeapi.Reply{Body: `{"errors":["Complexity budget exhausted, query cost 222250 budget remaining 214980 out of 10000000 reset in 3 seconds"],"status_code":429,"error_message":"Complexity budget exhausted, query cost 222250 budget remaining 214980 out of 10000000 reset in 3 seconds","error_code":"complexityBudgetExhausted"}`}, want: 3 * time.Second},
		{name: "a field", reply: fakeapi.Reply{Body: `{"error_message":"Concurrency limit exceeded for the field","error_code":"FIELD_LIMIT_EXCEEDED","error_data":{"retry_in_seconds":15,"entity":"boards"},"status_code":429}`}},
		{name: "a field, among others", reply: coded(200, "FIELD_LIMIT_EXCEEDED", `,"status_code":429,"retry_in_seconds":15`)},
		{name: "an idempotency key", reply: coded(409, "IDEMPOTENCY_CONFLICT", "")},
		{name: "too complex, with a code", reply: coded(429, "REQUEST_MAX_COMPLEXITY_EXCEEDED", "")},
		{name: "too many at once", reply: coded(200, "maxConcurrencyExceeded", ""), want: backoff},
		{name: "the minute", reply: fakeapi.Reply{Status: 429, Header: map[string]string{"Retry-After": "38"}, Body: `{"errors":[{"message":"Minute limit rate exceeded"}]}`}, want: 38 * time.Second},
		{name: "a status in the body", reply: coded(200, "SOMETHING", `,"status_code":429,"retry_in_seconds":4`), want: 4 * time.Second},
		{name: "the address", reply: coded(429, "IP_RATE_LIMIT_EXCEEDED", `,"retry_in_seconds":9`), want: 9 * time.Second},
		{name: "boards", first: board, reply: fakeapi.Reply{Status: 429, Body: `{"errors":[{"message":"Call limit exceeded for CreateBoard"}]}`}, want: time.Minute},
		{name: "boards alone", first: board, next: small, reply: fakeapi.Reply{Status: 429, Body: `{"errors":[{"message":"Call limit exceeded for CreateBoard"}]}`}},
		{name: "an outage", first: small, reply: coded(200, "API_TEMPORARILY_BLOCKED", "")},
		{name: "too complex", reply: fakeapi.Reply{Body: `{"errors":[{"message":"Query has complexity of 1016020, which exceeds max complexity of 1000000"}]}`}},
		{name: "locked", reply: fakeapi.Reply{Status: 423, Header: map[string]string{"Retry-After": "5"}}},
		{name: "not allowed", reply: coded(200, "UserUnauthorizedException", `,"status_code":403`)},
		{name: "none left of the minute", reply: fakeapi.Reply{Header: map[string]string{"RateLimit": `"minuteRate";r=0;t=38, "concurrency";r=39`}}, want: time.Minute},
	})
	day := func() providers.Provider {
		p := free()
		p.Scope("account").Policy.MaxPause = 24 * time.Hour
		return p
	}
	checkRefusals(t, day, []refusalTest{
		{name: "the day", first: small, reply: coded(200, "DAILY_LIMIT_EXCEEDED", ""), want: 24 * time.Hour},
		{name: "the day, with an error_code", first: small, reply: fakeapi.Reply{Status: 429, Body: `{"error_code":"DAILY_LIMIT_EXCEEDED"}`}, want: 24 * time.Hour},
	})
}

// The cost of a query is learned from what the header has less, whatever other queries cost.
func TestMondayLearns(t *testing.T) {
	type step struct {
		query, token string
		left, known  int // known is the cost in the response. If zero, there is none
	}
	const of = "query { boards(ids: 12345) { id } }"
	many := func(steps ...func(i int) step) (all []step) {
		for i := range 30 {
			for _, s := range steps {
				all = append(all, s(i))
			}
		}
		return all
	}
	queries := many(func(i int) step { return step{of, "a", 900_000 - 2_000*i, 0} })
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"alone", queries},
		{"two accounts", many(func(i int) step { return step{of, "a", 900_000 - 2_000*i, 0} }, func(i int) step { return step{of, "b", 400_000 - 2_000*i, 0} })},
		{"with ids", many(func(i int) step {
			return step{fmt.Sprintf("query { boards(ids: %d) { id } }", 12_346+i), "a", 900_000 - 2_000*i, 0}
		})},
		{"with another", many(func(i int) step { return step{of, "a", 900_000 - 12_000*i, 0} }, func(i int) step { return step{"query { me { id } }", "a", 890_000 - 12_000*i, 10_000} })},
		{"after others", append(slices.Clone(queries), step{"query { me { id } }", "a", 100_000, 10}, step{of, "a", 98_000, 0})},
		{"in another minute", append([]step{{"query { me { id } }", "a", 1_000, 0}}, queries...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := providers.Monday(1_000)
				p.Account = func(req *http.Request) string { return req.Header.Get("Authorization") }
				var server replying
				rt := over(t, p, &server)
				for _, s := range test.steps {
					server = replying{Header: map[string]string{"RateLimit": fmt.Sprintf(`"complexityMinute";r=%d;t=45`, s.left)}, Body: `{"data":{}}`}
					if s.known > 0 {
						server.Body = fmt.Sprintf(`{"data":{"complexity":{"query":%d}}}`, s.known)
					}
					req := mondayQuery(t, s.query, 1)()
					req.Header.Set("Authorization", s.token)
					send(t, rt, req)
				}
				if n := p.Cost(mondayQuery(t, of, 1)())["points"]; n < 2_000 || n > 4_000 {
					t.Errorf("%d points, want 2,000", n)
				}
			})
		})
	}
}

// A refusal and the caller's error cost no points.
func TestMondayFree(t *testing.T) {
	for _, reply := range []replying{
		{Status: 429},
		{Status: 400},
		{Body: `{"errors":[{"message":"Complexity budget exhausted","extensions":{"code":"COMPLEXITY_BUDGET_EXHAUSTED"}}]}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr, err := providers.Monday(1_000).Transport(nil)
			if err != nil {
				t.Fatal(err)
			}
			tr.Base = &reply
			next := mondayQuery(t, "query { me { id } }", 1)
			send(t, tr, next())
			s, err := tr.Route(next()).Status(t.Context())
			if err != nil || s.Tiers[2].Tier.Unit != "points" || s.Tiers[2].Used != 0 {
				t.Errorf("%+v: %v, %v, want no points used", reply, s.Tiers, err)
			}
		})
	}
}

// Points that others have used count.
func TestMondayOthers(t *testing.T) {
	for _, test := range []struct {
		name string
		last fakeapi.Reply
		want time.Duration
	}{
		{"others use them up", fakeapi.Reply{Header: map[string]string{"RateLimit": `"complexityMinute";r=0;t=38`}, Body: `{"data":{"complexity":{"query":7}}}`}, time.Minute},
		{"others use some", fakeapi.Reply{Header: map[string]string{"RateLimit": `"complexityMinute";r=500000;t=38`}, Body: `{"data":{"complexity":{"query":7}}}`}, 0},
		{"a large query", fakeapi.Reply{Body: `{"data":{"complexity":{"query":990000}}}`}, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := replying{Body: `{"data":{"complexity":{"query":7}}}`}
				rt := over(t, providers.Monday(1_000), &server)
				next := mondayQuery(t, "query { me { id } }", 1)
				for range 20 {
					send(t, rt, next())
				}
				server = replying(test.last)
				send(t, rt, next())
				server = replying{}
				if _, _, took := send(t, rt, mondayQuery(t, "query { boards { id } }", 1)()); took < test.want || took > test.want+2*time.Second {
					t.Errorf("the next query waits %v, want %v", took, test.want)
				}
			})
		})
	}
}

// The limits of the minute are those that two responses name.
func TestMondayFollows(t *testing.T) {
	for _, test := range []struct{ policy, minute, points int64 }{{100, 100, 1_000_000}, {5_000, 5_000, 10_000_000}, {6_000, 5_000, 20_000_000}} {
		synctest.Test(t, func(t *testing.T) {
			p := providers.Monday(1_000_000)
			tr, err := p.Transport(nil)
			if err != nil {
				t.Fatal(err)
			}
			tr.Base = &replying{Header: map[string]string{
				"RateLimit-Policy": fmt.Sprintf(`"minuteRate";q=%d;w=60, "concurrency";q=40;qu="concurrent-requests", "complexityMinute";q=%d;w=60;qu="content-bytes"`, test.policy, test.points),
				"RateLimit":        `"minuteRate";r=99, "concurrency";r=39, "complexityMinute";r=990000`,
			}}
			next := mondayQuery(t, "query { me { id } }", 1)
			for range 4 {
				send(t, tr, next())
			}
			s, err := tr.Route(next()).Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]int64{}
			for _, tier := range s.Tiers {
				if tier.Tier.Window == time.Minute {
					got[tier.Tier.Unit] = tier.Limit
				}
			}
			if want := min(test.points, 10_000_000); got["requests"]+got[""] != test.minute || got["points"] != want {
				t.Errorf("%+v: %v", test, got)
			}
		})
	}
}

func ExampleMonday() {
	client, err := providers.Monday(10_000).Client(nil) // an account on Pro
	if err != nil {
		fmt.Println(err)
		return
	}
	client.Transport.(*throttle.Transport).Base = accepting{} // instead of the network

	resp, err := client.Post("https://api.monday.com/v2", "application/json", strings.NewReader(`{"query":"{ complexity { query } me { id } }"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode)
	// Output: 200
}

// The fields of a query are found however the body writes them: their units are those that scopes count.
func TestMondayEscapedFields(t *testing.T) {
	checkAtOnce(t, func() providers.Provider { return providers.Monday(25_000) }, []atOnceTest{
		{"escaped and not", 15, []func() *http.Request{
			to(t, "POST", mondayAPI, `{"query":"mutation{connect\u005fproject_to_portfolio(id:1){id}}"}`),
			to(t, "POST", mondayAPI, `{"query":"mutation{connect_project_to_portfolio(id:1){id}}"}`),
			to(t, "POST", mondayAPI+"?query=mutation{connect_project_to_portfolio(id:1){id}}", `{}`),
		}},
	})
}
