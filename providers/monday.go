package providers

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
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
// plan of the account sets its calls a day (until midnight UTC), a minute, and at once: 1,000,
// 1,000 and 40; with Pro 10,000, 2,500 and 100; with Enterprise 25,000, 5,000 and 250. So perDay
// selects all three. For others, change the tiers of the scope "account". For several accounts, set
// Account. Another page says that free and trial accounts have 200 calls a day. The mutations
// create_board, duplicate_board and duplicate_group have 40 calls a minute each,
// connect_project_to_portfolio has 15, and the query app_subscriptions 120. Two limits are not
// counted: the 10,000 values of formulas a minute, and the 5,000 calls of an IP address in 10
// seconds, which exceed the limits of an account.
//
// Queries cost points. Here they have 1,000,000 in any minute, as in trial and free accounts. Paid
// accounts have 10,000,000 for personal tokens. Apps have 5,000,000 for reads and as many for
// writes, which share them here. Responses name the limits of the minute, and the preset takes them
// over.
//
// The points of a query are known only after it has run. So the charge is an estimate from similar
// queries: those with the same text, except for ids and strings, and variables of the same shape.
// It is their average cost plus one and a half times their average deviation. A query whose text is
// new, or that has no GetBody, is charged 100,000 until its response comes, so that ten go at once
// in a free account. The response to a query with the field complexity { query } contains the cost.
// The header RateLimit reports the points that are left. A query without that field costs the
// points that are gone since the last response and that no other query has cost. Without the header
// it costs 10,000.
//
// The header doesn't tell the points of several processes apart. If they share an account, a query
// without the field is also charged what the queries of other processes have used since the last
// response. Then the account gets only a part of its points, a sixth with four processes. So add
// the field to every query of such processes.
//
// A refusal has status 429 or 200. It names the wait and pauses the account, or the mutation that
// has too many calls. If the day is used up, requests wait for midnight UTC if Policy.MaxPause
// allows it. If not, the quota is closed with throttle.ErrBanned, and one request tries after each
// MaxPause. A refusal uses a tenth of a call of the day, but counts as one here. A query that is
// too complex for any budget, a field that too many queries use at once, and a locked board pause
// nothing.
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
	costs := &mondayCosts{similar: prompt.Learner{First: mondayNew}, left: map[string]mondayLeft{}}
	p := Provider{
		Name: "monday",
		Cost: func(req *http.Request) throttle.Cost {
			cost := mondayUses(req)
			cost["requests"], cost["calls"], cost["points"] = 1, 1, costs.similar.Estimate(mondayKinds(req)...)
			return cost
		},
		Settle:  costs.settle,
		Profile: mondayProfile(),
		Hosts:   []string{"api.monday.com"},
	}
	for _, f := range mondayFields {
		uses := func(req *http.Request) bool { return mondayUses(req)[f.name] > 0 }
		of := some(f.name, page, when(uses), minute(f.limit, f.name))
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
	mondayUnreported = 10_000    // points of a query of unknown cost, as much as creating an item
)

// A mondayField is a field of queries with a limit of its own.
type mondayField struct {
	name  string
	limit int64  // a minute
	error string // its name in refusals; if empty, unknown
}

// mondayFields are the fields of queries with a limit of their own.
var mondayFields = []mondayField{
	{"create_board", 40, "CreateBoard"},
	{"duplicate_board", 40, "DuplicateBoard"},
	{"duplicate_group", 40, "DuplicateGroup"},
	{"connect_project_to_portfolio", 15, ""},
	{"app_subscriptions", 120, ""},
}

var (
	mondayName  = regexp.MustCompile(`\w+`)
	mondayValue = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\b\d{5,}\b`) // a string or an id
)

// mondayUses returns how often the query of a request uses each of mondayFields, as far as the limits
// allow.
func mondayUses(req *http.Request) throttle.Cost {
	uses, query := throttle.Cost{}, form(req).Get("query")
	if !slices.ContainsFunc(mondayFields, func(f mondayField) bool { return strings.Contains(query, f.name) }) {
		return uses
	}
	for _, name := range mondayName.FindAllString(mondayText(query), -1) {
		for _, f := range mondayFields {
			if f.name == name {
				uses[name] = min(uses[name]+1, f.limit)
			}
		}
	}
	return uses
}

// mondayText returns the text of a query without strings and ids, which don't decide about its cost.
func mondayText(query string) string { return mondayValue.ReplaceAllString(query, "") }

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
	return []uint64{prompt.Kind(text), prompt.Kind(text, string(shape))}
}

// mondayCosts are the costs of queries, as responses report them.
type mondayCosts struct {
	similar prompt.Learner

	mu       sync.Mutex            // guards all below
	left     map[string]mondayLeft // by token
	inFlight int64                 // points, as estimated
}

// A mondayLeft is what responses report of a minute.
type mondayLeft struct {
	least int64 // points that are left
	owed  int64 // points that are used, and no query has been charged
}

// settle returns a function that returns what a request has cost.
func (c *mondayCosts) settle(req *http.Request) func(throttle.Cost) throttle.Cost {
	kinds, token := mondayKinds(req), anonymous(req.Header.Get("Authorization"))
	estimate := c.similar.Estimate(kinds...)
	end := c.similar.Begin(kinds...)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight += estimate
	return func(reported throttle.Cost) throttle.Cost {
		n := c.spent(token, estimate, reported)
		end(n, n > 0) // 0 of a refusal, a request that was not sent, and one that another response has counted
		return throttle.Cost{"points": n}
	}
}

// spent returns what a query has cost. If its response doesn't contain that, the query costs the points that
// are used and have not been charged.
func (c *mondayCosts) spent(token string, estimate int64, reported throttle.Cost) int64 {
	const tokens = 1_000 // that are remembered
	c.mu.Lock()
	defer c.mu.Unlock()
	m, seen := c.left[token]
	left, reports := reported["left"]
	switch {
	case !seen || !reports:
		m = mondayLeft{left, mondayUnreported}
	case left > m.least+c.inFlight: // more than in an older response: another minute has begun
		m = mondayLeft{left, min(max(reported["budget"]-left, 0), c.inFlight)} // others may use it, too
	case left < m.least:
		m = mondayLeft{left, m.owed + m.least - left}
	}
	n, known := reported["points"]
	if !known {
		n = min(max(m.owed, 0), mondayMost)
	}
	c.inFlight -= estimate
	m.owed = min(m.owed-n, c.inFlight)
	if len(c.left) >= tokens {
		clear(c.left)
	}
	if reports {
		c.left[token] = m
	}
	return n
}

// mondayProfile returns the profile of monday.com's API. A refusal has status 429. That of an older version of
// the API, or of a part of a query, has status 200 and a code, or the status in the body.
func mondayProfile() answers.Profile {
	const policy, state, points = "Ratelimit-Policy", "Ratelimit", `"complexityMinute";`
	const errors = "errors.*.extensions."
	count := func(header, after string) answers.Field { return answers.Field{Header: header, After: after} }
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
			{Path: errors + "retry_in_seconds", Format: answers.Seconds},
			{Path: "error_message", After: "reset in ", Format: answers.Seconds},
		},
		Reasons: []answers.Field{{Path: errors + "code"}, {Path: "error_code"}, {Path: "errors.*.message"}},
		Rules:   []answers.Rule{{Status: http.StatusLocked, Kind: answers.Other, Reason: "locked"}},
	}
	add := func(r answers.Rule, paths ...string) {
		r.Method = http.MethodPost
		for _, r.Path = range paths {
			p.Rules = append(p.Rules, r)
		}
	}
	add(answers.Rule{Text: "IDEMPOTENCY_CONFLICT", Kind: answers.Other}, errors+"code")
	add(answers.Rule{Text: "FIELD_LIMIT_EXCEEDED", Kind: answers.Other}, errors+"code", "error_code")
	add(answers.Rule{Text: "REQUEST_MAX_COMPLEXITY_EXCEEDED", Kind: answers.Other}, errors+"code")
	add(answers.Rule{Text: "DAILY_LIMIT_EXCEEDED", Kind: answers.Limited, Unit: "calls", Until: "UTC"}, errors+"code", "error_code")
	for _, f := range mondayFields {
		if f.error != "" {
			add(answers.Rule{Text: "Call limit exceeded for " + f.error + "*", Kind: answers.Limited, Unit: f.name, Wait: time.Minute}, "errors.*.message")
		}
	}
	for _, text := range []string{"COMPLEXITY_BUDGET_EXHAUSTED", "IP_RATE_LIMIT_EXCEEDED", "maxConcurrencyExceeded", "Rate Limit Exceeded"} {
		add(answers.Rule{Text: text, Kind: answers.Limited}, errors+"code")
	}
	add(answers.Rule{Text: "429", Kind: answers.Limited}, errors+"status_code", "status_code")
	return p
}
