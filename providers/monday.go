package providers

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/apithrottle/throttle"
	"github.com/apithrottle/throttle/answers"
	"github.com/apithrottle/throttle/internal/prompt"
)

var mondayPreset = Preset{
	Name: "monday", Constructor: "Monday(perDay int64)", kind: "Code and work",
	Parameters: []Parameter{{Name: "per_day", About: "calls a day of the account", Min: 1, Default: "1000", Example: "10000"}},
	call:       func(a arguments) Provider { return Monday(a.number("per_day")) },
}

// Monday is the API of monday.com, with the limits of one app or personal token in one account. The
// plan of the account decides about its calls a day, until midnight UTC, a minute and at once: 1,000,
// 1,000 and 40; with Pro 10,000, 2,500 and 100; with Enterprise 25,000, 5,000 and 250. So perDay
// decides about all three. The mutations create_board, duplicate_board and duplicate_group have 40
// calls a minute each, connect_project_to_portfolio has 15, and the query app_subscriptions 120. Two
// limits are not counted: the 10,000 values of formulas a minute, and the 5,000 calls in 10 seconds of
// an IP address, which are more than an account has.
//
// Queries cost points. Here they have 1,000,000 in any minute, as in trial and free accounts. Paid
// accounts have 10,000,000 for personal tokens. Apps have 5,000,000 for reads and as many for writes,
// which share them here. Responses name the limits of the minute, and the preset takes them over.
//
// The points of a query are known when it has run. So the charge comes from what similar queries have
// cost, which have the same text, except for ids and strings, and variables of the same shape. It is
// their average plus one and a half times their average deviation. A query whose text is new, or that
// has no GetBody, is charged 100,000 until its response comes, so that ten go at once in a free
// account. The response to a query with the field complexity { query } contains the cost. For other
// queries it is the number of points that the header RateLimit has less than in the response before,
// or 10,000 if that is unknown.
//
// A refusal has status 429 or 200. It names the wait and pauses the account, or the mutation that has
// too many calls. If the day is used up, requests wait for midnight UTC if Policy.MaxPause allows it. If
// not, the quota is closed with throttle.ErrBanned, and one request tries after each MaxPause. A query
// that is too complex for any budget, and a locked board, pause nothing.
func Monday(perDay int64) Provider {
	const page = "https://developer.monday.com/api-reference/docs/rate-limits"
	perMinute, atOnce := int64(1_000), int64(40)
	switch {
	case perDay >= 25_000:
		perMinute, atOnce = 5_000, 250
	case perDay >= 10_000:
		perMinute, atOnce = 2_500, 100
	}
	points := follows(mondayFree, 10*mondayFree, minute(mondayFree, "points"))
	points.Estimated = true
	costs := &mondayCosts{left: map[string]int64{}, budget: mondayFree}
	costs.others.First, costs.listed.First = mondayNew, mondayListed
	p := Provider{
		Name:    "monday",
		Cost:    costs.estimate,
		Settle:  costs.settle,
		Profile: mondayProfile(),
		Hosts:   []string{"api.monday.com"},
	}
	for _, f := range mondayFields {
		of := some(f.name, page, when(func(req *http.Request) bool { return f.uses(req) > 0 }), minute(f.limit, f.name))
		of.Shared = true // a query may use several
		p.Scopes = append(p.Scopes, of)
	}
	p.Scopes = append(p.Scopes, every("account", page,
		follows(100, 5_000, throttle.PerMinute(perMinute)), throttle.Tier{Limit: atOnce, Algorithm: throttle.Concurrency}, points,
		throttle.Tier{Limit: perDay, Unit: "calls", Algorithm: throttle.Calendar, Period: throttle.Day}))
	return p.readOn("2026-11-29")
}

const (
	mondayFree       = 1_000_000 // points a minute of a free account
	mondayMost       = 5_000_000 // points of one query
	mondayNew        = 100_000   // points of a query whose text is new
	mondayListed     = 25_000    // points of a new query that uses one of mondayFields: 40 fit into the budget
	mondayUnreported = 10_000    // points of a query of unknown cost, as much as creating an item
)

// A mondayField is a field of queries with a limit of its own.
type mondayField struct {
	name  string
	limit int64  // a minute
	error string // its name in refusals; if empty, unknown
	word  *regexp.Regexp
}

var mondayFields = []mondayField{
	{"create_board", 40, "CreateBoard", regexp.MustCompile(`\bcreate_board\b`)},
	{"duplicate_board", 40, "DuplicateBoard", regexp.MustCompile(`\bduplicate_board\b`)},
	{"duplicate_group", 40, "DuplicateGroup", regexp.MustCompile(`\bduplicate_group\b`)},
	{"connect_project_to_portfolio", 15, "", regexp.MustCompile(`\bconnect_project_to_portfolio\b`)},
	{"app_subscriptions", 120, "", regexp.MustCompile(`\bapp_subscriptions\b`)},
}

// uses returns how often the query of a request uses the field, as far as the limit allows.
func (f mondayField) uses(req *http.Request) int64 {
	if !bytes.Contains(body(req), []byte(f.name)) {
		return 0
	}
	return min(int64(len(f.word.FindAllString(mondayText(form(req).Get("query")), -1))), f.limit)
}

// mondayOne are the parts of a query that don't decide about its cost: texts, ids and pages.
var mondayOne = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\b\d{5,}\b|\bpage\s*:\s*\d+`)

// mondayText returns the text of a query without what does not decide about its cost.
func mondayText(query string) string { return mondayOne.ReplaceAllString(query, "") }

// mondayKinds returns the kinds of queries that cost about as much, or none for an unknown query.
func mondayKinds(req *http.Request) []uint64 {
	values := form(req)
	text := mondayText(values.Get("query"))
	if text == "" {
		return nil
	}
	var variables any
	_ = json.Unmarshal([]byte(values.Get("variables")), &variables)
	shape, _ := json.Marshal(withoutStrings(variables))
	text += values.Get("operationName")
	return []uint64{prompt.Kind(text), prompt.Kind(text, string(shape))}
}

// mondayCosts are the costs of queries, as responses report them.
type mondayCosts struct {
	others, listed prompt.Learner // of queries without and with one of mondayFields

	mu       sync.Mutex       // guards all below
	left     map[string]int64 // the fewest points in a response of the minute, by token
	budget   int64            // the highest that a response has named
	inFlight int64            // points, as estimated
}

// estimate returns what a request costs, as far as it is known before its response.
func (c *mondayCosts) estimate(req *http.Request) throttle.Cost {
	c.mu.Lock()
	most := min(c.budget, mondayMost)
	c.mu.Unlock()
	similar, cost := c.of(req)
	cost["requests"], cost["calls"], cost["points"] = 1, 1, min(similar.Estimate(mondayKinds(req)...), most)
	return cost
}

// of returns the costs of similar queries, and what a query uses of mondayFields.
func (c *mondayCosts) of(req *http.Request) (similar *prompt.Learner, uses throttle.Cost) {
	similar, uses = &c.others, throttle.Cost{}
	for _, f := range mondayFields {
		if n := f.uses(req); n > 0 {
			similar, uses[f.name] = &c.listed, n
		}
	}
	return similar, uses
}

// settle returns a function that returns what a request has cost.
func (c *mondayCosts) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	similar, _ := c.of(req)
	kinds, token := mondayKinds(req), anonymous(req.Header.Get("Authorization"))
	estimate := similar.Estimate(kinds...)
	end := similar.Begin(kinds...)
	c.add(estimate)
	return func(reported throttle.Cost) throttle.Cost {
		spent := c.spent(token, reported)
		c.add(-estimate)
		n, known := reported["points"]
		if !known {
			n = spent
		}
		end(n, n > 0) // 0 of a refusal, a request that was not sent, and one that the response before has counted
		return throttle.Cost{"points": n}
	}
}

// add counts the estimates of queries in flight.
func (c *mondayCosts) add(n int64) {
	c.mu.Lock()
	c.inFlight += n
	c.mu.Unlock()
}

// spent returns how many points less a response has left than the one before. A response that has a
// little more, at most what is in flight, was counted before that one. If it has much more, another
// minute has begun.
func (c *mondayCosts) spent(token string, reported throttle.Cost) int64 {
	const tokens = 1_000 // that are remembered
	left, reports := reported["left"]
	if !reports {
		return mondayUnreported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = min(max(c.budget, reported["budget"]), 10*mondayFree)
	before, known := c.left[token]
	if known && before <= left && left <= before+c.inFlight {
		return 0
	}
	if len(c.left) >= tokens {
		clear(c.left)
	}
	if c.left[token] = left; known && before > left {
		return min(before-left, mondayMost)
	}
	return mondayUnreported
}

// mondayProfile returns the profile of monday.com's API. A refusal is an error with a code, an error that
// is a text, or an error_code, by the version of the API, and may have status 200.
func mondayProfile() answers.Profile {
	const policy, state, points = "Ratelimit-Policy", "Ratelimit", `"complexityMinute";`
	count := func(header, after string) answers.Field { return answers.Field{Header: header, After: after} }
	const of, message, code = "errors.*.extensions.", "errors.*.message", "errors.*.extensions.code"
	p := answers.Profile{
		Quotas: []answers.Quota{
			{Name: "minuteRate", Window: time.Minute, Limit: count(policy, `"minuteRate";q=`), Remaining: count(state, `"minuteRate";r=`)},
			{Name: "complexityMinute", Unit: "points", Window: time.Minute, Limit: count(policy, points+"q="), Remaining: count(state, points+"r=")},
		},
		Charges: []answers.Charge{
			{Unit: "points", Field: answers.Field{Path: "data.complexity.query"}},
			{Unit: "left", Field: count(state, points+"r=")},
			{Unit: "budget", Field: count(policy, points+"q=")},
		},
		RetryAfter: []answers.Field{
			{Header: "Retry-After", Format: answers.RetryAfter},
			{Path: of + "retry_in_seconds", Format: answers.Seconds}, {Path: "error_data.retry_in_seconds", Format: answers.Seconds},
			{Path: "error_message", After: "reset in ", Format: answers.Seconds}, {Path: message, After: "reset in ", Format: answers.Seconds},
			{Path: "errors.*", After: "reset in ", Format: answers.Seconds},
		},
		Reasons: []answers.Field{{Path: code}, {Path: "error_code"}, {Path: message}},
	}
	free := map[string]int64{"points": 0}
	add := func(r answers.Rule, paths ...string) {
		for _, path := range paths {
			r.Method, r.Path = http.MethodPost, path
			p.Rules = append(p.Rules, r)
		}
	}
	p.Rules = append(p.Rules, answers.Rule{Status: http.StatusLocked, Kind: answers.Other, Reason: "locked"})
	add(answers.Rule{Text: "Query has complexity of *", Kind: answers.Other, Reason: "too complex", Cost: free}, message, "error_message", "errors.*")
	for _, f := range mondayFields {
		if f.error != "" {
			add(answers.Rule{Text: "Call limit exceeded for " + f.error + "*", Kind: answers.Limited, Unit: f.name, Cost: free, Wait: time.Minute}, message, "error_message", "errors.*")
		}
	}
	for _, text := range []string{"COMPLEXITY_BUDGET_EXHAUSTED", "ComplexityException", "complexityBudgetExhausted"} {
		add(answers.Rule{Text: text, Kind: answers.Limited, Unit: "points", Cost: free}, code, "error_code")
	}
	add(answers.Rule{Text: "Complexity budget exhausted*", Kind: answers.Limited, Unit: "points", Cost: free}, message, "errors.*")
	add(answers.Rule{Text: "DAILY_LIMIT_EXCEEDED", Kind: answers.Limited, Unit: "calls", Cost: free, Until: "UTC"}, code, "error_code", message)
	for _, text := range []string{"IP_RATE_LIMIT_EXCEEDED", "maxConcurrencyExceeded", "Rate Limit Exceeded", "FIELD_LIMIT_EXCEEDED", "API_TEMPORARILY_BLOCKED"} {
		add(answers.Rule{Text: text, Kind: answers.Limited, Cost: free}, code, "error_code")
	}
	for _, text := range []string{"Minute limit rate exceeded*", "Concurrency limit exceeded*", "Rate Limit Exceeded*"} {
		add(answers.Rule{Text: text, Kind: answers.Limited, Cost: free}, message, "error_message", "errors.*")
	}
	add(answers.Rule{Text: "429", Kind: answers.Limited, Cost: free}, of+"status_code", "status_code")
	p.Rules = append(p.Rules, answers.Rule{Status: http.StatusTooManyRequests, Kind: answers.Limited, Cost: free})
	return p
}
